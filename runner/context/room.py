"""How much of a document a window has room for, and what is sent in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.context.base import Engine, Excerpt, PreparedPrompt, Stage, messages_of
from runner.context.full import Full
from runner.errors import PromptError
from runner.prompts import Prompt

LEAST_TOKENS = 64
"""A smaller room holds nothing that is worth sending."""


def room_of(prompt: Prompt, engine: Engine) -> int:
    """Tokens that are left for the document's place: window - question - answer - template.

    Raises:
        PromptError: too few for anything.
    """
    around = engine.encode(prompt.id, messages_of(prompt), "")
    asked = len(around.document) + len(around.question)
    room = engine.window_tokens - engine.answer_tokens - asked
    if room < LEAST_TOKENS:
        raise PromptError(
            f"prompt {prompt.id!r}: its question takes {asked} tokens and its answer up to "
            f"{engine.answer_tokens}, which leaves {max(room, 0)} of the strategy's window of "
            f"{engine.window_tokens} for its document; shorten the question, lower sampling.max_tokens, "
            "or raise context_strategy.window"
        )
    return room


def whole(prompt: Prompt, engine: Engine, strategy: str) -> tuple[PreparedPrompt, bool]:
    """``prompt`` as it is, and whether to send that: it has no document, or one that ``strategy`` has room for.

    Raises:
        PromptError: its document is blank, or the question leaves no room for any of it.
    """
    if prompt.document is not None:
        if not prompt.document.strip():
            raise PromptError(f"prompt {prompt.id!r}: its document is blank; give one with text, or none")
        room_of(prompt, engine)
    full = Full().prepare(prompt, engine)
    if prompt.document is None:
        return replace(full, reason=f"{strategy}: there is no document to shorten"), True
    if full.tokens_sent + engine.answer_tokens > engine.window_tokens:
        return full, False
    return replace(
        full, reason=f"{strategy}: the document fits the window of {engine.window_tokens} tokens"
    ), True


def shortened(
    full: PreparedPrompt,
    engine: Engine,
    strategy: str,
    evidence: str,
    *,
    stages: Sequence[Stage],
    excerpts: Sequence[Excerpt],
) -> PreparedPrompt:
    """``full`` with ``evidence`` in its document's place; with the answer it fits the engine's window."""
    tokens = engine.encode(full.prompt.id, messages_of(full.prompt), evidence)
    prepared = replace(
        full,
        strategy=strategy,
        document=tokens.document,
        question=tokens.question,
        evidence=evidence,
        stages=tuple(stages),
        excerpts=tuple(excerpts),
    )
    assert prepared.tokens_sent + engine.answer_tokens <= engine.window_tokens, "more than its room was sent"
    return prepared

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


def whole(prompt: Prompt, engine: Engine, strategy: str) -> PreparedPrompt | None:
    """``prompt`` as it is, where it has no document or one that the window of ``strategy`` has room for.

    Raises:
        PromptError: there is a document, and the question leaves no room for any of it.
    """
    if prompt.document is not None:
        room_of(prompt, engine)
    full = Full().prepare(prompt, engine)
    if prompt.document is None:
        return replace(full, reason=f"{strategy}: there is no document to shorten")
    if full.tokens_sent + engine.answer_tokens > engine.window_tokens:
        return None
    return replace(full, reason=f"{strategy}: the document fits the window of {engine.window_tokens} tokens")


def shortened(
    prompt: Prompt,
    engine: Engine,
    strategy: str,
    evidence: str,
    *,
    tokens_in: int,
    stages: Sequence[Stage],
    excerpts: Sequence[Excerpt],
) -> PreparedPrompt:
    """``prompt`` with ``evidence`` in the place of its document; with the answer it fits the engine's window."""
    tokens = engine.encode(prompt.id, messages_of(prompt), evidence)
    prepared = PreparedPrompt(
        prompt=prompt,
        strategy=strategy,
        document=tokens.document,
        question=tokens.question,
        tokens_in=tokens_in,
        evidence=evidence,
        stages=tuple(stages),
        excerpts=tuple(excerpts),
    )
    assert prepared.tokens_sent + engine.answer_tokens <= engine.window_tokens, "more than its room was sent"
    return prepared

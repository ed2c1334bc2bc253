"""What a document is asked while it is read: the prompt's question, in the words that the KV mode asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.context.base import PreparedPrompt, Tokenizer, messages_of
from runner.errors import PromptError
from runner.kv_mode import QUESTION, KvModeConfig, ProbeConfig


def with_probes(
    prepared: Sequence[PreparedPrompt], tokenizer: Tokenizer, mode: KvModeConfig
) -> list[PreparedPrompt]:
    """Prompts with what their documents are asked: their own question, or with ``share=group`` every prompt's.

    Raises:
        PromptError: a prompt without a document.
    """
    asked = [_probes(item, tokenizer, mode.probe) for item in prepared]
    if mode.guided.share == "group":
        of_document: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
        for item, probes in zip(prepared, asked, strict=True):
            of_document.setdefault(item.document, {}).update(dict.fromkeys(probes))
        asked = [tuple(of_document[item.document]) for item in prepared]
    return [replace(item, probes=probes) for item, probes in zip(prepared, asked, strict=True)]


def _probes(item: PreparedPrompt, tokenizer: Tokenizer, probe: ProbeConfig) -> tuple[tuple[int, ...], ...]:
    prompt = item.prompt
    if not item.document:
        raise PromptError(
            f"prompt {prompt.id!r} has no document that its question could guide the reading of; give its long "
            "part as `document`, or choose another kv_mode, as kv_mode=evict"
        )
    *before, last = messages_of(prompt)
    answer = tokenizer.tokens(probe.answer) if probe.answer else ()
    found: dict[tuple[int, ...], None] = {}
    for question in prompt.probes or [last["content"]]:
        for text in probe.texts:
            turn = last | {"content": text.replace(QUESTION, question)}
            tokens = tokenizer.encode(prompt.id, [*before, turn], prompt.document)
            found[tokens.question + answer] = None
    return tuple(found)

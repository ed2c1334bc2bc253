"""What a document is asked while it is read: the prompt's question, in the words that the KV mode asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.context.base import PreparedPrompt, Probe, Tokenizer, messages_of
from runner.errors import PromptError
from runner.kv_mode import QUESTION, KvModeConfig, ProbeConfig


def with_probes(
    prepared: Sequence[PreparedPrompt], tokenizer: Tokenizer, mode: KvModeConfig
) -> list[PreparedPrompt]:
    """Prompts with what their documents are asked: their own question, or with ``share=group`` every prompt's.

    What has probes of its own already keeps them.

    Raises:
        PromptError: a prompt without a document.
    """
    asked = [item.probes_by_text for item in with_own_probes(prepared, tokenizer, mode.probe)]
    if mode.guided.share == "group":
        of_document: dict[tuple[int, ...], list[set[Probe]]] = {}
        for item, by_text in zip(prepared, asked, strict=True):
            known = of_document.setdefault(item.document, [set() for _ in by_text])
            for union, probes in zip(known, by_text, strict=True):
                union.update(probes)
        # In an order of their own, so that nothing depends on that of the prompts.
        asked = [tuple(tuple(sorted(union)) for union in of_document[item.document]) for item in prepared]
    return [replace(item, probes_by_text=by_text) for item, by_text in zip(prepared, asked, strict=True)]


def with_own_probes(
    prepared: Sequence[PreparedPrompt], tokenizer: Tokenizer, probe: ProbeConfig
) -> list[PreparedPrompt]:
    """Prompts with what each asks its document, whatever others do.

    Raises:
        PromptError: a prompt without a document.
    """
    return [
        item if item.probes_by_text else replace(item, probes_by_text=_probes(item, tokenizer, probe))
        for item in prepared
    ]


def _probes(item: PreparedPrompt, tokenizer: Tokenizer, probe: ProbeConfig) -> tuple[tuple[Probe, ...], ...]:
    """What a prompt asks its document, by the texts of ``probe``.

    Raises:
        PromptError: it has no document.
    """
    prompt = item.prompt
    if not item.document:
        raise PromptError(
            f"prompt {prompt.id!r} has no document that its question could guide the reading of; give its long "
            "part as `document`, or choose another kv_mode, as kv_mode=evict"
        )
    *before, last = messages_of(prompt)
    answer = tokenizer.tokens(probe.answer) if probe.answer else ()

    def asked(content: str) -> Probe:
        tokens = tokenizer.encode(prompt.id, [*before, last | {"content": content}], prompt.document)
        return tokens.question + answer

    questions = prompt.probes or [last["content"]]
    return tuple(
        tuple(asked(text.replace(QUESTION, question)) for question in questions) for text in probe.texts
    )

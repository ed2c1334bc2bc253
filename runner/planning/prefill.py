"""How many tokens a job prefills: its questions, its documents as often as they are read, and their probes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from runner.kv_mode import KvModeConfig
from runner.planning.model.profile import ModelProfile

Probe = tuple[Hashable, int]
"""A question that a document is asked while it is read, by what tells it from others, and its tokens."""

_SHARES = (1.0, 0.9, 0.8, 0.7)
"""Of the plan's budget, in turn."""


@dataclass(frozen=True)
class Asked:
    """A prompt, as far as its prefill goes.

    Attributes:
        document: the same for prompts that have the same document.
        document_tokens: its length; 0 without one.
        question_tokens: the length of the rest.
        probes_by_text: what the document is asked for this prompt's sake, by the texts of ``probe``.
    """

    document: Hashable
    document_tokens: int
    question_tokens: int
    probes_by_text: tuple[tuple[Probe, ...], ...] = ()

    @property
    def probes(self) -> tuple[Probe, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(probe for of_text in self.probes_by_text for probe in of_text))


def worker_budget(budget: int, least: int, worker: int) -> int:
    """Cells that a worker keeps that reads for itself, of ``budget`` but not fewer than ``least``."""
    return max(int(budget * _SHARES[worker % len(_SHARES)]), least) if worker else budget


def least_of_a_worker(profile: ModelProfile, mode: KvModeConfig, budget: int) -> int:
    """The fewest cells that it may keep: sliding-window layers need their window, which ``budget`` is known to
    hold."""
    return budget if profile.sliding_window else mode.sinks + 1


def worker_first_chunk(chunk: int, worker: int, workers: int) -> int:
    """Tokens before its first eviction."""
    return max(chunk - worker * chunk // workers, 1)


def prefill_tokens(
    asked: Sequence[Asked], mode: KvModeConfig, *, budget: int, least: int, workers: int
) -> int:
    """Tokens that the prompts of ``asked`` are prefilled with, probes included.

    Args:
        asked: the prompts, each with its own probes, whatever ``mode`` shares.
        mode: how they are read.
        budget: cells that are kept of a document.
        least: cells that each worker keeps, where every one reads for itself.
        workers: answers a prompt.
    """
    if not mode.probes:
        documents = {item.document: item.document_tokens for item in asked}
        return sum(documents.values()) + sum(item.question_tokens for item in asked)
    apart = workers if mode.guided.diversify else 1
    together = _together(asked) if mode.guided.share == "group" else [item.probes_by_text for item in asked]
    readings: dict[Hashable, int] = {}
    for item, by_text in zip(asked, together, strict=True):
        for worker in range(apart):
            texts = by_text if apart == 1 else by_text[worker % max(len(by_text), 1) :][:1]
            probes = frozenset(probe for of_text in texts for probe in of_text)
            cells, first = worker_budget(budget, least, worker), worker_first_chunk(mode.chunk, worker, apart)
            key = (item.document, probes, cells, first)
            if key not in readings:
                probed = _probed(item.document_tokens, cells, mode.chunk, first, mode.probe.every)
                readings[key] = item.document_tokens + probed * sum(tokens for _, tokens in probes)
    return sum(readings.values()) + apart * sum(item.question_tokens for item in asked)


def shared_otherwise(mode: KvModeConfig) -> KvModeConfig:
    """``mode`` with the other ``guided.share``."""
    other: Literal["question", "group"] = "question" if mode.guided.share == "group" else "group"
    return replace(mode, guided=replace(mode.guided, share=other))


def _together(asked: Sequence[Asked]) -> list[tuple[tuple[Probe, ...], ...]]:
    """Every prompt's probes: those of all prompts about its document."""
    of_document: dict[Hashable, list[dict[Probe, None]]] = {}
    for item in asked:
        known = of_document.setdefault(item.document, [{} for _ in item.probes_by_text])
        for union, of_text in zip(known, item.probes_by_text, strict=True):
            union.update(dict.fromkeys(of_text))
    return [tuple(map(tuple, of_document[item.document])) for item in asked]


@cache
def _probed(tokens: int, budget: int, chunk: int, first_chunk: int, every: int) -> int:
    """After how many chunks of a document there is a probe: of those that leave more than the budget in the cache
    the first and then every ``every``-th, and the last."""
    read, held, rounds, probed = 0, 0, 0, 0
    while read < tokens:
        part = min(chunk if read else first_chunk, tokens - read)
        read, held = read + part, held + part
        if held > budget:
            probed += rounds % every == 0 or read == tokens
            rounds, held = rounds + 1, budget
    return probed

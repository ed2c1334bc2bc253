"""How many sequences a swarm's context must hold."""

from __future__ import annotations

MAX_SEQUENCES = 256
"""llama.cpp numbers no more in one context (``LLAMA_MAX_SEQ``)."""


def sequences_needed(workers: int, in_flight: int, *, documents: bool, sliding: bool) -> int:
    """How many sequences a context must have for ``in_flight`` groups of ``workers``.

    A document keeps one beside its group's; with a small sliding-window cache the prefix, which no single
    worker owns, takes another window's worth of cells.
    """
    return in_flight * (workers + int(documents) + int(sliding))

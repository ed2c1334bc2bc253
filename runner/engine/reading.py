"""How a document is read: what is asked of it meanwhile, and where and how far it is cut down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """What, beside its tokens, the cells that are kept of a document depend on; documents read alike are shared.

    Attributes:
        probes: token ids of the questions that are asked after its chunks; none where the policy does not probe.
        budget: cells that are kept; None is the plan's.
        first_chunk: tokens before the first eviction; None is a whole chunk.
    """

    probes: tuple[tuple[int, ...], ...] = ()
    budget: int | None = None
    first_chunk: int | None = None

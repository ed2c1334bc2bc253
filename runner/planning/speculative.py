"""Multi-token prediction in llama-server: which posture fits, and what its logits buffers cost.

Backend sampling keeps ``micro-batch x vocabulary`` logits in 32 bits on the card and a draft context doubles
them. Factors as the Hermes policy measured them against a server's memory (Qwen3.8 Q4, three windows).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Posture:
    """A way to run the server: its micro-batch, whether it drafts, and its logits buffers' share."""

    name: str
    n_batch: int
    n_ubatch: int
    drafts: bool
    factor: float

    def logits_bytes(self, n_vocab: int) -> int:
        """Bytes of the logits and draft buffers for ``n_vocab`` tokens."""
        return int(self.n_ubatch * n_vocab * _FLOAT_BYTES * self.factor)


STACKED = Posture("stacked", 4096, 2048, drafts=True, factor=1.5)
"""Drafting and a large micro-batch: the fastest where it fits."""
DECODE = Posture("decode", 2048, 512, drafts=True, factor=2)
"""Drafting with the usual micro-batch: keeps the decode's gain without packing the card."""
PLAIN = Posture("plain", 2048, 2048, drafts=False, factor=1)
"""No drafting and a large micro-batch."""

DRAFT_TOKENS = 3


def fitting(n_vocab: int, free_bytes: int, extra: Callable[[Posture], int]) -> Posture | None:
    """The drafting posture that fits beside the plan's window, the faster one first; None where neither does.

    The window comes first: neither posture may make it smaller.

    Args:
        n_vocab: size of the vocabulary.
        free_bytes: what the plan leaves of the pool its cache is in.
        extra: what a posture takes beside its logits, in bytes.
    """
    for posture in (STACKED, DECODE):
        if posture.logits_bytes(n_vocab) + extra(posture) <= free_bytes:
            return posture
    return None

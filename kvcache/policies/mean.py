"""Attention a query: mass averaged over the queries that could see a token, so that age is no merit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy


@dataclass(frozen=True)
class MeanAttention(Policy):
    """Mass over queries, drawn towards the head's mean for tokens that few queries have seen.

    Attributes:
        prior: the weight of the head's mean, in queries.
    """

    needs: ClassVar[Needs] = "attention"
    decay: float = 1.0
    prior: float = 0.0

    def score(self, held: HeldTokens) -> Floats:
        """Mean attention probability."""
        seen: Floats = np.maximum(held.queries.sum(axis=1, keepdims=True), 1)
        typical = held.mass.sum(axis=1, keepdims=True) / seen
        score: Floats = (held.mass + self.prior * typical) / np.maximum(held.queries + self.prior, 1e-6)
        return score.astype(np.float32, copy=False)

"""SnapKV (Li et al. 2024): the last queries of a chunk say what will be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy


@dataclass(frozen=True)
class SnapKV(Policy):
    """Mean attention of the last ``observed`` queries; the paper pools it over 7 neighbours (``pool``).

    With ``decay`` earlier chunks' last queries count too.
    """

    needs: ClassVar[Needs] = "attention"
    decay: float = 0.0
    observed: float | None = 32

    def score(self, held: HeldTokens) -> Floats:
        """Mean attention probability of the observed queries."""
        return (held.mass / np.maximum(held.queries, 1)).astype(np.float32, copy=False)

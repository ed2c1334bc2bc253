"""H2O (Zhang et al. 2023): keep the tokens that have collected the most attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy


@dataclass(frozen=True)
class H2O(Policy):
    """Attention mass, summed over all queries so far.

    An old token has had more queries to collect from than a fresh one, which is how H2O freezes on the
    beginning of a text. ``grace`` keeps every token until that many queries could see it, ``decay`` forgets.

    Attributes:
        grace: queries that must have been able to see a token before it may be judged.
    """

    needs: ClassVar[Needs] = "attention"
    decay: float = 1.0
    grace: float = 0.0

    def score(self, held: HeldTokens) -> Floats:
        """Mass; infinite under grace, the youngest of those last to leave."""
        return np.where(held.queries < self.grace, np.float32(np.inf), held.mass)

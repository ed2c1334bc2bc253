"""Peak attention: what was looked at hardest, and would be missed; the policy that ``kv_mode=evict`` means.

Summed probabilities, as H2O has them, are mostly the faint attention that every query spreads over everything.
What a prediction hangs on is the one query in hundreds that looks hard at one token. So probabilities are squared
before they are summed. And a token whose value is what the head puts out anyway can go: dropping it hardly changes
the output, whatever attention it got.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy


@dataclass(frozen=True)
class PeakAttention(Policy):
    """Mean squared attention times the distance of the token's value from the head's mean output.

    Attributes:
        prior: the weight, in queries, of the head's mean for tokens that few queries have seen.
    """

    needs: ClassVar[Needs] = "attention"
    reads_values: ClassVar[bool] = True
    moment: ClassVar[int] = 2
    decay: float = 0.7
    prior: float = 16.0

    def score(self, held: HeldTokens) -> Floats:
        """Squared attention a query, by how much the token's value stands out."""
        seen = np.maximum(held.queries.sum(axis=1, keepdims=True), 1)
        typical = held.mass.sum(axis=1, keepdims=True) / seen
        peak: Floats = (held.mass + self.prior * typical) / np.maximum(held.queries + self.prior, 1e-6)
        if held.read_values is not None:
            values = held.read_values()
            total = np.maximum(held.mass.sum(axis=1), 1e-9)
            output = np.einsum("hc,hcd->hd", held.mass, values) / total[:, None]
            peak *= np.linalg.norm(values - output[:, None], axis=2)
        return peak.astype(np.float32, copy=False)

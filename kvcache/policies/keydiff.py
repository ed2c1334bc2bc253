"""KeyDiff (Park et al. 2025): tokens whose key differs from the others' are kept; no attention is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy


@dataclass(frozen=True)
class KeyDiff(Policy):
    """The less a key points where the mean of all keys points, the better.

    Needs no attention probabilities, so flash attention and a quantised V stay possible.
    """

    needs: ClassVar[Needs] = "keys"

    def score(self, held: HeldTokens) -> Floats:
        """Minus the cosine between a token's key and the mean of the head's unit keys."""
        keys = held.read_keys()
        unit = keys / np.maximum(np.linalg.norm(keys, axis=2, keepdims=True), 1e-12)
        anchor = unit.mean(axis=1, keepdims=True)
        anchor /= np.maximum(np.linalg.norm(anchor, axis=2, keepdims=True), 1e-12)
        along: Floats = (unit * anchor).sum(axis=2)
        return -along

"""Guided: keep what the question looks at.

No policy can know which of many facts will be asked for; a runner does, before it reads the document. After each
chunk the question is decoded as a probe, and what it looks at, for each layer and head, is what that head keeps.
SnapKV (Li et al. 2024) and FINCH (Corallo and Papotti 2024) choose by a question once, when the whole document has
been prefilled; here it is asked all along, in a cache that never holds the document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvcache.policies.base import Floats, HeldTokens
from kvcache.policies.peak import PeakAttention


@dataclass(frozen=True)
class Guided(PeakAttention):
    """The attention of the probes, and for what they leave open :class:`PeakAttention`.

    Attributes:
        base: how much peak attention counts: as if a probe spread this share of its attention by it.
    """

    probes: ClassVar[bool] = True
    base: float = 0.001

    def score(self, held: HeldTokens) -> Floats:
        """What the probes gave each token, and its share of the head's peak attention."""
        peak = super().score(held)
        share = peak / np.maximum(peak.sum(axis=1, keepdims=True), 1e-30)
        guided: Floats = held.asked + np.float32(self.base) * share
        return guided

"""TOVA (Oren et al. 2024): what the last query alone looks at stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy


@dataclass(frozen=True)
class TOVA(Policy):
    """The attention of the last query; the paper averages it over a layer's heads (``granularity=layer``)."""

    needs: ClassVar[Needs] = "attention"
    decay: float = 0.0
    observed: float | None = 1

    def score(self, held: HeldTokens) -> Floats:
        """The last query's attention probability."""
        return held.mass

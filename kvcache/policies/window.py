"""Sinks and the most recent tokens (StreamingLLM, Xiao et al. 2023): sinks are the selector's, the rest is age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvcache.policies.base import Floats, HeldTokens, Needs, Policy


@dataclass(frozen=True)
class Window(Policy):
    """The younger, the better. Looks at nothing, so flash attention and every KV type stay possible."""

    needs: ClassVar[Needs] = "nothing"

    def score(self, held: HeldTokens) -> Floats:
        """The position itself."""
        return held.positions.astype(np.float32)

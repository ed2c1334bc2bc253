"""Texts as vectors: what an embedder is, and the one that comes with the ``rag`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into unit vectors; ``name`` changes with everything that changes them."""

    name: str
    dim: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Float32 ``[len(texts), dim]``, each row of length 1; in the order of ``texts``."""

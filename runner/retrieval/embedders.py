"""Texts as vectors: what an embedder is, and the one that comes with the ``rag`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors; ``name`` changes with everything that changes them."""

    name: str
    dim: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Float32 ``[len(texts), dim]`` in the order of ``texts``: rows of length 1, and 0 for an empty text."""


class WordLlamaEmbedder:
    """Mean of static token vectors that were distilled from large models' embeddings (Miller, WordLlama, 2024).

    No forward pass: 40,000 tokens take a tenth of a second. Its weights are in its wheel.
    """

    def __init__(self) -> None:
        """Load the vectors."""
        import wordllama

        # Without the folder it looks for the weights elsewhere, and fetches them.
        folder = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        self.dim = int(self._model.embedding.shape[1])
        self.name = f"wordllama-{metadata.version('wordllama')}-{self.dim}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See :class:`Embedder`."""
        return (
            unit(self._model.embed(list(texts), norm=False)) if texts else np.zeros((0, self.dim), np.float32)
        )


def unit(vectors: npt.NDArray[np.floating[Any]]) -> Vectors:
    """Rows of ``vectors`` scaled to length 1; a row that has no length, or is not finite, becomes 0."""
    finite = np.nan_to_num(np.asarray(vectors, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(finite, axis=1, keepdims=True)
    return (finite / np.where(lengths > 0, lengths, 1)).astype(np.float32)

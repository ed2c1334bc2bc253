"""Texts as vectors by an embedding model: any GGUF whose header says how its tokens are pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from runner.engine.bindings import forget_complaints, last_error, lib
from runner.engine.context import Batch
from runner.engine.weights import Weights
from runner.errors import EngineError, Interrupted, ModelError
from runner.retrieval.embedders import Vectors, unit

_TOKENS = 512
"""Of a batch, and of a text that is embedded at once; fewer where the model was trained for fewer."""

_SEQUENCES = 16


class EmbeddingModel:
    """A :class:`runner.retrieval.embedders.Embedder`.

    A text of more tokens than the model takes at once is embedded in parts, whose vectors are averaged by their
    tokens: nothing of it is left out.
    """

    def __init__(
        self, path: Path, *, digest: str, n_threads: int, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """Load the model at ``path``; ``digest`` names its weights, ``stopping`` is asked between two batches.

        Raises:
            ModelError: it cannot be loaded, or its header names no pooling.
            EngineError: there is no memory for its buffers.
        """
        self._weights = Weights(path)
        self._stopping, self._context = stopping, None
        trained = int(lib.llama_model_n_ctx_train(self._weights.handle))
        self._room = min(trained or _TOKENS, _TOKENS)
        params = lib.llama_context_default_params()
        params.embeddings = True
        params.n_ctx = params.n_batch = params.n_ubatch = self._room
        params.n_seq_max, params.kv_unified = _SEQUENCES, True
        params.n_threads = params.n_threads_batch = n_threads
        forget_complaints()
        self._context = lib.llama_init_from_model(self._weights.handle, params)
        if not self._context:
            self.close()
            raise EngineError(f"llama.cpp could not create a context for {path}: {last_error()}")
        pooling = lib.llama_pooling_type(self._context)
        if pooling not in (
            lib.LLAMA_POOLING_TYPE_MEAN,
            lib.LLAMA_POOLING_TYPE_CLS,
            lib.LLAMA_POOLING_TYPE_LAST,
        ):
            self.close()
            raise ModelError(
                f"{path} is no embedding model: its header names no pooling; name an embedding model's GGUF "
                "file, or set context_strategy.rag.embedder=wordllama"
            )
        self.dim = int(lib.llama_model_n_embd(self._weights.handle))
        self.name = f"{path.stem}-{digest[:16]}"
        self._batch = Batch(self._room)
        around = self._weights.tokenize("a", add_special=True, parse_special=False)
        inside = self._weights.tokenize("a", add_special=False, parse_special=False)
        at = next(i for i in range(len(around)) if around[i : i + len(inside)] == inside)
        self._before, self._after = around[:at], around[at + len(inside) :]

    def close(self) -> None:
        """Free the model."""
        if self._context:
            lib.llama_free(self._context)
            self._context = None
        self._weights.close()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See :class:`runner.retrieval.embedders.Embedder`.

        Raises:
            Interrupted: Ctrl-C.
            EngineError: llama.cpp failed.
        """
        vectors = np.zeros((len(texts), self.dim), np.float32)
        rows: list[tuple[int, int, list[int]]] = []
        for number, text in enumerate(texts):
            for part in self._parts(text):
                whole = [*self._before, *part, *self._after]
                if len(rows) == _SEQUENCES or sum(len(row[2]) for row in rows) + len(whole) > self._room:
                    self._run(rows, vectors)
                    rows = []
                rows.append((number, len(part), whole))
        self._run(rows, vectors)
        return unit(vectors)

    def _parts(self, text: str) -> list[list[int]]:
        tokens = self._weights.tokenize(text, add_special=False, parse_special=False)
        most = self._room - len(self._before) - len(self._after)
        return [tokens[first : first + most] for first in range(0, len(tokens), most)]

    def _run(self, rows: Sequence[tuple[int, int, list[int]]], vectors: Vectors) -> None:
        """Add to ``vectors[number]`` the unit vector of each row's tokens, ``weight`` times."""
        if not rows:
            return
        if self._stopping():
            raise Interrupted("interrupted while passages were embedded")
        lengths = [len(tokens) for _, _, tokens in rows]
        self._batch.fill(
            [token for _, _, tokens in rows for token in tokens],
            [place for length in lengths for place in range(length)],
            [row for row, length in enumerate(lengths) for _ in range(length)],
            [True] * sum(lengths),
        )
        memory = lib.llama_get_memory(self._context)
        if memory:
            lib.llama_memory_clear(memory, False)
        forget_complaints()
        if lib.llama_decode(self._context, self._batch.c) != 0:
            raise EngineError(f"{self._weights.path} could not embed a text: {last_error()}")
        for row, (number, weight, _) in enumerate(rows):
            pooled = lib.llama_get_embeddings_seq(self._context, row)
            if not pooled:
                raise EngineError(f"{self._weights.path} gave no vector for a text: {last_error()}")
            vectors[number] += weight * unit(np.ctypeslib.as_array(pooled, (1, self.dim)))[0]

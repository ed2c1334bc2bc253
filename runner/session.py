"""What outlives a job: the model in memory, and what its texts are compared with, so that a sweep pays once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.engine.context import Context
from runner.engine.modes import open_context
from runner.engine.weights import Weights
from runner.planning.plan import Plan
from runner.scoring.references import References

_Key = tuple[Path, int, int]
_Loaded = tuple[_Key, int, tuple[str, ...]]
"""A file, and where its tensors were put."""


class Session:
    """Keeps the last model, the last vocabulary, and the texts' ``references`` for the jobs that follow."""

    def __init__(self) -> None:
        self.references = References()
        self._weights: tuple[_Loaded, Weights] | None = None
        self._vocabulary: tuple[_Key, Weights] | None = None

    def vocabulary(self, path: Path) -> Weights:
        """The vocabulary of the model at ``path``: enough to plan with, a fraction of the weights.

        Raises:
            ModelError: llama.cpp cannot read the file.
        """
        key = _identity(path)
        if self._weights is not None and self._weights[0][0] == key:
            return self._weights[1]
        if self._vocabulary is None or self._vocabulary[0] != key:
            self._forget_vocabulary()
            self._vocabulary = (key, Weights(path, vocab_only=True))
        return self._vocabulary[1]

    def weights(self, path: Path, plan: Plan) -> Weights:
        """The model at ``path``, placed as planned; another one, and what :meth:`vocabulary` gave, is freed.

        Raises:
            ModelError: llama.cpp cannot load the file.
        """
        on_host = plan.spill.overrides if plan.spill is not None else ()
        wanted = (_identity(path), plan.n_gpu_layers, on_host)
        if self._weights is None or self._weights[0] != wanted:
            if self._weights is not None:
                self._weights[1].close()
                self._weights = None
            loaded = Weights(path, n_gpu_layers=plan.n_gpu_layers, on_host=on_host)
            self._weights = (wanted, loaded)
            self._forget_vocabulary()
        return self._weights[1]

    @contextmanager
    def context(self, weights: Weights, plan: Plan) -> Iterator[Context]:
        """A context as planned, freed at the end of the block.

        Raises:
            EngineError: llama.cpp refuses it.
        """
        context = open_context(weights, plan)
        try:
            yield context
        finally:
            context.close()

    def close(self) -> None:
        """Free everything."""
        self.references.close()
        self._forget_vocabulary()
        if self._weights is not None:
            self._weights[1].close()
            self._weights = None

    def _forget_vocabulary(self) -> None:
        if self._vocabulary is not None:
            self._vocabulary[1].close()
            self._vocabulary = None


def _identity(path: Path) -> _Key:
    stat = path.stat()
    return path.resolve(), stat.st_size, stat.st_mtime_ns

"""The whole text: every token in a cell of its own."""

from __future__ import annotations

import numpy as np

from kvcache.policies.base import Ints
from kvcache.stores.base import Cells, Store


class DenseStore(Store):
    """Keeps everything, and refuses what no longer fits."""

    def __init__(self, cells: Cells) -> None:
        super().__init__(cells)
        self._written: Ints = np.empty(0, np.int64)

    def _place(self, positions: Ints) -> Ints:
        used = len(self._written)
        if used + len(positions) > self.cells.n_cells:
            raise ValueError(
                f"{len(positions)} tokens do not fit: {used} of {self.cells.n_cells} cells are used"
            )
        self._written = np.concatenate([self._written, positions])
        return np.arange(used, used + len(positions))

    def _held(self) -> Ints:
        return np.arange(len(self._written))

    def _nominal(self, cells: Ints) -> Ints:
        return self._written[cells]

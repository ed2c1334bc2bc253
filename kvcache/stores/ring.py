"""A sliding window: a token goes into cell ``position % n_cells``, over the one that has left."""

from __future__ import annotations

import numpy as np

from kvcache.cells import FREE
from kvcache.policies.base import Ints
from kvcache.stores.base import Cells, Store


class RingStore(Store):
    """The last ``n_cells`` positions.

    A chunk is written before its queries look, so the first of them misses what the last of them wrote over: a
    window of ``w`` read in chunks of ``c`` needs ``w + c - 1`` cells and a mask that knows the window.
    """

    def __init__(self, cells: Cells) -> None:
        super().__init__(cells)
        self._at: Ints = np.full(cells.n_cells, FREE, np.int64)

    def _place(self, positions: Ints) -> Ints:
        newest = positions[positions > positions[-1] - self.cells.n_cells]
        cells: Ints = newest % self.cells.n_cells
        self._at[cells] = newest
        return cells

    def _held(self) -> Ints:
        # Where positions were skipped, a cell may still hold a token that the window has left behind.
        cells = np.flatnonzero((self._at != FREE) & (self._at >= self.end - self.cells.n_cells))
        return cells[np.argsort(self._at[cells])]

    def _nominal(self, cells: Ints) -> Ints:
        return self._at[cells]

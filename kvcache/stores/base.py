"""What a store is: the K and V of one layer, token by token, in cells of a fixed number.

Two halves that combine freely: *cells* are memory in a number format (:class:`Cells`), a *store* decides which
cell a token goes into and which tokens are still there (:class:`Store`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcache.policies.base import Floats, Ints
from kvcache.rope import Rope
from kvcache.selection import Moves

Numbers = npt.NDArray[np.floating]


@dataclass(frozen=True)
class LayerShape:
    """What a cell of the layer holds: K rows of ``n_head_kv * head_dim_k`` elements, V rows likewise."""

    n_head_kv: int
    head_dim_k: int
    head_dim_v: int


@dataclass(frozen=True)
class Contents:
    """What a store holds, in the order of nominal positions; ``n`` is how many cells are in use.

    Attributes:
        keys: float32 ``[n, n_head_kv, head_dim_k]``.
        values: float32 ``[n, n_head_kv, head_dim_v]``.
        positions: int64 ``[n_head_kv, n]``, the true positions of the tokens that each head holds.
        nominal: int64 ``[n]``, the position that decides who sees a cell.
    """

    keys: Floats
    values: Floats
    positions: Ints
    nominal: Ints


class Cells(ABC):
    """Memory for K and V of ``n_cells`` cells of one layer."""

    def __init__(self, n_cells: int, shape: LayerShape) -> None:
        self.n_cells = n_cells
        self.shape = shape

    @property
    @abstractmethod
    def cell_bytes(self) -> int:
        """Bytes of one cell."""

    @abstractmethod
    def put(self, cells: Ints, keys: Numbers, values: Numbers) -> None:
        """Write keys ``[n, n_head_kv, head_dim_k]`` and values ``[n, n_head_kv, head_dim_v]`` into ``cells``."""

    @abstractmethod
    def get(self, cells: Ints) -> tuple[Floats, Floats]:
        """Keys and values of ``cells`` as float32, shaped as :meth:`put` takes them."""

    @abstractmethod
    def move(self, moves: Moves) -> None:
        """Copy single heads' K and V from cell to cell."""

    @abstractmethod
    def put_heads_keys(self, cells: Ints, heads: Ints, keys: Floats) -> None:
        """Write single heads' K, ``[n, head_dim_k]``, each into its cell."""

    def rotate(self, cells: Ints, by: Ints, rope: Rope) -> None:
        """Bring K, of each head its own, ``by`` ``[n_head_kv, n]`` positions forward.

        What does not move is not touched, the rest once more rounded to the format.
        """
        heads, at = np.nonzero(by)
        keys = self.get(cells)[0][at, heads]
        rope.rotate(keys, by[heads, at])
        self.put_heads_keys(cells[at], heads, keys)


class Store(ABC):
    """The cache of one layer; tokens are appended.

    Attributes:
        cells: where K and V lie.
        end: the position after the last token's.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.end = 0

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all cells, used or not (:mod:`kvcache.budget`)."""
        return self.cells.n_cells * self.cells.cell_bytes

    def write(self, positions: npt.ArrayLike, keys: Numbers, values: Numbers) -> None:
        """Append tokens.

        Args:
            positions: int ``[n]``, rising, all after those that were written before.
            keys: ``[n, n_head_kv, head_dim_k]``, float32 or float16.
            values: ``[n, n_head_kv, head_dim_v]``.

        Raises:
            ValueError: positions that do not rise, shapes that are not the layer's, or no room.
        """
        at = np.asarray(positions, np.int64)
        shape = self.cells.shape
        for name, rows, dim in (("keys", keys, shape.head_dim_k), ("values", values, shape.head_dim_v)):
            if rows.shape != (len(at), shape.n_head_kv, dim):
                raise ValueError(f"{name} {rows.shape} are not {(len(at), shape.n_head_kv, dim)}")
        if not len(at):
            return
        if at[0] < self.end or (np.diff(at) <= 0).any():
            raise ValueError(f"positions must rise from {self.end}; got {at[0]} to {at[-1]}")
        cells = self._place(at)
        self.end = int(at[-1]) + 1
        skipped = len(at) - len(cells)
        self.cells.put(cells, keys[skipped:], values[skipped:])

    def read(self) -> Contents:
        """What is there; never a cell that was not written."""
        cells = self._held()
        keys, values = self.cells.get(cells)
        return Contents(keys, values, self._positions(cells), self._nominal(cells))

    @abstractmethod
    def _place(self, positions: Ints) -> Ints:
        """Take a cell for each of these positions, or for the last of them only."""

    @abstractmethod
    def _held(self) -> Ints:
        """The cells in use, in the order of nominal positions."""

    @abstractmethod
    def _nominal(self, cells: Ints) -> Ints:
        """Nominal positions ``[n]`` of these cells."""

    def _positions(self, cells: Ints) -> Ints:
        """True positions ``[n_head_kv, n]``: the nominal ones, where heads do not choose."""
        return np.broadcast_to(self._nominal(cells), (self.cells.shape.n_head_kv, len(cells)))

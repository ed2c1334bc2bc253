"""Cells of FP8 codes, with a scale for each position's K row and V row."""

from __future__ import annotations

import numpy as np

from kvcache.budget import fp8_cell_bytes
from kvcache.fp8 import Codes, decode, encode
from kvcache.policies.base import Floats, Ints
from kvcache.selection import Moves
from kvcache.stores.base import Cells, LayerShape, Numbers


class FP8Cells(Cells):
    """K and V as E4M3 codes.

    A row has one scale over all heads. Where heads move on their own, a cell comes to hold slices of several
    rows, and each must bring its row's scale: ``movable`` cells keep a scale a head.
    """

    def __init__(self, n_cells: int, shape: LayerShape, *, movable: bool = False) -> None:
        super().__init__(n_cells, shape)
        self.movable = movable
        n_scales = shape.n_head_kv if movable else 1
        self.keys: Codes = np.zeros((n_cells, shape.n_head_kv, shape.head_dim_k), np.uint8)
        self.values: Codes = np.zeros((n_cells, shape.n_head_kv, shape.head_dim_v), np.uint8)
        self.key_scales: Floats = np.ones((n_cells, n_scales), np.float32)
        self.value_scales: Floats = np.ones((n_cells, n_scales), np.float32)

    @property
    def cell_bytes(self) -> int:
        """A byte an element, and the scales."""
        shape = self.shape
        n_scales = self.key_scales.shape[1]
        return fp8_cell_bytes(shape.n_head_kv, shape.head_dim_k, shape.head_dim_v, n_scales)

    def put(self, cells: Ints, keys: Numbers, values: Numbers) -> None:
        """Encode, a row at a time."""
        for codes, scales, rows in (
            (self.keys, self.key_scales, keys),
            (self.values, self.value_scales, values),
        ):
            new_codes, new_scales = encode(rows.astype(np.float32, copy=False).reshape(len(cells), -1))
            codes[cells] = new_codes.reshape(rows.shape)
            scales[cells] = new_scales[:, None]

    def get(self, cells: Ints) -> tuple[Floats, Floats]:
        """Decode."""
        return (
            self._decoded(self.keys[cells], self.key_scales[cells]),
            self._decoded(self.values[cells], self.value_scales[cells]),
        )

    def move(self, moves: Moves) -> None:
        """Copy heads' codes and their scales.

        Raises:
            ValueError: the cells are not movable.
        """
        self._check_movable()
        for array in (self.keys, self.values, self.key_scales, self.value_scales):
            array[moves.target, moves.heads] = array[moves.source, moves.heads]

    def put_heads_keys(self, cells: Ints, heads: Ints, keys: Floats) -> None:
        """Encode, each with a scale of its own.

        Raises:
            ValueError: the cells are not movable.
        """
        self._check_movable()
        self.keys[cells, heads], self.key_scales[cells, heads] = encode(keys)

    def _check_movable(self) -> None:
        if not self.movable:
            raise ValueError("FP8 cells with one scale a row cannot move single heads; make them movable")

    def _decoded(self, codes: Codes, scales: Floats) -> Floats:
        by_head = np.broadcast_to(scales, codes.shape[:2]).reshape(-1)
        return decode(codes.reshape(-1, codes.shape[2]), by_head).reshape(codes.shape)

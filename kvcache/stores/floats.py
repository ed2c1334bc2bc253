"""Cells of plain floats."""

from __future__ import annotations

from typing import Literal

import numpy as np

from kvcache.budget import kv_cell_bytes
from kvcache.policies.base import Floats, Ints
from kvcache.selection import Moves
from kvcache.stores.base import Cells, LayerShape, Numbers


class FloatCells(Cells):
    """K and V as f32 or f16."""

    def __init__(self, n_cells: int, shape: LayerShape, kv_type: Literal["f32", "f16"] = "f16") -> None:
        super().__init__(n_cells, shape)
        self.kv_type = kv_type
        dtype = np.float32 if kv_type == "f32" else np.float16
        self.keys: Numbers = np.zeros((n_cells, shape.n_head_kv, shape.head_dim_k), dtype)
        self.values: Numbers = np.zeros((n_cells, shape.n_head_kv, shape.head_dim_v), dtype)

    @property
    def cell_bytes(self) -> int:
        """A row of K and a row of V."""
        shape = self.shape
        return kv_cell_bytes(shape.n_head_kv, shape.head_dim_k, shape.head_dim_v, self.kv_type, self.kv_type)

    def put(self, cells: Ints, keys: Numbers, values: Numbers) -> None:
        """Write, rounded to the type."""
        self.keys[cells] = keys
        self.values[cells] = values

    def get(self, cells: Ints) -> tuple[Floats, Floats]:
        """Read."""
        return self.keys[cells].astype(np.float32), self.values[cells].astype(np.float32)

    def move(self, moves: Moves) -> None:
        """Copy heads' slices."""
        for array in (self.keys, self.values):
            array[moves.target, moves.heads] = array[moves.source, moves.heads]

    def put_heads_keys(self, cells: Ints, heads: Ints, keys: Floats) -> None:
        """Write, rounded to the type."""
        self.keys[cells, heads] = keys

"""One layer's K and V inside llama.cpp's cache: moved, read and rounded in place, whatever their type.

K is ``[cells, n_head_kv, d]``. V is the same with flash attention; without, it is stored transposed,
``[n_head_kv, d, cells]``. Quantised rows move as bytes: a block of 32 elements never straddles two heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from kvcache import budget, fp8
from kvcache.policies import Floats
from kvcache.policies.base import Ints
from kvcache.rope import hadamard
from kvcache.selection import Moves
from runner.engine.bindings import ggml
from runner.engine.context import ContextParams
from runner.engine.key_rope import KeyRope
from runner.engine.tensors import Tensor, read_bytes, write_bytes
from runner.planning.model.profile import Layer

_Bytes = npt.NDArray[np.uint8]

_GGML_TYPES = {name: gguf.GGMLQuantizationType[name.upper()] for name in budget.KV_TYPES}


@dataclass(frozen=True)
class CacheLayer:
    """Where a layer keeps its cells.

    Attributes:
        k: address of the K tensor.
        v: address of the V tensor; None where V is a view of K (MLA).
        n_head_kv, head_dim_k, head_dim_v: its heads.
        kv_type_k, kv_type_v: the types of its cells.
        transposed: whether V is stored transposed.
    """

    k: int
    v: int | None
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    kv_type_k: str
    kv_type_v: str
    transposed: bool

    @classmethod
    def of(
        cls, tensors: Mapping[tuple[str, int], int], block: int, layer: Layer, params: ContextParams
    ) -> CacheLayer:
        """The layer of ``block`` among the tensors that a :class:`runner.engine.tap.CacheTap` has seen."""
        return cls(
            k=tensors["k", block],
            v=tensors.get(("v", block)),
            n_head_kv=layer.n_head_kv,
            head_dim_k=layer.head_dim_k,
            head_dim_v=layer.head_dim_v,
            kv_type_k=params.kv_type_k,
            kv_type_v=params.kv_type_v,
            transposed=not params.flash_attn,
        )

    @property
    def n_cells(self) -> int:
        """Cells that the layer has, free ones included."""
        return len(self._rows(self.k, self.kv_type_k, self.head_dim_k)[1])

    def move(self, moves: Moves) -> None:
        """Copy heads' tokens from cell to cell."""
        if not len(moves.heads):
            return
        data, k = self._rows(self.k, self.kv_type_k, self.head_dim_k)
        k[moves.target, moves.heads] = k[moves.source, moves.heads]
        write_bytes(self.k, data)
        if self.v is None:
            return
        if self.transposed:
            data, columns = self._columns()
            columns[moves.heads, :, moves.target] = columns[moves.heads, :, moves.source]
        else:
            data, v = self._rows(self.v, self.kv_type_v, self.head_dim_v)
            v[moves.target, moves.heads] = v[moves.source, moves.heads]
        write_bytes(self.v, data)

    def rotate(self, cells: Ints, by: Ints, key_rope: KeyRope) -> None:
        """Bring K, of each head its own, ``by`` ``[n_head_kv, n_cells]`` positions forward.

        What does not move is not touched. What moves is rounded to its type once more: each time by 0.02 % of a
        row's length in f16, 0.15 % in bf16, 0.5 % in q8_0 and 8 % in q4_0 (root mean square, measured on SmolLM2),
        which over n times adds up to that times the root of n. A quantised K is dequantised, rotated and quantised
        again, row by row.
        """
        heads, at = np.nonzero(by)
        if not len(heads):
            return
        data, k = self._rows(self.k, self.kv_type_k, self.head_dim_k)
        rows = dequantised(k[cells[at], heads], self.kv_type_k)
        if key_rope.turned:
            rows = hadamard(rows, key_rope.turned)
        key_rope.rope.rotate(rows, by[heads, at])
        if key_rope.turned:
            rows = hadamard(rows, key_rope.turned)
        k[cells[at], heads] = quantised(rows, self.kv_type_k)
        write_bytes(self.k, data)

    def keys(self, cells: Ints) -> Floats:
        """K of these cells as float32 ``[n_head_kv, n_cells, head_dim_k]``, as it is stored: after RoPE, and
        rotated by a Hadamard matrix where it is quantised, which leaves every angle between keys as it is."""
        _, k = self._rows(self.k, self.kv_type_k, self.head_dim_k)
        return np.ascontiguousarray(dequantised(k[cells], self.kv_type_k).transpose(1, 0, 2))

    def values(self, cells: Ints) -> Floats:
        """V of these cells as float32 ``[n_head_kv, n_cells, head_dim_v]``, which may not be quantised."""
        assert self.v is not None  # a caller asks for the V of a layer that keeps one
        if self.transposed:
            _, columns = self._columns()
            picked = np.ascontiguousarray(columns[:, :, cells].transpose(0, 2, 1)).view(np.uint8)
        else:
            picked = np.ascontiguousarray(
                self._rows(self.v, self.kv_type_v, self.head_dim_v)[1][cells].transpose(1, 0, 2)
            )
        return dequantised(picked, self.kv_type_v)

    def round_to_fp8(self, kind: str, cells: Ints) -> None:
        """Round the f16 K or V (``kind``) of these cells to E4M3 with one scale a cell."""
        if kind == "v" and self.transposed:
            data, columns = self._columns()
            halves = columns.view(np.float16).reshape(-1, columns.shape[2])
            halves[:, cells] = fp8.rounded(np.ascontiguousarray(halves[:, cells].T)).T
            address = self.v
        else:
            address = self.k if kind == "k" else self.v
            assert address is not None  # it was just written
            data, rows = self._rows(address, "f16", self.head_dim_k if kind == "k" else self.head_dim_v)
            halves = rows.view(np.float16).reshape(len(rows), -1)
            halves[cells] = fp8.rounded(halves[cells])
        assert address is not None
        write_bytes(address, data)

    def _rows(self, address: int, kv_type: str, head_dim: int) -> tuple[_Bytes, _Bytes]:
        """The tensor's bytes, and a view of them as ``[cells, n_head_kv, bytes of a head]``."""
        data = read_bytes(address)
        head = budget.row_bytes(kv_type, head_dim)
        return data, data.reshape(-1, self.n_head_kv, head)

    def _columns(self) -> tuple[_Bytes, npt.NDArray[Any]]:
        """The transposed V's bytes, and a view of them as ``[n_head_kv, head_dim_v, cells]``."""
        assert self.v is not None
        data = read_bytes(self.v)
        elements = data.view(np.uint32 if self.kv_type_v == "f32" else np.uint16)
        n_cells = Tensor.from_address(self.v).ne[1]
        width = self.n_head_kv * self.head_dim_v
        return data, elements.reshape(-1, n_cells)[:width].reshape(self.n_head_kv, self.head_dim_v, n_cells)


def dequantised(rows: _Bytes, kv_type: str) -> Floats:
    """What ``rows``, contiguous uint8 ``[..., bytes]``, hold: float32 ``[..., elements]``."""
    # As a single row: gguf takes sixteen at a time.
    flat = np.asarray(dequantize(rows.reshape(1, -1), _GGML_TYPES[kv_type]), np.float32)
    return flat.reshape(*rows.shape[:-1], -1)


def quantised(rows: Floats, kv_type: str) -> _Bytes:
    """``rows``, float32 ``[n, elements]``, as ggml stores them: uint8 ``[n, bytes]``."""
    rows = np.ascontiguousarray(rows, np.float32)
    n, elements = rows.shape
    out = np.empty((n, budget.row_bytes(kv_type, elements)), np.uint8)
    number = int(_GGML_TYPES[kv_type])
    ggml.ggml_quantize_chunk(number, rows.ctypes.data, out.ctypes.data, 0, n, elements, None)
    return out

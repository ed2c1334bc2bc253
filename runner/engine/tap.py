"""Looking into llama.cpp's graph while it runs: which cells are written, and what attention looks at."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping

import numpy as np

from kvcache.policies import Floats
from kvcache.policies.base import Ints
from runner.engine.key_rope import KeyRope, key_rope
from runner.engine.tensors import Tensor, base_of, op_number, read_bytes
from runner.errors import EngineError

OnWrite = Callable[[str, int, Ints], None]
"""``(kind, layer, cells)``: the K or V (``kind``) of a layer has been written into these cells."""


_OP_OFFSET, _VIEW_OFFSET = Tensor.op.offset, Tensor.view_src.offset
_CACHE = re.compile(r"cache_([kv])_l(\d+)")
_SCORES = b"kq_soft_max-"


class CacheTap:
    """A context's callback: finds the K and V tensors, the cells of new tokens and, if asked, attention's mass.

    Every layer's K and V are written by a ``SET_ROWS`` node, a view of the cache tensor that it writes into; its
    second source holds, for each token of the micro-batch, the cell. Probabilities are ``kq_soft_max-<layer>``,
    ``[n_head, n_query, n_cells]``, and exist without flash attention only. Layers are counted as blocks.

    Attributes:
        tensors: the address of each cache tensor by (``k`` or ``v``, layer), after the first decode.
        ropes: how each layer's K was rotated before it was written, by layer, after the first decode; None where
            it was not.
        mass: float32 ``[n_rows, n_cells]``, what the observed queries of this batch looked at; a row is a KV head
            of one of ``rows``' layers.
    """

    def __init__(
        self,
        rows: Mapping[int, slice],
        n_cells: int,
        *,
        moment: int,
        on_write: OnWrite | None = None,
        rotations: bool = False,
    ) -> None:
        """Watch the layers in ``rows``, each with its rows of :attr:`mass`, in a cache of ``n_cells``.

        ``moment`` is the power to which probabilities are summed, unless a batch has its own; 0 does not look at
        them.
        ``on_write(kind, layer, cells)`` is called when the K or V of any layer has been written and before
        attention reads it. With ``rotations`` it is found out how K is rotated; :meth:`Context.decode` raises an
        EngineError where that is not known.
        """
        self.tensors: dict[tuple[str, int], int] = {}
        self.ropes: dict[int, KeyRope | None] = {}
        self.mass: Floats = np.zeros((max((r.stop for r in rows.values()), default=0), n_cells), np.float32)
        self._rows, self._first = dict(rows), min(rows, default=-1)
        self._moment, self._on_write, self._rotations = moment, on_write, rotations
        self._known: dict[int, tuple[str, int]] = {}
        self._cells: list[Ints] = []
        self._skip, self._power = 0, moment
        self._set_rows, self._soft_max = op_number("SET_ROWS"), op_number("SOFT_MAX")

    def begin(self, skip: int = 0, moment: int | None = None) -> None:
        """A new batch, whose first ``skip`` queries are not observed; ``moment`` is its own, if given."""
        self._cells.clear()
        self._skip, self._power = skip, self._moment if moment is None else moment
        self.mass[:] = 0

    def cells(self, n_tokens: int) -> Ints:
        """The cells of the batch's tokens, in the batch's order.

        Raises:
            EngineError: not one cell a token was seen, so that it is not known which is whose.
        """
        cells = np.concatenate(self._cells) if self._cells else np.empty(0, np.int64)
        if len(self._cells) != 1 or len(cells) != n_tokens:
            raise EngineError(
                f"a batch of {n_tokens} tokens was written as {len(self._cells)} micro-batches of "
                f"{len(cells)} cells; this model cannot be run with an eviction policy, set kv_mode=f16"
            )
        return cells

    def __call__(self, address: int, ask: bool) -> bool:
        """The callback; asked, it says whether it wants to see the tensor when it is computed."""
        op = ctypes.c_int.from_address(address + _OP_OFFSET).value
        if op == self._set_rows:
            return self._write(address, ask)
        if op == self._soft_max and self._moment:
            return self._look(address, ask)
        return not ask

    def _write(self, address: int, ask: bool) -> bool:
        # A view points at the tensor that it is a view of in the end; a cache tensor lives as long as its context.
        written = self._known.get(ctypes.c_void_p.from_address(address + _VIEW_OFFSET).value or 0)
        written = written or self._find(address)
        if written is None:
            return not ask
        if ask and self._on_write is None and written != ("k", self._first):
            return False
        kind, layer = written
        tensor = Tensor.from_address(address)
        cells = self._indices(tensor, base_of(tensor)[1], kind)
        if not ask:
            assert self._on_write is not None  # else the tensor was not asked for
            self._on_write(kind, layer, cells)
        elif written == ("k", self._first):
            self._cells.append(cells.copy())
        return self._on_write is not None or not ask

    def _find(self, address: int) -> tuple[str, int] | None:
        """Which cache tensor a ``SET_ROWS`` node writes; None where it writes something else."""
        base_address, base = base_of(Tensor.from_address(address))
        match = _CACHE.fullmatch(base.name.decode())
        if match is None:
            return None
        written = match[1], int(match[2])
        if match[1] == "k" and self._rotations:
            self.ropes[written[1]] = key_rope(address)
        self.tensors[written], self._known[base_address] = base_address, written
        return written

    def _indices(self, tensor: Tensor, base: Tensor, kind: str) -> Ints:
        """The cell of each token that a ``SET_ROWS`` node writes."""
        at = tensor.src[1]
        indices = read_bytes(at).view(np.int64)
        elements, n_cells = base.ne[0], base.ne[1]
        if kind == "v" and tensor.ne[0] == 1:
            # V is stored transposed: an index for each element of a token, the first of which is the cell.
            indices = indices[::elements] % n_cells
        return indices

    def _look(self, address: int, ask: bool) -> bool:
        tensor = Tensor.from_address(address)
        if not tensor.name.startswith(_SCORES):
            return not ask
        rows = self._rows.get(int(tensor.name[len(_SCORES) :]))
        if ask or rows is None:
            return rows is not None
        n_cells, n_query, n_head = tensor.ne[0], tensor.ne[1], tensor.ne[2]
        p = read_bytes(address).view(np.float32).reshape(n_head, n_query, n_cells)
        mass = self._summed(p[:, self._skip :])
        n_head_kv = rows.stop - rows.start
        self.mass[rows, :n_cells] += mass.reshape(n_head_kv, n_head // n_head_kv, n_cells).sum(axis=1)
        return True

    def _summed(self, p: Floats) -> Floats:
        """Over the queries: ``[n_head, n_query, n_cells]`` to ``[n_head, n_cells]``."""
        if p.shape[1] == 1:
            return p[:, 0] ** self._power
        if self._power == 2:
            # One pass, without the squares in memory.
            squares: Floats = np.einsum("hqc,hqc->hc", p, p)
            return squares
        total: Floats = (p if self._power == 1 else p**self._power).sum(axis=1)
        return total

"""Looking into llama.cpp's graph while it runs: which cells are written, and what attention looks at.

The struct is ggml's of the pinned build; ``op`` numbers are looked up by name, since they shift between builds.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from kvcache.policies import Floats
from kvcache.policies.base import Ints
from runner.engine.bindings import ggml
from runner.errors import EngineError

_Bytes = npt.NDArray[np.uint8]
OnWrite = Callable[[str, int, Ints], None]
"""``(kind, layer, cells)``: the K or V (``kind``) of a layer has been written into these cells."""


class Tensor(ctypes.Structure):
    """``struct ggml_tensor`` of llama-cpp-python 0.3.36."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


def op_number(name: str) -> int:
    """ggml's number of the operation ``name``, for example ``SET_ROWS``."""
    number = next((i for i in range(256) if ggml.ggml_op_name(i) == name.encode()), None)
    if number is None:
        raise LookupError(f"this build of ggml has no operation {name}")
    return number


_OP_OFFSET, _VIEW_OFFSET = Tensor.op.offset, Tensor.view_src.offset
_CACHE = re.compile(r"cache_([kv])_l(\d+)")
_SCORES = b"kq_soft_max-"


def read_bytes(address: int, size: int | None = None) -> _Bytes:
    """The first ``size`` bytes of a tensor, all if None: a view where they are in host memory, else a copy."""
    tensor = Tensor.from_address(address)
    size = ggml.ggml_nbytes(address) if size is None else size
    if is_on_host(tensor):
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data))
    copy = np.empty(size, np.uint8)
    ggml.ggml_backend_tensor_get(address, copy.ctypes.data, 0, size)
    return copy


def write_bytes(address: int, data: _Bytes) -> None:
    """Bring what :func:`read_bytes` gave, changed, back into the tensor; a view is there already."""
    if not is_on_host(Tensor.from_address(address)):
        ggml.ggml_backend_tensor_set(address, data.ctypes.data, 0, data.nbytes)


def is_on_host(tensor: Tensor) -> bool:
    """Whether the processor can read and write the tensor's data where it is."""
    return bool(ggml.ggml_backend_buffer_is_host(_base(tensor)[1].buffer))


def _base(tensor: Tensor) -> tuple[int, Tensor]:
    """The tensor that ``tensor`` is a view of in the end, with its address; 0 and itself if of none."""
    address = 0
    while tensor.view_src:
        address = tensor.view_src
        tensor = Tensor.from_address(address)
    return address, tensor


class CacheTap:
    """A context's callback: finds the K and V tensors, the cells of new tokens and, if asked, attention's mass.

    Every layer's K and V are written by a ``SET_ROWS`` node, a view of the cache tensor that it writes into; its
    second source holds, for each token of the micro-batch, the cell. Probabilities are ``kq_soft_max-<layer>``,
    ``[n_head, n_query, n_cells]``, and exist without flash attention only. Layers are counted as blocks.

    Attributes:
        tensors: the address of each cache tensor by (``k`` or ``v``, layer), after the first decode.
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
    ) -> None:
        """Watch the layers in ``rows``, each with its rows of :attr:`mass`, in a cache of ``n_cells``.

        ``moment`` is the power to which probabilities are summed; 0 does not look at them.
        ``on_write(kind, layer, cells)`` is called when the K or V of any layer has been written and before
        attention reads it.
        """
        self.tensors: dict[tuple[str, int], int] = {}
        self.mass: Floats = np.zeros((max((r.stop for r in rows.values()), default=0), n_cells), np.float32)
        self._rows, self._first = dict(rows), min(rows, default=-1)
        self._moment, self._on_write = moment, on_write
        self._known: dict[int, tuple[str, int]] = {}
        self._cells: list[Ints] = []
        self._skip = 0
        self._set_rows, self._soft_max = op_number("SET_ROWS"), op_number("SOFT_MAX")

    def begin(self, skip: int = 0) -> None:
        """A new batch, whose first ``skip`` queries are not observed."""
        self._cells.clear()
        self._skip = skip
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
        cells = self._indices(tensor, _base(tensor)[1], kind)
        if not ask:
            assert self._on_write is not None  # else the tensor was not asked for
            self._on_write(kind, layer, cells)
        elif written == ("k", self._first):
            self._cells.append(cells.copy())
        return self._on_write is not None or not ask

    def _find(self, address: int) -> tuple[str, int] | None:
        """Which cache tensor a ``SET_ROWS`` node writes; None where it writes something else."""
        base_address, base = _base(Tensor.from_address(address))
        match = _CACHE.fullmatch(base.name.decode())
        if match is None:
            return None
        written = match[1], int(match[2])
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
            return p[:, 0] ** self._moment
        if self._moment == 2:
            # One pass, without the squares in memory.
            squares: Floats = np.einsum("hqc,hqc->hc", p, p)
            return squares
        total: Floats = (p if self._moment == 1 else p**self._moment).sum(axis=1)
        return total

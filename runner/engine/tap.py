"""Looking into llama.cpp's graph while it runs: the tensors that a callback of the scheduler is shown.

The struct is ggml's of the pinned build; ``op`` numbers are looked up by name, since they shift between builds.
"""

from __future__ import annotations

import ctypes
import re

from runner.engine.bindings import ggml


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


class CacheTensors:
    """A context's callback that finds its K and V cache tensors: name -> bytes, after the first decode.

    Every layer's K and V are written by a ``SET_ROWS`` node, a view of the cache tensor it writes into.
    """

    def __init__(self) -> None:
        self.bytes_by_name: dict[str, int] = {}
        self._set_rows = op_number("SET_ROWS")

    def __call__(self, address: int, ask: bool) -> bool:
        """The callback; asks to be shown no tensor's data, since a name and a size are enough."""
        tensor = Tensor.from_address(address)
        if tensor.op == self._set_rows:
            base, at = tensor, address
            while base.view_src:
                at = base.view_src
                base = Tensor.from_address(at)
            name = base.name.decode()
            if re.fullmatch(r"cache_[kv]_l\d+", name):
                self.bytes_by_name[name] = ggml.ggml_nbytes(at)
        return False

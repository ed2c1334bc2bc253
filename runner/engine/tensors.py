"""ggml's tensors as they lie in memory: the struct of the pinned build, and the bytes behind it.

Numbers of operations are looked up by name, since they shift between builds.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from runner.engine.bindings import ggml

_Bytes = npt.NDArray[np.uint8]


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
    return bool(ggml.ggml_backend_buffer_is_host(base_of(tensor)[1].buffer))


def base_of(tensor: Tensor) -> tuple[int, Tensor]:
    """The tensor that ``tensor`` is a view of in the end, with its address; 0 and itself if of none."""
    address = 0
    while tensor.view_src:
        address = tensor.view_src
        tensor = Tensor.from_address(address)
    return address, tensor

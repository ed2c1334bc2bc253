"""The one door to llama.cpp: no other module imports ``llama_cpp``.

Importing this module starts the backend, takes llama.cpp's log away from stderr, and puts a hook on its
asserts, which end the process. The modules beside it build on ``lib`` and ``ggml``: :mod:`weights`,
:mod:`context`, :mod:`sampler` and :mod:`tap` own what llama.cpp allocates and say in exceptions what the C
API says in return codes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp as lib

from runner.errors import EngineError

__all__ = [
    "KV_TYPE_IDS",
    "can_offload",
    "exp_sum",
    "forget_complaints",
    "ggml",
    "last_error",
    "lib",
    "max_sequences",
    "on_abort",
    "on_host",
    "version",
]

KV_TYPE_IDS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20,
               "bf16": 30}  # fmt: skip
"""ggml's type number of each KV type (``enum ggml_type``)."""

_log = logging.getLogger("kvswarm.llama")
_WARN, _ERROR = 3, 4  # enum ggml_log_level
_complaints: deque[tuple[int, str]] = deque(maxlen=50)


def _on_log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    if level not in (_WARN, _ERROR) and not _log.isEnabledFor(logging.DEBUG):
        return
    line = text.decode("utf-8", "replace").rstrip()
    if line:
        _log.debug("%s", line)
        if level in (_WARN, _ERROR):
            _complaints.append((level, line))


_on_abort_hooks: list[Callable[[str], None]] = []
_abort_callback_type = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def _on_abort(message: bytes) -> None:
    # The process ends when this returns, so nothing may escape and everything must be flushed here.
    text = " ".join(message.decode("utf-8", "replace").split())
    for hook in _on_abort_hooks:
        try:
            hook(text)
        except Exception as error:
            sys.stderr.write(f"error: what happened could not be recorded: {error}\n")
    sys.stderr.write(f"error: llama.cpp stopped this process: {text}\n")
    sys.stderr.flush()
    os._exit(EngineError.exit_status)


def on_abort(hook: Callable[[str], None]) -> Callable[[], None]:
    """Call ``hook(message)`` before an engine assert ends the process; call what is returned to remove it."""
    _on_abort_hooks.append(hook)
    return lambda: _on_abort_hooks.remove(hook)


def _ggml() -> ctypes.CDLL:
    """The ggml that ``libllama`` runs on.

    The wheel ships each library under three names, all files of their own. Opened by another name than the one
    ``libllama`` is linked to, ggml is a second copy, and an abort hook set there is never called.
    """
    if sys.platform == "win32":
        return ctypes.CDLL(str(Path(lib.__file__).parent / "lib" / "ggml-base.dll"))
    # A look-up through libllama's handle goes on to what it is linked to.
    handle: ctypes.CDLL = lib.llama_cpp._lib
    return handle


ggml = _ggml()
ggml.ggml_set_abort_callback.argtypes = [_abort_callback_type]
ggml.ggml_set_abort_callback.restype = ctypes.c_void_p
ggml.ggml_op_name.restype = ctypes.c_char_p
ggml.ggml_quantize_chunk.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
]
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
ggml.ggml_nbytes.argtypes = [ctypes.c_void_p]
ggml.ggml_nbytes.restype = ctypes.c_size_t

ggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
ggml.ggml_backend_buffer_is_host.argtypes = [ctypes.c_void_p]
ggml.ggml_backend_buffer_is_host.restype = ctypes.c_bool
for _transfer in (ggml.ggml_backend_tensor_get, ggml.ggml_backend_tensor_set):
    _transfer.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    _transfer.restype = None


class TensorOverride(ctypes.Structure):
    """``llama_model_tensor_buft_override``: tensors whose name matches go to a buffer type."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


# ggml's softmax kernel, not in its headers: the sum of exp(x[i] - max) over n floats, in a third of numpy's time.
exp_sum = getattr(ggml, "ggml_vec_soft_max_f32", None)
if exp_sum is not None:
    exp_sum.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float]
    exp_sum.restype = ctypes.c_double

# ctypes keeps no reference to a callback it hands to C: these names do.
_log_callback = lib.llama_log_callback(_on_log)
_abort_callback = _abort_callback_type(_on_abort)
lib.llama_log_set(_log_callback, ctypes.c_void_p(0))
ggml.ggml_set_abort_callback(_abort_callback)
lib.llama_backend_init()


def version() -> str:
    """Of the Python package and the llama.cpp inside it, and what it was built for."""
    built_for = "gpu" if can_offload() else "cpu"
    return f"llama-cpp-python {lib.__version__} ({lib.llama_version().decode()}, {built_for})"


def can_offload() -> bool:
    """Whether this build can put layers on an accelerator."""
    return bool(lib.llama_supports_gpu_offload())


def on_host(patterns: Sequence[str]) -> ctypes.Array[TensorOverride]:
    """Overrides that keep the tensors whose name matches a pattern in host memory, ended as C wants it."""
    cpu = ggml.ggml_backend_cpu_buffer_type()
    entries = [TensorOverride(pattern.encode(), cpu) for pattern in patterns]
    return (TensorOverride * (len(entries) + 1))(*entries)


def max_sequences() -> int:
    """How many sequences a context can have (``LLAMA_MAX_SEQ``)."""
    return int(lib.llama_max_parallel_sequences())


def forget_complaints() -> None:
    """Start a new page, so that :func:`last_error` speaks of what comes next."""
    _complaints.clear()


def last_error() -> str:
    """The line in which llama.cpp says why it gave up, as well as can be told."""
    errors = [line for level, line in _complaints if level == _ERROR] or [line for _, line in _complaints]
    # The first error is the cause; those after it say which function gave up because of it.
    return errors[0] if errors else "it gave no reason"

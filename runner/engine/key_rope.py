"""How a layer's K was rotated, read off the graph that rotates it: no table of architectures to keep up with.

From the ``SET_ROWS`` node that writes K into the cache the way leads back to a ``ROPE`` node, whose parameters
say what the engine does, for this layer, with this context's scaling. On that way K may be reshaped, joined to
a part that is not rotated (MLA) and, where the cache is quantised, turned by a Hadamard matrix; anything else
that happened to a rotated K makes it something that no rotation brings to another position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvcache.rope import Rope, frequencies
from runner.engine.bindings import ggml
from runner.engine.tensors import Tensor, read_bytes
from runner.errors import EngineError

_SAME = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "CONT", "CPY", "DUP"})
_NORMAL, _NEOX, _MROPE, _IMROPE = 0, 2, 8, 40
"""``GGML_ROPE_TYPE_*``. In a text the first three sections of an (I)MROPE have the token's position, which makes
it NeoX's, and the fourth has position 0 always."""


@dataclass(frozen=True)
class KeyRope:
    """A rotated K.

    Attributes:
        rope: the rotation.
        turned: the side of the Hadamard matrix that K was turned by behind it; 0 for none.
    """

    rope: Rope
    turned: int = 0


def key_rope(set_rows: int) -> KeyRope | None:
    """The rotation of what the node at address ``set_rows`` writes; None where it is not rotated.

    Raises:
        EngineError: it is rotated in a way that is not known here.
    """
    return _back(_source(Tensor.from_address(set_rows), 0))


def _back(address: int) -> KeyRope | None:
    tensor = Tensor.from_address(address)
    op = _op(tensor)
    if op in _SAME:
        return _back(_source(tensor, 0))
    if op == "ROPE":
        return _parsed(tensor)
    if op == "CONCAT":
        left, right = (_back(_source(tensor, i)) for i in (0, 1))
        if right is not None:
            first = int(Tensor.from_address(_source(tensor, 0)).ne[0])
            return replace(right, rope=replace(right.rope, first=first + right.rope.first))
        return left
    if op == "MUL_MAT" and b"k_rot" in Tensor.from_address(_source(tensor, 0)).name:
        found = _back(_source(tensor, 1))
        return (
            None
            if found is None
            else replace(found, turned=int(Tensor.from_address(_source(tensor, 0)).ne[0]))
        )
    if _rotated_before(tensor):
        raise EngineError(
            f"this model changes its keys after their rotation ({op}), so that they cannot be moved to other "
            f"positions; set kv_mode.positions=original"
        )
    return None


def _rotated_before(tensor: Tensor) -> bool:
    """Whether there is a rotation on the way to ``tensor``; a product's first source are its weights."""
    while tensor.src[0]:
        tensor = Tensor.from_address(tensor.src[0])
        if _op(tensor) == "ROPE":
            return True
    return False


def _parsed(tensor: Tensor) -> KeyRope:
    whole = tensor.op_params
    parts = np.frombuffer(bytes(whole), np.float32)
    n_dims, mode, n_ctx_orig, first = int(whole[1]), int(whole[2]), int(whole[4]), int(whole[15])
    base, scale, extrapolate, _, beta_fast, beta_slow = (float(x) for x in parts[5:11])
    if mode not in (_NORMAL, _NEOX, _MROPE, _IMROPE):
        raise EngineError(
            f"this model's rotary embedding is of a type ({mode}) whose keys cannot be moved to other positions; "
            f"set kv_mode.positions=original"
        )
    factors: npt.NDArray[np.float32] | None = None
    if tensor.src[2]:
        factors = read_bytes(tensor.src[2]).view(np.float32).copy()
    rates = frequencies(
        n_dims,
        base,
        scale=scale,
        factors=factors,
        extrapolate=extrapolate,
        n_ctx_orig=n_ctx_orig,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
    )
    if mode in (_MROPE, _IMROPE):
        rates[_stands(n_dims // 2, whole[11:15], interleaved=mode == _IMROPE)] = 0
    return KeyRope(Rope(rates, interleaved=mode == _NORMAL, first=first))


def _stands(n_pairs: int, sections: Sequence[int], *, interleaved: bool) -> npt.NDArray[np.bool_]:
    """Which pairs have the fourth section's position (``ggml_mrope_cache_init``)."""
    sector = np.arange(n_pairs) % sum(sections)
    if interleaved:
        return sector >= 3 * np.asarray(sections)[sector % 3]
    return sector >= sum(sections[:3])


def _source(tensor: Tensor, index: int) -> int:
    address = tensor.src[index]
    assert address  # the operations that are followed have their sources
    return int(address)


def _op(tensor: Tensor) -> str:
    return str(ggml.ggml_op_name(tensor.op).decode())

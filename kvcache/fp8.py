"""FP8 E4M3 with one scale a row: a quarter of f32, and what rounding to it does to a cache that stays f16.

The format (``float8_e4m3fn``) has a sign, four exponent bits of bias 7 and three mantissa bits; no infinity, 448
is the largest number, 2^-6 the smallest normal one, below it steps of 2^-9. A row's scale maps its largest
magnitude to 240, the seed's headroom; 240 is a number of the format, so the largest magnitude comes back as it
was.

What is no finite number has no part in the scale: NaN stays NaN, in its own place only; an infinity becomes 448
scales, the most that the row can hold, and is cut to the range of the dtype it comes back in.
"""

from __future__ import annotations

from typing import TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kvcache.policies.base import Floats

Codes = npt.NDArray[np.uint8]
Row = TypeVar("Row", np.float16, np.float32)

LARGEST = np.float32(448)
SCALED_MAX = np.float32(240)

VALUES: Floats = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""The number that each code stands for, float32 ``[256]``."""

# A scale below the normal numbers would lose bits, or be zero, and no longer bring the row to 240.
_SMALLEST_SCALE = np.finfo(np.float32).tiny

_EXPONENT = np.uint32(0x7F800000)
_SMALLEST_NORMAL = np.uint32((127 - 6) << 23)
_SHIFT_TO_MAGIC = np.uint32(20 << 23)


def nearest_codes(numbers: npt.NDArray[np.float32]) -> Codes:
    """The codes nearest to these numbers, ties to the even one; beyond 448 saturates, NaN stays NaN.

    Args:
        numbers: float32 or float16, any shape.

    Returns:
        uint8, the same shape; the sign bit is the number's, zero included.
    """
    # A NaN that signals warns in every cast, and stays the NaN that it should.
    with np.errstate(invalid="ignore"):
        clipped = np.clip(numbers.astype(np.float32, copy=False), -LARGEST, LARGEST)
        return clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def encode(rows: npt.NDArray[Row]) -> tuple[Codes, Floats]:
    """Rows as codes and scales.

    Args:
        rows: float32 or float16 ``[n, elements]``; a row is what one layer keeps of K, or of V, at one position.

    Returns:
        uint8 ``[n, elements]`` and float32 ``[n]``: absmax / 240 of the row's finite elements, 1 where that is 0.
    """
    numbers = rows.astype(np.float32, copy=False)
    scales = _scales(_absmax(np.where(np.isfinite(numbers), numbers, np.float32(0))))
    with np.errstate(invalid="ignore"):
        return nearest_codes(numbers / scales[:, None]), scales


def decode(codes: Codes, scales: Floats) -> Floats:
    """The rows that codes ``[n, elements]`` and scales ``[n]`` stand for, float32 ``[n, elements]``."""
    with np.errstate(over="ignore"):
        rows = VALUES[codes] * scales[:, None]
    return _finite(rows)


def rounded(rows: npt.NDArray[Row]) -> npt.NDArray[Row]:
    """The rows as they come back from the codec, in their own dtype: ``decode(*encode(rows))``, to the bit.

    Args:
        rows: float16 or float32 ``[n, elements]``.

    Raises:
        TypeError: another dtype.
    """
    if rows.dtype not in (np.dtype(np.float16), np.dtype(np.float32)):
        raise TypeError(f"FP8 rounds rows of float16 or float32, these are {rows.dtype}")
    numbers = rows.astype(np.float32, copy=False)
    absmax = _absmax(numbers)
    if not np.isfinite(absmax).all():
        return _finite(decode(*encode(numbers)), rows.dtype).astype(rows.dtype)
    scales = _scales(absmax)[:, None]
    numbers = numbers / scales
    # 1.5 * 2^23 steps of a number's own binade have an ulp of one step: adding them rounds to a step, ties to
    # even. A cast to codes and back takes several times as long, more than the engine can afford.
    magic = numbers.view(np.uint32) & _EXPONENT
    np.maximum(magic, _SMALLEST_NORMAL, out=magic)
    magic += _SHIFT_TO_MAGIC
    steps = magic.view(np.float32)
    steps *= np.float32(1.5)
    back = numbers + steps
    back -= steps
    np.copysign(back, numbers, out=back)
    back *= scales
    return back.astype(rows.dtype, copy=False)


def _absmax(numbers: Floats) -> Floats:
    highest: Floats = numbers.max(axis=1, initial=np.float32(0))
    lowest: Floats = numbers.min(axis=1, initial=np.float32(0))
    return np.maximum(highest, -lowest)


def _scales(absmax: Floats) -> Floats:
    scales: Floats = np.maximum(absmax / SCALED_MAX, _SMALLEST_SCALE)
    return np.where(absmax > 0, scales, np.float32(1))


def _finite(rows: Floats, dtype: npt.DTypeLike = np.float32) -> Floats:
    limit = np.float32(np.finfo(np.dtype(dtype)).max)
    finite: Floats = np.clip(rows, -limit, limit)
    return finite

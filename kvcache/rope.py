"""Rotary position embedding, applied once more: a K row that was written at one position is brought to another.

RoPE turns each pair of a row's elements by an angle that is linear in the position, whatever the scaling: YaRN
and linear scaling only change the angle's rate, and frequency factors divide it. Turns add up, so a row written at
p and turned by p' - p is the row written at p', up to the rounding of the type it is kept in (Su et al. 2021,
RoFormer; the scalings as ggml's ``rope_yarn`` has them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from kvcache.policies.base import Floats, Ints


@dataclass(frozen=True, eq=False)
class Rope:
    """How one layer's K rows are rotated.

    Attributes:
        frequencies: float64 ``[n_pairs]``, the angle of each pair per position, in radians.
        interleaved: whether a pair are neighbours (``0, 1``), as in Llama, or half the rotated width apart
            (``0, n_pairs``), as in GPT-NeoX.
        first: the first rotated element; what lies before it, and behind the pairs, is left alone.
    """

    frequencies: npt.NDArray[np.float64]
    interleaved: bool
    first: int = 0

    @property
    def n_dims(self) -> int:
        """How many elements of a row are rotated."""
        return 2 * len(self.frequencies)

    def rotate(self, rows: Floats, by: Ints) -> None:
        """Bring ``rows``, float32 ``[n, head_dim]``, ``by`` positions forward, each its own, in place."""
        part = rows[:, self.first : self.first + self.n_dims]
        turns = self._turns(by)
        if self.interleaved:
            pairs = np.ascontiguousarray(part).view(np.complex64)
            part[:] = (pairs * turns).view(np.float32)
        else:
            half = len(self.frequencies)
            turned = (part[:, :half] + 1j * part[:, half:]).astype(np.complex64, copy=False) * turns
            part[:, :half], part[:, half:] = turned.real, turned.imag

    def _turns(self, by: Ints) -> npt.NDArray[np.complex64]:
        """``[n, n_pairs]``; few distances are many rows', and sines are dear."""
        low, high = int(by.min(initial=0)), int(by.max(initial=0))
        if high - low > 4 * len(by):
            distances, which = np.unique(by, return_inverse=True)
            return self._turn(distances)[which]
        return self._turn(np.arange(low, high + 1))[by - low]

    def _turn(self, by: Ints) -> npt.NDArray[np.complex64]:
        angles = by[:, None] * self.frequencies
        return (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)


def frequencies(
    n_dims: int,
    base: float,
    *,
    scale: float = 1.0,
    factors: Floats | None = None,
    extrapolate: float = 0.0,
    n_ctx_orig: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> npt.NDArray[np.float64]:
    """The angle of each of ``n_dims / 2`` pairs per position, in radians.

    Args:
        n_dims: elements that are rotated.
        base: ``rope.freq_base``.
        scale: of positions, 1 over the factor of linear scaling or YaRN.
        factors: what each pair's angle is divided by (Llama 3, LongRoPE).
        extrapolate: YaRN's share of unscaled angles in fast pairs, 1 with YaRN and 0 without.
        n_ctx_orig: the context that was trained before scaling, for YaRN.
        beta_fast, beta_slow: rotations over that context between which YaRN blends.
    """
    pairs = np.arange(n_dims // 2, dtype=np.float64)
    unscaled = base ** (-2 * pairs / n_dims)
    if factors is not None:
        unscaled = unscaled / factors[: len(pairs)]
    if extrapolate == 0.0:
        return unscaled * scale
    low, high = (
        n_dims * math.log(n_ctx_orig / (beta * 2 * math.pi)) / (2 * math.log(base))
        for beta in (beta_fast, beta_slow)
    )
    low, high = max(0.0, math.floor(low)), min(n_dims - 1.0, math.ceil(high))
    fast = (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)) * extrapolate
    return unscaled * (scale * (1 - fast) + fast)


def hadamard(rows: Floats, size: int) -> Floats:
    """``rows``, float32 ``[..., n]``, each run of ``size`` elements times the normalised Hadamard matrix.

    llama.cpp keeps a quantised K so (Sylvester's order). Its own inverse.
    """
    flat, matrix = rows.reshape(-1, size), _sylvester(size)
    turned = np.empty_like(flat)
    # Larger products would have OpenBLAS wake its threads, which takes longer than all of them.
    at_once = max(1, 2**18 // size**2)
    for start in range(0, len(flat), at_once):
        np.matmul(flat[start : start + at_once], matrix, out=turned[start : start + at_once])
    return turned.reshape(rows.shape)


@cache
def _sylvester(size: int) -> Floats:
    """The normalised Hadamard matrix, float32 ``[size, size]``; ``size`` is a power of 2."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(math.sqrt(size))

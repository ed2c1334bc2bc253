"""How sure a mean is: the percentile bootstrap, and figures as a table shows them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

RESAMPLES, SEED = 10_000, 0
_BLOCK = 1_000_000
"""Draws at a time: 8 MB."""


def interval(values: npt.ArrayLike, *, resamples: int = RESAMPLES, seed: int = SEED) -> tuple[float, float]:
    """The 95 % percentile-bootstrap interval of the mean of ``values``; NaN for fewer than two.

    Of differences within pairs it is the paired bootstrap.
    """
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return np.nan, np.nan
    rng, means = np.random.default_rng(seed), np.empty(resamples)
    rows = max(_BLOCK // len(array), 1)
    for begin in range(0, resamples, rows):
        drawn = rng.integers(0, len(array), (min(rows, resamples - begin), len(array)))
        means[begin : begin + rows] = array[drawn].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def figure(value: float, form: str) -> str:
    """``value`` in this format; nothing where there is none."""
    return "" if pd.isna(value) else format(value, form)

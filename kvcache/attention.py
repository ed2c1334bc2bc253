"""Attention of one layer in plain numpy: the oracle that the engine's outputs and probabilities are held to.

Computed in float64 and returned in float32, so that what differs from the engine is the engine's rounding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvcache.policies.base import Floats, Ints
from kvcache.selection import Mask


def attention(
    queries: npt.NDArray[np.floating],
    keys: npt.NDArray[np.floating],
    values: npt.NDArray[np.floating],
    mask: Mask,
    scale: float | None = None,
) -> tuple[Floats, Floats]:
    """Softmax attention with grouped heads: query head ``i`` reads KV head ``i // (n_head / n_head_kv)``.

    Args:
        queries: ``[n_query, n_head, d]``, after RoPE.
        keys: ``[n_cells, n_head_kv, d]``, after RoPE.
        values: ``[n_cells, n_head_kv, d_v]``; finite in hidden cells, too.
        mask: true where a query sees a cell, ``[n_query, n_cells]`` or ``[n_head, n_query, n_cells]``.
        scale: of the logits; None is ``1 / sqrt(d)``.

    Returns:
        Outputs ``[n_query, n_head, d_v]`` and probabilities ``[n_head, n_query, n_cells]``, float32. A query that
        sees nothing gets zeros.

    Raises:
        ValueError: shapes that do not belong together.
    """
    n_query, n_head, d = queries.shape
    n_cells, n_head_kv, d_k = keys.shape
    if d_k != d or values.shape[:2] != keys.shape[:2]:
        raise ValueError(f"queries {queries.shape}, keys {keys.shape}, values {values.shape} do not match")
    if n_head % n_head_kv:
        raise ValueError(f"{n_head} query heads do not share {n_head_kv} KV heads evenly")
    if mask.shape not in ((n_query, n_cells), (n_head, n_query, n_cells)):
        raise ValueError(f"a mask of {mask.shape} is not for {n_query} queries and {n_cells} cells")
    group = n_head // n_head_kv
    # [n_head_kv, group, n_query, d] @ [n_head_kv, 1, d, n_cells]
    grouped = queries.astype(np.float64).reshape(n_query, n_head_kv, group, d).transpose(1, 2, 0, 3)
    logits = grouped @ keys.astype(np.float64).transpose(1, 2, 0)[:, None]
    logits *= d**-0.5 if scale is None else scale
    logits = np.where(mask, logits.reshape(n_head, n_query, n_cells), -np.inf)
    highest = logits.max(axis=2, keepdims=True, initial=-np.inf)
    probabilities = np.exp(logits - np.where(np.isfinite(highest), highest, 0))
    total = probabilities.sum(axis=2, keepdims=True)
    probabilities /= np.where(total > 0, total, 1)
    weights = probabilities.reshape(n_head_kv, group, n_query, n_cells)
    outputs = weights @ values.astype(np.float64).transpose(1, 0, 2)[:, None]
    return (
        outputs.transpose(2, 0, 1, 3).reshape(n_query, n_head, -1).astype(np.float32),
        probabilities.astype(np.float32),
    )


def visible(query_positions: Ints, nominal: Ints, window: int | None = None) -> Mask:
    """Which cells each query sees, bool ``[n_query, n_cells]``: those at its position and before.

    Args:
        query_positions: ``[n_query]``.
        nominal: ``[n_cells]``, the positions that the cache believes in, which may not be the tokens' own.
        window: how many positions a sliding-window layer sees, the query's own included; None is all.
    """
    distance = query_positions[:, None] - nominal
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def mass(probabilities: Floats, n_head_kv: int) -> Floats:
    """The attention that each cell got, summed over queries and over the query heads of each KV head.

    Args:
        probabilities: ``[n_head, n_query, n_cells]``, of the observed queries only.
        n_head_kv: how many KV heads the query heads share.

    Returns:
        float32 ``[n_head_kv, n_cells]``.
    """
    n_head, _, n_cells = probabilities.shape
    by_head: Floats = probabilities.sum(axis=1, dtype=np.float32)
    shared: Floats = by_head.reshape(n_head_kv, n_head // n_head_kv, n_cells).sum(axis=1)
    return shared


def most_asked(most: Floats, given: Floats) -> Floats:
    """What any probe gave each cell at the most, with one more probe.

    A probe gives a cell the mean of its queries' attention. Each query's is 1 in all, with what it gives the
    probe's own tokens.

    Args:
        most: float32 ``[n_rows, n_cells]``, of the probes before; zeros where this is the first.
        given: float32 ``[n_rows, n]``, the attention that the probe's queries gave all that they saw, as
            :func:`mass` sums it: to those cells and, in the columns behind them, to the probe's own tokens.

    Returns:
        float32 ``[n_rows, n_cells]``.
    """
    mean = given / given.sum(axis=1, keepdims=True)
    higher: Floats = np.maximum(most, mean[:, : most.shape[1]])
    return higher


def with_all_heads(asked: Floats, positions: Ints, weight: float) -> Floats:
    """What each head's probes looked at, and ``weight`` times the mean of what those of all heads looked at.

    The heads that will copy the answer do not look at it before it is said: they need what others find.

    Args:
        asked: float32 ``[n_rows, n_cells]``, a row a head of any layer.
        positions: int64 of the same shape, the token that each is about.
        weight: of the mean over all rows; one that does not hold a token gave it nothing.

    Returns:
        float32 ``[n_rows, n_cells]``.
    """
    if not weight or not asked.size:
        return asked
    mean = np.bincount(positions.ravel(), weights=asked.ravel()) / len(asked)
    together: Floats = asked + np.float32(weight) * mean[positions].astype(np.float32)
    return together

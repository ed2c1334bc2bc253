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

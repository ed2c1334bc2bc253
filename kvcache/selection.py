"""From scores to the tokens that stay, and to the moves that bring them into the cells that stay.

The engine and the numpy stores share this arithmetic; what they do with the moves is their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvcache.policies.base import Floats, Ints

Mask = npt.NDArray[np.bool_]

Granularity = Literal["head", "layer", "token"]
"""Who chooses: each KV head for itself, the heads of a layer together, or all layers together."""

# Above every score: infinity's bits are 0x7F800000.
_SINK, _RECENT = 0x7FFFFFFF, 0x7FFFFFFE


@dataclass(frozen=True)
class Selector:
    """Which tokens stay, by score: sinks and recent tokens always, of the others the best.

    Attributes:
        sinks: the first positions of the text, which never leave.
        recent: the share of ``budget - sinks`` that is kept for the youngest tokens.
        pool: scores are averaged over this many neighbours in the text's order; 1 leaves them as they are.
    """

    sinks: int = 4
    recent: float = 0.25
    pool: int = 1

    def recent_cells(self, budget: int) -> int:
        """How many of the youngest tokens never leave: the seed's ``(budget - sinks) // 4`` at its share."""
        # A product that is a whole number may come out a hair below it: 100 * 0.29 is 28.999999999999996.
        return max(int((budget - self.sinks) * self.recent + 1e-9), 0)

    def protected(self, positions: Ints, budget: int, end: int) -> Mask:
        """Which tokens may not leave; ``end`` is the position after the last one."""
        return (positions < self.sinks) | (positions >= end - self.recent_cells(budget))

    def keep(self, scores: Floats, positions: Ints, budget: int, end: int, count: int | None = None) -> Mask:
        """Which tokens stay: exactly ``count`` of each head's, ``[n_head, n_cells]`` as the arguments are.

        Args:
            scores: float32, the higher the better; what is no number is the worst.
            positions: int64, of the same shape, none negative: free cells have no place here.
            budget: cells of the whole text, which the recent share is a share of.
            end: the position after the last token.
            count: how many of these cells stay; None is ``budget``. Fewer than are protected drops the oldest
                protected ones but for the sinks; as many as there are, or more, keeps all.
        """
        count = budget if count is None else count
        if self.pool > 1:
            scores = pooled(scores, positions, self.pool)
        n_cells = scores.shape[1]
        if count >= n_cells:
            return np.ones(scores.shape, bool)
        # One whole number to compare by: protection or score above, position below, so that of equal scores the
        # younger token stays and equal scores mean a window. To sort by one key after the other takes ten times
        # as long.
        above = _ordered(np.where(np.isnan(scores), -np.inf, scores))
        above[positions >= end - self.recent_cells(budget)] = _RECENT
        above[positions < self.sinks] = _SINK
        order = np.argpartition((above << 32) | positions, n_cells - count - 1, axis=1)
        keep = np.zeros(scores.shape, bool)
        np.put_along_axis(keep, order[:, n_cells - count :], True, axis=1)
        return keep


def _ordered(scores: Floats) -> Ints:
    """Whole numbers in the order of ``scores``, below 2^31 in magnitude: the bits of floats rise with them."""
    bits = scores.astype(np.float32, copy=False).view(np.int32)
    return np.where(bits < 0, np.int32(-(2**31)) - bits, bits).astype(np.int64)


def pooled(scores: Floats, positions: Ints, width: int) -> Floats:
    """The mean of each score and its neighbours' among the ``width`` nearest in the order of positions.

    At the ends the outermost score is repeated. What is not finite stays so and has no part in the means of
    others: a token that may not be judged yet says nothing of its neighbours.
    """
    order = np.argsort(positions, axis=1)
    left = (width - 1) // 2
    n = scores.shape[1]
    in_order = np.pad(np.take_along_axis(scores, order, 1), ((0, 0), (left, width - 1 - left)), mode="edge")
    finite = np.isfinite(in_order)
    counted = np.where(finite, in_order, 0)
    total = sum(counted[:, i : i + n] for i in range(width))
    neighbours = sum(finite[:, i : i + n].astype(np.float32) for i in range(width))
    here = slice(left, left + n)
    means = np.where(finite[:, here], total / np.maximum(neighbours, 1), in_order[:, here])
    out = np.empty_like(scores)
    np.put_along_axis(out, order, means, axis=1)
    return out


def choose_together(
    scores_by_layer: Sequence[Floats],
    granularity: Granularity,
    layer_weights: Sequence[float] = (),
) -> list[Floats]:
    """The scores that heads choose by: their own, their layer's mean, or the mean of all layers' heads.

    Args:
        scores_by_layer: float32 ``[n_head_kv, n_cells]`` a layer. Layers may differ in heads; where all layers
            choose together they have the same cells.
        granularity: ``head`` leaves the scores as they are.
        layer_weights: what a head of each layer weighs when all layers choose together; empty is 1 each. A
            layer that weighs nothing has no say at all.

    Returns:
        As ``scores_by_layer``. Where a head's score is infinite the shared one is, too, plus before minus.

    Raises:
        ValueError: weights that are negative, all zero, or not one a layer; layers of different cells.
    """
    if granularity == "head":
        return list(scores_by_layer)
    if granularity == "layer":
        means = [_mean(scores, np.ones(len(scores))) for scores in scores_by_layer]
    else:
        weights = np.asarray(
            layer_weights if len(layer_weights) else [1.0] * len(scores_by_layer), np.float64
        )
        if (
            weights.shape != (len(scores_by_layer),)
            or not (weights >= 0).all()
            or not 0 < weights.sum() < np.inf
        ):
            raise ValueError(f"{len(scores_by_layer)} layers need a weight each, none negative, not all 0")
        if len({scores.shape[1] for scores in scores_by_layer}) > 1:
            raise ValueError("layers that choose together must hold the same cells")
        of_heads = np.repeat(weights, [len(scores) for scores in scores_by_layer])
        means = [_mean(np.concatenate(scores_by_layer), of_heads)] * len(scores_by_layer)
    return [
        np.broadcast_to(mean, scores.shape).copy()
        for mean, scores in zip(means, scores_by_layer, strict=True)
    ]


def _mean(scores: Floats, weights: npt.NDArray[np.float64]) -> Floats:
    """Weighted mean over heads ``[n_cells]`` that neither loses an infinity nor makes a NaN of it."""
    scores = scores[weights > 0]
    weights = weights[weights > 0]
    infinite = np.isinf(scores)
    mean: npt.NDArray[np.float64] = weights @ np.where(infinite, 0, scores) / weights.sum()
    if infinite.any():
        mean = np.where((scores == -np.inf).any(axis=0), -np.inf, mean)
        mean = np.where((scores == np.inf).any(axis=0), np.inf, mean)
    return mean.astype(np.float32)


@dataclass(frozen=True)
class Moves:
    """Tokens that are copied into cells that stay: head, source and target, ``[n_moves]`` each."""

    heads: Ints
    source: Ints
    target: Ints


def moves(keep: Mask, stay: Mask) -> Moves:
    """How each head's kept tokens come into the cells that stay.

    Args:
        keep: ``[n_head, n_cells]``, the tokens that each head keeps, as many in every head as cells stay.
        stay: ``[n_cells]``, the cells that stay.

    Raises:
        ValueError: a head that keeps more or fewer; its tokens would land in another head.
    """
    kept = keep.sum(axis=1)
    if (kept != stay.sum()).any():
        raise ValueError(f"{stay.sum()} cells stay, but heads keep {kept.min()} to {kept.max()} tokens")
    heads, source = np.nonzero(keep & ~stay)
    _, target = np.nonzero(stay & ~keep)
    return Moves(heads, source, target)

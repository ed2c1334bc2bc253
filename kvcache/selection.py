"""From scores to the tokens that stay, and to the moves that bring them into the cells that stay.

The engine and the numpy stores share this arithmetic; what they do with the moves is their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcache.policies.base import Floats, Ints

Mask = npt.NDArray[np.bool_]


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
        return int((budget - self.sinks) * self.recent)

    def protected(self, positions: Ints, budget: int, end: int) -> Mask:
        """Which tokens may not leave; ``end`` is the position after the last one."""
        return (positions < self.sinks) | (positions >= end - self.recent_cells(budget))

    def keep(self, scores: Floats, positions: Ints, budget: int, end: int, count: int | None = None) -> Mask:
        """Which tokens stay: exactly ``count`` of each head's, ``[n_head, n_cells]`` as the arguments are.

        Args:
            scores: float32, the higher the better.
            positions: int64, of the same shape.
            budget: cells of the whole text, which the recent share is a share of.
            end: the position after the last token.
            count: how many of these cells stay; None is ``budget``. Fewer than are protected drops the oldest
                protected ones but for the sinks.
        """
        count = budget if count is None else count
        if self.pool > 1:
            scores = pooled(scores, positions, self.pool)
        # Two keys: protection first (sinks before recent ones, younger before older), then the score; ties go to
        # the younger token, so that equal scores mean a window.
        rank = np.where(positions < self.sinks, 2.0, 0.0)
        recent = positions >= end - self.recent_cells(budget)
        rank = np.where(recent & (rank == 0), 1.0 + positions / (end + 1.0), rank)
        order = np.lexsort((positions, scores, rank), axis=1)
        keep = np.zeros(scores.shape, bool)
        np.put_along_axis(keep, order[:, scores.shape[1] - count :], True, axis=1)
        return keep


def pooled(scores: Floats, positions: Ints, width: int) -> Floats:
    """The mean of each score and its neighbours' among the ``width`` nearest in the order of positions.

    At the ends the outermost score is repeated. Infinite scores stay so.
    """
    order = np.argsort(positions, axis=1)
    left = (width - 1) // 2
    padded = np.pad(np.take_along_axis(scores, order, 1), ((0, 0), (left, width - 1 - left)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
    means = windows.mean(axis=2, dtype=np.float32)
    out = np.empty_like(scores)
    np.put_along_axis(out, order, means, axis=1)
    return out


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
    """
    heads, source = np.nonzero(keep & ~stay)
    _, target = np.nonzero(stay & ~keep)
    return Moves(heads, source, target)

"""What evictions did, round by round, and the alarm when they have stopped doing anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvcache.policies import Floats
from kvcache.policies.base import Ints
from kvcache.selection import Mask, Selector

_STILL, _STILL_ROUNDS = 0.2, 3
"""A kept set has frozen that in this many rounds running took in less than this share of the new tokens that it
would take in if it cared for old and new alike."""


@dataclass(frozen=True)
class EvictionRound:
    """One eviction, over all layers and heads.

    Attributes:
        step: number of the round in its context.
        phase: of the prompt or of its answers.
        chunk_tokens: what the text has gone on by since the round before.
        position: the true position that it had reached.
        kept_cells, dropped_cells: of the sequence, or of one worker's view where there are several.
        oldest_kept, oldest_kept_median: the smallest true position kept that is no sink: over all heads, and of
            the median head.
        score_q10, score_q50, score_q90: quantiles of the finite scores of what was kept by its score; None where
            nothing was.
        turnover: what share of that came in since the round before, over all heads; ``turnover_min`` and
            ``turnover_max`` are of single heads.
        frozen: the alarm: it has hardly turned over for some rounds, while the text went on.
    """

    step: int
    phase: Literal["prefill", "decode"]
    chunk_tokens: int
    position: int
    kept_cells: int
    dropped_cells: int
    oldest_kept: int
    oldest_kept_median: float
    score_q10: float | None
    score_q50: float | None
    score_q90: float | None
    turnover: float
    turnover_min: float
    turnover_max: float
    frozen: bool


class EvictionLog:
    """Collects the rounds of one context."""

    def __init__(self, selector: Selector, budget: int) -> None:
        self._selector, self.budget = selector, budget
        self._rounds: list[EvictionRound] = []
        self._step = 0
        self.restart()

    def restart(self, end: int = 0) -> None:
        """Another text, or one that has been brought to position ``end`` before."""
        self._last_end, self._still = end, 0

    def take(self) -> list[EvictionRound]:
        """The rounds since this was last asked."""
        rounds, self._rounds = self._rounds, []
        return rounds

    def note(
        self,
        positions: Ints,
        scores: Floats,
        keep: Mask,
        before: int,
        end: int,
        phase: Literal["prefill", "decode"],
    ) -> None:
        """Write a round down, before anything moves.

        Args:
            positions: true positions of the tokens to choose from, ``[n_rows, n_cells]``, a row a head.
            scores: theirs.
            keep: which of them stay.
            before: cells that the sequence held, or a worker's view where there are several.
            end: the position that the text has reached.
            phase: of the prompt or of its answers.
        """
        by_score = keep & ~self._selector.protected(positions, self.budget, end)
        # What was protected for its youth in the round before has come in since.
        new = by_score & (positions >= self._last_end - self._selector.recent_cells(self.budget))
        chosen = by_score.sum(axis=1)
        turnover = np.where(chosen > 0, new.sum(axis=1) / np.maximum(chosen, 1), 1.0)
        overall = float(new.sum() / by_score.sum()) if by_score.any() else 1.0
        came = end - self._last_end
        fair = came / max(came + chosen.mean(), 1)
        self._still = self._still + 1 if overall < _STILL * fair else 0
        settled = scores[by_score & np.isfinite(scores)]
        low, median, high = np.quantile(settled, (0.1, 0.5, 0.9)).tolist() if len(settled) else [None] * 3
        oldest = np.where(keep & (positions >= self._selector.sinks), positions, end).min(axis=1)
        self._rounds.append(
            EvictionRound(
                step=self._step,
                phase=phase,
                chunk_tokens=came,
                position=end,
                kept_cells=min(self.budget, before),
                dropped_cells=max(before - self.budget, 0),
                oldest_kept=int(oldest.min()),
                oldest_kept_median=float(np.median(oldest)),
                score_q10=low,
                score_q50=median,
                score_q90=high,
                turnover=overall,
                turnover_min=float(turnover.min()),
                turnover_max=float(turnover.max()),
                frozen=self._still >= _STILL_ROUNDS,
            )
        )
        self._step += 1
        self._last_end = end

"""What evictions did, round by round, and the alarm when they have stopped doing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvcache.policies import Floats
from kvcache.policies.base import Ints
from kvcache.selection import Mask, Selector
from runner.engine.survivors import Kept

_STILL, _STILL_ROUNDS = 0.2, 3
"""A kept set has frozen that in this many rounds running took in less than this share of the new tokens that it
would take in if it cared for old and new alike."""

_PARTS = 10
"""Of a text, of each of which a round says how much of what stays comes from it."""


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
        kept_by_part: the share of what stays, over all heads and protected tokens included, that comes from each
            tenth of the text so far; where there are several workers, of what all of them own.
        probe_tokens: how many tokens were decoded as probes since the round before.
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
    kept_by_part: tuple[float, ...]
    probe_tokens: int


class EvictionLog:
    """Collects the rounds of one context, and what its document was left with.

    Attributes:
        budget: cells that are kept of the prompt in hand.
        kept: what the last eviction of its prefill left: from its document, whatever the question then takes of
            that, or where it has none or that fitted, from all of it.
    """

    def __init__(self, selector: Selector, budget: int, rows: Mapping[int, slice]) -> None:
        """``rows`` are those of each block, one a KV head; none where one row stands for all heads."""
        self._selector, self.budget = selector, budget
        self._heads = tuple((block, head) for block, of in rows.items() for head in range(of.stop - of.start))
        self._rounds: list[EvictionRound] = []
        self._step = self._probe_tokens = 0
        self.kept: Kept | None = None
        self.restart()

    def begin(self, budget: int) -> None:
        """Another prompt follows, of which ``budget`` cells are kept."""
        self.budget, self.kept, self._settled = budget, None, False

    def restart(self) -> None:
        """Another text follows; what the one before was left with may still be taken."""
        self._last_end, self._still, self._settled = 0, 0, False

    def resume(self, end: int, kept: Kept | None) -> None:
        """A question follows a document of ``end`` tokens, which was left with ``kept``."""
        self._last_end, self._still = end, 0
        self.kept, self._settled = kept, kept is not None

    def take(self) -> list[EvictionRound]:
        """The rounds since this was last asked."""
        rounds, self._rounds = self._rounds, []
        return rounds

    def take_kept(self) -> Kept | None:
        """:attr:`kept`, once."""
        kept, self.kept = self.kept, None
        return kept

    def probed(self, n_tokens: int) -> None:
        """So many tokens were decoded as probes."""
        self._probe_tokens += n_tokens

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
        protected = self._selector.protected(positions, self.budget, end)
        by_score = keep & ~protected
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
                kept_by_part=_by_part(positions[keep], end),
                probe_tokens=self._probe_tokens,
            )
        )
        self._step += 1
        self._last_end, self._probe_tokens = end, 0
        if phase == "prefill" and not self._settled:
            judged = np.where(by_score & np.isfinite(scores), scores, np.nan).astype(np.float32)
            n_rows, recent = len(keep), self._selector.recent_cells(self.budget)
            self.kept = Kept(
                positions=positions[keep].reshape(n_rows, -1),
                scores=judged[keep].reshape(n_rows, -1),
                heads=self._heads,
                end=end,
                sinks=min(self._selector.sinks, end),
                recent=min(recent, end),
            )


def _by_part(positions: Ints, end: int) -> tuple[float, ...]:
    """The share of ``positions``, none of them past ``end``, that lies in each tenth of the text."""
    counts = np.bincount(positions * _PARTS // end, minlength=_PARTS)
    return tuple((counts / max(len(positions), 1)).tolist())

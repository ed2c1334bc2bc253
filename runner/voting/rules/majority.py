"""The answer that most workers gave (self-consistency, Wang et al. 2022, arXiv:2203.11171)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from runner.voting.ballots import Ballot
from runner.voting.rules.base import Lead, Rule


@dataclass(frozen=True)
class Majority(Rule):
    """Most votes win; more than half is not asked for."""

    name: ClassVar[str] = "majority"

    def lead(self, cast: Sequence[Ballot]) -> Lead:
        """The keys with the most votes."""
        counts = Counter(ballot.key for ballot in cast)
        votes = max(counts.values())
        first = {ballot.key: ballot for ballot in reversed(cast) if counts[ballot.key] == votes}
        return Lead(
            ballots=tuple(sorted(first.values(), key=lambda ballot: ballot.worker)),
            votes=votes,
            runner_up=max((count for key, count in counts.items() if key not in first), default=0),
        )

"""The answer that the evidence says: votes weighed by how far they agree with what the workers were shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from runner.voting.ballots import Ballot
from runner.voting.rules.base import Lead, Rule


@dataclass(frozen=True)
class Evidence(Rule):
    """The largest sum of support wins, of equal sums the one of more votes; no support is 0.

    So where no ballot has support this is the majority, and where every answer is another one it picks the
    best supported. Votes are ballots, whatever they weigh.
    """

    name: ClassVar[str] = "evidence"

    def lead(self, cast: Sequence[Ballot]) -> Lead:
        """The keys with the largest sum of support."""
        of_key: dict[str | None, list[Ballot]] = {}
        for ballot in cast:
            of_key.setdefault(ballot.key, []).append(ballot)
        # fsum does not depend on the order; the rounding takes equal sums of unequal terms as equal.
        sums = {key: round(math.fsum(b.support or 0.0 for b in mine), 9) for key, mine in of_key.items()}
        standing = {key: (sums[key], len(mine)) for key, mine in of_key.items()}
        best = max(standing.values())
        others = [count for _, count in (each for each in standing.values() if each != best)]
        # The best supported is not always popular: never report a lead that would be negative.
        return Lead(
            ballots=tuple(mine[0] for key, mine in of_key.items() if standing[key] == best),
            votes=best[1],
            runner_up=min(best[1], max(others, default=0)),
        )

"""What every rule shares: abstentions, ties, shares. A rule only says who leads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from runner.voting.ballots import Ballot, Vote


@dataclass(frozen=True)
class Lead:
    """Who leads: the first ballot (by worker) of each key that shares the lead, the votes that each of them
    has, and the votes of the best of the others.
    """

    ballots: tuple[Ballot, ...]
    votes: int
    runner_up: int


@dataclass(frozen=True)
class Rule(ABC):
    """A way to make one answer of many: a frozen dataclass whose fields are the rule's options."""

    name: ClassVar[str]

    @abstractmethod
    def lead(self, cast: Sequence[Ballot]) -> Lead:
        """Who leads among ``cast``: at least one ballot, sorted by worker, every key known."""

    def tally(self, ballots: Sequence[Ballot]) -> Vote:
        """Count ``ballots``; their order makes no difference."""
        cast = sorted(
            (ballot for ballot in ballots if ballot.key is not None), key=lambda ballot: ballot.worker
        )
        abstained = len(ballots) - len(cast)
        if not cast:
            return Vote(self.name, None, 0, len(ballots), 0.0, 0.0, False, abstained)
        lead = self.lead(cast)
        tied = tuple(sorted(str(ballot.key) for ballot in lead.ballots)) if len(lead.ballots) > 1 else ()
        return Vote(
            rule=self.name,
            winner=None if tied else lead.ballots[0].key,
            votes=lead.votes,
            workers=len(ballots),
            margin=0.0 if tied else (lead.votes - lead.runner_up) / len(cast),
            agreement=lead.votes / len(cast),
            tie=bool(tied),
            abstained=abstained,
            tied=tied,
            worker=None if tied else lead.ballots[0].worker,
        )

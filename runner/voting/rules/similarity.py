"""The answer that is most like all the others, for free text that no two workers put the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from runner.voting.ballots import Ballot
from runner.voting.rules.base import Lead, Rule
from runner.voting.text import visible


@dataclass(frozen=True)
class Similarity(Rule):
    """The medoid by token-set Jaccard similarity (shared words / all words), reasoning set aside.

    A vote for an answer is an answer that is at least ``threshold`` similar to it, itself included; so the
    runner-up is the best supported of the answers that are not votes for the medoid, counted among those.
    Equal medoids that support each other are one answer, and the lowest worker's text stands for it; equal
    medoids that do not are a tie.
    """

    name: ClassVar[str] = "similarity"

    threshold: float = 0.5

    def lead(self, cast: Sequence[Ballot]) -> Lead:
        """The medoid, its supporters and the best of the others."""
        words = [_words(ballot) for ballot in cast]
        alike = [[_jaccard(a, b) for b in words] for a in words]
        # fsum does not depend on the order; the rounding takes equal sums of unequal terms as equal.
        scores = [round(math.fsum(row), 9) for row in alike]
        best = [place for place, score in enumerate(scores) if score == max(scores)]
        medoid = best[0]
        leaders = {cast[medoid].key: cast[medoid]}
        for place in best:
            if alike[medoid][place] < self.threshold:
                leaders.setdefault(cast[place].key, cast[place])
        others = [place for place in range(len(cast)) if alike[medoid][place] < self.threshold]
        support = [sum(alike[place][other] >= self.threshold for other in others) for place in others]
        votes = len(cast) - len(others)
        # A medoid is central, not always popular: never report a lead that would be negative.
        return Lead(tuple(leaders.values()), votes, min(votes, max(support, default=0)))


def _words(ballot: Ballot) -> frozenset[str]:
    shown = visible(ballot.text)
    return frozenset(re.findall(r"\w+", (shown if shown is not None else ballot.text).casefold()))


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0

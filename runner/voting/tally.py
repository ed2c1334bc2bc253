"""From ballots to a vote, and from a vote to whether it is right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from runner.errors import ConfigError
from runner.voting.ballots import Ballot, Vote
from runner.voting.rules import RULES, Rule


def _rule(rule: str, options: dict[str, Any]) -> Rule:
    if rule not in RULES:
        raise ConfigError(f"vote.rule={rule}: there is no such rule; there are {', '.join(RULES)}")
    known = [field.name for field in fields(RULES[rule])]
    if unknown := sorted(options.keys() - set(known)):
        raise ConfigError(
            f"vote.{unknown[0]}: the rule {rule} has no such option; it has {', '.join(known) or 'none'}"
        )
    return RULES[rule](**options)


def tally(ballots: Sequence[Ballot], rule: str = "majority", **options: Any) -> Vote:
    """Count one prompt's ballots by ``rule``; order makes no difference.

    Raises:
        ConfigError: an unknown rule or option.
    """
    return _rule(rule, options).tally(ballots)


def tally_id(rule: str = "majority", **options: Any) -> str:
    """Twelve hex digits that name a rule and its options; an option at its default is as good as left out.

    Raises:
        ConfigError: an unknown rule or option.
    """
    made = _rule(rule, options)
    changed = {
        field.name: getattr(made, field.name)
        for field in fields(made)
        if getattr(made, field.name) != field.default
    }
    return hashlib.sha256(json.dumps([rule, changed], sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Grade:
    """Whether a vote is right, and the share of its workers that are right alone; None where nobody knows."""

    correct: bool | None
    mean_worker_correct: float | None


def grade(vote: Vote, ballots: Sequence[Ballot], expected: str | None) -> Grade:
    """Compare with ``expected``, a key that ``normalise`` made; a tie or an abstention is not right."""
    if expected is None:
        return Grade(None, None)
    right = sum(ballot.key == expected for ballot in ballots)
    return Grade(vote.winner == expected, right / len(ballots) if ballots else None)

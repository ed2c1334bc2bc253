"""Votes: read an answer (``extract``), count answers (``tally``), compare with the right one (``grade``)."""

from __future__ import annotations

from runner.voting.ballots import Ballot, Vote
from runner.voting.extraction import KINDS, Extraction, extract, kind_of, normalise, said
from runner.voting.rules import RULES
from runner.voting.support import says, support
from runner.voting.tally import Grade, grade, tally, tally_id

__all__ = [
    "KINDS",
    "RULES",
    "Ballot",
    "Extraction",
    "Grade",
    "Vote",
    "extract",
    "grade",
    "kind_of",
    "normalise",
    "said",
    "says",
    "support",
    "tally",
    "tally_id",
]

"""What goes into a tally and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ballot:
    """One worker's answer: its extracted key (None abstains), its raw text, and what the engine said of it.

    ``mean_logprob`` is in nats; ``support`` is how far the evidence that was sent says the answer, from 0 to 1,
    None where there was none. A truncated answer votes like any other if an answer could be read in it.
    """

    worker: int
    key: str | None
    text: str = ""
    mean_logprob: float | None = None
    truncated: bool = False
    support: float | None = None


@dataclass(frozen=True)
class Vote:
    """One tally.

    ``winner`` is a key; it is None where nobody voted, and on a tie, where ``tied`` lists the keys that share
    the lead. ``worker`` is the worker whose text stands for the winner. ``votes`` are the winner's, or each
    tied key's. Of the ballots that were cast (not abstained), ``agreement`` is the share of the winner's and
    ``margin`` the share by which it leads the runner-up; both are 0 where none was cast.
    """

    rule: str
    winner: str | None
    votes: int
    workers: int
    margin: float
    agreement: float
    tie: bool
    abstained: int
    tied: tuple[str, ...] = ()
    worker: int | None = None

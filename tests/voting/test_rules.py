import itertools
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError
from runner.voting import RULES, Ballot, extract, grade, tally, tally_id

every_rule = pytest.mark.parametrize("rule", RULES)


def ballots(*answers: str | None) -> list[Ballot]:
    """A ballot each; None abstains, a text is its own answer."""
    return [
        Ballot(worker, None if answer is None else extract(answer, "text").key, answer or "", -0.5)
        for worker, answer in enumerate(answers)
    ]


@every_rule
def test_one_worker_decides_alone(rule: str) -> None:
    vote = tally(ballots("Paris"), rule)
    assert (vote.rule, vote.winner, vote.votes, vote.workers) == (rule, "paris", 1, 1)
    assert (vote.margin, vote.agreement, vote.tie, vote.abstained, vote.worker) == (1, 1, False, 0, 0)


@every_rule
def test_unanimous(rule: str) -> None:
    vote = tally(ballots("Paris", "paris.", "**Paris**"), rule)
    assert (vote.winner, vote.votes, vote.margin, vote.agreement) == ("paris", 3, 1, 1)


@every_rule
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_nobody_votes(rule: str, workers: int) -> None:
    vote = tally(ballots(*[None] * workers), rule)
    assert (vote.winner, vote.votes, vote.workers, vote.abstained) == (None, 0, workers, workers)
    assert (vote.margin, vote.agreement, vote.tie, vote.tied, vote.worker) == (0, 0, False, (), None)


@every_rule
@pytest.mark.parametrize("answers", [("red", "blue"), ("red", "blue", None, "blue", "red")])
def test_a_tie_is_recorded_as_one(rule: str, answers: tuple[str | None, ...]) -> None:
    vote = tally(ballots(*answers), rule)
    assert (vote.winner, vote.tie, vote.tied, vote.worker) == (None, True, ("blue", "red"), None)
    assert (vote.votes, vote.margin, vote.agreement) == (len(answers) // 2, 0, 0.5)


@every_rule
def test_abstentions_are_counted_but_do_not_vote(rule: str) -> None:
    vote = tally(ballots(None, "red", "blue", "red", None), rule)
    assert (vote.winner, vote.votes, vote.workers, vote.abstained, vote.worker) == ("red", 2, 5, 2, 1)
    assert vote.margin == pytest.approx(1 / 3)
    assert vote.agreement == pytest.approx(2 / 3)


@every_rule
def test_a_truncated_answer_votes(rule: str) -> None:
    cast = [Ballot(0, "7", "7", truncated=True), Ballot(1, "7", "7"), Ballot(2, "8", "8")]
    assert (tally(cast, rule).winner, tally(cast, rule).votes) == ("7", 2)


@every_rule
@given(
    answers=st.lists(st.none() | st.sampled_from(["a b", "a b c", "b c", "c", "d", "a"]), max_size=9),
    seed=st.randoms(use_true_random=False),
)
def test_a_tally_is_sane_and_order_makes_no_difference(rule: str, answers: list[str | None], seed) -> None:  # type: ignore[no-untyped-def]
    cast = ballots(*answers)
    vote = tally(cast, rule)
    shuffled = list(cast)
    seed.shuffle(shuffled)
    assert tally(shuffled, rule) == vote
    keys = {ballot.key for ballot in cast if ballot.key is not None}
    assert vote.workers == len(cast) and vote.abstained == sum(ballot.key is None for ballot in cast)
    assert 0 <= vote.margin <= vote.agreement <= 1
    assert vote.tie == (len(vote.tied) > 1) and set(vote.tied) <= keys
    assert (vote.winner in keys) == (bool(keys) and not vote.tie) == (vote.worker is not None)
    if vote.worker is not None:
        assert cast[vote.worker].key == vote.winner


def test_majority_needs_no_absolute_majority() -> None:
    vote = tally(ballots("a", "b", "b", "c", "d"), "majority")
    assert (vote.winner, vote.votes, vote.margin, vote.worker) == ("b", 2, 0.2, 1)


def test_a_medoid_is_the_answer_most_like_the_others() -> None:
    cast = ballots(
        "The cat sat on the mat",
        "A cat sat on the red mat",
        "Bananas are yellow",
        "The cat sat on the red mat",
        "the cat sat there",
    )
    vote = tally(cast, "similarity")
    assert (vote.winner, vote.worker) == ("the cat sat on the red mat", 3)
    assert (vote.votes, vote.tie, vote.agreement) == (3, False, 0.6)
    assert vote.margin == pytest.approx((3 - 1) / 5)


def test_equal_medoids_that_agree_are_one_answer_by_the_lowest_worker() -> None:
    cast = ballots("the red cat", "the red cat sat")
    for order in itertools.permutations(cast):
        vote = tally(order, "similarity")
        assert (vote.winner, vote.worker, vote.votes, vote.tie) == ("the red cat", 0, 2, False)


def test_a_medoid_does_not_read_the_reasoning() -> None:
    thoughts = "<think>the same long thought about many things</think>"
    vote = tally(ballots(thoughts + "red", thoughts + "blue", "blue"), "similarity")
    assert (vote.winner, vote.votes) == ("blue", 2)


def test_a_stricter_threshold_gives_fewer_votes() -> None:
    cast = ballots("a b c", "a b c", "a b c d")
    assert tally(cast, "similarity").votes == 3
    assert tally(cast, "similarity", threshold=0.9).votes == 2


def supported(*answers: tuple[str | None, float | None]) -> list[Ballot]:
    return [Ballot(worker, key, key or "", support=share) for worker, (key, share) in enumerate(answers)]


@pytest.mark.parametrize(
    ("answers", "winner", "tied", "votes", "margin"),
    [
        ([("9", 0.1), ("9", 0.1), ("7", 0.9)], "7", (), 1, 0),  # one that the evidence says
        ([("9", 0.5), ("9", 0.5), ("7", 0.9)], "9", (), 2, 1 / 3),  # half the support, twice
        ([("9", None), ("9", None), ("7", None)], "9", (), 2, 1 / 3),  # no evidence
        ([("9", 0.0), ("9", 0.0), ("7", 0.0)], "9", (), 2, 1 / 3),  # nothing that it says
        ([("9", 0.5), ("9", 0.5), ("7", 1.0)], "9", (), 2, 1 / 3),  # equal sums: the most votes
        ([("9", 0.1 + 0.2), ("7", 0.3)], None, ("7", "9"), 1, 0),
        ([(None, None), ("7", 0.2), ("9", None)], "7", (), 1, 0),
    ],
)  # fmt: skip
def test_the_evidence_weighs_votes(
    answers: list[tuple[str | None, float | None]],
    winner: str | None, tied: tuple[str, ...], votes: int, margin: float,
) -> None:  # fmt: skip
    for order in itertools.permutations(supported(*answers)):
        vote = tally(order, "evidence")
        assert (vote.winner, vote.tied, vote.votes, vote.tie) == (winner, tied, votes, bool(tied))
        assert vote.margin == pytest.approx(margin)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(0, 1)), min_size=1, max_size=9))
def test_more_support_never_loses_a_vote_by_the_evidence(answers: list[tuple[str, float | None]]) -> None:
    vote = tally(supported(*answers), "evidence")
    sums = {key: math.fsum(share or 0 for named, share in answers if named == key) for key, _ in answers}
    leaders = vote.tied or (vote.winner,)
    assert all(sums[str(key)] == pytest.approx(max(sums.values())) for key in leaders)
    assert 0 <= vote.margin <= vote.agreement <= 1


def test_an_unknown_rule_or_option_is_one_line() -> None:
    for call in (tally_id, lambda rule, **options: tally([], rule, **options)):
        with pytest.raises(ConfigError, match=r"vote\.rule=plurality: .*there are majority, similarity"):
            call("plurality")
        with pytest.raises(ConfigError, match=r"vote\.threshold: .*it has none"):
            call("majority", threshold=1)


def test_a_tally_id_names_the_rule_and_what_is_not_default() -> None:
    ids = {tally_id("majority"), tally_id("similarity"), tally_id("similarity", threshold=0.9)}
    assert len(ids) == 3 and all(len(name) == 12 for name in ids)
    assert tally_id("similarity", threshold=0.5) == tally_id("similarity")
    # Stored rows carry it, so it may not move.
    assert tally_id("majority") == "bb5b04363800"


@every_rule
def test_every_option_has_a_default(rule: str) -> None:
    assert all(field.default is not None for field in fields(RULES[rule]))
    assert RULES[rule].name == rule


def test_grade() -> None:
    cast = ballots("red", "red", "blue", None)
    vote = tally(cast)
    assert (grade(vote, cast, "red").correct, grade(vote, cast, "red").mean_worker_correct) == (True, 0.5)
    assert (grade(vote, cast, "blue").correct, grade(vote, cast, "blue").mean_worker_correct) == (False, 0.25)
    assert (grade(vote, cast, None).correct, grade(vote, cast, None).mean_worker_correct) == (None, None)
    tied = ballots("red", "blue")
    assert grade(tally(tied), tied, "red").correct is False
    assert grade(tally([]), [], "red").mean_worker_correct is None

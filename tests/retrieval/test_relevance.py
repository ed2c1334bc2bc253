"""Closeness by words: rare shared words count, common ones hardly, and none that is not there."""

from __future__ import annotations

import pytest

from runner.retrieval.relevance import best_first, bm25

TEXTS = [
    "The caravan crossed the river and traded wool.",
    "The caravan crossed the river; the code of vault Q9 is 7503.",
    "The caravan slept.",
    "",
]


def test_the_rare_word_decides() -> None:
    assert best_first(bm25("What is the code of vault Q9?", TEXTS))[0] == 1
    assert best_first(bm25("Who slept?", TEXTS))[0] == 2


def test_what_shares_no_word_has_nothing_and_keeps_its_order() -> None:
    scores = bm25("zebra", TEXTS)
    assert scores.tolist() == [0.0] * 4 and best_first(scores) == [0, 1, 2, 3]


def test_a_repeated_word_of_the_question_counts_once() -> None:
    assert bm25("wool wool", TEXTS).tolist() == bm25("wool", TEXTS).tolist()


def test_a_long_text_does_not_win_by_its_length() -> None:
    short, long = "wool was traded", "wool was traded " + "and nothing else happened " * 20
    scores = bm25("wool", [short, long])
    assert scores[0] > scores[1] > 0


@pytest.mark.parametrize(
    ("question", "texts"), [("", TEXTS), ("?!", TEXTS), ("wool", []), ("wool", ["", " "])]
)
def test_nothing_to_compare_is_no_error(question: str, texts: list[str]) -> None:
    assert bm25(question, texts).tolist() == [0.0] * len(texts)

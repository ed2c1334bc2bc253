"""Pieces of a text: none too long, nothing lost, cut where a reader would."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.retrieval.splitting import split


def words(text: str) -> int:
    return len(text.split())


def pieces(text: str, capacity: int) -> list[str]:
    return [text[span.first_char : span.end_char] for span in split(text, words, capacity)]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab é漢.!\n #", max_size=300), st.integers(1, 20))
def test_nothing_but_whitespace_is_lost(text: str, capacity: int) -> None:
    spans = split(text, words, capacity)
    done = 0
    for span in spans:
        assert not text[done : span.first_char].strip()
        assert words(text[span.first_char : span.end_char]) <= capacity
        done = span.end_char
    assert not text[done:].strip()


def test_sentences_stay_whole_where_they_fit() -> None:
    found = [piece.strip() for piece in pieces("One two three. Four five six. Seven.", 4)]
    assert found == ["One two three.", "Four five six. Seven."]


def test_a_heading_begins_a_piece() -> None:
    text = "# Roads\n\nThe road is long.\n\n# Rivers\n\nThe river is wide.\n"
    assert [piece.split()[1] for piece in pieces(text, 7)] == ["Roads", "Rivers"]


def test_a_run_without_spaces_is_cut() -> None:
    text = "x" * 100_000
    spans = split(text, len, 128)
    assert max(span.end_char - span.first_char for span in spans) <= 128
    assert sum(span.end_char - span.first_char for span in spans) == len(text)

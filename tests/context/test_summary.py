"""How a conversation becomes a summary: in as many parts as the window asks for, never cut in silence."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runner.context import History
from runner.context.base import TokenParts
from runner.context.summary import HEADING, summarise, transcript
from runner.errors import PlanRefusedError
from runner.prompts import Prompt


@dataclass(frozen=True)
class Parts:
    document: tuple[int, ...]
    question: tuple[int, ...]


class Words:
    """A token is a word."""

    def count(self, text: str) -> int:
        return len(text.split())

    def encode(self, prompt_id: str, messages: list[dict[str, str]], document: str | None) -> Parts:
        assert document is not None and len(messages) == 1
        return Parts(tuple(map(hash, document.split())), tuple(range(self.count(messages[0]["content"]))))


REQUEST = 23


def talked(*words: int, document: str | None = None) -> History:
    """A history whose n-th exchange takes ``words[n]`` words, with the roles' names."""
    history = History(document)
    for number, size in enumerate(words):
        history = history.after(f"q{number}", " ".join(["so"] * (size - 3)))
    return history


def summed(
    history: History, window: int, limit: int, text: str = "a summary", cut: bool = False
) -> tuple[list[int], History]:
    lengths: list[int] = []

    def write(tokens: TokenParts, most: int) -> tuple[str, bool]:
        assert len(tokens.question) == REQUEST
        assert len(tokens.document) + len(tokens.question) + most <= window
        lengths.append(len(tokens.document))
        return text, cut

    made = summarise(history, Prompt(id="c", prompt="x"), Words(), window=window, limit=limit, write=write)
    assert made.requests == len(lengths) and made.cut == cut and made.text == made.history.document
    return lengths, made.history


def test_what_fits_is_summarised_at_once() -> None:
    lengths, history = summed(talked(20, 20, 20, document="two words"), window=62 + REQUEST + 32, limit=32)
    assert lengths == [62]
    assert history == History(f"{HEADING}a summary", (), summarised=True) and len(history) == 0


def test_what_does_not_fit_is_summarised_in_parts() -> None:
    """Two turns, then their summary (the heading's 6 words and 2 more) with the third."""
    lengths, _ = summed(talked(20, 20, 20), window=59 + REQUEST + 32, limit=32)
    assert lengths == [40, 6 + 2 + 20]


def test_one_turn_may_leave_less_room_for_its_summary() -> None:
    lengths, _ = summed(talked(90), window=90 + REQUEST + 40, limit=64)
    assert lengths == [90]
    with pytest.raises(
        PlanRefusedError, match=r"'c' cannot be compressed.*takes 113 tokens.*the window is 144"
    ):
        summed(talked(90), window=90 + REQUEST + 31, limit=64)


def test_no_summary_is_no_history_lost() -> None:
    with pytest.raises(PlanRefusedError, match="'c' could not be compressed: the model's summary is empty"):
        summed(talked(20), window=500, limit=64, text=" \n")


def test_a_summary_that_was_cut_says_so() -> None:
    summed(talked(20), window=500, limit=64, cut=True)


def test_what_is_summarised_reads_as_it_was_said() -> None:
    history = History("The story.").after("Who?", "Orla.")
    assert transcript(history) == "The story.\n\nUser: Who?\n\nAssistant: Orla."

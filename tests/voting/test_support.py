"""How far the evidence says an answer: quoted, said otherwise, or invented."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.voting import extract, said, support

EVIDENCE = (
    "On day 1 the caravan crossed the river near Orla and traded 1,250 bales of wool.\n\n"
    "The pass code of vault K3 is 4821. Anna Birch was a painter. She was born in Lyon. The pass code of "
    "vault B7 is 1906. On day 2 the caravan rested, and 0.5 % of the salt was lost.\n\n"
    "The Harlow Bridge was built in the year 1850, for $12.00 a stone."
)
SENTENCES = (
    "the caravan crossed the river near Orla", "The pass code of vault K3 is 4821.", "Lyon", "1906",
    "She was born in Lyon. The pass code of vault B7 is 1906. On day 2 the caravan rested",
    "The Harlow Bridge was built in the year 1850, for $12.00 a stone.",
)  # fmt: skip


@pytest.mark.parametrize("quoted", [*SENTENCES, EVIDENCE])
def test_what_stands_in_the_evidence_is_supported_in_full(quoted: str) -> None:
    assert support(quoted, EVIDENCE) == 1.0


@pytest.mark.parametrize(
    "answer",
    ["LYON", "**Lyon**.", "“lyon”", "_Lyon_", "It is Lyon!", "1250", "1,250", "1250.0", "12", "€12", "1/2", "K3"],
)  # fmt: skip
def test_case_and_format_make_no_difference(answer: str) -> None:
    assert support(answer, EVIDENCE) == 1.0


@pytest.mark.parametrize("answer", ["9999", "482", "48210", "-4821", "Nantes", "unknown", "12.5"])
def test_what_stands_nowhere_is_not_supported(answer: str) -> None:
    assert support(answer, EVIDENCE) == 0.0
    assert support(answer, EVIDENCE, "What is the pass code of vault K3?") == 0.0


def test_an_answer_counts_where_the_question_is_spoken_of() -> None:
    question = "What is the pass code of vault K3? Answer with the number."
    right, other, far = (support(code, EVIDENCE, question) for code in ("4821", "1906", "1850"))
    assert right == 1.0
    assert 0.5 < other < 0.9 and far == 0.5  # type: ignore[operator]
    # Where the evidence speaks of it nowhere, everywhere is as good.
    assert support("1850", EVIDENCE, "Which umbrella?") == support("1850", EVIDENCE) == 1.0
    # The sentence beside it is nearer than any other: "she" is Anna Birch.
    born, far = (support(town, EVIDENCE, "Where was Anna Birch born?") for town in ("Lyon", "Orla"))
    assert 0.8 < born < 1.0 and far == 0.5  # type: ignore[operator]


def test_an_invented_number_in_a_true_sentence_takes_most_of_its_support() -> None:
    whole, wrong = "The pass code of vault K3 is 4821.", "The pass code of vault K3 is 9999."
    assert support(whole, EVIDENCE) == 1.0
    assert 0 < support(wrong, EVIDENCE) < 0.8  # type: ignore[operator]
    # The rare word weighs more than the common one.
    assert support("caravan 9999", EVIDENCE) < support("Orla 9999", EVIDENCE)  # type: ignore[operator]


def test_nothing_to_look_for_or_in() -> None:
    for answer, evidence in (
        ("", EVIDENCE),
        ("Yes.", EVIDENCE),
        ("It is the same.", EVIDENCE),
        ("Lyon", " \n"),
    ):
        assert support(answer, evidence) is None


@given(st.integers(0, 200), st.integers(1, 200))
def test_a_table_is_read_in_pieces_and_any_part_of_it_is_found(begin: int, length: int) -> None:
    cells = [f"{name}{number}" for number in range(70) for name in ("cell", "price", "place")]
    table = " ".join(cells)
    assert support(" ".join(cells[begin : begin + length]), table) == 1.0
    assert support("cell0", table, "What is in place69?") == 0.5


def test_languages_without_spaces() -> None:
    evidence = "金庫の暗証番号は4821です。彼女はリヨンで生まれた。橋は1850年に建てられた。"
    assert support("リヨン", evidence, "彼女はどこで生まれた？") == support("4821です", evidence) == 1.0
    assert support("東京都", evidence) == 0.0


WORDS = st.sampled_from(
    [
        "salt",
        "Orla",
        "17",
        "1,250",
        "bales",
        "the",
        "was",
        "K3",
        ".",
        "!",
        "\n\n",
        "0.5",
        "-3",
        "x_y",
        "é",
        "金",
    ]
)
TEXTS = st.lists(WORDS, max_size=200).map(" ".join)


@given(TEXTS, TEXTS, TEXTS)
def test_it_is_a_share_and_more_evidence_of_the_same_takes_nothing_away(
    answer: str, evidence: str, question: str
) -> None:
    share = support(answer, evidence, question)
    assert share is None or 0 <= share <= 1
    assert support(answer, f"{evidence}\n\n{answer}") in (None, pytest.approx(1.0))
    if share is not None:
        assert support(answer.upper(), evidence.lower(), question) == share


def test_it_is_the_same_in_another_process() -> None:
    """Python's sets are in another order there."""
    call = (
        f"from runner.voting import support; print(repr(support({SENTENCES[4] + ' Nantes'!r}, {EVIDENCE!r})))"
    )
    told = {
        subprocess.run([sys.executable, "-c", call], env={"PYTHONHASHSEED": seed}, capture_output=True).stdout
        for seed in "123"
    }
    assert told == {f"{support(SENTENCES[4] + ' Nantes', EVIDENCE)!r}\n".encode()}


@pytest.mark.parametrize(
    ("text", "kind", "choices", "pattern", "what"),
    [
        ("The code is 4,821.0, I think.", "number", (), None, "4821"),
        ("<think>A? No.</think> (B)", "choice", ("Lyon", "Nantes"), None, "Nantes"),
        ("b", "choice", ("(B) Lyon", "(A) Nantes"), None, "Lyon"),
        ("B", "choice", (), None, ""),
        ("<think>Hm.</think>Yes, it was.", "boolean", (), None, "Yes, it was."),
        ("It is K3 or B7.", "list", (), r"[A-Z]\d", "K3 or B7"),
        ("It is Vault K3.", "regex", (), r"Vault (\w+)", "K3"),
        ("<think>Hm.</think> In **Lyon**. ", "text", (), None, "In **Lyon**."),
        ("I cannot tell.", "number", (), None, ""),
    ],
)  # fmt: skip
def test_what_an_answer_says(
    text: str, kind: str, choices: tuple[str, ...], pattern: str | None, what: str
) -> None:
    found = extract(text, kind, choices=choices, pattern=pattern)
    assert said(found, text, choices).strip() == what

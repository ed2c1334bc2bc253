import random
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError
from runner.voting import KINDS, extract, kind_of, normalise

NUMBERS = [
    ("12", "12"),
    ("12.", "12"),
    ("**12**", "12"),
    ("_12_", "12"),
    ("`12`", "12"),
    ("\\boxed{12}", "12"),
    ("$\\boxed{12}$.", "12"),
    ("$12.00", "12"),
    ("12 dollars", "12"),
    ("12%", "12"),
    ("+12", "12"),
    ("012", "12"),
    ("-0.0", "0"),
    ("It is 3.14.", "3.14"),
    ("3.140", "3.14"),
    (".5", "0.5"),
    ("so...12", "12"),
    ("1,234", "1234"),
    ("1,234,567.80", "1234567.8"),
    ("1{,}234", "1234"),
    ("1\u202f234\u00a0567", "1234567"),
    ("1'234", "1234"),
    ("1_000_000", "1000000"),
    ("12,34,567", "1234567"),
    ("1.234.567,89", "1234567.89"),
    ("1 000 000", "1000000"),
    ("1 000 000.50", "1000000.5"),
    ("€ 1 050.", "1050"),
    ("12 345 678 people", "12345678"),
    ("1 2 300", "300"),
    ("The answer is 12.\nThis answer is correct since 5 > 3.", "12"),
    ("1,2,3", "3"),
    ("2,5", None),
    ("-5", "-5"),
    ("\u22125", "-5"),
    ("-$5.50", "-5.5"),
    ("$-5.50", "-5.5"),
    ("x=-5", "-5"),
    ("5-3", "3"),
    ("GPT-4", "4"),
    ("3 - 5 = -2", "-2"),
    ("H2O", None),
    ("version v1.2.3", None),
    ("10.0.0.1", None),
    ("1/2", "0.5"),
    ("1/3", "1/3"),
    ("-2/6", "-1/3"),
    ("2 1/2", "2.5"),
    ("\\frac{3}{4}", "0.75"),
    ("3/0", None),
    ("on 05/12/2024", None),
    ("1e5", "100000"),
    ("1.5e-3", "0.0015"),
    ("1.5 × 10^3", "1500"),
    ("2 \\times 10^{-2}", "0.02"),
    ("6.02×10²³", "602000000000000000000000"),
    ("1e999999999999", None),
    ("2^10", None),
    ("10²", None),
    ("12π", None),
    ("√2", None),
    ("1½", None),
    ("12 cm^2", "12"),
    ("3 million", "3000000"),
    ("$1.5 billion", "1500000000"),
    ("12k", "12000"),
    ("12 km", "12"),
    ("12kg", "12"),
    ("答案是12。", "12"),
    ("１２", "12"),
    ("First 3, then 4, so 7.", "7"),
    ("The answer is 12 because 3 + 4 + 5 = 12, not 13.", "12"),
    ("The answer is 3 + 4 = 7. There were 9 of them.", "7"),
    ("The answer is 3 apples + 4 apples = 7 apples", "7"),
    ("**Answer:** 12\n\nStep 1 was the hardest of 99.", "12"),
    ("Final Answer = 12 (see page 3)", "12"),
    ("The answer to the question is 12, out of 50.", "12"),
    ("the answer would be: $1,200.50!", "1200.5"),
    ("The answer is not 5 but 6", "6"),
    ("The answer is unclear. In 1990 it was 7.", "7"),
    ("Answer:\n12\nI used 3 steps.", "12"),
    ("12 is what the answer is.", "12"),
    ("The answer is 10. Wait, the answer is 11. I took 5 minutes.", "11"),
    ("She has 5.\n#### 72", "72"),
    ("#### 72 dollars", "72"),
    ("#### 1. Add\n#### 2. Done\nThe answer is 9", "9"),
    ("#### -72\nas 3", "-72"),
    ("\\boxed{x = 12}, so the answer is 13", "12"),
    ("\\boxed{12 \\text{ cm}^2}", "12"),
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("<think>Maybe 99</think>12", "12"),
    ("I think 99</think> 12", "12"),
    ("12 <think>then again", None),
    ("", None),
    ("no idea", None),
]

CAPITALS = ("London", "Paris", "New York City", "New York")
CHOICES = [
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("B.", "B"),
    ("B)", "B"),
    ("**B**", "B"),
    ("**(B)**", "B"),
    ("'B'", "B"),
    ("$\\boxed{B}$", "B"),
    ("\\boxed{\\text{B}}", "B"),
    ("B. Paris", "B"),
    ("B: Paris", "B"),
    ("B Paris", "B"),
    ("B - Paris", "B"),
    ("A good way to see it", None),
    ("a good way to see it", None),
    ("A good way to see it is Paris", "B"),
    ("A", "A"),
    ("A is right", "A"),
    ("Answer: b", "B"),
    ("Answer: B", "B"),
    ("**Answer:** (B)", "B"),
    ("The answer is B because London is in England.", "B"),
    ("The answer is A because it is.", "A"),
    ("The answer is a good one: Paris", "B"),
    ("The answer is (B) Paris, not (A) London.", "B"),
    ("The answer is option C.", "C"),
    ("The correct answer is: D", "D"),
    ("The answer is Paris.", "B"),
    ("The answer is not A. I choose B.", "B"),
    ("Option B", "B"),
    ("I would go with C.", "C"),
    ("I think it's D", "D"),
    ("London is wrong and D is correct.", "D"),
    ("Option C is right; option B is wrong.", "C"),
    ("Let me think.\n\nB", "B"),
    ("A. London\nB. Paris\nAnswer: B", "B"),
    ("Paris", "B"),
    (' "paris". ', "B"),
    ("I am sure that it was Paris, in France", "B"),
    ("I live in New York City now", "C"),
    ("I live in New York now", "D"),
    ("Either London or Paris", None),
    ("Berlin", None),
    ("B-52 is a plane", None),
    ("C++ is a language", None),
    ("Vitamin C is healthy", None),
    ("I do not know", None),
    ("<think>It is A</think>B", "B"),
    ("", None),
]

BOOLEANS = [
    ("Yes", "true"),
    ("yes.", "true"),
    ("**No**", "false"),
    ("True", "true"),
    ("FALSE!", "false"),
    ("Yes, there is no doubt.", "true"),
    ("No, it is not true that they met.", "false"),
    ("There is no doubt that it is true.", "true"),
    ("It is not true.", "false"),
    ("That isn't false", "true"),
    ("True or false? I would say false", "false"),
    ("The answer is yes, although some say no.", "true"),
    ("The answer is: **No**", "false"),
    ("\\boxed{True}", "true"),
    ("It depends. In the end: no", "false"),
    ("No one knows", None),
    ("Maybe", None),
    ("Nothing falsehood yesterday", None),
]

TEXTS = [
    ("Paris", "paris"),
    ('  "Paris".\n', "paris"),
    ("**The  Cat\nSat!**", "the cat sat"),
    ("‘it’s’", "it's"),
    ("(Paris)", "paris"),
    ("f(x)", "f(x)"),
    ("-5", "-5"),
    ("C++", "c++"),
    (".NET", ".net"),
    ("\u200bPARIS\ufeff", "paris"),
    ("Stra\u00dfe", "strasse"),
    ("cafe\u0301", "caf\u00e9"),
    ("<think>hm</think> Paris", "paris"),
    ("...", None),
    (" \n", None),
]


@pytest.mark.parametrize(("text", "key"), NUMBERS)
def test_number(text: str, key: str | None) -> None:
    assert extract(text, "number").key == key


@pytest.mark.parametrize(("text", "key"), CHOICES)
def test_choice(text: str, key: str | None) -> None:
    assert extract(text, "choice", choices=CAPITALS).key == key


@pytest.mark.parametrize(("text", "key"), BOOLEANS)
def test_boolean(text: str, key: str | None) -> None:
    assert extract(text, "boolean").key == key


@pytest.mark.parametrize(("text", "key"), TEXTS)
def test_text(text: str, key: str | None) -> None:
    assert extract(text, "text").key == key


@pytest.mark.parametrize(
    ("text", "pattern", "key"),
    [
        ("code A1, then code B2", r"code (\w\d)", "b2"),
        ("A1 B2", r"[A-Z]\d", "b2"),
        ("x=1; y", r"x=(\d)|y", "y"),
        ("Nothing", r"\d+", None),
        ("abc", r"z*", None),
        ("<think>code A1</think>", r"code (\w\d)", None),
    ],
)
def test_regex(text: str, pattern: str, key: str | None) -> None:
    assert extract(text, "regex", pattern=pattern).key == key
    assert extract(text, pattern=pattern).kind == "regex"


@pytest.mark.parametrize(
    ("text", "pattern", "key"),
    [
        ("They are 12 and 7.", r"\d+", "12 7"),
        ("7, 12", r"\d+", "7 12"),
        ("A1 then b2", r"(?i)([a-z])\d", "a b"),
        ("none", r"\d+", None),
        ("<think>1</think> 2", r"\d+", "2"),
    ],
)
def test_list(text: str, pattern: str, key: str | None) -> None:
    found = extract(text, "list", pattern=pattern)
    assert found.key == key
    if found.span is not None:
        assert extract(text[slice(*found.span)], "list", pattern=r"\w+").key is not None
        assert normalise("12 7", "list") == "12 7"


def test_choice_labels_follow_the_options() -> None:
    assert extract("C", "choice", choices=["B", "C", "D"]).key == "C"
    assert extract("The answer is paris", "choice", choices=["(B) Paris", "(A) London"]).key == "B"
    assert extract("The answer is 12.5", "choice", choices=["12", "12.5"]).key == "B"
    assert extract("12", "choice", choices=["10", "12"]).key == "B"
    assert extract("E", "choice", choices=["10", "12"]).key is None
    assert extract("(d)", "choice").key == "D"


def test_an_extraction_shows_where_and_why() -> None:
    text = "<think>It is 3.</think> The answer is **12**, not 13."
    found = extract(text, "number")
    assert found.span is not None and text[slice(*found.span)] == "12"
    assert (found.kind, found.rule, found.reason) == ("number", "announced", None)
    missing = extract("Either London or Paris", choices=CAPITALS)
    assert (missing.kind, missing.key, missing.span, missing.rule) == ("choice", None, None, "none")
    assert missing.reason == "several options are named: A, B"
    for kind in KINDS:
        assert extract("<think>12 yes B", kind, pattern="1").reason == "the reasoning never ends"
        assert extract(" ", kind, pattern="1").reason == "the text is empty"


@pytest.mark.parametrize(
    ("kind", "pattern", "said"),
    [
        ("number5", None, "number, choice, boolean, regex, text"),
        ("regex", None, "needs a pattern"),
        ("list", None, "kind=list needs a pattern"),
        ("regex", "(", "no regular expression"),
    ],
)
def test_a_wrong_kind_or_pattern_is_one_line(kind: str, pattern: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        extract("12", kind, pattern=pattern)


def test_more_choices_than_letters_is_one_line() -> None:
    with pytest.raises(ConfigError, match="26 at most"):
        extract("12", choices=[str(i) for i in range(27)])


@pytest.mark.parametrize(
    ("expected", "choices", "kind"),
    [
        ("12", (), "number"),
        (" $1,234.50 ", (), "number"),
        ("-3/4", (), "number"),
        ("50%", (), "number"),
        ("#### 72", (), "number"),
        ("\\boxed{7}", (), "number"),
        ("12 apples", (), "text"),
        ("1, 2", (), "text"),
        ("Paris", (), "text"),
        ("", (), "text"),
        (None, (), "text"),
        ("Yes", (), "boolean"),
        ("12", ("10", "12"), "choice"),
    ],
)
def test_kind_of(expected: str | None, choices: tuple[str, ...], kind: str) -> None:
    assert kind_of(expected, choices) == kind


def test_an_expected_answer_and_an_extracted_one_compare_by_key() -> None:
    assert normalise("$1,234.00", "number") == extract("It costs 1234 dollars", "number").key
    assert normalise("B", "choice", CAPITALS) == normalise("paris", "choice", CAPITALS) == "B"
    assert normalise("New York", "choice", CAPITALS) == "D"
    assert normalise("Yes", "boolean") == extract("True.", "boolean").key
    assert normalise("B2", "regex") == extract("code b2", "regex", pattern=r"code (.*)").key
    assert normalise("apple", "number") is None


DECORATIONS = [
    "{}", "**{}**", "{}.", " {}\n", "`{}`", "({})", "\\boxed{{{}}}", "$\\boxed{{{}}}$", "The answer is {}.",
    "**Answer:** {}", "#### {}", "I took 3 steps. So it is {}", "<think>7</think>\n{}!", '"{}"', "x = {}",
]  # fmt: skip


def spellings(value: Decimal) -> list[str]:
    plain = f"{value:f}"
    grouped = f"{value:,f}"
    return [
        plain, grouped, f"{plain}.00" if "." not in plain else f"{plain}0", grouped.replace(",", "\u202f"),
        grouped.replace(",", "{,}"), plain.replace("-", "\u2212"), f"{value:e}",
    ]  # fmt: skip


decimals = st.decimals(-(10**9), 10**9, places=3) | st.integers(-(10**40), 10**40).map(Decimal)


@given(decimals, st.sampled_from(DECORATIONS))
def test_formatting_never_changes_a_number(value: Decimal, decoration: str) -> None:
    keys = {spelt: extract(decoration.format(spelt), "number").key for spelt in spellings(value)}
    assert set(keys.values()) == {normalise(f"{value:f}", "number")}, keys
    assert Decimal(str(keys[f"{value:f}"])) == value


@given(decimals, decimals)
def test_different_numbers_never_share_a_key(a: Decimal, b: Decimal) -> None:
    assert (normalise(f"{a:f}", "number") == normalise(f"{b:f}", "number")) == (a == b)


@given(st.fractions(), st.fractions())
def test_fractions_are_exact(a: Fraction, b: Fraction) -> None:
    keys = [normalise(f"{x.numerator}/{x.denominator}", "number") for x in (a, b)]
    assert (keys[0] == keys[1]) == (a == b)
    assert Fraction(str(keys[0])) == a


CHOICE_DECORATIONS = [
    "{}", "({})", "{}.", "**{}**", "Answer: {}", "The answer is ({}).", "\\boxed{{{}}}", "Option {}", "{})",
    " {}\n", "<{}>", "I pick {}.", "Therefore, {}.", "The best option is {}", "<think>A or B?</think>{}",
]  # fmt: skip


@given(st.sampled_from("ABCD"), st.sampled_from(CHOICE_DECORATIONS))
def test_formatting_never_changes_a_choice(letter: str, decoration: str) -> None:
    for spelt in (letter, letter.lower()):
        assert extract(decoration.format(spelt), choices=CAPITALS).key == letter


@given(st.text(), st.sampled_from(list(KINDS)))
def test_any_text_is_read_without_an_error(text: str, kind: str) -> None:
    found = extract(text, kind, choices=CAPITALS if kind == "choice" else (), pattern=r"\d")
    assert (found.key is None) == (found.span is None) == (found.reason is not None)
    if found.span is not None:
        assert 0 <= found.span[0] < found.span[1] <= len(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_repeats_itself_is_read_quickly(kind: str) -> None:
    pieces = [
        "\n", " ", "*", "(", "{", "\\boxed{", "<think>", "</think>", "1", "1,", "1.", "1 ", "1 + 1 = ", "a_", "A",
        "B ", "answer ", "answer is ", "the answer to ", "Paris ", "####", "yes ", "not ", "-", "\\frac{1}",
    ]  # fmt: skip
    rng = random.Random(0)
    pieces += ["".join(rng.choices(pieces, k=3)) for _ in range(12)]
    slowest = 0.0
    for piece in pieces:
        started = time.process_time()
        extract(piece * 2000, kind, choices=CAPITALS if kind == "choice" else (), pattern=r"\d")
        slowest = max(slowest, time.process_time() - started)
    assert slowest < 1

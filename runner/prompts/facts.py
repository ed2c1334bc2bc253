"""The kinds of fact that a document of ``prompts=recall`` holds: what is said of it, and how it is asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from runner.prompt_config import FactName

_TOWNS = (
    "Bergen", "Cardiff", "Utrecht", "Lyon", "Belfast", "Krakow", "Bristol", "Nantes", "Trieste", "Leipzig",
    "Gdansk", "Salerno", "Coventry", "Rostock",
)  # fmt: skip
_CAPITALS = (
    "Ravenna", "Toledo", "Verona", "Porto", "Dresden", "Seville", "Geneva", "Kazan", "Bologna", "Antwerp",
    "Malaga", "Zurich", "Odessa", "Aleppo",
)  # fmt: skip
_COUNTRIES = (
    "Veldora", "Marinth", "Castoria", "Ombria", "Tarvos", "Lumeria", "Keswin", "Brandolia", "Norvania", "Estria",
    "Palmora", "Drakia", "Silvania", "Ulmaria",
)  # fmt: skip
_FIRST_NAMES = (
    "Anna", "Victor", "Clara", "Simon", "Helen", "Oscar", "Maria", "Peter", "Julia", "Thomas", "Nora", "Daniel",
    "Edith", "Paul",
)  # fmt: skip
_LAST_NAMES = (
    "Ashdown",
    "Birch",
    "Crane",
    "Dale",
    "Finch",
    "Gray",
    "Holt",
    "Kent",
    "Lowe",
    "Marsh",
    "Reed",
    "Stone",
)
_BRIDGES = (
    "Harlow", "Kelso", "Marlow", "Denby", "Wexford", "Barrow", "Stanton", "Penrose", "Calder", "Norwood", "Ivy",
    "Ashby", "Milford", "Corby",
)  # fmt: skip
_PAINTINGS = (
    "Rowan", "Elm", "Maple", "Willow", "Hazel", "Laurel", "Thorn", "Aspen", "Alder", "Juniper", "Holly", "Linden",
    "Poppy", "Heather",
)  # fmt: skip


@dataclass(frozen=True)
class FactKind:
    """One kind of fact.

    Attributes:
        keys, values: draw ``count`` different ones, fewer where there are no more.
        pattern: a regular expression for an answer of this kind, right or wrong.
        statements: with ``{key}`` and ``{value}``.
        questions: for one fact, with ``{keys}``; ``several`` is for more than one.
        stem: the beginning of a statement, for a base model to complete; ``stems`` of one about several facts.
        answer, answers: what is to be answered, one or several.
    """

    keys: Callable[[random.Random, int], list[str]]
    values: Callable[[random.Random, int], list[str]]
    pattern: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    several: str
    stem: str
    stems: str
    answer: str
    answers: str


def _of(words: tuple[str, ...]) -> Callable[[random.Random, int], list[str]]:
    return lambda rng, count: rng.sample(words, min(count, len(words)))


def _numbers(low: int, high: int) -> Callable[[random.Random, int], list[str]]:
    return lambda rng, count: [str(number) for number in rng.sample(range(low, high), min(count, high - low))]


def _vaults(rng: random.Random, count: int) -> list[str]:
    every = [f"{letter}{digit}" for letter in "BCDFGHJKLMNPQRSTVWXZ" for digit in range(10)]
    return rng.sample(every, min(count, len(every)))


def _people(rng: random.Random, count: int) -> list[str]:
    every = [f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES]
    return rng.sample(every, min(count, len(every)))


_PLACES = rf"\b(?:{'|'.join((*_TOWNS, *_CAPITALS))})\b"


def _digits(least: int, most: int) -> str:
    return rf"(?<![\w.,])\d{{{least},{most}}}(?!\w|[.,]\d)"


FACTS: dict[FactName, FactKind] = {
    "code": FactKind(
        _vaults, _numbers(1000, 10000), _digits(3, 6),
        (
            "The pass code of vault {key} is {value}.",
            "Vault {key} has the pass code {value}.",
            "For vault {key} the pass code is {value}.",
        ),
        ("What is the pass code of vault {keys}?", "Tell me the pass code of vault {keys}."),
        "What are the pass codes of the vaults {keys}?",
        "The pass code of vault {keys} is", "The pass codes of the vaults {keys}, in this order, are",
        "the number", "the {count} numbers",
    ),
    "birthplace": FactKind(
        _people, _of(_TOWNS), _PLACES,
        (
            "The birthplace of {key} is {value}.",
            "The town where {key} was born is {value}.",
            "The town of {value} is the birthplace of {key}.",
        ),
        ("What is the birthplace of {keys}?", "What is the town where {keys} was born?"),
        "What are the birthplaces of {keys}?",
        "The birthplace of {keys} is", "The birthplaces of {keys}, in this order, are",
        "the name of the town", "the names of the {count} towns",
    ),
    "year": FactKind(
        _of(_BRIDGES), _numbers(1610, 1960), _digits(4, 4),
        (
            "The {key} Bridge was built in the year {value}.",
            "In {value} the {key} Bridge was built.",
            "The year when the {key} Bridge was built is {value}.",
        ),
        ("When was the {keys} Bridge built?", "What is the year when the {keys} Bridge was built?"),
        "When were the bridges {keys} built?",
        "The year when the {keys} Bridge was built is",
        "The years when the bridges {keys} were built, in this order, are",
        "the year", "the {count} years",
    ),
    "capital": FactKind(
        _of(_COUNTRIES), _of(_CAPITALS), _PLACES,
        (
            "The capital of {key} is {value}.",
            "The capital city of {key} is named {value}.",
            "{value} is the capital of {key}.",
        ),
        ("What is the capital of {keys}?", "Tell me the capital of {keys}."),
        "What are the capitals of {keys}?",
        "The capital of {keys} is", "The capitals of {keys}, in this order, are",
        "the name of the city", "the names of the {count} cities",
    ),
    "price": FactKind(
        _of(_PAINTINGS), _numbers(101, 1000), _digits(3, 6),
        (
            "The price of the {key} painting is {value} dollars.",
            "The {key} painting has a price of {value} dollars.",
        ),
        ("What is the price of the {keys} painting?", "Tell me the price of the {keys} painting."),
        "What are the prices of the paintings {keys}?",
        "The price of the {keys} painting is", "The prices of the paintings {keys}, in this order, are",
        "the number", "the {count} numbers",
    ),
}  # fmt: skip

"""What hides a fact: generated filler or real prose of about a length, with facts set between its sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

CARAVAN = "caravan"
"""The body that is generated: days of a caravan's journey, no two alike."""

_PLACES = ("Orla", "Veyra", "Tamsin", "Quell", "Harrow", "Lunde", "Maris", "Stell")
_GOODS = ("wool", "salt", "copper", "amber", "cedar", "glass", "pepper", "linen")
# Three small letters or digits before the stop: an abbreviation (Mr., St., e.g.) ends no sentence.
_SENTENCE_ENDS = re.compile(
    r"""(?:(?<=[a-z]{3}[.!?])|(?<=\d{3}[.!?])|(?<=[a-z][.!?]["”)]))(?=\s+["“(]?[A-Z])|(?<=\S)(?=[ \t]*\n\s*\n)"""
)


def caravan(rng: random.Random) -> Iterator[str]:
    """Sentences without end, each with the space before it."""
    for day in count(1):
        yield (
            f" On day {day} the caravan crossed the river near {rng.choice(_PLACES)} "
            f"and traded {rng.randint(2, 90)} bales of {rng.choice(_GOODS)}."
        )


def sentences(text: str) -> list[str]:
    """``text`` in its sentences, or paragraphs where nothing ends one; each with the white space before it."""
    return _SENTENCE_ENDS.split(text)


def filled(pieces: Iterable[str], room: int, count_tokens: Callable[[str], int]) -> list[str]:
    """The first of ``pieces``, as many as ``room`` tokens hold."""
    body = []
    for piece in pieces:
        room -= count_tokens(piece)
        if room < 0:
            break
        body.append(piece)
    return body


def hidden(body: Sequence[str], facts: Iterable[tuple[float, str]]) -> str:
    """The document: ``body`` with each fact at its depth, counted in pieces from 0 to 1, the end."""
    pieces = list(body)
    # From the last place backwards, so that an insertion does not move the places still to come.
    for place, fact in sorted(((round(depth * len(body)), fact) for depth, fact in facts), reverse=True):
        pieces.insert(place, f" {fact}")
    return "".join(pieces).strip()

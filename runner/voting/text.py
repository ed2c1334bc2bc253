"""What every kind of answer shares: reasoning set aside, where an answer is announced, plain text."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass

Span = tuple[int, int]

# "the answer is", "Answer:", "**Final answer** =", "the answer to the question would be".
_ANNOUNCED = re.compile(
    r"""\banswer\b
        (?:\s+(?:to|for|of)\b[^.!?\n:=]{0,80}?)?
        [\s*_`"')]*
        (?:(?:is|are|was|equals|(?:would|should|must|will)\s+be)\b|=|:|[-–—](?=\s))
        (?!\s+(?:not|correct|right|wrong|incorrect|reasonable|found|given|obtained|derived|calculated)\b)
        [\s*_`"':]*""",
    re.IGNORECASE | re.VERBOSE,
)
_REASONING = re.compile(r"</?think>", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")
_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*)?\{|\}")

_QUOTES = str.maketrans("‘’‛“”„‟«»", '\'\'\'""""""')
_INVISIBLE = re.compile("[\u200b\u2060\ufeff]")
_OPENING, _CLOSING = "\"'*_`¿¡", "\"'*_`.,;:!?…。，！？"
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Found:
    """An answer: its normalised key, where in the text it stands, and which rule saw it."""

    key: str
    span: Span
    rule: str


def visible(text: str) -> str | None:
    """``text`` with its reasoning blanked out, every other character at its place; None if it never ends.

    A block whose opening tag belongs to the prompt is known by its closing tag alone.
    """

    opened: int | None = None
    for tag in _REASONING.finditer(text):
        if tag[0][1] != "/":
            opened = tag.start() if opened is None else opened
        else:
            start = opened or 0
            text = text[:start] + " " * (tag.end() - start) + text[tag.end() :]
            opened = None
    return text if opened is None else None


def announced(text: str) -> list[Span]:
    """What follows an announcement of the answer, to the end of that sentence; the last one first."""
    ends = [match.start() for match in _SENTENCE_END.finditer(text)] + [len(text)]
    starts = [match.end() for match in _ANNOUNCED.finditer(text)]
    return [(start, ends[bisect_left(ends, start)]) for start in reversed(starts)]


def boxed(text: str) -> list[Span]:
    r"""The insides of ``\boxed{...}``, the last one first; braces nest, a box that never closes is none."""
    spans: list[Span] = []
    open_braces: list[re.Match[str]] = []
    for match in _BRACE.finditer(text):
        if match[0] != "}":
            open_braces.append(match)
        elif open_braces and (opening := open_braces.pop())["box"] is not None:
            spans.append((opening.end(), match.start()))
    return sorted(spans, reverse=True)


def normalise_text(text: str) -> str:
    """``text`` without what makes no difference: case, spacing, quotes, emphasis, outer punctuation.

    Signs stay, since ``-5`` is not ``5`` and ``C++`` is not ``C``; so does a leading point (``.net``).
    """
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text)).translate(_QUOTES).casefold()
    text = " ".join(text.split())
    before = None
    while text != before:
        before = text
        text = text.lstrip(_OPENING).rstrip(_CLOSING).strip()
        if text and _BRACKETS.get(text[0]) == text[-1] and not set(text[1:-1]) & set("()[]{}"):
            text = text[1:-1].strip()
    return text

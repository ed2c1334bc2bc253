"""What every kind of answer shares: reasoning set aside, where an answer is announced, plain text."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

Span = tuple[int, int]

# "the answer is", "Answer:", "**Final answer** =", "the answer to the question would be".
_ANNOUNCED = re.compile(
    r"""\banswer\b
        (?:\s+(?:to|for|of)\b[^.!?\n:=]{0,80}?)?
        [\s*_`"')]*
        (?:(?:is|are|was|equals|(?:would|should|must|will)\s+be)\b|=|:|[-–—](?=\s))
        (?!\s+not\b)
        [\s*_`"':]*""",
    re.IGNORECASE | re.VERBOSE,
)
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

    def blank(match: re.Match[str]) -> str:
        return " " * len(match[0])

    text = re.sub(r"<think>.*?</think>", blank, text, flags=re.DOTALL | re.IGNORECASE)
    text = re.sub(r"^.*</think>", blank, text, flags=re.DOTALL | re.IGNORECASE)
    return None if re.search("<think>", text, re.IGNORECASE) else text


def announced(text: str) -> list[Span]:
    """What follows an announcement of the answer, to the end of that sentence; the last one first."""
    spans = []
    for match in _ANNOUNCED.finditer(text):
        end = _SENTENCE_END.search(text, match.end())
        spans.append((match.end(), end.start() if end else len(text)))
    return spans[::-1]


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

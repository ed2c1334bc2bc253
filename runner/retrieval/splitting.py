"""Texts in pieces that end where sentences, paragraphs and headings do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from semantic_text_splitter import MarkdownSplitter, TextSplitter

HEADING = re.compile(r"^(?P<marks>#{1,6}) +(?P<title>\S.*)$", re.MULTILINE)
"""A heading in Markdown."""

_LONGEST_WORD = 256
"""Characters; what is longer has no meaning to split by, and counting it over and over takes minutes."""


@dataclass(frozen=True)
class Span:
    """A piece of a text, from ``first_char`` up to ``end_char``."""

    first_char: int
    end_char: int


@dataclass(frozen=True)
class Piece:
    """A text of ``tokens`` that is, or is of, a document's characters from ``first_char`` to ``end_char``."""

    first_char: int
    end_char: int
    text: str
    tokens: int


def cut(text: str, count: Callable[[str], int], capacity: int, *, overlap: int = 0) -> list[Piece]:
    """The pieces that :func:`split` finds with what stands in them, none of them blank."""
    spans = split(text, count, capacity, overlap=overlap)
    texts = [(span, text[span.first_char : span.end_char]) for span in spans]
    return [Piece(s.first_char, s.end_char, said, count(said)) for s, said in texts if said.strip()]


def split(text: str, count: Callable[[str], int], capacity: int, *, overlap: int = 0) -> list[Span]:
    """``text`` in pieces of at most ``capacity`` tokens, in order; nothing but whitespace is in none of them.

    A piece ends at a heading where it can (in Markdown), else at a paragraph, a sentence, a word; a run without
    spaces is cut where it must be. A single character may take more tokens than ``capacity``.

    Args:
        text: what is split.
        count: tokens of a text.
        capacity: tokens of a piece, at least 1.
        overlap: tokens that neighbours may share, fewer than ``capacity``; they share whole sentences or words.
    """
    kind = MarkdownSplitter if HEADING.search(text) else TextSplitter
    splitter = kind.from_callback(count, capacity, overlap)
    spans: list[Span] = []
    for part in _readable(text):
        piece = text[part.first_char : part.end_char]
        spans += (
            Span(part.first_char + first, part.first_char + first + len(found))
            for first, found in splitter.chunk_indices(piece)
        )
    return spans


def _readable(text: str) -> Iterator[Span]:
    """``text`` without its endless words, and these in parts."""
    done = 0
    for run in re.finditer(rf"\S{{{_LONGEST_WORD + 1},}}", text):
        if text[done : run.start()].strip():
            yield Span(done, run.start())
        for first in range(run.start(), run.end(), _LONGEST_WORD):
            yield Span(first, min(first + _LONGEST_WORD, run.end()))
        done = run.end()
    if text[done:].strip():
        yield Span(done, len(text))

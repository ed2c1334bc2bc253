"""A document as a tree: sections below their headings, and in each the passages that are searched for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from runner.retrieval.splitting import HEADING, Piece, cut

SECTION_TOKENS = 2048
"""Of a section at most; what stands below one heading may be several, and short neighbours are one."""


@dataclass(frozen=True)
class Section:
    """A part of a document; ``title`` is the path of headings that it stands below, empty without any."""

    first_char: int
    end_char: int
    title: str


@dataclass(frozen=True)
class Passage(Piece):
    """A piece of a document, in section number ``section``."""

    section: int


@dataclass(frozen=True)
class Outline:
    """All sections and passages of a document, each in its order; no passage is blank or in two sections."""

    sections: tuple[Section, ...]
    passages: tuple[Passage, ...]


def outline(document: str, count: Callable[[str], int], *, chunk: int, overlap: int) -> Outline:
    """``document`` in passages of at most ``chunk`` tokens, of which neighbours may share ``overlap``.

    Args:
        document: its text; headings are Markdown's.
        count: tokens of a text.
        chunk: tokens of a passage, at least 1.
        overlap: tokens, fewer than ``chunk``.
    """
    headings = [(m.start(), m["marks"], m["title"]) for m in HEADING.finditer(document)]
    sections: list[Section] = []
    passages: list[Passage] = []
    for part in cut(document, count, max(SECTION_TOKENS, chunk)):
        for piece in cut(part.text, count, chunk, overlap=overlap):
            first, end = part.first_char + piece.first_char, part.first_char + piece.end_char
            passages.append(Passage(first, end, piece.text, piece.tokens, section=len(sections)))
        # A heading that opens a section names it.
        start = part.first_char + len(part.text) - len(part.text.lstrip())
        above = [(len(marks), title) for place, marks, title in headings if place <= start]
        sections.append(Section(part.first_char, part.end_char, _path(above)))
    return Outline(tuple(sections), tuple(passages))


def _path(above: list[tuple[int, str]]) -> str:
    """The headings in force after all of ``above``, (level, title) each, the highest first."""
    path: list[tuple[int, str]] = []
    for level, title in above:
        path = [each for each in path if each[0] < level] + [(level, title)]
    return " > ".join(re.sub(r"\s+", " ", title).strip(" #") for _, title in path)

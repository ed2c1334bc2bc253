"""Texts in pieces that end where sentences, paragraphs and headings do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A piece of a text, from ``first_char`` up to ``end_char``."""

    first_char: int
    end_char: int

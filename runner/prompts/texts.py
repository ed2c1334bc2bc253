"""Texts to score: passages cut out of long texts, the same ones for the same settings and tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from runner.config import TextsConfig
from runner.errors import PromptError
from runner.prompts.prompt import Passage

PYDOC = "pydoc"
"""The source that every Python has: its language reference, technical English with examples."""


def passages(config: TextsConfig, count_tokens: Callable[[str], int]) -> list[Passage]:
    """``config.count`` passages of at most ``config.tokens`` tokens out of every source.

    A source's ``span`` is divided into as many parts as there are passages; each begins at the first paragraph of
    its part and ends with a word.

    Raises:
        PromptError: a source cannot be read, or is too short for its passages.
    """
    cut = []
    for source in config.sources if config.count else ():
        name, text = read_source(source, "prompts.texts")
        start, end = (round(share * len(text)) for share in config.span)
        for number in range(config.count):
            begin, stop = (start + (end - start) * n // config.count for n in (number, number + 1))
            passage = _cut(text[begin:stop], config.tokens, count_tokens, first=begin == 0)
            if passage is None:
                raise PromptError(
                    f"prompts.texts: {source} is too short for {config.count} passages of {config.tokens} tokens "
                    "each; lower prompts.texts.count or prompts.texts.tokens, or widen prompts.texts.span"
                )
            cut.append(Passage(id=f"text-{name}-{number}", text=passage, last=config.last))
    names = [passage.id for passage in cut]
    if len(set(names)) < len(names):
        raise PromptError(
            "prompts.texts.sources names two files alike; rename one, its name is in its texts' ids"
        )
    return cut


def read_source(source: str, key: str) -> tuple[str, str]:
    """A source's name and text; ``key`` is the setting that named it.

    Raises:
        PromptError: there is no such file, or it is no text.
    """
    if source == PYDOC:
        from pydoc_data.topics import topics

        return PYDOC, "\n\n".join(topics[topic] for topic in sorted(topics))
    path = Path(source).expanduser()
    try:
        return path.stem, path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise PromptError(f"{key}: there is no file {path}; name a text file, or {PYDOC}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{key}: {path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise PromptError(f"{key}: {path} cannot be read: {error.strerror}") from None


def _cut(part: str, tokens: int, count_tokens: Callable[[str], int], *, first: bool) -> str | None:
    """The longest beginning of ``part``'s first whole paragraphs that has at most ``tokens`` tokens.

    None where ``part`` ends before it.
    """
    paragraph = None if first else re.search(r"\n\s*\n", part)
    part = part[paragraph.end() if paragraph else 0 :]
    ends = [match.end() for match in re.finditer(r"\S+", part)]
    fits, over = 0, len(ends)
    # Every word has a token or more, so that no text need be counted that is far too long.
    while fits < over:
        middle = min((fits + over + 1) // 2, fits + tokens)
        if count_tokens(part[: ends[middle - 1]]) <= tokens:
            fits = middle
        else:
            over = middle - 1
    return part[: ends[fits - 1]] if 0 < fits < len(ends) else None

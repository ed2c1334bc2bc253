"""A model too large for one file comes in parts, which llama.cpp opens by the first one's name."""

from __future__ import annotations

import re
from pathlib import Path, PurePath, PurePosixPath

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def parts(first: Path) -> list[Path]:
    """The files that make up a model, in order: ``first`` itself unless its name says ``-00001-of-0000N``."""
    return [first.with_name(name) for name in _names(first)]


def repository_parts(first: str) -> list[str]:
    """The same for a file's path inside a repository."""
    return [str(PurePosixPath(first).with_name(name)) for name in _names(PurePosixPath(first))]


def part_number(path: PurePath) -> int:
    """Which part of a split model a file is, counted from 1; an unsplit file is part 1 of 1."""
    match = _PART.fullmatch(path.name)
    return int(match[2]) if match else 1


def _names(first: PurePath) -> list[str]:
    match = _PART.fullmatch(first.name)
    if match is None:
        return [first.name]
    stem, _, count = match.groups()
    return [f"{stem}-{number:05d}-of-{count}.gguf" for number in range(1, int(count) + 1)]

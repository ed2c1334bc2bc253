"""Weights that cannot be had are told in one line, and the line says what to do about it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from runner.config import ModelConfig
from runner.errors import ModelError


def format_size(size_bytes: int) -> str:
    """Bytes as a person reads them, in decimal units: ``98.4 MB``, ``22.0 GB``."""
    value, units = float(size_bytes), ["B", "kB", "MB", "GB"]
    while value >= 999.95 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def unavailable(model: ModelConfig, entry: Path, reason: str) -> ModelError:
    """The source cannot be reached or does not have the file: names the two ways to supply it."""
    return ModelError(
        f"cannot fetch {model.name}: {reason}; give the file with model.path=/where/it/is.gguf, or run "
        f"`python -m runner.models fetch {model.name}` on a machine that is online and copy the file it "
        f"names to {entry}"
    )


def not_as_promised(model: ModelConfig, what: str, found: object, expected: object) -> ModelError:
    """The content that arrived is not the content that was declared."""
    return ModelError(
        f"what came for {model.name} has the {what} {found}, not {expected}: the download was deleted; "
        f"fetch it again, or correct model.source in conf/model/{model.name}.yaml"
    )


def no_room(model: ModelConfig, folder: Path, needed_bytes: int | None, variable: str) -> ModelError:
    """The disk is too small; ``variable`` is the environment variable that moves ``folder``."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = format_size(shutil.disk_usage(there).free)
    needed = f"{format_size(needed_bytes)} needed" if needed_bytes is not None else "the disk filled up"
    return ModelError(
        f"no room for {model.name} in {folder}: {needed}, {free} are free; make room, or set {variable} to a "
        f"folder on a larger disk"
    )


def require_room(model: ModelConfig, folder: Path, needed_bytes: int, variable: str) -> None:
    """Refuse before the first byte what cannot end well.

    Raises:
        ModelError: fewer bytes are free below ``folder`` than ``needed_bytes``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed_bytes:
        raise no_room(model, folder, needed_bytes, variable)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, is ENOSPC."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False

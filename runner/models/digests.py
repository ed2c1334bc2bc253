"""A model's identity is its sha256, and hashing gigabytes at every start is slow: hash once, remember."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from runner.models.cache import cache_dir
from runner.models.split import parts

_CHUNK_BYTES = 1 << 20


def digest(path: Path) -> str:
    """The sha256 of a file in hex; of all its parts, joined in order, where it is the first of a split model.

    Remembered in the cache by resolved path, size and modification time in ns.

    Raises:
        OSError: the file cannot be read.
    """
    stamp = _stamp(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(_record(path).read_text())
        if known["stamp"] == stamp:
            return str(known["sha256"])
    hasher = hashlib.sha256()
    for part in parts(path):
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
    remember(path, hasher.hexdigest())
    return hasher.hexdigest()


def remember(path: Path, sha256: str) -> None:
    """Keep a digest that is already known, so that it is not computed again."""
    record = _record(path)
    # A cache folder that cannot be written costs time, never the job.
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=record.name, dir=record.parent)
        with os.fdopen(handle, "w") as file:
            json.dump({"path": str(path.resolve()), "stamp": _stamp(path), "sha256": sha256}, file)
        os.replace(name, record)  # noqa: PTH105 - the name is what mkstemp gave


def _record(path: Path) -> Path:
    """One small file a model: two processes never rewrite each other's lines."""
    return cache_dir() / "digests" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"


def _stamp(path: Path) -> list[list[int]]:
    """What changes when the content does: size in bytes and mtime in ns of every part."""
    stats = [part.stat() for part in parts(path)]
    return [[stat.st_size, stat.st_mtime_ns] for stat in stats]

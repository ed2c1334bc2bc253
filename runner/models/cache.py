"""A file fetched once has one place that everybody can name: the cache folder and the names in it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import platformdirs

from runner.config import ModelConfig, SourceConfig
from runner.models.split import parts


def cache_dir() -> Path:
    """The folder of fetched weights and digests: ``$KVSWARM_CACHE``, else the user's cache folder."""
    override = os.environ.get("KVSWARM_CACHE")
    return Path(override).expanduser() if override else platformdirs.user_cache_path("kvswarm")


def entry(model: ModelConfig, source: SourceConfig) -> Path:
    """Where the weights of ``source`` lie in the cache, whether they are there or not.

    The name carries the content's sha256, or a digest of the source where none is declared, so that another
    version of a model never passes for this one. A split model keeps the suffix llama.cpp finds its parts by.
    """
    content = source.sha256 or hashlib.sha256(repr(source).encode()).hexdigest()
    name = re.sub(r"[^\w.-]", "_", model.name)
    part = re.search(r"-\d{5}-of-\d{5}\.gguf$", source.file or "")
    return cache_dir() / "weights" / f"{name}-{content[:8]}{part[0] if part else '.gguf'}"


def complete(first: Path) -> bool:
    """Whether the file is there, and every further part where it is the first of a split model."""
    return all(part.is_file() for part in parts(first))

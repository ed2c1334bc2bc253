"""The libraries that retrieval needs, which come with the ``rag`` extra."""

from __future__ import annotations

from importlib.util import find_spec

from runner.errors import ConfigError


def is_installed() -> bool:
    """Whether they are here."""
    return all(find_spec(name) is not None for name in ("lancedb", "wordllama"))


def needs_extra() -> ConfigError:
    """What to do where they are not."""
    return ConfigError(
        'context_strategy=rag needs libraries that are not installed; pip install "kvswarm[rag]", or choose '
        "context_strategy=compress"
    )

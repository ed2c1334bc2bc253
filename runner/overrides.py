"""Overrides as a person types them, applied to a config that is composed already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType

from runner.config import JobConfig
from runner.errors import ConfigError
from runner.parsing import parse


def with_overrides(config: JobConfig, overrides: Sequence[str]) -> JobConfig:
    """``config`` with each ``key.of.it=value`` in ``overrides``; ``swarm_size=N`` is its number of workers.

    Raises:
        ConfigError: there is no such key, or the value is wrong.
    """
    values = asdict(config)
    for override in overrides:
        change(values, override)
    job: JobConfig = parse(JobConfig, values)
    return job


def change(values: dict[str, Any], override: str) -> None:
    """Set one key of a config's mapping; ``+key=value`` may be new in it, ``~key`` leaves it out.

    Raises:
        ConfigError: there is no such key.
    """
    key, value, kind = _parsed(override)
    node, path = values, ["swarm_size", "workers"] if key == "swarm_size" else key.split(".")
    for part in path[:-1]:
        node = node.get(part, {})
    if path[-1] not in node and kind is not OverrideType.ADD:
        raise ConfigError(f"{key}: there is no such key")
    if kind is OverrideType.DEL:
        del node[path[-1]]
    else:
        node[path[-1]] = value


@cache
def _parsed(override: str) -> tuple[str, Any, OverrideType]:
    """The key, the value and what is done, read as Hydra reads them: ``on`` is a word, not a truth."""
    parsed = OverridesParser.create().parse_override(override)
    return str(parsed.key_or_group), parsed.value(), parsed.type

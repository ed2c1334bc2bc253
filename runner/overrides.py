"""Overrides as a person types them, applied to a config that is composed already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType

from runner.cli import no_such_option
from runner.config import JobConfig, defaults
from runner.errors import ConfigError
from runner.parsing import conf_dir, parse

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is


def with_overrides(config: JobConfig, overrides: Sequence[str]) -> JobConfig:
    """``config`` with each ``key.of.it=value`` in ``overrides``; ``swarm_size=N`` is its number of workers.

    A group's option, as ``kv_mode=guided``, takes the place of all of the group before single keys change it,
    wherever it stands.

    Raises:
        ConfigError: there is no such key or option, or the value is wrong.
    """
    values = asdict(config)
    for override in sorted(overrides, key=lambda override: "." in _parsed(override)[0]):
        key, value, _ = _parsed(override)
        if isinstance(value, str) and isinstance(values.get(key), dict):
            values[key] = option(key, value)
        else:
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


def option(group: str, name: str) -> dict[str, Any]:
    """One option of a group over the group's defaults, as Hydra composes it where it stands alone.

    Raises:
        ConfigError: there is no such option.
    """
    folder = conf_dir() / group
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(no_such_option(group, name, sorted(file.stem for file in folder.glob("*.yaml"))))
    return {**defaults()[group], **(yaml.load(path.read_text(), Loader=_Loader) or {})}


@cache
def _parsed(override: str) -> tuple[str, Any, OverrideType]:
    """The key, the value and what is done, read as Hydra reads them: ``on`` is a word, not a truth."""
    parsed = OverridesParser.create().parse_override(override)
    return str(parsed.key_or_group), parsed.value(), parsed.type

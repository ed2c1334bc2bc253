"""A grid of jobs from one command line, without composing every one of them.

Hydra composes a job in a tenth of a second, planning one takes a ten-thousandth. So Hydra composes the first job
of a grid, and every value of an axis is read and checked once: a cell is the base with the parts of its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, open_dict

from runner.config import JobConfig, defaults
from runner.errors import ConfigError
from runner.overrides import change, option
from runner.parsing import conf_dir, parse


@dataclass(frozen=True)
class Cell:
    """One job of a grid: the values of its axes as a person types them, and its config."""

    overrides: tuple[str, ...]
    config: JobConfig


@dataclass(frozen=True)
class Grid:
    """What a command line with ``-m`` asks for.

    Attributes:
        first: the first cell as Hydra composed it, with the command's own keys.
        folder: where a sweep keeps its results.
        axes: the overrides that have several values, with their values.
    """

    first: DictConfig
    folder: Path
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    _fixed: tuple[str, ...]

    def cells(self, base: JobConfig) -> Iterator[Cell]:
        """Every combination of the axes' values, the last axis fastest, as Hydra sweeps.

        Args:
            base: ``first`` as a job.

        Raises:
            ConfigError: a value is wrong, or names no option.
        """
        parts = _Parts(base, self._fixed)
        keys = [key for key, _ in self.axes]
        for values in itertools.product(*(values for _, values in self.axes)):
            overrides = tuple(f"{key}={value}" for key, value in zip(keys, values, strict=True))
            yield Cell(overrides, parts.config(overrides))


def expand(arguments: Sequence[str], config_name: str) -> Grid:
    """The grid of Hydra overrides in which any may have several values.

    Raises:
        HydraException: an override that does not parse or compose.
        ConfigError: several values of what is no part of a job, or an axis without any.
    """
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf_dir().resolve())):
        # The loader knows the options that a glob stands for.
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(list(arguments))
        axes = tuple(
            (_key(o), tuple(map(str, o.sweep_string_iterator()))) for o in parsed if o.is_sweep_override()
        )
        for key, values in axes:
            if not values:
                raise ConfigError(f"{key}: the sweep has no values; list them with commas between")
            if _name(key).split(".")[0] not in defaults():
                raise ConfigError(f"{key}: a plan sweeps keys and groups of a job; give one {key} a command")
        fixed = tuple(str(o.input_line) for o in parsed if not o.is_sweep_override())
        first = [*fixed, *(f"{key}={values[0]}" for key, values in axes)]
        composed = hydra.compose(config_name, first, return_hydra_config=True)
    folder = Path(composed.hydra.sweep.dir)
    with open_dict(composed):
        del composed["hydra"]
    return Grid(composed, folder, axes, fixed)


def _key(override: Override) -> str:
    return str(override.input_line).partition("=")[0]


class _Parts:
    """The parts of a job's config, each read and checked once for every combination of values it depends on."""

    def __init__(self, base: JobConfig, fixed: Sequence[str]) -> None:
        self._base, self._fixed = base, [override for override in fixed if "." in _name(override)]
        self._made: dict[tuple[str, ...], Any] = {}

    def config(self, overrides: Sequence[str]) -> JobConfig:
        """The job with ``overrides``.

        Raises:
            ConfigError: one of them is wrong.
        """
        of_part: dict[str, list[str]] = {}
        for override in overrides:
            of_part.setdefault(_name(override).split(".")[0], []).append(override)
        return replace(self._base, **{part: self._part(part, tuple(o)) for part, o in of_part.items()})

    def _part(self, part: str, overrides: tuple[str, ...]) -> Any:
        if overrides not in self._made:
            self._made[overrides] = self._make(part, overrides)
        return self._made[overrides]

    def _make(self, part: str, overrides: Sequence[str]) -> Any:
        present = getattr(self._base, part)
        group = is_dataclass(present) and not isinstance(present, type)
        values = {part: asdict(present) if group else present}
        for override in overrides:
            if group and _name(override) == part:
                values[part] = option(part, override.partition("=")[2])
                # What was fixed for the group holds for each of its options.
                for fixed in self._fixed:
                    if _name(fixed).startswith(f"{part}."):
                        change(values, fixed)
            else:
                change(values, override)
        return getattr(parse(JobConfig, {part: values[part]}), part)


def _name(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")

"""Flash attention on or off: on by default, off where this machine was measured to be faster without it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kvcache import budget
from runner.config import JobConfig
from runner.kv_mode import KvModeConfig
from runner.planning.hardware.cpu import cpu_name

Ratios = Mapping[str, float]
"""Measured total time with flash attention over the time without, by :attr:`Shape.key`."""


@dataclass(frozen=True)
class Shape:
    """A job as far as the choice depends on it; ``prompt_tokens`` counts by its power of two."""

    cpu: str
    n_threads: int
    model: str
    kv_type_k: str
    kv_type_v: str
    workers: int
    prompt_tokens: int

    @property
    def key(self) -> str:
        """A text that is the same for shapes that one measurement speaks for."""
        values = asdict(self) | {"prompt_tokens": max(self.prompt_tokens, 1).bit_length()}
        return json.dumps(values, sort_keys=True)


def shape_of(config: JobConfig, prompt_tokens: int, n_threads: int) -> Shape:
    """The job as far as the choice of flash attention depends on it."""
    return Shape(
        cpu=cpu_name(),
        n_threads=n_threads,
        model=config.model.path or config.model.name,
        kv_type_k=config.kv_mode.k,
        kv_type_v=config.kv_mode.v,
        workers=config.swarm_size.workers,
        prompt_tokens=prompt_tokens,
    )


def choose(
    setting: Literal["auto", "on", "off"], kv_mode: KvModeConfig, shape: Shape, ratios: Ratios
) -> bool:
    """Whether the context uses flash attention.

    ``auto`` is off where a policy looks at attention, which it does not write down. Else it is on, unless
    ``ratios`` holds a total time on/off above 1 for this shape and V is not quantised: a quantised V needs it.
    """
    if setting != "auto":
        return setting == "on"
    if kv_mode.needs == "attention":
        return False
    return budget.is_quantised(kv_mode.v) or not ratios or ratios.get(shape.key, 0.0) <= 1.0


def remember(measured: Path, shape: Shape, total_ratio: float) -> None:
    """Keep the measured total time with flash attention over the time without."""
    ratios = read(measured) | {shape.key: total_ratio}
    measured.parent.mkdir(parents=True, exist_ok=True)
    part = measured.with_name(f"{measured.name}.{os.getpid()}.part")
    part.write_text(json.dumps(ratios, indent=1, sort_keys=True))
    part.replace(measured)


def read(measured: Path) -> dict[str, float]:
    """The ratios kept in ``measured``; none where there is no such file."""
    try:
        ratios = json.loads(measured.read_text())
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in ratios.items() if isinstance(v, float)} if isinstance(ratios, dict) else {}

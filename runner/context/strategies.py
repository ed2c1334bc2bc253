"""The context strategy that a config names."""

from __future__ import annotations

from pathlib import Path

from runner.context.base import Strategy
from runner.context.compress import Compress
from runner.context.full import Full
from runner.strategy_config import StrategyConfig


def strategy_of(config: StrategyConfig, cache: Path) -> Strategy:
    """What ``config`` names; what is to be used again goes below ``cache`` unless it names a folder."""
    if config.name == "full":
        return Full()
    folder = Path(config.folder).expanduser() if config.folder is not None else cache / "context"
    return Compress(config.compress, folder)

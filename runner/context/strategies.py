"""The context strategy that a config names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.context.auto import Auto
from runner.context.base import Shortening, Strategy
from runner.context.compress import Compress
from runner.context.full import Full
from runner.context.rag import Rag
from runner.prompts import Prompt
from runner.retrieval import is_installed, needs_extra
from runner.strategy_config import StrategyConfig


def strategy_of(config: StrategyConfig, prompts: Sequence[Prompt], cache: Path) -> Strategy:
    """What ``config`` names, for ``prompts``; it keeps things below ``cache`` unless the config names a folder."""
    if config.name == "full":
        return Full()
    folder = Path(config.folder).expanduser() if config.folder is not None else cache / "context"
    compress, rag = Compress(config.compress, folder), Rag(config.rag, folder)
    if config.name == "auto":
        strategies: tuple[Shortening, ...] = (rag, compress) if is_installed() else (compress,)
        return Auto(strategies, prompts)
    return rag if config.name == "rag" else compress


def check_strategy(config: StrategyConfig) -> None:
    """Refuse, before anything is fetched, a strategy whose libraries are not here.

    Raises:
        ConfigError: the ``rag`` extra is not installed.
    """
    if config.name == "rag" and not is_installed():
        raise needs_extra()

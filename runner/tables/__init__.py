"""A job's tables: ``TableWriter`` writes them as things happen, ``load`` reads any folder of them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.tables.schemas import KEYS, SCHEMAS
from runner.tables.writer import TableWriter

if TYPE_CHECKING:
    from runner.tables.reader import Tables, load

__all__ = ["KEYS", "SCHEMAS", "TableWriter", "Tables", "load"]


def __getattr__(name: str) -> Any:
    """``load`` and ``Tables`` when they are asked for: they need pandas, which takes longer than a whole plan."""
    if name not in ("Tables", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner.tables import reader

    return getattr(reader, name)

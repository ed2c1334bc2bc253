"""A job's tables: ``TableWriter`` writes them as things happen, ``load`` reads any folder of them back."""

from __future__ import annotations

from runner.tables.reader import Tables, load
from runner.tables.schemas import KEYS, SCHEMAS
from runner.tables.writer import TableWriter

__all__ = ["KEYS", "SCHEMAS", "TableWriter", "Tables", "load"]

"""One table of one job folder: Parquet of earlier runs and the journal since, read and compacted as one."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runner.errors import OutputError
from runner.tables.journal import output_error, read_journal
from runner.tables.schemas import KEYS, SCHEMAS


def parquet_path(tables: Path, table: str) -> Path:
    """Where ``table`` lies once its job has ended."""
    return tables / f"{table}.parquet"


def journal_path(tables: Path, table: str) -> Path:
    """Where ``table`` lies while its job runs, and after a kill."""
    return tables / f"{table}.jsonl"


def in_key_order(table: str, arrow: pa.Table) -> pa.Table:
    """``arrow`` sorted by the table's key, rows of equal key in the order they came."""
    return arrow.sort_by([(key, "ascending") for key in KEYS[table]])


def last_of_each_key(table: str, arrow: pa.Table) -> pa.Table:
    """``arrow`` with only the last of the rows that share the table's key."""
    keys = arrow.select(KEYS[table])
    last = {
        key: row for row, key in enumerate(zip(*(column.to_pylist() for column in keys.columns), strict=True))
    }
    return arrow if len(last) == len(arrow) else arrow.take(pa.array(sorted(last.values()), pa.int64()))


@dataclass(frozen=True)
class Reading:
    """What a table's files hold: the last row of each key, the damaged journal lines that were dropped, and
    the columns that a newer version wrote and this one leaves out.
    """

    rows: pa.Table
    dropped: int
    unknown: list[str]


def _damaged(path: Path, error: Exception) -> OutputError:
    said = str(error).splitlines()[0]
    return OutputError(f"{path}: not readable as Parquet ({said}); move it away and run again")


def unknown_columns(tables: Path, table: str) -> list[str]:
    """Columns that the Parquet has and this version's schema has not.

    Raises:
        OutputError: the Parquet is damaged.
    """
    path = parquet_path(tables, table)
    try:
        names = pq.read_schema(path).names if path.is_file() else []
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    return [name for name in names if name not in SCHEMAS[table].names]


def _as_schema(stored: pa.Table, schema: pa.Schema) -> pa.Table:
    if stored.schema.equals(schema):
        return stored
    columns = [
        stored[field.name].cast(field.type)
        if field.name in stored.column_names
        else pa.nulls(len(stored), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def read_table(tables: Path, table: str) -> Reading:
    """One table of the job folder that ``tables`` lies in.

    Raises:
        OutputError: the Parquet is damaged.
    """
    schema = SCHEMAS[table]
    # In this order, a writer that compacts in between shows a row twice rather than not at all.
    recent, dropped = read_journal(journal_path(tables, table), table)
    path = parquet_path(tables, table)
    if not path.is_file():
        return Reading(last_of_each_key(table, recent), dropped, [])
    try:
        stored = pq.ParquetFile(path).read(use_threads=False)
        names = stored.column_names
        rows = pa.concat_tables([_as_schema(stored, schema), recent])
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    unknown = [name for name in names if name not in schema.names]
    return Reading(last_of_each_key(table, rows) if len(recent) else rows, dropped, unknown)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def compact(tables: Path, table: str) -> int:
    """Move the journal's rows into the Parquet; returns how many damaged lines were dropped.

    Cut short between any two steps, what is on disk still reads as the same rows.

    Raises:
        OutputError: the Parquet is damaged or cannot be written; the journal stays.
    """
    journal, target = journal_path(tables, table), parquet_path(tables, table)
    if not journal.is_file():
        return 0
    reading = read_table(tables, table)
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as sink:
            pq.write_table(in_key_order(table, reading.rows), sink, compression="zstd")
            sink.flush()
            os.fsync(sink.fileno())
        part.replace(target)
        # The rename must be on disk before the only other copy of the rows goes.
        _sync_folder(tables)
        journal.unlink()
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise output_error(target, error) from error
    return reading.dropped

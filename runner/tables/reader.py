"""Every job below a folder as tidy pandas frames, whether it ended, runs or was killed."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from runner.errors import OutputError
from runner.tables.schemas import SCHEMAS
from runner.tables.store import in_key_order, journal_path, last_of_each_key, read_table

_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype(), pa.bool_(): pd.BooleanDtype()}
_OF_ONE_RUN = {"jobs", "plans", "plan_steps", "growth", "traces"}
_REQUIRED: dict[pa.DataType, Any] = {pa.int64(): "int64", pa.uint64(): "uint64", pa.bool_(): "bool"}


@dataclass(frozen=True, eq=False, repr=False)
class Tables:
    """One frame a table, sorted by the table's key; columns and dtypes never depend on the rows.

    Text is ``object`` with None, floats are ``float64`` with NaN, integers and booleans are pandas' nullable
    types where the schema allows null and numpy's where it does not. A list of floats is a float64 array, None
    where it is unknown.
    """

    jobs: pd.DataFrame
    plans: pd.DataFrame
    plan_steps: pd.DataFrame
    prompts: pd.DataFrame
    stages: pd.DataFrame
    excerpts: pd.DataFrame
    generations: pd.DataFrame
    votes: pd.DataFrame
    growth: pd.DataFrame
    evictions: pd.DataFrame
    survivors: pd.DataFrame
    scores: pd.DataFrame
    traces: pd.DataFrame

    def __repr__(self) -> str:
        """How many rows each table has."""
        rows = (f"{field.name}={len(getattr(self, field.name))}" for field in fields(self))
        return f"Tables({', '.join(rows)})"


def load(folder: str | Path) -> Tables:
    """The tables of every job in or below ``folder``.

    Within one job folder the last row of a key counts. A job that was run in several folders has the same
    answers in each: they are joined by key, while its ``jobs``, ``plans``, ``plan_steps``, ``growth`` and
    ``traces`` come from one run, the latest that finished if one did. Damage is left out with a warning that
    names the file: a line that a killed run tore, a Parquet file that cannot be read.

    Raises:
        OutputError: there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "there is no such folder"
        raise OutputError(f"{root}: {what}; name the output folder of a job or sweep")
    found = _tables_folders(root)
    frames, repeats = {}, {}
    for table in SCHEMAS:  # `jobs` comes first
        parts, damage = _read_all(found, table)
        if table == "jobs":
            repeats = _repeats(parts)
        frames[table] = _frame(table, _join(table, parts, repeats))
        for line in damage:
            warnings.warn(line, stacklevel=2)
    return Tables(**frames)


def _tables_folders(root: Path) -> list[Path]:
    """Every ``tables/`` at or below ``root``, in a stable order."""
    return sorted(path for where, _, _ in os.walk(root.absolute()) if (path := Path(where)).name == "tables")


def _read_all(found: list[Path], table: str) -> tuple[dict[Path, pa.Table], list[str]]:
    """The rows of ``table`` by job folder, and a line for everything that had to be left out."""
    parts, damage = {}, []
    for tables in found:
        try:
            reading = read_table(tables, table)
        except OutputError as error:
            damage.append(f"{error}; its rows are missing here")
            continue
        parts[tables] = reading.rows
        if reading.dropped:
            path = journal_path(tables, table)
            damage.append(
                f"{path}: {reading.dropped} damaged line(s) dropped, torn when the run was cut short"
            )
        if reading.unknown:
            damage.append(f"{tables}: {table} has columns from a newer kvswarm: {', '.join(reading.unknown)}")
    return parts, damage


def _repeats(jobs: dict[Path, pa.Table]) -> dict[Path, list[str]]:
    """By folder, the jobs that are to be read from another one."""
    runs: dict[str, list[tuple[bool, str, Path]]] = {}
    for where, rows in jobs.items():
        for row in rows.select(["job_id", "status", "started_at"]).to_pylist():
            runs.setdefault(row["job_id"], []).append(
                (row["status"] == "done", row["started_at"] or "", where)
            )
    repeats: dict[Path, list[str]] = {}
    for job_id, several in runs.items():
        for _, _, where in sorted(several)[:-1]:
            repeats.setdefault(where, []).append(job_id)
    return repeats


def _join(table: str, parts: dict[Path, pa.Table], repeats: dict[Path, list[str]]) -> pa.Table:
    """One row a key, of the run that counts where several wrote it."""
    first, then = [SCHEMAS[table].empty_table()], []
    for where, rows in parts.items():
        repeated = pc.is_in(rows["job_id"], pa.array(repeats.get(where, []), pa.string()))
        then.append(rows.filter(pc.invert(repeated)))
        if table not in _OF_ONE_RUN:
            first.append(rows.filter(repeated))
    return last_of_each_key(table, pa.concat_tables(first + then))


def _frame(table: str, rows: pa.Table) -> pd.DataFrame:
    arrow = in_key_order(table, rows)
    return pd.DataFrame({field.name: _column(field, arrow[field.name]) for field in SCHEMAS[table]})


def _column(field: pa.Field, values: pa.ChunkedArray) -> pd.Series[Any]:
    series: pd.Series[Any]
    if pa.types.is_list(field.type):
        lists = values.to_pylist()
        series = pd.Series([None if x is None else np.array(x, np.float64) for x in lists], dtype=object)
    elif pa.types.is_string(field.type):
        # Named, since pandas 2 and 3 infer different types and hold null differently.
        series = pd.Series(values.to_numpy(), dtype=object)
    elif field.type in _NULLABLE:
        series = values.to_pandas(types_mapper=_NULLABLE.get)
        series = series if field.nullable else series.astype(_REQUIRED[field.type])
    else:
        series = values.to_pandas()
    return series

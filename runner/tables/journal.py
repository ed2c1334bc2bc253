"""Rows on disk as they happen, a JSON line each: a killed process loses at most the line it was writing."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from runner.errors import OutputError
from runner.tables.schemas import KEYS, SCHEMAS

Row = dict[str, Any]

_INT_RANGE = {pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1)}
_REMEDIES = {
    errno.ENOSPC: "no room on the disk; free some and run again, what was written is kept",
    errno.EDQUOT: "the disk quota is used up; free some and run again, what was written is kept",
    errno.EFBIG: "the file may grow no further here; choose another output folder, what was written is kept",
    errno.ENOTDIR: "a file is where the output folder should be; choose another output folder",
    errno.EEXIST: "a file is where the output folder should be; choose another output folder",
    errno.EACCES: "permission denied; change its owner or mode, or choose another output folder",
    errno.EPERM: "permission denied; change its owner or mode, or choose another output folder",
    errno.EROFS: "the file system is read-only; choose another output folder",
}


def output_error(path: Path, error: OSError) -> OutputError:
    """``error`` on ``path`` in a person's words, with the remedy."""
    said = error.strerror or str(error)
    return OutputError(f"{path}: {_REMEDIES.get(error.errno or 0, f'{said}; choose another output folder')}")


def _text(value: str) -> str:
    """``value`` as valid Unicode: surrogate pairs joined, a lone one replaced, since Parquet holds UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _cell(field: pa.Field, value: Any) -> Any:
    """``value`` as ``field`` holds it; None and NaN are null. Raises ValueError for another type."""
    if isinstance(value, np.generic):
        value = value.item()
    if pa.types.is_list(field.type) and isinstance(value, list | tuple | np.ndarray):
        return [_cell(field.type.value_field.with_name(field.name), item) for item in value]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        if field.nullable:
            return None
    elif pa.types.is_string(field.type):
        if isinstance(value, str):
            return _text(value)
    elif pa.types.is_boolean(field.type):
        if isinstance(value, bool):
            return value
    elif isinstance(value, int) and not isinstance(value, bool):
        if pa.types.is_floating(field.type):
            with suppress(OverflowError):
                return float(value)
        else:
            low, high = _INT_RANGE[field.type]
            if low <= value <= high:
                return value
    elif isinstance(value, float) and pa.types.is_floating(field.type):
        return value
    raise ValueError(
        f"{field.name}={value!r}: not a {field.type}{'' if field.nullable else ', and required'}"
    )


_PLAIN: dict[pa.DataType, Callable[[Any], bool]] = {
    pa.string(): lambda value: type(value) is str and value.isascii(),
    pa.bool_(): lambda value: type(value) is bool,
    pa.int64(): lambda value: type(value) is int and -(2**63) <= value < 2**63,
    pa.float64(): lambda value: type(value) is float and value == value,
}
"""Whether a value is held as it stands, for the types where that is quickly told."""

_FIELDS = {
    table: [(field, field.name, _PLAIN.get(field.type)) for field in schema]
    for table, schema in SCHEMAS.items()
}


def checked(table: str, row: Row) -> Row:
    """``row`` with every value as the schema of ``table`` holds it; nullable columns may be left out.

    Raises:
        ValueError: an unknown table or column, a wrong type, or a required column that is missing.
    """
    if table not in SCHEMAS:
        raise ValueError(f"{table!r} is no table; there are {', '.join(SCHEMAS)}")
    schema = SCHEMAS[table]
    if unknown := row.keys() - set(schema.names):
        raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
    clean: Row = {}
    for field, name, plain in _FIELDS[table]:
        if name in row or not field.nullable:
            value = row.get(name)
            try:
                # Most values need no second look, and a grid brings a hundred thousand of them.
                clean[name] = value if plain is not None and plain(value) else _cell(field, value)
            except ValueError as error:
                raise ValueError(f"{table}.{error}") from None
    return clean


class Journal:
    """The open journal of one table; :meth:`append` may be called from any thread.

    A torn last line of a run that was killed is cut off on opening; ``healed`` says whether there was one.
    """

    def __init__(self, path: Path, *, sync: bool) -> None:
        """Open ``path`` for appending; ``sync`` brings each row to the disk before :meth:`append` returns."""
        self._path = path
        self._sync = sync
        self._lock = threading.Lock()
        try:
            self._file = path.open("ab", buffering=0)
            try:
                self.healed = self._heal()
                self._size = os.fstat(self._file.fileno()).st_size
            except OSError:
                self._file.close()
                raise
        except OSError as error:
            raise output_error(path, error) from error

    def _heal(self) -> bool:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            return False
        content = self._path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end == len(content):
            return False
        if _parse(content[end:]) is None:
            self._file.truncate(end)
            return True
        self._file.write(b"\n")
        return False

    def append(self, *rows: Row) -> None:
        """Write ``rows``; when this returns their lines are with the kernel, and with ``sync`` on the disk.

        Raises:
            OutputError: they could not be written; the rows before them are untouched.
        """
        lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() for row in rows]
        with self._lock:
            if self._file.closed:
                raise ValueError(f"{self._path}: the writer is closed")
            try:
                self._write(b"\n".join(lines) + b"\n")
                if self._sync:
                    os.fsync(self._file.fileno())
            except OSError as error:
                raise output_error(self._path, error) from error

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # Half a line would swallow the next row, should there be room again.
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Refuse further rows; closing twice is fine."""
        with self._lock:
            self._file.close()


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_journal(path: Path, table: str) -> tuple[pa.Table, int]:
    """The rows of a journal in the order they were written, and how many damaged lines were dropped.

    A file that is not there, or is no regular file, has no rows.
    """
    schema, keys = SCHEMAS[table], KEYS[table]
    try:
        content = path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:  # compacted since the line before
        content = b""
    except OSError as error:
        raise output_error(path, error) from error
    if not content:
        return schema.empty_table(), 0
    parsed = [_parse(line) for line in content.split(b"\n") if line]
    rows = [row for row in parsed if row is not None and all(row.get(key) is not None for key in keys)]
    try:
        arrow = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OverflowError):
        rows = [clean for row in rows if (clean := _conforming(table, row)) is not None]
        arrow = pa.Table.from_pylist(rows, schema=schema)
    return arrow, len(parsed) - len(rows)


def _conforming(table: str, row: Row) -> Row | None:
    known = set(SCHEMAS[table].names)
    try:
        return checked(table, {name: value for name, value in row.items() if name in known})
    except ValueError:
        return None

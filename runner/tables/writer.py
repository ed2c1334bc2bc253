"""The one writer of a job's tables: rows are journalled as they happen and end as Parquet."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.errors import OutputError
from runner.tables.journal import Journal, checked, output_error
from runner.tables.schemas import SCHEMAS
from runner.tables.store import compact, journal_path, unknown_columns

_log = logging.getLogger(__name__)

# Traces come ten times a second; losing the last of them with the power costs nobody an answer.
_NOT_SYNCED = {"traces"}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class TableWriter:
    """Writes the tables of one job folder; a context manager, one a folder at a time, any number of threads.

    Opening a folder whose last run was killed carries on with its journals.
    """

    def __init__(self, folder: Path) -> None:
        """Make and claim ``folder/tables``.

        Raises:
            OutputError: the folder cannot be written, another run is writing it, a newer kvswarm wrote it,
                or a Parquet file in it is damaged.
        """
        self.tables = Path(folder) / "tables"
        self._journals: dict[str, Journal] = {}
        self._lock = threading.Lock()
        self._closed = False
        try:
            self.tables.mkdir(parents=True, exist_ok=True)
            self._claim = _claim(self.tables / ".lock")
        except OSError as error:
            raise output_error(self.tables, error) from error
        try:
            for table in SCHEMAS:
                if unknown := unknown_columns(self.tables, table):
                    raise OutputError(
                        f"{self.tables}: {table} has columns that this version does not know "
                        f"({', '.join(unknown)}); update kvswarm or choose another output folder"
                    )
                if journal_path(self.tables, table).exists():
                    self._journals[table] = self._open(table)
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> TableWriter:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; while an error is on its way a failure to do so is only logged."""
        try:
            self.close()
        except OutputError as failure:
            if error is None:
                raise
            _log.warning("%s", failure)  # what broke first is what a person must hear

    def _open(self, table: str) -> Journal:
        path = journal_path(self.tables, table)
        journal = Journal(path, sync=table not in _NOT_SYNCED)
        if journal.healed:
            _log.warning("%s: the last line was torn and is dropped", path)
        return journal

    def append(self, table: str, /, **row: Any) -> None:
        """Write one row; a row with the key of an earlier one replaces it as a whole.

        Columns that may be null can be left out; NaN is null; numpy scalars are welcome. A lone surrogate
        in a text becomes U+FFFD.

        Raises:
            ValueError: an unknown table or column, a wrong type, a missing key, or a closed writer.
            OutputError: the row could not be written; what was written before stays.
        """
        clean = checked(table, row)
        self._journal(table).append(clean)

    def extend(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write many rows that came at once; see :meth:`append`.

        Raises:
            ValueError: as :meth:`append`; then none of them is written.
            OutputError: they could not be written; what was written before stays.
        """
        clean = [checked(table, row) for row in rows]
        if clean:
            self._journal(table).append(*clean)

    def _journal(self, table: str) -> Journal:
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.tables}: the writer is closed")
            journal = self._journals.get(table)
            if journal is None:
                journal = self._journals[table] = self._open(table)
            return journal

    def close(self) -> None:
        """Compact every journal to Parquet and let the folder go; closing twice is fine.

        Raises:
            OutputError: a table could not be compacted; its journal stays and is read instead.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        failure: OutputError | None = None
        try:
            for table, journal in self._journals.items():
                journal.close()
                try:
                    if dropped := compact(self.tables, table):
                        path = journal_path(self.tables, table)
                        _log.warning("%s: %d damaged line(s) dropped", path, dropped)
                except OutputError as error:
                    failure = failure or error
        finally:
            self._release()
        if failure is not None:
            raise failure

    def _release(self) -> None:
        for journal in self._journals.values():
            journal.close()
        os.close(self._claim)


def _claim(path: Path) -> int:
    """An open descriptor that holds the folder until it is closed, by the kernel if need be."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise OutputError(
            f"{path.parent}: another run (process {owner}) is writing here; "
            "wait until it ends or choose another output folder"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
        _log.warning("%s: this file system has no locks; let one run at a time write here", path.parent)
    with suppress(OSError):  # the number only serves the message above
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor

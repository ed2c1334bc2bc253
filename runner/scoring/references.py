"""A reference's logits of each text, in a file, so that a sweep computes them once and holds none in memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from runner.errors import OutputError
from runner.scoring.measure import Logits, Measured, Rows, measure


@dataclass(frozen=True)
class ReferenceKey:
    """What a reference's logits depend on: the model, the tokens, the first that is scored, and how it ran."""

    model_digest: str
    tokens: tuple[int, ...]
    first: int
    flash_attn: bool
    n_ubatch: int
    n_threads: int

    def __str__(self) -> str:
        """How it ran, in words."""
        flash = "on" if self.flash_attn else "off"
        return f"f16, nothing evicted, flash attention {flash}, micro-batch {self.n_ubatch}"


@dataclass(frozen=True, eq=False)
class Reference:
    """A text under the reference: its ``logits`` float32 ``[n, n_vocab]`` lie in a file and are mapped.

    ``measured`` is what they make of their own tokens, ``floor`` what the reference in another micro-batch size
    makes of them, against this one; None until it was measured.
    """

    logits: Logits
    measured: Measured
    floor: Measured | None = None


class References:
    """The references of a session, in a temporary folder that :meth:`close` removes."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[ReferenceKey, Reference] = {}

    def __contains__(self, key: ReferenceKey) -> bool:
        return key in self._known

    def __getitem__(self, key: ReferenceKey) -> Reference:
        return self._known[key]

    def add(self, key: ReferenceKey, rows: Rows) -> None:
        """Keep the reference of ``key``, whose ``rows`` are written as they come.

        Raises:
            OutputError: the temporary folder has no room for them.
        """
        path = self._path()
        try:
            with path.open("wb") as file:
                measured = measure(_written(rows, file))
            shape = (len(measured), path.stat().st_size // (4 * max(len(measured), 1)))
            logits = np.memmap(path, np.float32, mode="r", shape=shape)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OutputError(
                f"{path.parent}: {error.strerror or error}, while a reference's logits were kept there; set "
                "TMPDIR to a folder with more room, scoring.last=N to score fewer tokens, or "
                "scoring.reference=false"
            ) from None
        self._known[key] = Reference(logits, measured)

    def add_floor(self, key: ReferenceKey, rows: Rows) -> None:
        """Measure the floor of a reference that is kept: ``rows`` are its own in another micro-batch size."""
        reference = self._known[key]
        self._known[key] = replace(reference, floor=measure(rows, reference))

    def close(self) -> None:
        """Forget everything and remove the folder."""
        self._known.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _path(self) -> Path:
        if self._folder is None:
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="kvswarm-")
            except OSError as error:
                raise OutputError(
                    f"no temporary folder can be made ({error.strerror}); set TMPDIR, or scoring.reference=false"
                ) from None
        return Path(self._folder.name) / f"{len(self._known)}.logits"


def _written(rows: Rows, file: BinaryIO) -> Rows:
    """``rows``, each piece of logits written before it is handed on."""
    for logits, tokens in rows:
        file.write(np.ascontiguousarray(logits, np.float32).data)
        yield logits, tokens

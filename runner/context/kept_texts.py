"""What a model wrote greedily it would write again: requests are answered once, and from disk after that."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runner.context.base import Engine, Request, Written
from runner.errors import OutputError


def write_once(
    folder: Path, engine: Engine, requests: Sequence[Request], *, max_tokens: int, together: int
) -> tuple[list[Written], bool]:
    """What ``engine`` writes for ``requests``, and whether it had been kept in ``folder`` from before.

    Requests are the same where their texts, the weights and ``max_tokens`` are, whatever their ids: any job may
    keep them for any other, and two at once do not harm each other. What was kept took no tokens this time. A
    file that is damaged counts as none.

    Raises:
        OutputError: ``folder`` cannot be written; before anything is generated, where that can be known.
        KvswarmError: as :meth:`Engine.generate`; nothing is kept then.
    """
    if not requests:
        return [], False
    path = folder / f"{_key(engine.model_digest, requests, max_tokens)}.json"
    kept = _read(path, len(requests))
    if kept is not None:
        return kept, True
    temporary = _reserve(path)
    try:
        written = engine.generate(requests, max_tokens=max_tokens, together=together)
        try:
            temporary.write_text(json.dumps([[each.text, each.cut] for each in written]))
            temporary.replace(path)
        except OSError as error:
            raise _refused(folder, error) from None
    finally:
        temporary.unlink(missing_ok=True)
    return written, False


def _key(model_digest: str, requests: Sequence[Request], max_tokens: int) -> str:
    """Of all that decides what is written: what the requests say needs no version of its own."""
    said = [[request.before, request.text, request.after] for request in requests]
    return hashlib.sha256(json.dumps([model_digest, max_tokens, said]).encode()).hexdigest()[:32]


def _read(path: Path, count: int) -> list[Written] | None:
    """The ``count`` answers in a file; None where there is none, or it is not what was written there."""
    with contextlib.suppress(OSError, ValueError):
        rows = json.loads(path.read_text())
        if (
            isinstance(rows, list)
            and len(rows) == count
            and all(isinstance(row, list) and list(map(type, row)) == [str, bool] for row in rows)
        ):
            return [Written(text, prefill_tokens=0, generated_tokens=0, cut=cut) for text, cut in rows]
    return None


def _reserve(path: Path) -> Path:
    """An empty file beside ``path``: minutes of generating are not to end at a folder that cannot be written.

    Raises:
        OutputError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{path.stem}-", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise _refused(path.parent, error) from None
    os.close(handle)
    return Path(name)


def _refused(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"{folder}: summaries cannot be kept there ({error.strerror or error}); make it a folder that can be "
        "written, or name another one in context_strategy.folder"
    )

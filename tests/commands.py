"""Typing commands as a person does, in a folder of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def runner(
    folder: Path, *arguments: str, module: str = "runner", **options: object
) -> subprocess.CompletedProcess[str]:
    """``python -m runner ...`` with ``folder`` as the working directory."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def one_line(done: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """The single line on stderr of a command that was refused."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line

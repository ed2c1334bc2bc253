"""Weights from Hugging Face, by its own client against a server on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONTENT = b"GGUF" + bytes(range(256)) * 16
SHA = hashlib.sha256(CONTENT).hexdigest()
# The client reads its environment when it is imported, so every case is a process.
FETCH = """
import sys
from runner.config import ModelConfig
from runner.parsing import parse
from runner.errors import ModelError
from runner.models import fetch, locate
model = parse(ModelConfig, {"name": "remote", "source": eval(sys.argv[1])})
try:
    print(fetch(model))
except ModelError as error:
    print("ModelError", error, locate(model))
"""

Run = Callable[..., str]


@pytest.fixture
def run(cache: Path, server, tmp_path: Path) -> Run:
    def run(file: str = "w.gguf", offline: bool = False, endpoint: str = server.url, **source: object) -> str:
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf")}
        environment |= {"HF_HUB_OFFLINE": "1"} if offline else {}
        source = {"repo": "someone/model", "file": file, **source}
        done = subprocess.run(
            [sys.executable, "-c", FETCH, repr(source)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_a_file_is_fetched_once_and_found_offline(run: Run, server):
    server.files["/someone/model/resolve/main/w.gguf"] = CONTENT
    first = run(size_bytes=len(CONTENT), sha256=SHA)
    assert Path(first).read_bytes() == CONTENT
    asked = len(server.requests)
    assert run(size_bytes=len(CONTENT), sha256=SHA, offline=True) == first
    assert len(server.requests) == asked


def test_every_part_of_a_split_file_comes(run: Run, server):
    for number in (1, 2):
        path = f"/someone/model/resolve/main/Q4/w-0000{number}-of-00002.gguf"
        server.files[path] = CONTENT + bytes([number])
    first = Path(run("Q4/w-00001-of-00002.gguf", size_bytes=2 * len(CONTENT) + 2))
    assert first.name == "w-00001-of-00002.gguf"
    assert (first.parent / "w-00002-of-00002.gguf").read_bytes() == CONTENT + b"\2"


def test_a_wrong_checksum_deletes_the_download(run: Run, server, tmp_path: Path):
    server.files["/someone/model/resolve/main/w.gguf"] = CONTENT
    line = run(sha256="0" * 64)
    assert line.startswith(f"ModelError what came for remote has the sha256 {SHA}, not 000")
    assert line.endswith(" None")
    assert not [
        path for path in (tmp_path / "hf").rglob("*") if path.is_file() and path.read_bytes() == CONTENT
    ]


def test_a_wrong_size_is_seen_before_the_download(run: Run, server):
    server.files["/someone/model/resolve/main/w.gguf"] = CONTENT
    assert f"has {len(CONTENT)} bytes, not 5: nothing was downloaded" in run(size_bytes=5)
    assert ("GET", "/someone/model/resolve/main/w.gguf") not in server.requests, server.requests


def test_a_size_nobody_declared_is_asked_for_and_confirmed(run: Run, server):
    class Large(bytes):
        def __len__(self) -> int:
            return 3_000_000_000

    server.files["/someone/model/resolve/main/w.gguf"] = Large(CONTENT)
    assert "remote would be a download of 3.0 GB: confirm it with fetch=true" in run()
    assert ("GET", "/someone/model/resolve/main/w.gguf") not in server.requests, server.requests


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"offline": True}, "HF_HUB_OFFLINE is set"),
        ({"endpoint": "http://127.0.0.1:9"}, "Hugging Face cannot be reached"),
        ({"file": "other.gguf"}, "Hugging Face has no other.gguf in someone/model"),
        ({"repo": "no/such/repo"}, "no/such/repo is no repository name"),
    ],
)
def test_what_cannot_be_had_is_one_line_with_both_ways(run: Run, cache: Path, case, reason):
    line = run(size_bytes=len(CONTENT), **case)
    assert line.startswith(f"ModelError cannot fetch remote: {reason}")
    assert "model.path=" in line and "python -m runner.models fetch remote" in line
    assert f"{cache}/weights/remote-" in line
    assert "\n" not in line

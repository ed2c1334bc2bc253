"""What the documents print is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import one_line, runner

from runner.parsing import conf_dir

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PLANNING = (ROOT / "docs" / "planning.md").read_text()
USAGE = (ROOT / "docs" / "usage.md").read_text()


def test_the_pandas_example_runs_as_printed(tmp_path: Path) -> None:
    done = runner(tmp_path, "experiment=smoke", "prompts.count=1")
    assert done.returncode == 0, done.stderr
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(block.strip().splitlines()) <= 5
    example = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert example.returncode == 0, example.stderr
    assert all(part in example.stdout for part in ("kv_bytes", "f16", "agreement")), example.stdout


def test_the_refusal_is_the_one_printed(tmp_path: Path) -> None:
    printed = re.search(
        r"\$ python -m runner (model=qwen3_8b hardware\.ram=\S+ prompts.*)\n(error: .*)\n", README
    )
    assert printed
    said = one_line(runner(tmp_path, *printed[1].split()))
    # The number of threads, and with it the scratch, is this machine's; the rest is the job's.
    same = re.compile(
        r"^error: .* does not fit|kv [\d.]+ GiB|kv_mode.k=q8_0 saves [\d.]+ MiB|makes it fit: .*$"
    )
    assert same.findall(said) == same.findall(printed[2])
    assert len(same.findall(said)) == 4


@pytest.mark.parametrize("page", [README, PLANNING], ids=["README", "planning"])
def test_the_plan_is_the_one_printed(page: str, tmp_path: Path) -> None:
    for printed in re.findall(r"\$ (python -m runner\.plan .*(?:\n(?!```).*)*)", page):
        command, *lines = printed.split("\n")
        # The llama-server command and the scratch depend on this machine's threads.
        lines = [
            line
            for line in lines
            if not line.startswith(("llama-server", "overhead", "total", "...", "VRAM"))
        ]
        done = runner(tmp_path, *shlex.split(command)[3:], module="runner.plan")
        assert len(lines) > 10
        assert [line for line in lines if line not in done.stdout.split("\n")] == []


def test_every_option_is_in_the_usage_page() -> None:
    for group in (path for path in conf_dir().iterdir() if path.is_dir()):
        row = next(line for line in USAGE.splitlines() if line.startswith(f"| `{group.name}` |"))
        options = {path.stem for path in group.glob("*.yaml")} - {"custom"}
        assert options == set(re.findall(r"`([^`=]+)`", row.split("|")[2]))


def test_every_command_composes(tmp_path: Path) -> None:
    lines = [line.strip().removeprefix("$ ") for page in (README, PLANNING) for line in page.splitlines()]
    commands = [shlex.split(line)[2:] for line in lines if re.match(r"python -m runner(\.plan)? ", line)]
    assert len(commands) >= 10
    for module, *arguments in commands:
        single = (argument for argument in arguments if argument != "-m")
        done = runner(tmp_path, *single, "--cfg", "job", module=module)
        swept = "-m" in arguments and "add -m" in done.stderr
        assert swept or done.returncode == 0, (arguments, done.stderr)


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"

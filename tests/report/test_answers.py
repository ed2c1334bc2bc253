"""What a sweep that asks questions says in the end, of figures that are known and of real jobs."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import runner
from rich.console import Console
from tiny_models import write_llama

from runner.config import JobConfig, PromptsConfig
from runner.kv_mode import KvModeConfig, ProbeConfig
from runner.report.answers import answered
from runner.report.quality import leaderboard
from runner.tables import TableWriter, load

F16 = KvModeConfig()
GUIDED = KvModeConfig(name="guided", policy="guided", positions="compact", budget=512)


def add(
    writer: TableWriter, job_id: str, mode: KvModeConfig, correct: Sequence[bool | None],
    *, costs: dict[str, Any] | None = None, prompts: PromptsConfig | None = None,
) -> None:  # fmt: skip
    """A job with a vote a prompt."""
    config = replace(JobConfig(), kv_mode=mode, prompts=prompts or PromptsConfig())
    writer.append(
        "jobs", job_id=job_id, status="done", model="smol", model_digest="d",
        config=json.dumps(asdict(config)), **(costs or {}),
    )  # fmt: skip
    writer.append(
        "plans", job_id=job_id, status="fits", budget_cells=mode.budget_cells(9), kv_bytes=2**20 * 3
    )
    for number, right in enumerate(correct):
        writer.append(
            "votes", job_id=job_id, prompt_id=f"p{number}", tally_id="m", rule="majority", winner=str(right),
            votes=1, workers=1, margin=1.0, tie=False, abstained=0, correct=right,
        )  # fmt: skip


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    return {f"{row['mode']}{row['asked']}": row for row in leaderboard(load(folder)).to_dict("records")}


def printed(folder: Path) -> str:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as captured:
        console.print(answered(leaderboard(load(folder))))
    return captured.get()


def test_a_mode_is_judged_by_what_f16_has_right(tmp_path: Path) -> None:
    costs = {"seconds": 30.0, "prefill_s": 20.0, "prefill_tokens": 900, "probe_tokens": 100}
    with TableWriter(tmp_path) as writer:
        add(writer, "a", F16, [True, True, True, True, False, None])
        add(writer, "b", GUIDED, [True, True, True, False, True, None], costs=costs)
        add(writer, "c", replace(GUIDED, budget=256), [True], prompts=PromptsConfig(seed=9))
    found = leaderboard(load(tmp_path))
    assert found["budget"].tolist() == [0, 512, 256]
    f16, guided, unpaired = found.to_dict("records")
    assert (guided["right"], guided["graded"], guided["prompts"]) == (4, 5, 6)
    assert (guided["of_f16"], guided["accuracy"]) == (0.75, 0.8)
    assert 0 <= guided["of_f16_low"] < 0.75 < guided["of_f16_high"] <= 1
    assert (guided["seconds"], guided["prefill_tok_s"], guided["probe_tokens"]) == (30, 45, 100)
    assert np.isnan(f16["of_f16"]) and np.isnan(unpaired["of_f16"])
    text = printed(tmp_path)
    for part in ("all", "4/5", "0.75 (", "3.0", "30", "45", "100"):
        assert part in text, text


def test_columns_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    with TableWriter(tmp_path) as writer:
        add(writer, "a", GUIDED, [None])
    text = printed(tmp_path)
    assert "guided" in text and "512" in text
    assert not any(name in text.splitlines()[1] for name in ("right", "of f16", "tok/s", "probes", "asked"))


def test_prompts_of_another_sort_and_nested_settings_have_rows_of_their_own(tmp_path: Path) -> None:
    two = PromptsConfig(tokens=2000)
    other = replace(GUIDED, probe=ProbeConfig(every=2))
    with TableWriter(tmp_path) as writer:
        add(writer, "a", GUIDED, [True])
        add(writer, "b", replace(GUIDED, survivors=1, show_kept=True), [False], prompts=PromptsConfig(seed=1))
        add(writer, "c", GUIDED, [False], prompts=two)
        add(writer, "d", other, [True], prompts=two)
    found = rows(tmp_path)
    assert {name: row["right"] for name, row in found.items()} == {
        "guided probe.every=1tokens=1000": 1,
        "guided probe.every=1tokens=2000": 0,
        "guided probe.every=2tokens=2000": 1,
    }
    assert found["guided probe.every=1tokens=1000"]["prompts"] == 2
    assert "tokens=2000" in printed(tmp_path)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The experiment as a person runs it, with a model of random weights and a character a token."""
    folder = tmp_path_factory.mktemp("sweep")
    done = runner(
        folder, "-m", "+experiment=guided", f"model.path={write_llama(folder / 'llama.gguf')}", "n_threads=1",
        "prompts.count=3", "prompts.facts=3", "prompts.tokens=1000", "kv_mode=f16,guided", "kv_mode.budget=320",
        "kv_mode.chunk=128",
        "sampling.max_tokens=4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "outputs" / "guided", done.stdout


def test_a_sweep_ends_with_the_answers_of_each_mode(sweep: tuple[Path, str]) -> None:
    folder, said = sweep
    table = said[said.index("questions answered") :]
    assert "right" in table and "probes" in table and "0/3" in table
    f16, guided = leaderboard(load(folder)).to_dict("records")
    assert (f16["mode"], f16["budget"], guided["mode"], guided["budget"]) == ("f16", 0, "guided", 320)
    assert f16["prompts"] == guided["prompts"] == 3
    # A guided document is read for each of its questions, and asked after every chunk.
    assert guided["probe_tokens"] > 0 and f16["probe_tokens"] == 0
    assert guided["kv_bytes"] < f16["kv_bytes"] and guided["prefill_tok_s"] > 0

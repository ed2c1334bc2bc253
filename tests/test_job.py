"""The main job from the command line: what is printed, what is in the tables, and that it comes out the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from commands import runner
from rich.console import Console

from runner import job
from runner.config import JobConfig, PromptsConfig, SamplingConfig, SwarmConfig
from runner.models.catalogue import named
from runner.report.terminal import View
from runner.session import Session
from runner.tables import load

SMALL = ("prompts.count=2", "prompts.tokens=200", "prompts.facts=2", "sampling.max_tokens=12")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A sweep of three cells, the last of which cannot be run."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, runner(folder, "-m", "swarm_size=5", "seed=0,1", "sampling.temperature=0.8,99", *SMALL)


def answers(frame: pd.DataFrame) -> list[tuple[str, int, int, str]]:
    return list(frame[["prompt_id", "worker", "seed", "text"]].itertuples(index=False, name=None))


def test_a_sweep_goes_on_past_a_failure(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = swept
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("done", "failed"))]
    assert [line.split()[0] for line in lines] == ["done", "failed", "done", "failed"]
    assert "sampling.temperature=99" in lines[1] and "less than or equal to 10" in lines[1]
    jobs = load(folder / "outputs").jobs
    assert sorted(jobs["status"]) == ["done", "done", "failed", "failed"]
    assert jobs["reason"][jobs["status"] == "failed"].str.contains("sampling.temperature=99").all()


def test_what_the_tables_hold(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    t = load(swept[0] / "outputs")
    jobs = t.jobs[t.jobs["status"] == "done"]
    assert len(t.prompts) == 4 and len(t.generations) == 20 and len(t.votes) == 4 and len(t.plans) == 2
    assert t.generations.groupby(["job_id", "prompt_id"])["seed"].nunique().tolist() == [5] * 4
    assert (t.generations["generated_tokens"] > 0).all() and (t.generations["mean_logprob"] < 0).all()
    prefilled = t.generations.groupby("job_id")["prefill_tokens"].sum()
    documents = t.prompts.groupby("job_id")[["tokens_sent", "document_tokens"]].agg(["sum", "max"])
    once = documents["tokens_sent"]["sum"] - documents["document_tokens"]["max"]
    assert (
        prefilled.to_dict()
        == once.to_dict()
        == dict(zip(jobs["job_id"], jobs["prefill_tokens"], strict=True))
    )
    assert (t.plans["source"] == "dry_run").all() and (t.plans["status"] == "fits").all()
    assert (t.plans["total_bytes"] <= t.plans["available_bytes"]).all()
    assert {"load", "prefill", "decode", "idle"} >= set(t.traces["phase"])
    assert (t.traces["rss_bytes"] > 50e6).all()
    merged = t.traces.merge(t.plans, on="job_id")
    assert (merged["kv_cells_used"] <= merged["cells"]).all() and merged["active_sequences"].max() == 5
    assert (jobs["peak_rss_bytes"] >= t.traces["rss_bytes"].max()).any()
    right = t.votes.merge(t.prompts, on=["job_id", "prompt_id"])
    assert (right["correct"] == (right["winner"] == right["expected_y"])).all()
    assert json.loads(jobs["config"].iloc[0])["swarm_size"]["workers"] == 5


def test_another_seed_is_another_job(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    t = load(swept[0] / "outputs")
    one, other = (frame for _, frame in t.generations.groupby("job_id"))
    assert set(one["seed"]).isdisjoint(other["seed"])
    assert one["text"].tolist() != other["text"].tolist()
    assert t.prompts["group_id"].nunique() == 4


def test_the_same_job_in_another_process(
    swept: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = runner(tmp_path, "swarm_size=5", "seed=1", "vote=similarity", "trace.hz=3", *SMALL)
    assert done.returncode == 0, done.stderr
    alone, sweep = load(tmp_path), load(swept[0])
    [job_id] = alone.jobs["job_id"]
    same = sweep.generations[sweep.generations["job_id"] == job_id]
    assert answers(alone.generations) == answers(same)
    assert alone.votes["rule"].unique().tolist() == ["similarity"]


def test_the_same_job_twice_in_one_sweep(tmp_path: Path) -> None:
    """Two rules count the same answers: one job, twice the votes, and the second run wrote the same texts."""
    done = runner(
        tmp_path, "-m", "vote=majority,similarity", "swarm_size=3", "prompts.items=[Name a colour.]"
    )
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "outputs" / "default").glob("*/"))
    one, other = (load(folder) for folder in folders)
    assert one.jobs["job_id"].tolist() == other.jobs["job_id"].tolist()
    assert answers(one.generations) == answers(other.generations)
    both = load(tmp_path)
    assert len(both.jobs) == 1 and len(both.generations) == 3
    assert sorted(both.votes["rule"]) == ["majority", "similarity"]


def test_what_a_person_sees(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        json.dumps({"id": "sky", "prompt": "Say [bold] or <b>.", "document": "D."})
        + "\n"
        + json.dumps({"id": "sum", "prompt": "What is 2+2?", "answer": 4})
    )
    done = runner(tmp_path, "prompts.path=p.jsonl", "swarm_size=3", "sampling.max_tokens=6")
    assert done.returncode == 0 and done.stderr == ""
    for part in (
        "smollm2, kv_mode=f16, 3 workers",
        "MiB",
        "Say [bold] or <b>.",
        "question",
        "tables: outputs/runs/",
    ):
        assert part in done.stdout
    tables = tmp_path / done.stdout.strip().splitlines()[-1].removeprefix("tables: ")
    assert {path.stem for path in tables.glob("*.parquet")} >= {
        "jobs",
        "plans",
        "prompts",
        "generations",
        "votes",
    }
    assert not list(tables.glob("*.jsonl"))


def test_a_document_longer_than_a_sliding_window(tmp_path: Path, gemma3: Path) -> None:
    """Gemma's small cache holds a window of the document and one of the prompt, and the plan knows."""
    for more in ((), ("in_flight=2", "prompts.count=4", "prompts.facts=2")):
        done = runner(
            tmp_path, "model=gemma3_270m", "prompts.count=1", "prompts.tokens=700", "swarm_size=5",
            "sampling.max_tokens=4", *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_other_prompts_are_another_job(tmp_path: Path) -> None:
    """Else rows of different runs would be read as one job."""
    few = ("sampling.max_tokens=2", "swarm_size=2")
    (tmp_path / "p.jsonl").write_text('{"prompt": "One?"}\n{"prompt": "Two?"}')
    assert runner(tmp_path, "prompts.path=p.jsonl", "hydra.run.dir=a", *few).returncode == 0
    assert (
        runner(tmp_path, "prompts.path=p.jsonl", "hydra.run.dir=b", "prompts.limit=1", *few).returncode == 0
    )
    t = load(tmp_path)
    assert len(t.jobs) == 2 and len(t.generations) == 6
    assert t.prompts["group_id"].nunique() == 2  # the same group in both
    sums = t.generations.groupby("job_id")[["prefill_tokens", "generated_tokens"]].sum()
    assert sums.to_numpy().tolist() == t.jobs[["prefill_tokens", "generated_tokens"]].to_numpy().tolist()
    assert runner(tmp_path, "prompts.path=p.jsonl", "hydra.run.dir=c", "n_ubatch=64", *few).returncode == 0
    assert len(load(tmp_path).jobs) == 3


def test_ctrl_c_after_the_last_batch_stops_the_sweep_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def pressed_at_the_end() -> Iterator[Callable[[], bool]]:
        yield (tmp_path / "tables" / "votes.jsonl").exists

    monkeypatch.setattr(job, "stop_on_interrupt", pressed_at_the_end)
    config = JobConfig(
        model=named("smollm2"),
        prompts=PromptsConfig(items=["Why?"]),
        sampling=SamplingConfig(max_tokens=2),
        swarm_size=SwarmConfig(workers=1),
    )
    session = Session()
    result = job.run_job(config, tmp_path, session, View(Console(quiet=True)))
    session.close()
    assert result.interrupted
    assert load(tmp_path).jobs["status"].tolist() == ["done"]


def test_the_composed_config_prints(tmp_path: Path) -> None:
    done = runner(tmp_path, "--cfg", "job", "swarm_size=7", "model=qwen35b", "kv_mode=k8v4")
    assert done.returncode == 0
    for part in ("workers: 7", "name: qwen35b", "v: q4_0", "full_attention_interval: 4"):
        assert part in done.stdout


def test_kill_dash_nine_loses_the_group_in_flight_alone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "prompts.count=4", "prompts.tokens=150", "swarm_size=2",
         "sampling.max_tokens=60", "sampling.ignore_eos=true", "hydra.run.dir=out"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    votes = tmp_path / "out" / "tables" / "votes.jsonl"
    deadline = time.monotonic() + 500
    while not (votes.exists() and len(votes.read_text().splitlines()) >= 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    t = load(tmp_path)
    assert t.jobs["status"].tolist() == ["running"]
    assert len(t.votes) >= 2 and len(t.generations) >= 2 * len(t.votes)


def test_the_vote_beats_the_worker(tmp_path: Path) -> None:
    """The default job's claim, at a size that a test can afford."""
    done = runner(tmp_path, "prompts.tokens=400", "prompts.count=4", "sampling.max_tokens=16")
    assert done.returncode == 0, done.stderr
    [row] = load(tmp_path).jobs.to_dict("records")
    assert row["accuracy"] >= row["mean_worker_accuracy"] > 0.5

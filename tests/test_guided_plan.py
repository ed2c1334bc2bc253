"""What a guided job was planned to prefill and to take, and what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import runner
from tiny_models import write_llama

from runner.tables import load

QUESTIONS = [
    '{"id": "a", "document": "%s", "prompt": "How much salt?"}',
    '{"id": "b", "document": "%s", "prompt": "On which day, then?", "probes": ["Which day?", "Day?"]}',
]
SALT = " ".join(f"On day {day} {day * 37 % 91} bales of salt." for day in range(14))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny") / "llama.gguf", extra={"context_length": 1024})


def ran(
    folder: Path, path: Path, *overrides: str, document: str = SALT
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan and the job of two questions about one document."""
    (folder / "p.jsonl").write_text("\n".join(question % document for question in QUESTIONS))
    done = runner(
        folder, "model=custom", f"model.path={path}", "prompts.path=p.jsonl", "n_threads=1", "swarm_size=2",
        "sampling.max_tokens=2", *overrides,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables = load(folder / "outputs")
    [plan], [job] = tables.plans.to_dict("records"), tables.jobs.to_dict("records")
    assert 0 < job["peak_rss_bytes"] <= plan["total_bytes"]
    return plan | {"said": done.stdout + done.stderr}, job


@pytest.mark.parametrize(
    "overrides",
    [
        ("kv_mode.guided.share=group",),
        ("kv_mode.guided.diversify=true", "kv_mode.probe.texts=['{question}','Find: {question}']",
         "kv_mode.probe.every=2", "kv_mode.recent=0.5", "kv_mode.budget=300"),
    ],
)  # fmt: skip
def test_a_job_prefills_what_was_planned(tmp_path: Path, tiny: Path, overrides: tuple[str, ...]) -> None:
    plan, job = ran(tmp_path, tiny, "kv_mode=guided", "kv_mode.budget=192", "kv_mode.chunk=128", *overrides)
    assert job["probe_tokens"] > 50
    assert plan["prefill_tokens"] == job["prefill_tokens"] + job["probe_tokens"]
    other = "question" if "kv_mode.guided.share=group" in overrides else "group"
    assert f"kv_mode.guided.share={other} would prefill " in plan["said"]


def test_a_document_beyond_the_trained_context_is_read_where_that_is_asked_for(
    tmp_path: Path, tiny: Path
) -> None:
    """With the probes that it was planned with, though no mode that probes was asked for."""
    plan, job = ran(tmp_path, tiny, "plan.apply=true", "kv_mode.chunk=64", document=3 * SALT)
    assert (plan["kv_mode"], plan["policy"]) == ("guided", "guided")
    assert "applied: kv_mode=guided kv_mode.chunk=64 kv_mode.budget=" in plan["said"]
    assert job["probe_tokens"] > 50
    assert plan["prefill_tokens"] >= job["prefill_tokens"] + job["probe_tokens"]

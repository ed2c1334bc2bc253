"""Jobs that read with the question in mind, as a person runs them, and what their tables say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import runner
from tiny_models import write_gemma3, write_lfm2, write_qwen35moe

from runner.tables import load

SMALL = (
    "model=custom", "kv_mode=guided", "kv_mode.positions=compact", "kv_mode.budget=160", "kv_mode.chunk=128",
    "kv_mode.interval=8", "swarm_size=3", "n_threads=1", "prompts.count=2", "prompts.facts=2",
    "prompts.tokens=600", "in_flight=1", "sampling.max_tokens=20", "sampling.temperature=3",
)  # fmt: skip


def job(folder: Path, path: Path, *overrides: str) -> dict[str, list[tuple[int, int]]]:
    """Of each prompt, the worker and the prefilled tokens of every answer."""
    done = runner(folder, f"model.path={path}", *SMALL, *overrides)
    assert done.returncode == 0, done.stderr
    tables = load(folder / "outputs")
    [plan] = tables.plans.to_dict("records")
    assert plan["window_tokens"] < 400  # budget, chunk, question and answer, of a document of 550
    assert tables.traces["kv_cells_used"].max() <= plan["cells"]
    assert (tables.evictions["kept_cells"] <= 160).all()
    assert set(tables.evictions["phase"]) == {"prefill", "decode"}
    assert set(tables.generations["status"]) <= {"ok", "truncated"}
    assert len(tables.votes) == 2
    return {
        name: list(zip(rows["worker"].tolist(), rows["prefill_tokens"].tolist(), strict=True))
        for name, rows in tables.generations.groupby("prompt_id", sort=False)
    }


@pytest.mark.parametrize(("write", "overrides", "read"), [
    (write_qwen35moe, (), 2),
    (write_lfm2, ("kv_mode.guided.share=group",), 1),
    (write_gemma3, ("kv_mode.guided.diversify=true", "kv_mode.probe.texts=['{question}','Find: {question}']"), 6),
])  # fmt: skip
def test_every_architecture_reads_with_the_question_in_mind(
    tmp_path: Path, write: Callable[[Path], Path], overrides: tuple[str, ...], read: int
) -> None:
    """A hybrid of each kind and sliding windows; the document is read once a question, a group, or a worker."""
    found = job(tmp_path, write(tmp_path / "tiny.gguf"), *overrides)
    assert [[worker for worker, _ in answers] for answers in found.values()] == [[0, 1, 2]] * 2
    assert sum(tokens > 400 for answers in found.values() for _, tokens in answers) == read

"""Jobs whose prompts do not fit the cache, as a person runs them, and what their tables say."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import one_line, runner
from tiny_models import write_qwen35moe

from runner.tables import load

SMALL = ("swarm_size=3", "n_threads=1", "prompts.count=2", "prompts.facts=2", "sampling.max_tokens=40")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen35moe(tmp_path_factory.mktemp("hybrid") / "tiny.gguf")


@pytest.mark.parametrize("mode", ["evict", "h2o", "window", "fp8_h2o"])
def test_a_hybrid_reads_a_document_through_a_small_cache(tmp_path: Path, hybrid: Path, mode: str) -> None:
    done = runner(
        tmp_path, "model=qwen35b", f"model.path={hybrid}", f"kv_mode={mode}", "kv_mode.budget=256",
        "kv_mode.chunk=64", "kv_mode.interval=16", *SMALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables = load(tmp_path / "outputs")
    [plan] = tables.plans.to_dict("records")
    assert plan["window_tokens"] > 1000 > plan["cells"] == 512
    assert (plan["budget_cells"], plan["chunk_tokens"]) == (256, 64)
    assert (plan["codec_bytes"] > 0) == (mode == "fp8_h2o")
    assert plan["codec_bytes"] < plan["kv_bytes"]
    rounds = tables.evictions
    assert set(rounds["phase"]) == {"prefill", "decode"}
    assert (rounds["kept_cells"] == 256).all()
    assert rounds["chunk_tokens"].mode().tolist()[-1] == 64
    assert tables.traces["kv_cells_used"].max() <= plan["cells"]
    # The second question starts from the document as it was saved, and reads only itself.
    read = tables.generations.groupby("prompt_id")["prefill_tokens"].sum().nlargest().tolist()
    assert read[0] > 900 > 200 > read[1]
    assert (tables.generations["generated_tokens"] == 40).any()


def test_conversations_keep_their_history(tmp_path: Path, hybrid: Path) -> None:
    talk = "prompts.items=[{turns:[One?,Two?]}]"
    line = one_line(
        runner(tmp_path, f"model.path={hybrid}", "kv_mode=evict", "prompts=inline", talk, "n_threads=1")
    )
    assert "turns" in line and "kv_mode" in line

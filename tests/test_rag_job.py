"""Documents longer than their window, retrieved from and chosen for by the command line, with the real model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from commands import one_line, runner
from minilm import minilm

from runner.tables import load

RAG = (
    "context_strategy=rag", "context_strategy.window=512", "context_strategy.folder=kept", "swarm_size=2",
    "sampling.max_tokens=12", "n_threads=1", "context_strategy.rag.chunk=64",
)  # fmt: skip
LONG = {"prompt": "Who?", "document": "word " * 900}
NEEDLE = ("prompts=needle", "prompts.tokens=4000", "prompts.facts=3", "prompts.count=3")


def seconds(stages: pd.DataFrame, prompt: str) -> float:
    return float(stages[stages["prompt_id"] == prompt]["seconds"].sum())


def test_the_second_question_starts_sooner_and_the_answer_is_found(tmp_path: Path) -> None:
    done = runner(tmp_path, *NEEDLE, *RAG)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    t = load(tmp_path)
    assert (t.prompts["strategy"] == "rag").all() and t.prompts["answer_in_context"].all()
    assert (t.prompts["tokens_sent"] + 12 <= 512).all() and (t.prompts["tokens_in"] > 3500).all()
    kept = t.stages[t.stages["stage"] == "index"].set_index("prompt_id")["cached"]
    [first], later = kept[~kept].index, kept[kept].index
    assert len(later) == 2
    assert all(seconds(t.stages, first) > 5 * seconds(t.stages, prompt) for prompt in later)
    found = t.excerpts[t.excerpts["share"] == "retrieved"]
    assert found["score"].notna().all() and (found["dense_rank"].notna() | found["bm25_rank"].notna()).all()
    assert t.generations["support"].notna().any()

    again = runner(tmp_path, *NEEDLE, *RAG, "vote=evidence", "hydra.run.dir=again")
    assert again.returncode == 0, again.stderr
    t = load(tmp_path / "again")
    assert t.stages[t.stages["stage"] == "index"]["cached"].all() and "split" not in set(t.stages["stage"])
    assert (t.votes["rule"] == "evidence").all()


def test_reranked_by_the_model_and_embedded_by_another(tmp_path: Path) -> None:
    done = runner(
        tmp_path, *NEEDLE, *RAG, "context_strategy.rag.rerank=4", f"context_strategy.rag.embedder={minilm()}",
        "prompts.count=1", "context_strategy.rag.passages=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    t = load(tmp_path)
    stages = t.stages.set_index("stage")
    assert "minilm" in stages.loc["index", "detail"] and "384" in stages.loc["index", "detail"]
    assert stages.loc["rerank", "items_in"] == 4
    assert t.jobs["prepare_prefill_tokens"].item() > 4 * 64
    assert (t.excerpts[t.excerpts["share"] == "retrieved"]["score"] < 0).all()
    # Another embedder than the index was made with makes one of its own.
    done = runner(tmp_path, *NEEDLE, *RAG, "prompts.count=1", "hydra.run.dir=again")
    assert done.returncode == 0, done.stderr
    t = load(tmp_path / "again")
    assert t.stages.set_index("stage").loc["index", "detail"].startswith("made: wordllama")


def test_auto_sends_whole_what_fits_and_retrieves_what_does_not(tmp_path: Path) -> None:
    rows = [
        {"id": "short", "prompt": "Who?", "document": "Anna did it."},
        {"id": "long", "prompt": "What is the code of vault Q9?", "document": "The old mill. " * 3000},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = runner(
        tmp_path, "prompts=jsonl", "prompts.path=rows.jsonl", *RAG, "context_strategy=auto",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    prompts = load(tmp_path).prompts.set_index("prompt_id")
    assert prompts.loc["short", "strategy"] == "full" and "fit" in prompts.loc["short", "reason"]
    assert prompts.loc["long", "strategy"] == "rag"
    reason = prompts.loc["long", "reason"]
    assert "8,192 that the model was trained for" in reason and "guided" in reason and "compress" in reason


def test_auto_reads_guided_where_no_window_fits(tmp_path: Path) -> None:
    item = "[{id: a, prompt: 'What is the code?', document: '%s'}]" % ("The old mill stood there. " * 1500)
    done = runner(
        tmp_path, f"prompts.items={item}", "context_strategy=auto", "context_strategy.window=8000",
        "hardware.ram=330MiB", "hardware.reserve=0", "swarm_size=1", "sampling.max_tokens=8", "n_threads=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    t = load(tmp_path)
    assert t.prompts["strategy"].item() == "full" and "guided does" in t.prompts["reason"].item()
    assert t.plans["kv_mode"].item() == "guided" and len(t.evictions) > 0


@pytest.mark.parametrize(
    ("row", "arguments", "says"),
    [
        ({"prompt": "why " * 600, "document": "word " * 900}, (), "raise context_strategy.window"),
        ({"prompt": "Who?", "document": "  "}, (), "document"),
        (LONG, ("context_strategy.rag.overlap=0.9",), "overlap"),
        (LONG, ("context_strategy.folder=file/below",), "folder"),
        (LONG, ("context_strategy.rag.embedder=no.gguf",), "no such file"),
        (LONG, ("context_strategy.rag.embedder=file",), "cannot be loaded"),
        ({"turns": ["Hello?", "And?"], "document": "word " * 900}, (), "context_strategy=full"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    row: dict[str, object], arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    done = runner(tmp_path, "prompts=jsonl", "prompts.path=rows.jsonl", *RAG, *arguments)
    assert done.returncode in (1, 2)
    assert says in one_line(done, done.returncode)


def test_a_document_without_spaces_is_retrieved_from(tmp_path: Path) -> None:
    row = {"prompt": "What is the code?", "document": "xyz" * 33_000}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    done = runner(tmp_path, "prompts=jsonl", "prompts.path=rows.jsonl", *RAG)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path).prompts["strategy"].item() == "rag"


def test_without_the_libraries_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'lancedb' else found(name, *a)\n"
    )
    done = runner(tmp_path, *NEEDLE, *RAG, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert 'pip install "kvswarm[rag]"' in one_line(done)

"""Documents that are longer than the window they are given, compressed by the real model from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from commands import one_line, runner

from runner.tables import load

COMPRESS = (
    "context_strategy=compress", "context_strategy.window=512", "context_strategy.folder=kept",
    "swarm_size=2", "sampling.max_tokens=12", "n_threads=1",
)  # fmt: skip
NEEDLE = ("prompts=needle", "prompts.tokens=1200", "prompts.facts=2", "prompts.count=2")


def seconds(stages: pd.DataFrame, prompt: str) -> float:
    return float(stages[stages["prompt_id"] == prompt]["seconds"].sum())


def test_a_summary_of_the_document_serves_the_second_question(tmp_path: Path) -> None:
    done = runner(tmp_path, *NEEDLE, *COMPRESS, "context_strategy.compress.about=document")
    assert done.returncode == 0, done.stderr
    t = load(tmp_path)
    prompts = t.prompts.set_index("prompt_id")
    assert (prompts["strategy"] == "compress").all() and (prompts["tokens_in"] > 1000).all()
    assert (prompts["tokens_sent"] + 12 <= 512).all()
    assert prompts["answer_in_context"].all()
    summarised = t.stages[t.stages["stage"] == "summarise"]
    paid = summarised.groupby("prompt_id")["generated_tokens"].sum()
    [first], [second] = paid[paid > 0].index, paid[paid == 0].index
    assert seconds(t.stages, first) > 5 * seconds(t.stages, second)
    assert summarised[summarised["prompt_id"] == second]["cached"].all()
    # The request's words are prefilled once for all chunks.
    row = summarised[summarised["prompt_id"] == first].iloc[0]
    assert row["tokens_in"] < row["prefill_tokens"] < row["tokens_in"] + 60 * row["items_in"]
    [job] = t.jobs.to_dict("records")
    assert job["prepare_generated_tokens"] == paid.sum() and job["prepare_s"] > 0
    assert {"prepare", "prefill", "decode"} <= set(t.traces["phase"])
    assert t.traces["t_s"].is_unique and (t.traces["job_id"] == job["job_id"]).all()

    again = runner(
        tmp_path, *NEEDLE, *COMPRESS, "context_strategy.compress.about=document", "hydra.run.dir=again"
    )
    assert again.returncode == 0, again.stderr
    second_run = load(tmp_path / "again")
    assert (second_run.jobs["prepare_generated_tokens"] == 0).all()
    key = ["prompt_id", "worker"]
    here, there = t.generations.set_index(key)["text"], second_run.generations.set_index(key)["text"]
    assert here.sort_index().equals(there.sort_index())


def test_what_fits_is_sent_whole_and_says_so(tmp_path: Path) -> None:
    items = "[{id: a, prompt: 'Who?', document: 'Anna did.'}, {id: b, prompt: 'Name a colour.'}]"
    done = runner(tmp_path, f"prompts.items={items}", *COMPRESS)
    assert done.returncode == 0, done.stderr
    t = load(tmp_path)
    assert (t.prompts["strategy"] == "full").all() and len(t.stages) == 0
    assert "fits the window" in done.stdout and "no document to shorten" in done.stdout


@pytest.mark.parametrize(
    ("rows", "arguments", "says"),
    [
        ([{"prompt": "why " * 600, "document": "word " * 900}], (), "raise context_strategy.window"),
        ([{"turns": ["Hello?", "And?"], "document": "word " * 900}], (), "context_strategy=full"),
        ([{"prompt": "Who?", "document": "word " * 900}], ("context_strategy.compress.target=2",), "target"),
        ([{"prompt": "Who?", "document": "word " * 900}], ("context_strategy.folder=file/below",), "folder"),
    ],
)
def test_bad_input_is_one_line(
    rows: list[dict[str, object]], arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = runner(tmp_path, "prompts=jsonl", "prompts.path=rows.jsonl", *COMPRESS, *arguments)
    assert says in one_line(done)


def test_a_refusal_of_the_whole_document_names_what_shortens_it(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Who?", "document": "word " * 9000}))
    done = runner(tmp_path, "prompts=jsonl", "prompts.path=rows.jsonl", "n_threads=1")
    line = one_line(done)
    assert "kv_mode=guided" in line and "context_strategy=rag, compress or auto" in line

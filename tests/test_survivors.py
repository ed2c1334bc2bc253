"""What a model kept of a document, as the tables and the terminal show it."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from commands import runner
from evicting import evicting, params, prefill, prose
from rich.console import Console
from tiny_models import write_qwen3moe

from runner import job
from runner.config import JobConfig, ModelConfig, PromptsConfig, SamplingConfig, SwarmConfig
from runner.engine.chat import PromptFormat
from runner.engine.survivors import sample_survivors
from runner.engine.weights import Weights
from runner.identity import settings_id
from runner.kv_mode import KvModeConfig
from runner.report.terminal import View
from runner.session import Session
from runner.tables import Tables, load

BUDGET, RECENT = 96, 64
HEADS = [(layer, head) for layer in range(4) for head in range(2)]
HOSTILE = "\x1b[2J [red]x[/red] \u202eneb\u202c :smile: שלום 日本 🦙."
DOCUMENT = "Anna met Ben in the old mill. " * 7 + HOSTILE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weights]:
    """Two KV heads in each of four layers; a token is a byte."""
    weights = Weights(write_qwen3moe(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))
    yield weights
    weights.close()


@pytest.fixture(scope="module")
def read(tiny: Weights, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, str]:
    """Two questions about one document and one without: tables with all that was kept, and what was printed."""
    folder, said = tmp_path_factory.mktemp("read"), io.StringIO()
    items = [
        {"id": "who", "prompt": "Who?", "document": DOCUMENT},
        {"id": "where", "prompt": "And where was it that Anna met Ben?", "document": DOCUMENT},
        {"id": "short", "prompt": "Why?"},
    ]
    mode = KvModeConfig(
        name="evict", policy="peak", options={"decay": 0.7, "prior": 16.0}, budget=BUDGET, chunk=32,
        sinks=4, recent=0.7, survivors=1000, show_kept=True,
    )  # fmt: skip
    config = JobConfig(
        model=ModelConfig(path=str(tiny.path)), n_threads=1, kv_mode=mode, prompts=PromptsConfig(items=items),
        sampling=SamplingConfig(max_tokens=2), swarm_size=SwarmConfig(workers=1),
    )  # fmt: skip
    session = Session()
    job.run_job(config, folder, session, View(Console(file=said, width=200)))
    session.close()
    return load(folder), said.getvalue()


def kept_by_head(tables: Tables, prompt_id: str) -> dict[tuple[int, int], list[int]]:
    rows = tables.survivors[tables.survivors["prompt_id"] == prompt_id]
    return {head: sorted(of_head["position"]) for head, of_head in rows.groupby(["layer", "head"])}  # type: ignore[misc]


def test_survivors_are_what_the_document_was_left_with(read: tuple[Tables, str]) -> None:
    tables, _ = read
    n_document = int(tables.prompts.set_index("prompt_id")["document_tokens"]["who"])
    who = kept_by_head(tables, "who")
    assert list(who) == HEADS
    assert all(len(set(positions)) == BUDGET for positions in who.values())
    for positions in who.values():
        assert positions[:4] == [0, 1, 2, 3]
        assert positions[-RECENT:] == list(range(n_document - RECENT, n_document))
    assert who[0, 0] != who[1, 1]
    # A longer question takes more of the cells, but of what the document was left with nothing.
    assert kept_by_head(tables, "where") == who
    assert kept_by_head(tables, "short") == {}


def test_survivors_have_their_own_text_and_a_score_where_that_kept_them(
    read: tuple[Tables, str], tiny: Weights
) -> None:
    tables, _ = read
    rows = tables.survivors[tables.survivors["prompt_id"] == "who"]
    parts = PromptFormat(tiny).encode("who", [{"role": "user", "content": "Who?"}], DOCUMENT)
    texts = [tiny.piece(token, special=True).decode("utf-8", "backslashreplace") for token in parts.document]
    assert rows["token"].tolist() == [texts[position] for position in rows["position"]]
    assert rows["token"].str.startswith("\\x").any()  # a byte of a character
    protected = (rows["position"] < 4) | (rows["position"] >= len(texts) - RECENT)
    assert (rows["score"].isna() == protected).all()
    assert (rows["sampled"] == 1).all()


def test_rounds_say_which_part_of_the_text_stays(read: tuple[Tables, str]) -> None:
    rounds = read[0].evictions
    parts = pd.DataFrame(rounds["kept_by_part"].tolist())
    assert parts.shape[1] == 10
    assert parts.sum(axis=1).tolist() == pytest.approx([1.0] * len(parts))
    last = rounds[(rounds["prompt_id"] == "who")]["kept_by_part"].iloc[-1]
    assert last[-1] > last[4] > 0
    assert (rounds["probe_tokens"] == 0).all()


def test_a_document_comes_out_whole_and_inert(read: tuple[Tables, str]) -> None:
    said = read[1]
    assert "kept of prompt who: 96 of" in said and "kept of prompt where: 96 of" in said
    assert re.search(r"kept of prompt short: all \d+ tokens\n", said)
    for text in ("[red]x[/red]", ":smile:", "שלום 日本 🦙", "␛[2J", "<U+202E>neb<U+202C>"):
        assert text in said
    assert "\x1b" not in said and "\u202e" not in said and "\ufffd" not in said


def test_a_sample_is_one_of_each_head_and_comes_out_again(tiny: Weights) -> None:
    tokens = prose(tiny, 160)
    with evicting(tiny, params(160, n_ubatch=32), "peak", budget=96, chunk=32) as context:
        prefill(context, tokens, chunk=32)
        kept = context.take_kept()
        assert context.take_kept() is None
    assert kept is not None
    first, again, other = (sample_survivors(kept, tokens, tiny, per_head=5, seed=s) for s in ("a", "a", "b"))
    assert first == again != other
    assert [(row.layer, row.head) for row in first] == [head for head in HEADS for _ in range(5)]
    assert {row.sampled for row in first} == {5 / 96}
    assert len({(row.layer, row.head, row.position) for row in first}) == len(first)
    assert sample_survivors(kept, tokens, tiny, per_head=0, seed="a") == []


def test_a_window_is_the_same_for_every_head(tiny: Weights) -> None:
    tokens = prose(tiny, 160)
    with evicting(tiny, params(160, n_ubatch=32), "window", budget=96, chunk=32) as context:
        prefill(context, tokens, chunk=32)
        kept = context.take_kept()
    assert kept is not None and kept.heads == ()
    assert kept.shares().tolist() == [1.0] * 4 + [0.0] * 64 + [1.0] * 92
    assert sample_survivors(kept, tokens, tiny, per_head=5, seed="a") == []


def test_what_is_shown_changes_no_identity() -> None:
    def identity(**options: object) -> str:
        mode = KvModeConfig(name="evict", policy="peak", **options)  # type: ignore[arg-type]
        config = JobConfig(kv_mode=mode)
        return settings_id(config, model_digest="m", engine_version="e", flash_attn=False, n_threads=1)

    assert identity() == identity(survivors=3) == identity(show_kept=True) != identity(budget=77)


@pytest.fixture(scope="module")
def guided(
    smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tables, subprocess.CompletedProcess[str]]:
    """A needle in a document twice as long as what is kept of it, as a person runs it."""
    folder = tmp_path_factory.mktemp("guided")
    done = runner(
        folder, "kv_mode=guided", "kv_mode.budget=192", "kv_mode.chunk=128", "kv_mode.survivors=8",
        "kv_mode.show_kept=true", "prompts.count=1", "prompts.tokens=450", "prompts.depths=[0.4]",
        "swarm_size=1", "sampling.temperature=0", "sampling.max_tokens=4", "n_threads=1", "trace.hz=50",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return load(folder), done


def test_the_needle_is_among_what_is_marked(
    guided: tuple[Tables, subprocess.CompletedProcess[str]],
) -> None:
    tables, done = guided
    code = tables.prompts["expected"].iloc[0]
    assert "192 of" in done.stdout and "by each of 90 heads" in done.stdout
    passages = re.findall(r"«([^«»]*)»", done.stdout)
    [needle] = [passage for passage in passages if "pass code of vault" in passage and code in passage]
    assert len(needle) < 120
    assert re.search(r"\[\.\.\. \d+ tokens \.\.\.\]", done.stdout)
    assert len(tables.survivors) == 90 * 8
    assert tables.survivors["sampled"].unique().tolist() == [8 / 192]


def test_probes_have_their_price_in_the_tables(
    guided: tuple[Tables, subprocess.CompletedProcess[str]],
) -> None:
    tables, _ = guided
    [row] = tables.jobs.to_dict("records")
    assert 0 < row["probe_s"] < row["prefill_s"]
    rounds = tables.evictions
    assert row["probe_tokens"] == rounds["probe_tokens"].sum() > 0
    assert "probe" in set(tables.traces["phase"])
    assert rounds["kept_by_part"].map(sum).tolist() == pytest.approx([1.0] * len(rounds))

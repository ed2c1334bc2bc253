"""Texts that are scored: the figures against ones that come about otherwise, and what a job makes of them."""

from __future__ import annotations

import io
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import one_line, runner
from rich.console import Console

from runner import job
from runner.config import (
    HardwareConfig,
    JobConfig,
    KvModeConfig,
    PromptsConfig,
    ScoringConfig,
    SwarmConfig,
    TextsConfig,
)
from runner.engine.context import Context, ContextParams
from runner.engine.eviction_log import EvictionRound
from runner.engine.scoring import score_rows
from runner.engine.weights import Weights
from runner.errors import Interrupted, OutputError, PromptError
from runner.models.catalogue import named
from runner.planner import Planner
from runner.prompts import Passage, load_passages
from runner.report.terminal import View
from runner.scoring.measure import measure
from runner.scoring.references import ReferenceKey, References
from runner.scoring.texts import prepare
from runner.session import Session
from runner.tables import SCHEMAS, load

KEY = ReferenceKey("digest", (1, 2, 3), 1, flash_attn=True, n_ubatch=64, n_threads=2)


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[Weights]:
    weights = Weights(smollm2)
    yield weights
    weights.close()


@contextmanager
def context(weights: Weights, n_ubatch: int, n_outputs: int) -> Iterator[Context]:
    params = ContextParams(
        n_ctx=1024, n_seq_max=1, n_ubatch=n_ubatch, kv_type_k="f16", kv_type_v="f16", flash_attn=True,
        swa_full=False, n_threads=1, n_outputs=n_outputs,
    )  # fmt: skip
    made = Context(weights, params)
    try:
        yield made
    finally:
        made.close()


def random_rows(n: int, n_vocab: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 4, (n, n_vocab)).astype(np.float32), rng.integers(0, n_vocab, n, dtype=np.int32)


def test_the_measures_are_their_definitions() -> None:
    (logits, tokens), (other, _) = random_rows(50, 300, seed=0), random_rows(50, 300, seed=1)
    pieces = [(logits[:7], tokens[:7]), (logits[7:7], tokens[7:7]), (logits[7:], tokens[7:])]
    found = measure(pieces, SimpleNamespace(logits=other))
    p, q = (np.exp(x.astype(np.longdouble)) for x in (other, logits))
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.nll, -np.log(q[np.arange(50), tokens]).astype(float), rtol=1e-12)
    np.testing.assert_allclose(found.kl, (p * np.log(p / q)).sum(axis=1).astype(float), rtol=1e-10)
    assert found.agrees.tolist() == (logits.argmax(axis=1) == other.argmax(axis=1)).tolist()
    alone = measure(pieces)
    assert alone.kl is None and alone.agrees is None and alone.nll.tolist() == found.nll.tolist()


def test_a_reference_keeps_its_logits_in_a_file() -> None:
    logits, tokens = random_rows(30, 100, seed=2)
    kept = References()
    assert KEY not in kept
    kept.add(KEY, iter([(logits[:20], tokens[:20]), (logits[20:], tokens[20:])]))
    reference = kept[KEY]
    assert np.array_equal(reference.logits, logits) and isinstance(reference.logits, np.memmap)
    same = measure([(logits, tokens)], reference)
    assert same.kl.max() == 0.0 and same.agrees.all() and same.nll.tolist() == reference.measured.nll.tolist()
    kept.add_floor(KEY, iter([(logits + np.float32(0.01) * logits, tokens)]))
    assert 0 < kept[KEY].floor.kl.mean() < 0.1
    folder = Path(reference.logits.filename).parent
    assert folder.is_dir()
    kept.close()
    assert KEY not in kept and not folder.exists()


def test_no_room_for_a_reference() -> None:
    kept, rows = References(), random_rows(30, 100, seed=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OutputError, match=r"too large.*set TMPDIR .*scoring\.last=N"):
            kept.add(KEY, iter([rows]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert KEY not in kept
    kept.close()


def test_what_of_a_text_is_scored(smol: Weights) -> None:
    passage = Passage("a", "One two three four five six seven.")
    whole = prepare(passage, smol, None)
    assert whole.first == 1 and len(whole.tokens) > 7
    assert prepare(passage, smol, 3).first == len(whole.tokens) - 3
    assert prepare(Passage("a", passage.text, last=2), smol, 3).first == len(whole.tokens) - 2
    assert prepare(passage, smol, 3).digest not in (whole.digest, prepare(passage, smol, 2).digest)
    # What looks like a control token is text.
    assert len(prepare(Passage("a", "<|im_start|>"), smol, None).tokens) > 3
    with pytest.raises(PromptError, match=r"'a' has \d+ tokens .* scoring.last is 900; lower that"):
        prepare(passage, smol, 900)
    with pytest.raises(PromptError, match=r"'b' .* its `last` is 900"):
        prepare(Passage("b", passage.text, last=900), smol, 2)
    with pytest.raises(PromptError, match="'c' is one token long"):
        prepare(Passage("c", "a"), smol, None)


def test_nll_is_that_of_the_whole_text_at_once(smol: Weights) -> None:
    """All logits of one batch, turned into losses in another way, against chunks of 64 and rows by the dozen.

    The model's weights are of 4 bits, and what they are multiplied with is rounded to 8 as the batch has it, so a
    single token's loss is only about the same; a row beside the wrong token would cost several nats.
    """
    [passage] = load_passages(
        PromptsConfig(name="texts", texts=TextsConfig(count=1, tokens=250)), lambda text: len(text.split())
    )
    text = prepare(passage, smol, 100)
    tokens, n = np.array(text.tokens), len(text.tokens)
    assert 250 < n < 1024
    with context(smol, n_ubatch=512, n_outputs=n) as whole:
        logits = whole.decode(text.tokens, range(n), [0] * n, [True] * n)[-101:-1].astype(np.float64)
    chances = np.exp2(logits / np.log(2))
    losses = -np.log(chances[np.arange(100), tokens[-100:]] / chances.sum(axis=1))
    with context(smol, n_ubatch=64, n_outputs=12) as chunked:
        pieces = score_rows(chunked, text.tokens, text.first, outputs=12)
        found = measure((rows, predicted) for _, rows, predicted in pieces)
    assert len(found) == 100
    assert np.abs(found.nll - losses).mean() < 0.2
    assert found.nll.mean() == pytest.approx(losses.mean(), abs=0.05)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two texts and a question under f16 and a window that forgets most of them."""
    folder = tmp_path_factory.mktemp("sweep")
    done = runner(
        folder, "-m", "kv_mode=f16,window", "kv_mode.budget=96,64", "kv_mode.chunk=32", "n_ubatch=32",
        "n_threads=1", "prompts=texts", "prompts.texts.count=2", "prompts.texts.tokens=180",
        "prompts.texts.last=40", "prompts.items=[Name a colour.]", "swarm_size=2", "sampling.max_tokens=4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return folder, done.stdout


def test_what_scoring_leaves_in_the_tables(swept: tuple[Path, str]) -> None:
    t = load(swept[0])
    scores = t.scores.merge(t.plans[["job_id", "kv_mode", "budget_cells"]], on="job_id")
    assert len(scores) == 6 and (scores["status"] == "ok").all() and (scores["tokens"] == 40).all()
    assert (scores["text_tokens"].between(170, 181)).all()
    for row in scores.to_dict("records"):
        assert row["nll"] == pytest.approx(np.mean(row["token_nll"]), abs=1e-5)
        assert row["ppl"] == pytest.approx(np.exp(row["nll"]))
        assert row["kl_q50"] <= row["kl_q90"] <= row["kl_q99"]
        assert row["reference"] == "f16, nothing evicted, flash attention on, micro-batch 32"
    # Another micro-batch is another sum, and hardly another result.
    assert (scores["floor_kl"] > 0).all() and (scores["floor_kl"] < 0.05).all()
    assert ((scores["floor_nll"] - scores["nll_reference"]).abs() < 0.1).all()
    f16, window = scores[scores["kv_mode"] == "f16"], scores[scores["kv_mode"] == "window"]
    assert (f16["kl_to_reference"] <= f16["floor_kl"]).all() and (f16["top1_agreement"] >= 0.95).all()
    assert (window["kl_to_reference"] > 3 * window["floor_kl"]).all()
    assert sorted(window.groupby("budget_cells").size().items()) == [(64, 2), (96, 2)]
    texts = t.prompts[t.prompts["kind"] == "score"].merge(scores, on=["job_id", "prompt_id"])
    assert len(texts) == 6 and (texts["tokens_sent"] == texts["text_tokens"]).all()
    assert "score" in set(t.traces["phase"])


def test_what_evictions_leave_in_the_tables(swept: tuple[Path, str]) -> None:
    t = load(swept[0])
    rounds = t.evictions.merge(t.plans[["job_id", "kv_mode", "budget_cells"]], on="job_id")
    columns = {field.name for field in fields(EvictionRound)}
    assert columns == set(SCHEMAS["evictions"].names) - {"job_id", "prompt_id"}
    assert set(rounds["kv_mode"]) == {"window"}
    assert (rounds["kept_cells"] == rounds["budget_cells"]).all() and (rounds["dropped_cells"] > 0).all()
    of_text = rounds[rounds["prompt_id"].str.startswith("text-")]
    assert of_text.groupby(["job_id", "prompt_id"]).size().min() >= 3
    assert (of_text["phase"] == "prefill").all() and not of_text["frozen"].any()
    # A window keeps the sinks and what came last.
    assert (of_text["oldest_kept"] == of_text["position"] - of_text["budget_cells"] + 4).all()


def test_what_a_person_sees_of_a_sweep(swept: tuple[Path, str]) -> None:
    lines = swept[1].splitlines()
    [skipped] = {line for line in lines if line.startswith("skipped")}
    assert "kv_mode.budget=64" in skipped and "same job as kv_mode=f16 kv_mode.budget=96" in skipped
    assert len([line for line in lines if line.startswith("done") and "1 prompts and 2 texts" in line]) == 3
    assert "leaderboard per budget" in swept[1]
    board = swept[1].partition("leaderboard per budget")[2]
    assert board.index("f16") < board.index("96") < board.index("64")


@pytest.mark.parametrize(("batches", "cut"), [(0, []), (3, []), (6, [("interrupted", 32, 32)])])
def test_an_interrupted_text_is_a_row_that_says_so(
    batches: int, cut: list[tuple[str, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C when the first text has its row and so many batches of the second are read; the sixth is scored."""
    asked_since = []

    def pressed() -> bool:
        if (tmp_path / "tables" / "scores.jsonl").exists():
            asked_since.append(1)
        return len(asked_since) > batches

    @contextmanager
    def pressed_then() -> Iterator[Callable[[], bool]]:
        yield pressed

    monkeypatch.setattr(job, "stop_on_interrupt", pressed_then)
    config = JobConfig(
        model=named("smollm2"),
        prompts=PromptsConfig(name="texts", texts=TextsConfig(count=2, tokens=200, last=40)),
        scoring=ScoringConfig(reference=False),
        n_ubatch=32,
        n_threads=1,
    )
    session = Session()
    with pytest.raises(Interrupted):
        job.run_job(config, tmp_path, session, View(Console(quiet=True)))
    session.close()
    t = load(tmp_path)
    assert t.jobs["status"].tolist() == ["interrupted"]
    rows = list(zip(t.scores["status"], t.scores["tokens"], map(len, t.scores["token_nll"]), strict=True))
    assert rows == [("ok", 40, 40), *cut]
    assert t.scores["kl_to_reference"].isna().all()
    assert set(t.scores["reference"]) == {"none: scoring.reference=false"}


def test_a_reference_that_does_not_fit_costs_the_comparison_alone(tmp_path: Path) -> None:
    config = JobConfig(
        model=named("smollm2"),
        kv_mode=KvModeConfig(name="window", policy="window", budget=64, chunk=32),
        prompts=PromptsConfig(name="texts", texts=TextsConfig(count=1, tokens=700, last=20)),
        swarm_size=SwarmConfig(workers=1),
        n_threads=1,
        weights="resident",
    )
    room = Planner().plan(config).ram_bytes + 4 * 2**20
    config = replace(config, hardware=HardwareConfig(ram=room, reserve=0))
    session, said = Session(), Console(file=io.StringIO(), width=400)
    result = job.run_job(config, tmp_path, session, View(said))
    session.close()
    assert result.texts == 1 and "note: no reference to compare with" in said.file.getvalue()
    [row] = load(tmp_path).scores.to_dict("records")
    assert row["status"] == "ok" and row["nll"] > 0
    assert row["reference"].startswith("none: smollm2 with 1 workers does not fit")
    assert all(
        np.isnan(row[name]) for name in ("kl_to_reference", "nll_reference", "floor_kl", "top1_agreement")
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prompts=texts", "prompts.texts.sources=[gone.txt]"), ("no file gone.txt", "pydoc")),
        (("prompts=texts", "prompts.texts.count=0"), ("prompts=texts has no prompts", "prompts.path")),
        (
            ("prompts.items=[{kind: score, text: Too short}]", "scoring.last=50"),
            ("'p1' has", "scoring.last is 50", "lower that"),
        ),
        (("prompts.items=[{kind: score, text: a b, answer: 3}]",), ("'answer' does not go with kind=score",)),
        (("prompts.kind=score",), ("prompts.kind='score'", "'number'")),
    ],
)
def test_a_wrong_text_ends_in_one_line(
    arguments: tuple[str, ...], said: tuple[str, ...], tmp_path: Path
) -> None:
    line = one_line(runner(tmp_path, *arguments))
    assert all(part in line for part in said), line

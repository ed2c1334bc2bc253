"""Eviction in the engine's cache, on real models: what stays, who sees it, and what is not touched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from evicting import evicting, params, plain, prefill, prose
from swarm import group, run, texts
from tiny_models import WRITERS

from kvcache.policies import POLICIES
from kvcache.selection import Granularity, Selector
from runner.config import SamplingConfig
from runner.engine.bindings import lib
from runner.engine.eviction import EvictingContext
from runner.engine.eviction_log import EvictionLog
from runner.engine.weights import Weights
from runner.errors import EngineError

SAMPLING = SamplingConfig(max_tokens=24, temperature=0.7, ignore_eos=True)


def held(context: EvictingContext, sequence: int = 0) -> int:
    return len(context.table.held([sequence]))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weights]:
    """A llama of random f32 weights: what is tested with it does not depend on what a model says."""
    weights = Weights(WRITERS["llama"](tmp_path_factory.mktemp("tiny") / "llama.gguf"))
    yield weights
    weights.close()


def noise(n: int) -> list[int]:
    return [3 + i * i * 7 % 250 for i in range(n)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_as_long_as_the_text_changes_no_bit(tiny: Weights, policy: str) -> None:
    with plain(tiny, params(256)) as full, evicting(tiny, params(256), policy, budget=200) as context:
        np.testing.assert_array_equal(prefill(full, noise(200)), prefill(context, noise(200)))
        assert not context.take_rounds()


def test_that_holds_for_a_real_model(smol: Weights) -> None:
    tokens = prose(smol, 160)
    with plain(smol, params(256)) as full, evicting(smol, params(256), "peak", budget=160) as context:
        np.testing.assert_array_equal(prefill(full, tokens), prefill(context, tokens))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("granularity", ["head", "layer", "token"])
def test_a_text_far_longer_than_the_cache(tiny: Weights, policy: str, granularity: Granularity) -> None:
    with evicting(tiny, params(256), policy, budget=128, granularity=granularity) as context:
        logits = prefill(context, noise(640))
        rounds = context.take_rounds()
        assert held(context) == context.cells_used == 128
        positions = context.table.positions[:, context.table.held([0])]
    assert np.isfinite(logits).all()
    assert [r.position for r in rounds] == list(range(192, 641, 64))
    assert {(r.kept_cells, r.dropped_cells, r.phase) for r in rounds} == {(128, 64, "prefill")}
    for row in positions:
        assert len(set(row)) == 128
        assert {0, 1, 2, 3} <= set(row)
        assert set(range(640 - 31, 640)) <= set(row)
    different = len({tuple(sorted(row)) for row in positions})
    assert different == 1 if granularity == "token" or policy == "window" else different > 1


def test_heads_read_their_own_tokens_and_not_those_of_the_cell(smol: Weights) -> None:
    """By head and by token the kept sets differ, so must what is predicted."""
    tokens = prose(smol, 320)
    by: dict[str, np.ndarray] = {}
    granularities: tuple[Granularity, ...] = ("head", "token")
    for granularity in granularities:
        with evicting(smol, params(256), "h2o", budget=96, granularity=granularity) as context:
            by[granularity] = prefill(context, tokens)
    assert np.abs(by["head"] - by["token"]).max() > 0.1


def test_a_window_is_what_removing_the_middle_gives(smol: Weights) -> None:
    tokens = prose(smol, 320)
    wanted = params(256, flash_attn=True)
    with plain(smol, wanted) as bare, evicting(smol, wanted, "window", budget=128) as context:
        end = 0
        for start in range(0, 320, 64):
            part = tokens[start : start + 64]
            end = start + len(part)
            marks = [False] * (len(part) - 1) + [end == 320]
            expected = bare.decode(part, range(start, end), [0] * len(part), marks).copy()
            if end > 128:
                assert lib.llama_memory_seq_rm(lib.llama_get_memory(bare.handle), 0, 4, end - 124)
        np.testing.assert_array_equal(prefill(context, tokens), expected)


@pytest.mark.parametrize(("k", "v", "flash_attn", "policy"), [
    ("q8_0", "f16", False, "peak"), ("q8_0", "q4_0", True, "keydiff"), ("f32", "bf16", False, "peak"),
])  # fmt: skip
def test_every_type_of_cell_moves(smol: Weights, k: str, v: str, flash_attn: bool, policy: str) -> None:
    """With one type against f16 the same tokens leave, give or take a few, and the prediction is close."""
    tokens, found = prose(smol, 256), {}
    for types in ((k, v), ("f16", "f16")):
        wanted = params(256, k=types[0], v=types[1], flash_attn=flash_attn)
        with evicting(smol, wanted, policy, budget=96) as context:
            logits = prefill(context, tokens)[0].astype(np.float64)
            cells = context.table.held([0])
            kept = {(row, int(p)) for row, held in enumerate(context.table.positions[:, cells]) for p in held}
            found[types] = logits, kept
    (logits, kept), (expected, expected_kept) = found.values()
    assert len(kept & expected_kept) / len(kept) > 0.85
    assert np.corrcoef(logits, expected)[0, 1] > 0.97


def test_workers_share_what_the_swarm_looked_at(smol: Weights) -> None:
    """Answers longer than the interval evict: of the shared prompt for all at once, of each one's own alone."""
    with evicting(smol, params(256, sequences=4), "h2o", budget=96, interval=8) as context:
        one = group(smol, "g", "What was traded?", document=" ".join(["The guide slept."] * 60), workers=3)
        answers = run(smol, context, [one], SAMPLING)["g"]
        rounds = context.take_rounds()
        assert context.cells_used == 0
    assert [a.generated_tokens for a in answers] == [24] * 3
    decoding = [r for r in rounds if r.phase == "decode"]
    assert len(decoding) >= 2
    assert all(r.kept_cells == 96 and r.dropped_cells == 8 for r in decoding)
    assert len(set(texts(answers))) > 1


def test_forks_see_the_same(tiny: Weights) -> None:
    """The same tokens stay for every worker. In a model of f32 weights nothing else sets rows of a batch apart."""
    with evicting(tiny, params(256, sequences=3), "h2o", budget=96) as context:
        prefill(context, noise(320))
        for worker in (1, 2):
            context.fork(0, worker)
        for step in range(12):
            logits = context.decode([11 + step] * 3, [320 + step] * 3, [0, 1, 2], [True] * 3)
            np.testing.assert_allclose(logits, np.broadcast_to(logits[0], logits.shape), atol=1e-2)
            if step == 5:
                context.evict([0, 1, 2], "decode")
        own = [context.table.positions[:, context.table.held([worker])] for worker in range(3)]
        assert len(context.table.held([0, 1, 2])) + 6 == 96
        assert own[0].shape[1] == 12
        for other in own[1:]:
            np.testing.assert_array_equal(np.sort(own[0]), np.sort(other))


def test_a_group_does_not_depend_on_what_ran_before_it(smol: Weights) -> None:
    """Several questions on one document, each evicting from it."""
    document = " ".join(f"Crate {i} holds {i * 7 % 50} lamps." for i in range(36))
    groups = [group(smol, name, f"What is in crate {name}?", document) for name in ("3", "20")]
    with evicting(smol, params(512, sequences=4), "h2o", budget=96, interval=8) as context:
        together = run(smol, context, groups, SAMPLING)
        alone = {}
        for one in reversed(groups):
            alone |= run(smol, context, [one], SAMPLING)
    assert {name: texts(answers) for name, answers in together.items()} == {
        name: texts(answers) for name, answers in alone.items()
    }
    assert together["3"][0].prefill_tokens > together["20"][0].prefill_tokens


@pytest.mark.parametrize("arch", ["qwen35moe", "qwen35", "lfm2", "granitehybrid"])
def test_a_recurrent_state_is_not_touched(tmp_path: Path, arch: str) -> None:
    path = WRITERS[arch](tmp_path / f"{arch}.gguf")
    weights = Weights(path)
    wanted = params(256, sequences=3)
    tokens = [3 + i * 7 % 250 for i in range(320)]
    with evicting(weights, wanted, "h2o", budget=96) as context:
        for start in range(0, 320, 64):
            context.decode(
                tokens[start : start + 64], range(start, start + 64), [0] * 64, [False] * 63 + [True]
            )
            before = _digest(context.save_partial(0))
            context.evict([0], "prefill")
            assert _digest(context.save_partial(0)) == before
        assert held(context) == 96
        context.fork(0, 1)
        context.fork(0, 2)
        for step in range(4):
            logits = context.decode([5] * 3, [320 + step] * 3, range(3), [True] * 3)
            assert np.isfinite(logits).all()
            np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-2)
            np.testing.assert_allclose(logits[2], logits[0], rtol=0, atol=1e-2)
    weights.close()


def _digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()


@pytest.mark.parametrize("arch", ["deepseek2", "qwen3moe"])
def test_other_layouts(tmp_path: Path, arch: str) -> None:
    """One compressed row for K and V; experts' routers, which are softmax nodes too, beside attention."""
    path = WRITERS[arch](tmp_path / f"{arch}.gguf")
    weights = Weights(path)
    with evicting(weights, params(256), "peak", budget=96) as context:
        logits = prefill(context, noise(320))
        assert np.isfinite(logits).all()
        assert held(context) == 96
    weights.close()


def test_sliding_layers_are_left_alone(gemma: Weights) -> None:
    """While the budget covers the text nothing may change, in a small sliding-window cache too."""
    tokens = prose(gemma, 640)
    wanted = params(768, n_ubatch=128)
    with plain(gemma, wanted) as full, evicting(gemma, wanted, "peak", budget=640, chunk=128) as context:
        np.testing.assert_array_equal(prefill(full, tokens, chunk=128), prefill(context, tokens, chunk=128))


@pytest.mark.parametrize("swa_full", [False, True])
def test_a_model_with_sliding_layers(gemma: Weights, swa_full: bool) -> None:
    tokens = prose(gemma, 768)
    wanted = params(768, n_ubatch=128, swa_full=swa_full, sequences=3)
    with evicting(gemma, wanted, "peak", budget=576, chunk=128) as context:
        logits = prefill(context, tokens, chunk=128)
        assert held(context) == 576
        assert np.isfinite(logits).all()
        if context.partial_state:
            context.load_partial(0, context.save_partial(0))
        context.fork(0, 1)
        both = context.decode([11, 11], [768, 768], [0, 1], [True, True])
        assert both[0].argmax() == both[1].argmax()
        assert np.abs(both[0] - both[1]).max() < 1


def test_the_alarm_when_nothing_new_comes_in() -> None:
    """H2O's known failure: what was first has collected the most, and the text goes on in vain."""
    selector, budget, chunk = Selector(sinks=4, recent=0.25), 64, 32
    for favours_old in (True, False):
        log, kept = EvictionLog(selector, budget, {}), np.arange(budget)[None]
        for end in range(budget + chunk, 400, chunk):
            positions = np.concatenate([kept, np.arange(end - chunk, end)[None]], axis=1)
            scores = (-positions if favours_old else positions).astype(np.float32)
            keep = selector.keep(scores, positions, budget, end)
            log.note(positions, scores, keep, positions.shape[1], end, "prefill")
            kept = positions[keep][None]
        rounds = log.take()
        assert rounds[-1].frozen == favours_old
        assert not rounds[0].frozen
        assert (rounds[-1].turnover < 0.05) == favours_old


def test_cells_that_do_not_suffice_are_named(tiny: Weights) -> None:
    with evicting(tiny, params(256), "h2o", budget=250) as context, pytest.raises(EngineError, match="cells"):
        prefill(context, noise(400))

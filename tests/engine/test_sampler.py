"""The tokens a worker draws are those of llama.cpp's whole chain over the whole vocabulary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import SamplingConfig
from runner.engine import sampler
from runner.engine.sampler import Sampler, check_grammar, log_normalizers, needed, top_candidates
from runner.engine.weights import Weights
from runner.errors import ConfigError

CONFIGS = {
    "default": SamplingConfig(),
    "greedy": SamplingConfig(temperature=0),
    "top_k alone": SamplingConfig(top_k=5, top_p=1.0, min_p=0.0),
    "hot": SamplingConfig(temperature=2.5, top_k=100, min_p=0.0),
    "penalised": SamplingConfig(temperature=1.5, repeat_penalty=1.8, repeat_last_n=16),
    "rewarded": SamplingConfig(temperature=1.5, repeat_penalty=0.5, repeat_last_n=8),
    "no top_k": SamplingConfig(top_k=0),
}


def rows(seed: int, n_vocab: int, count: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 4, (count, n_vocab)).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n_vocab=st.integers(1, 3000), k=st.integers(0, 200), ties=st.booleans()
)
def test_candidates_hold_the_largest(seed: int, n_vocab: int, k: int, ties: bool) -> None:
    logits = rows(seed, n_vocab, 3)
    if ties:
        logits = np.round(logits)
    for row, ids in zip(logits, top_candidates(logits, k), strict=True):
        assert len(set(ids.tolist())) == len(ids)
        left_out = np.delete(row, ids)
        wanted = len(row) if k == 0 else min(k, len(row))
        assert len(ids) >= wanted
        assert left_out.size == 0 or np.partition(row, len(row) - wanted)[len(row) - wanted] >= left_out.max()


@pytest.mark.parametrize("kernel", ["ggml", "numpy"])
def test_log_normalizers_are_exact_to_float32(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "numpy":
        monkeypatch.setattr(sampler, "exp_sum", None)
    else:
        assert sampler.exp_sum is not None
    logits = rows(1, 50_000, 4) + np.float32(300)
    exact = np.log(np.exp(logits.astype(np.float64) - 300).sum(axis=1)) + 300
    np.testing.assert_allclose(log_normalizers(logits), exact, atol=2e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_preselection_changes_no_draw(name: str, smol: Weights) -> None:
    config = CONFIGS[name]
    narrow, whole = Sampler(smol, config, 7), Sampler(smol, config, 7)
    everything = np.arange(smol.n_vocab, dtype=np.int32)
    for step in range(25):
        logits = rows(step, smol.n_vocab)
        [candidates] = top_candidates(logits, needed(config))
        assert narrow.sample(logits[0], candidates) == whole.sample(logits[0], everything)
    narrow.close()
    whole.close()


def test_penalties_act(smol: Weights) -> None:
    logits = np.zeros((1, smol.n_vocab), np.float32)
    logits[0, 100], logits[0, 200] = 5.0, 4.0
    config = SamplingConfig(temperature=0, repeat_penalty=2.0)
    drawing = Sampler(smol, config, 0)
    [candidates] = top_candidates(logits, needed(config))
    assert [drawing.sample(logits[0], candidates) for _ in range(2)] == [100, 200]


def test_seeds_make_the_difference(smol: Weights) -> None:
    logits = rows(3, smol.n_vocab)
    config = SamplingConfig(temperature=3.0, top_k=1000, top_p=1.0, min_p=0.0)
    [candidates] = top_candidates(logits, needed(config))

    def draws(seed: int) -> list[int]:
        drawing = Sampler(smol, config, seed)
        return [drawing.sample(logits[0], candidates) for _ in range(20)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_a_grammar_is_kept(smol: Weights) -> None:
    config = SamplingConfig(temperature=2.0, grammar='root ::= "yes" | "no"')
    for seed in range(5):
        drawing, text = Sampler(smol, config, seed), b""
        for step in range(6):
            logits = rows(100 * seed + step, smol.n_vocab)
            [candidates] = top_candidates(logits, needed(config))
            token = drawing.sample(logits[0], candidates)
            if smol.is_end(token):
                break
            text += smol.piece(token)
        assert text in (b"yes", b"no")


@pytest.mark.parametrize("grammar", ["root ::= (", 'other ::= "x"', "root ::= missing"])
def test_a_grammar_that_does_not_parse(
    grammar: str, smol: Weights, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"sampling\.grammar is no GBNF"):
        check_grammar(smol, replace(SamplingConfig(), grammar=grammar))
    assert capfd.readouterr().err == ""

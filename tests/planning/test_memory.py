"""The formulas over many shapes: the engine is asked in this process, which takes milliseconds a shape."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
from planned import KIB, ask, plan
from tiny_models import WRITERS

from runner.engine.context import Context, context_params
from runner.engine.dryrun import LogLines, parse
from runner.engine.weights import Weights
from runner.kv_mode import KvModeConfig
from runner.planning.model.gguf_header import from_gguf
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import DryRun, Plan
from runner.planning.resolve import resolve, with_dry_run
from runner.planning.sequences import sequences_needed

BLOCKS = {
    "deepseek2": {"n_embd": 2048, "n_head": 16, "n_ff": 10_944, "kv_rank": 512, "q_rank": 1536, "d_rope": 64,
                  "d_nope": 128, "d_v": 128, "n_expert": 64, "n_expert_used": 6, "n_ff_expert": 1408},
    "granitehybrid": {"n_embd": 2048, "n_head": 32, "n_head_kv": 8, "n_ff": 8192, "d_state": 128, "dt_rank": 64},
    "lfm2": {"n_embd": 2048, "n_head": 32, "n_head_kv": 8, "n_ff": 8192},
    "llama": {"n_embd": 4096, "n_head": 32, "n_head_kv": 8, "n_ff": 14_336},
    "qwen35": {"n_embd": 5120, "n_head": 24, "n_head_kv": 4, "head_dim": 256, "d_state": 128, "dt_rank": 48,
               "n_group": 16, "n_ff": 17_408, "n_layer": 4},
    "qwen35moe": {"n_embd": 2048, "n_head": 16, "n_head_kv": 2, "head_dim": 256, "d_state": 128, "dt_rank": 32,
                  "n_group": 16, "n_expert": 256, "n_expert_used": 8, "n_ff_expert": 512, "n_layer": 4},
    "qwen3moe": {"n_embd": 2048, "n_head": 32, "n_head_kv": 4, "head_dim": 128, "n_ff": 6144, "n_expert": 128,
                 "n_expert_used": 8, "n_ff_expert": 768},
}  # fmt: skip
"""The blocks of DeepSeek V2 Lite, Granite 4 H Micro, LFM2 1.2B, Llama 3.1 8B, Qwen3.5-27B and 35B-A3B and
Qwen3-30B-A3B."""

WITH_FLASH = [("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("f32", "bf16"), ("f32", "f32")]
WITHOUT = [("f16", "f16"), ("q8_0", "f16")]


@dataclass(frozen=True)
class Shape:
    flash_attn: bool
    types: tuple[str, str]
    n_ubatch: int
    cells: int
    workers: int
    documents: bool
    swa_full: bool

    def plan(self, profile: ModelProfile) -> Plan:
        k, v = self.types
        sliding = profile.sliding_window > 0 and not self.swa_full
        n_seq_max = sequences_needed(self.workers, 1, documents=self.documents, sliding=sliding)
        suffix = 32
        prefix = min(self.cells - suffix * self.workers, profile.n_ctx_train - suffix)
        return plan(
            profile, prefix=prefix, suffix=suffix, workers=self.workers, n_seq_max=n_seq_max,
            documents=self.documents, flash_attn=self.flash_attn, n_ubatch=self.n_ubatch,
            kv_mode=KvModeConfig(k=k, v=v, swa_full=self.swa_full),  # type: ignore[arg-type]
        )  # fmt: skip

    def most(self, asked: int, *, mla: bool) -> float:
        """How much may be planned where ``asked`` is reserved: a quarter more where the engine's copies of f32
        cells, or a turned V, are only bounded."""
        loose = "f32" in self.types if self.flash_attn else mla
        return max((1.3 if loose else 1.15) * asked, asked + 128 * KIB)


def shapes(seed: str, count: int, *, mla: bool) -> list[Shape]:
    """``count`` of all combinations, the same in every run; with MLA, K and V are one and have one type."""
    every = [
        Shape(flash_attn, types, *rest)
        for flash_attn, kinds in ((True, WITH_FLASH), (False, WITHOUT))
        for types in kinds
        if not mla or types[0] == types[1]
        for rest in product((64, 512), (512, 4096, 16_384), (1, 8), (False, True), (False, True))
    ]
    return random.Random(seed).sample(every, count)


class Engine:
    """A model without its weights, to be asked about plans whose parameters are known to be good."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def ask(self, made: Plan) -> DryRun:
        with LogLines() as log:
            Context(self._weights, context_params(made)).close()
        return parse(log.lines, made)


@contextmanager
def engine(path: Path) -> Iterator[Engine]:
    weights = Weights(path, no_alloc=True)
    yield Engine(weights)
    weights.close()


def agrees(path: Path, count: int) -> None:
    """Cells, caches and states as the engine's log has them; the buffers never under and hardly over."""
    profile = from_gguf(path)
    mla = profile.arch == "deepseek2"
    with engine(path) as engine_:
        for shape in shapes(path.stem, count, mla=mla):
            made = shape.plan(profile)
            asked = engine_.ask(made)
            assert (asked.cells, asked.sliding_cells) == (made.cells, made.sliding_cells), shape
            assert (asked.kv_bytes, asked.recurrent_bytes) == (made.kv_bytes, made.recurrent_bytes), shape
            assert asked.compute_bytes <= made.compute_bytes, shape
            assert made.compute_bytes <= shape.most(asked.compute_bytes, mla=mla), shape
            assert with_dry_run(made, asked).total_bytes <= made.total_bytes


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_pretrained(model: str, request: pytest.FixtureRequest) -> None:
    agrees(request.getfixturevalue(model), 96)


@pytest.mark.parametrize("arch", ["granitehybrid", "lfm2", "qwen35", "qwen35moe"])
def test_tiny(tmp_path: Path, arch: str) -> None:
    agrees(WRITERS[arch](tmp_path / f"{arch}.gguf"), 96)


@pytest.mark.parametrize("arch", BLOCKS)
def test_blocks_of_large_models(tmp_path: Path, arch: str) -> None:
    sparse = WRITERS[arch](tmp_path / f"{arch}.gguf", sparse=True, vocabulary=32_000, **BLOCKS[arch])
    agrees(sparse, 48)


def evicting(profile: ModelProfile, count: int) -> list[Plan]:
    """Plans whose cells and micro-batches are an eviction mode's, some of which want rows of logits."""
    policies, types = (
        ("h2o", "window", "keydiff"),
        ("f16",) if profile.arch == "deepseek2" else ("f16", "q8_0"),
    )
    every = list(product(policies, types, (16, 64, 256), (600, 4096), (1, 8), (0, 128), (False, True)))
    plans = []
    for policy, k, chunk, cells, workers, outputs, documents in random.Random(profile.arch).sample(
        every, count
    ):
        mode = KvModeConfig(policy=policy, k=k, chunk=chunk, budget=cells)  # type: ignore[arg-type]
        n_seq_max = sequences_needed(workers, 1, documents=documents, sliding=profile.sliding_window > 0)
        request = ask(
            replace(profile, n_ctx_train=32_768), prefix=6000, workers=workers, documents=documents, kv_mode=mode,
            flash_attn=mode.needs != "attention", n_seq_max=n_seq_max,
        )  # fmt: skip
        demand = replace(request.demand, outputs=min(outputs, chunk))
        plans.append(resolve(replace(request, demand=demand)))
    return plans


@pytest.mark.parametrize("arch", ["deepseek2", "lfm2", "llama", "qwen35moe"])
def test_eviction(tmp_path: Path, arch: str) -> None:
    """As above; the rows of the output buffer that a context only gets later are added to what it logs."""
    sparse = WRITERS[arch](tmp_path / f"{arch}.gguf", sparse=True, vocabulary=32_000, **BLOCKS[arch])
    with engine(sparse) as engine_:
        for made in evicting(from_gguf(sparse), 24):
            asked = engine_.ask(made)
            exact = with_dry_run(made, asked)
            assert (asked.cells, asked.kv_bytes, asked.recurrent_bytes) == (
                made.cells, made.kv_bytes, made.recurrent_bytes
            )  # fmt: skip
            most = (1.5 if arch == "deepseek2" else 1.2) * exact.compute_bytes
            assert exact.compute_bytes <= made.compute_bytes <= most, made

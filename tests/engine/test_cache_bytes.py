"""The bytes in a plan are the bytes that the engine allocates: the sum of its cache tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import write_qwen35moe

from runner.config import KvModeConfig, WindowConfig
from runner.engine.context import Context, context_params
from runner.engine.tap import CacheTensors
from runner.engine.weights import Weights
from runner.planning.gguf_header import from_gguf
from runner.planning.hardware import GIB, Hardware
from runner.planning.plan import Demand, resolve
from runner.planning.sequences import sequences_needed

ROOMY = Hardware("auto", 512 * GIB, 512 * GIB, 512 * GIB)


def allocated_and_planned(path: Path, mode: KvModeConfig, workers: int) -> tuple[int, int]:
    profile = from_gguf(path)
    n_seq_max = sequences_needed(workers, 1, documents=False, sliding=profile.sliding_window > 0)
    plan = resolve(
        profile, ROOMY, model_name="m", kv_mode=mode, window=WindowConfig(),
        demand=Demand(1300, 64, workers, n_seq_max=n_seq_max), flash_attn=True, n_ubatch=64, n_threads=1,
    )  # fmt: skip
    tensors, weights = CacheTensors(), Weights(path)
    context = Context(weights, context_params(plan), tensors)
    context.decode([1], [0], [0], [True])
    context.close()
    weights.close()
    return sum(tensors.bytes_by_name.values()), plan.kv_bytes


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("k,v", [("f16", "f16"), ("q8_0", "q4_0"), ("f32", "bf16")])
def test_smollm2(smollm2: Path, k: str, v: str, workers: int) -> None:
    allocated, planned = allocated_and_planned(smollm2, KvModeConfig(k=k, v=v), workers)  # type: ignore[arg-type]
    assert allocated == planned > 0


@pytest.mark.parametrize("swa_full", [False, True])
@pytest.mark.parametrize("workers", [1, 8])
def test_gemma3(gemma3: Path, swa_full: bool, workers: int) -> None:
    allocated, planned = allocated_and_planned(gemma3, KvModeConfig(swa_full=swa_full), workers)
    assert allocated == planned > 0


def test_hybrid(tmp_path: Path) -> None:
    allocated, planned = allocated_and_planned(write_qwen35moe(tmp_path / "m.gguf"), KvModeConfig(), 3)
    assert allocated == planned > 0

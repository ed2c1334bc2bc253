"""The bytes in a plan are the bytes that the engine allocates: the sum of its cache and state tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned import plan
from tensors import CELLS, STATES, Seen
from tiny_models import WRITERS

from runner.engine.context import Context, context_params
from runner.engine.tap import CacheTap
from runner.engine.tensors import read_bytes
from runner.engine.weights import Weights
from runner.kv_mode import KvModeConfig
from runner.planning.model.gguf_header import from_gguf
from runner.planning.plan import Plan
from runner.planning.sequences import sequences_needed

HYBRIDS = ("granitehybrid", "lfm2", "qwen35", "qwen35moe")


def planned(path: Path, mode: KvModeConfig, workers: int, *, flash_attn: bool = True) -> Plan:
    profile = from_gguf(path)
    sliding = profile.sliding_window > 0 and not mode.swa_full
    return plan(
        profile, prefix=1300, workers=workers, kv_mode=mode, n_ubatch=64, flash_attn=flash_attn,
        n_seq_max=sequences_needed(workers, 1, documents=False, sliding=sliding),
    )  # fmt: skip


def agree(path: Path, made: Plan) -> None:
    """To the byte, for cells and for states."""
    seen, weights = Seen(), Weights(path)
    context = Context(weights, context_params(made), seen)
    context.decode([1], [0], [0], [True])
    context.close()
    weights.close()
    assert seen.bytes(CELLS) == made.kv_bytes > 0
    assert seen.bytes(STATES) == made.recurrent_bytes


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize(("k", "v"), [("f16", "f16"), ("q8_0", "q4_0"), ("f32", "bf16"), ("q5_1", "iq4_nl")])
def test_smollm2(smollm2: Path, k: str, v: str, workers: int) -> None:
    agree(smollm2, planned(smollm2, KvModeConfig(k=k, v=v), workers))  # type: ignore[arg-type]


@pytest.mark.parametrize("swa_full", [False, True])
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("flash_attn", [False, True])
def test_gemma3(gemma3: Path, swa_full: bool, workers: int, flash_attn: bool) -> None:
    agree(gemma3, planned(gemma3, KvModeConfig(swa_full=swa_full), workers, flash_attn=flash_attn))


@pytest.mark.parametrize("arch", WRITERS)
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_every_kind_of_layer(tmp_path: Path, arch: str, workers: int, kv_type: str) -> None:
    path = WRITERS[arch](tmp_path / f"{arch}.gguf")
    made = planned(path, KvModeConfig(k=kv_type, v=kv_type), workers)  # type: ignore[arg-type]
    assert (made.recurrent_bytes > 0) == (arch in HYBRIDS)
    agree(path, made)


@pytest.mark.parametrize("flash_attn", [False, True])
def test_the_tap_finds_every_cell_tensor(gemma3: Path, flash_attn: bool) -> None:
    made = planned(gemma3, KvModeConfig(), 2, flash_attn=flash_attn)
    tap, weights = CacheTap({}, made.cells, moment=0), Weights(gemma3)
    context = Context(weights, context_params(made), tap)
    context.decode([1], [0], [0], [True])
    assert sum(read_bytes(address).nbytes for address in tap.tensors.values()) == made.kv_bytes
    context.close()
    weights.close()

"""The formulas against the engine: what the planner predicts is what llama.cpp says it would allocate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import WRITERS, write_llama, write_qwen3moe

from runner.config import KvModeConfig, WindowConfig
from runner.engine import dryrun
from runner.engine.dryrun import dry_run
from runner.errors import EngineError
from runner.planning.gguf_header import from_gguf
from runner.planning.hardware import GIB, Hardware
from runner.planning.plan import Demand, Plan, resolve, with_dry_run

ROOMY = Hardware("auto", 512 * GIB, 512 * GIB, 512 * GIB)


def plan(
    path: Path,
    *,
    k: str = "f16",
    v: str = "f16",
    swa_full: bool = False,
    workers: int = 1,
    prefix: int = 2000,
    flash_attn: bool = True,
    n_ubatch: int = 512,
) -> Plan:
    return resolve(
        from_gguf(path),
        ROOMY,
        model_name=path.stem,
        kv_mode=KvModeConfig(k=k, v=v, swa_full=swa_full),  # type: ignore[arg-type]
        window=WindowConfig(),
        demand=Demand(prefix, 64, workers, n_seq_max=workers),
        flash_attn=flash_attn,
        n_ubatch=n_ubatch,
        n_threads=1,
    )


TYPES = [
    ("f16", "f16"),
    ("q8_0", "q8_0"),
    ("q8_0", "q4_0"),
    ("f32", "bf16"),
    ("q5_1", "q5_0"),
    ("q4_1", "iq4_nl"),
]


def agrees(path: Path, made: Plan) -> None:
    """To the byte for the cache and the states; for the buffers never under, and at most 15 % over."""
    asked = dry_run(path, made)
    assert (asked.kv_bytes, asked.recurrent_bytes) == (made.kv_bytes, made.recurrent_bytes)
    assert (asked.cells, asked.sliding_cells) == (made.cells, made.sliding_cells)
    assert asked.compute_bytes <= made.compute_bytes <= 1.15 * asked.compute_bytes
    assert with_dry_run(made, asked).total_bytes <= made.total_bytes


@pytest.mark.parametrize(("k", "v"), TYPES)
@pytest.mark.parametrize("workers", [1, 8])
def test_smollm2(smollm2: Path, k: str, v: str, workers: int) -> None:
    agrees(smollm2, plan(smollm2, k=k, v=v, workers=workers))


@pytest.mark.parametrize(("k", "v"), TYPES[:3])
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("swa_full", [True, False])
def test_gemma3(gemma3: Path, k: str, v: str, workers: int, swa_full: bool) -> None:
    agrees(gemma3, plan(gemma3, k=k, v=v, workers=workers, swa_full=swa_full))


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
@pytest.mark.parametrize("k", ["f16", "q8_0"])
@pytest.mark.parametrize("n_ubatch", [64, 512])
def test_without_flash_attention(model: str, k: str, n_ubatch: int, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    agrees(path, plan(path, k=k, flash_attn=False, n_ubatch=n_ubatch, workers=8))


@pytest.mark.parametrize("arch", WRITERS)
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_every_kind_of_layer(tmp_path: Path, arch: str, workers: int, kv_type: str) -> None:
    """Cache and states of tiny models; their buffers are too small for a bound in per cent to mean anything."""
    path = WRITERS[arch](tmp_path / f"{arch}.gguf")
    made = plan(path, k=kv_type, v=kv_type, workers=workers)
    asked = dry_run(path, made)
    assert (asked.kv_bytes, asked.recurrent_bytes) == (made.kv_bytes, made.recurrent_bytes)
    assert asked.cells == made.cells


LARGE = {
    "qwen35moe": {"n_embd": 2048, "n_head": 16, "n_head_kv": 2, "head_dim": 256, "d_state": 128, "dt_rank": 32,
                  "n_group": 16, "n_expert": 256, "n_expert_used": 8, "n_ff_expert": 512, "n_layer": 4},
    "qwen35": {"n_embd": 5120, "n_head": 24, "n_head_kv": 4, "head_dim": 256, "d_state": 128, "dt_rank": 48,
               "n_group": 16, "n_ff": 17_408, "n_layer": 4},
    "qwen3moe": {"n_embd": 2048, "n_head": 32, "n_head_kv": 4, "head_dim": 128, "n_ff": 5472, "n_expert": 128,
                 "n_expert_used": 8, "n_ff_expert": 768},
    "granitehybrid": {"n_embd": 2048, "n_head": 32, "n_head_kv": 8, "n_ff": 8192, "d_state": 128, "dt_rank": 64},
    "lfm2": {"n_embd": 2048, "n_head": 32, "n_head_kv": 8, "n_ff": 8192},
    "llama": {"n_embd": 4096, "n_head": 32, "n_head_kv": 8, "n_ff": 14_336},
}  # fmt: skip
"""The blocks of Qwen3.5-35B-A3B and 27B, Qwen3-Coder-30B-A3B, Granite 4 H, LFM2 1.2B and Llama 3.1 8B."""


@pytest.mark.parametrize("arch", LARGE)
@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize(("workers", "n_ubatch"), [(1, 512), (8, 64)])
def test_blocks_of_large_models(
    tmp_path: Path, arch: str, flash_attn: bool, workers: int, n_ubatch: int
) -> None:
    path = WRITERS[arch](tmp_path / f"{arch}.gguf", sparse=True, vocabulary=32_000, **LARGE[arch])
    agrees(path, plan(path, flash_attn=flash_attn, workers=workers, n_ubatch=n_ubatch, prefix=4000))


def test_the_engines_refusal_is_one_line(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    impossible = replace(plan(path, v="q8_0"), flash_attn=False)
    with pytest.raises(
        EngineError, match=r"dry run of tiny.gguf failed: .*quantized V cache requires flash_attn"
    ):
        dry_run(path, impossible)


def test_an_assert_that_ends_the_process_is_an_error_with_its_reason(tmp_path: Path) -> None:
    # More experts a token than there are: llama.cpp asserts that this cannot be.
    path = write_qwen3moe(tmp_path / "tiny.gguf", n_expert=2, n_expert_used=3)
    with pytest.raises(EngineError, match=r"dry run of tiny.gguf failed: .*GGML_ASSERT.*n_expert") as error:
        dry_run(path, plan(path))
    assert "\n" not in str(error.value)


def test_a_log_of_another_version_is_not_guessed_at(smollm2: Path) -> None:
    with pytest.raises(EngineError, match="names no buffers"):
        dryrun.parse(["llama_context: something else"], plan(smollm2))


def test_a_log_that_contradicts_the_formula_wins(smollm2: Path) -> None:
    made = plan(smollm2, prefix=4000)
    lines = [
        "llama_kv_cache: size =   90.01 MiB (  4096 cells,  30 layers,  1/1 seqs), K (f16):   45.00 MiB",
        "sched_reserve:        CPU compute buffer size =    17.51 MiB",
        "llama_context:        CPU  output buffer size =     0.19 MiB",
    ]
    asked = dryrun.parse(lines, made)
    assert 90.01 * 2**20 <= asked.kv_bytes <= 90.02 * 2**20
    exact = [lines[0].replace("90.01", "90.00"), *lines[1:]]
    assert dryrun.parse(exact, made).kv_bytes == 4096 * 23_040

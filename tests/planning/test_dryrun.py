"""The formulas against the engine: what the planner predicts is what llama.cpp says it would allocate."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from planned import AUTO, KIB, MIB, ask, card, plan
from tiny_models import WRITERS, write_llama, write_qwen3moe, write_qwen35, write_qwen35moe

from runner.engine import dryrun
from runner.engine.context import Context, context_params
from runner.engine.dryrun import LogLines, dry_run
from runner.engine.weights import Weights
from runner.errors import EngineError
from runner.kv_mode import KvModeConfig
from runner.planning.model.gguf_header import from_gguf
from runner.planning.plan import Plan
from runner.planning.resolve import resolve, with_dry_run
from runner.planning.sequences import sequences_needed


def of(
    path: Path, *, k: str = "f16", v: str = "f16", swa_full: bool = False, workers: int = 1, prefix: int = 2000,
    flash_attn: bool = True, n_ubatch: int = 512,
) -> Plan:  # fmt: skip
    return plan(
        from_gguf(path), prefix=prefix, workers=workers, flash_attn=flash_attn, n_ubatch=n_ubatch,
        kv_mode=KvModeConfig(k=k, v=v, swa_full=swa_full),  # type: ignore[arg-type]
    )  # fmt: skip


def agrees(path: Path, made: Plan) -> None:
    """To the byte for the cache and the states; for the buffers never under, and at most 15 % over."""
    asked = dry_run(path, made)
    assert (asked.kv_bytes, asked.recurrent_bytes) == (made.kv_bytes, made.recurrent_bytes)
    assert (asked.cells, asked.sliding_cells) == (made.cells, made.sliding_cells)
    exact = with_dry_run(made, asked)
    assert exact.compute_bytes <= made.compute_bytes <= 1.15 * exact.compute_bytes
    assert exact.total_bytes <= made.total_bytes


@pytest.mark.parametrize(("k", "v"), [("f16", "f16"), ("q8_0", "q4_0"), ("q5_1", "iq4_nl")])
@pytest.mark.parametrize("workers", [1, 8])
def test_smollm2(smollm2: Path, k: str, v: str, workers: int) -> None:
    agrees(smollm2, of(smollm2, k=k, v=v, workers=workers))


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("swa_full", [True, False])
def test_gemma3(gemma3: Path, workers: int, swa_full: bool) -> None:
    agrees(gemma3, of(gemma3, workers=workers, swa_full=swa_full))


@pytest.mark.parametrize("arch", WRITERS)
def test_every_kind_of_layer(tmp_path: Path, arch: str) -> None:
    path = WRITERS[arch](tmp_path / f"{arch}.gguf")
    made = of(path, workers=8)
    asked = dry_run(path, made)
    assert (asked.kv_bytes, asked.recurrent_bytes) == (made.kv_bytes, made.recurrent_bytes)
    assert asked.cells == made.cells
    assert asked.compute_bytes <= made.compute_bytes


EVICTING = [
    (KvModeConfig(policy="h2o"), 8, 0),
    (KvModeConfig(policy="window", budget=512, chunk=128), 1, 0),
    (KvModeConfig(policy="mean", k="q8_0", budget=600, chunk=64), 3, 0),
    (KvModeConfig(policy="keydiff", k="q8_0", v="q4_0"), 2, 128),
    (KvModeConfig(codec="fp8", policy="h2o", chunk=512), 1, 128),
]
"""A mode, workers, and tokens whose logits are wanted."""


def evicting(path: Path, mode: KvModeConfig, workers: int, outputs: int, *, documents: bool = False) -> Plan:
    profile = from_gguf(path)
    sliding = profile.sliding_window > 0
    request = ask(
        profile, prefix=7000, workers=workers, kv_mode=mode, flash_attn=mode.needs != "attention",
        documents=documents,
        n_seq_max=sequences_needed(workers, 1, documents=documents, sliding=sliding),
    )  # fmt: skip
    return resolve(replace(request, demand=replace(request.demand, outputs=outputs)))


@pytest.mark.parametrize(("mode", "workers", "outputs"), EVICTING)
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_eviction(
    model: str, mode: KvModeConfig, workers: int, outputs: int, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(model)
    agrees(path, evicting(path, mode, workers, outputs, documents=workers == 3))


@pytest.mark.parametrize("arch", WRITERS)
def test_eviction_in_every_kind_of_layer(tmp_path: Path, arch: str) -> None:
    path = WRITERS[arch](tmp_path / f"{arch}.gguf")
    made = evicting(path, KvModeConfig(policy="h2o"), 4, 0)
    asked = dry_run(path, made)
    assert (asked.kv_bytes, asked.recurrent_bytes) == (made.kv_bytes, made.recurrent_bytes)
    assert asked.cells == made.cells == 1280
    assert asked.compute_bytes <= made.compute_bytes


def test_rows_of_logits_beyond_the_sequences_come_late(gemma3: Path) -> None:
    """The log has a row for each sequence; the process grows by the others when they are first wanted."""
    made = replace(of(gemma3, prefix=400, n_ubatch=256), n_outputs=128)
    assert with_dry_run(made, dry_run(gemma3, made)).compute_bytes == (
        dry_run(gemma3, made).compute_bytes + 127 * 262_144 * 4
    )
    weights = Weights(gemma3)
    context = Context(weights, context_params(made))
    rows = []
    for outputs in (1, 128):
        context.decode(range(1, 129), range(128), [0] * 128, [n >= 128 - outputs for n in range(128)])
        rows.append(psutil.Process().memory_info().rss)
        context.clear()
    context.close()
    weights.close()
    # Once in the graph, which was reserved and is touched now, and once in the buffer.
    assert (rows[1] - rows[0]) / MIB == pytest.approx(2 * 127, rel=0.1)


def test_the_engines_refusal_is_one_line(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    impossible = replace(of(path, v="q8_0"), flash_attn=False)
    with pytest.raises(
        EngineError, match=r"dry run of tiny.gguf failed: .*quantized V cache requires flash_attn"
    ):
        dry_run(path, impossible)


def test_an_assert_that_ends_the_process_is_an_error_with_its_reason(tmp_path: Path) -> None:
    # More experts a token than there are: llama.cpp asserts that this cannot be.
    path = write_qwen3moe(tmp_path / "tiny.gguf", n_expert=2, n_expert_used=3)
    with pytest.raises(EngineError, match=r"dry run of tiny.gguf failed: .*GGML_ASSERT.*n_expert") as error:
        dry_run(path, of(path))
    assert "\n" not in str(error.value)


def test_a_log_of_another_version_is_not_guessed_at(smollm2: Path) -> None:
    with pytest.raises(EngineError, match="names no buffers"):
        dryrun.parse(["llama_context: something else"], of(smollm2))


def test_a_log_that_contradicts_the_formula_wins(smollm2: Path) -> None:
    made = of(smollm2, prefix=4000)
    lines = [
        "llama_kv_cache: size =   90.01 MiB (  4096 cells,  30 layers,  1/1 seqs), K (f16):   45.00 MiB",
        "sched_reserve:        CPU compute buffer size =    17.51 MiB",
        "llama_context:        CPU  output buffer size =     0.19 MiB",
    ]
    asked = dryrun.parse(lines, made)
    assert 90.01 * 2**20 <= asked.kv_bytes <= 90.02 * 2**20
    exact = [lines[0].replace("90.01", "90.00"), *lines[1:]]
    assert dryrun.parse(exact, made).kv_bytes == 4096 * 23_040


def test_what_leaves_a_card_leaves_it_in_the_dry_run_too(tmp_path: Path) -> None:
    """Without a card nothing can move: the figures stay, and the engine reads the patterns."""
    for path in (write_qwen35moe(tmp_path / "moe.gguf"), write_qwen35(tmp_path / "dense.gguf")):
        profile = from_gguf(path)
        made = plan(profile, card(200 * KIB + plan(profile).compute_bytes), spill=replace(AUTO, kv=True))
        assert made.spill is not None and made.spill.overrides
        assert not made.offload_kqv and made.n_gpu_layers > 0
        assert dry_run(path, made) == dry_run(path, plan(profile))
        broken = replace(made, spill=replace(made.spill, overrides=("blk.(",)))
        with pytest.raises(EngineError, match=r"failed: "):
            dry_run(path, broken)


def test_weights_that_are_paged_leave_their_copies_in_memory(gemma3: Path) -> None:
    """27 of Gemma's matrices are Q4_K, which llama.cpp copies where the processor has AVX2."""
    made = of(gemma3)
    asked, paged = dry_run(gemma3, made), dry_run(gemma3, replace(made, weights="mapped"))
    with LogLines() as log:
        Weights(gemma3).close()
    [copies] = re.findall(r"CPU_REPACK model buffer size = +([\d.]+) MiB", "\n".join(log.lines)) or ["0"]
    assert (paged.compute_bytes - asked.compute_bytes) / MIB == pytest.approx(float(copies), abs=0.005)
    assert replace(paged, compute_bytes=asked.compute_bytes) == asked


def test_no_copies_of_what_has_no_better_layout(smollm2: Path) -> None:
    made = of(smollm2)
    assert dry_run(smollm2, replace(made, weights="mapped")) == dry_run(smollm2, made)

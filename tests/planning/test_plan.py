from __future__ import annotations

import time
from dataclasses import replace

import pytest
from planned import AUTO, DENSE, HYBRID, MIB, MIXTURE, Q8, SMALL, ask, card, declared, host, plan, unified

from runner.config import SpillConfig, WindowConfig
from runner.errors import PlanRefusedError
from runner.kv_mode import KvModeConfig
from runner.planning.hardware.budget import GIB
from runner.planning.model.profile import Layer, ModelProfile
from runner.planning.plan import DryRun
from runner.planning.resolve import at_window, resolve, with_dry_run
from runner.tables.schemas import SCHEMAS

SLIDING = ModelProfile(
    "gemma3", (*((Layer("sliding", 1, 256, 256),) * 15), *((Layer("full", 1, 256, 256),) * 3)), n_layer=18,
    n_embd=640, n_head=4, n_ff=2048, n_vocab=262_144, n_ctx_train=32_768, weights_bytes=246_587_904,
    sliding_window=512,
)  # fmt: skip


def test_a_worker_costs_its_answer_and_nothing_else() -> None:
    one, nine = plan(workers=1, suffix=256, prefix=2304), plan(workers=9, suffix=256, prefix=2304)
    assert nine.cells - one.cells == 8 * 256
    assert nine.kv_bytes - one.kv_bytes == 8 * 256 * 23_040
    assert nine.weights_bytes == one.weights_bytes == 96_576_768


def test_cells_are_prompt_plus_answers_padded() -> None:
    made = plan(prefix=1000, suffix=64, workers=5, in_flight=3)
    assert made.cells == 4096  # 3 * (1000 + 5 * 64) = 3960
    assert made.window_tokens == 1064
    assert made.kv_bytes == 4096 * 23_040


def test_total_is_the_sum_of_its_kinds() -> None:
    made = plan(mmproj_bytes=7)
    parts = (
        made.weights_bytes
        + made.kv_bytes
        + made.recurrent_bytes
        + made.compute_bytes
        + made.overhead_bytes
        + made.mmproj_bytes
    )
    assert made.total_bytes == parts
    assert (made.status, made.missing_bytes, made.source, made.reason) == ("fits", 0, "formula", "")


def test_recurrent_state_is_charged_per_sequence() -> None:
    assert plan(HYBRID, workers=8).recurrent_bytes == 8 * 12 * 4 * MIB
    assert plan(HYBRID, workers=8, n_seq_max=10).recurrent_bytes == 10 * 12 * 4 * MIB


def test_the_reference_models_weigh_what_they_weigh() -> None:
    """Cells of 10,880, 16,320 and 13,056 bytes in q8_0, states of 62.81, 186.3 and 75.4 MiB."""
    for name, cell, state in (
        ("qwen35b", 10_880, 62.81),
        ("qwen397b", 16_320, 186.3),
        ("qwen_next_80b", 13_056, 75.4),
    ):
        made = plan(declared(name), host(500 * GIB), kv_mode=Q8, prefix=4096 - 64)
        assert made.kv_bytes == 4096 * cell
        assert made.recurrent_bytes / MIB == pytest.approx(state, abs=0.05)


def test_every_output_that_is_wanted_has_its_logits() -> None:
    request = ask(workers=5)
    many = resolve(replace(request, demand=replace(request.demand, outputs=300)))
    assert (resolve(request).n_outputs, many.n_outputs) == (5, 300)
    assert many.compute_bytes - resolve(request).compute_bytes >= 295 * 49_152 * 4


def test_draft_heads_are_not_loaded() -> None:
    drafting = replace(
        DENSE, n_mtp_layer=1, mtp_bytes=300 * MIB, weights_bytes=DENSE.weights_bytes + 300 * MIB
    )
    assert plan(drafting).weights_bytes == plan(DENSE).weights_bytes


def test_a_fixed_window_reserves_the_whole_window() -> None:
    made = plan(window=WindowConfig(policy="fixed", tokens=4096), prefix=1000, suffix=64, workers=5)
    assert made.window_tokens == 4096
    assert made.cells == 4352  # 4096 - 64 + 5 * 64 = 4352


def test_sliding_layers_keep_their_window_and_a_micro_batch() -> None:
    made = plan(SLIDING, prefix=8000, workers=3, n_seq_max=4)
    assert (made.cells, made.sliding_cells) == (8192, 2560)  # 4 * 512 + 512
    assert made.kv_bytes == (3 * 8192 + 15 * 2560) * 1024
    full = plan(SLIDING, prefix=8000, workers=3, kv_mode=KvModeConfig(swa_full=True))
    assert full.sliding_cells == full.cells


def test_a_document_beside_a_small_sliding_cache_keeps_a_window_of_its_own() -> None:
    short = plan(SLIDING, prefix=300, workers=2, documents=True)
    assert short.cells == 768  # 2 * 300 + 2 * 64, padded
    assert plan(SLIDING, prefix=300, workers=2).cells == 512
    full = KvModeConfig(swa_full=True)
    assert plan(SLIDING, prefix=300, workers=2, documents=True, kv_mode=full).cells == 512
    assert (
        plan(SLIDING, prefix=3000, workers=2, documents=True).cells
        == plan(SLIDING, prefix=3000, workers=2).cells
    )


@pytest.mark.parametrize(
    ("window", "prefix", "suffix", "message"),
    [
        (WindowConfig(policy="fixed", tokens=1024), 1000, 64,
         r"1000 prompt tokens and 64 for the answer make 1064, window.tokens is 1024; set window.tokens=1064"),
        (WindowConfig(max=1024), 1000, 64, r"make 1064, window.max is 1024; raise window.max"),
        (WindowConfig(policy="fixed", tokens=2048, max=1024), 10, 64, r"window.tokens=2048, window.max is 1024"),
        (WindowConfig(), 9000, 64, r"beyond the model's native length: 9000 .* make 9064, .* trained to 8192"),
        (WindowConfig(policy="fixed", tokens=10_000), 10, 64, r"native length: window.tokens=10000, .* to 8192"),
    ],
)  # fmt: skip
def test_windows_that_are_refused(window: WindowConfig, prefix: int, suffix: int, message: str) -> None:
    with pytest.raises(PlanRefusedError, match=message):
        plan(window=window, prefix=prefix, suffix=suffix)


def test_a_window_that_an_answer_fills_is_refused() -> None:
    request = ask(prefix=1, suffix=512)
    assert at_window(request, 513).window_tokens == 513
    with pytest.raises(
        PlanRefusedError, match="an answer of 512 tokens leaves no room for a prompt in a window of 512"
    ):
        at_window(request, 512)


def test_the_native_length_itself_is_fine() -> None:
    assert plan(prefix=8192 - 64, suffix=64).window_tokens == 8192


def test_a_refusal_names_every_kind_and_what_is_missing() -> None:
    need = plan(HYBRID, workers=4).total_bytes
    made = plan(HYBRID, host(need - 20 * MIB), workers=4, weights="resident")
    assert (made.status, made.missing_bytes) == ("refused", 20 * MIB)
    assert "\n" not in made.reason
    assert made.reason.startswith(
        f"small with 4 workers does not fit: it needs {need / GIB:.2f} GiB (weights "
    )
    for kind in ("weights", "kv", "recurrent", "compute", "overhead"):
        assert f"{kind} " in made.reason
    assert f"{(need - 20 * MIB) / GIB:.2f} GiB are available, 20.0 MiB of RAM are missing" in made.reason


@pytest.mark.parametrize("hardware", [host(), card(50 * GIB), unified(50 * GIB)])
def test_the_same_request_gives_the_same_plan(hardware: object) -> None:
    assert resolve(ask(MIXTURE, hardware)) == resolve(ask(MIXTURE, hardware))  # type: ignore[arg-type]


def test_a_dry_run_replaces_the_estimate_and_may_refuse() -> None:
    made = plan()
    dry = DryRun(made.kv_bytes, 0, made.compute_bytes - MIB, made.cells)
    assert with_dry_run(made, dry).total_bytes == made.total_bytes - MIB
    assert with_dry_run(made, dry).source == "dry_run"
    tight = plan(hardware=host(made.total_bytes + MIB), weights="resident")
    assert tight.status == "fits"
    after = with_dry_run(tight, replace(dry, compute_bytes=made.compute_bytes + 2 * MIB))
    assert (after.status, after.missing_bytes) == ("refused", MIB)


def test_a_dry_run_spills_more_where_the_plan_may_spill() -> None:
    whole = plan(MIXTURE, card(100 * GIB))
    exact = plan(MIXTURE, card(whole.vram_bytes - 400 * MIB), spill=AUTO)
    assert exact.spill is not None and exact.spill.n_cpu_moe == 1
    told = DryRun(exact.kv_bytes, 0, exact.compute_bytes + MIB, exact.cells)
    after = with_dry_run(exact, told)
    assert after.status == "spilled" and after.spill is not None and after.spill.n_cpu_moe == 2
    strict = plan(MIXTURE, card(whole.vram_bytes))
    assert with_dry_run(strict, replace(told, compute_bytes=strict.compute_bytes + MIB)).status == "refused"


def test_a_dry_run_keeps_the_cache_where_it_was() -> None:
    made = plan(DENSE, card(50 * GIB), spill=SpillConfig(kv=True))
    after = with_dry_run(made, DryRun(made.kv_bytes, 0, made.compute_bytes, made.cells))
    assert (after.offload_kqv, after.vram_bytes, after.ram_bytes) == (False, made.vram_bytes, made.ram_bytes)


def test_what_is_not_known_is_said() -> None:
    strange = plan(replace(SMALL, arch="llama9", known=False, approximate=True))
    assert any("llama9 is not modelled" in note for note in strange.notes)
    assert any("declared, not read" in note for note in strange.notes)
    assert "llama9" in strange.row()["reason"]
    dry = with_dry_run(strange, DryRun(strange.kv_bytes, 0, strange.compute_bytes, strange.cells))
    assert not any("not modelled" in note for note in dry.notes), "the engine has counted it"


def test_what_the_hardware_has_to_say_is_said() -> None:
    there = replace(host(), notes=("a card is here",), reason="this machine is smaller", runnable=False)
    made = plan(hardware=there)
    assert made.notes == ("a card is here", "this machine is smaller") and made.status == "fits"


def test_row_has_the_columns_of_the_table() -> None:
    for made in (plan(), plan(MIXTURE, card(4 * GIB), spill=AUTO), plan(DENSE, card(GIB))):
        row = made.row()
        assert set(row) == {name for name in SCHEMAS["plans"].names if name != "job_id"}
        assert row["flash_attn"] == "on" and row["llama_server"].startswith("llama-server ")
    assert row["status"] == "refused" and "are missing" in row["reason"]


def test_thousands_of_plans_a_second() -> None:
    profile, hardware = declared("qwen35b"), card(24 * GIB)
    requests = [ask(profile, hardware, workers=workers) for workers in range(1, 101)]
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        for request in requests:
            resolve(request)
        best = max(best, len(requests) / (time.perf_counter() - started))
    assert best >= 2000

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from runner.config import KvModeConfig, RecurrentConfig, WindowConfig
from runner.errors import ConfigError, PlanRefusedError
from runner.planning.hardware import GIB, Gpu, Hardware
from runner.planning.plan import Demand, DryRun, Plan, resolve, with_dry_run
from runner.planning.profile import Layer, ModelProfile
from runner.planning.remedies import accept, remedies
from runner.tables.schemas import SCHEMAS

MIB = 2**20
SMALL = ModelProfile("llama", (Layer("full", 3, 64, 64),) * 30, n_layer=30, n_embd=576, n_head=9, n_ff=1536,
                     n_vocab=49_152, n_ctx_train=8192, weights_bytes=96_576_768)  # fmt: skip
HYBRID = ModelProfile(
    "qwen35moe", (*((Layer("recurrent", state_bytes=1000),) * 3), Layer("full", 2, 256, 256)), n_layer=4,
    n_embd=512, n_head=4, n_ff=512, n_vocab=1000, n_ctx_train=262_144, weights_bytes=10**6,
    recurrent=RecurrentConfig(4, 64, 16, 1),
)  # fmt: skip
ROOMY = Hardware("auto", 64 * GIB, 60 * GIB, 50 * GIB)


def plan(
    profile: ModelProfile = SMALL,
    hardware: Hardware = ROOMY,
    *,
    kv: KvModeConfig | None = None,
    window: WindowConfig | None = None,
    prefix: int = 1000,
    suffix: int = 64,
    workers: int = 5,
    in_flight: int = 1,
    flash_attn: bool = True,
    n_ubatch: int = 512,
) -> Plan:
    return resolve(
        profile,
        hardware,
        model_name="small",
        kv_mode=kv or KvModeConfig(),
        window=window or WindowConfig(),
        demand=Demand(prefix, suffix, workers, in_flight, n_seq_max=in_flight * workers),
        flash_attn=flash_attn,
        n_ubatch=n_ubatch,
        n_threads=1,
    )


def ram(mib: float) -> Hardware:
    return replace(ROOMY, ram_budget=int(mib * MIB))


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
    made = plan()
    parts = (
        made.weights_bytes + made.kv_bytes + made.recurrent_bytes + made.compute_bytes + made.overhead_bytes
    )
    assert made.total_bytes == parts
    assert (made.status, made.missing_bytes, made.source, made.reason) == ("fits", 0, "formula", "")
    assert accept(made) is made


def test_recurrent_state_is_charged_per_sequence() -> None:
    assert plan(HYBRID, workers=8).recurrent_bytes == 8 * 3000


def test_a_fixed_window_reserves_the_whole_window() -> None:
    made = plan(window=WindowConfig(policy="fixed", tokens=4096), prefix=1000, suffix=64, workers=5)
    assert made.window_tokens == 4096
    assert made.cells == 4352  # 4096 - 64 + 5 * 64 = 4352


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


def test_the_native_length_itself_is_fine() -> None:
    assert plan(prefix=8192 - 64, suffix=64).window_tokens == 8192


@pytest.mark.parametrize(
    ("kv", "flash_attn", "profile", "message"),
    [
        (KvModeConfig(v="q8_0"), False, SMALL, "flash attention; set flash_attn=on or kv_mode.v=f16"),
        (KvModeConfig(k="q8_0"), True, replace(SMALL, layers=(Layer("full", 2, 80, 64),)), "heads of 80"),
        (
            KvModeConfig(k="q8_0"),
            True,
            replace(SMALL, layers=(Layer("full", 1, 576, 0),)),
            "one compressed row",
        ),
        (KvModeConfig(), True, SMALL, "window.tokens"),
    ],
)
def test_options_that_exclude_each_other(
    kv: KvModeConfig, flash_attn: bool, profile: ModelProfile, message: str
) -> None:
    window = WindowConfig(policy="fixed") if message == "window.tokens" else None
    with pytest.raises(ConfigError, match=message):
        plan(profile, kv=kv, flash_attn=flash_attn, window=window)


def test_quantised_keys_work_without_flash_attention() -> None:
    assert plan(kv=KvModeConfig(k="q8_0"), flash_attn=False).status == "fits"


def test_refusal_names_what_is_missing_and_only_what_helps() -> None:
    need = plan(workers=16, suffix=512, prefix=4000).total_bytes
    tight = plan(hardware=ram(need / MIB - 20), workers=16, suffix=512, prefix=4000)
    assert (tight.status, tight.missing_bytes) == ("refused", 20 * MIB)
    with pytest.raises(PlanRefusedError) as error:
        accept(tight)
    message = str(error.value)
    assert "\n" not in message
    assert "20.0 MiB are missing" in message
    assert "kv_mode=q8_0" in message
    assert "swarm_size=14" in message
    assert "in_flight" not in message


def test_each_remedy_makes_it_fit() -> None:
    need = plan(workers=16, suffix=512, prefix=4000, in_flight=2, n_ubatch=512).total_bytes
    tight = plan(hardware=ram(need / MIB - 30), workers=16, suffix=512, prefix=4000, in_flight=2)
    found = remedies(tight)
    changes = {
        "kv_mode=q8_0": {"kv": KvModeConfig("q8_0", "q8_0", "q8_0")},
        "in_flight=1": {"in_flight": 1},
        "n_ubatch=64": {"n_ubatch": 64},
    }
    base = {"workers": 16, "suffix": 512, "prefix": 4000, "in_flight": 2}
    for override in found:
        name, value = override.split("=")
        key = {"swarm_size": "workers", "sampling.max_tokens": "suffix"}.get(name)
        changed = base | ({key: int(value)} if key else changes[override])
        assert plan(hardware=tight.request.hardware, **changed).status == "fits", override  # type: ignore[union-attr, arg-type]
    workers = next(int(o.split("=")[1]) for o in found if o.startswith("swarm_size"))
    one_more = plan(hardware=ram(need / MIB - 30), **(base | {"workers": workers + 1}))  # type: ignore[arg-type]
    assert one_more.status == "refused"


def test_nothing_helps() -> None:
    with pytest.raises(PlanRefusedError, match="no single change makes it fit; choose a smaller model"):
        accept(plan(hardware=ram(50)))


def test_dry_run_replaces_the_estimate_and_may_refuse() -> None:
    made = plan()
    dry = DryRun(made.kv_bytes, 0, made.compute_bytes - MIB, made.cells)
    assert with_dry_run(made, dry).total_bytes == made.total_bytes - MIB
    assert with_dry_run(made, dry).source == "dry_run"
    tight = plan(hardware=ram(made.total_bytes / MIB + 1))
    assert tight.status == "fits"
    after = with_dry_run(tight, replace(dry, compute_bytes=made.compute_bytes + 2 * MIB))
    assert (after.status, after.missing_bytes) == ("refused", MIB)
    with pytest.raises(PlanRefusedError, match="n_ubatch=64"):
        accept(after)


def test_everything_on_the_card_or_nothing() -> None:
    card = replace(ROOMY, gpus=(Gpu("card", 8 * GIB, 8 * GIB),), vram_budget=6 * GIB)
    on_card = plan(hardware=card)
    assert (on_card.n_gpu_layers, on_card.status) == (31, "fits")
    too_small = plan(hardware=replace(card, vram_budget=64 * MIB))
    assert too_small.n_gpu_layers == 0
    assert any("runs on the CPU" in note for note in too_small.notes)


def test_what_is_not_known_is_said() -> None:
    strange = plan(replace(SMALL, arch="llama9", known=False, approximate=True))
    assert any("llama9 is not modelled" in note for note in strange.notes)
    assert any("declared, not read" in note for note in strange.notes)
    assert "llama9" in strange.row()["reason"]


def test_row_has_the_columns_of_the_table() -> None:
    row = plan().row()
    columns = {name for name in SCHEMAS["plans"].names if name != "job_id"}
    assert set(row) == columns
    assert row["flash_attn"] == "on"


def test_thousands_of_plans_a_second() -> None:
    started = time.perf_counter()
    for workers in range(1, 101):
        plan(HYBRID, workers=workers)
    assert 100 / (time.perf_counter() - started) > 2000

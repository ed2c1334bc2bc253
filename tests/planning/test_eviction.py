"""Plans of eviction modes: cells that depend on the budget alone, and what is charged beside them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import yaml
from planned import DENSE, HYBRID, MIB, MIXTURE, SMALL, ask, card, declared, host, plan, unified

from kvcache.policies import POLICIES, make_policy
from runner import identity
from runner.config import JobConfig, SpillConfig, SwarmConfig, WindowConfig, defaults
from runner.errors import BeyondTrainedError, ConfigError, PlanRefusedError
from runner.kv_mode import KvModeConfig
from runner.models.catalogue import named
from runner.parsing import conf_dir, parse
from runner.planner import Planner
from runner.planning.ask import Workload, request_for
from runner.planning.hardware.budget import GIB
from runner.planning.plan import Plan
from runner.planning.resolve import at_window, resolve
from runner.prompts import least_tokens
from runner.resolve import _least
from runner.tables.schemas import SCHEMAS

H2O = KvModeConfig(name="h2o", policy="h2o")
HELD = 88  # bytes for each head and cell
WINDOW = KvModeConfig(name="window", policy="window")
OPTIONS = sorted((conf_dir() / "kv_mode").glob("*.yaml"))


def evicting(profile: Any = SMALL, mode: KvModeConfig = H2O, **changes: Any) -> Plan:
    changes = {"prefix": 4000, "flash_attn": mode.needs != "attention", **changes}
    return plan(profile, kv_mode=mode, **changes)


# -- the options ---------------------------------------------------------------------------------------------


def option(name: str) -> KvModeConfig:
    values = yaml.safe_load((conf_dir() / "kv_mode" / f"{name}.yaml").read_text())
    mode: KvModeConfig = parse(KvModeConfig, {**defaults()["kv_mode"], **values})
    return mode


@pytest.mark.parametrize("name", [path.stem for path in OPTIONS])
def test_an_option_lists_its_policys_own_numbers(name: str) -> None:
    """So that ``kv_mode.options.decay=0.9`` needs no ``+``; what a paper's name stands for is its defaults."""
    mode = option(name)
    assert mode.name == name
    if mode.evicts:
        policy = make_policy(mode.policy, mode.options)
        assert set(mode.options) == {f.name for f in fields(policy)}
        assert name == "evict" or policy == POLICIES[mode.policy]()


def test_every_policy_has_an_option() -> None:
    assert {option(name).policy for name in POLICIES} == set(POLICIES)
    assert {option(name).codec for name in ("fp8", "fp8_window", "fp8_h2o")} == {"fp8"}
    assert (option("snapkv").pool, option("tova").granularity) == (7, "layer")


@pytest.mark.parametrize("value", [0, -1, 0.0, 1.0, 1.5, -0.5, True, "many", None])
def test_a_budget_is_cells_or_a_share(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse(JobConfig, {"kv_mode": {"budget": value}})
    assert str(error.value) == (
        f"kv_mode.budget={value!r}: give a whole number of cells, at least 1, or a share of the longest prompt "
        "between 0 and 1"
    )


@pytest.mark.parametrize(("value", "cells"), [(1, 1), (2048, 2048), (2048.0, 2048), (0.25, 1001), (1e-9, 1)])
def test_a_share_is_rounded_up(value: float, cells: int) -> None:
    mode = parse(KvModeConfig, {"policy": "h2o", "budget": value})
    assert mode.budget_cells(4001) == cells
    assert replace(mode, policy="none").budget_cells(4001) == 0


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ({"policy": "h20"}, "there are none, window, h2o, peak, guided, mean, snapkv, tova, keydiff"),
        ({"policy": "h2o", "options": {"decoy": 0.5}}, "no option 'decoy'; it has decay, grace"),
        ({"policy": "keydiff", "options": {"decay": 1.0}}, "no option 'decay'; it has none; kv_mode=keydiff"),
        ({"policy": "h2o", "options": {"decay": 1.1}}, "decay=1.1 is too much"),
        ({"policy": "mean", "options": {"decay": -0.1}}, "decay=-0.1 is too little"),
        ({"policy": "h2o", "options": {"grace": -1}}, "grace=-1 is too little"),
        ({"policy": "mean", "options": {"prior": -1}}, "prior=-1 is too little"),
        ({"policy": "snapkv", "options": {"observed": 0}}, "observed=0 is too little, it is at least 1"),
        ({"options": {"decay": 1.0}}, "there is no policy to have options"),
        ({"policy": "h2o", "options": {"decay": "much"}}, "kv_mode.options.decay='much'"),
    ],
)
def test_what_a_policy_is_told_is_checked_before_anything_loads(mode: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(JobConfig, {"kv_mode": mode})
    assert said in str(error.value) and "\n" not in str(error.value)


# -- cells ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [path.stem for path in OPTIONS if option(path.stem).evicts])
def test_cells_are_the_same_for_every_length_of_prompt(name: str) -> None:
    made = [evicting(mode=option(name), prefix=tokens, workers=5) for tokens in (2000, 4000, 8000)]
    assert {p.kv_bytes for p in made} == {1536 * 23_040}  # 1024 + 5 * 64, padded
    assert len({(p.cells, p.compute_bytes, p.overhead_bytes) for p in made}) == 1
    assert [p.window_tokens for p in made] == [2064, 4064, 8064]


def test_cells_are_budget_and_chunk_or_the_workers_answers() -> None:
    def cells(**changes: Any) -> int:
        keys = {f.name for f in fields(KvModeConfig)}
        mode = replace(H2O, **{key: value for key, value in changes.items() if key in keys})
        return evicting(mode=mode, **{k: v for k, v in changes.items() if k not in keys}).cells

    assert cells(workers=1) == 1280  # 1024 + 256
    assert cells(workers=1, budget=1000, chunk=24) == 1280  # 1000 + 64 = 1064
    assert cells(workers=9, budget=512) == 1280  # 512 + 9 * 64 = 1088
    assert cells(workers=9, budget=512, chunk=1024) == 1536
    # A worker keeps no more of a long answer than the budget, and an interval until the next eviction.
    assert cells(workers=2, budget=256, interval=32, suffix=4000) == 1024  # 256 + 2 * 288 = 832
    assert cells(budget=0.5) == 2304  # 2000 + 256
    assert cells(workers=8, processes=8, n_seq_max=1) == 1280


def test_columns_tell_cells_from_window() -> None:
    made = evicting(mode=replace(H2O, granularity="layer", codec="fp8", budget=0.25), prefix=4001)
    assert (made.policy, made.granularity, made.window_tokens) == ("h2o", "layer", 4065)
    assert (made.budget_cells, made.chunk_tokens, made.cells) == (1001, 256, 1280)
    # A byte an element and a float for each row of K and V: 30 * (2 * 192 + 8) a cell.
    assert (made.codec, made.codec_bytes) == ("fp8 (emulated)", 1280 * 11_760)
    assert made.kv_bytes == 1280 * 23_040 and made.total_bytes > made.kv_bytes
    assert any("emulated: 28.1 MiB are allocated" in note and "14.4 MiB" in note for note in made.notes)
    plain = plan()
    row = plain.row()
    assert (row["policy"], row["budget_cells"], row["chunk_tokens"], row["granularity"]) == ("none", 0, 0, "")
    assert (row["codec"], row["codec_bytes"]) == ("none", 0)
    assert set(made.row()) <= set(SCHEMAS["plans"].names)


def test_a_codec_saves_nothing() -> None:
    fp8 = plan(kv_mode=KvModeConfig(codec="fp8"))
    for kind in ("total_bytes", "ram_bytes", "kv_bytes", "compute_bytes", "overhead_bytes"):
        assert getattr(fp8, kind) == getattr(plan(), kind)


def test_no_batch_is_longer_than_a_chunk() -> None:
    made = evicting(mode=replace(H2O, chunk=64))
    assert made.n_ubatch == 64
    assert made.compute_bytes < evicting(mode=replace(H2O, chunk=512)).compute_bytes
    assert evicting(n_ubatch=32).n_ubatch == 32
    assert plan(kv_mode=replace(H2O, policy="none", chunk=64)).n_ubatch == 512


def test_sliding_layers_keep_their_own_cache() -> None:
    gemma = declared("gemma3_270m")
    made = evicting(gemma, prefix=16_000, workers=5, n_seq_max=6)
    assert (made.cells, made.sliding_cells) == (1536, 1536)
    long = evicting(gemma, replace(H2O, budget=8192), prefix=16_000, workers=1, n_seq_max=2)
    assert (long.cells, long.sliding_cells) == (8448, 1280)  # 2 * 512 + 256


def test_a_recurrent_state_is_not_evicted() -> None:
    assert evicting(HYBRID, workers=3).recurrent_bytes == plan(HYBRID, workers=3).recurrent_bytes > 0


# -- what stands beside the cells ----------------------------------------------------------------------------


def extra(profile: Any = SMALL, mode: KvModeConfig = H2O, **changes: Any) -> int:
    """Overhead beyond that of a plan whose cache is as large and evicts nothing."""
    made = evicting(profile, mode, **changes)
    alike = made.request
    prefix = made.cells - made.suffix_tokens * made.workers
    demand = replace(alike.demand, prefix_tokens=prefix, documents=False)
    other = resolve(
        replace(alike, kv_mode=KvModeConfig(k=mode.k, v=mode.v), demand=demand, n_ubatch=made.n_ubatch)
    )
    assert other.cells == made.cells
    return made.overhead_bytes - other.overhead_bytes


def test_a_row_of_the_table_for_every_head() -> None:
    """30 layers of 3 KV heads; a window is the same for all of them."""
    assert extra() == 1280 * (90 * HELD + 8 + 1)
    assert extra(mode=WINDOW) == 1280 * (HELD + 8 + 1)
    assert extra(mode=replace(H2O, policy="keydiff")) == extra() + 3 * 4 * 1280 * 192


def test_only_full_attention_has_rows() -> None:
    assert extra(HYBRID) == 1280 * (4 * 4 * HELD + 8 + 1)
    gemma = declared("gemma3_270m")
    assert extra(gemma) == 1280 * (3 * HELD + 8 + 1)


def test_what_is_looked_at_on_a_card_is_copied_to_the_host() -> None:
    """One layer's probabilities in float32, and its cells to move heads' tokens in them."""
    there = card(100 * GIB)
    probabilities, cells = 16 * 256 * 1280 * 4, 1280 * 2 * 4 * 128 * 2
    here = extra(DENSE, hardware=host())
    assert extra(DENSE, hardware=there) - here == probabilities + cells
    assert extra(DENSE, hardware=there, spill=SpillConfig(kv=True)) == here
    assert extra(DENSE, hardware=unified(100 * GIB)) - here == probabilities + cells
    keydiff = replace(H2O, policy="keydiff")
    assert extra(DENSE, keydiff, hardware=there) - extra(DENSE, keydiff, hardware=host()) == cells
    assert extra(DENSE, WINDOW, hardware=there) == extra(DENSE, WINDOW, hardware=host())


def test_a_document_waits_in_host_memory() -> None:
    """Of its 1,024 cells and its states a copy, which is there twice while it is written; no cells."""
    alone, shared = evicting(HYBRID), evicting(HYBRID, documents=True)
    assert shared.cells == alone.cells
    cells, states = 4 * 1024 * 2 * 4 * 128 * 2, 12 * 4 * MIB
    waiting = shared.overhead_bytes - alone.overhead_bytes
    assert waiting == 2 * (cells + states) + 1024 * 4 * 4 * HELD


# -- windows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [4064, 5000])
def test_a_budget_as_long_as_the_window_evicts_nothing(budget: int) -> None:
    with pytest.raises(PlanRefusedError) as error:
        evicting(mode=replace(H2O, budget=budget))
    assert str(error.value) == (
        f"nothing would ever be evicted: kv_mode.budget={budget} keeps {budget} cells, prompt and answer take "
        "4064; lower kv_mode.budget, or set kv_mode=f16"
    )
    assert evicting(mode=replace(H2O, budget=4063)).budget_cells == 4063


def test_positions_stay_within_the_trained_context() -> None:
    with pytest.raises(PlanRefusedError) as error:
        evicting(prefix=9000)
    line = str(error.value)
    assert "9000 prompt tokens and 64 for the answer make 9064, llama was trained to 8192 tokens" in line
    assert (
        "eviction keeps fewer tokens at the positions that they have: set kv_mode.positions=compact, or"
        in line
    )
    reads = (
        "set kv_mode=guided, which reads a document of any length, or choose a model with a longer context"
    )
    for documents, said in (
        (True, f"or {reads}"),
        (False, f"or give its long part as `document` and {reads}"),
    ):
        with pytest.raises(BeyondTrainedError) as beyond:
            plan(prefix=9000, documents=documents)
        assert f"shorten the prompt or lower sampling.max_tokens, {said}" in str(beyond.value)
    compact = replace(H2O, positions="compact")
    assert evicting(mode=compact, prefix=9000).window_tokens == 1024 + 256 + 64
    with pytest.raises(
        BeyondTrainedError, match=r"8256 positions of the prompt and 64 .*; lower kv_mode\.budget"
    ):
        evicting(mode=replace(compact, budget=8000), prefix=9000)


def test_the_largest_window_is_the_native_context() -> None:
    def limit(mode: KvModeConfig, ram: int) -> Any:
        config = JobConfig(model=model, hardware=replace(JobConfig().hardware, ram=ram, vram=0), kv_mode=mode)
        return Planner().largest_window(config)

    model = named("llama31_8b")
    assert limit(H2O, 16 * GIB).value == 131_072
    share = limit(replace(H2O, budget=0.5), 16 * GIB)
    assert 1000 < share.value < 131_072, "with the prompt its share grows"
    assert share.plan.budget_cells == -(-(share.value - 64) // 2)
    with pytest.raises(PlanRefusedError, match="nothing would ever be evicted"):
        limit(replace(H2O, budget=200_000), 64 * GIB)
    assert limit(H2O, GIB).value == 0


def test_the_most_workers_by_brute_force() -> None:
    """One more worker may need less: a micro-batch is rounded up to a multiple of the sequences."""
    model = named("llama31_8b")
    config = JobConfig(
        model=model, kv_mode=replace(H2O, budget=4096), sampling=replace(JobConfig().sampling, max_tokens=4)
    )
    planner = Planner(8000)

    def needs(workers: int) -> int:
        hardware = replace(config.hardware, ram=64 * GIB, vram=0)
        return planner.plan(
            replace(config, hardware=hardware, swarm_size=SwarmConfig(workers=workers))
        ).ram_bytes

    roomy = [needs(workers) for workers in range(1, 129)]
    assert roomy != sorted(roomy)
    hardware = replace(config.hardware, ram=64 * GIB, vram=0, reserve=64 * GIB - (roomy[29] - 4_920_739_232))
    found = planner.most_workers(replace(config, hardware=hardware))
    tried = (replace(config, hardware=hardware, swarm_size=SwarmConfig(workers=n)) for n in range(1, 129))
    fits = [job.swarm_size.workers for job in tried if planner.plan(job).status != "refused"]
    assert 1 < found.value == max(fits) < 128


def test_a_lower_bound_of_the_prompts_refuses_nothing_that_may_run() -> None:
    """Before the tokens are counted a prompt may seem to fit the budget whole."""
    prompts = replace(JobConfig().prompts, name="inline", items=["word " * 1200])
    config = JobConfig(kv_mode=H2O, prompts=prompts)
    assert least_tokens(prompts) == 750 and _least(config, SMALL).prompt_tokens == 961
    request = request_for(config, SMALL, host(), _least(config, SMALL), {})
    assert resolve(request).cells == 1536
    beyond = replace(config, kv_mode=replace(H2O, budget=9000))
    with pytest.raises(PlanRefusedError, match="keeps 9000 cells, prompt and answer take 8192"):
        resolve(request_for(beyond, SMALL, host(), _least(beyond, SMALL), {}))


# -- texts to score ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "n_ubatch", "tokens", "outputs"),
    [
        (KvModeConfig(), 512, 4096, 128),
        (KvModeConfig(), 64, 4096, 64),
        (replace(H2O, chunk=32), 512, 4096, 32),
        (KvModeConfig(), 512, 20, 20),
        (KvModeConfig(), 512, 0, 5),
    ],
)
def test_logits_of_as_many_tokens_as_are_scored_at_once(
    mode: KvModeConfig, n_ubatch: int, tokens: int, outputs: int
) -> None:
    config = JobConfig(kv_mode=mode, n_ubatch=n_ubatch)
    workload = Workload(max(tokens, 2000), score_tokens=tokens)
    made = resolve(request_for(config, SMALL, host(), workload, {}))
    assert made.n_outputs == outputs
    fewer = resolve(request_for(config, SMALL, host(), replace(workload, score_tokens=0), {}))
    assert made.compute_bytes - fewer.compute_bytes >= (outputs - 5) * 49_152 * 4


def test_a_text_alone_has_no_answer() -> None:
    config = JobConfig()
    made = resolve(request_for(config, SMALL, host(), Workload(4096, score_tokens=4096, asks=False), {}))
    assert (made.suffix_tokens, made.window_tokens, made.n_seq_max) == (1, 4097, 1)


# -- flash attention, placement, identity, the server ---------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "flash"), [("h2o", False), ("tova", False), ("window", True), ("keydiff", True)]
)
def test_what_looks_at_attention_has_no_flash_attention(policy: str, flash: bool) -> None:
    config = JobConfig(kv_mode=KvModeConfig(policy=policy))
    assert request_for(config, SMALL, host(), Workload(4000), {}).flash_attn == flash
    off = replace(config, flash_attn="off")
    assert not request_for(off, SMALL, host(), Workload(4000), {}).flash_attn


def test_llama_server_cannot_evict() -> None:
    made = evicting(MIXTURE, hardware=card(100 * GIB))
    assert made.llama_server == "" and "llama-server cannot evict, there is no command for it" in made.notes
    fp8 = plan(kv_mode=KvModeConfig(codec="fp8"))
    assert "-ctk f16 -ctv f16" in fp8.llama_server
    assert "llama-server has no FP8, the command keeps plain f16" in fp8.notes


def settings(mode: KvModeConfig) -> str:
    return identity.settings_id(
        JobConfig(kv_mode=mode), model_digest="m", engine_version="e", flash_attn=False, n_threads=1
    )


def test_all_of_a_mode_that_can_change_an_answer_is_its_identity() -> None:
    changed = {
        "k": "q8_0", "v": "bf16", "swa_full": True, "codec": "fp8", "policy": "mean", "options": {"decay": 0.5},
        "budget": 512, "chunk": 128, "interval": 16, "granularity": "layer", "sinks": 8, "recent": 0.5, "pool": 7,
        "layer_weights": [1.0], "positions": "compact",
    }  # fmt: skip
    told = {"name", "survivors", "show_kept"}
    assert set(changed) == {f.name for f in fields(KvModeConfig)} - told - {"probe", "guided"}
    ids = {settings(H2O), *(settings(replace(H2O, **{key: value})) for key, value in changed.items())}
    assert len(ids) == 1 + len(changed)
    assert settings(replace(H2O, name="mine")) == settings(H2O)
    # Without a policy nobody asks how it would evict.
    still = {settings(KvModeConfig(**{key: changed[key]})) for key in ("budget", "chunk", "sinks", "pool")}
    assert still == {settings(KvModeConfig())}
    assert settings(KvModeConfig(codec="fp8")) != settings(KvModeConfig())


def test_a_window_of_a_ladder_takes_no_more_cells() -> None:
    climbing = ask(
        DENSE, kv_mode=H2O, flash_attn=False, prefix=4000, window=WindowConfig(policy="ladder"),
    )  # fmt: skip
    made = resolve(climbing)
    assert (made.window_tokens, made.cells) == (262_144, 1280)
    assert at_window(climbing, 65_536).cells == 1280

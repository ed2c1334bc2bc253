from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from planned import MIB, again, declared, job

from kvcache.policies import POLICIES
from runner.config import JobConfig
from runner.errors import PlanRefusedError
from runner.overrides import with_overrides
from runner.parsing import conf_dir
from runner.planning.hardware.budget import GIB
from runner.planning.plan import DryRun, Plan
from runner.planning.remedies import Step, accept, advice, applied, ladder, numbered, sufficient
from runner.planning.remedy import _POLICIES
from runner.planning.resolve import with_dry_run, with_more_compute
from runner.resolve import _decide
from runner.tables.schemas import SCHEMAS

LLAMA = declared("llama31_8b")
CARD = ("hardware.vram=8GiB", "hardware.ram=32GiB")


def refused(
    *overrides: str, model: str = "llama31_8b", tokens: int = 2000
) -> tuple[JobConfig, Plan, list[Step]]:
    """A job that does not fit, its plan and its ladder."""
    config = job(*overrides, model=model)
    made = again(config, tokens)
    assert made.status == "refused"
    return config, made, list(ladder(config, made, lambda changed: again(changed, tokens)))


def names(steps: list[Step]) -> list[str]:
    return [step.override.partition("=")[0] for step in steps]


def test_remedies_stand_in_the_order_of_what_they_cost() -> None:
    _, _, steps = refused(*CARD, "flash_attn=off", "in_flight=4", "swarm_size=9", "sampling.max_tokens=512")
    assert names(steps) == [
        "n_ubatch", "flash_attn", "in_flight", "kv_mode.k", "spill.kv", "swarm_size", "sampling.max_tokens",
        "spill.weights", "hardware.vram",
    ]  # fmt: skip
    assert [step.step for step in steps] == list(range(len(steps)))
    with_flash = names(refused(*CARD, "swarm_size=9", "sampling.max_tokens=2000", tokens=20_000)[2])
    assert with_flash.index("kv_mode.k") + 1 == with_flash.index("kv_mode.v")
    assert "flash_attn" not in with_flash and "in_flight" not in with_flash
    assert with_flash[-2:] == ["hardware.vram", "kv_mode.policy"]


@pytest.mark.parametrize(
    ("overrides", "tokens", "pool"),
    [
        (
            (*CARD, "flash_attn=off", "in_flight=4", "swarm_size=9", "sampling.max_tokens=512"),
            2000,
            "vram_bytes",
        ),
        (
            ("hardware.ram=8GiB", "in_flight=4", "swarm_size=9", "sampling.max_tokens=512"),
            30_000,
            "ram_bytes",
        ),
        ((*CARD, "window.policy=fixed", "window.tokens=40000"), 8000, "vram_bytes"),
    ],
)
def test_each_remedy_alone_saves_what_it_says(overrides: tuple[str, ...], tokens: int, pool: str) -> None:
    config, made, steps = refused(*overrides, tokens=tokens)
    assert len(steps) >= 6
    for step in steps:
        alone = again(with_overrides(config, step.override.split()), tokens)
        assert getattr(made, pool) - getattr(alone, pool) == step.saved_bytes > 0, step.override


CASES = [
    ((*CARD, "in_flight=4", "swarm_size=9", "sampling.max_tokens=512"), 2000, {"in_flight"}),
    ((*CARD,), 60_000, {"spill.kv"}),
    (("hardware.ram=4GiB", "swarm_size=9", "sampling.max_tokens=4000"), 8000,
     {"kv_mode.k", "kv_mode.v", "swarm_size"}),
    (("hardware.vram=8GiB", "hardware.ram=4GiB", "swarm_size=9", "sampling.max_tokens=2000"), 8000,
     {"kv_mode.k", "kv_mode.v", "swarm_size"}),
    (("hardware.vram=4GiB", "hardware.ram=32GiB"), 2000, {"spill.weights"}),
    ((*CARD, "swarm_size=1", "sampling.max_tokens=11000"), 2000, {"n_ubatch"}),
    ((*CARD, "swarm_size=1", "sampling.max_tokens=13000"), 2000, {"kv_mode.k"}),
    ((*CARD, "swarm_size=1", "sampling.max_tokens=16000"), 2000, {"kv_mode.k", "kv_mode.v"}),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "tokens", "expected"), CASES)
def test_the_first_combination_that_fits_is_marked(
    overrides: tuple[str, ...], tokens: int, expected: set[str]
) -> None:
    config, _, steps = refused(*overrides, tokens=tokens)
    enough = sufficient(steps)
    assert {override.partition("=")[0] for override in enough} == expected
    assert again(with_overrides(config, enough), tokens).status != "refused"
    for left_out in enough:
        rest = [override for override in enough if override != left_out]
        assert again(with_overrides(config, rest), tokens).status == "refused", f"{left_out} is not needed"
    totals = [step.total_bytes for step in steps if step.sufficient]
    assert totals[-1] == again(with_overrides(config, enough), tokens).total_bytes


def test_a_remedy_with_a_degree_is_as_mild_as_it_may_be() -> None:
    config, _, steps = refused("hardware.ram=4GiB", "swarm_size=9", "sampling.max_tokens=4000", tokens=8000)
    enough = sufficient(steps)
    [workers] = [override for override in enough if override.startswith("swarm_size")]
    one_more = f"swarm_size={int(workers.partition('=')[2]) + 1}"
    stronger = [one_more if override == workers else override for override in enough]
    assert again(with_overrides(config, stronger), 8000).status == "refused"
    [shorter] = [step for step in steps if step.override.startswith("sampling.max_tokens")]
    length = int(shorter.override.partition("=")[2])
    assert again(with_overrides(config, [shorter.override]), 8000).status == "fits"
    longer = f"sampling.max_tokens={length + 1}"
    assert again(with_overrides(config, [longer]), 8000).status == "refused"


def test_a_fixed_window_shrinks_to_what_the_prompt_needs() -> None:
    window = ("window.policy=fixed", "window.tokens=100000", "swarm_size=1")
    _, _, steps = refused("hardware.ram=3GiB", *window, tokens=30_000)
    [smaller] = [step for step in steps if step.remedy == "smaller window"]
    assert smaller.override == "window.tokens=30064"


def test_a_ladder_comes_down_by_its_floor() -> None:
    overrides = (
        "hardware.ram=11GiB",
        "window.policy=ladder",
        "weights=resident",
        "n_ubatch=64",
        "swarm_size=1",
    )
    config, made, steps = refused(*overrides, "kv_mode.k=q8_0", "kv_mode.v=q8_0")
    assert made.window_tokens == 65_536
    assert names(steps) == ["window.floor", "kv_mode.policy"]
    smaller = again(with_overrides(config, sufficient(steps)))
    assert smaller.status == "fits" and 2064 <= smaller.window_tokens < 65_536


@pytest.mark.parametrize(("ram", "tokens", "workers"), [(2, 12_000, 6), (3, 12_000, 6), (4, 12_000, 6)])
def test_a_remedy_that_fills_the_other_pool_is_no_obstacle(ram: int, tokens: int, workers: int) -> None:
    """The cache does not fit the RAM, so moving it there must not stand in the way of fewer workers."""
    config, _, steps = refused(
        "hardware.vram=8GiB", f"hardware.ram={ram}GiB", "swarm_size=9", "sampling.max_tokens=2000",
        "kv_mode.k=q8_0", "kv_mode.v=q8_0", "n_ubatch=64", tokens=tokens,
    )  # fmt: skip
    assert again(with_overrides(config, ["spill.kv=true"]), tokens).status == "refused"
    assert sufficient(steps) == [f"swarm_size={workers}"]
    assert again(with_overrides(config, [f"swarm_size={workers + 1}"]), tokens).status == "refused"


def test_a_quantised_v_comes_with_flash_attention() -> None:
    overrides = (
        "hardware.ram=4GiB",
        "flash_attn=off",
        "swarm_size=9",
        "sampling.max_tokens=2000",
        "n_ubatch=64",
    )
    config, _, steps = refused(*overrides, tokens=8000)
    enough = sufficient(steps)
    assert {"flash_attn=on", "kv_mode.v=q8_0"} <= set(enough)
    with pytest.raises(Exception, match="flash"):
        again(with_overrides(config, ["kv_mode.v=q8_0"]), 8000)
    values = [step for step in steps if step.override == "kv_mode.v=q8_0"]
    assert values[0].saved_bytes > 0


def test_what_is_set_already_is_no_remedy() -> None:
    set_already = ("n_ubatch=64", "swarm_size=1", "kv_mode.k=q4_0", "kv_mode.v=q4_0", "spill.kv=true",
                   "spill.weights=auto")  # fmt: skip
    _, _, steps = refused("hardware.vram=4GiB", "hardware.ram=4GiB", *set_already, tokens=60_000)
    assert not {"n_ubatch", "swarm_size", "kv_mode.k", "kv_mode.v", "spill.kv", "spill.weights"} & set(
        names(steps)
    )


def test_on_the_host_nothing_of_a_card_is_offered() -> None:
    _, _, steps = refused("hardware.ram=4GiB", "swarm_size=9", "sampling.max_tokens=4000", tokens=8000)
    assert not {"spill.kv", "spill.weights", "hardware.vram"} & set(names(steps))


def test_nothing_helps() -> None:
    _, made, steps = refused("hardware.ram=512MiB", "in_flight=4", "swarm_size=9", tokens=30_000)
    assert steps and not sufficient(steps)
    with pytest.raises(PlanRefusedError, match="not even all of these suffice: n_ubatch=64 saves") as error:
        accept(made, steps)
    assert "choose a smaller model or more memory (hardware.ram)" in str(error.value)
    assert "nothing would make it smaller" in advice(())


def test_the_refusal_is_one_line_with_bytes_and_remedies() -> None:
    _, made, steps = refused(
        "hardware.ram=8GiB", "in_flight=4", "swarm_size=9", "sampling.max_tokens=512", tokens=30_000
    )
    with pytest.raises(PlanRefusedError) as error:
        accept(made, steps)
    line = str(error.value)
    assert "\n" not in line
    assert f"{made.missing_bytes / GIB:.2f} GiB of RAM are missing" in line
    assert "in_flight=1 saves" in line and "this makes it fit: in_flight=1 (plan.apply=true takes it)" in line


def test_what_fits_is_accepted() -> None:
    made = again(job("hardware.ram=64GiB"))
    assert accept(made, ()) is made


def test_rows_have_the_columns_of_the_table() -> None:
    _, _, steps = refused(*CARD, tokens=60_000)
    columns = {name for name in SCHEMAS["plan_steps"].names if name != "job_id"}
    assert all(set(step.row()) == columns for step in steps)
    taken = applied(steps)
    assert [step.applied for step in taken] == [step.sufficient for step in steps]
    assert [step.step for step in numbered(steps, taken)] == list(range(2 * len(steps)))


def formula(config: JobConfig) -> Plan:
    return again(config, 8000)


TIGHT = ("hardware.ram=4GiB", "swarm_size=9", "sampling.max_tokens=2000")


def test_unasked_nothing_is_applied() -> None:
    config = job(*TIGHT)
    resolved = _decide(config, LLAMA, formula, lambda plan: plan)
    assert resolved.config is config and resolved.plan.status == "refused"
    assert sufficient(resolved.steps) and not any(step.applied for step in resolved.steps)


def test_apply_takes_the_first_combination() -> None:
    resolved = _decide(job(*TIGHT, "plan.apply=true"), LLAMA, formula, lambda plan: plan)
    taken = [step.override for step in resolved.steps if step.applied]
    assert taken == sufficient(resolved.steps) and taken
    assert resolved.plan.status == "fits"
    assert resolved.plan == formula(with_overrides(job(*TIGHT), taken))
    assert resolved.config == with_overrides(job(*TIGHT, "plan.apply=true"), taken)


def test_apply_leaves_alone_what_nothing_helps() -> None:
    config = job("hardware.ram=512MiB", "plan.apply=true")
    resolved = _decide(config, LLAMA, formula, lambda plan: plan)
    assert resolved.config is config and resolved.plan.status == "refused"
    assert not any(step.applied for step in resolved.steps)


def engine(surplus: int) -> object:
    """A dry run that finds ``surplus`` more bytes of compute buffers than the formula."""

    def measure(plan: Plan) -> Plan:
        told = DryRun(
            plan.kv_bytes, plan.recurrent_bytes, plan.compute_bytes + surplus, plan.cells, plan.sliding_cells
        )
        return with_dry_run(plan, told)

    return measure


@pytest.mark.parametrize("surplus", [MIB, 200 * MIB, 700 * MIB])
def test_what_the_engine_asks_beyond_the_formula_is_part_of_every_remedy(surplus: int) -> None:
    """Remedies that fit by formula alone would be refused again, and again."""
    config = job(*TIGHT, "plan.apply=true")
    resolved = _decide(config, LLAMA, formula, engine(surplus))  # type: ignore[arg-type]
    assert (resolved.plan.status, resolved.plan.source) == ("fits", "dry_run")
    assert resolved.plan.compute_bytes == formula(resolved.config).compute_bytes + surplus
    assert len({step.step for step in resolved.steps}) == len(resolved.steps)


def test_a_job_that_only_the_engine_refuses_is_told_what_helps() -> None:
    room = formula(job("hardware.ram=64GiB"))
    assert room.weights == "resident"
    config = job("hardware.ram=64GiB", f"hardware.reserve={64 * GIB - room.ram_bytes}", "weights=resident")
    assert formula(config).status == "fits"
    resolved = _decide(config, LLAMA, formula, engine(30 * MIB))  # type: ignore[arg-type]
    assert (resolved.plan.status, resolved.plan.missing_bytes) == ("refused", 30 * MIB)
    enough = sufficient(resolved.steps)
    assert enough and with_more_compute(formula(with_overrides(config, enough)), 30 * MIB).status == "fits"


def test_more_compute_is_placed_again() -> None:
    made = formula(job("hardware.ram=64GiB"))
    more = with_more_compute(made, 5 * MIB)
    assert more.total_bytes == made.total_bytes + 5 * MIB
    assert with_more_compute(made, 0) is made
    assert (
        replace(
            more, compute_bytes=made.compute_bytes, total_bytes=made.total_bytes, ram_bytes=made.ram_bytes
        )
        == made
    )


LONG = ("hardware.ram=8GiB", "swarm_size=1")


def test_eviction_is_the_last_remedy_and_keeps_as_much_as_fits() -> None:
    config, made, steps = refused(*LONG, tokens=120_000)
    last = [step for step in steps if step.sufficient][-1]
    assert last.remedy.startswith("an eviction mode") and last is steps[-1]
    fitting = again(with_overrides(config, sufficient(steps)), 120_000)
    assert fitting.status == "fits" and fitting.window_tokens == made.window_tokens == 120_064
    rest = [word for word in sufficient(steps) if not word.startswith("kv_mode.budget")]
    more = f"kv_mode.budget={fitting.budget_cells + 256}"
    assert again(with_overrides(config, [*rest, more]), 120_000).status == "refused"


def test_what_evicts_goes_with_the_types_of_the_cells() -> None:
    """A quantised V keeps flash attention, and with it every policy away that looks at attention."""
    _, _, steps = refused(*CARD, tokens=60_000)
    [only] = [step for step in steps if step.override.startswith("kv_mode.policy")]
    assert only.override.startswith("kv_mode.policy=peak"), "the other is worth a word where it is needed"
    _, _, steps = refused(*LONG, tokens=120_000)
    assert {"kv_mode.v=q8_0", "kv_mode.policy=keydiff"} < set(sufficient(steps))
    _, _, steps = refused(*LONG, "kv_mode.v=q8_0", tokens=120_000)
    assert sufficient(steps)[-2] == "kv_mode.policy=keydiff"
    assert not [step for step in steps if step.override.startswith("kv_mode.policy=peak")]


def test_what_the_ladder_proposes_is_the_option_that_is_named_after_it() -> None:
    best = yaml.safe_load((conf_dir() / "kv_mode" / "evict.yaml").read_text())
    assert next(iter(_POLICIES)) == best["policy"]
    assert [POLICIES[name].needs for name in _POLICIES] == ["attention", "keys"]


def test_a_job_that_evicts_may_keep_less() -> None:
    mode = ("kv_mode.policy=h2o", "kv_mode.budget=60000")
    config, _, steps = refused(*LONG, *mode, tokens=120_000)
    assert not {"kv_mode.v", "kv_mode.policy", "flash_attn"} & set(names(steps))
    [smaller] = [step for step in steps if step.remedy == "smaller budget"]
    assert sufficient(steps)[-1] == smaller.override
    assert again(with_overrides(config, sufficient(steps)), 120_000).status == "fits"


def test_eviction_is_no_remedy_for_a_sliding_window_or_a_conversation() -> None:
    config = job("hardware.ram=300MiB", model="gemma3_270m")
    made = again(config, 20_000)
    least = [
        step for step in ladder(config, made, lambda job: again(job, 20_000)) if "budget" in step.override
    ]
    assert least and all(int(step.override.rpartition("=")[2]) >= 512 for step in least)

    def talks(job: JobConfig) -> Plan:
        return again(job, 2000, conversation=True)

    config = job("hardware.ram=4GiB")
    assert not [step for step in ladder(config, talks(config), talks) if "policy" in step.override]

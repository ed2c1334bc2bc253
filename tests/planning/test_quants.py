from __future__ import annotations

from dataclasses import replace

import pytest
from planned import again, job

from runner.config import JobConfig
from runner.errors import ConfigError
from runner.planning.ask import Workload, request_for
from runner.planning.hardware.budget import Hardware, Machine, probe
from runner.planning.model.profile import from_config
from runner.planning.plan import Plan
from runner.planning.quants import choose
from runner.planning.resolve import at_window

QUANTS = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"]


def machine(config: JobConfig) -> Hardware:
    return probe(config.hardware, can_offload=True, machine=Machine(threads=4))


def chosen(*overrides: str, model: str = "llama31_8b") -> JobConfig:
    config = job("model.quant=auto", *overrides, model=model)
    return choose(config, machine(config), {})


def whole(config: JobConfig, window: int) -> bool:
    """Whether this file's plan at ``window`` keeps its weights in memory, all on the card where there is one."""
    assert config.model.profile is not None
    request = request_for(config, from_config(config.model.profile), machine(config), Workload(1), {})
    made: Plan = at_window(request, window)
    return made.status != "refused" and made.weights == "resident" and made.spill is None


SMALL_WINDOW = ("window.target=16384", "window.floor=4096")
MACHINES = [
    ("hardware.ram=8GiB",),
    ("hardware.ram=12GiB",),
    ("hardware.ram=16GiB",),
    ("hardware.ram=64GiB",),
    ("hardware.vram=8GiB", "hardware.ram=32GiB"),
    ("hardware.vram=12GiB", "hardware.ram=32GiB"),
    ("hardware.vram=16GiB", "hardware.ram=64GiB"),
    ("hardware.ram=16GiB", "hardware.vram=null", "hardware.unified=true"),
    ("hardware.vram=24GiB", "hardware.ram=64GiB", "hardware.cards=2"),
    ("hardware.vram=8GiB", "hardware.ram=32GiB", "spill.weights=auto"),
]


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("window", [(), SMALL_WINDOW])
def test_auto_is_the_best_that_reaches_the_target_else_holds_the_floor(
    where: tuple[str, ...], window: tuple[str, ...]
) -> None:
    made = chosen(*where, *window)
    target, floor = (16_384, 4096) if window else (131_072, 65_536)
    named = [
        choose(replace(made, model=replace(made.model, quant=name)), machine(made), {}) for name in QUANTS
    ]
    reaching = [config for config in named if whole(config, target)]
    holding = [config for config in named if whole(config, floor)]
    best = (reaching or holding or named[-1:])[0]
    assert made.model.quant == best.model.quant


def test_more_memory_buys_a_better_quant() -> None:
    found = [chosen(f"hardware.ram={ram}GiB", *SMALL_WINDOW).model.quant for ram in (6, 9, 12, 15, 20)]
    assert found == sorted(found, key=lambda name: -QUANTS.index(str(name)))
    assert found[0] == "Q2_K" and found[-1] == "Q8_0" and len(set(found)) > 2


def test_the_chosen_file_is_the_one_that_is_fetched_and_planned() -> None:
    made = chosen("hardware.ram=9GiB", *SMALL_WINDOW)
    [listed] = [quant for quant in made.model.quants if quant.name == made.model.quant]
    assert made.model.source is not None and made.model.profile is not None
    assert made.model.source.file == listed.file and made.model.source.sha256 == listed.sha256
    assert made.model.source.size_bytes == listed.size_bytes
    assert made.model.profile.weights_bytes == listed.weights_bytes
    plan = again(made)
    assert (plan.quant, plan.weights_bytes) == (listed.name, listed.weights_bytes)
    assert listed.file in plan.llama_server


def test_a_file_without_a_checksum_is_not_held_to_anothers() -> None:
    made = chosen("hardware.ram=64GiB", model="qwen3_8b").model
    other = choose(job("model.quant=Q6_K", model="qwen3_8b"), machine(job()), {}).model
    assert made.source is not None and made.source.sha256 is not None
    assert other.source is not None and other.source.sha256 is None


def test_prompts_do_not_change_the_choice() -> None:
    """Another quant gives other answers, so that a sweep over prompts must keep to one."""
    for where in (MACHINES[1], MACHINES[4]):
        assert chosen(*where, "prompts.tokens=100000").model == chosen(*where, "prompts.tokens=128").model


def test_a_cache_on_the_host_leaves_the_card_to_a_better_quant() -> None:
    where = ("hardware.vram=8GiB", "hardware.ram=64GiB")
    worse, better = chosen(*where).model.quant, chosen(*where, "spill.kv=true").model.quant
    assert QUANTS.index(str(better)) < QUANTS.index(str(worse))


def test_a_limit_below_the_target_is_all_that_must_be_reached() -> None:
    where = ("hardware.vram=8GiB", "hardware.ram=32GiB")
    assert QUANTS.index(str(chosen(*where, "window.max=4096").model.quant)) < QUANTS.index(
        str(chosen(*where).model.quant)
    )


def test_named_quants_are_taken_whatever_fits() -> None:
    made = choose(job("model.quant=Q8_0", "hardware.ram=4GiB"), machine(job("hardware.ram=4GiB")), {})
    assert made.model.profile is not None and made.model.profile.weights_bytes == 8_540_775_840


def test_without_a_quant_the_option_stays_as_it_is() -> None:
    config = job()
    assert choose(config, machine(config), {}) is config


def test_a_quant_that_is_not_listed() -> None:
    with pytest.raises(ConfigError, match=r"model=llama31_8b has auto, Q8_0, .*, Q2_K"):
        choose(job("model.quant=Q7"), machine(job()), {})

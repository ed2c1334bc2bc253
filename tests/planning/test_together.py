from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned import AUTO, DENSE, MIB, MIXTURE, SMALL, card, host, model, plan, unified

from runner.errors import ConfigError
from runner.planning.hardware.budget import GIB, Hardware
from runner.planning.memory import PROCESS_BYTES
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import Plan
from runner.planning.together import together

TIED = model(list(DENSE.blocks), tied=True)


def named(name: str, profile: ModelProfile, hardware: Hardware, **changes: Any) -> Plan:
    return plan(profile, hardware, model_name=name, **changes)


def beside(made: Plan) -> int:
    """What a context takes beside its weights."""
    return made.kv_bytes + made.recurrent_bytes + made.compute_bytes + made.overhead_bytes


def test_different_models_beside_each_other_add_up() -> None:
    a, b = named("a", DENSE, host()), named("b", SMALL, host())
    apart = together([a, b], one_process=False)
    assert (apart.contexts, apart.vram_bytes) == (2, 0)
    assert apart.ram_bytes == a.ram_bytes + b.ram_bytes and apart.missing_bytes == 0


def test_one_process_is_charged_once() -> None:
    a, b, c = (named(name, profile, host()) for name, profile in (("a", DENSE), ("b", SMALL), ("c", MIXTURE)))
    mixed = together([a, b, c], one_process=True)
    assert mixed.ram_bytes == a.ram_bytes + b.ram_bytes + c.ram_bytes - 2 * PROCESS_BYTES


@pytest.mark.parametrize("one_process", [False, True])
def test_on_the_host_a_models_file_is_mapped_once(one_process: bool) -> None:
    plans = [named("a", DENSE, host(), prefix=prefix) for prefix in (1000, 5000, 9000)]
    made = together(plans, one_process=one_process)
    shared = 2 * PROCESS_BYTES if one_process else 0
    assert made.ram_bytes == DENSE.weights_bytes + sum(map(beside, plans)) - shared


def test_another_quant_is_another_file() -> None:
    a, b = named("a", DENSE, host(), quant="Q8_0"), named("a", DENSE, host(), quant="Q4_0")
    assert together([a, b], one_process=False).ram_bytes == a.ram_bytes + b.ram_bytes


@pytest.mark.parametrize("profile", [DENSE, TIED])
def test_on_a_card_every_process_has_its_copy_and_one_process_has_one(profile: ModelProfile) -> None:
    a, b = named("a", profile, card(20 * GIB)), named("a", profile, card(20 * GIB), prefix=5000)
    on_card = sum(block.total_bytes for block in profile.blocks) + profile.output_bytes
    apart = together([a, b], one_process=False)
    assert apart.vram_bytes == a.vram_bytes + b.vram_bytes
    assert apart.ram_bytes == profile.input_bytes + a.overhead_bytes + b.overhead_bytes
    mixed = together([a, b], one_process=True)
    assert mixed.vram_bytes == on_card + sum(p.kv_bytes + p.compute_bytes for p in (a, b))
    assert mixed.ram_bytes == apart.ram_bytes - PROCESS_BYTES


def test_spilled_weights_are_mapped_once() -> None:
    room = card(4 * GIB, 50 * GIB)
    a, b = named("a", MIXTURE, room, spill=AUTO), named("a", MIXTURE, room, spill=AUTO)
    assert a.spill is not None
    apart = together([a, b], one_process=False)
    assert apart.vram_bytes == 2 * a.vram_bytes
    assert apart.ram_bytes == 2 * a.ram_bytes - MIXTURE.input_bytes - a.spill.weights_bytes
    mixed = together([a, b], one_process=True)
    stays = MIXTURE.weights_bytes - MIXTURE.input_bytes - a.spill.weights_bytes
    assert mixed.vram_bytes == 2 * a.vram_bytes - stays


@pytest.mark.parametrize("profile", [DENSE, TIED])
def test_in_unified_memory_too_every_process_has_its_copy(profile: ModelProfile) -> None:
    pool = unified(40 * GIB)
    a, b = named("a", profile, pool), named("a", profile, pool)
    assert together([a, b], one_process=False).ram_bytes == 2 * a.ram_bytes
    copy = profile.output_bytes if profile.tied else 0
    mixed = together([a, b], one_process=True)
    assert mixed.ram_bytes == profile.weights_bytes + copy + beside(a) + beside(b) - PROCESS_BYTES
    assert mixed.vram_bytes == 0


def test_weights_that_are_paged_anyway_are_not_taken_off() -> None:
    a, b = named("a", DENSE, host(3 * GIB)), named("a", DENSE, host(3 * GIB))
    assert a.weights == "mapped"
    assert together([a, b], one_process=False).ram_bytes == beside(a) + beside(b)


def test_what_is_missing_is_missing_from_both_pools() -> None:
    a, b = named("a", DENSE, card(6 * GIB, 700 * MIB)), named("b", DENSE, card(6 * GIB, 700 * MIB))
    made = together([a, b], one_process=False)
    assert made.missing_bytes == (made.vram_bytes - 6 * GIB) + (made.ram_bytes - 700 * MIB)
    assert made.ram_bytes > 700 * MIB
    assert "all 2 at once: " in made.line() and "are missing" in made.line()
    fits = together([a], one_process=False)
    assert fits.missing_bytes == 0 and fits.line().endswith("; they fit")


def test_several_cards_keep_their_reserve() -> None:
    """Each plan alone leaves a block's room free; both together must leave it, too."""
    one = named("a", DENSE, card(1000 * GIB, cards=2))
    both = 2 * one.vram_bytes + 300 * MIB
    enough, short = card(both, cards=2), card(both - 2, cards=2)
    assert (
        together([named("a", DENSE, enough), named("b", DENSE, enough)], one_process=False).missing_bytes == 0
    )
    assert (
        together([named("a", DENSE, short), named("b", DENSE, short)], one_process=False).missing_bytes == 2
    )


def test_a_swarm_of_isolated_workers_is_as_many_processes() -> None:
    """Five plans of a worker each are the plan of five isolated workers."""
    for hardware in (host(), card(100 * GIB), unified(100 * GIB)):
        swarm = named("a", DENSE, hardware, workers=5, processes=5, n_seq_max=1)
        alone = together([named("a", DENSE, hardware)] * 5, one_process=False)
        assert (alone.ram_bytes, alone.vram_bytes) == (swarm.ram_bytes, swarm.vram_bytes), hardware.name


def test_one_machine_at_a_time() -> None:
    with pytest.raises(ConfigError, match="one machine"):
        together([plan(hardware=host()), plan(hardware=replace(host(), name="other"))], one_process=False)

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import AUTO, DENSE, KIB, MIB, MIXTURE, Q8, SMALL, ask, card, declared, host, model, plan, unified

from runner.config import SpillConfig, WindowConfig
from runner.errors import PlanRefusedError
from runner.planning.hardware.budget import GIB, Hardware
from runner.planning.ladder import rungs
from runner.planning.model.profile import Block
from runner.planning.plan import Plan
from runner.planning.resolve import at_window, resolve

LADDER = WindowConfig(policy="ladder")
KI = [64, 96, 144, 216, 256]


def climb(profile: Any, hardware: Hardware, window: WindowConfig = LADDER, **changes: Any) -> Plan:
    return plan(profile, hardware, window=window, kv_mode=Q8, **changes)


def at(tokens: int, profile: Any, hardware: Hardware, spill: SpillConfig = AUTO, **changes: Any) -> Plan:
    return at_window(ask(profile, hardware, window=LADDER, kv_mode=Q8, **changes), tokens, spill)


def exactly(profile: Any, tokens: int) -> int:
    """VRAM that a window needs with everything on the card."""
    return at(tokens, profile, card(1000 * GIB)).vram_bytes


def test_the_rungs_of_the_reference() -> None:
    assert rungs(262_144, 65_536) == [65_536, 98_304, 147_456, 221_184, 262_144]
    assert [rung / KIB for rung in rungs(2**20, 65_536)] == [64, 96, 144, 216, 324, 486, 729, 1024]


@pytest.mark.parametrize(
    ("native", "floor", "most", "expected"),
    [
        (8192, 65_536, None, [8192]),
        (65_536, 65_536, None, [65_536]),
        (262_144, 65_536, 100_000, [65_536, 98_304, 100_000]),
        (262_144, 65_536, 8192, [8192]),
        (8192, 65_536, 20_000, [8192]),
        (2048, 512, None, [512, 768, 1152, 1728, 2048]),
    ],
)
def test_native_context_and_limit_are_the_last_rung(
    native: int, floor: int, most: int | None, expected: list[int]
) -> None:
    assert rungs(native, floor, most) == expected


@settings(deadline=None)
@given(st.integers(1, 2**21), st.integers(256, 2**18), st.none() | st.integers(1, 2**21))
def test_rungs_climb_by_at_most_a_half_to_their_top(native: int, floor: int, most: int | None) -> None:
    made = rungs(native, floor, most)
    assert made[0] == min(floor, native, most or native)
    assert made[-1] == min(native, most or native)
    assert all(low < high <= 1.5 * low + 1 for low, high in pairwise(made))


def test_bytes_of_the_35b_at_its_rungs() -> None:
    profile = declared("qwen35b")
    sizes = [at(rung, profile, card(100 * GIB), suffix=256) for rung in rungs(262_144, 65_536)]
    assert [round(made.kv_bytes / GIB, 3) for made in sizes] == [0.664, 0.996, 1.494, 2.241, 2.656]
    assert {made.recurrent_bytes for made in sizes} == {round(62.8125 * MIB)}


@pytest.mark.parametrize("index", range(5))
def test_the_first_window_is_the_largest_rung_that_fits_whole(index: int) -> None:
    rung = KI[index] * KIB
    room = exactly(DENSE, rung)
    made = climb(DENSE, card(room))
    assert (made.window_tokens, made.status, made.spill) == (rung, "fits", None)
    assert any(f"the largest rung that fits whole, {KI[index]} Ki" in note for note in made.notes)
    less = climb(DENSE, card(room - 1))
    if index:
        assert (less.window_tokens, less.status) == (KI[index - 1] * KIB, "fits")
    else:
        assert (less.window_tokens, less.status) == (rung, "spilled")


def test_on_the_host_the_rung_is_the_largest_beside_resident_weights() -> None:
    room = at(147_456, DENSE, host(1000 * GIB)).ram_bytes
    assert climb(DENSE, host(room)).window_tokens == 147_456
    assert climb(DENSE, host(room - 1)).window_tokens == 98_304
    assert climb(DENSE, unified(at(98_304, DENSE, unified(1000 * GIB)).ram_bytes)).window_tokens == 98_304


def test_paged_weights_keep_the_floor() -> None:
    made = climb(DENSE, host(2 * GIB))
    assert (made.window_tokens, made.weights) == (65_536, "mapped")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.15, 0.2, 0.3, 1.0])
def test_where_weights_spill_the_floor_holds_with_a_bounded_early_cost(share: float) -> None:
    room = 4 * GIB
    made = climb(MIXTURE, card(room), WindowConfig(policy="ladder", early_cost=share))
    affordable = [
        rung
        for rung in rungs(262_144, 65_536)
        if (tried := at(rung, MIXTURE, card(room))).status != "refused" and tried.kv_bytes <= share * room
    ]
    assert made.window_tokens == max(affordable, default=65_536)
    assert made.status == "spilled" and made.vram_bytes <= room
    assert any("no rung fits whole: the window is held at" in note for note in made.notes)


def test_early_costs_above_the_floor_are_taken() -> None:
    """A fifth of a card that lacks a byte for the floor holds the next rung's cells, and not the one after."""
    room = exactly(MIXTURE, 65_536) - 1
    made = climb(MIXTURE, card(room), WindowConfig(policy="ladder", early_cost=0.2))
    assert (made.window_tokens, made.status) == (98_304, "spilled")


def seeds_rung(profile: Any, vram: int, ram: int) -> tuple[int, bool]:
    """The window that the seed's ``initial_window`` chooses, and whether its ``physics_check`` let it."""
    cells = lambda rung: profile.kv_bytes(rung, 0, "q8_0", "q8_0")  # noqa: E731
    physics = profile.weights_bytes + cells(65_536) <= vram + ram
    window = 65_536
    for rung in rungs(262_144, 65_536):
        if cells(rung) <= 0.15 * vram:
            window = rung
    return window, physics


def test_a_rung_beyond_vram_and_ram_is_never_chosen() -> None:
    """The seed's spill branch looks at 15 % of the VRAM alone."""
    heavy = model([Block(60 * MIB, 10 * MIB, GIB)] * 18)
    room = exactly(heavy, 65_536) - 6 * GIB
    ram = at(65_536, heavy, card(room)).ram_bytes
    chosen, physics = seeds_rung(heavy, room, ram)
    assert physics and chosen == 98_304
    assert at(chosen, heavy, card(room, ram)).status == "refused"
    made = climb(heavy, card(room, ram))
    assert (made.window_tokens, made.status) == (65_536, "spilled")
    assert made.vram_bytes <= room and made.ram_bytes <= ram
    more = climb(heavy, card(room, ram + GIB + 200 * MIB))
    assert (more.window_tokens, more.status) == (98_304, "spilled")


def test_a_floor_beyond_vram_and_ram_is_refused_with_its_bytes() -> None:
    """The seed leaves the overhead out and would start this."""
    room = 4 * GIB
    ram = at(65_536, MIXTURE, card(room)).ram_bytes - 1
    assert seeds_rung(MIXTURE, room, ram)[1]
    made = climb(MIXTURE, card(room, ram))
    assert (made.window_tokens, made.status) == (65_536, "refused")
    assert not any("held" in note for note in made.notes)
    needed = made.vram_bytes + made.ram_bytes
    assert f"it needs {needed / GIB:.2f} GiB" in made.reason
    assert f"4.00 GiB of VRAM and {ram / GIB:.2f} GiB of RAM are available" in made.reason
    assert made.missing_bytes == made.ram_bytes - ram and "of RAM are missing" in made.reason


def test_limits_of_ones_own() -> None:
    roomy = card(1000 * GIB)
    assert climb(DENSE, roomy, WindowConfig(policy="ladder", max=100_000)).window_tokens == 100_000
    assert climb(DENSE, roomy, WindowConfig(policy="ladder", max=8192)).window_tokens == 8192
    assert climb(MIXTURE, card(4 * GIB), WindowConfig(policy="ladder", max=8192)).window_tokens == 8192
    assert climb(SMALL, roomy).window_tokens == 8192


def test_a_floor_of_ones_own() -> None:
    tiny = exactly(DENSE, 1300)
    made = climb(DENSE, card(tiny), WindowConfig(policy="ladder", floor=512), prefix=100)
    assert made.window_tokens == 1152 and made.status == "fits"


def test_the_first_turn_always_fits_the_first_window() -> None:
    spilled = card(4 * GIB)
    assert climb(MIXTURE, spilled, prefix=70_000).window_tokens == 98_304
    assert climb(MIXTURE, spilled, prefix=65_536 - 64).window_tokens == 65_536
    with pytest.raises(PlanRefusedError, match=r"need 262145 tokens, .* 262144 \(the native context\)"):
        climb(MIXTURE, spilled, prefix=262_145 - 64)
    limited = WindowConfig(policy="ladder", max=8192)
    with pytest.raises(
        PlanRefusedError, match=r"need 8193 tokens, the largest window is 8192 \(window.max\)"
    ):
        climb(DENSE, card(100 * GIB), limited, prefix=8193 - 64)


def test_conversations_climb_unless_their_window_is_fixed() -> None:
    roomy = card(1000 * GIB)
    need = WindowConfig()
    assert climb(DENSE, roomy, need).window_tokens == 1064
    assert climb(DENSE, roomy, need, conversation=True).window_tokens == 262_144
    fixed = WindowConfig(policy="fixed", tokens=4096)
    assert climb(DENSE, roomy, fixed, conversation=True).window_tokens == 4096


@pytest.mark.parametrize("hardware", [host(), host(3 * GIB), card(8 * GIB), card(3 * GIB)])
def test_one_shot_prompts_take_what_they_need_whatever_the_ladder_says(hardware: Hardware) -> None:
    odd = WindowConfig(floor=512, target=1024, grow_at=0.1, speed_floor=99.0, early_cost=0.9)
    assert climb(DENSE, hardware, odd) == climb(DENSE, hardware, WindowConfig())
    assert climb(DENSE, hardware, odd).window_tokens == 1064


def test_cells_that_a_person_moved_to_the_host_are_no_spilled_weights() -> None:
    """With ``spill.kv=true`` the card's room is the weights' alone, and the RAM decides."""
    moved = SpillConfig(kv=True)
    room = at(65_536, DENSE, card(1000 * GIB), moved)
    assert climb(DENSE, card(room.vram_bytes + MIB * 500, 50 * GIB), spill=moved).window_tokens == 262_144
    tight = at(98_304, DENSE, card(1000 * GIB), moved).ram_bytes
    made = climb(DENSE, card(1000 * GIB, tight), spill=moved)
    assert (made.window_tokens, made.offload_kqv) == (98_304, False)


def test_the_ladder_makes_the_plan_of_its_window() -> None:
    made = climb(MIXTURE, card(4 * GIB))
    request = ask(MIXTURE, card(4 * GIB), window=LADDER, kv_mode=Q8)
    plain = at_window(request, made.window_tokens, AUTO)
    assert replace(made, notes=plain.notes) == plain
    assert resolve(request) == made and made.window_policy == "ladder"

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import AUTO, DENSE, HYBRID, MIB, MIXTURE, Q8, SMALL, card, host, model, plan, unified

from runner.config import SpillConfig
from runner.planning.hardware.budget import GIB, Hardware
from runner.planning.model.profile import Block, ModelProfile
from runner.planning.plan import Plan

ROOMY = card(1000 * GIB)
KV = SpillConfig(kv=True)
TIED = model(list(DENSE.blocks), tied=True)


def kinds(made: Plan) -> int:
    return (
        made.weights_bytes + made.kv_bytes + made.recurrent_bytes + made.compute_bytes + made.overhead_bytes
    )


def test_on_the_host_everything_is_ram() -> None:
    made = plan(DENSE, host())
    assert made.ram_bytes == made.total_bytes == kinds(made) and made.vram_bytes == 0
    assert (made.status, made.weights, made.n_gpu_layers) == ("fits", "resident", 0)


def test_a_model_larger_than_the_ram_is_planned_and_says_what_that_costs() -> None:
    room = 3 * GIB
    made = plan(DENSE, host(room))
    assert (made.status, made.weights) == ("fits", "mapped")
    assert made.ram_bytes == kinds(made) - made.weights_bytes and made.total_bytes == kinds(made)
    [warning] = [note for note in made.notes if "paged from their file" in note]
    assert "the weights (5.18 GiB) are larger than" in warning and "read for each token" in warning
    exact = plan(DENSE, host(kinds(made)))
    assert (exact.weights, exact.notes) == ("resident", ())
    assert plan(DENSE, host(kinds(made) - 1)).weights == "mapped"


def test_resident_weights_refuse_to_be_paged() -> None:
    total = kinds(plan(DENSE, host()))
    made = plan(DENSE, host(total - MIB), weights="resident")
    assert (made.status, made.weights, made.missing_bytes) == ("refused", "resident", MIB)
    assert "1.0 MiB of RAM are missing" in made.reason
    assert plan(DENSE, host(total), weights="resident").status == "fits"
    pool = plan(DENSE, unified(50 * GIB)).total_bytes - MIB
    assert plan(DENSE, unified(pool), spill=AUTO).weights == "mapped"
    assert plan(DENSE, unified(pool), spill=AUTO, weights="resident").status == "refused"


def test_what_is_paged_must_leave_room_for_the_rest() -> None:
    made = plan(DENSE, host())
    rest = kinds(made) - made.weights_bytes
    assert plan(DENSE, host(rest)).status == "fits"
    short = plan(DENSE, host(rest - 1))
    assert (short.status, short.missing_bytes) == ("refused", 1)
    assert "besides 5.18 GiB of weights that stay in their file" in short.reason


def test_a_card_holds_all_but_the_input_and_the_process() -> None:
    made = plan(DENSE, ROOMY)
    assert made.ram_bytes == DENSE.input_bytes + made.overhead_bytes
    assert made.vram_bytes == kinds(made) - made.ram_bytes
    assert made.total_bytes == made.vram_bytes + made.ram_bytes
    assert (made.n_gpu_layers, made.offload_kqv, made.status) == (17, True, "fits")


def test_a_card_is_full_to_the_byte() -> None:
    need = plan(DENSE, ROOMY).vram_bytes
    assert plan(DENSE, card(need)).status == "fits"
    short = plan(DENSE, card(need - 1))
    assert (short.status, short.missing_bytes) == ("refused", 1)
    assert "of VRAM and 50.00 GiB of RAM are available" in short.reason
    assert "1 of VRAM" not in short.reason and "of VRAM are missing" in short.reason


def test_a_card_with_too_little_ram_beside_it_is_refused() -> None:
    made = plan(DENSE, card(1000 * GIB, plan(DENSE, ROOMY).ram_bytes - 1))
    assert (made.status, made.missing_bytes) == ("refused", 1) and "of RAM are missing" in made.reason


def test_tied_embeddings_are_on_the_host_and_once_more_on_the_card() -> None:
    made = plan(TIED, ROOMY)
    assert made.total_bytes == kinds(made) + TIED.output_bytes
    assert plan(TIED, host()).total_bytes == kinds(made)


def test_a_cache_on_the_host_takes_its_attention_along() -> None:
    here, there = plan(DENSE, ROOMY), plan(DENSE, ROOMY, spill=KV)
    cache = here.kv_bytes + here.recurrent_bytes
    assert there.vram_bytes == here.vram_bytes - cache
    assert there.ram_bytes == here.ram_bytes + cache + here.compute_bytes
    assert (there.status, there.spill_bytes, there.offload_kqv) == ("spilled", cache, False)
    assert any("are in host memory: the KV cache" in note for note in there.notes)


@pytest.mark.parametrize("profile", [DENSE, MIXTURE, HYBRID])
@pytest.mark.parametrize("kv", [False, True])
def test_what_spills_moves_from_one_pool_to_the_other(profile: ModelProfile, kv: bool) -> None:
    allowed = SpillConfig(kv=kv, weights="auto")
    whole = plan(profile, ROOMY, spill=SpillConfig(kv=kv), prefix=20_000)
    for displaced in (1, 500 * MIB, 2 * GIB):
        made = plan(profile, card(whole.vram_bytes - displaced), spill=allowed, prefix=20_000)
        assert made.status == "spilled" and made.spill is not None and not made.whole
        off = made.spill.weights_bytes + made.spill.cache_bytes
        assert made.vram_bytes == whole.vram_bytes - off <= whole.vram_bytes - displaced
        assert made.ram_bytes == whole.ram_bytes + off + (0 if kv else made.compute_bytes)
        assert made.spill_bytes == off + (made.kv_bytes + made.recurrent_bytes if kv else 0)
        assert any("are in host memory: " in note for note in made.notes)
    assert plan(profile, card(whole.vram_bytes), spill=allowed, prefix=20_000).spill is None


def test_cells_move_with_their_block() -> None:
    whole = plan(DENSE, ROOMY, prefix=100_000)
    made = plan(DENSE, card(whole.vram_bytes - 300 * MIB), spill=AUTO, prefix=100_000)
    assert made.spill is not None and made.spill.whole_blocks == 1
    assert made.spill.cache_bytes == made.kv_bytes // 16


def test_a_spill_that_the_ram_cannot_take_is_refused() -> None:
    made = plan(MIXTURE, card(2 * GIB), spill=AUTO)
    short = plan(MIXTURE, card(2 * GIB, made.ram_bytes - 1), spill=AUTO)
    assert (short.status, short.missing_bytes) == ("refused", 1) and "of RAM are missing" in short.reason


def test_a_card_too_small_for_the_output_alone_is_refused() -> None:
    made = plan(DENSE, card(100 * MIB), spill=AUTO)
    assert made.status == "refused" and made.missing_bytes == made.vram_bytes - 100 * MIB


def test_unified_memory_is_charged_once() -> None:
    made = plan(DENSE, unified(50 * GIB))
    assert made.ram_bytes == made.total_bytes == kinds(made) and made.vram_bytes == 0
    assert (made.status, made.n_gpu_layers) == ("fits", 17)
    assert plan(DENSE, unified(kinds(made))).status == "fits"
    short = plan(DENSE, unified(kinds(made) - 1))
    assert (short.status, short.missing_bytes) == ("refused", 1)
    assert plan(TIED, unified(50 * GIB)).total_bytes == kinds(made) - 200 * MIB + TIED.output_bytes


def test_on_unified_memory_whole_blocks_are_paged_and_none_are_pinned() -> None:
    whole = plan(MIXTURE, unified(50 * GIB))
    pool = whole.total_bytes - GIB
    made = plan(MIXTURE, unified(pool), spill=AUTO)
    assert (made.status, made.weights) == ("spilled", "mapped")
    assert made.spill is not None and made.spill.overrides == ()
    assert made.total_bytes == whole.total_bytes + whole.compute_bytes, "the processor needs its own buffers"
    assert made.ram_bytes == made.total_bytes - made.spill.weights_bytes <= pool
    assert any("paged from their file" in note for note in made.notes)
    assert any("are left to the processor: the first 3 of 16 blocks" in note for note in made.notes)


def test_prompts_in_flight_multiply_prefix_answers_and_states() -> None:
    one = plan(HYBRID, prefix=2560 - 512, suffix=128, workers=4)
    three = plan(HYBRID, prefix=2560 - 512, suffix=128, workers=4, in_flight=3)
    assert (one.cells, three.cells) == (2560, 7680)
    assert three.kv_bytes == 3 * one.kv_bytes and three.recurrent_bytes == 3 * one.recurrent_bytes
    assert one.recurrent_bytes == 4 * 12 * 4 * MIB
    assert three.weights_bytes == one.weights_bytes


def test_isolated_workers_charge_everything_but_mapped_weights_for_each() -> None:
    """Five processes with a worker each, against one with five."""
    alone = plan(HYBRID, workers=1)
    five = plan(HYBRID, workers=5, processes=5, n_seq_max=1)
    for kind in ("kv", "recurrent", "compute", "overhead"):
        assert getattr(five, f"{kind}_bytes") == 5 * getattr(alone, f"{kind}_bytes"), kind
    assert five.weights_bytes == alone.weights_bytes
    assert five.ram_bytes == alone.weights_bytes + 5 * (alone.ram_bytes - alone.weights_bytes)
    card_alone, card_five = plan(HYBRID, ROOMY), plan(HYBRID, ROOMY, workers=5, processes=5, n_seq_max=1)
    assert card_five.vram_bytes == 5 * card_alone.vram_bytes, "each process has its own copy on a card"
    assert card_five.ram_bytes == HYBRID.input_bytes + 5 * card_alone.overhead_bytes
    pool = plan(HYBRID, unified(100 * GIB), workers=5, processes=5, n_seq_max=1)
    assert pool.ram_bytes == 5 * alone.ram_bytes


def test_isolated_workers_spill_from_each_of_their_copies() -> None:
    whole = plan(MIXTURE, ROOMY, workers=3, processes=3, n_seq_max=1)
    short = card(whole.vram_bytes - 3 * 500 * MIB)
    made = plan(MIXTURE, short, workers=3, processes=3, n_seq_max=1, spill=AUTO)
    assert made.spill is not None and made.spill.n_cpu_moe == 2
    assert made.vram_bytes == whole.vram_bytes - 3 * 800 * MIB
    assert made.ram_bytes == whole.ram_bytes + 800 * MIB + made.compute_bytes
    assert made.total_bytes == made.vram_bytes + made.ram_bytes


def test_a_projector_is_charged_where_the_model_is() -> None:
    size = 900 * MIB
    for hardware, pool in ((host(), "ram_bytes"), (ROOMY, "vram_bytes"), (unified(50 * GIB), "ram_bytes")):
        with_it, without = plan(DENSE, hardware, mmproj_bytes=size), plan(DENSE, hardware)
        assert getattr(with_it, pool) == getattr(without, pool) + size
        assert with_it.total_bytes == without.total_bytes + size


@pytest.mark.parametrize("cards", [2, 3])
def test_several_cards_cannot_divide_a_block(cards: int) -> None:
    """Every card has compute buffers, and all but one may lack as much as the largest block free."""
    one = plan(DENSE, ROOMY)
    need = one.vram_bytes + (cards - 1) * (one.compute_bytes + 300 * MIB)
    made = plan(DENSE, card(need // cards * cards + cards, cards=cards))
    assert made.status == "fits" and made.vram_bytes == one.vram_bytes + (cards - 1) * one.compute_bytes
    assert plan(DENSE, card(need // cards * cards - cards, cards=cards)).status == "refused"
    headed = replace(DENSE, output_bytes=GIB, weights_bytes=DENSE.weights_bytes + GIB - 200 * MIB)
    assert plan(headed, card(need + (GIB - 200 * MIB) + MIB, cards=cards)).status == "refused"


def test_without_a_card_that_counts_it_is_the_host() -> None:
    idle = replace(card(1000 * GIB), vram_budget=0)
    assert plan(DENSE, idle).n_gpu_layers == 0
    assert plan(DENSE, idle, spill=KV).offload_kqv


def test_kv_types_change_the_cache_and_nothing_else_of_the_model() -> None:
    full, half = plan(SMALL, kv_mode=replace(Q8, k="f16", v="f16")), plan(SMALL, kv_mode=Q8)
    assert half.kv_bytes * 64 == full.kv_bytes * 34
    assert half.weights_bytes == full.weights_bytes


machines = st.one_of(
    st.builds(host, st.integers(MIB, 20 * GIB)),
    st.builds(card, st.integers(MIB, 12 * GIB), st.integers(MIB, 20 * GIB), st.integers(1, 4)),
    st.builds(unified, st.integers(MIB, 20 * GIB)),
)
allowed = st.builds(SpillConfig, st.booleans(), st.sampled_from(["none", "auto"]))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([DENSE, MIXTURE, HYBRID, TIED, SMALL]), machines, allowed, st.integers(1, 8000),
    st.integers(1, 6), st.booleans(),
)  # fmt: skip
def test_a_plan_that_is_not_refused_keeps_to_every_pool(
    profile: ModelProfile, hardware: Hardware, spill: SpillConfig, prefix: int, workers: int, resident: bool
) -> None:
    made = plan(
        profile, hardware, spill=spill, prefix=prefix, workers=workers,
        weights="resident" if resident else "auto",
    )  # fmt: skip
    if made.status == "refused":
        assert made.missing_bytes > 0 and "are missing" in made.reason
        return
    assert made.missing_bytes == 0 and made.reason == ""
    assert made.ram_bytes <= hardware.ram_budget
    assert hardware.unified or made.vram_bytes <= hardware.vram_budget
    assert (made.spill_bytes > 0) == (made.status == "spilled")
    if made.weights == "resident":
        assert made.total_bytes == made.vram_bytes + made.ram_bytes
        assert made.total_bytes >= kinds(made)
    else:
        assert not resident


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([DENSE, MIXTURE, HYBRID]), st.integers(MIB, 12 * GIB), st.integers(MIB, 20 * GIB), allowed,
    st.sampled_from([(0, MIB), (MIB, 0), (GIB, GIB)]),
)  # fmt: skip
def test_more_memory_never_refuses_what_less_could_run(
    profile: ModelProfile, vram: int, ram: int, spill: SpillConfig, more: tuple[int, int]
) -> None:
    if plan(profile, card(vram, ram), spill=spill).status != "refused":
        assert plan(profile, card(vram + more[0], ram + more[1]), spill=spill).status != "refused"


def test_blocks_with_nothing_in_them_are_no_obstacle() -> None:
    hollow = model([Block(10 * MIB), Block(0), Block(10 * MIB)])
    assert plan(hollow, card(plan(hollow, ROOMY).vram_bytes - 1), spill=AUTO).status == "spilled"

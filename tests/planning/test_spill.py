from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import DENSE, HYBRID, MIB, MIXTURE, SMALL, declared, model

from runner.planning.model.profile import Block, ModelProfile
from runner.planning.spill import Spill, all_layers, cover, describe

N = 16
NO_CACHE: tuple[int, ...] = ()


def covered(profile: ModelProfile, displaced: int, cache: tuple[int, ...] = NO_CACHE, **how: bool) -> Spill:
    moved = cover(profile, displaced, cache, **how)
    assert moved is not None
    return moved


def tensors(blocks: int, *names: str) -> set[str]:
    return {f"blk.{number}.{name}" for number in range(blocks) for name in names}


def leaving(spill: Spill, names: set[str]) -> set[str]:
    """Which tensors llama.cpp takes off the card: it searches every pattern in a tensor's name."""
    return {name for name in names if any(re.search(pattern, name) for pattern in spill.overrides)}


def test_nothing_moves_where_nothing_is_missing() -> None:
    assert covered(MIXTURE, 0) == Spill(N + 1)
    assert covered(DENSE, -5) == Spill(N + 1)


@pytest.mark.parametrize("count", [1, 2, 9, 16])
def test_a_mixture_moves_the_experts_of_as_few_first_blocks_as_suffice(count: int) -> None:
    moved = covered(MIXTURE, count * 400 * MIB)
    assert (moved.n_cpu_moe, moved.weights_bytes, moved.n_gpu_layers) == (count, count * 400 * MIB, N + 1)
    assert covered(MIXTURE, count * 400 * MIB - 1).n_cpu_moe == count
    if count < N:
        assert covered(MIXTURE, count * 400 * MIB + 1).n_cpu_moe == count + 1


def test_experts_leave_and_the_router_stays() -> None:
    moved = covered(MIXTURE, 2 * 400 * MIB)
    experts = (
        "ffn_gate_exps.weight",
        "ffn_up_exps.weight",
        "ffn_down_exps.weight",
        "ffn_gate_up_exps.weight",
    )
    rest = (
        "ffn_gate_inp.weight",
        "ffn_up_shexp.weight",
        "ffn_norm.weight",
        "attn_q.weight",
        "exp_probs_b.bias",
    )
    assert leaving(moved, tensors(20, *experts, *rest)) == tensors(2, *experts)


def test_a_block_is_not_taken_for_one_whose_number_begins_the_same() -> None:
    moved = covered(MIXTURE, 400 * MIB)
    assert leaving(moved, {"blk.0.ffn_up_exps.weight", "blk.10.ffn_up_exps.weight"}) == {
        "blk.0.ffn_up_exps.weight"
    }
    two = covered(MIXTURE, 2 * 400 * MIB)
    names = {f"blk.{n}.ffn_gate_exps.weight" for n in (1, 11, 13)}
    assert leaving(two, names) == {"blk.1.ffn_gate_exps.weight"}


def test_a_hybrid_moves_the_ffn_of_as_few_recurrent_blocks_as_suffice() -> None:
    moved = covered(HYBRID, 2 * 200 * MIB + 1)
    assert (moved.n_cpu_ffn, moved.weights_bytes, moved.n_gpu_layers) == (3, 600 * MIB, N + 1)
    ffn = ("ffn_up.weight", "ffn_gate.weight", "ffn_down.weight")
    rest = ("ffn_norm.weight", "ssm_in.weight", "attn_q.weight", "ffn_gate_inp.weight")
    assert leaving(moved, tensors(N, *ffn, *rest)) == tensors(3, *ffn)


def test_blocks_with_attention_come_last() -> None:
    """The seed's pattern takes the FFN of every block, those with cells among them."""
    moved = covered(HYBRID, 12 * 200 * MIB)
    numbers = {int(name.split(".")[1]) for name in leaving(moved, tensors(N, "ffn_up.weight"))}
    assert numbers == {n for n in range(N) if n % 4 != 3}
    assert covered(HYBRID, 12 * 200 * MIB + 1).n_cpu_ffn == 13


def test_the_largest_ffns_make_for_the_fewest_blocks() -> None:
    sizes = [100, 300, 200, 50]
    profile = model([Block(10 * MIB, size * MIB, recurrent=True) for size in sizes] + [Block(10 * MIB, MIB)])
    moved = covered(profile, 450 * MIB)
    assert (moved.n_cpu_ffn, moved.weights_bytes) == (2, 500 * MIB)
    assert leaving(moved, tensors(5, "ffn_up.weight")) == {"blk.1.ffn_up.weight", "blk.2.ffn_up.weight"}


def test_a_shared_expert_counts_with_the_ffn() -> None:
    moved = covered(HYBRID, 1)
    assert leaving(moved, tensors(2, "ffn_up_shexp.weight")) == {"blk.0.ffn_up_shexp.weight"}


def test_a_dense_model_moves_first_blocks_with_their_cells() -> None:
    cache = (50 * MIB,) * N
    moved = covered(DENSE, 2 * 350 * MIB, cache)
    assert (moved.n_gpu_layers, moved.whole_blocks, moved.overrides) == (N + 1 - 2, 2, ())
    assert (moved.weights_bytes, moved.cache_bytes) == (600 * MIB, 100 * MIB)
    assert covered(DENSE, 2 * 350 * MIB + 1, cache).n_gpu_layers == N + 1 - 3
    assert covered(DENSE, 2 * 350 * MIB).n_gpu_layers == N + 1 - 3, "cells on the host move no more"


def test_where_all_experts_do_not_suffice_blocks_follow() -> None:
    moved = covered(MIXTURE, 16 * 400 * MIB + 100 * MIB, (30 * MIB,) * N)
    assert (moved.n_cpu_moe, moved.whole_blocks, moved.n_gpu_layers) == (16, 1, N)
    assert moved.weights_bytes == 16 * 400 * MIB + 70 * MIB
    assert moved.cache_bytes == 30 * MIB
    after_ffn = covered(HYBRID, 16 * 200 * MIB + 150 * MIB)
    assert (after_ffn.n_cpu_ffn, after_ffn.whole_blocks) == (16, 2)
    assert after_ffn.weights_bytes == 16 * 200 * MIB + 200 * MIB


def test_on_unified_memory_nothing_is_pinned() -> None:
    for profile in (MIXTURE, HYBRID, DENSE):
        moved = covered(profile, 500 * MIB, unified=True)
        assert moved.overrides == () and moved.whole_blocks > 0
        assert moved.weights_bytes == sum(b.total_bytes for b in profile.blocks[: moved.whole_blocks])


def test_more_than_there_is_cannot_be_covered() -> None:
    assert cover(DENSE, sum(b.total_bytes for b in DENSE.blocks) + 1, ()) is None
    assert covered(DENSE, sum(b.total_bytes for b in DENSE.blocks)).n_gpu_layers == 1


def test_draft_heads_count_among_the_layers_of_a_card() -> None:
    """llama.cpp's ``n_gpu_layers`` counts them: without, the first block would stay on the host."""
    drafting = model([Block(100 * MIB, 200 * MIB)] * N, mtp=300 * MIB)
    assert all_layers(drafting) == N + 2
    assert covered(drafting, 1).n_gpu_layers == N + 1


def test_a_model_that_says_nothing_of_its_blocks_has_even_ones() -> None:
    moved = covered(SMALL, SMALL.weights_bytes // 30 * 15 - 15)
    assert moved.whole_blocks == 15


def test_what_is_said_of_it() -> None:
    assert describe(covered(MIXTURE, 1), N) == "the experts of the first 1 of 16 blocks"
    assert describe(covered(MIXTURE, 16 * 400 * MIB), N) == "the experts of all blocks"
    assert describe(covered(HYBRID, 1), N) == "the FFN of 1 of 16 blocks"
    assert describe(covered(DENSE, 1), N) == "the first 1 of 16 blocks"
    assert describe(covered(DENSE, 1, (MIB,) * N), N) == "the first 1 of 16 blocks with their cache"
    both = describe(covered(MIXTURE, 16 * 400 * MIB + 1, (MIB,) * N), N)
    assert both == "the experts of all blocks and the first 1 of 16 blocks with their cache"


@pytest.mark.parametrize(("profile", "uneven"), [(MIXTURE, 1), (HYBRID, 2)])
@pytest.mark.parametrize("cards", [2, 3, 4])
def test_several_cards_give_up_their_blocks_in_turn(profile: ModelProfile, uneven: int, cards: int) -> None:
    """llama.cpp puts as many layers on each card; were the first blocks emptied, the last card would overflow."""
    for displaced in range(100 * MIB, 12 * 200 * MIB, 300 * MIB):
        moved = cover(profile, displaced, (), cards=cards)
        assert moved is not None
        names = leaving(moved, tensors(N, "ffn_up_exps.weight", "ffn_up.weight"))
        owners = [int(name.split(".")[1]) * cards // (N + 1) for name in names]
        counts = [owners.count(each) for each in range(cards)]
        assert max(counts) - min(counts) <= uneven
        assert len(owners) == moved.n_cpu_moe + moved.n_cpu_ffn


def test_the_shipped_mixtures_patterns_match_as_many_blocks_as_they_say() -> None:
    for name in ("qwen35b", "qwen3_coder_30b", "gpt_oss_20b", "qwen_next_80b"):
        profile = declared(name)
        moved = covered(profile, profile.weights_bytes // 3)
        hit = leaving(moved, tensors(profile.n_layer, "ffn_down_exps.weight"))
        assert len(hit) == moved.n_cpu_moe
        assert moved.weights_bytes == sum(b.expert_bytes for b in profile.blocks[: moved.n_cpu_moe])


blocks = st.lists(
    st.builds(Block, st.integers(1, 100), st.integers(0, 100), st.integers(0, 400), st.booleans()),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(blocks, st.data())
def test_it_covers_what_is_displaced_and_no_unit_too_many(made: list[Block], data: st.DataObject) -> None:
    profile = model(made)
    weights = sum(block.total_bytes for block in made)
    cache = tuple(data.draw(st.lists(st.integers(0, 50), min_size=len(made), max_size=len(made))))
    displaced = data.draw(st.integers(1, weights + sum(cache) + 20))
    moved = cover(profile, displaced, cache)
    if moved is None:
        assert displaced > weights + sum(cache)
        return
    off = moved.weights_bytes + moved.cache_bytes
    assert off >= displaced
    whole = made[: moved.whole_blocks]
    if whole:
        last = whole[-1].total_bytes + cache[len(whole) - 1]
        assert off - last < displaced, "one block less would not do"
        assert moved.cache_bytes == sum(cache[: len(whole)])
    elif moved.n_cpu_moe:
        sizes = [block.expert_bytes for block in made]
        assert sum(sizes[: moved.n_cpu_moe - 1]) < displaced <= sum(sizes[: moved.n_cpu_moe]) == off
    else:
        assert moved.cache_bytes == 0
        sizes = sorted((b.ffn_bytes for b in made if b.recurrent), reverse=True)
        few = moved.n_cpu_ffn - 1
        assert sum(sizes[:few]) < displaced, "fewer recurrent blocks would not do"


@settings(deadline=None)
@given(blocks, st.integers(1, 500))
def test_what_is_counted_is_what_the_patterns_move(made: list[Block], displaced: int) -> None:
    profile = model(made)
    moved = cover(profile, displaced, ())
    if moved is None:
        return
    counted = 0
    for number, block in enumerate(made):
        prefix = f"blk.{number}."
        parts = {"attn_q.weight": block.core_bytes, "ffn_up.weight": block.ffn_bytes,
                 "ffn_up_exps.weight": block.expert_bytes}  # fmt: skip
        first = number < moved.whole_blocks
        hit = leaving(moved, {prefix + name for name in parts})
        counted += sum(size for name, size in parts.items() if first or prefix + name in hit)
    assert counted == moved.weights_bytes


@settings(deadline=None)
@given(blocks)
def test_the_fewest_recurrent_blocks_by_brute_force(made: list[Block]) -> None:
    plain = [Block(b.core_bytes, b.ffn_bytes, 0, b.recurrent) for b in made]
    sizes = [b.ffn_bytes for b in plain if b.recurrent]
    if not sum(sizes):
        return
    displaced = max(1, sum(sizes) // 2)
    moved = covered(model(plain), displaced)
    fewest = next(
        n for n in range(1, len(sizes) + 1) if any(sum(some) >= displaced for some in combinations(sizes, n))
    )
    assert moved.n_cpu_ffn == fewest

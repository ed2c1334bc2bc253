"""Which weights leave a card when they do not all fit: as few as cover the bytes that are displaced.

- **Mixtures of experts** keep attention and cache on the card and move the routed experts of the first blocks.
- **Hybrids** without experts move the FFN of the fewest recurrent blocks, which have no cells worth protecting,
  then those of the attention blocks.
- What remains moves by whole blocks, from the first: ``n_gpu_layers`` counts from the last, and the cells of a
  block go where its weights go (``llama_kv_cache``: ``dev_layer``).
- On **unified memory** nothing is pinned to the host: there is no bus to protect, only whole blocks move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from runner.planning.profile import ModelProfile
from runner.planning.weights_map import EXPERTS, FFN, Block


@dataclass(frozen=True)
class Spill:
    """What moves to the host.

    Attributes:
        n_gpu_layers: blocks that stay, counted from the last, and one for the output head.
        overrides: regular expressions of tensor names that go to the CPU (``tensor_buft_overrides``).
        n_cpu_moe: how many first blocks ``overrides`` takes the experts of; 0 where it is about FFNs.
        n_cpu_ffn: how many blocks ``overrides`` takes the FFN of.
        weights_bytes: weights that move.
        cache_bytes: cells and states that move with their block.
    """

    n_gpu_layers: int
    overrides: tuple[str, ...] = ()
    n_cpu_moe: int = 0
    n_cpu_ffn: int = 0
    weights_bytes: int = 0
    cache_bytes: int = 0


def cover(
    profile: ModelProfile, displaced: int, cache_of_block: Sequence[int], *, unified: bool = False
) -> Spill | None:
    """The smallest spill that takes at least ``displaced`` bytes off the card; None where nothing does.

    Args:
        profile: the model; one that says nothing of its blocks is taken as even ones.
        displaced: bytes that do not fit the card.
        cache_of_block: bytes of cells and states on the card, by block; empty where they are on the host.
        unified: card and host share their memory.
    """
    blocks = blocks_of(profile)
    stay = len(blocks) + 1
    if displaced <= 0:
        return Spill(stay)
    if unified:
        return _layers(blocks, displaced, cache_of_block, Spill(stay))
    if any(block.expert_bytes for block in blocks):
        moved = _experts(blocks, displaced, stay)
    elif any(block.recurrent for block in blocks):
        moved = _ffn(blocks, displaced, stay)
    else:
        moved = Spill(stay)
    if moved.weights_bytes >= displaced:
        return moved
    return _layers(blocks, displaced, cache_of_block, moved)


def describe(spill: Spill, n_layer: int) -> str:
    """What moves, in words."""
    said = []
    if spill.n_cpu_moe:
        said.append(f"the experts of {_first(spill.n_cpu_moe, n_layer)}")
    elif spill.n_cpu_ffn:
        said.append(f"the FFN of {spill.n_cpu_ffn} of {n_layer} blocks")
    if whole := n_layer + 1 - spill.n_gpu_layers:
        said.append(_first(whole, n_layer) + (" with their cache" if spill.cache_bytes else ""))
    return " and ".join(said)


def _first(count: int, n_layer: int) -> str:
    return "all blocks" if count >= n_layer else f"the first {count} of {n_layer} blocks"


def blocks_of(profile: ModelProfile) -> tuple[Block, ...]:
    """The blocks of ``profile``, even ones where it says nothing of them."""
    if profile.blocks:
        return profile.blocks
    share = (profile.weights_bytes - profile.input_bytes - profile.output_bytes) // max(profile.n_layer, 1)
    return (Block(share),) * profile.n_layer


def _experts(blocks: Sequence[Block], displaced: int, stay: int) -> Spill:
    sums = list(accumulate(block.expert_bytes for block in blocks))
    count = next((n for n, total in enumerate(sums, 1) if total >= displaced), len(blocks))
    return Spill(stay, (rf"blk\.{_any(range(count))}{EXPERTS}",), count, 0, sums[count - 1])


def _ffn(blocks: Sequence[Block], displaced: int, stay: int) -> Spill:
    """FFNs of recurrent blocks first, the largest first; as many as are needed."""
    order = sorted(range(len(blocks)), key=lambda n: (not blocks[n].recurrent, -blocks[n].ffn_bytes, n))
    chosen: list[int] = []
    moved = 0
    for number in order:
        if moved >= displaced:
            break
        if blocks[number].ffn_bytes:
            chosen.append(number)
            moved += blocks[number].ffn_bytes
    overrides = (rf"blk\.{_any(sorted(chosen))}{FFN}",) if chosen else ()
    return Spill(stay, overrides, 0, len(chosen), moved)


def _layers(
    blocks: Sequence[Block], displaced: int, cache_of_block: Sequence[int], moved: Spill
) -> Spill | None:
    """Whole blocks beside what ``moved`` took already, from the first."""
    all_experts, ffn = moved.n_cpu_moe > 0, moved.n_cpu_ffn > 0
    weights, cache = moved.weights_bytes, 0
    for count, block in enumerate(blocks, 1):
        weights += block.total_bytes - block.expert_bytes * all_experts - block.ffn_bytes * ffn
        cache += cache_of_block[count - 1] if cache_of_block else 0
        if weights + cache >= displaced:
            return Spill(
                len(blocks) + 1 - count, moved.overrides, moved.n_cpu_moe, moved.n_cpu_ffn, weights, cache
            )
    return None


def _any(blocks: Sequence[int]) -> str:
    return f"({'|'.join(map(str, blocks))})"

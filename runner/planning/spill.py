"""Which weights leave a card when they do not all fit: as few as cover the bytes that are displaced.

- **Mixtures of experts** keep attention and cache on the card and move the routed experts of the first blocks.
- **Hybrids** without experts move the FFN of the fewest recurrent blocks, which have no cells worth protecting,
  then those of the attention blocks.
- What remains moves by whole blocks, from the first: ``n_gpu_layers`` counts from the last, and the cells of a
  block go where its weights go (``llama_kv_cache``: ``dev_layer``).
- **Several cards** share the blocks out evenly by their number, so what leaves single blocks leaves every card in
  turn.
- On **unified memory** nothing is pinned to the host: there is no bus to protect, only whole blocks move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from runner.planning.model.profile import ModelProfile
from runner.planning.model.weights_map import EXPERTS, FFN, Block


@dataclass(frozen=True)
class Spill:
    """What moves to the host.

    Attributes:
        n_gpu_layers: blocks that stay, counted from the last, draft heads among them, and one for the output head.
        overrides: regular expressions of tensor names that go to the CPU (``tensor_buft_overrides``).
        n_cpu_moe: how many blocks ``overrides`` takes the experts of; 0 where it is about FFNs.
        n_cpu_ffn: how many blocks ``overrides`` takes the FFN of.
        whole_blocks: how many first blocks move as a whole.
        spread: the ``n_cpu_moe`` blocks are not the first ones but of every card.
        weights_bytes: weights that move.
        cache_bytes: cells and states that move with their block.
    """

    n_gpu_layers: int
    overrides: tuple[str, ...] = ()
    n_cpu_moe: int = 0
    n_cpu_ffn: int = 0
    whole_blocks: int = 0
    spread: bool = False
    weights_bytes: int = 0
    cache_bytes: int = 0


def cover(
    profile: ModelProfile,
    displaced: int,
    cache_of_block: Sequence[int],
    *,
    cards: int = 1,
    unified: bool = False,
) -> Spill | None:
    """The smallest spill that takes at least ``displaced`` bytes off the card; None where nothing does.

    Args:
        profile: the model; one that says nothing of its blocks is taken as even ones.
        displaced: bytes that do not fit the card.
        cache_of_block: bytes of cells and states on the card, by block; empty where they are on the host.
        cards: among how many cards the blocks are shared out.
        unified: card and host share their memory.
    """
    blocks = blocks_of(profile)
    moved = Spill(all_layers(profile))
    if displaced <= 0:
        return moved
    if not unified and any(block.expert_bytes for block in blocks):
        moved = _experts(blocks, displaced, moved, cards)
    elif not unified and any(block.recurrent for block in blocks):
        moved = _ffn(blocks, displaced, moved, cards)
    if moved.weights_bytes >= displaced:
        return moved
    return _layers(blocks, displaced, cache_of_block, moved)


def describe(spill: Spill, n_layer: int) -> str:
    """What moves, in words."""
    said = []
    if spill.n_cpu_moe:
        said.append(f"the experts of {_blocks(spill.n_cpu_moe, n_layer, first=not spill.spread)}")
    elif spill.n_cpu_ffn:
        said.append(f"the FFN of {_blocks(spill.n_cpu_ffn, n_layer, first=False)}")
    if spill.whole_blocks:
        whole = _blocks(spill.whole_blocks, n_layer, first=True)
        said.append(whole + (" with their cache" if spill.cache_bytes else ""))
    return " and ".join(said)


def _blocks(count: int, n_layer: int, *, first: bool) -> str:
    if count >= n_layer:
        return "all blocks"
    return f"the first {count} of {n_layer} blocks" if first else f"{count} of {n_layer} blocks"


def all_layers(profile: ModelProfile) -> int:
    """What ``n_gpu_layers`` is with everything on the card: llama.cpp counts draft heads, loaded or not."""
    return len(blocks_of(profile)) + profile.n_mtp_layer + 1


def blocks_of(profile: ModelProfile) -> tuple[Block, ...]:
    """The blocks of ``profile``, even ones where it says nothing of them."""
    if profile.blocks:
        return profile.blocks
    share = (profile.weights_bytes - profile.input_bytes - profile.output_bytes) // max(profile.n_layer, 1)
    return (Block(share),) * profile.n_layer


def _experts(blocks: Sequence[Block], displaced: int, stay: Spill, cards: int) -> Spill:
    order = _in_turn(len(blocks), stay.n_gpu_layers, cards)
    sums = list(accumulate(blocks[number].expert_bytes for number in order))
    count = next((n for n, total in enumerate(sums, 1) if total >= displaced), len(blocks))
    return replace(
        stay,
        overrides=(rf"blk\.{_any(order[:count])}{EXPERTS}",),
        n_cpu_moe=count,
        spread=cards > 1,
        weights_bytes=sums[count - 1],
    )


def _ffn(blocks: Sequence[Block], displaced: int, stay: Spill, cards: int) -> Spill:
    """FFNs of recurrent blocks first, the largest first; as many as are needed."""
    in_turn = _in_turn(len(blocks), stay.n_gpu_layers, cards)
    order = sorted(in_turn, key=lambda number: (not blocks[number].recurrent, -blocks[number].ffn_bytes))
    chosen: list[int] = []
    moved = 0
    for number in order:
        if moved >= displaced:
            break
        if blocks[number].ffn_bytes:
            chosen.append(number)
            moved += blocks[number].ffn_bytes
    overrides = (rf"blk\.{_any(chosen)}{FFN}",) if chosen else ()
    return replace(stay, overrides=overrides, n_cpu_ffn=len(chosen), weights_bytes=moved)


def _in_turn(n_layer: int, n_gpu_layers: int, cards: int) -> list[int]:
    """Blocks in the order in which they give something up: of each card the first, of each the second, ...

    llama.cpp puts layer ``i`` of ``n_gpu_layers`` on card ``i * cards // n_gpu_layers`` (``load_tensors``).
    """
    card = [number * cards // n_gpu_layers for number in range(n_layer)]
    return sorted(range(n_layer), key=lambda number: (number - card.index(card[number]), number))


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
            return replace(
                moved,
                n_gpu_layers=moved.n_gpu_layers - count,
                whole_blocks=count,
                weights_bytes=weights,
                cache_bytes=cache,
            )
    return None


def _any(blocks: Sequence[int]) -> str:
    return f"({'|'.join(map(str, sorted(blocks)))})"

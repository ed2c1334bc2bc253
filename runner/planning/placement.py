"""Where a job's bytes go: one pool of memory, a card beside the host's, or the host's alone.

- **Host alone**: everything is charged to RAM. Weights are mapped from their file, so a model larger than the RAM
  runs, paged by the system; all else must fit.
- **A card**: weights, cells, states and compute buffers on it, the input embeddings, the process and its
  scratch on the host. What ``spill`` allows moves to the host, and no more than is missing.
- **Unified**: card and host are the same bytes and are charged once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from runner.config import SpillConfig
from runner.planning import spill as spilling
from runner.planning.hardware.budget import Hardware
from runner.planning.model.profile import ModelProfile
from runner.planning.spill import Spill

Status = Literal["fits", "spilled", "refused"]


@dataclass(frozen=True)
class Need:
    """A job's bytes by kind, over all its processes; ``processes`` hold the weights of a card each."""

    weights: int
    kv: int
    recurrent: int
    compute: int
    overhead: int
    mmproj: int = 0
    processes: int = 1

    @property
    def cache(self) -> int:
        """Cells and states."""
        return self.kv + self.recurrent


@dataclass(frozen=True)
class Placement:
    """Where they go.

    ``vram_bytes`` and ``ram_bytes`` are charged to each pool (``ram_bytes`` without mapped weights that do not
    fit; on unified memory all is RAM); ``spill_bytes`` is what left the card; ``missing_bytes`` is what the
    short pool lacks. ``total_bytes`` counts every byte, mapped or not.
    """

    status: Status
    weights: Literal["resident", "mapped"]
    n_gpu_layers: int
    offload_kqv: bool
    total_bytes: int
    vram_bytes: int
    ram_bytes: int
    available_bytes: int
    missing_bytes: int = 0
    short_of: str = ""
    spill: Spill | None = None
    spill_bytes: int = 0


def place(
    need: Need,
    profile: ModelProfile,
    hardware: Hardware,
    spill: SpillConfig,
    cache_of_block: Callable[[], Sequence[int]],
    *,
    resident: bool = False,
) -> Placement:
    """Where ``need`` goes on ``hardware``, or what is missing.

    Args:
        need: bytes by kind.
        profile: the model, for what of its weights may move.
        hardware: the pools.
        spill: what may leave the card.
        cache_of_block: bytes of cells and states by block, asked only where blocks move.
        resident: refuse weights that would be paged.
    """
    if hardware.unified:
        return _unified(need, profile, hardware, spill, resident=resident)
    if hardware.vram_budget:
        return _on_card(need, profile, hardware, spill, cache_of_block)
    return _on_host(need, hardware, resident=resident)


def _on_host(need: Need, hardware: Hardware, *, resident: bool) -> Placement:
    # Every process maps the same file: one copy.
    rest = need.cache + need.compute + need.overhead + need.mmproj
    total, room = rest + need.weights, hardware.ram_budget
    mapped = total > room and not resident
    charged = rest if mapped else total
    missing = max(charged - room, 0)
    return Placement(
        status="refused" if missing else "fits",
        weights="mapped" if mapped else "resident",
        n_gpu_layers=0,
        offload_kqv=True,
        total_bytes=total,
        vram_bytes=0,
        ram_bytes=charged,
        available_bytes=room,
        missing_bytes=missing,
        short_of="RAM" if missing else "",
    )


def _on_card(
    need: Need,
    profile: ModelProfile,
    hardware: Hardware,
    spill: SpillConfig,
    cache_of_block: Callable[[], Sequence[int]],
) -> Placement:
    # Tied embeddings are on the host as the input and once more on the card as the output.
    copy = profile.output_bytes if profile.tied else 0
    on_card = (need.weights - profile.input_bytes + copy) * need.processes
    room = hardware.vram_budget - unusable(profile, hardware)
    vram = on_card + (0 if spill.kv else need.cache) + need.compute * hardware.cards + need.mmproj
    # Weights on the host are mapped from one file, whatever the number of processes.
    host = profile.input_bytes + need.overhead + (need.cache + need.compute if spill.kv else 0)
    placed = Placement(
        status="spilled" if spill.kv else "fits",
        weights="resident",
        n_gpu_layers=spilling.all_layers(profile),
        offload_kqv=not spill.kv,
        total_bytes=vram + host,
        vram_bytes=vram,
        ram_bytes=host,
        available_bytes=max(room, 0) + hardware.ram_budget,
        spill_bytes=need.cache if spill.kv else 0,
    )
    if vram > room and spill.weights == "auto":
        cells = () if spill.kv else cache_of_block()
        displaced = -(-(vram - room) // need.processes)
        moved = spilling.cover(profile, displaced, cells, cards=hardware.cards)
        if moved is not None:
            off = (moved.weights_bytes + moved.cache_bytes) * need.processes
            vram -= off
            host += moved.weights_bytes + moved.cache_bytes * need.processes
            host += 0 if spill.kv else need.compute
            placed = replace(
                placed,
                status="spilled",
                n_gpu_layers=moved.n_gpu_layers,
                total_bytes=vram + host,
                vram_bytes=vram,
                ram_bytes=host,
                spill=moved,
                spill_bytes=placed.spill_bytes + off,
            )
    return _refuse_if_short(placed, room, hardware.ram_budget)


def unusable(profile: ModelProfile, hardware: Hardware) -> int:
    """VRAM that stays free on several cards: no layer is divided, so each further card may lack one."""
    largest = max(block.total_bytes for block in spilling.blocks_of(profile))
    return max(hardware.cards - 1, 0) * max(largest, profile.output_bytes)


def _unified(
    need: Need, profile: ModelProfile, hardware: Hardware, spill: SpillConfig, *, resident: bool
) -> Placement:
    copy = profile.output_bytes if profile.tied else 0
    weights = need.weights * need.processes + copy * need.processes
    total = weights + need.cache + need.compute + need.overhead + need.mmproj
    room = hardware.ram_budget
    placed = Placement(
        status="fits",
        weights="resident",
        n_gpu_layers=spilling.all_layers(profile),
        offload_kqv=True,
        total_bytes=total,
        vram_bytes=0,
        ram_bytes=total,
        available_bytes=room,
    )
    if total > room and spill.weights == "auto" and need.processes == 1 and not resident:
        # Cells that move with their block still take their bytes of the one pool: only weights can be paged.
        moved = spilling.cover(profile, total + need.compute - room, (), unified=True)
        if moved is not None:
            placed = replace(
                placed,
                status="spilled",
                weights="mapped",
                n_gpu_layers=moved.n_gpu_layers,
                total_bytes=total + need.compute,
                ram_bytes=total + need.compute - moved.weights_bytes,
                spill=moved,
                spill_bytes=moved.weights_bytes,
            )
    return _refuse_if_short(placed, 0, room)


def _refuse_if_short(placed: Placement, vram: int, ram: int) -> Placement:
    lacks = {"VRAM": max(placed.vram_bytes - max(vram, 0), 0), "RAM": max(placed.ram_bytes - ram, 0)}
    missing = sum(lacks.values())
    if not missing:
        return placed
    return replace(
        placed,
        status="refused",
        missing_bytes=missing,
        short_of=" and ".join(pool for pool, size in lacks.items() if size),
    )

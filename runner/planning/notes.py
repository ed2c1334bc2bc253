"""What a person should know of a plan beside its numbers."""

from __future__ import annotations

from runner.kv_mode import KvModeConfig
from runner.planning import paging
from runner.planning import spill as spilling
from runner.planning.hardware.budget import gib
from runner.planning.placement import Placement
from runner.planning.plan import Plan
from runner.planning.prefill import least_of_a_worker, prefill_tokens, shared_otherwise
from runner.planning.request import Request


def notes_of(plan: Plan, placed: Placement) -> tuple[str, ...]:
    """The lines of ``plan``, which goes where ``placed`` says."""
    profile, hardware = plan.request.profile, plan.request.hardware
    notes = list(hardware.notes)
    if not profile.known and plan.source == "formula":
        notes.append(
            f"{profile.arch} is not modelled: its cache is estimated as full attention in every block, "
            f"only the engine's dry run is exact"
        )
    if profile.approximate:
        notes.append("the size of the weights is declared, not read from the file")
    if hardware.reason:
        notes.append(hardware.reason)
    if plan.codec_bytes:
        notes.append(
            f"fp8 is emulated: {gib(plan.kv_bytes)} are allocated, in f16 cells; FP8 codes and their scales would "
            f"take {gib(plan.codec_bytes)}"
        )
    mode = plan.request.kv_mode
    if mode.probes and plan.prefill_tokens is not None:
        other = shared_otherwise(mode)
        otherwise = prefill_of(plan.request, other, plan.budget_cells)
        if otherwise != plan.prefill_tokens:
            notes.append(
                f"kv_mode.guided.share={other.guided.share} would prefill {otherwise:,} tokens instead of "
                f"{plan.prefill_tokens:,}"
            )
    if mode.evicts:
        notes.append("llama-server cannot evict, there is no command for it")
    elif plan.codec_bytes:
        notes.append("llama-server has no FP8, the command keeps plain f16")
    if placed.spill_bytes and placed.status != "refused":
        moved = ["the KV cache"] if not placed.offload_kqv else []
        moved += [spilling.describe(placed.spill, len(spilling.blocks_of(profile)))] if placed.spill else []
        where = "left to the processor" if hardware.unified else "in host memory"
        notes.append(f"{gib(placed.spill_bytes)} are {where}: {' and '.join(moved)}")
    if placed.weights == "mapped" and placed.status != "refused":
        paged = placed.spill_bytes or profile.weights_bytes
        notes.append(paging.warning(profile, paged, hardware.ram_budget - placed.ram_bytes))
    return tuple(notes)


def prefill_of(request: Request, mode: KvModeConfig, kept: int) -> int | None:
    """What all prompts are prefilled with where ``mode`` reads them and ``kept`` cells stay; None if unknown."""
    demand = request.demand
    if not demand.asked:
        return None
    least = least_of_a_worker(request.profile, mode, kept)
    workers = demand.workers // demand.processes
    return demand.processes * prefill_tokens(demand.asked, mode, budget=kept, least=least, workers=workers)

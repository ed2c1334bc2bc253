"""From a request to a plan, by formula: the same request gives the same plan, and nothing is read or loaded.

What is charged::

    weights + in_flight * (prefix + workers * suffix) cells + n_seq_max recurrent states + compute + overhead

and where an isolated swarm runs a process a worker, everything but mapped weights once for each process. With an
eviction mode the cells are::

    budget + max(chunk + probe, workers * suffix)

whatever the prompt's length; with an answer longer than the budget, no more of it than that and an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvcache import budget
from runner.config import SpillConfig, WindowConfig
from runner.errors import PlanRefusedError
from runner.planning import checks, ladder, memory
from runner.planning.notes import notes_of, prefill_of
from runner.planning.placement import Need, place
from runner.planning.plan import DryRun, Plan, shortage
from runner.planning.request import Request


def resolve(request: Request) -> Plan:
    """The plan of ``request``; too little memory does not raise, the plan's ``status`` says so.

    Options that exclude each other were refused when the request was made (:mod:`runner.planning.ask`).

    Raises:
        PlanRefusedError: the prompt and its answer pass the window, or the window the native context; or an
            eviction mode's budget is no smaller than the window.
    """
    plan = _resolved(request)
    checks.budget(request.kv_mode, plan.budget_cells, plan.prefix_tokens + plan.suffix_tokens)
    return plan


def _resolved(request: Request) -> Plan:
    demand, profile = request.demand, request.profile
    if climbs(request.window, conversation=demand.conversation):
        native = profile.n_ctx_train or request.window.floor

        def at(window_tokens: int, spill: bool) -> Plan:
            weights = "auto" if spill else request.spill.weights
            return at_window(request, window_tokens, SpillConfig(kv=request.spill.kv, weights=weights))

        return ladder.initial(request.window, native, demand.prefix_tokens + demand.suffix_tokens, at)
    tokens = checks.window_tokens(
        profile,
        request.window,
        _positions(request),
        demand.suffix_tokens,
        mode=request.kv_mode,
        documents=None if demand.outputs else demand.documents,
    )
    return at_window(request, tokens)


def _positions(request: Request) -> int:
    """How many positions the longest prompt takes: one a token, unless what is kept of it moves together."""
    mode, demand = request.kv_mode, request.demand
    tokens, native = demand.prefix_tokens, request.profile.n_ctx_train
    if not mode.compacts:
        return tokens
    least = min(tokens, mode.budget_cells(tokens) + mode.chunk + demand.probe_tokens)
    if mode.positions == "compact":
        return least
    return min(tokens, max(native - demand.suffix_tokens, least)) if native else tokens


def climbs(window: WindowConfig, *, conversation: bool) -> bool:
    """Whether the window is a rung of the ladder."""
    return window.policy == "ladder" or (conversation and window.policy == "need")


def at_window(request: Request, window_tokens: int, spill: SpillConfig | None = None) -> Plan:
    """The plan at a window that is known; ``spill`` replaces the request's.

    Raises:
        PlanRefusedError: an answer alone fills the window.
    """
    profile, demand, mode = request.profile, request.demand, request.kv_mode
    if window_tokens <= demand.suffix_tokens:
        raise PlanRefusedError(
            f"an answer of {demand.suffix_tokens} tokens leaves no room for a prompt in a window of "
            f"{window_tokens}; lower sampling.max_tokens, or choose a longer window"
        )
    processes = demand.processes
    workers = -(-demand.workers // processes)
    n_ubatch, kept = mode.micro_batch(request.n_ubatch), mode.budget_cells(demand.prefix_tokens)
    prefix = window_tokens - demand.suffix_tokens
    slides = profile.sliding_window > 0
    if slides and demand.documents and not mode.swa_full:
        # A small sliding cache is never larger than the other, and holds a window of the document beside one
        # of the prompt: their cells cannot be shared (see Scheduler._fork).
        prefix = max(prefix, 2 * min(prefix, profile.sliding_window))
    cells = budget.padded_cells(demand.in_flight * (prefix + workers * demand.suffix_tokens))
    if mode.evicts:
        own = min(demand.suffix_tokens, kept + mode.interval)
        cells = budget.padded_cells(kept + max(mode.chunk + demand.probe_tokens, workers * own))
    sliding = 0
    if slides:
        sliding = budget.sliding_cells(
            cells, profile.sliding_window, demand.n_seq_max, n_ubatch, swa_full=mode.swa_full
        )
    n_outputs = max(demand.outputs, demand.n_seq_max)
    compute = memory.compute_bytes(
        profile,
        cells=cells,
        sliding_cells=sliding,
        n_ubatch=n_ubatch,
        n_seq_max=demand.n_seq_max,
        n_outputs=n_outputs,
        kv_type_k=mode.k,
        kv_type_v=mode.v,
        flash_attn=request.flash_attn,
    )
    overhead = memory.overhead_bytes(
        profile,
        cells=cells,
        n_ubatch=n_ubatch,
        flash_attn=request.flash_attn,
        n_threads=request.n_threads,
    )
    spill = spill or request.spill
    if mode.evicts:
        overhead += memory.eviction_bytes(
            profile,
            mode,
            cells=cells,
            sliding_cells=sliding,
            kept_cells=kept,
            n_ubatch=n_ubatch,
            n_seq_max=demand.n_seq_max,
            flash_attn=request.flash_attn,
            documents=demand.documents,
            on_card=request.hardware.vram_budget > 0 and not spill.kv,
        )
    kv = profile.kv_bytes(cells, sliding, mode.k, mode.v, flash_attn=request.flash_attn)
    plan = Plan(
        model=request.model_name,
        quant=request.quant,
        hardware=request.hardware.name,
        kv_mode=mode.name,
        workers=demand.workers,
        in_flight=demand.in_flight,
        processes=processes,
        window_policy="ladder"
        if climbs(request.window, conversation=demand.conversation)
        else request.window.policy,
        window_tokens=window_tokens,
        cells=cells,
        sliding_cells=sliding,
        kv_type_k=mode.k,
        kv_type_v=mode.v,
        swa_full=mode.swa_full,
        flash_attn=request.flash_attn,
        n_ubatch=n_ubatch,
        n_seq_max=demand.n_seq_max,
        n_outputs=n_outputs,
        n_gpu_layers=0,
        offload_kqv=True,
        n_threads=request.n_threads,
        prefix_tokens=demand.prefix_tokens,
        suffix_tokens=demand.suffix_tokens,
        policy=mode.policy,
        budget_cells=kept,
        chunk_tokens=mode.chunk if mode.evicts else 0,
        granularity=mode.granularity if mode.evicts else "",
        probe_tokens=demand.probe_tokens,
        prefill_tokens=prefill_of(request, mode, kept),
        codec="fp8 (emulated)" if mode.codec == "fp8" else "none",
        codec_bytes=processes * profile.fp8_bytes(cells, sliding) if mode.codec == "fp8" else 0,
        weights="resident",
        weights_bytes=profile.weights_bytes - profile.mtp_bytes,
        kv_bytes=processes * kv,
        recurrent_bytes=processes * demand.n_seq_max * profile.state_bytes,
        compute_bytes=processes * compute,
        overhead_bytes=processes * overhead,
        mmproj_bytes=request.mmproj_bytes,
        total_bytes=0,
        vram_bytes=0,
        ram_bytes=0,
        spill_bytes=0,
        available_bytes=0,
        missing_bytes=0,
        status="fits",
        reason="",
        source="formula",
        request=request,
    )
    return _placed(plan, spill)


def with_dry_run(plan: Plan, dry_run: DryRun) -> Plan:
    """``plan`` with the engine's own figures for cache, states and compute buffers, placed again."""
    late = memory.late_output_bytes(plan.request.profile, n_outputs=plan.n_outputs, n_seq_max=plan.n_seq_max)
    return _again(
        replace(
            plan,
            cells=dry_run.cells,
            sliding_cells=dry_run.sliding_cells,
            kv_bytes=dry_run.kv_bytes,
            recurrent_bytes=dry_run.recurrent_bytes,
            compute_bytes=dry_run.compute_bytes + late,
            source="dry_run",
        )
    )


def with_more_compute(plan: Plan, more: int) -> Plan:
    """``plan`` with ``more`` bytes of compute buffers, placed again."""
    return _again(replace(plan, compute_bytes=plan.compute_bytes + more)) if more else plan


def _again(plan: Plan) -> Plan:
    """``plan`` placed again after its bytes changed."""
    spilled = plan.request.spill.weights == "auto" or plan.spill is not None
    return _placed(plan, SpillConfig(kv=not plan.offload_kqv, weights="auto" if spilled else "none"))


def _placed(plan: Plan, spill: SpillConfig) -> Plan:
    """``plan`` with its bytes where they go, its status, and what a person should know of it."""
    request = plan.request
    need = Need(
        weights=plan.weights_bytes,
        kv=plan.kv_bytes,
        recurrent=plan.recurrent_bytes,
        compute=plan.compute_bytes,
        overhead=plan.overhead_bytes,
        mmproj=plan.mmproj_bytes,
        processes=plan.processes,
    )
    placed = place(
        need,
        request.profile,
        request.hardware,
        spill,
        lambda: _cache_by_block(plan),
        resident=request.weights == "resident",
    )
    return replace(
        plan,
        status=placed.status,
        weights=placed.weights,
        n_gpu_layers=placed.n_gpu_layers,
        offload_kqv=placed.offload_kqv,
        total_bytes=placed.total_bytes,
        vram_bytes=placed.vram_bytes,
        ram_bytes=placed.ram_bytes,
        spill_bytes=placed.spill_bytes,
        available_bytes=placed.available_bytes,
        missing_bytes=placed.missing_bytes,
        spill=placed.spill,
        notes=notes_of(plan, placed),
        reason=shortage(plan, placed) if placed.missing_bytes else "",
    )


def _cache_by_block(plan: Plan) -> Sequence[int]:
    """Bytes of cells and states of each block."""
    profile = plan.request.profile
    if len(profile.block_of_layer) != len(profile.layers):
        even = (plan.kv_bytes + plan.recurrent_bytes) // plan.processes // max(profile.n_layer, 1)
        return (even,) * profile.n_layer
    sizes = [0] * profile.n_layer
    for layer, block in zip(profile.layers, profile.block_of_layer, strict=True):
        cells = plan.cells if layer.kind == "full" else plan.sliding_cells
        sizes[block] += plan.n_seq_max * layer.state_bytes
        if layer.kind != "recurrent":
            sizes[block] += (
                profile.row_bytes(layer, plan.kv_type_k, plan.kv_type_v, flash_attn=plan.flash_attn) * cells
            )
    return sizes

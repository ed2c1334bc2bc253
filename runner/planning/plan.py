"""The plan of a job: what it will allocate, whether that fits, and the bytes that are missing if it does not.

:func:`resolve` is pure: the same profile, hardware and demand give the same plan, and nothing is read or
loaded. What it charges::

    weights + in_flight * (prefix + workers * suffix) cells + n_seq_max recurrent states + compute + overhead
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from kvcache import budget
from runner.config import KvModeConfig, WindowConfig
from runner.planning import checks, memory
from runner.planning.hardware import Hardware, gib
from runner.planning.profile import ModelProfile

Status = Literal["fits", "spilled", "refused"]
Source = Literal["formula", "dry_run"]

_NOT_COLUMNS = frozenset({"request", "notes"})


@dataclass(frozen=True)
class Demand:
    """What the prompts and the swarm ask for, in tokens.

    Attributes:
        prefix_tokens: the longest prompt, its document included: prefilled once a prompt.
        suffix_tokens: the longest answer: one for each worker.
        workers: answers a prompt.
        in_flight: prompts decoded at once.
        n_seq_max: sequences that the context must hold.
        outputs: tokens of one micro-batch whose logits are wanted; 0 is one a sequence.
        documents: whether prompts share documents, each of which keeps cells of its own.
    """

    prefix_tokens: int
    suffix_tokens: int
    workers: int = 1
    in_flight: int = 1
    n_seq_max: int = 1
    outputs: int = 0
    documents: bool = False


@dataclass(frozen=True)
class DryRun:
    """What the engine itself says it would allocate, in bytes and cells."""

    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    cells: int
    sliding_cells: int = 0


@dataclass(frozen=True)
class Request:
    """Everything that :func:`resolve` was asked, kept so that a refusal can try the remedies."""

    profile: ModelProfile
    hardware: Hardware
    model_name: str
    kv_mode: KvModeConfig
    window: WindowConfig
    demand: Demand
    flash_attn: bool
    n_ubatch: int
    n_threads: int


@dataclass(frozen=True)
class Plan:
    """A resolved plan; the columns of the ``plans`` table and a few things beside them.

    ``window_tokens`` is how far one worker's positions reach; ``cells`` is what the cache allocates, padded
    as llama.cpp pads. ``sliding_cells`` is the sliding layers' own cache, 0 where there is none. ``notes``
    are lines a person should read. ``compute_bytes`` includes the output buffer of the logits.
    """

    model: str
    hardware: str
    kv_mode: str
    workers: int
    in_flight: int
    window_tokens: int
    cells: int
    sliding_cells: int
    kv_type_k: str
    kv_type_v: str
    swa_full: bool
    flash_attn: bool
    n_ubatch: int
    n_seq_max: int
    n_outputs: int
    n_gpu_layers: int
    n_threads: int
    prefix_tokens: int
    suffix_tokens: int
    weights_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    overhead_bytes: int
    total_bytes: int
    spill_bytes: int
    available_bytes: int
    missing_bytes: int
    status: Status
    reason: str
    source: Source
    llama_server: str = ""
    notes: tuple[str, ...] = ()
    request: Request | None = field(default=None, repr=False, compare=False)

    def row(self) -> dict[str, Any]:
        """Columns of the ``plans`` table; ``flash_attn`` is ``on`` or ``off``, an empty reason the notes."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_COLUMNS}
        values["flash_attn"] = "on" if self.flash_attn else "off"
        values["reason"] = self.reason or "; ".join(self.notes)
        return values


def resolve(
    profile: ModelProfile,
    hardware: Hardware,
    *,
    model_name: str,
    kv_mode: KvModeConfig,
    window: WindowConfig,
    demand: Demand,
    flash_attn: bool,
    n_ubatch: int,
    n_threads: int,
) -> Plan:
    """The plan of a job by formula: pure, no file read and no weight loaded.

    Raises:
        ConfigError: options that the engine cannot combine (a quantised V without flash attention, blocks
            that do not fit the heads, a fixed window without its length).
        PlanRefusedError: the prompt and its answer pass the window, or the window the native context. Too
            little memory does not raise: the plan's ``status`` says so, and ``remedies.accept`` raises.
    """
    request = Request(profile, hardware, model_name, kv_mode, window, demand, flash_attn, n_ubatch, n_threads)
    checks.check_types(profile, model_name, kv_mode, flash_attn=flash_attn)
    window_tokens = checks.window_tokens(profile, window, demand.prefix_tokens, demand.suffix_tokens)
    prefix = window_tokens - demand.suffix_tokens
    slides = profile.sliding_window > 0
    if slides and demand.documents and not kv_mode.swa_full:
        # A small sliding cache is never larger than the other, and holds a window of the document beside one
        # of the prompt: their cells cannot be shared (see Scheduler._fork).
        prefix = max(prefix, 2 * min(prefix, profile.sliding_window))
    cells = budget.padded_cells(demand.in_flight * (prefix + demand.workers * demand.suffix_tokens))
    sliding = (
        budget.sliding_cells(
            cells, profile.sliding_window, demand.n_seq_max, n_ubatch, swa_full=kv_mode.swa_full
        )
        if slides
        else 0
    )
    n_outputs = max(demand.outputs, demand.n_seq_max)
    kv = profile.kv_bytes(cells, sliding, kv_mode.k, kv_mode.v, flash_attn=flash_attn)
    compute = memory.compute_bytes(
        profile,
        cells=cells,
        sliding_cells=sliding,
        n_ubatch=n_ubatch,
        n_seq_max=demand.n_seq_max,
        n_outputs=n_outputs,
        kv_type_k=kv_mode.k,
        kv_type_v=kv_mode.v,
        flash_attn=flash_attn,
    )
    overhead = memory.overhead_bytes(
        profile, cells=cells, n_ubatch=n_ubatch, flash_attn=flash_attn, n_threads=n_threads
    )
    return _decide(
        Plan(
            model=model_name,
            hardware=hardware.name,
            kv_mode=kv_mode.name,
            workers=demand.workers,
            in_flight=demand.in_flight,
            window_tokens=window_tokens,
            cells=cells,
            sliding_cells=sliding,
            kv_type_k=kv_mode.k,
            kv_type_v=kv_mode.v,
            swa_full=kv_mode.swa_full,
            flash_attn=flash_attn,
            n_ubatch=n_ubatch,
            n_seq_max=demand.n_seq_max,
            n_outputs=n_outputs,
            n_gpu_layers=0,
            n_threads=n_threads,
            prefix_tokens=demand.prefix_tokens,
            suffix_tokens=demand.suffix_tokens,
            weights_bytes=profile.weights_bytes,
            kv_bytes=kv,
            recurrent_bytes=demand.n_seq_max * profile.state_bytes,
            compute_bytes=compute,
            overhead_bytes=overhead,
            total_bytes=0,
            spill_bytes=0,
            available_bytes=0,
            missing_bytes=0,
            status="fits",
            reason="",
            source="formula",
            request=request,
        )
    )


def with_dry_run(plan: Plan, dry_run: DryRun) -> Plan:
    """``plan`` with the engine's own figures for cache, states and compute buffers, decided again."""
    return _decide(
        replace(
            plan,
            cells=dry_run.cells,
            sliding_cells=dry_run.sliding_cells,
            kv_bytes=dry_run.kv_bytes,
            recurrent_bytes=dry_run.recurrent_bytes,
            compute_bytes=dry_run.compute_bytes,
            source="dry_run",
        )
    )


def _decide(plan: Plan) -> Plan:
    """Place ``plan`` in VRAM or RAM and say whether it fits."""
    assert plan.request is not None
    profile, hardware = plan.request.profile, plan.request.hardware
    on_device = plan.weights_bytes + plan.kv_bytes + plan.recurrent_bytes + plan.compute_bytes
    total = on_device + plan.overhead_bytes
    notes = _notes(plan, profile, hardware)
    placed = {"total_bytes": total, "missing_bytes": 0, "status": "fits", "reason": "", "notes": notes}
    if (
        hardware.vram_budget
        and on_device <= hardware.vram_budget
        and plan.overhead_bytes <= hardware.ram_budget
    ):
        available = hardware.vram_budget + plan.overhead_bytes
        return replace(plan, n_gpu_layers=profile.n_layer + 1, available_bytes=available, **placed)  # type: ignore[arg-type]
    if hardware.vram_budget:
        placed["notes"] = (
            *notes,
            f"{gib(on_device)} pass the {gib(hardware.vram_budget)} of VRAM it may use: it runs on the CPU",
        )
    missing = total - hardware.ram_budget
    if missing > 0:
        placed |= {
            "missing_bytes": missing,
            "status": "refused",
            "reason": (
                f"{plan.model} with {plan.workers} workers does not fit: it needs {gib(total)} "
                f"({_parts(plan)}), {gib(hardware.ram_budget)} are available, {gib(missing)} are missing"
            ),
        }
    return replace(plan, n_gpu_layers=0, available_bytes=hardware.ram_budget, **placed)  # type: ignore[arg-type]


def _parts(plan: Plan) -> str:
    kinds = ("weights", "kv", "recurrent", "compute", "overhead")
    sizes = ((kind, getattr(plan, f"{kind}_bytes")) for kind in kinds)
    return ", ".join(f"{kind} {gib(size)}" for kind, size in sizes if size)


def _notes(plan: Plan, profile: ModelProfile, hardware: Hardware) -> tuple[str, ...]:
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
    return tuple(notes)

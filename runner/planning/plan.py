"""A resolved plan: what a job will allocate, where it goes, and the bytes that are missing if it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from runner.planning import llama_server
from runner.planning.hardware.budget import gib
from runner.planning.placement import Placement, Status
from runner.planning.request import Request
from runner.planning.spill import Spill

Source = Literal["formula", "dry_run"]

_NOT_COLUMNS = frozenset({"request", "notes", "spill"})


@dataclass(frozen=True)
class DryRun:
    """What the engine itself says it would allocate, in bytes and cells."""

    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    cells: int
    sliding_cells: int = 0


@dataclass(frozen=True)
class Plan:
    """The columns of the ``plans`` table and a few things beside them.

    ``window_tokens`` is how far one worker's positions reach; ``cells`` is what a cache allocates, padded as
    llama.cpp pads. ``sliding_cells`` is the sliding layers' own cache, 0 where there is none.
    With a ``policy`` (else it is ``none``) at most ``budget_cells`` of a prompt are kept, and ``chunk_tokens`` of
    prefill come between two evictions; both are 0 without. ``probe_tokens`` is the longest probe, and
    ``prefill_tokens`` what all prompts are prefilled with, probes included; None where it is not known.
    ``codec`` is ``none`` or ``fp8 (emulated)``; ``codec_bytes`` is what it would take for these cells, which
    nothing is saved of.
    ``compute_bytes`` includes the output buffer of the logits. Bytes are over all ``processes``.
    ``vram_bytes`` and ``ram_bytes`` are charged to each pool; ``missing_bytes`` is what the short one lacks.
    ``spill`` is which weights leave the card, ``notes`` are lines a person should read.
    """

    model: str
    quant: str
    hardware: str
    kv_mode: str
    workers: int
    in_flight: int
    processes: int
    window_policy: str
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
    offload_kqv: bool
    n_threads: int
    prefix_tokens: int
    suffix_tokens: int
    policy: str
    budget_cells: int
    chunk_tokens: int
    granularity: str
    probe_tokens: int
    prefill_tokens: int | None
    codec: str
    codec_bytes: int
    weights: Literal["resident", "mapped"]
    weights_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    overhead_bytes: int
    mmproj_bytes: int
    total_bytes: int
    vram_bytes: int
    ram_bytes: int
    spill_bytes: int
    available_bytes: int
    missing_bytes: int
    status: Status
    reason: str
    source: Source
    request: Request = field(repr=False, compare=False)
    spill: Spill | None = None
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all weights are where they were meant to be: in memory and, with a card, all on it."""
        return self.status != "refused" and self.weights == "resident" and self.spill is None

    @property
    def reach(self) -> int:
        """Positions that a prompt may pass before what is kept of it moves together; 0 where it always does."""
        demand, native = self.request.demand, self.request.profile.n_ctx_train
        if self.request.kv_mode.positions != "auto":
            return 0
        ahead = self.chunk_tokens + demand.probe_tokens + demand.suffix_tokens
        return max(native - ahead, 0) if native else self.prefix_tokens

    @property
    def sources(self) -> dict[str, str]:
        """Where the bytes of each kind come from."""
        engine = "the engine's dry run" if self.source == "dry_run" else "formula"
        compute = engine if self.source == "dry_run" else "bound"
        weights = "declared" if self.request.profile.approximate else "the file's tensors"
        return {
            "weights": weights,
            "kv": engine,
            "recurrent": engine,
            "compute": compute,
            "overhead": "bound",
            "mmproj": "declared",
        }

    @property
    def llama_server(self) -> str:
        """The command of a llama-server in the same posture; empty where it has none, as it cannot evict."""
        return llama_server.command(self)

    def row(self) -> dict[str, Any]:
        """Columns of the ``plans`` table; ``flash_attn`` is ``on`` or ``off``, an empty reason the notes."""
        values = {name: getattr(self, name) for name in _COLUMNS}
        values["llama_server"] = self.llama_server
        values["sources"] = "; ".join(f"{kind}: {source}" for kind, source in self.sources.items())
        values["flash_attn"] = "on" if self.flash_attn else "off"
        values["reason"] = self.reason or "; ".join(self.notes)
        return values


_COLUMNS = tuple(f.name for f in fields(Plan) if f.name not in _NOT_COLUMNS)


def shortage(plan: Plan, placed: Placement) -> str:
    """Why ``plan`` is refused: what it needs, what there is and what is missing."""
    hardware, profile = plan.request.hardware, plan.request.profile
    there = f"{gib(hardware.ram_budget)} are available"
    if hardware.vram_budget and not hardware.unified:
        there = f"{gib(hardware.vram_budget)} of VRAM and {gib(hardware.ram_budget)} of RAM are available"
    paged = ""
    if placed.weights == "mapped":
        paged = f", besides {gib(profile.weights_bytes)} of weights that stay in their file"
    return (
        f"{plan.model} with {plan.workers} workers does not fit: it needs "
        f"{gib(placed.vram_bytes + placed.ram_bytes)} ({_parts(plan, placed)}){paged}, {there}, "
        f"{gib(placed.missing_bytes)} of {placed.short_of} are missing"
    )


def _parts(plan: Plan, placed: Placement) -> str:
    kinds = ["kv", "recurrent", "compute", "overhead", "mmproj"]
    if placed.weights == "resident":
        kinds.insert(0, "weights")
    sizes = ((kind, getattr(plan, f"{kind}_bytes")) for kind in kinds)
    return ", ".join(f"{kind} {gib(size)}" for kind, size in sizes if size)

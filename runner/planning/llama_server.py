"""The command line of a llama-server in the posture of a plan: what a person pastes to serve the same job.

Each slot gets a window of its own: llama-server shares a prompt's cells only among the answers to one request, and
fails when such a request finds the cells of idle slots in its way. So the same bytes serve fewer answers at once,
and the command has as many slots as fit. It asks for nothing that the plan does not know of: no fitting
(``--fit``), no prompt cache in host memory (8 GiB of it by default), no projector that comes along unasked.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache import budget
from runner.planning import memory, speculative
from runner.planning.placement import unusable
from runner.planning.speculative import DRAFT_TOKENS, Posture

if TYPE_CHECKING:
    from runner.planning.plan import Plan

_CHECKPOINTS = 32
"""What llama-server keeps a slot by default of what it cannot cut back: recurrent states, sliding windows."""


@dataclass(frozen=True)
class Server:
    """What a server is sized for.

    Attributes:
        slots: answers that are decoded at once: as many of the swarm's as have room for a window each.
        cells: cells of its cache, a window for each slot, padded.
        cache_bytes: its cells and states, those for drafting among them.
        posture: how it drafts, where the model has the heads, the config wants it and its price fits.
        checkpoints: how many a slot may keep on the host; None where the model needs none.
    """

    slots: int
    cells: int
    cache_bytes: int
    posture: Posture | None
    checkpoints: int | None


def server(plan: Plan) -> Server:
    """The server of the same posture; one of a refused plan has every slot."""
    count = _slots(plan)
    posture = _posture(plan, count)
    return Server(
        slots=count,
        cells=_cells(plan, count, plan.n_ubatch)[0],
        cache_bytes=_cache(plan, count, posture),
        posture=posture,
        checkpoints=_checkpoints(plan, count, posture),
    )


def command(plan: Plan) -> str:
    """The whole command, quoted for a shell; where the plan is refused, that of what was refused.

    Empty where the plan evicts, which llama-server cannot: with the whole window it is another plan.
    """
    if plan.request.kv_mode.evicts:
        return ""
    request, spill, sized = plan.request, plan.spill, server(plan)
    words = ["llama-server", *(request.source or ("-m", "MODEL.gguf"))]
    if "-hf" in request.source and "--mmproj" not in request.source:
        words.append("--no-mmproj")
    words += ["-c", str(sized.cells), "--parallel", str(sized.slots), "--kv-unified"]
    words += ["-ctk", plan.kv_type_k, "-ctv", plan.kv_type_v, "-fa", "on" if plan.flash_attn else "off"]
    words += ["-ngl", str(plan.n_gpu_layers), "--fit", "off"]
    if spill is not None and spill.n_cpu_moe and not spill.spread:
        words += ["--n-cpu-moe", str(spill.n_cpu_moe)]
    elif spill is not None and spill.overrides:
        words += ["-ot", ",".join(f"{pattern}=CPU" for pattern in spill.overrides)]
    if not plan.offload_kqv:
        words.append("--no-kv-offload")
    if plan.swa_full:
        words.append("--swa-full")
    if sized.posture is None:
        words += ["-b", str(plan.n_ubatch), "-ub", str(plan.n_ubatch)]
    else:
        words += ["-b", str(sized.posture.n_batch), "-ub", str(sized.posture.n_ubatch)]
        words += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(DRAFT_TOKENS)]
        words += ["--backend-sampling", "--spec-draft-backend-sampling"]
        words += ["-ctkd", plan.kv_type_k, "-ctvd", plan.kv_type_v]
    words += ["--cache-ram", "0"]
    if sized.checkpoints is not None:
        words += ["--ctx-checkpoints", str(sized.checkpoints)]
    return shlex.join([*words, "-t", str(plan.n_threads)])


def _slots(plan: Plan) -> int:
    most, free = plan.workers * plan.in_flight, _free(plan)
    if plan.status == "refused" or _beyond(plan, most) <= free:
        return most
    return bisect_left(range(2, most), True, key=lambda count: _beyond(plan, count) > free) + 1


def _posture(plan: Plan, count: int) -> Posture | None:
    request = plan.request
    if request.speculative == "off" or not request.profile.n_mtp_layer or plan.status == "refused":
        return None

    def extra(drafting: Posture) -> int:
        return request.profile.mtp_bytes + _beyond(plan, count, drafting)

    return speculative.fitting(request.profile.n_vocab, _free(plan), extra)


def _checkpoints(plan: Plan, count: int, posture: Posture | None) -> int | None:
    profile, hardware = plan.request.profile, plan.request.hardware
    sliding = 0
    if profile.sliding_window and not plan.swa_full:
        sliding = min(plan.window_tokens, profile.sliding_window + plan.n_ubatch)
    size = profile.kv_bytes(0, sliding, plan.kv_type_k, plan.kv_type_v, flash_attn=plan.flash_attn)
    size += profile.state_bytes
    if not size:
        return None
    free = hardware.ram_budget - plan.ram_bytes
    if not plan.vram_bytes or not plan.offload_kqv:
        free -= _beyond(plan, count, posture)
        free -= posture.logits_bytes(profile.n_vocab) + profile.mtp_bytes if posture is not None else 0
    return min(_CHECKPOINTS, max(free, 0) // (count * size))


def _free(plan: Plan) -> int:
    """What the plan leaves of the pool that its cells are in; of the smaller one where the host has the cells."""
    profile, hardware = plan.request.profile, plan.request.hardware
    host = hardware.ram_budget - plan.ram_bytes
    if hardware.unified or not plan.vram_bytes:
        return host
    card = hardware.vram_budget - unusable(profile, hardware) - plan.vram_bytes
    return card if plan.offload_kqv else min(card, host)


def _beyond(plan: Plan, count: int, drafting: Posture | None = None) -> int:
    """Bytes of cells, states and compute buffers of a server with ``count`` slots beyond the plan's."""
    profile = plan.request.profile
    n_ubatch = plan.n_ubatch if drafting is None else drafting.n_ubatch

    def compute(cells: int, sliding: int, sequences: int, n_ubatch: int) -> int:
        return memory.compute_bytes(
            profile,
            cells=cells,
            sliding_cells=sliding,
            n_ubatch=n_ubatch,
            n_seq_max=sequences,
            n_outputs=sequences,
            kv_type_k=plan.kv_type_k,
            kv_type_v=plan.kv_type_v,
            flash_attn=plan.flash_attn,
        )

    served = compute(*_cells(plan, count, n_ubatch), count, n_ubatch)
    planned = compute(plan.cells, plan.sliding_cells, plan.n_seq_max, plan.n_ubatch)
    cards = max(plan.request.hardware.cards, 1)
    cache = _cache(plan, count, drafting) - plan.kv_bytes - plan.recurrent_bytes
    return max(cache, 0) + max(served - planned, 0) * cards


def _cache(plan: Plan, count: int, drafting: Posture | None) -> int:
    """Bytes of cells and states of a server with ``count`` slots.

    One that drafts keeps the states of every drafted token, to go back to the last that was accepted
    (``n_rs_seq``), and a cache for the draft heads.
    """
    profile, types = plan.request.profile, (plan.kv_type_k, plan.kv_type_v)
    cells, sliding = _cells(plan, count, plan.n_ubatch if drafting is None else drafting.n_ubatch)
    size = profile.kv_bytes(cells, sliding, *types, flash_attn=plan.flash_attn) + count * profile.state_bytes
    if drafting is None:
        return size
    full = [layer for layer in profile.layers if layer.kind == "full"]
    row = max((profile.row_bytes(layer, *types, flash_attn=plan.flash_attn) for layer in full), default=0)
    return size + DRAFT_TOKENS * count * profile.state_bytes + profile.n_mtp_layer * row * cells


def _cells(plan: Plan, count: int, n_ubatch: int) -> tuple[int, int]:
    """Cells of the full and of the sliding layers."""
    cells, window = budget.padded_cells(plan.window_tokens * count), plan.request.profile.sliding_window
    if not window:
        return cells, 0
    return cells, budget.sliding_cells(cells, window, count, n_ubatch, swa_full=plan.swa_full)

"""The command line of a llama-server in the posture of a plan: what a person pastes to serve the same job.

llama-server gives each slot a window of its own and does not share a prompt's cells between slots, so its cache
is ``window x slots`` cells where ours is the prompt once and the answers beside it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvcache import budget
from runner.planning import speculative
from runner.planning.speculative import Posture

if TYPE_CHECKING:
    from runner.planning.plan import Plan


def command(plan: Plan) -> str:
    """The whole command, quoted for a shell; where the plan is refused, that of what was refused."""
    request = plan.request
    words = ["llama-server", *(request.source or ("-m", "MODEL.gguf"))]
    words += ["-c", str(slot_cells(plan)), "--parallel", str(slots(plan)), "--kv-unified"]
    words += ["-ctk", plan.kv_type_k, "-ctv", plan.kv_type_v, "-fa", "on" if plan.flash_attn else "off"]
    words += ["-ngl", str(plan.n_gpu_layers)]
    if plan.spill is not None and plan.spill.n_cpu_moe:
        words += ["--n-cpu-moe", str(plan.spill.n_cpu_moe)]
    elif plan.spill is not None and plan.spill.overrides:
        words += ["-ot", ",".join(f"{pattern}=CPU" for pattern in plan.spill.overrides)]
    if not plan.offload_kqv:
        words.append("--no-kv-offload")
    if plan.swa_full:
        words.append("--swa-full")
    drafting = posture(plan)
    if drafting is None:
        words += ["-b", str(plan.n_ubatch), "-ub", str(plan.n_ubatch)]
    else:
        words += ["-b", str(drafting.n_batch), "-ub", str(drafting.n_ubatch)]
        words += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(speculative.DRAFT_TOKENS)]
        words += ["--backend-sampling", "--spec-draft-backend-sampling"]
    return shlex.join([*words, "-t", str(plan.n_threads)])


def slots(plan: Plan) -> int:
    """Answers that are decoded at once."""
    return plan.workers * plan.in_flight


def slot_cells(plan: Plan) -> int:
    """Cells of the server's cache: a window for each slot, padded."""
    return budget.padded_cells(plan.window_tokens * slots(plan))


def slot_bytes(plan: Plan) -> int:
    """Bytes of the server's cache beyond the plan's."""
    profile, cells = plan.request.profile, slot_cells(plan)
    sliding = 0
    if profile.sliding_window:
        sliding = budget.sliding_cells(
            cells, profile.sliding_window, slots(plan), plan.n_ubatch, swa_full=plan.swa_full
        )
    served = profile.kv_bytes(cells, sliding, plan.kv_type_k, plan.kv_type_v, flash_attn=plan.flash_attn)
    return served + slots(plan) * profile.state_bytes - plan.kv_bytes - plan.recurrent_bytes


def posture(plan: Plan) -> Posture | None:
    """How the server drafts, where the model has the heads, the config wants it and its price fits."""
    request = plan.request
    profile, hardware = request.profile, request.hardware
    if request.speculative == "off" or not profile.n_mtp_layer or plan.status == "refused":
        return None
    attention = max(
        (layer for layer in profile.layers if layer.kind == "full"), key=lambda n: n.n_head_kv, default=None
    )
    draft = profile.mtp_bytes
    if attention is not None:
        row = profile.row_bytes(attention, plan.kv_type_k, plan.kv_type_v, flash_attn=plan.flash_attn)
        draft += profile.n_mtp_layer * row * slot_cells(plan)
    on_card = bool(hardware.vram_budget) and not hardware.unified
    free = hardware.vram_budget - plan.vram_bytes if on_card else hardware.ram_budget - plan.ram_bytes
    return speculative.fitting(profile.n_vocab, free - max(slot_bytes(plan), 0), draft)

"""The window ladder: rungs a conversation starts at and climbs (Hermes's context policy, mended).

The seed's docstring says 64K, 96K, 128K; a factor of 1.5 gives 64, 96, 144, 216 Ki. Its decisions ignored the
runtime's overhead and could end beyond VRAM and RAM together; here every rung is a whole plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from runner.config import WindowConfig
from runner.errors import PlanRefusedError
from runner.planning.plan import Plan

FACTOR = 1.5
KIB = 1024


def rungs(native: int, floor: int, most: int | None = None) -> list[int]:
    """Windows in tokens from ``floor`` to the smaller of ``native`` and ``most``, which is always the last."""
    top = native if most is None else min(native, most)
    steps: list[int] = []
    step = float(floor)
    while step < top:
        steps.append(int(step))
        step *= FACTOR
    return [*steps, top]


def initial(window: WindowConfig, native: int, need: int, at: Callable[[int, bool], Plan]) -> Plan:
    """The plan that a conversation starts with.

    The largest rung that fits without spilling or paging; else the floor, or the largest rung above it whose
    cells take at most ``window.early_cost`` of the memory, with weights spilled as they must. Never beyond
    VRAM and RAM together: then the floor's refusal, with its bytes, is what comes back. With
    ``window.start=floor`` the first rung is the only choice.

    Args:
        window: the ladder's numbers.
        native: the model's native context in tokens.
        need: the shortest window that the first turn fits in.
        at: the plan at a window, with or without spilled weights.

    Raises:
        PlanRefusedError: the first turn passes the last rung.
    """
    steps = [rung for rung in rungs(native, window.floor, window.max) if rung >= need]
    if not steps:
        limit = rungs(native, window.floor, window.max)[-1]
        raise PlanRefusedError(
            f"the longest prompt or first turn and its answer need {need} tokens, the largest window is {limit} "
            f"({'window.max' if limit != native else 'the native context'}); shorten it or choose another model"
        )
    if window.start == "floor":
        steps = steps[:1]
    whole = _largest(steps, lambda rung: at(rung, False).whole)
    if whole is not None:
        which = "the largest rung that fits whole" if window.start == "largest" else "the first rung"
        return _because(at(whole, False), f"{which}, {_ki(whole)}")
    floor = at(steps[0], True)
    if floor.status == "refused":
        return floor
    hardware = floor.request.hardware
    bound = window.early_cost * (hardware.vram_budget or hardware.ram_budget)

    def cheap(rung: int) -> bool:
        plan = at(rung, True)
        return plan.status != "refused" and plan.kv_bytes + plan.recurrent_bytes <= bound

    rung = _largest(steps, cheap) or steps[0]
    return _because(at(rung, True), f"no rung fits whole: the window is held at {_ki(rung)}")


def _largest(steps: Sequence[int], good: Callable[[int], bool]) -> int | None:
    return next((rung for rung in reversed(steps) if good(rung)), None)


def _because(plan: Plan, reason: str) -> Plan:
    return replace(plan, notes=(*plan.notes, f"window: {reason}"))


def _ki(tokens: int) -> str:
    return f"{tokens / KIB:g} Ki" if tokens >= KIB else f"{tokens} tokens"

"""Whether a conversation's window grows at the end of a turn (Hermes's gates, mended).

The seed says that growth re-fits for residency but tests VRAM + RAM, and leaves the overhead out of both; here
the re-fit is a whole plan against the memory that is free now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from runner.config import WindowConfig
from runner.planning import ladder
from runner.planning.plan import Plan


@dataclass(frozen=True)
class GrowthDecision:
    """``grow`` to ``next_window``; ``hold``, for now; or ``compress-default``: no larger window will come.

    ``needed_bytes`` and ``available_bytes`` are the re-fit's, 0 where it was not reached.
    """

    action: Literal["grow", "hold", "compress-default"]
    next_window: int | None
    reason: str
    needed_bytes: int = 0
    available_bytes: int = 0


def decide(
    window: WindowConfig,
    *,
    native: int,
    current_window: int,
    session_tokens: int,
    measured_decode_tok_s: float | None,
    idle: bool,
    refit: Callable[[int], Plan],
    occupancy_confirmed: bool = False,
) -> GrowthDecision:
    """One decision, at a turn boundary; the gates in their order.

    1. occupancy: ``session_tokens`` fill ``window.grow_at`` of the window, unless ``occupancy_confirmed``, by a
       caller that knows the next turn passes the edge;
    2. the native context, and the user's own ``window.max``;
    3. idle: nothing else runs on the engine;
    4. speed: at least ``window.speed_floor`` tok/s were measured;
    5. re-fit: ``refit(next rung)``, against live memory with what the present context holds given back.
    """
    if not occupancy_confirmed and session_tokens < window.grow_at * current_window:
        share = session_tokens / current_window
        return GrowthDecision(
            "hold", None, f"{share:.0%} of the window is used, growth begins at {window.grow_at:.0%}"
        )
    larger = [r for r in ladder.rungs(native, window.floor, window.max) if r > current_window]
    if not larger:
        limit = "window.max" if window.max is not None and window.max < native else "the native context"
        return GrowthDecision("compress-default", None, f"the window is at {limit}, {current_window} tokens")
    if not idle:
        return GrowthDecision("hold", None, "the engine is busy with other prompts")
    if measured_decode_tok_s is not None and measured_decode_tok_s < window.speed_floor:
        return GrowthDecision(
            "compress-default",
            None,
            f"decoding at {measured_decode_tok_s:.1f} tok/s, below window.speed_floor={window.speed_floor:g}",
        )
    plan = refit(larger[0])
    if plan.status == "refused":
        return GrowthDecision("compress-default", None, plan.reason, plan.total_bytes, plan.available_bytes)
    return GrowthDecision(
        "grow",
        larger[0],
        f"from {current_window} to {larger[0]} tokens",
        plan.total_bytes,
        plan.available_bytes,
    )

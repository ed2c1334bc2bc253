from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned import AUTO, DENSE, MIXTURE, Q8, ask, card, host

from runner.config import WindowConfig
from runner.planning.growth import GrowthDecision, decide
from runner.planning.hardware.budget import GIB, Hardware, with_held
from runner.planning.plan import Plan
from runner.planning.resolve import at_window

ROOMY = card(100 * GIB)


class Refit:
    """Plans a window on ``hardware`` and remembers which were asked for."""

    def __init__(self, hardware: Hardware = ROOMY, profile: Any = DENSE) -> None:
        self.asked: list[int] = []
        self._hardware, self._profile = hardware, profile

    def __call__(self, tokens: int) -> Plan:
        self.asked.append(tokens)
        return at_window(ask(self._profile, self._hardware, kv_mode=Q8), tokens, AUTO)


READY: dict[str, Any] = {
    "native": 262_144, "current_window": 65_536, "session_tokens": 60_000, "measured_decode_tok_s": 20.0,
    "idle": True,
}  # fmt: skip


def decided(window: WindowConfig | None = None, refit: Refit | None = None, **changes: Any) -> GrowthDecision:
    return decide(window or WindowConfig(), refit=refit or Refit(), **(READY | changes))


def test_with_every_gate_open_it_grows_by_one_rung() -> None:
    refit = Refit()
    made = decided(refit=refit)
    assert (made.action, made.next_window) == ("grow", 98_304)
    assert refit.asked == [98_304]
    planned = Refit()(98_304)
    assert (made.needed_bytes, made.available_bytes) == (planned.total_bytes, planned.available_bytes)


GATES = [
    ({"session_tokens": 30_000}, "hold", "46% of the window is used, growth begins at 85%"),
    ({"current_window": 262_144, "session_tokens": 262_000}, "compress-default", "at the native context, 262144"),
    ({"idle": False}, "hold", "busy"),
    ({"measured_decode_tok_s": 5.9}, "compress-default", "5.9 tok/s, below window.speed_floor=6"),
    ({"refit": Refit(card(2 * GIB, 2 * GIB))}, "compress-default", "are missing"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "action", "reason"), GATES)
def test_each_gate_alone(change: dict[str, Any], action: str, reason: str) -> None:
    made = decided(**change)
    assert made.action == action and reason in made.reason
    assert made.next_window is None


def test_gates_are_asked_in_their_order() -> None:
    """With all of them shut the first one answers; opening it lets the next one answer."""
    refit = Refit(card(2 * GIB, 2 * GIB))
    change: dict[str, Any] = {
        "session_tokens": 30_000, "current_window": 262_144, "idle": False, "measured_decode_tok_s": 1.0,
    }  # fmt: skip
    openings: list[tuple[str, dict[str, Any]]] = [
        ("growth begins at", {"session_tokens": 262_000}),
        ("native context", {"current_window": 65_536, "session_tokens": 65_000}),
        ("busy", {"idle": True}),
        ("speed_floor", {"measured_decode_tok_s": None}),
        ("are missing", {}),
    ]
    for reason, opening in openings:
        assert refit.asked == [], "memory is looked at last"
        assert reason in decided(refit=refit, **change).reason
        change |= opening
    assert refit.asked == [98_304]


def test_a_caller_may_know_that_the_edge_is_reached() -> None:
    assert decided(session_tokens=10, occupancy_confirmed=True).action == "grow"
    assert decided(session_tokens=10, occupancy_confirmed=True, idle=False).action == "hold"


def test_speed_that_was_not_measured_is_no_obstacle() -> None:
    assert decided(measured_decode_tok_s=None).action == "grow"
    assert decided(measured_decode_tok_s=6.0).action == "grow"


def test_the_gates_numbers_are_the_users() -> None:
    at_half = WindowConfig(grow_at=0.5)
    assert decided(at_half, session_tokens=32_768).action == "grow"
    assert decided(at_half, session_tokens=32_767).action == "hold"
    assert decided(WindowConfig(speed_floor=0), measured_decode_tok_s=0.1).action == "grow"
    own = WindowConfig(floor=512)
    assert decided(own, native=8192, current_window=1152, session_tokens=1100).next_window == 1728


def test_the_users_limit_ends_the_climb() -> None:
    limited = WindowConfig(max=80_000)
    assert decided(limited).next_window == 80_000
    made = decided(limited, current_window=80_000, session_tokens=79_000)
    assert made.action == "compress-default" and "at window.max, 80000 tokens" in made.reason


def test_a_window_between_two_rungs_grows_to_the_next() -> None:
    assert decided(current_window=70_000, session_tokens=70_000).next_window == 98_304


def test_the_next_rung_is_held_against_free_memory_with_the_overhead() -> None:
    """The seed leaves the overhead and the compute buffers out, and would grow here."""
    roomy = Refit(host(100 * GIB))(98_304)
    bare = roomy.kv_bytes
    beside = roomy.total_bytes - roomy.weights_bytes
    assert decided(refit=Refit(host(beside))).action == "grow"
    made = decided(refit=Refit(host(beside - 1)))
    assert bare < beside - 1 and made.action == "compress-default"
    assert made.available_bytes == beside - 1 and made.needed_bytes == roomy.total_bytes
    assert "needs" in made.reason and "are available" in made.reason


def test_what_the_present_context_holds_is_given_back_first() -> None:
    present = Refit(host(100 * GIB))(65_536)
    needed = Refit(host(100 * GIB))(98_304).ram_bytes
    held = present.ram_bytes - present.weights_bytes
    free = replace(host(needed - held), ram_total=64 * GIB, ram_available=needed - held + 20 * GIB)
    assert Refit(free)(98_304).weights == "mapped"
    assert Refit(with_held(free, ram_bytes=held))(98_304).weights == "resident"


def test_growth_may_spill_what_spilled_already() -> None:
    room = card(4 * GIB)
    made = decided(refit=Refit(room, MIXTURE))
    assert made.action == "grow"
    assert Refit(room, MIXTURE)(98_304).spill_bytes > Refit(room, MIXTURE)(65_536).spill_bytes

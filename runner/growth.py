"""The window of one conversation as it runs: how full it is, whether it grows, and a row for each decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from runner.planning.growth import GrowthDecision
from runner.planning.plan import Plan

Action = Literal["grow", "hold", "refused", "compress"]

Decide = Callable[[Plan, int, int, float | None, bool], tuple[GrowthDecision, Plan | None]]
"""Whether a window grows, and the plan of the larger one: from the plan of the context that would be given back,
the window in tokens, the tokens of the conversation, the decode rate of one sequence in tok/s (None before it was
measured), and whether the next turn is known to pass the window's edge."""


@dataclass(frozen=True)
class Growth:
    """One decision before a turn: the columns of the ``growth`` table but for the job's id.

    ``reprefill_tokens`` and ``reprefill_s`` are what it cost to prefill the history in the larger window; they
    are known when the turn has run. ``summary`` is what took the place of the earlier turns.
    """

    prompt_id: str
    step: int
    turn: int
    action: Action
    from_window: int
    to_window: int
    session_tokens: int
    occupancy: float
    decode_tok_s: float | None
    reason: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    reprefill_tokens: int | None = None
    reprefill_s: float | None = None
    summary: str | None = None


class Window:
    """A conversation's window.

    ``plan`` is of the context that is open, ``session_tokens`` what was said so far: the conversation keeps both
    up to date. ``decode_tok_s`` is the rate of one sequence, in the faster of the last two turns.
    """

    def __init__(self, plan: Plan, decide: Decide, record: Callable[[Growth], None]) -> None:
        """``record`` gets every decision, a growth once more when its re-prefill is measured."""
        self.plan = plan
        self.session_tokens = 0
        self._rates: list[float] = []
        self._decide, self._record = decide, record
        self._steps = 0
        self._unmeasured: Growth | None = None

    @property
    def tokens(self) -> int:
        """How far a worker's positions reach now."""
        return self.plan.window_tokens

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens a second of one sequence; None before the first turn."""
        # One slow moment of a busy machine is no reason to end a conversation.
        return max(self._rates[-2:], default=None)

    def decoded(self, tok_s: float | None) -> None:
        """A turn was answered at this rate; None is not measurable."""
        if tok_s is not None:
            self._rates.append(tok_s)

    def grown(self, prompt_id: str, turn: int, need: int) -> tuple[Plan, str]:
        """The plan to go on with, rung by rung up to one that holds ``need`` tokens, and the last reason given.

        It is the present one where nothing is granted, and may be too small where that was not enough.
        """
        plan = self.plan
        while True:
            edge = need > plan.window_tokens
            decision, larger = self._decide(
                self.plan, plan.window_tokens, self.session_tokens, self.decode_tok_s, edge
            )
            if decision.action != "grow" or larger is None:
                refused = edge or decision.action == "compress-default"
                self._note("refused" if refused else "hold", prompt_id, turn, plan, plan, decision)
                return plan, decision.reason
            self._unmeasured = self._note("grow", prompt_id, turn, plan, larger, decision)
            plan = larger
            if need <= plan.window_tokens:
                return plan, decision.reason

    def compressed(self, prompt_id: str, turn: int, reason: str, summary: str) -> None:
        """The earlier turns were replaced by ``summary``."""
        decision = GrowthDecision("hold", None, reason)
        self._note("compress", prompt_id, turn, self.plan, self.plan, decision, summary)

    @property
    def moved(self) -> bool:
        """Whether the history of a smaller window is still to be prefilled in this one."""
        return self._unmeasured is not None

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Of the last prefill, ``tokens`` were in a smaller window before, and took ``seconds``."""
        if self._unmeasured is not None:
            self._record(replace(self._unmeasured, reprefill_tokens=tokens, reprefill_s=seconds))
            self._unmeasured = None

    def _note(
        self,
        action: Action,
        prompt_id: str,
        turn: int,
        before: Plan,
        after: Plan,
        decision: GrowthDecision,
        summary: str | None = None,
    ) -> Growth:
        growth = Growth(
            prompt_id=prompt_id,
            step=self._steps,
            turn=turn,
            action=action,
            from_window=before.window_tokens,
            to_window=after.window_tokens,
            session_tokens=self.session_tokens,
            occupancy=self.session_tokens / before.window_tokens,
            decode_tok_s=self.decode_tok_s,
            reason=decision.reason,
            needed_bytes=decision.needed_bytes or None,
            available_bytes=decision.available_bytes or None,
            summary=summary,
        )
        self._steps += 1
        self._record(growth)
        return growth

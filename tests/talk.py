"""Running a conversation on a real model in a few lines, with a desk that notes everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from runner.config import SamplingConfig, WindowConfig
from runner.context import PreparedPrompt
from runner.dialogue import Dialogue, Swarm
from runner.engine.context import Batch, Context, ContextParams, Logits
from runner.engine.sequence import Generation
from runner.engine.weights import Weights
from runner.growth import Growth
from runner.planning import growth
from runner.planning.growth import GrowthDecision
from runner.planning.sequences import sequences_needed
from runner.progress import Progress
from runner.prompts import Prompt

SAMPLING = SamplingConfig(max_tokens=8, temperature=0.0)
LADDER = WindowConfig(policy="ladder", floor=512, max=1152, speed_floor=0)


def plan(window: int, status: str = "fits") -> Any:
    """What a dialogue, and a decision about growth, need to know of a plan."""
    return SimpleNamespace(
        window_tokens=window, status=status, reason="too little memory", total_bytes=3, available_bytes=2
    )


class Listening(Context):
    """Keeps the logits that every prefill ended with."""

    def __init__(self, weights: Weights, params: ContextParams, heard: list[Logits]) -> None:
        super().__init__(weights, params)
        self._heard = heard

    def run(self, batch: Batch) -> Logits:
        logits = super().run(batch)
        if batch.n_outputs == 1 and batch.c.n_tokens > 1:
            self._heard.append(logits[0].copy())
        return logits


@dataclass
class Desk:
    """Notes what a dialogue does; the window climbs as ``window`` says while ``memory`` tokens allow."""

    weights: Weights
    workers: int = 1
    window: WindowConfig = LADDER
    memory: int = 10**9
    n_ubatch: int = 64
    flash_attn: bool = False
    says: Callable[[list[Generation]], str] = lambda generations: generations[0].text
    opened: list[int] = field(default_factory=list)
    items: list[PreparedPrompt] = field(default_factory=list)
    answers: list[list[Generation]] = field(default_factory=list)
    windows: list[tuple[int, ...]] = field(default_factory=list)
    rows: dict[int, Growth] = field(default_factory=dict)
    heard: list[Logits] = field(default_factory=list)

    def open(self, plan: Any) -> Context:
        self.opened.append(plan.window_tokens)
        sliding = self.weights.n_swa > 0
        # A small sliding cache holds a window of the history beside one of the prompt.
        prefix = max(plan.window_tokens, 2 * min(plan.window_tokens, self.weights.n_swa))
        params = ContextParams(
            n_ctx=prefix + self.workers * 64, n_ubatch=self.n_ubatch,
            n_seq_max=sequences_needed(self.workers, 1, documents=True, sliding=sliding),
            kv_type_k="f16", kv_type_v="f16", flash_attn=self.flash_attn, swa_full=False, n_threads=1,
        )  # fmt: skip
        return Listening(self.weights, params, self.heard)

    def decide(
        self, held: Any, window: int, session_tokens: int, decode_tok_s: float | None, confirmed: bool
    ) -> tuple[GrowthDecision, Any]:
        decision = growth.decide(
            self.window, native=8192, current_window=window, session_tokens=session_tokens, idle=True,
            measured_decode_tok_s=decode_tok_s, occupancy_confirmed=confirmed,
            refit=lambda larger: plan(larger, "fits" if larger <= self.memory else "refused"),
        )  # fmt: skip
        return decision, plan(decision.next_window) if decision.next_window else None

    def asked(self, item: PreparedPrompt, windows: tuple[int, ...]) -> None:
        self.items.append(item)
        self.windows.append(windows)

    def answered(self, item: PreparedPrompt, generations: list[Generation]) -> str:
        self.answers.append(generations)
        return self.says(generations)

    def grew(self, growth: Growth) -> None:
        self.rows[growth.step] = growth

    def actions(self) -> list[str]:
        return [row.action for row in self.rows.values()]

    def prefilled(self) -> list[int]:
        return [generations[0].prefill_tokens for generations in self.answers]

    def texts(self) -> list[list[str]]:
        return [[generation.text for generation in generations] for generations in self.answers]


def talk(
    desk: Desk,
    conversation: Prompt,
    window: int = 512,
    *,
    sampling: SamplingConfig = SAMPLING,
    on_refusal: Any = "stop",
    progress: Progress | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Desk:
    swarm = Swarm(desk.workers, 0, sampling, on_refusal)
    Dialogue(conversation, plan(window), swarm, desk, progress or Progress(), stopping).run()
    return desk


def conversation(turns: Sequence[Any], **rest: Any) -> Prompt:
    from runner.prompts.prompt import parse_prompt

    made = parse_prompt({"id": "chat", "turns": list(turns), **rest}, "here", "chat")
    return replace(made, turns=[replace(turn, kind=turn.kind or "text") for turn in made.turns])


def divergence(reference: Logits, other: Logits) -> float:
    """KL(reference || other) in nats of two rows of logits."""
    p, q = (
        row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64)) for row in (reference, other)
    )
    return float(np.sum(np.exp(p) * (p - q)))

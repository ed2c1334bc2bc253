"""What the engine is doing right now, for whoever draws or samples it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """Counters of one job; the scheduler writes, a tracer and a terminal read.

    ``phase`` is ``load``, ``prefill``, ``grow``, ``probe``, ``decode``, ``score`` or ``idle``; tokens, groups and
    steps only grow; ``cells_used`` and ``active_sequences`` are of this moment; ``tok_s`` is the last batch's
    rate: of prefilled tokens while a prompt is prefilled alone, else of generated ones. ``grow`` prefills what
    a smaller window held already, and ``probe`` asks what a question looks at; ``grow_s`` and ``probe_s`` are
    part of ``prefill_s``, ``probe_tokens`` no part of ``prefill_tokens``. In a decode step every active
    sequence gets a token, so ``decode_steps / decode_s`` is the rate of one of them.
    """

    phase: str = "idle"
    prefill_tokens: int = 0
    generated_tokens: int = 0
    active_sequences: int = 0
    cells_used: int = 0
    groups_done: int = 0
    load_s: float = 0.0
    tok_s: float = 0.0
    prefill_s: float = 0.0
    grow_s: float = 0.0
    probe_s: float = 0.0
    probe_tokens: int = 0
    decode_s: float = 0.0
    decode_steps: int = 0

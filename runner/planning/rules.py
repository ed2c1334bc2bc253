"""What a rule about options that cannot work together is, and how it is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.config import JobConfig
from runner.planning.facts import Facts
from runner.planning.sequences import MAX_SEQUENCES


@dataclass(frozen=True)
class Rule:
    """Options that exclude each other.

    Attributes:
        name: what the page calls it.
        sides: each option's key, and in words for which of its values the rule holds.
        applies: whether a job breaks it.
        reason: why, in one clause.
        overrides: what to type instead, any one of them; ``{sequences}`` and the like are the job's own numbers.
        otherwise: what else helps that is no single override.
    """

    name: str
    sides: tuple[tuple[str, str], ...]
    applies: Callable[[Facts], bool]
    reason: str
    overrides: tuple[str, ...] = ()
    otherwise: str = ""

    def typed(self, facts: Facts) -> tuple[str, ...]:
        """The overrides with the job's numbers in them."""
        return tuple(override.format_map(_numbers(facts)) for override in self.overrides)

    def line(self, facts: Facts) -> str:
        """One line for a person: the options as they are set, the reason and the remedy."""
        first, *more = (_said(key, facts.config) for key, _ in self.sides)
        remedies = [f"set {' or '.join(self.typed(facts))}"] if self.overrides else []
        remedies += [self.otherwise] if self.otherwise else []
        reason = self.reason.format_map(_numbers(facts))
        return f"{first} with {' and '.join(more)}: {reason}; {', or '.join(remedies)}"


def _numbers(facts: Facts) -> dict[str, object]:
    per_prompt = facts.sequences // facts.in_flight or 1
    return {
        "sequences": facts.sequences,
        "most_in_flight": MAX_SEQUENCES // per_prompt,
        "head_k": facts.odd_k_head,
        "head_v": facts.odd_v_head,
        "kept": facts.config.kv_mode.sinks + facts.recent_cells,
        "least_budget": facts.config.kv_mode.sinks + 1,
        "least_sliding": facts.least_sliding_budget,
        "probe": facts.probe_tokens,
        "probed": facts.held_for_probe,
        "least_probed": facts.least_probed_budget,
        "recent": facts.recent_cells,
        "most_every": facts.most_chunks_a_probe,
        "unread": ", ".join(facts.unread_options),
    }


_SAID: dict[str, Callable[[JobConfig], str]] = {
    "model": lambda config: f"model={config.model.label}",
    "hardware": lambda config: f"hardware={config.hardware.name}",
    "swarm_size": lambda config: f"swarm_size={config.swarm_size.workers}",
    "messages": lambda config: "chat prompts",
    "turns": lambda config: "prompts with turns",
    "bare": lambda config: "a prompt without a document",
    "texts": lambda config: "texts to score",
    "probe": lambda config: "kv_mode.probe.* or kv_mode.guided.*",
}
"""What is called otherwise than by its key and value."""


def _said(key: str, config: JobConfig) -> str:
    if key in _SAID:
        return _SAID[key](config)
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return f"{key}={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"

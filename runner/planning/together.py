"""Several plans on one machine at the same time: a swarm of different models, or jobs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import ConfigError
from runner.planning.hardware.budget import gib
from runner.planning.memory import PROCESS_BYTES
from runner.planning.placement import unusable
from runner.planning.plan import Plan


@dataclass(frozen=True)
class Together:
    """What they charge to each pool, and what that lacks; ``contexts`` counts them."""

    contexts: int
    vram_bytes: int
    ram_bytes: int
    missing_bytes: int

    def line(self) -> str:
        """One line for a person."""
        card = f"{gib(self.vram_bytes)} of VRAM and " if self.vram_bytes else ""
        verdict = f"{gib(self.missing_bytes)} are missing" if self.missing_bytes else "they fit"
        return f"all {self.contexts} at once: {card}{gib(self.ram_bytes)} of RAM; {verdict}"


def together(plans: Sequence[Plan], *, one_process: bool) -> Together:
    """The sum of ``plans``, of which those of one model map the same file.

    On the host the weights of a file count once, however many contexts use them: in one process they are one
    model, in several the system maps the same pages. On a card, and in unified memory, every process has a copy,
    one process has one.

    Args:
        plans: at least one; all for the same hardware.
        one_process: a mixed swarm, whose contexts share their process; else a process each.

    Raises:
        ConfigError: they are for different machines.
    """
    hardware = plans[0].request.hardware
    if any(plan.request.hardware.name != hardware.name for plan in plans):
        raise ConfigError("together is about one machine; give one hardware")
    vram = sum(plan.vram_bytes for plan in plans)
    ram = sum(plan.ram_bytes for plan in plans)
    seen: set[tuple[str, str]] = set()
    for plan in plans:
        file = (plan.model, plan.quant)
        if file in seen:
            on_card, on_host = _weights(plan)
            vram -= on_card if one_process else 0
            ram -= on_host if one_process or not hardware.unified else 0
        seen.add(file)
    if one_process:
        ram -= PROCESS_BYTES * (len(plans) - 1)
    missing = max(ram - hardware.ram_budget, 0)
    if hardware.vram_budget and not hardware.unified:
        room = hardware.vram_budget - max(unusable(plan.request.profile, hardware) for plan in plans)
        missing += max(vram - room, 0)
    return Together(len(plans), vram, ram, missing)


def _weights(plan: Plan) -> tuple[int, int]:
    """Bytes of one copy of the weights as ``plan`` charges them to the card and to the host."""
    profile, moved = plan.request.profile, plan.spill.weights_bytes if plan.spill is not None else 0
    copy = profile.output_bytes if profile.tied else 0
    if plan.vram_bytes:
        on_host = profile.input_bytes + moved
        return plan.weights_bytes + copy - on_host, on_host
    paged = plan.weights_bytes if plan.weights == "mapped" and plan.spill is None else moved
    return 0, plan.weights_bytes - paged + (copy if plan.request.hardware.unified else 0)

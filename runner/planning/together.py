"""Several plans on one machine at the same time: a swarm of different models, or jobs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import ConfigError
from runner.planning.hardware import gib
from runner.planning.memory import PROCESS_BYTES
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
    model, in several the system maps the same pages. On a card every process has a copy, one process has one.

    Args:
        plans: at least one; all for the same hardware.
        one_process: a mixed swarm, whose contexts share their process; else a process each.

    Raises:
        ConfigError: they are for different machines.
    """
    hardware = plans[0].request.hardware
    if any(plan.request.hardware.name != hardware.name for plan in plans):
        raise ConfigError("together is about one machine; give one hardware")
    on_card = hardware.vram_budget > 0 and not hardware.unified
    vram = sum(plan.vram_bytes for plan in plans)
    ram = sum(plan.ram_bytes for plan in plans)
    seen: set[tuple[str, str]] = set()
    for plan in plans:
        file = (plan.model, plan.quant)
        again = file in seen
        seen.add(file)
        if not again:
            continue
        moved = plan.spill.weights_bytes if plan.spill is not None else 0
        on_host = moved + plan.request.profile.input_bytes if on_card else plan.weights_bytes
        ram -= on_host if plan.weights == "resident" or on_card else 0
        if one_process and on_card:
            vram -= plan.weights_bytes - on_host
    if one_process:
        ram -= PROCESS_BYTES * (len(plans) - 1)
    missing = max(ram - hardware.ram_budget, 0)
    missing += max(vram - hardware.vram_budget, 0) if on_card else 0
    return Together(len(plans), vram, ram, missing)

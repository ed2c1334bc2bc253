"""What would make a job fit that does not: the ladder of remedies, the mildest in quality first.

Every remedy is an override that a person could type, tried by planning the job with it. Nothing changes unasked:
``plan.apply=true`` takes the first combination that suffices, without what turned out to be unnecessary in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from runner.config import JobConfig
from runner.errors import KvswarmError, PlanRefusedError
from runner.overrides import with_overrides
from runner.planning.hardware.budget import gib
from runner.planning.plan import Plan
from runner.planning.remedy import Remedy, remedies_of

Again = Callable[[JobConfig], Plan]


@dataclass(frozen=True)
class Step:
    """One rung of the remedy ladder: a row of ``plan_steps``.

    ``saved_bytes`` is what it alone takes off the short pool of memory; ``total_bytes`` is what the job needs
    with it and the sufficient steps before it; ``sufficient`` says that it belongs to the first combination
    that fits, ``applied`` that the job was run with it.
    """

    step: int
    remedy: str
    override: str
    saved_bytes: int
    total_bytes: int
    sufficient: bool
    applied: bool
    reason: str

    def row(self) -> dict[str, Any]:
        """Columns of ``plan_steps``."""
        return asdict(self)


def accept(plan: Plan, steps: Sequence[Step]) -> Plan:
    """``plan``, where it fits.

    Raises:
        PlanRefusedError: it does not; with needed, available and missing bytes and what would help.
    """
    if plan.status != "refused":
        return plan
    raise PlanRefusedError(f"{plan.reason}; {advice(steps)}")


def advice(steps: Sequence[Step]) -> str:
    """The steps as a sentence: what each saves, and which of them make the job fit."""
    if not steps:
        return "nothing would make it smaller; choose a smaller model or more memory (hardware.ram)"
    listed = ", ".join(f"{step.override} saves {gib(step.saved_bytes)}" for step in steps)
    enough = " ".join(sufficient(steps))
    if not enough:
        return (
            f"not even all of these suffice: {listed}; choose a smaller model or more memory (hardware.ram)"
        )
    return f"what would help, the mildest first: {listed}; this makes it fit: {enough} (plan.apply=true takes it)"


def sufficient(steps: Sequence[Step]) -> list[str]:
    """Overrides of the first combination that fits, one by one; none where none does."""
    return [word for step in steps if step.sufficient for word in step.override.split()]


def ladder(config: JobConfig, plan: Plan, again: Again) -> tuple[Step, ...]:
    """The remedies of a refused ``plan`` that save something, in the order of what they cost in quality.

    Args:
        config: the job as planned.
        plan: its refusal.
        again: the plan of another config of the same job.
    """
    tried = Tried(config, again)
    remedies = list(remedies_of(config, plan))
    chosen = _sufficient(remedies, tried)
    steps: list[Step] = []
    taken: list[str] = []
    for remedy in remedies:
        suffices = remedy.name in chosen
        override = chosen.get(remedy.name) or tried.mildest([], remedy) or remedy.overrides[-1]
        before, after = plan, tried.plan([override])
        if after is None and suffices:
            # Only together with another one, as a quantised V with flash attention.
            before, after = tried.plan(taken) or plan, tried.plan([*taken, override])
        saved = _short(plan, before) - _short(plan, after) if after is not None else 0
        if not suffices and (saved <= 0 or {step.remedy for step in steps} & {*remedy.instead_of}):
            continue
        with_it = tried.plan([*taken, override]) or after
        assert with_it is not None  # a remedy that cannot be planned saves nothing and suffices for nothing
        taken += [override] if suffices else []
        steps.append(
            Step(
                step=len(steps),
                remedy=remedy.name,
                override=override,
                saved_bytes=max(saved, 0),
                total_bytes=with_it.total_bytes,
                sufficient=suffices,
                applied=False,
                reason=remedy.cost,
            )
        )
    return tuple(steps)


def numbered(*parts: Sequence[Step]) -> tuple[Step, ...]:
    """Steps of one ladder after another, counted from 0."""
    return tuple(replace(step, step=n) for n, step in enumerate(step for steps in parts for step in steps))


def applied(steps: Sequence[Step]) -> tuple[Step, ...]:
    """``steps`` with the sufficient ones marked as taken."""
    return tuple(replace(step, applied=step.sufficient) for step in steps)


class Tried:
    """Plans of the job with some overrides, each made once."""

    def __init__(self, config: JobConfig, again: Again) -> None:
        self._config, self._again = config, again
        self._plans: dict[tuple[str, ...], Plan | None] = {}

    def plan(self, overrides: Sequence[str]) -> Plan | None:
        """None where the engine could not run that."""
        key = tuple(overrides)
        if key not in self._plans:
            try:
                words = [word for override in overrides for word in override.split()]
                self._plans[key] = self._again(with_overrides(self._config, words))
            except KvswarmError:
                self._plans[key] = None
        return self._plans[key]

    def fits(self, overrides: Sequence[str]) -> bool:
        """Whether the job fits with them."""
        plan = self.plan(overrides)
        return plan is not None and plan.status != "refused"

    def missing(self, overrides: Sequence[str]) -> float:
        """Bytes that are missing with them; of what the engine could not run, all."""
        plan = self.plan(overrides)
        return inf if plan is None else plan.missing_bytes

    def mildest(self, taken: Sequence[str], remedy: Remedy) -> str | None:
        """The mildest of a remedy's overrides that suffices beside ``taken``, by bisection."""
        low, high = 0, len(remedy.overrides) - 1
        if not self.fits([*taken, remedy.overrides[high]]):
            return None
        while low < high:
            middle = (low + high) // 2
            if self.fits([*taken, remedy.overrides[middle]]):
                high = middle
            else:
                low = middle + 1
        return remedy.overrides[low]


def _sufficient(remedies: Sequence[Remedy], tried: Tried) -> dict[str, str]:
    """The first combination that fits: override by remedy, empty where there is none.

    A remedy with a degree (workers, window) is passed over as long as it does not complete the combination, so
    that a swarm is not cut to one worker for nothing; only at the end is it taken to its strongest. One without
    is left out where more is missing with it, as of host memory once the cache is there.
    """
    taken: dict[str, str] = {}
    for strongest in (False, True):
        for remedy in remedies:
            if remedy.name in taken:
                continue
            beside = {name: other for name, other in taken.items() if name not in remedy.excludes}
            override = tried.mildest(list(beside.values()), remedy)
            if override is not None:
                return _pruned(beside | {remedy.name: override}, tried)
            others = list(taken.values())
            if strongest or len(remedy.overrides) == 1:
                last = remedy.overrides[-1]
                if tried.missing([*others, last]) <= tried.missing(others):
                    taken[remedy.name] = last
    return {}


def _pruned(taken: dict[str, str], tried: Tried) -> dict[str, str]:
    """Without what is not needed, the costliest first; the last one was."""
    for name in list(taken)[-2::-1]:
        rest = [override for other, override in taken.items() if other != name]
        if tried.fits(rest):
            del taken[name]
    return taken


def _short(refused: Plan, plan: Plan) -> int:
    """What ``plan`` charges to the pools of which ``refused`` has too little, in bytes."""
    hardware = refused.request.hardware
    short_of_vram = refused.vram_bytes > hardware.vram_budget > 0
    short_of_ram = refused.ram_bytes > hardware.ram_budget
    if short_of_vram and not short_of_ram:
        return plan.vram_bytes
    if short_of_ram and not short_of_vram:
        return plan.ram_bytes
    return plan.vram_bytes + plan.ram_bytes

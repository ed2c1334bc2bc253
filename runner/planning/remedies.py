"""What would make a job fit that does not: the ladder of remedies, the mildest in quality first.

Every remedy is an override that a person could type, tried by planning the job with it. Nothing changes unasked:
``plan.apply=true`` takes the first combination that suffices, without what turned out to be unnecessary in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from kvcache.budget import CELL_PADDING
from runner.config import JobConfig
from runner.errors import KvswarmError, PlanRefusedError
from runner.overrides import with_overrides
from runner.planning.hardware.budget import gib
from runner.planning.ladder import FACTOR
from runner.planning.plan import Plan
from runner.planning.resolve import climbs

_SMALL_UBATCH = 64
_WIDE = ("f32", "f16", "bf16")
_POLICIES = {
    "peak": "what is looked at the least is forgotten",
    "keydiff": "what stands out the least is forgotten",
}
"""What evicts best, and what evicts where a quantised V or flash attention stays."""

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


@dataclass(frozen=True)
class _Remedy:
    """``overrides`` from the mildest to the strongest; one that has several is only as strong as it must be.

    Each is what a person types, which may be several words. One that is ``instead_of`` another is only spoken of
    where that does not help, or where it is needed.
    """

    name: str
    cost: str
    overrides: tuple[str, ...]
    instead_of: str = ""


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
    tried = _Tried(config, again)
    remedies = list(_remedies(config, plan))
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
        if not suffices and (saved <= 0 or remedy.instead_of in [step.remedy for step in steps]):
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


class _Tried:
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
        plan = self.plan(overrides)
        return plan is not None and plan.status != "refused"

    def missing(self, overrides: Sequence[str]) -> float:
        """Bytes that are missing with them; of what the engine could not run, all."""
        plan = self.plan(overrides)
        return inf if plan is None else plan.missing_bytes

    def mildest(self, taken: Sequence[str], remedy: _Remedy) -> str | None:
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


def _sufficient(remedies: Sequence[_Remedy], tried: _Tried) -> dict[str, str]:
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
            others = list(taken.values())
            override = tried.mildest(others, remedy)
            if override is not None:
                taken[remedy.name] = override
                return _pruned(taken, tried)
            if strongest or len(remedy.overrides) == 1:
                last = remedy.overrides[-1]
                if tried.missing([*others, last]) <= tried.missing(others):
                    taken[remedy.name] = last
    return {}


def _pruned(taken: dict[str, str], tried: _Tried) -> dict[str, str]:
    """Without what is not needed, the costliest first; the last one was."""
    for name in list(taken)[-2::-1]:
        rest = [override for other, override in taken.items() if other != name]
        if tried.fits(rest):
            del taken[name]
    return taken


def _remedies(config: JobConfig, plan: Plan) -> Iterator[_Remedy]:
    hardware = plan.request.hardware
    small = max(_SMALL_UBATCH, plan.n_seq_max)
    if plan.n_ubatch > small:
        yield _Remedy("smaller micro-batch", "prefill may be slower", (f"n_ubatch={small}",))
    mode = config.kv_mode
    if not plan.flash_attn and mode.needs != "attention":
        yield _Remedy("flash attention", "may be slower on this machine", ("flash_attn=on",))
    if plan.in_flight > 1:
        yield _Remedy("one prompt at a time", "less throughput", ("in_flight=1",))
    if plan.kv_type_k in _WIDE and mode.codec == "none":
        yield _Remedy("K in 8 bits", "a small loss of precision", ("kv_mode.k=q8_0",))
    if plan.kv_type_v in _WIDE and mode.codec == "none" and mode.needs != "attention":
        yield _Remedy("V in 8 bits", "a small loss of precision; needs flash attention", ("kv_mode.v=q8_0",))
    if hardware.vram_budget and not hardware.unified and not config.spill.kv:
        yield _Remedy("KV cache in host memory", "decoding is slower", ("spill.kv=true",))
    if plan.workers > 1:
        counts = range(plan.workers - 1, 0, -1)
        yield _Remedy("fewer workers", "a vote of fewer answers", tuple(f"swarm_size={n}" for n in counts))
    if smaller := _smaller_windows(config, plan):
        yield _Remedy("smaller window", "shorter answers or conversations", smaller)
    if hardware.vram_budget and config.spill.weights == "none":
        yield _Remedy("weights in host memory", "decoding is much slower", ("spill.weights=auto",))
    if hardware.vram_budget and not hardware.unified:
        yield _Remedy("no card", "everything on the processor, weights paged", ("hardware.vram=0",))
    budgets = _smaller_budgets(plan)
    if mode.evicts and budgets:
        smaller = tuple(f"kv_mode.budget={cells}" for cells in budgets)
        yield _Remedy("smaller budget", "more of the prompt is forgotten", smaller)
    elif budgets and not plan.request.demand.conversation:
        names = ("an eviction mode", "an eviction mode with flash attention")
        for name, (policy, cost) in zip(names, _POLICIES.items(), strict=True):
            pairs = tuple(f"kv_mode.policy={policy} kv_mode.budget={cells}" for cells in budgets)
            yield _Remedy(name, cost, pairs, instead_of=names[0])


def _smaller_budgets(plan: Plan) -> list[int]:
    """Cells that a policy could keep of the prompts, the most first."""
    most = min(plan.prefix_tokens, plan.budget_cells or plan.prefix_tokens)
    least = max(plan.request.profile.sliding_window, CELL_PADDING)
    return [
        cells
        for cells in range(most // CELL_PADDING * CELL_PADDING, least - 1, -CELL_PADDING)
        if cells < most
    ]


def _smaller_windows(config: JobConfig, plan: Plan) -> tuple[str, ...]:
    need = plan.prefix_tokens + plan.suffix_tokens
    if climbs(config.window, conversation=plan.request.demand.conversation):
        floors = []
        floor = config.window.floor / FACTOR
        while floor >= max(need, 256):
            floors.append(f"window.floor={int(floor)}")
            floor /= FACTOR
        return tuple(floors)
    if config.window.policy == "fixed":
        shorter = range(plan.window_tokens - CELL_PADDING, need, -CELL_PADDING)
        return tuple(f"window.tokens={tokens}" for tokens in (*shorter, need) if tokens < plan.window_tokens)
    return tuple(f"sampling.max_tokens={tokens}" for tokens in range(plan.suffix_tokens - 1, 0, -1))


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

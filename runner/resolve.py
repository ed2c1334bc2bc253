"""A job's plan: by formula while its model is not here, by the engine's own dry run once it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from runner.config import JobConfig, SpillConfig
from runner.context import PreparedPrompt, check_strategy
from runner.engine.dryrun import dry_run
from runner.errors import BeyondTrainedError, ConfigError
from runner.expected import expected
from runner.overrides import with_overrides
from runner.planner import measured_shapes
from runner.planning import compatibility, flash, quants
from runner.planning.ask import Workload, as_sent, request_for
from runner.planning.beyond import within
from runner.planning.facts import Facts
from runner.planning.hardware.budget import Hardware, probe, with_held
from runner.planning.hardware.build import offload_backends
from runner.planning.model.profile import ModelProfile, from_config
from runner.planning.plan import Plan
from runner.planning.prefill import Asked, Probe
from runner.planning.remedies import Step, Tried, accept, applied, ladder, numbered, sufficient
from runner.planning.remedy import GUIDED, Remedy, budgets_below, guided_overrides
from runner.planning.request import Request
from runner.planning.resolve import at_window, resolve, with_dry_run, with_more_compute
from runner.prompts import least_tokens

if TYPE_CHECKING:
    from runner.scoring.texts import ScoredText


@dataclass(frozen=True)
class Resolved:
    """A plan, the config that it is of (another one where remedies were applied), and the remedies' ladder."""

    config: JobConfig
    plan: Plan
    steps: tuple[Step, ...] = ()


def workload_of(prepared: Sequence[PreparedPrompt], texts: Sequence[ScoredText] = ()) -> Workload:
    """What one-shot prompts ask for, each with its own probes, and texts that are scored beside them."""
    scored = max((len(text.tokens) for text in texts), default=0)
    return Workload(
        prompt_tokens=max([scored, *(item.tokens_sent for item in prepared)]),
        documents=any(item.document for item in prepared),
        prompts=len(prepared),
        score_tokens=scored,
        asks=bool(prepared),
        asked=tuple(_asked(item) for item in prepared),
    )


def _asked(item: PreparedPrompt) -> Asked:
    """What ``item`` is prefilled with; where it has no probes, with those that a guided reading would give it."""
    probes: tuple[tuple[Probe, ...], ...] = tuple(
        tuple((probe, len(probe)) for probe in of_text) for of_text in item.probes_by_text
    )
    if not probes and item.prompt.probes:
        # No token is shorter than a byte, and what stands around the question stands around its own probes.
        around = len(item.question)
        probes = (tuple((probe, len(probe.encode()) + around) for probe in item.prompt.probes),)
    elif not probes:
        probes = (((item.question, len(item.question)),),)
    return Asked(item.document, len(item.document), len(item.question), probes)


def refuse_early(config: JobConfig) -> None:
    """Refuse what neither the model's file nor more memory could mend, before anything is fetched or loaded.

    Raises:
        ConfigError: options that exclude each other, or that can only be planned.
        PromptError: prompts that cannot be used.
    """
    _check_runs(config)
    check_strategy(config.context_strategy)
    workload = expected(config.prompts)
    compatibility.check(
        Facts(
            config,
            chats=workload.chats,
            turns=workload.conversation,
            bare=workload.bare,
            scores=workload.score_tokens > 0,
        )
    )


def choose_quant(config: JobConfig) -> JobConfig:
    """``config`` with its model's file chosen, where ``model.quant`` asks for that.

    Raises:
        ConfigError: no such quant.
    """
    if config.model.quant is None:
        return config
    return quants.choose(config, _hardware(config), flash.read(measured_shapes()))


def refuse_before_fetch(config: JobConfig) -> None:
    """Refuse, from the declared profile and the least the prompts can need, what can never fit.

    Raises:
        PlanRefusedError: nothing needs to be downloaded to know that this job does not fit.
    """
    if config.model.profile is None:
        return
    profile, hardware = from_config(config.model.profile), _hardware(config)
    workload = _least(config, profile)
    resolved = _decide(
        config, profile, lambda job: resolve(_request(job, profile, hardware, workload)), lambda plan: plan
    )
    accept(resolved.plan, resolved.steps)


def _least(config: JobConfig, profile: ModelProfile) -> Workload:
    """The least that the prompts can come to.

    With an eviction mode every prompt that passes the budget takes the same memory, and one that does not is
    refused once it is counted: so the least is a prompt that just passes it.
    """
    expects, mode = expected(config.prompts), config.kv_mode
    tokens = as_sent(config, profile, Workload(least_tokens(config.prompts))).prompt_tokens
    if mode.evicts:
        passed = mode.budget_cells(tokens) + 1
        answer = config.sampling.max_tokens if expects.asks else 1
        tokens = max(tokens, min(passed, profile.n_ctx_train or passed) - answer)
    return Workload(tokens, documents=expects.documents, conversation=expects.conversation, asks=expects.asks)


def resolve_job(config: JobConfig, path: Path, profile: ModelProfile, workload: Workload) -> Resolved:
    """The plan of a job whose prompts are counted and whose model is at ``path``; it may be a refusal.

    Raises:
        PlanRefusedError: the window is too small, or the declared hardware is not this machine's.
        ConfigError: options that the engine cannot combine.
    """
    hardware = _hardware(config)

    def formula(job: JobConfig) -> Plan:
        # The last remedy is about the hardware itself.
        budget = hardware if job.hardware == config.hardware else _hardware(job)
        return resolve(_request(job, profile, budget, workload, path))

    return _decide(config, profile, formula, lambda plan: measured(path, plan))


def guided_reading(
    config: JobConfig, path: Path, profile: ModelProfile, workload: Workload
) -> tuple[str, Plan] | None:
    """What a person types for the guided reading with the largest budget that fits, and its plan by formula.

    None where no budget does.
    """
    hardware = _hardware(config)
    longest = min(workload.prompt_tokens, profile.n_ctx_train or workload.prompt_tokens)
    words = guided_overrides(config, budgets_below(longest, profile))
    if not words:
        return None
    tried = Tried(config, lambda job: resolve(_request(job, profile, hardware, workload, path)))
    override = tried.mildest([], Remedy(GUIDED, "", words))
    plan = tried.plan([override]) if override is not None else None
    return None if override is None or plan is None else (override, plan)


def replan(
    config: JobConfig, path: Path, profile: ModelProfile, workload: Workload, window_tokens: int, held: Plan
) -> Plan:
    """The plan of the same job at another window, against the memory that is free now.

    Args:
        config: the job as it runs.
        path: the model's file.
        profile: its profile.
        workload: as the job was planned with.
        window_tokens: the window to plan for.
        held: the plan of the context that would be given back first.
    """
    ours = held.overhead_bytes
    if not (held.vram_bytes and held.offload_kqv):
        ours += held.kv_bytes + held.recurrent_bytes
    if not held.vram_bytes:
        ours += held.compute_bytes
    hardware = with_held(
        _hardware(config), ram_bytes=min(ours, _anonymous_bytes()), vram_bytes=held.vram_bytes
    )
    spill = SpillConfig(kv=not held.offload_kqv, weights="auto" if held.vram_bytes else "none")
    return measured(
        path, at_window(_request(config, profile, hardware, workload, path), window_tokens, spill)
    )


def _decide(
    config: JobConfig,
    profile: ModelProfile,
    formula: Callable[[JobConfig], Plan],
    measure: Callable[[Plan], Plan],
) -> Resolved:
    """The plan of ``config``, with the remedies that it needs and, where the config says so, takes.

    Raises:
        PlanRefusedError: as ``formula``; of what passes the model's context with the remedy, where there is one.
    """
    taken: tuple[Step, ...] = ()
    try:
        by_formula = formula(config)
    except BeyondTrainedError as error:
        config, step = within(config, error, profile, formula)
        by_formula, taken = formula(config), (step,)
    plan = measure(by_formula)
    while plan.status == "refused":
        # What the engine asked for beyond the formula it will ask for beside any remedy.
        beyond = max(plan.compute_bytes - by_formula.compute_bytes, 0)

        def again(job: JobConfig, beyond: int = beyond) -> Plan:
            return with_more_compute(formula(job), beyond)

        steps = ladder(config, plan, again)
        overrides = sufficient(steps)
        if not (config.plan.apply and overrides):
            return Resolved(config, plan, numbered(taken, steps))
        config, taken = with_overrides(config, overrides), numbered(taken, applied(steps))
        by_formula = formula(config)
        plan = measure(by_formula)
    return Resolved(config, plan, taken)


def measured(path: Path, plan: Plan) -> Plan:
    """``plan`` with the engine's own figures for the model at ``path``, where they could change what is decided.

    Raises:
        EngineError: the engine refused the parameters.
    """
    hopeless = plan.status == "refused" and plan.missing_bytes > plan.compute_bytes
    return plan if hopeless else with_dry_run(plan, dry_run(path, plan))


def _check_runs(config: JobConfig) -> None:
    """Refuse what can be planned but not run, as hardware that is not this machine's."""
    if config.workers.kind == "isolated":
        raise ConfigError(
            "workers=isolated can be planned, not run yet; plan it with python -m runner.plan, "
            "or run with workers=shared"
        )


def _hardware(config: JobConfig) -> Hardware:
    _check_runs(config)
    hardware = probe(config.hardware, can_offload=bool(offload_backends()))
    hardware.check()
    return hardware


def _request(
    config: JobConfig, profile: ModelProfile, hardware: Hardware, workload: Workload, file: Path | None = None
) -> Request:
    return request_for(config, profile, hardware, workload, flash.read(measured_shapes()), file)


def _anonymous_bytes() -> int:
    """Memory of this process that no file backs, as far as the system tells."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))

"""A job's plan: by formula while its model is not here, by the engine's own dry run once it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner import models
from runner.config import JobConfig
from runner.context import PreparedPrompt
from runner.engine import bindings
from runner.engine.dryrun import dry_run
from runner.errors import ConfigError
from runner.planning.flash import Shape, choose
from runner.planning.hardware import Hardware, physical_cores, probe
from runner.planning.plan import Demand, Plan, resolve, with_dry_run
from runner.planning.profile import ModelProfile, from_config
from runner.planning.remedies import accept
from runner.planning.sequences import sequences_needed
from runner.prompts import least_tokens
from runner.record import cpu_name


def refuse_before_fetch(config: JobConfig) -> None:
    """Refuse, from the declared profile and the least the prompts can need, what can never fit.

    Raises:
        PlanRefusedError: nothing needs to be downloaded to know that this job does not fit.
    """
    if config.model.profile is not None:
        profile = from_config(config.model.profile)
        accept(_plan(config, profile, least_tokens(config.prompts), documents=False))


def resolve_job(
    config: JobConfig, path: Path, profile: ModelProfile, prepared: Sequence[PreparedPrompt]
) -> Plan:
    """The plan of a job whose prompts are counted and whose model is at ``path``; it may be a refusal.

    Raises:
        PlanRefusedError: the window is too small, or the declared hardware is not this machine's.
        ConfigError: options that the engine cannot combine.
    """
    longest = max(item.tokens_sent for item in prepared)
    documents = any(item.document for item in prepared)
    plan = _plan(config, profile, longest, documents=documents, prompts=len(prepared))
    return plan if plan.status == "refused" else with_dry_run(plan, dry_run(path, plan))


def shape_of(config: JobConfig, prompt_tokens: int) -> Shape:
    """The job as far as the choice of flash attention depends on it."""
    return Shape(
        cpu=cpu_name(),
        n_threads=config.n_threads or physical_cores(),
        model=config.model.path or config.model.name,
        kv_type_k=config.kv_mode.k,
        kv_type_v=config.kv_mode.v,
        workers=config.swarm_size.workers,
        prompt_tokens=prompt_tokens,
    )


def measured_shapes() -> Path:
    """Where ``runner.bench`` leaves what it measured of flash attention."""
    return models.cache_dir() / "flash_attn.json"


def _hardware(config: JobConfig) -> Hardware:
    hardware = probe(config.hardware, can_offload=bindings.can_offload())
    hardware.check()
    return hardware


def _plan(
    config: JobConfig,
    profile: ModelProfile,
    prompt_tokens: int,
    *,
    documents: bool,
    prompts: int | None = None,
) -> Plan:
    hardware = _hardware(config)
    workers, in_flight = config.swarm_size.workers, min(config.in_flight, prompts or config.in_flight)
    sliding = profile.sliding_window > 0 and not config.kv_mode.swa_full
    n_seq_max = sequences_needed(workers, in_flight, documents=documents, sliding=sliding)
    _check_sequences(config, n_seq_max)
    return resolve(
        profile,
        hardware,
        model_name=config.model.label,
        kv_mode=config.kv_mode,
        window=config.window,
        demand=Demand(
            prefix_tokens=prompt_tokens,
            suffix_tokens=config.sampling.max_tokens,
            workers=workers,
            in_flight=in_flight,
            n_seq_max=n_seq_max,
            documents=documents,
        ),
        flash_attn=choose(
            config.flash_attn, config.kv_mode, shape_of(config, prompt_tokens), measured_shapes()
        ),
        n_ubatch=config.n_ubatch,
        n_threads=config.n_threads or hardware.threads,
    )


def _check_sequences(config: JobConfig, n_seq_max: int) -> None:
    """A decode batch holds a token of every sequence, and llama.cpp numbers no more than 256 of them."""
    asked = f"swarm_size={config.swarm_size.workers} with in_flight={config.in_flight}"
    if n_seq_max > bindings.max_sequences():
        raise ConfigError(
            f"{asked} needs {n_seq_max} sequences, the engine has {bindings.max_sequences()}; lower either"
        )
    if n_seq_max > config.n_ubatch:
        raise ConfigError(
            f"{asked} decodes {n_seq_max} tokens a step, n_ubatch={config.n_ubatch} holds fewer; "
            f"set n_ubatch={n_seq_max}"
        )

"""Plans by formula for many jobs: what they share (this machine, profiles, measured ratios) is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import models
from runner.config import HardwareConfig, JobConfig, ModelConfig
from runner.errors import BeyondTrainedError, ConfigError
from runner.expected import expected, with_probe
from runner.planning import checks, flash, quants
from runner.planning.ask import Workload, as_sent, request_for
from runner.planning.hardware.budget import Hardware, look, probe
from runner.planning.hardware.build import offload_backends
from runner.planning.inverse import Limit, largest, largest_tried
from runner.planning.model.gguf_header import from_gguf
from runner.planning.model.profile import ModelProfile, from_config
from runner.planning.plan import Plan
from runner.planning.request import Request
from runner.planning.resolve import at_window, resolve
from runner.planning.sequences import MAX_SEQUENCES

MOST_WORKERS = 128


def measured_shapes() -> Path:
    """Where ``runner.bench`` leaves what it measured of flash attention."""
    return models.cache_dir() / "flash_attn.json"


class Planner:
    """Answers what jobs need without their models, their prompts' tokens or the engine.

    A declared machine is planned for itself, whatever this one has free.
    """

    def __init__(self, prompt_tokens: int | None = None) -> None:
        """``prompt_tokens`` is the length of the longest prompt; None estimates it from the prompts."""
        self._prompt_tokens = prompt_tokens
        self._ratios = flash.read(measured_shapes())
        self._can_offload = bool(offload_backends())
        self._here = look()
        self._known: dict[tuple[str, int], tuple[object, Any]] = {}

    def chosen(self, config: JobConfig) -> JobConfig:
        """``config`` with its model's quant chosen.

        Raises:
            ConfigError: no such quant.
        """
        if config.model.quant is None:
            return config
        return quants.choose(config, self.hardware(config.hardware), self._ratios)

    def plan(self, config: JobConfig) -> Plan:
        """The plan of a job whose quant is chosen; with ``context_strategy=auto`` of whole documents, if they fit.

        Raises:
            ConfigError: options that the engine cannot combine, or a model of which nothing is known.
            PlanRefusedError: the prompts pass the window, or the window the native context.
        """
        if config.context_strategy.name == "auto":
            whole = replace(config, context_strategy=replace(config.context_strategy, name="full"))
            with suppress(BeyondTrainedError):
                plan = resolve(self.request(whole))
                if plan.status == "fits":
                    return plan
        return resolve(self.request(config))

    def most_workers(self, config: JobConfig) -> Limit:
        """The largest swarm that fits."""

        def at(workers: int) -> Plan:
            swarm = replace(config.swarm_size, workers=workers)
            return self.plan(replace(config, swarm_size=swarm))

        # Some sequences may be documents'; each takes a row of the micro-batch too.
        spare = self.request(config).demand.n_seq_max - config.swarm_size.workers * config.in_flight
        most = min(MAX_SEQUENCES, config.kv_mode.micro_batch(config.n_ubatch)) - max(spare, 0)
        most = min(most // config.in_flight, MOST_WORKERS)
        return largest_tried(most, at) if config.kv_mode.evicts else largest(most, at)

    def largest_window(self, config: JobConfig) -> Limit:
        """The longest window that fits, in tokens; the prompts are taken to fill it.

        Raises:
            ConfigError: as :meth:`plan`; a mode whose window has nothing to do with how long a prompt is.
            PlanRefusedError: as :meth:`plan`; an eviction mode's budget is no smaller than that window.
        """
        if config.kv_mode.compacts:
            raise ConfigError(
                f"solve=window with kv_mode.positions={config.kv_mode.positions}: a document of any length is "
                "read in the window that there is; leave solve out, or set kv_mode.positions=original"
            )
        request = self.request(config)
        suffix = request.demand.suffix_tokens
        native = request.profile.n_ctx_train or config.window.target
        most = min(native, config.window.max or native)

        def at(tokens: int) -> Plan:
            demand = replace(request.demand, prefix_tokens=max(tokens - suffix, 1))
            return at_window(replace(request, demand=demand), tokens)

        limit = largest(most, at, least=min(suffix + 1, most))
        checks.budget(config.kv_mode, limit.plan.budget_cells, limit.value or most)
        return limit

    def frontier(self, config: JobConfig) -> Iterator[Plan]:
        """The plan with the longest window for 1, 2, ... workers, as long as one fits; at least one plan."""
        for workers in range(1, MOST_WORKERS + 1):
            swarm = replace(config.swarm_size, workers=workers)
            limit = self.largest_window(replace(config, swarm_size=swarm))
            if limit.value or workers == 1:
                yield limit.plan
            if not limit.value:
                return

    def request(self, config: JobConfig) -> Request:
        """What a job asks for; with ``context_strategy=auto`` where its documents are shortened."""
        profile, hardware = self.profile(config.model), self.hardware(config.hardware)
        file = self._once("file", config.model, lambda: models.locate(config.model))
        workload = as_sent(config, profile, self.workload(config))
        return request_for(config, profile, hardware, workload, self._ratios, file)

    def profile(self, model: ModelConfig) -> ModelProfile:
        """From the option where its figures are exact, else from the file where it is here.

        Raises:
            ConfigError: neither profile nor file.
        """
        profile: ModelProfile = self._once("profile", model, lambda: _profile(model))
        return profile

    def hardware(self, config: HardwareConfig) -> Hardware:
        """The budget, and whether this machine could run it."""
        hardware: Hardware = self._once("hardware", config, lambda: self._probed(config))
        return hardware

    def workload(self, config: JobConfig) -> Workload:
        """What the prompts come to, as well as can be told without a tokenizer."""
        prompts, mode, tokens = config.prompts, config.kv_mode, self._prompt_tokens
        workload: Workload = self._once("prompts", prompts, lambda: expected(prompts, tokens))
        if not mode.probes:
            return workload
        probed: Workload = self._once(f"{id(workload)}", mode.probe, lambda: with_probe(workload, mode.probe))
        return probed

    def _probed(self, config: HardwareConfig) -> Hardware:
        here = probe(config, can_offload=self._can_offload, machine=self._here)
        # What is declared stands for itself; what is not is this machine's.
        ram, cards = config.ram is not None, config.vram is not None
        there = replace(
            self._here,
            total=0 if ram else self._here.total,
            available=0 if ram else self._here.available,
            cards=() if cards else self._here.cards,
        )
        budget = probe(config, can_offload=self._can_offload, machine=there)
        return replace(budget, runnable=here.runnable, reason=here.reason)

    def _once(self, kind: str, of: object, make: Callable[[], Any]) -> Any:
        """What was made of this very object before; it is kept alive, so its id stays its own."""
        key = (kind, id(of))
        if key not in self._known:
            self._known[key] = (of, make())
        return self._known[key][1]


def _profile(model: ModelConfig) -> ModelProfile:
    declared = from_config(model.profile) if model.profile is not None else None
    if declared is not None and model.path is None and not declared.approximate:
        return declared
    path = models.locate(model)
    if path is not None:
        return from_gguf(path)
    if declared is None:
        raise ConfigError(
            f"model={model.label} has neither a file nor a profile; set model.path to a GGUF file"
        )
    return declared

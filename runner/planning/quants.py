"""Which of a model's files to take: the best whose window reaches the target, else that holds the floor."""

from __future__ import annotations

from dataclasses import replace

from runner.config import JobConfig, ModelConfig, QuantConfig
from runner.errors import ConfigError
from runner.planning.ask import Workload, request_for
from runner.planning.compatibility import check
from runner.planning.facts import Facts
from runner.planning.flash import Ratios
from runner.planning.hardware.budget import Hardware
from runner.planning.model.profile import from_config
from runner.planning.resolve import at_window

AUTO = "auto"


def choose(config: JobConfig, hardware: Hardware, ratios: Ratios) -> JobConfig:
    """``config`` with the source and the size of its model's quant; as it is where none is asked for.

    ``auto`` depends on the target, never on the prompts: another quant gives other answers, and a sweep over
    prompts must not change it.

    Args:
        config: the job; its model's quants are listed the best first.
        hardware: the memory there is.
        ratios: as :func:`runner.planning.ask.request_for`.

    Raises:
        ConfigError: a quant that the option does not list, or options that exclude each other.
    """
    model, window = config.model, config.window
    if model.quant is None:
        return config
    check(Facts(config))
    files = [replace(config, model=_with(model, quant)) for quant in model.quants]
    if model.quant != AUTO:
        for file in files:
            if file.model.quant == model.quant:
                return file
        names = ", ".join(quant.name for quant in model.quants)
        raise ConfigError(f"model.quant={model.quant}: model={model.name} has {AUTO}, {names}")
    assert model.profile is not None  # which the check has seen to
    profile = model.profile
    most = min(profile.n_ctx_train, window.max or profile.n_ctx_train)
    for wanted in (window.target, window.floor):
        for file in files:
            assert file.model.profile is not None
            tokens = max(min(wanted, most), file.sampling.max_tokens + 1)
            # A share of the prompts is a share of what the window is for.
            prompt = 1 if isinstance(file.kv_mode.budget, int) else tokens - file.sampling.max_tokens
            request = request_for(file, from_config(file.model.profile), hardware, Workload(prompt), ratios)
            plan = at_window(request, tokens)
            if plan.whole:
                return file
    return files[-1]


def _with(model: ModelConfig, quant: QuantConfig) -> ModelConfig:
    profile, source = model.profile, model.source
    if source is not None:
        same = source.file == quant.file
        source = replace(
            source,
            file=quant.file,
            size_bytes=quant.size_bytes,
            sha256=quant.sha256 or (source.sha256 if same else None),
        )
    if profile is not None:
        profile = replace(profile, weights_bytes=quant.weights_bytes)
    return replace(model, quant=quant.name, source=source, profile=profile)

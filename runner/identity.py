"""What makes two jobs the same: digests of everything that can change an answer, and of nothing else.

The traces and live memory do not count; nor does the vote, but of a conversation it is a part. Each digest is 16
hex digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from runner.config import JobConfig
from runner.context import PreparedPrompt
from runner.kv_mode import KvModeConfig
from runner.prompts import Prompt
from runner.strategy_config import StrategyConfig


def settings_id(
    config: JobConfig, *, model_digest: str, engine_version: str, flash_attn: bool, n_threads: int
) -> str:
    """All but the prompts. Threads count, since they decide in which order the engine adds."""
    return _digest(
        model=model_digest,
        engine=engine_version,
        kv=_kv_mode(config.kv_mode),
        flash_attn=flash_attn,
        n_threads=n_threads,
        n_ubatch=config.n_ubatch,
        in_flight=config.in_flight,
        spill=[config.spill.kv, config.spill.weights],
        workers=[config.workers.kind, config.swarm_size.workers],
        strategy=_strategy(config.context_strategy),
        sampling=asdict(config.sampling),
        seed=config.seed,
    )


def _strategy(strategy: StrategyConfig) -> dict[str, Any]:
    """What of a strategy can change a prompt: not where things are kept, nor how another one would shorten it.

    Which embedder found a passage does not count either: what was found is in the tokens.
    """
    settings = asdict(strategy)
    if strategy.name == "full":
        return {"name": strategy.name}
    used = (strategy.name,) if strategy.name != "auto" else ("compress", "rag")
    settings["rag"].pop("embedder")
    return {key: value for key, value in settings.items() if key in ("name", "window", *used)}


def _kv_mode(mode: KvModeConfig) -> dict[str, Any]:
    """What of a mode can change an answer: without a policy nothing of how one would evict."""
    kept = ("k", "v", "swa_full", "codec")
    told = ("name", "survivors", "show_kept")
    settings = {
        key: value for key, value in asdict(mode).items() if key in kept or (mode.evicts and key not in told)
    }
    if not mode.probes:
        settings.pop("probe", None)
        settings.pop("guided", None)
    return settings


def group_id(settings: str, prepared: PreparedPrompt) -> str:
    """One prompt's group under these settings: the unit that repeats exactly, whatever else its job asks."""
    return _digest(
        settings=settings,
        prompt=prepared.prompt.id,
        document=prepared.document,
        question=prepared.question,
        probes=prepared.probes,
    )


def text_id(settings: str, prompt_id: str, tokens: Sequence[int], first: int) -> str:
    """A text that is scored from token ``first`` on. What it is compared with does not change what it costs."""
    return _digest(settings=settings, prompt=prompt_id, tokens=list(tokens), first=first)


def turn_id(settings: str, prepared: PreparedPrompt, windows: Sequence[int]) -> str:
    """One turn's group. ``windows`` are those of the turns up to it: a history that was prefilled anew after a
    growth differs in the last digits from one that came turn by turn.
    """
    return _digest(
        settings=settings,
        prompt=prepared.prompt.id,
        document=prepared.document,
        question=prepared.question,
        windows=list(windows),
    )


def conversation_id(settings: str, conversation: Prompt, config: JobConfig) -> str:
    """A conversation before it is held. Its winners speak in it, so the vote counts; so do the windows it may
    have, though which of them it gets is decided by the memory that is free then.
    """
    said = {key: value for key, value in asdict(conversation).items() if key != "meta"}
    return _digest(settings=settings, said=said, vote=asdict(config.vote), window=asdict(config.window))


def job_id(groups: Iterable[str]) -> str:
    """A job is its groups: the same prompts under the same settings."""
    return _digest(groups=list(groups))


def unprepared_job_id(settings: str, config: JobConfig) -> str:
    """For a job that ends before its prompts could be counted: what they were to be."""
    return _digest(settings=settings, prompts=asdict(config.prompts))


def _digest(**parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

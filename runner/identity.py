"""What makes two jobs the same: digests of everything that can change an answer, and of nothing else.

The vote, the traces and live memory do not count. Each digest is 16 hex digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from runner.config import JobConfig
from runner.context import PreparedPrompt


def settings_id(
    config: JobConfig, *, model_digest: str, engine_version: str, flash_attn: bool, n_threads: int
) -> str:
    """All but the prompts. Threads count, since they decide in which order the engine adds."""
    return _digest(
        model=model_digest,
        engine=engine_version,
        kv=[config.kv_mode.k, config.kv_mode.v, config.kv_mode.swa_full],
        flash_attn=flash_attn,
        n_threads=n_threads,
        n_ubatch=config.n_ubatch,
        in_flight=config.in_flight,
        spill=[config.spill.kv, config.spill.weights],
        workers=[config.workers.kind, config.swarm_size.workers],
        strategy=asdict(config.context_strategy),
        sampling=asdict(config.sampling),
        seed=config.seed,
    )


def group_id(settings: str, prepared: PreparedPrompt) -> str:
    """One prompt's group under these settings: the unit that repeats exactly, whatever else its job asks."""
    return _digest(
        settings=settings,
        prompt=prepared.prompt.id,
        document=prepared.document,
        question=prepared.question,
    )


def job_id(groups: Iterable[str]) -> str:
    """A job is its groups: the same prompts under the same settings."""
    return _digest(groups=list(groups))


def unprepared_job_id(settings: str, config: JobConfig) -> str:
    """For a job that ends before its prompts could be counted: what they were to be."""
    return _digest(settings=settings, prompts=asdict(config.prompts))


def _digest(**parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

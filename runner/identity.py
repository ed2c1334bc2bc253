"""What makes two jobs the same: digests of everything that can change an answer, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from runner.config import JobConfig
from runner.context import PreparedPrompt


def job_id(config: JobConfig, *, model_digest: str, engine_version: str, flash_attn: bool) -> str:
    """16 hex digits; the vote, the traces, live memory and how many of the prompts are run do not count."""
    prompts = asdict(config.prompts)
    del prompts["limit"], prompts["name"]
    return _digest(
        model=model_digest,
        engine=engine_version,
        kv=[config.kv_mode.k, config.kv_mode.v, config.kv_mode.swa_full],
        flash_attn=flash_attn,
        n_ubatch=config.n_ubatch,
        in_flight=config.in_flight,
        workers=[config.workers.kind, config.swarm_size.workers],
        strategy=asdict(config.context_strategy),
        sampling=asdict(config.sampling),
        seed=config.seed,
        prompts=prompts,
    )


def group_id(job: str, prepared: PreparedPrompt) -> str:
    """16 hex digits for one prompt's group: its tokens, within its job.

    A prompt file can change under the same path; a row is the same answer only where this agrees too.
    """
    return _digest(job=job, prompt=prepared.prompt.id, document=prepared.document, question=prepared.question)


def _digest(**parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

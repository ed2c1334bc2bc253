"""``shared``: all workers of a prompt are sequences of one context, forked from one prefill."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from runner.context import PreparedPrompt
from runner.engine.reading import Reading
from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Generation, Group

_DEFAULT_SEED = 0xFFFFFFFF
"""llama.cpp's "take any seed" (``LLAMA_DEFAULT_SEED``), which would not repeat."""


def worker_seed(job_seed: int, prompt_id: str, worker: int) -> int:
    """A uint32 that depends on who the worker is, never on when it runs."""
    digest = hashlib.blake2b(f"{job_seed}\0{prompt_id}\0{worker}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _DEFAULT_SEED


def group_of(item: PreparedPrompt, *, workers: int, seed: int) -> Group:
    """A prompt with the seeds of its workers."""
    prompt_id = item.prompt.id
    return Group(
        prompt_id=prompt_id,
        document=item.document,
        question=item.question,
        seeds=tuple(worker_seed(seed, prompt_id, worker) for worker in range(workers)),
        reading=Reading(probes=item.probes),
    )


def run_swarm(
    scheduler: Scheduler, prepared: Iterable[PreparedPrompt], *, workers: int, seed: int
) -> Iterator[tuple[PreparedPrompt, list[Generation]]]:
    """Every prompt with its workers' answers, as prompts finish.

    Raises:
        Interrupted: after the answers in hand have been yielded.
        EngineError: llama.cpp failed.
    """
    by_id = {item.prompt.id: item for item in prepared}
    groups = [group_of(item, workers=workers, seed=seed) for item in by_id.values()]
    for group, generations in scheduler.run(groups):
        yield by_id[group.prompt_id], generations

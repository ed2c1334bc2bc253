"""``shared``: all workers of a prompt are sequences of one context, forked from one prefill."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from runner.context import PreparedPrompt
from runner.engine.reading import Reading
from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Generation, Group
from runner.errors import Interrupted
from runner.workers.diversity import Diversity

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


def groups_of(
    item: PreparedPrompt, *, workers: int, seed: int, diversity: Diversity | None = None
) -> list[Group]:
    """One group of all workers, or with ``diversity`` one of each."""
    together = group_of(item, workers=workers, seed=seed)
    if diversity is None:
        return [together]
    return [
        replace(
            together,
            seeds=together.seeds[worker : worker + 1],
            reading=diversity.reading(item, worker, workers),
            first_worker=worker,
        )
        for worker in range(workers)
    ]


def run_swarm(
    scheduler: Scheduler,
    prepared: Iterable[PreparedPrompt],
    *,
    workers: int,
    seed: int,
    diversity: Diversity | None = None,
) -> Iterator[tuple[PreparedPrompt, list[Generation]]]:
    """Every prompt with its workers' answers, as prompts finish; they differ in reading it by ``diversity``.

    Raises:
        Interrupted: after the answers in hand have been yielded; with those of workers that had not begun, empty
            and marked as interrupted.
        EngineError: llama.cpp failed.
    """
    by_id = {item.prompt.id: item for item in prepared}
    groups = [
        group
        for item in by_id.values()
        for group in groups_of(item, workers=workers, seed=seed, diversity=diversity)
    ]
    answered: dict[str, list[Generation]] = {}
    try:
        for group, generations in scheduler.run(groups):
            of_prompt = answered.setdefault(group.prompt_id, [])
            of_prompt += generations
            if len(of_prompt) == workers:
                yield by_id[group.prompt_id], sorted(of_prompt, key=lambda answer: answer.worker)
                del answered[group.prompt_id]
    except Interrupted:
        for prompt_id, of_prompt in answered.items():
            begun = {answer.worker for answer in of_prompt}
            of_prompt += [
                _not_begun(group)
                for group in groups
                if group.prompt_id == prompt_id and group.first_worker not in begun
            ]
            yield by_id[prompt_id], sorted(of_prompt, key=lambda answer: answer.worker)
        raise


def _not_begun(group: Group) -> Generation:
    """The answer of a group's first worker that an interrupt came before."""
    return Generation(
        prompt_id=group.prompt_id,
        worker=group.first_worker,
        text="",
        seed=group.seeds[0],
        prompt_tokens=group.prompt_tokens,
        prefill_tokens=0,
        generated_tokens=0,
        mean_logprob=None,
        finish_reason="interrupted",
        status="interrupted",
        seconds=0.0,
    )

"""Running groups on a real model in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runner.config import SamplingConfig
from runner.engine.chat import PromptFormat
from runner.engine.context import Callback, Context, ContextParams
from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Generation, Group
from runner.engine.weights import Weights
from runner.planning.sequences import sequences_needed

SAMPLING = SamplingConfig(max_tokens=8)


@contextmanager
def context(
    weights: Weights, *, cells: int = 1024, workers: int = 3, in_flight: int = 1, n_ubatch: int = 64,
    swa_full: bool = False, flash_attn: bool = True, callback: Callback | None = None,
) -> Iterator[Context]:  # fmt: skip
    n_seq_max = sequences_needed(workers, in_flight, documents=True, sliding=weights.n_swa > 0)
    made = Context(
        weights,
        ContextParams(
            n_ctx=cells, n_seq_max=n_seq_max, n_ubatch=n_ubatch, kv_type_k="f16", kv_type_v="f16",
            flash_attn=flash_attn, swa_full=swa_full, n_threads=2,
        ),
        callback,
    )  # fmt: skip
    try:
        yield made
    finally:
        made.close()


def group(weights: Weights, name: str, question: str, document: str = "", workers: int = 3) -> Group:
    """A prompt's group; the seeds depend on the prompt alone."""
    form = PromptFormat(weights)
    tokens = form.encode(name, [{"role": "user", "content": question}], document or None)
    seeds = tuple(1000 * sum(name.encode()) + worker for worker in range(workers))
    return Group(name, tokens.document, tokens.question, seeds)


def run(
    weights: Weights,
    context: Context,
    groups: Sequence[Group],
    sampling: SamplingConfig = SAMPLING,
    in_flight: int = 1,
) -> dict[str, list[Generation]]:
    scheduler = Scheduler(weights, context, sampling, in_flight=in_flight)
    return {done.prompt_id: generations for done, generations in scheduler.run(groups)}


def texts(generations: Sequence[Generation]) -> list[str]:
    return [generation.text for generation in generations]

"""One job, from its config to its votes: the whole path, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from runner import identity, models
from runner.config import JobConfig
from runner.context import strategy_for
from runner.engine import bindings
from runner.engine.chat import PromptFormat
from runner.engine.progress import Progress
from runner.engine.sampler import check_grammar
from runner.engine.scheduler import Scheduler
from runner.interrupt import stop_on_interrupt
from runner.ledger import Ledger
from runner.planning.gguf_header import from_gguf
from runner.planning.remedies import accept
from runner.prompts import least_tokens, load_prompts
from runner.record import JobRecord
from runner.report.terminal import View
from runner.resolve import flash_attn_for, refuse_before_fetch, resolve_job
from runner.session import Session
from runner.tables import TableWriter
from runner.trace import Tracer
from runner.workers.shared import run_swarm


@dataclass(frozen=True)
class JobResult:
    """How a job ended, for the line that says so; accuracies are None where no answer is known."""

    job_id: str
    prompts: int
    accuracy: float | None
    mean_worker_accuracy: float | None
    seconds: float


def run_job(
    config: JobConfig,
    folder: Path,
    session: Session,
    view: View,
    *,
    overrides: Sequence[str] = (),
) -> JobResult:
    """Run ``config`` and write its tables below ``folder``.

    Raises:
        KvswarmError: what went wrong, in one line; the job's row holds it too. Interrupted after Ctrl-C.
    """
    with (
        TableWriter(folder) as tables,
        JobRecord(tables, config, _job_id(config, None), overrides) as record,
    ):
        ledger = Ledger(tables, record, config)
        path = _weights_file(config)
        profile = from_gguf(path)
        vocabulary = session.vocabulary(path)
        check_grammar(vocabulary, config.sampling)
        form = PromptFormat(vocabulary)
        strategy = strategy_for(config.context_strategy.name)
        prepared = [strategy.prepare(prompt, form) for prompt in load_prompts(config.prompts, form.count)]
        plan = resolve_job(config, path, profile, prepared)

        record.identify(_job_id(config, path, plan.prefix_tokens), models.digest(path), plan.n_threads)
        ledger.prompts(prepared)
        ledger.plan(plan)
        view.planned(accept(plan))

        progress = Progress(phase="load")
        tracer = Tracer(tables, record.job_id, progress, plan, hz=config.trace.hz)
        with record.measuring(progress, tracer), ExitStack() as stack:
            weights = session.weights(path, plan.n_gpu_layers)
            context = stack.enter_context(session.context(weights, plan))
            progress.load_s = tracer.seconds
            stopping = stack.enter_context(stop_on_interrupt())
            scheduler = Scheduler(
                weights,
                context,
                config.sampling,
                in_flight=plan.in_flight,
                stopping=stopping,
                progress=progress,
            )
            stack.enter_context(view.watching(progress, prepared))
            for item, generations in run_swarm(scheduler, prepared, workers=plan.workers, seed=config.seed):
                view.voted(item.prompt, ledger.group(item, generations))
        return JobResult(
            job_id=record.job_id,
            prompts=len(prepared),
            accuracy=record.score.accuracy,
            mean_worker_accuracy=record.score.mean_worker_accuracy,
            seconds=record.seconds,
        )


def _weights_file(config: JobConfig) -> Path:
    """The model's file, fetched only for a job with usable prompts that the formula does not refuse."""
    least_tokens(config.prompts)
    path = models.locate(config.model)
    if path is None:
        refuse_before_fetch(config)
        path = models.fetch(config.model, allow_large=config.fetch)
    return path


def _job_id(config: JobConfig, path: Path | None, prompt_tokens: int = 0) -> str:
    """The job's identity; while its file is not here, by what its config says of it."""
    model = config.model
    promised = model.source.sha256 if model.source is not None and model.path is None else None
    return identity.job_id(
        config,
        model_digest=models.digest(path) if path is not None else promised or f"{model.name} {model.path}",
        engine_version=bindings.version(),
        flash_attn=flash_attn_for(config, prompt_tokens),
    )

"""One job, from its config to its votes: the whole path, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from runner import identity, models
from runner.config import JobConfig
from runner.context import PreparedPrompt, strategy_for
from runner.engine import bindings
from runner.engine.chat import PromptFormat
from runner.engine.sampler import check_grammar
from runner.engine.scheduler import Scheduler
from runner.interrupt import stop_on_interrupt
from runner.ledger import Ledger
from runner.planning.gguf_header import from_gguf
from runner.planning.plan import Plan
from runner.planning.remedies import accept
from runner.progress import Progress
from runner.prompts import least_tokens, load_prompts
from runner.record import JobRecord
from runner.report.terminal import View
from runner.resolve import choose_quant, refuse_before_fetch, resolve_job, workload_of
from runner.session import Session
from runner.tables import TableWriter
from runner.trace import Tracer
from runner.workers.shared import run_swarm


@dataclass(frozen=True)
class JobResult:
    """How a job ended, for the line that says so; accuracies are None where no answer is known.

    ``interrupted`` is true where Ctrl-C came when all was done: the job counts, nothing should follow it.
    """

    job_id: str
    prompts: int
    accuracy: float | None
    mean_worker_accuracy: float | None
    seconds: float
    interrupted: bool


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
        JobRecord(tables, config, _provisional_id(config), overrides) as record,
    ):
        config = choose_quant(config)
        path = _weights_file(config)
        profile = from_gguf(path)
        vocabulary = session.vocabulary(path)
        check_grammar(vocabulary, config.sampling)
        form = PromptFormat(vocabulary)
        strategy = strategy_for(config.context_strategy.name)
        prepared = [strategy.prepare(prompt, form) for prompt in load_prompts(config.prompts, form.count)]
        resolved = resolve_job(config, path, profile, workload_of(prepared))
        config, plan = resolved.config, resolved.plan

        groups = _group_ids(config, path, plan, prepared)
        record.identify(identity.job_id(groups), config, models.digest(path), plan.n_threads)
        ledger = Ledger(tables, record, config)
        ledger.prompts(prepared, groups)
        ledger.plan(plan, resolved.steps)
        view.planned(accept(plan, resolved.steps), resolved.steps)

        progress = Progress(phase="load")
        tracer = Tracer(tables, record.job_id, progress, plan, hz=config.trace.hz)
        with record.measuring(progress, tracer), ExitStack() as stack:
            weights = session.weights(path, plan)
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
            interrupted=stopping(),
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


def _group_ids(config: JobConfig, path: Path, plan: Plan, prepared: Sequence[PreparedPrompt]) -> list[str]:
    """The identity of each prompt's group, in the order of ``prepared``."""
    settings = identity.settings_id(
        config,
        model_digest=models.digest(path),
        engine_version=bindings.version(),
        flash_attn=plan.flash_attn,
        n_threads=plan.n_threads,
    )
    return [identity.group_id(settings, item) for item in prepared]


def _provisional_id(config: JobConfig) -> str:
    """Names a job that ends before its model is here and its prompts are counted, by what its config says."""
    model = config.model
    promised = model.source.sha256 if model.source is not None and model.path is None else None
    settings = identity.settings_id(
        config,
        model_digest=promised or f"{model.name} {model.path}",
        engine_version=bindings.version(),
        flash_attn=config.flash_attn != "off",
        n_threads=config.n_threads or 0,
    )
    return identity.unprepared_job_id(settings, config)

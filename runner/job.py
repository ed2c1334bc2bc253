"""One job, from its config to its votes and scores: the whole path, top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from runner import identity, models
from runner.config import JobConfig
from runner.context import PreparedPrompt, strategy_of, with_own_probes, with_probes
from runner.desk import JobDesk
from runner.dialogue import Dialogue, Swarm, opening
from runner.engine import bindings
from runner.engine.chat import PromptFormat
from runner.engine.sampler import check_grammar
from runner.engine.scheduler import Scheduler
from runner.errors import Interrupted, PlanRefusedError
from runner.interrupt import stop_on_interrupt
from runner.ledger import Ledger
from runner.overrides import with_overrides
from runner.planning.ask import Workload
from runner.planning.model.gguf_header import from_gguf
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import Plan
from runner.planning.remedies import accept
from runner.progress import Progress
from runner.prompts import Prompt, load_passages, load_prompts
from runner.record import JobRecord
from runner.report.terminal import View
from runner.resolve import choose_quant, refuse_before_fetch, refuse_early, resolve_job, workload_of
from runner.scoring.texts import Scorer, prepare
from runner.session import Session
from runner.tables import TableWriter
from runner.trace import Tracer
from runner.workers.diversity import Diversity
from runner.workers.shared import run_swarm
from runner.workshop import Workshop


@dataclass(frozen=True)
class JobResult:
    """How a job ended, for the line that says so; accuracies are None where no answer is known.

    ``prompts`` were asked, ``texts`` scored.

    ``interrupted`` is true where Ctrl-C came when all was done: the job counts, nothing should follow it.
    """

    job_id: str
    prompts: int
    texts: int
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
        refuse_early(config)
        config = choose_quant(config)
        path = _weights_file(config)
        profile = from_gguf(path)
        vocabulary = session.vocabulary(path)
        check_grammar(vocabulary, config.sampling)
        form, turn_form = PromptFormat(vocabulary), PromptFormat(vocabulary, conversation=True)
        prompts = load_prompts(config.prompts, form.count)
        conversations = [prompt for prompt in prompts if prompt.turns]
        openings = [opening(conversation, turn_form) for conversation in conversations]
        passages = load_passages(config.prompts, form.count)
        texts = [prepare(passage, vocabulary, config.scoring.last) for passage in passages]
        asked = [prompt for prompt in prompts if not prompt.turns]
        prepared = _prepared(config, path, profile, asked, bool(texts), session, record, view)
        if overridden := sorted({override for item in prepared for override in item.overrides}):
            config = with_overrides(config, overridden)
        form = PromptFormat(session.vocabulary(path))  # what strategies had loaded took its place
        if config.kv_mode.probes:
            prepared = with_own_probes(prepared, form, config.kv_mode.probe)
        workload = workload_of([*prepared, *openings], texts)
        workload = replace(workload, conversation=bool(conversations))
        with _naming_strategies(config, workload):
            resolved = resolve_job(config, path, profile, workload)
        config, plan = resolved.config, resolved.plan
        if config.kv_mode.probes:
            prepared = with_probes(prepared, form, config.kv_mode)

        settings = _settings_id(config, path, plan)
        groups = [identity.group_id(settings, item) for item in prepared]
        talks = [identity.conversation_id(settings, conversation, config) for conversation in conversations]
        text_ids = [identity.text_id(settings, text.passage.id, text.tokens, text.first) for text in texts]
        record.identify(
            identity.job_id(groups + talks + text_ids), config, models.digest(path), plan.n_threads
        )
        ledger = Ledger(tables, record, config)
        ledger.prompts(prepared, groups)
        ledger.texts(texts, text_ids)
        ledger.plan(plan, resolved.steps)
        with _naming_strategies(config, workload):
            view.planned(accept(plan, resolved.steps), resolved.steps)

        progress = Progress(phase="load")
        tracer = Tracer(record.trace, progress, hz=config.trace.hz, began=record.began)
        tracer.follow(plan)
        with record.measuring(progress, tracer), ExitStack() as stack:
            weights = session.weights(path, plan)
            stopping = stack.enter_context(stop_on_interrupt())
            turns = sum(len(conversation.turns) for conversation in conversations)
            stack.enter_context(view.watching(progress, prepared, turns, len(texts)))
            if prepared:
                with session.context(weights, plan) as context:
                    progress.load_s = tracer.seconds
                    scheduler = Scheduler(
                        weights,
                        context,
                        config.sampling,
                        in_flight=plan.in_flight,
                        stopping=stopping,
                        progress=progress,
                    )
                    swarm = run_swarm(
                        scheduler,
                        prepared,
                        workers=plan.workers,
                        seed=config.seed,
                        diversity=Diversity.of(plan),
                    )
                    for item, generations in swarm:
                        view.voted(item.prompt, ledger.group(item, generations))
                        rounds = context.take_rounds()
                        ledger.evicted(item.prompt.id, rounds)
                        view.evicted(item.prompt.id, rounds)
                        kept = context.take_kept()
                        ledger.survivors(item, kept, weights)
                        if config.kv_mode.show_kept:
                            tokens = item.document + item.question
                            view.kept(item.prompt.id, kept, [weights.piece(t, special=True) for t in tokens])
            desk = JobDesk(config, settings, path, profile, workload, session, ledger, view, progress, tracer)
            speakers = Swarm(plan.workers, config.seed, config.sampling, config.window.on_refusal)
            for conversation in conversations:
                Dialogue(conversation, plan, speakers, desk, progress, stopping).run()
            if texts:
                progress.load_s = progress.load_s or tracer.seconds
                scorer = Scorer(
                    config, path, profile, plan, session, stopping=stopping, progress=progress, note=view.note
                )
                for scored in scorer.run(texts):
                    ledger.scored(scored.score)
                    ledger.evicted(scored.score.prompt_id, scored.rounds)
                    view.scored(scored.score)
                    view.evicted(scored.score.prompt_id, scored.rounds)
        return JobResult(
            interrupted=stopping(),
            job_id=record.job_id,
            prompts=len(prepared) + turns,
            texts=len(texts),
            accuracy=record.score.accuracy,
            mean_worker_accuracy=record.score.mean_worker_accuracy,
            seconds=record.seconds,
        )


@contextmanager
def _naming_strategies(config: JobConfig, workload: Workload) -> Iterator[None]:
    """A refusal of whole documents says what else could be done with them."""
    try:
        yield
    except PlanRefusedError as error:
        shorter = config.context_strategy.name == "full" and workload.documents and not workload.conversation
        more = "; or send less of the document: context_strategy=rag, compress or auto" if shorter else ""
        raise type(error)(f"{error}{more}") from None


def _prepared(
    config: JobConfig,
    path: Path,
    profile: ModelProfile,
    prompts: Sequence[Prompt],
    scores: bool,
    session: Session,
    record: JobRecord,
    view: View,
) -> list[PreparedPrompt]:
    """What the job's context strategy makes of ``prompts``; ``scores`` is whether it has texts to score as well.

    Raises:
        KvswarmError: as :meth:`Strategy.prepare`; Interrupted after Ctrl-C.
    """
    strategy = strategy_of(config.context_strategy, prompts, models.cache_dir())
    if config.context_strategy.name == "full":
        tokenizer = Workshop(config, path, profile, session)
        return [strategy.prepare(prompt, tokenizer) for prompt in prompts]
    progress = Progress(phase="prepare")
    tracer = Tracer(record.trace, progress, hz=config.trace.hz, began=record.began)
    prepared = []
    with record.preparing(progress, tracer), stop_on_interrupt() as stopping, view.preparing(progress):
        workshop = Workshop(
            config,
            path,
            profile,
            session,
            stopping=stopping,
            progress=progress,
            follow=tracer.follow,
            scores=scores,
        )
        with closing(workshop):
            for prompt in prompts:
                item = strategy.prepare(prompt, workshop)
                view.prepared(item)
                prepared.append(item)
                if stopping():
                    raise Interrupted("interrupted while prompts were prepared; what was written is kept")
    return prepared


def _weights_file(config: JobConfig) -> Path:
    """The model's file, fetched only for a job that the formula does not refuse."""
    path = models.locate(config.model)
    if path is None:
        refuse_before_fetch(config)
        path = models.fetch(config.model, allow_large=config.fetch)
    return path


def _settings_id(config: JobConfig, path: Path, plan: Plan) -> str:
    """What, beside a prompt, its group's answers depend on."""
    return identity.settings_id(
        config,
        model_digest=models.digest(path),
        engine_version=bindings.version(),
        flash_attn=plan.flash_attn,
        n_threads=plan.n_threads,
    )


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

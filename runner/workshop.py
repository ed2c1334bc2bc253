"""What context strategies have the engine do before the swarm sees a prompt, each stage in a plan of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner import models
from runner.config import JobConfig, PlanConfig, SamplingConfig, SwarmConfig, WindowConfig
from runner.context.base import Fit, PreparedPrompt, Reading, Request, TokenParts, Written
from runner.engine.chat import PromptFormat
from runner.engine.embedding import EmbeddingModel
from runner.engine.scheduler import Scheduler
from runner.engine.scoring import score_rows
from runner.engine.sequence import Group
from runner.engine.weights import Weights
from runner.errors import BeyondTrainedError, Interrupted, ModelError
from runner.kv_mode import KvModeConfig
from runner.planning.ask import Workload, strategy_window
from runner.planning.hardware.budget import gib, probe
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import Plan
from runner.planning.remedies import accept
from runner.progress import Progress
from runner.resolve import guided_reading, resolve_job, workload_of
from runner.retrieval.embedders import Embedder, WordLlamaEmbedder
from runner.scoring.measure import measure
from runner.session import Session
from runner.strategy_config import WORDLLAMA


class Workshop:
    """The :class:`runner.context.base.Engine` of one job."""

    def __init__(
        self,
        config: JobConfig,
        path: Path,
        profile: ModelProfile,
        session: Session,
        *,
        stopping: Callable[[], bool] = lambda: False,
        progress: Progress | None = None,
        follow: Callable[[Plan], None] = lambda plan: None,
        scores: bool = False,
    ) -> None:
        """Make ready to serve; nothing is loaded yet.

        ``path`` is the model's file; ``stopping`` is asked between two batches, ``follow`` told each plan;
        ``scores`` is whether the job has texts to score beside its prompts.
        """
        self.window_tokens = strategy_window(config, profile.n_ctx_train)
        self.answer_tokens = config.sampling.max_tokens
        self.model_digest = models.digest(path)
        self._config, self._path, self._profile, self._session = config, path, profile, session
        self._stopping, self._progress, self._follow = stopping, progress or Progress(), follow
        self._scores = scores
        self._formed: tuple[Weights, PromptFormat] | None = None
        self._embedder: Embedder | None = None

    @property
    def _form(self) -> PromptFormat:
        """Of the session's vocabulary, which is another one once the weights are loaded."""
        vocabulary = self._session.vocabulary(self._path)
        if self._formed is None or self._formed[0] is not vocabulary:
            self._formed = vocabulary, PromptFormat(vocabulary)
        return self._formed[1]

    def count(self, text: str) -> int:
        """See :class:`runner.context.base.Tokenizer`."""
        return self._form.count(text)

    def tokens(self, text: str) -> tuple[int, ...]:
        """See :class:`runner.context.base.Tokenizer`."""
        return self._form.tokens(text)

    def encode(self, prompt_id: str, messages: Sequence[dict[str, str]], document: str | None) -> TokenParts:
        """See :class:`runner.context.base.Tokenizer`."""
        return self._form.encode(prompt_id, messages, document)

    def fit(self, items: Sequence[PreparedPrompt]) -> Fit:
        """See :class:`runner.context.base.Engine`."""
        config = replace(self._config, plan=PlanConfig(apply=False))
        workload = workload_of(items)
        try:
            plan = resolve_job(config, self._path, self._profile, workload).plan
        except BeyondTrainedError:
            return Fit(
                False,
                f"{workload.prompt_tokens:,} tokens and an answer of {self.answer_tokens} pass the "
                f"{self._profile.n_ctx_train:,} that the model was trained for",
            )
        needs = f"{gib(plan.total_bytes)} of {gib(plan.available_bytes)}"
        if plan.status == "fits" and plan.weights == "resident":
            return Fit(True, f"{workload.prompt_tokens:,} tokens fit, {needs}")
        return Fit(False, f"{workload.prompt_tokens:,} tokens do not fit resident, {needs}")

    def guided(self, items: Sequence[PreparedPrompt]) -> Reading | None:
        """See :class:`runner.context.base.Engine`."""
        if self._config.kv_mode.evicts or self._scores or any(item.prompt.document is None for item in items):
            return None
        found = guided_reading(self._config, self._path, self._profile, workload_of(items))
        if found is None:
            return None
        override, plan = found
        return Reading(tuple(override.split()), plan.prefill_tokens or 0)

    def generate(self, requests: Sequence[Request], *, max_tokens: int, together: int) -> list[Written]:
        """See :class:`runner.context.base.Engine`."""
        if not requests:
            return []
        form = self._form
        groups = []
        for number, request in enumerate(requests):
            tokens = form.encode_request(request)
            groups.append(Group(str(number), tokens.document, tokens.question, seeds=(0,)))
        sampling = SamplingConfig(temperature=0.0, max_tokens=max_tokens)
        plan = self._plan(
            sampling, Workload(max(g.prompt_tokens for g in groups), True, len(groups)), together
        )
        weights = self._session.weights(self._path, plan)
        self._follow(plan)
        written: dict[str, Written] = {}
        with self._session.context(weights, plan) as context:
            scheduler = Scheduler(
                weights,
                context,
                sampling,
                in_flight=plan.in_flight,
                stopping=self._stopping,
                progress=self._progress,
            )
            for group, [answer] in scheduler.run(groups):
                written[group.prompt_id] = Written(
                    answer.text, answer.prefill_tokens, answer.generated_tokens, answer.status == "truncated"
                )
        return [written[group.prompt_id] for group in groups]

    def embedder(self, name: str) -> Embedder:
        """See :class:`runner.context.base.Engine`."""
        if self._embedder is None:
            self._embedder = WordLlamaEmbedder() if name == WORDLLAMA else self._embedding_model(name)
        return self._embedder

    def _embedding_model(self, name: str) -> EmbeddingModel:
        path = Path(name).expanduser()
        if not path.is_file():
            raise ModelError(
                f"context_strategy.rag.embedder={name}: there is no such file; give the path of an embedding "
                f"model's GGUF file, or {WORDLLAMA}"
            )
        threads = self._config.n_threads or probe(self._config.hardware, can_offload=False).threads
        return EmbeddingModel(path, digest=models.digest(path), n_threads=threads, stopping=self._stopping)

    def close(self) -> None:
        """Free what only the preparation of prompts needed."""
        if isinstance(self._embedder, EmbeddingModel):
            self._embedder.close()
        self._embedder = None

    def log_likelihoods(self, requests: Sequence[Request], continuation: str) -> list[float]:
        """See :class:`runner.context.base.Engine`."""
        form = self._form
        parts, said = [form.encode_request(request) for request in requests], form.tokens(continuation)
        texts = [(part.document + part.question, part.document + part.question + said) for part in parts]
        longest = max((len(whole) for _, whole in texts), default=0)
        if not longest:
            return []
        plan = self._plan(SamplingConfig(max_tokens=1), Workload(longest, score_tokens=longest), together=1)
        weights = self._session.weights(self._path, plan)
        self._follow(plan)
        found = []
        with self._session.context(weights, plan) as context:
            for head, text in texts:
                if self._stopping():
                    raise Interrupted("interrupted while passages were compared with the question")
                rows = score_rows(context, text, len(head), outputs=plan.n_outputs)
                measured = measure(((logits, tokens) for _, logits, tokens in rows), None)
                found.append(-float(measured.nll.mean()))
                self._progress.prefill_tokens += len(text)
        return found

    def _plan(self, sampling: SamplingConfig, workload: Workload, together: int) -> Plan:
        """A plan for as many of ``workload`` at once as fit, at most ``together``, each answered by one worker.

        Raises:
            PlanRefusedError: not even one does.
        """
        mode = self._config.kv_mode
        while True:
            config = replace(
                self._config,
                kv_mode=KvModeConfig(k=mode.k, v=mode.v, swa_full=mode.swa_full, codec=mode.codec),
                in_flight=together,
                swarm_size=SwarmConfig(workers=1),
                sampling=sampling,
                window=WindowConfig(),
                plan=PlanConfig(apply=False),
            )
            resolved = resolve_job(config, self._path, self._profile, workload)
            if resolved.plan.status != "refused" or together == 1:
                return accept(resolved.plan, resolved.steps)
            together //= 2

"""What context strategies have the engine do before the swarm sees a prompt, each stage in a plan of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner import models
from runner.config import JobConfig, PlanConfig, SamplingConfig, SwarmConfig, WindowConfig
from runner.context.base import Request, TokenParts, Written
from runner.engine.chat import PromptFormat
from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Group
from runner.engine.weights import Weights
from runner.kv_mode import KvModeConfig
from runner.planning.ask import Workload, strategy_window
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import Plan
from runner.planning.remedies import accept
from runner.progress import Progress
from runner.resolve import resolve_job
from runner.session import Session


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
    ) -> None:
        """``path`` is the model's file; ``stopping`` is asked between two batches, ``follow`` told each plan."""
        self.window_tokens = strategy_window(config, profile.n_ctx_train)
        self.answer_tokens = config.sampling.max_tokens
        self.model_digest = models.digest(path)
        self._config, self._path, self._profile, self._session = config, path, profile, session
        self._stopping, self._progress, self._follow = stopping, progress or Progress(), follow
        self._formed: tuple[Weights, PromptFormat] | None = None

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

"""What ``python -m runner.plan`` answers: a row for each cell, its plan and what would make it fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from runner import models
from runner.config import JobConfig
from runner.errors import BeyondTrainedError, KvswarmError
from runner.overrides import with_overrides
from runner.planner import Planner
from runner.planning.beyond import within
from runner.planning.plan import Plan
from runner.planning.remedies import Step, applied, ladder, numbered, sufficient
from runner.planning.resolve import with_more_compute


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Question:
    """What is asked beside the job itself; ``conf/plan.yaml`` says what each key does."""

    solve: Literal["workers", "window", "both"] | None = None
    view: Literal["text", "markdown", "json"] = "text"
    prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    dry_run: bool = False
    together: Literal["processes", "mixed"] | None = None


@dataclass(frozen=True)
class Answer:
    """One row: the plan of a cell with its remedies, or why it has none; ``plan_id`` is its key in the tables."""

    plan_id: str
    overrides: tuple[str, ...]
    config: JobConfig
    plan: Plan | None
    steps: tuple[Step, ...] = ()
    error: str = ""

    @property
    def refused(self) -> bool:
        """Whether this cannot run."""
        return self.plan is None or self.plan.status == "refused"

    def row(self) -> dict[str, Any]:
        """Its row of ``plans``."""
        if self.plan is None:
            config = self.config
            return {
                "job_id": self.plan_id,
                "model": config.model.label,
                "quant": config.model.quant or "",
                "hardware": config.hardware.name,
                "kv_mode": config.kv_mode.name,
                "workers": config.swarm_size.workers,
                "status": "refused",
                "reason": self.error,
            }
        return {"job_id": self.plan_id, **self.plan.row()}


class Answers:
    """Answers the cells of one command line."""

    def __init__(self, question: Question, base: JobConfig) -> None:
        """``base`` is the job of which the cells are variations."""
        self._question = question
        self._planner = Planner(question.prompt_tokens)
        self._base = json.dumps([asdict(base), asdict(question)], sort_keys=True)

    def of(self, config: JobConfig, overrides: tuple[str, ...] = (), *, remedies: bool) -> Iterator[Answer]:
        """The rows of one cell: one, or with ``solve=both`` one for every number of workers.

        Args:
            config: the cell's job.
            overrides: what the cell is called.
            remedies: look for what would make a refused plan fit, as ``plan.apply=true`` does anyway.
        """
        helps = (remedies or config.plan.apply) and self._question.solve is None
        try:
            config = self._planner.chosen(config)
            config, before = self._within(config) if helps else (config, ())
            for number, plan in enumerate(self._plans(config)):
                key = self._key(overrides, number)
                steps = before
                if helps and plan.status == "refused":
                    plan, more = self._remedied(config, plan)
                    steps = numbered(before, more)
                yield Answer(key, overrides, config, plan, steps)
        except KvswarmError as error:
            yield Answer(self._key(overrides, 0), overrides, config, None, error=str(error))

    def _plans(self, config: JobConfig) -> Iterator[Plan]:
        planner = self._planner
        match self._question.solve:
            case None:
                yield self._exact(config, planner.plan(config))
            case "workers":
                yield planner.most_workers(config).plan
            case "window":
                yield planner.largest_window(config).plan
            case "both":
                yield from planner.frontier(config)

    def _within(self, config: JobConfig) -> tuple[JobConfig, tuple[Step, ...]]:
        """``config``, or what reads the same prompts within the context that the model was trained for.

        Raises:
            BeyondTrainedError: there is no such thing, or ``plan.apply`` does not ask for it.
        """
        try:
            self._planner.plan(config)
        except BeyondTrainedError as error:
            profile = self._planner.profile(config.model)
            config, step = within(config, error, profile, self._planner.plan)
            return config, (step,)
        return config, ()

    def _remedied(self, config: JobConfig, plan: Plan) -> tuple[Plan, tuple[Step, ...]]:
        # What the engine asked for beyond the formula it will ask for beside any remedy.
        beyond = max(plan.compute_bytes - self._planner.plan(config).compute_bytes, 0)

        def again(job: JobConfig) -> Plan:
            return with_more_compute(self._planner.plan(job), beyond)

        steps = ladder(config, plan, again)
        overrides = sufficient(steps)
        if not (config.plan.apply and overrides):
            return plan, steps
        config = with_overrides(config, overrides)
        return self._exact(config, self._planner.plan(config)), applied(steps)

    def _exact(self, config: JobConfig, plan: Plan) -> Plan:
        path = models.locate(config.model) if self._question.dry_run else None
        if path is None:
            return plan
        from runner.resolve import measured  # brings the engine, which this path alone needs

        return measured(path, plan)

    def _key(self, overrides: Sequence[str], number: int) -> str:
        text = "\n".join((self._base, *overrides, str(number)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

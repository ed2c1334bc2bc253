"""Scoring a job's texts: under the reference, which is kept, under its floor, and under the job's own mode."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from runner import models
from runner.config import JobConfig, PlanConfig, SwarmConfig, WindowConfig
from runner.engine.context import Context
from runner.engine.eviction import EvictingContext
from runner.engine.eviction_log import EvictionRound
from runner.engine.scoring import score_rows
from runner.engine.weights import Weights
from runner.errors import ConfigError, EngineError, Interrupted, PlanRefusedError, PromptError
from runner.kv_mode import KvModeConfig
from runner.planning.model.profile import ModelProfile
from runner.planning.plan import Plan
from runner.planning.remedies import accept
from runner.progress import Progress
from runner.prompts import Passage
from runner.resolve import resolve_job, workload_of
from runner.scoring.measure import Bools, Floats, Measured, Rows, measure
from runner.scoring.references import Reference, ReferenceKey
from runner.session import Session

_FLOOR_UBATCH, _OTHER_UBATCH = 64, 128
"""The micro-batch that the floor is measured in, and the one for a job that has that size itself."""


@dataclass(frozen=True)
class ScoredText:
    """A passage as the tokens of one model, of which those from index ``first`` on are scored."""

    passage: Passage
    tokens: tuple[int, ...]
    first: int

    @property
    def digest(self) -> str:
        """16 hex digits that are the same where the same tokens of the same text are scored."""
        said = np.array([self.first, *self.tokens], np.int64).tobytes()
        return hashlib.sha256(said).hexdigest()[:16]


def prepare(passage: Passage, vocabulary: Weights, last: int | None) -> ScoredText:
    """``passage`` as plain text, with BOS as the model wants it; ``last`` where it has none itself.

    Raises:
        PromptError: it is too short for what is to be scored.
    """
    tokens = tuple(vocabulary.tokenize(passage.text, add_special=True, parse_special=False))
    most = len(tokens) - 1
    if most < 1:
        raise PromptError(
            f"text {passage.id!r} is one token long, and the first cannot be scored; give a longer one"
        )
    wanted = passage.last or last or most
    if wanted > most:
        key = "its `last`" if passage.last else "scoring.last"
        raise PromptError(
            f"text {passage.id!r} has {most} tokens that can be scored, all but its first, and {key} is {wanted}; "
            "lower that, or give a longer text"
        )
    return ScoredText(passage, tokens, len(tokens) - wanted)


@dataclass(frozen=True)
class TextScore:
    """The columns of ``scores`` but for the job's id; what a reference makes of a text is None without one."""

    prompt_id: str
    text_digest: str
    text_tokens: int
    tokens: int
    nll: float
    ppl: float
    kl_to_reference: float | None
    kl_q50: float | None
    kl_q90: float | None
    kl_q99: float | None
    top1_agreement: float | None
    nll_reference: float | None
    floor_kl: float | None
    floor_top1_agreement: float | None
    floor_nll: float | None
    reference: str
    seconds: float
    status: Literal["ok", "interrupted"]
    token_nll: tuple[float, ...]

    def row(self) -> dict[str, Any]:
        """Columns of the ``scores`` table; the tokens' own values to a millionth of a nat."""
        return asdict(self) | {"token_nll": [round(nll, 6) for nll in self.token_nll]}


@dataclass(frozen=True)
class Scored:
    """A text's score, and the evictions while it was read."""

    score: TextScore
    rounds: tuple[EvictionRound, ...]


@dataclass(frozen=True)
class _Against:
    """What a text is compared with: ``how`` says what it is, or why there is none."""

    how: str
    reference: Reference | None = None


class Scorer:
    """Scores the texts of one job; contexts are opened one after the other."""

    def __init__(
        self,
        config: JobConfig,
        path: Path,
        profile: ModelProfile,
        plan: Plan,
        session: Session,
        *,
        stopping: Callable[[], bool],
        progress: Progress,
        note: Callable[[str], None],
    ) -> None:
        """``note`` is told why there is no reference; ``stopping`` is asked between two batches."""
        self._config, self._path, self._profile, self._plan = config, path, profile, plan
        self._session, self._stopping, self._progress, self._note = session, stopping, progress, note

    def run(self, texts: Sequence[ScoredText]) -> Iterator[Scored]:
        """Each text's score, as it is known.

        Raises:
            Interrupted: after what was scored of the text in hand was yielded.
            EngineError: llama.cpp failed.
            OutputError: there is no room for a reference.
        """
        self._progress.phase = "score"
        against = self._compared_with(texts)
        with self._session.context(self._session.weights(self._path, self._plan), self._plan) as context:
            for text, beside in zip(texts, against, strict=True):
                scored = self._scored(context, text, beside)
                if scored is not None:
                    yield scored
                if scored is None or scored.score.status == "interrupted":
                    raise Interrupted("interrupted; the rows in hand are written")
                self._progress.groups_done += 1
        self._progress.phase, self._progress.cells_used = "idle", 0

    def _scored(self, context: Context, text: ScoredText, against: _Against) -> Scored | None:
        """What the mode makes of a text; None where not one token was scored before the interruption."""
        began = time.monotonic()
        context.take_rounds()
        measured = measure(self._rows(context, text, self._plan.n_outputs), against.reference)
        if not len(measured):
            return None
        cut = len(measured) < len(text.tokens) - text.first
        score = _score(text, measured, against, time.monotonic() - began, "interrupted" if cut else "ok")
        return Scored(score, tuple(context.take_rounds()))

    def _rows(self, context: Context, text: ScoredText, outputs: int) -> Rows:
        """The rows of a text's scored tokens, until the job is to stop."""
        rows, reached, p = score_rows(context, text.tokens, text.first, outputs=outputs), 0, self._progress
        while not self._stopping():
            began, before = time.monotonic(), reached
            piece = next(rows, None)
            if piece is None:
                return
            reached, logits, predicted = piece
            p.tok_s = (reached - before) / max(time.monotonic() - began, 1e-9)
            p.cells_used = context.cells_used if isinstance(context, EvictingContext) else reached
            yield logits, predicted

    # -- what a text is compared with -------------------------------------------------------------------------

    def _compared_with(self, texts: Sequence[ScoredText]) -> list[_Against]:
        """A reference and its floor for each of ``texts``; those that the session has not yet are computed.

        Raises:
            Interrupted: a part of a reference is of no use.
            OutputError: as :meth:`run`.
        """
        if not self._config.scoring.reference:
            return [_Against("none: scoring.reference=false")] * len(texts)
        keys, kept = {self._key(text): text for text in texts}, self._session.references
        try:
            missing = {key: text for key, text in keys.items() if key not in kept}
            self._under_reference(missing, self._plan.n_ubatch, kept.add)
            if self._config.scoring.floor:
                missing = {key: text for key, text in keys.items() if kept[key].floor is None}
                self._under_reference(
                    missing, _other_ubatch(self._plan.n_ubatch), kept.add_floor, halved=True
                )
        except (PlanRefusedError, ConfigError, EngineError) as error:
            self._note(f"no reference to compare with, so no KL: {error}")
            return [_Against(f"none: {error}")] * len(texts)
        return [_Against(str(key), kept[key]) for key in map(self._key, texts)]

    def _under_reference(
        self,
        texts: Mapping[ReferenceKey, ScoredText],
        n_ubatch: int,
        take: Callable[[ReferenceKey, Rows], None],
        *,
        halved: bool = False,
    ) -> None:
        """Run ``texts`` in one context of the reference and hand their rows on.

        ``halved`` also runs half as many scored tokens a batch: those are never more than the logits that a
        context has room for, whatever the micro-batch.
        """
        if not texts:
            return
        plan = self._reference_plan(list(texts.values()), n_ubatch)
        outputs = max(plan.n_outputs // 2, 1) if halved else plan.n_outputs
        with self._session.context(self._session.weights(self._path, plan), plan) as context:
            for key, text in texts.items():
                take(key, self._whole(self._rows(context, text, outputs)))

    def _whole(self, rows: Rows) -> Rows:
        """``rows``, to their end."""
        yield from rows
        if self._stopping():
            raise Interrupted("interrupted; the rows in hand are written")

    def _reference_plan(self, texts: Sequence[ScoredText], n_ubatch: int) -> Plan:
        """The plan of the same model in f16 that keeps everything, for the longest of ``texts``.

        Raises:
            PlanRefusedError: it does not fit.
            ConfigError: options that the engine cannot combine.
        """
        config = replace(
            self._config,
            kv_mode=KvModeConfig(swa_full=self._config.kv_mode.swa_full),
            flash_attn="on" if self._plan.flash_attn else "off",
            n_ubatch=n_ubatch,
            n_threads=self._plan.n_threads,
            in_flight=1,
            swarm_size=SwarmConfig(workers=1),
            sampling=replace(self._config.sampling, max_tokens=1),
            window=WindowConfig(),
            plan=PlanConfig(apply=False),
        )
        resolved = resolve_job(config, self._path, self._profile, workload_of((), texts))
        return accept(resolved.plan, resolved.steps)

    def _key(self, text: ScoredText) -> ReferenceKey:
        plan = self._plan
        return ReferenceKey(
            model_digest=models.digest(self._path),
            tokens=text.tokens,
            first=text.first,
            flash_attn=plan.flash_attn,
            n_ubatch=plan.n_ubatch,
            n_threads=plan.n_threads,
        )


def _other_ubatch(n_ubatch: int) -> int:
    return _FLOOR_UBATCH if n_ubatch != _FLOOR_UBATCH else _OTHER_UBATCH


def _score(
    text: ScoredText,
    measured: Measured,
    against: _Against,
    seconds: float,
    status: Literal["ok", "interrupted"],
) -> TextScore:
    n, nll = len(measured), float(measured.nll.mean())
    reference = against.reference
    floor = None if reference is None or status == "interrupted" else reference.floor
    q50, q90, q99 = (
        (None,) * 3 if measured.kl is None else map(float, np.quantile(measured.kl, (0.5, 0.9, 0.99)))
    )
    return TextScore(
        prompt_id=text.passage.id,
        text_digest=text.digest,
        text_tokens=len(text.tokens),
        tokens=n,
        nll=nll,
        ppl=float(np.exp(nll)),
        kl_to_reference=_mean(measured.kl),
        kl_q50=q50,
        kl_q90=q90,
        kl_q99=q99,
        top1_agreement=_mean(measured.agrees),
        nll_reference=None if reference is None else float(reference.measured.nll[:n].mean()),
        floor_kl=None if floor is None else _mean(floor.kl),
        floor_top1_agreement=None if floor is None else _mean(floor.agrees),
        floor_nll=None if floor is None else float(floor.nll.mean()),
        reference=against.how,
        seconds=seconds,
        status=status,
        token_nll=tuple(map(float, measured.nll)),
    )


def _mean(values: Floats | Bools | None) -> float | None:
    return None if values is None else float(values.mean())

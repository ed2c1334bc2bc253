"""What a job writes as it happens: its prompts, its plan, answers and votes, evictions and the scores of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from runner.config import JobConfig
from runner.context import PreparedPrompt
from runner.engine.eviction_log import EvictionRound
from runner.engine.sequence import Generation
from runner.engine.survivors import Kept, sample_survivors
from runner.engine.weights import Weights
from runner.growth import Growth
from runner.planning.plan import Plan
from runner.planning.remedies import Step
from runner.prompts import Prompt
from runner.prompts.prompt import SCORE
from runner.record import JobRecord
from runner.scoring.texts import ScoredText, TextScore
from runner.tables import TableWriter
from runner.voting import (
    Ballot,
    Grade,
    Vote,
    extract,
    grade,
    normalise,
    said,
    says,
    support,
    tally,
    tally_id,
)


@dataclass(frozen=True)
class Verdict:
    """A vote, whether it is right where that is known, and the answer that stands for it as it was written.

    ``reply`` is the whole text that a conversation goes on with: of a worker whose answer won, of the first of
    those that are tied, or of worker 0 where all abstained.
    """

    vote: Vote
    grade: Grade
    text: str | None
    reply: str


class Ledger:
    """Writes one job's rows under its id."""

    def __init__(self, tables: TableWriter, record: JobRecord, config: JobConfig) -> None:
        self._tables, self._record, self._config = tables, record, config

    def plan(self, plan: Plan, steps: Sequence[Step] = ()) -> None:
        """One row of ``plans``, and one of ``plan_steps`` for each remedy."""
        self._tables.append("plans", job_id=self._record.job_id, **plan.row())
        for step in steps:
            self._tables.append("plan_steps", job_id=self._record.job_id, **step.row())

    def prompts(self, prepared: Sequence[PreparedPrompt], group_ids: Sequence[str]) -> None:
        """A row of ``prompts`` each, and what its strategy did and sends: ``stages`` and ``excerpts``."""
        for item, group_id in zip(prepared, group_ids, strict=True):
            prompt = item.prompt
            self._tables.append(
                "prompts",
                job_id=self._record.job_id,
                prompt_id=prompt.id,
                group_id=group_id,
                strategy=item.strategy,
                prompt=prompt.question,
                document_digest=prompt.document_digest,
                document_tokens=len(item.document),
                tokens_in=item.tokens_in,
                tokens_sent=item.tokens_sent,
                reason=item.reason,
                answer_in_context=_in_context(item),
                kind=prompt.kind,
                expected=_expected(prompt),
            )
            key = {"job_id": self._record.job_id, "prompt_id": prompt.id}
            self._tables.extend("stages", [key | {"step": n} | asdict(s) for n, s in enumerate(item.stages)])
            self._tables.extend(
                "excerpts", [key | {"number": n} | asdict(e) for n, e in enumerate(item.excerpts)]
            )

    def texts(self, texts: Sequence[ScoredText], text_ids: Sequence[str]) -> None:
        """A row of ``prompts`` for each text that is to be scored."""
        for text, text_id in zip(texts, text_ids, strict=True):
            self._tables.append(
                "prompts",
                job_id=self._record.job_id,
                prompt_id=text.passage.id,
                group_id=text_id,
                strategy="full",
                document_digest=text.passage.digest,
                document_tokens=len(text.tokens),
                tokens_in=len(text.tokens),
                tokens_sent=len(text.tokens),
                kind=SCORE,
            )

    def scored(self, score: TextScore) -> None:
        """A row of ``scores``."""
        self._tables.append("scores", job_id=self._record.job_id, **score.row())

    def evicted(self, prompt_id: str, rounds: Sequence[EvictionRound]) -> None:
        """A row of ``evictions`` for each round of a prompt."""
        key = {"job_id": self._record.job_id, "prompt_id": prompt_id}
        self._tables.extend("evictions", [key | asdict(round_) for round_ in rounds])

    def survivors(self, item: PreparedPrompt, kept: Kept | None, weights: Weights) -> None:
        """A row of ``survivors`` for each token of a sample of what was kept of a prompt."""
        per_head = self._config.kv_mode.survivors
        if kept is None or not per_head:
            return
        prompt_id = item.prompt.id
        seed = f"{self._config.seed}/{prompt_id}/survivors"
        sample = sample_survivors(kept, item.document + item.question, weights, per_head=per_head, seed=seed)
        key = {"job_id": self._record.job_id, "prompt_id": prompt_id}
        self._tables.extend("survivors", [key | vars(survivor) for survivor in sample])

    def group(self, item: PreparedPrompt, generations: Sequence[Generation]) -> Verdict | None:
        """A row of ``generations`` for each worker, and the group's vote: none where it was interrupted."""
        prompt, ballots = item.prompt, []
        for generation in generations:
            found = extract(generation.text, prompt.kind, choices=prompt.choices, pattern=prompt.pattern)
            supported = None
            if item.evidence is not None:
                answer = said(found, generation.text, prompt.choices)
                supported = support(answer, item.evidence, prompt.question)
            self._tables.append(
                "generations",
                job_id=self._record.job_id,
                answer=found.key,
                support=supported,
                **asdict(generation),
            )
            ballots.append(
                Ballot(
                    worker=generation.worker,
                    key=found.key,
                    text=generation.text,
                    mean_logprob=generation.mean_logprob,
                    truncated=generation.status == "truncated",
                    support=supported,
                )
            )
        if any(generation.status == "interrupted" for generation in generations):
            return None
        return self._vote(prompt, ballots)

    def growth(self, growth: Growth) -> None:
        """A row of ``growth``; one with the same step replaces it."""
        self._tables.append("growth", job_id=self._record.job_id, **asdict(growth))

    def _vote(self, prompt: Prompt, ballots: Sequence[Ballot]) -> Verdict:
        vote, expected = tally(ballots, self._config.vote.rule), _expected(prompt)
        graded = grade(vote, ballots, expected)
        self._record.score.add(graded)
        self._tables.append(
            "votes",
            job_id=self._record.job_id,
            prompt_id=prompt.id,
            tally_id=tally_id(vote.rule),
            rule=vote.rule,
            winner=vote.winner,
            votes=vote.votes,
            workers=vote.workers,
            margin=vote.margin,
            agreement=vote.agreement,
            tie=vote.tie,
            abstained=vote.abstained,
            correct=graded.correct,
            mean_worker_correct=graded.mean_worker_correct,
            expected=expected,
        )
        text = next((ballot.text for ballot in ballots if ballot.worker == vote.worker), None)
        leading = next((ballot.text for ballot in ballots if ballot.key in vote.tied), ballots[0].text)
        shown = text if prompt.kind == "text" else vote.winner
        return Verdict(vote, graded, shown, reply=leading if text is None else text)


def _in_context(item: PreparedPrompt) -> bool | None:
    """Whether what is sent of the document says the known answer."""
    if item.evidence is None or item.prompt.answer is None:
        return None
    return says(item.evidence, item.prompt.answer)


def _expected(prompt: Prompt) -> str | None:
    """The key of the expected answer; None where none is known."""
    if prompt.answer is None or prompt.kind is None:
        return None
    return normalise(prompt.answer, prompt.kind, prompt.choices)

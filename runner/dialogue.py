"""One conversation: turn after turn on a context that is exchanged for a larger one when it becomes too small.

To grow is to prefill the history again: the only way that also works for recurrent models, whose state is of the
whole of it. In between the history stays in the cache, and a turn prefills what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from runner.config import SamplingConfig
from runner.context import Full, History, PreparedPrompt
from runner.context.base import TokenParts, messages_of
from runner.context.summary import HEADING, LEAST_TOKENS, summarise
from runner.engine.chat import PromptFormat
from runner.engine.context import Context
from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Generation, Group
from runner.errors import PlanRefusedError
from runner.growth import Growth, Window
from runner.planning.growth import GrowthDecision
from runner.planning.plan import Plan
from runner.progress import Progress
from runner.prompts import Prompt
from runner.workers.shared import group_of

_SUMMARY_SHARE = 4
"""A summary takes at most this part of the window, so that what it makes room for is worth it."""


@dataclass(frozen=True)
class Swarm:
    """Who answers each turn, and what happens when a window is too small and does not grow."""

    workers: int
    seed: int
    sampling: SamplingConfig
    on_refusal: Literal["stop", "compress"] = "stop"


class Desk(Protocol):
    """What a dialogue asks of its job: contexts, decisions, and that what happens is written down."""

    def open(self, plan: Plan) -> Context:
        """A context as planned; the dialogue closes it."""

    def decide(
        self, held: Plan, window: int, session_tokens: int, decode_tok_s: float | None, confirmed: bool
    ) -> tuple[GrowthDecision, Plan | None]:
        """Whether the window grows; see :data:`runner.growth.Decide`."""

    def asked(self, item: PreparedPrompt, windows: tuple[int, ...]) -> None:
        """A turn is about to be asked; ``windows`` are those of the conversation's turns up to it."""

    def answered(self, item: PreparedPrompt, generations: list[Generation]) -> str:
        """The swarm has answered; the text that the conversation goes on with."""

    def grew(self, growth: Growth) -> None:
        """There was a decision about the window, or one's re-prefill was measured."""


def opening(conversation: Prompt, form: PromptFormat) -> PreparedPrompt:
    """The first turn of a conversation, which its first window must hold.

    Raises:
        PromptError: the model cannot take it.
    """
    return Full().prepare(History(conversation.document).turn(conversation, 1), form)


class Dialogue:
    """A conversation on a sequence of contexts; :meth:`run` is all there is to do with it."""

    def __init__(
        self,
        conversation: Prompt,
        plan: Plan,
        swarm: Swarm,
        desk: Desk,
        progress: Progress,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin in the window of ``plan``; ``progress`` and ``stopping`` are as a scheduler's."""
        self._conversation, self._swarm, self._desk = conversation, swarm, desk
        self._progress, self._stopping = progress, stopping
        self._window = Window(plan, desk.decide, desk.grew)
        self._windows: tuple[int, ...] = ()
        # What was said word for word, and what the next turn is asked after: the same until it is compressed.
        self._told = self._history = History(conversation.document)
        self._cached: tuple[int, ...] = ()
        self._context: Context | None = None

    def run(self) -> None:
        """Ask every turn.

        Raises:
            PlanRefusedError: a turn passes the window, which does not grow, and the config says to stop then,
                or compression is of no use.
            Interrupted: after the answers in hand have been written.
            EngineError: llama.cpp failed.
        """
        try:
            self._open(self._window.plan)
            for number, turn in enumerate(self._conversation.turns, 1):
                item = self._fitting(number)
                reply = self._ask(item)
                reply = reply if turn.reply is None else turn.reply
                shown = messages_of(item.prompt)[-1]["content"]
                self._told, self._history = self._told.after(shown, reply), self._history.after(shown, reply)
                self._window.session_tokens = item.tokens_sent + self._form.count(reply)
        finally:
            self._close()

    def _open(self, plan: Plan) -> None:
        self._context = self._desk.open(plan)
        self._window.plan = plan
        # With another placement of the weights the model itself may have been loaded anew.
        weights = self._context.weights
        self._form = PromptFormat(weights, conversation=True)
        self._scheduler = Scheduler(
            weights, self._context, self._swarm.sampling, stopping=self._stopping, progress=self._progress
        )

    def _close(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    # -- one turn -------------------------------------------------------------------------------------------

    def _prepared(self, number: int, history: History) -> PreparedPrompt:
        prepare = Full().prepare
        item = prepare(history.turn(self._conversation, number), self._form)
        if not history.summarised:
            return item
        whole = prepare(self._told.turn(self._conversation, number), self._form)
        return replace(
            whole,
            strategy=f"{item.strategy}+summary",
            document=item.document,
            question=item.question,
            evidence=item.evidence,
        )

    def _fitting(self, number: int) -> PreparedPrompt:
        """Turn ``number`` in a window that holds it."""
        item = self._prepared(number, self._history)
        need = self._need(item)
        if number == 1 and need <= self._window.tokens:
            return item
        plan, reason = self._window.grown(item.prompt.id, number, need)
        fits = need <= plan.window_tokens
        if not fits and (self._swarm.on_refusal == "stop" or not self._history.messages):
            raise self._refusal(item, plan, reason)
        if plan is not self._window.plan:
            self._progress.phase = "grow"
            self._close()
            self._open(plan)
        return item if fits else self._compressed(number, item, reason)

    def _need(self, item: PreparedPrompt) -> int:
        return item.tokens_sent + self._swarm.sampling.max_tokens

    def _ask(self, item: PreparedPrompt) -> str:
        """What the conversation goes on with, of the swarm's answers."""
        self._windows += (self._window.tokens,)
        self._desk.asked(item, self._windows)
        p, reply = self._progress, ""
        steps, seconds = p.decode_steps, p.decode_s
        for generations in self._run(group_of(item, workers=self._swarm.workers, seed=self._swarm.seed)):
            reply = self._desk.answered(item, generations)
        steps, seconds = p.decode_steps - steps, p.decode_s - seconds
        self._window.decoded(steps / seconds if steps else None)
        return reply

    def _run(self, group: Group, sampling: SamplingConfig | None = None) -> Iterator[list[Generation]]:
        """A group's answers; its document is in the cache afterwards."""
        again = self._window.moved and group.document[: len(self._cached)] == self._cached
        held, seconds = len(self._cached) if again else 0, self._progress.grow_s
        for _, generations in self._scheduler.run([group], keep=True, held=held, sampling=sampling):
            yield generations
        self._cached = group.document
        self._window.prefilled(held, self._progress.grow_s - seconds)

    # -- compression ----------------------------------------------------------------------------------------

    def _compressed(self, number: int, item: PreparedPrompt, reason: str) -> PreparedPrompt:
        """Turn ``number`` after a summary of all that came before it.

        Raises:
            PlanRefusedError: it does not fit even so.
        """
        window, before = self._window, self._history
        bare = self._prepared(number, History(HEADING, summarised=True))
        limit = min(window.tokens - self._need(bare), window.tokens // _SUMMARY_SHARE)
        if limit < LEAST_TOKENS:
            raise self._refusal(item, window.plan, f"{reason}; nor is there room for a summary before it")
        summary = summarise(
            before, self._conversation, self._form, window=window.tokens, limit=limit, write=self._write
        )
        self._history = summary.history
        sent = self._prepared(number, self._history)
        if self._need(sent) > window.tokens:
            raise self._refusal(item, window.plan, f"{reason}; nor does a summary before it")
        tokens = self._form.count(summary.text)
        done = f"the {len(before)} turns before it are now a summary of {tokens} tokens"
        done += f", written in {summary.requests} parts" if summary.requests > 1 else ""
        done += f", cut at {limit}" if summary.cut else ""
        window.compressed(item.prompt.id, number, f"{reason}; {done}", summary.text)
        return sent

    def _write(self, tokens: TokenParts, most: int) -> tuple[str, bool]:
        """The model's greedy answer of at most ``most`` tokens, and whether that cut it short."""
        group = Group("summary", tokens.document, tokens.question, seeds=(0,))
        [[answer]] = self._run(group, SamplingConfig(temperature=0.0, max_tokens=most))
        self._progress.groups_done -= 1  # it is no answer to a prompt
        return answer.text, answer.status == "truncated"

    def _refusal(self, item: PreparedPrompt, plan: Plan, reason: str) -> PlanRefusedError:
        answer, stops = self._swarm.sampling.max_tokens, self._swarm.on_refusal == "stop"
        remedy = "set window.on_refusal=compress, or " if stops and self._history.messages else ""
        return PlanRefusedError(
            f"turn {item.prompt.id!r} passes the window: {item.tokens_sent} prompt tokens and {answer} for the "
            f"answer make {item.tokens_sent + answer}, {plan.window_tokens} are available, and no more are to be "
            f"had: {reason}; {remedy}shorten the conversation or lower sampling.max_tokens"
        )

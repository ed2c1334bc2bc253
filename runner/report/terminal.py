"""A job on the terminal: progress while it runs, its votes and where its tables are when it has run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from runner.planning.hardware.budget import gib
from runner.report.kept import caption, marked
from runner.report.plans import evicting

if TYPE_CHECKING:
    from runner.context import PreparedPrompt
    from runner.engine.eviction_log import EvictionRound
    from runner.engine.survivors import Kept
    from runner.ledger import Verdict
    from runner.planning.plan import Plan
    from runner.planning.remedies import Step
    from runner.progress import Progress
    from runner.prompts import Prompt
    from runner.scoring.texts import TextScore

_REFRESH_S = 0.25


class View:
    """One job's face; progress shows on a terminal only, votes always."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[tuple[Prompt, Verdict]] = []
        self._scores: list[TextScore] = []
        self._warned = False

    def planned(self, plan: Plan, steps: Sequence[Step] = ()) -> None:
        """The plan, in a line, what was changed to make it fit, and what it wants a person to know."""
        self._say(
            f"{plan.model}, kv_mode={plan.kv_mode}, {plan.workers} workers: "
            f"{gib(plan.vram_bytes + plan.ram_bytes)} of "
            f"{gib(plan.available_bytes)} (weights {gib(plan.weights_bytes)}, KV {gib(plan.kv_bytes)} in "
            f"{plan.cells} cells, compute {gib(plan.compute_bytes)})"
        )
        if plan.budget_cells:
            self._say(f"window {plan.window_tokens} tokens: {evicting(plan)}")
        for step in steps:
            if step.applied:
                self._say(f"applied: {step.override} ({step.remedy}, saves {gib(step.saved_bytes)})")
        for line in plan.notes:
            self.note(line)

    def prepared(self, item: PreparedPrompt) -> None:
        """What a context strategy made of a prompt, in a line."""
        if not item.stages:
            self._say(f"prompt {item.prompt.id}: {item.reason}")
            return
        stages = ", ".join(f"{s.stage} {s.seconds:.1f} s{' (kept)' * s.cached}" for s in item.stages)
        sent = f"{item.tokens_sent:,} of {item.tokens_in:,} tokens"
        self._say(f"prompt {item.prompt.id}: {item.strategy} sends {sent} ({stages})")

    def note(self, line: str) -> None:
        """Something a person should know."""
        self._say(f"note: {line}")

    def evicted(self, prompt_id: str, rounds: Sequence[EvictionRound]) -> None:
        """Warn, once a job, of a kept set that froze: H2O's known failure."""
        frozen = next((round_ for round_ in rounds if round_.frozen), None)
        if frozen is not None and not self._warned:
            self._warned = True
            self._say(
                f"warning: the kept set of prompt {prompt_id} stopped turning over after {frozen.position} "
                "tokens: of what the text says later only the most recent is kept; set "
                "kv_mode.options.decay=0.9, or kv_mode=evict"
            )

    def kept(self, prompt_id: str, kept: Kept | None, pieces: Sequence[bytes]) -> None:
        """The prompt's text, a token in each of ``pieces``, with what was kept of it marked: by style on a
        terminal that has any.
        """
        self._say(caption(prompt_id, kept, len(pieces)))
        if kept is not None:
            styled = self._console.is_terminal and self._console.color_system is not None
            self._console.print(marked(pieces, kept, styled=styled), highlight=False, soft_wrap=True)

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def preparing(self, progress: Progress) -> Iterator[None]:
        """Say what ``progress`` does while the block prepares prompts."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status("preparing prompts") as status:
            done = threading.Event()

            def tell() -> None:
                while not done.wait(_REFRESH_S):
                    status.update(
                        f"preparing prompts: {progress.prefill_tokens} tokens prefilled, "
                        f"{progress.generated_tokens} generated; {progress.phase}, {progress.tok_s:.0f} tok/s"
                    )

            telling = threading.Thread(target=tell, daemon=True)
            telling.start()
            try:
                yield
            finally:
                done.set()
                telling.join()

    @contextmanager
    def watching(
        self, progress: Progress, prepared: Sequence[PreparedPrompt], turns: int = 0, texts: int = 0
    ) -> Iterator[None]:
        """Draw ``progress`` while the block runs; ``turns`` of conversations and ``texts`` follow ``prepared``."""
        if not self._console.is_terminal:
            yield
            return
        bars = Bars(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
            console=self._console, transient=True, auto_refresh=False,
        )  # fmt: skip
        done = threading.Event()
        with bars:
            tokens = sum(len(item.question) for item in prepared)
            tokens += sum(map(len, {item.document for item in prepared}))
            # What the turns of a conversation will take nobody knows yet.
            of = "" if turns else f" of {tokens}"
            drawing = threading.Thread(
                target=_draw, args=(bars, progress, len(prepared) + turns + texts, of, done), daemon=True
            )
            drawing.start()
            try:
                yield
            finally:
                done.set()
                drawing.join()

    def voted(self, prompt: Prompt, verdict: Verdict | None) -> None:
        """Remember a vote for the table; an interrupted group has none."""
        if verdict is not None:
            self._rows.append((prompt, verdict))

    def scored(self, score: TextScore) -> None:
        """Remember a text's score for the table."""
        self._scores.append(score)

    def scores(self) -> None:
        """The table of scored texts so far."""
        if not self._scores:
            return
        table = Table()
        for name in ("text", "tokens", "ppl", "KL", "KL floor", "top-1"):
            table.add_column(name, overflow="fold", justify="left" if name == "text" else "right")
        for score in self._scores:
            figures = (
                f"{score.tokens} of {score.text_tokens}",
                f"{score.ppl:.3f}",
                _figure(score.kl_to_reference, ".2g"),
                _figure(score.floor_kl, ".2g"),
                _figure(score.top1_agreement, ".3f"),
            )
            table.add_row(escape(score.prompt_id), *figures)
        self._console.print(table)

    def votes(self) -> None:
        """The table of votes so far."""
        if not self._rows:
            return
        table = Table()
        for name in ("question", "winner", "votes", "margin", "correct"):
            table.add_column(
                name, overflow="fold", justify="left" if name in ("question", "winner") else "right"
            )
        for prompt, verdict in self._rows:
            vote = verdict.vote
            shown = " = ".join(vote.tied) if vote.tie else verdict.text
            right = {None: "", True: "yes", False: "no"}[verdict.grade.correct]
            counted, margin = f"{vote.votes}/{vote.workers}", f"{vote.margin:.2f}"
            question, answer = _shorten(prompt.question), _shorten(shown or "(no answer)")
            table.add_row(escape(question), escape(answer), counted, margin, right)
        self._console.print(table)


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _draw(bars: Bars, progress: Progress, prompts: int, of: str, done: threading.Event) -> None:
    task = bars.add_task("prompts", total=prompts, note="")
    while not done.wait(_REFRESH_S):
        note = f"{progress.phase}, {progress.tok_s:.0f} tok/s"
        if progress.phase == "decode":
            note = f"{progress.active_sequences} workers {note}"
        note = f"{progress.prefill_tokens}{of} tokens prefilled; {note}"
        bars.update(task, completed=progress.groups_done, note=note)
        bars.refresh()


def _shorten(text: str, width: int = 70) -> str:
    """One line of at most ``width`` characters, for the eye; the tables hold the whole."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"

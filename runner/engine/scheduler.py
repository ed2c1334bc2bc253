"""Continuous batching of groups: prefill a prompt once, fork it to its workers, decode them together.

One step is one batch: a token for every worker that is decoding, and, where there is room, the next chunk of
one prompt that is prefilling. With one group in flight (the default) the two never mix and every group starts
in a cleared cache, so its texts depend on nothing but itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from runner.config import SamplingConfig
from runner.engine.context import Context
from runner.engine.documents import Document, Documents
from runner.engine.eviction import EvictingContext
from runner.engine.sampler import log_normalizers, needed, top_candidates
from runner.engine.sequence import Answer, Generation, Group, Rows
from runner.engine.weights import Weights
from runner.errors import Interrupted
from runner.progress import Progress


@dataclass
class _Running:
    """A group that has been admitted."""

    group: Group
    document: Document | None
    sequence: int
    started: float
    asked: int = 0
    in_chunk: int = 0
    steps: int = 0
    forked: bool = False
    prefill_tokens: int = 0
    answers: list[Answer] = field(default_factory=list)

    @property
    def alive(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.finish_reason is None]

    @property
    def unfinished(self) -> int:
        """Workers that decode, or will."""
        return len(self.alive) if self.forked else len(self.group.seeds)

    @property
    def grows(self) -> bool:
        """Whether its next prefill was in a smaller context before."""
        return self.document is not None and self.document.grows

    def results(self) -> list[Generation]:
        return [answer.result(self.group, self.prefill_tokens, self.started) for answer in self.answers]


class Scheduler:
    """Runs groups on one context."""

    def __init__(
        self,
        weights: Weights,
        context: Context,
        sampling: SamplingConfig,
        *,
        in_flight: int = 1,
        stopping: Callable[[], bool] = lambda: False,
        progress: Progress | None = None,
    ) -> None:
        """``stopping`` is asked before every batch; True ends the run with the rows in hand."""
        self.progress = progress or Progress()
        self._weights, self._context = weights, context
        self._in_flight, self._stopping = in_flight, stopping
        self._waiting: deque[Group] = deque()
        self._running: list[_Running] = []
        self._free: deque[int] = deque()
        self._documents = Documents(context, self._free)
        self._default = self._sampling = sampling
        self._keep, self._held, self._looked_at = False, 0, needed(sampling)

    def run(
        self,
        groups: Iterable[Group],
        *,
        keep: bool = False,
        held: int = 0,
        sampling: SamplingConfig | None = None,
    ) -> Iterator[tuple[Group, list[Generation]]]:
        """Each group with its workers' answers, as groups finish.

        Groups that share a document run next to each other, whatever their order in ``groups``.

        Args:
            groups: what to run.
            keep: leave the documents in the cache for the next run, whose documents may begin with one of them.
            held: how many tokens of a new document a smaller context held: prefilling them is phase ``grow``.
            sampling: in place of the scheduler's own, for this run.

        Raises:
            Interrupted: after the answers in hand, cut short, have been yielded.
            EngineError: llama.cpp failed; nothing of the groups in flight is yielded.
        """
        by_document: dict[object, list[Group]] = {}
        for group in groups:
            key = (group.document, group.reading) if group.document else id(group)
            by_document.setdefault(key, []).append(group)
        self._waiting.extend(group for same in by_document.values() for group in same)
        self._keep, self._held, self._sampling = keep, held, sampling or self._default
        self._looked_at = needed(self._sampling)
        self._make_room()
        done = False
        try:
            while self._waiting or self._running:
                if self._stopping():
                    yield from self._interrupt()
                    raise Interrupted("interrupted; the rows in hand are written")
                self._admit()
                self._step()
                yield from self._retire()
            done = True
        finally:
            self._abandon(keep=keep and done)

    def _make_room(self) -> None:
        """Drop what an earlier run kept and none that waits begins with; without any, as in a new context."""
        for document in list(self._documents):
            if not any(self._documents.serves(document, g.document, g.reading) for g in self._waiting):
                self._documents.drop(document)
        if not self._documents:
            self._context.clear()
        taken = {document.sequence for document in self._documents}
        self._free.clear()
        self._free.extend(s for s in range(self._context.params.n_seq_max) if s not in taken)

    # -- one step -------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting and (not self._running or self._has_room(self._waiting[0])):
            group = self._waiting.popleft()
            document = self._documents.take(group.document, group.reading, self._held)
            running = _Running(
                group=group, document=document, sequence=self._free.popleft(), started=time.monotonic()
            )
            if document is not None and not document.prefilled and group.reading.first_chunk is not None:
                assert self._context.chunk is not None  # only what evicts reads in other chunks
                running.in_chunk = self._context.chunk - group.reading.first_chunk
            self._running.append(running)

    def _has_room(self, group: Group) -> bool:
        """Whether ``group`` can join those that are running, each of which may still grow to its longest.

        What finished sequences leave behind is room: the next prompt need not wait for a whole group to end.
        """
        if self._in_flight == 1:
            return False
        new = bool(group.document) and all(d.tokens != group.document for d in self._documents)
        documents = [len(document.tokens) for document in self._documents] + new * [len(group.document)]
        # (tokens of the prompt, of its question, workers that may still grow) of each group
        groups = [(r.group.prompt_tokens, len(r.group.question), r.unfinished) for r in self._running]
        groups.append((group.prompt_tokens, len(group.question), len(group.seeds)))
        params, longest = self._context.params, self._sampling.max_tokens
        cells = sum(documents) + sum(question + workers * longest for _, question, workers in groups)
        sequences = len(documents) + sum(workers for _, _, workers in groups)
        if self._context.partial_state:
            # Of a small sliding-window cache every document and every prefix takes a window for itself.
            window = self._context.window
            sliding = sum(min(document, window) for document in documents)
            sliding += sum(
                min(prompt, window) + workers * min(longest, window) for prompt, _, workers in groups
            )
            cells = max(cells, sliding)
            sequences += sum(workers > 1 for _, _, workers in groups)
        return cells <= params.n_ctx and sequences <= params.n_seq_max

    def _step(self) -> None:
        batch, sampled = Rows(), []
        for running in self._running:
            for answer in running.alive:
                sampled.append(answer)
                position = running.group.prompt_tokens + len(answer.tokens) - 1
                batch.add([answer.tokens[-1]], position, answer.sequence, output=True)
        decoding = len(sampled)
        rows = list(range(decoding))
        prefilling = next((running for running in self._running if not running.forked), None)
        phase = "decode" if decoding else "grow" if prefilling and prefilling.grows else "prefill"
        completes = prefilling is not None and self._add_chunk(prefilling, batch)
        self._note(phase)

        began = time.monotonic()
        logits = self._context.decode(batch.tokens, batch.positions, batch.sequences, batch.outputs)
        if prefilling is not None:
            self._evict_from_prompt(prefilling, ended=completes)
        if prefilling is not None and completes:
            # All workers draw their first token from the prompt's last row, each with its own seed.
            rows += [decoding] * len(prefilling.group.seeds)
            sampled += self._fork(prefilling)
        if sampled:
            norms, candidates = log_normalizers(logits), top_candidates(logits, self._looked_at)
            for row, answer in zip(rows, sampled, strict=True):
                answer.advance(logits[row], candidates[row], norms[row])
        self._count(time.monotonic() - began, len(batch.tokens) - decoding, len(sampled))
        for answer in sampled:
            if answer.finish_reason is not None:
                self._release(answer)
        if decoding:
            self._evict_from_answers()

    def _evict_from_prompt(self, running: _Running, *, ended: bool) -> None:
        """After a chunk of prefill, or what is left of one where the document or the prompt ends."""
        chunk, document = self._context.chunk, running.document
        in_document = document is not None and not running.asked
        if in_document and document is not None:
            ended = document.prefilled == len(document.tokens)
        if chunk is not None and (ended or running.in_chunk >= chunk):
            if in_document and document is not None:
                self._probe(document.sequence, running.sequence, last=ended)
            self._context.evict(
                [document.sequence if in_document and document else running.sequence], "prefill"
            )
            running.in_chunk = 0

    def _probe(self, sequence: int, spare: int, *, last: bool) -> None:
        """Ask what the questions look at; the group's own sequence is empty while its document is read."""
        p, began = self.progress, time.monotonic()
        phase, p.phase = p.phase, "probe"
        p.probe_tokens += self._context.probe(sequence, spare, last=last)
        p.probe_s += time.monotonic() - began
        p.phase = phase

    def _evict_from_answers(self) -> None:
        """Every so many tokens that each worker has generated."""
        interval = self._context.interval
        if interval is None:
            return
        for running in self._running:
            if running.forked and running.alive:
                running.steps += 1
                if running.steps % interval == 0:
                    self._context.evict([answer.sequence for answer in running.alive], "decode")

    def _add_chunk(self, running: _Running, batch: Rows) -> bool:
        """Add the next prefill tokens of ``running`` to the batch; True where they end its prompt.

        No chunk crosses the end of a document, so that the question's batches are the same whether the
        document was prefilled for this group or was there already.
        """
        room = self._context.params.n_ubatch - len(batch.tokens)
        if self._context.chunk is not None:
            room = min(room, self._context.chunk - running.in_chunk)
        document, group = running.document, running.group
        if document is not None and document.prefilled < len(document.tokens):
            start, chunk = document.prefilled, document.next_chunk(room)
            batch.add(chunk, start, document.sequence)
            completes = False
        else:
            if document is not None and running.asked == 0:
                self._documents.fork(document, running.sequence)
            chunk = group.question[running.asked : running.asked + room]
            completes = running.asked + len(chunk) == len(group.question)
            batch.add(chunk, len(group.document) + running.asked, running.sequence, output=completes)
            running.asked += len(chunk)
        running.prefill_tokens += len(chunk)
        running.in_chunk += len(chunk)
        return completes

    def _fork(self, running: _Running) -> list[Answer]:
        """Give each worker the prompt; the first takes over the prompt's own sequence."""
        if self._context.partial_state:
            self._context.load_partial(running.sequence, self._context.save_partial(running.sequence))
        for worker, seed in enumerate(running.group.seeds):
            sequence = running.sequence if worker == 0 else self._free.popleft()
            if worker:
                self._context.fork(running.sequence, sequence)
            number = running.group.first_worker + worker
            running.answers.append(Answer(self._weights, self._sampling, number, seed, sequence))
        running.forked = True
        return running.answers

    # -- ends -----------------------------------------------------------------------------------------------

    def _release(self, answer: Answer) -> None:
        self._context.drop(answer.sequence)
        self._free.append(answer.sequence)

    def _retire(self) -> Iterator[tuple[Group, list[Generation]]]:
        for running in [r for r in self._running if r.forked and not r.alive]:
            self._running.remove(running)
            self._leave_document(running.document)
            if not self._running and not self._documents:
                # Freed cells are not enough: where the next free cell is searched from would still differ.
                self._context.clear()
            # Workers that read for themselves are groups of one prompt, which counts when the last is done.
            unfinished = {group.prompt_id for group in (*self._waiting, *(r.group for r in self._running))}
            self.progress.groups_done += running.group.prompt_id not in unfinished
            yield running.group, running.results()

    def _leave_document(self, document: Document | None) -> None:
        if document is None:
            return
        document.users -= 1
        needed_again = self._keep or any(
            group.document == document.tokens and group.reading == document.reading for group in self._waiting
        )
        if document.users == 0 and not needed_again:
            self._documents.drop(document)

    def _interrupt(self) -> Iterator[tuple[Group, list[Generation]]]:
        for running in self._running:
            if running.forked:
                for answer in running.alive:
                    answer.cut("interrupted")
                yield running.group, running.results()

    def _abandon(self, *, keep: bool) -> None:
        """Leave nothing behind but documents to ``keep``, however the run ended."""
        for running in self._running:
            for answer in running.alive:
                answer.cut("error")
        self._waiting.clear()
        self._running.clear()
        if not keep:
            self._documents.forget()
        p = self.progress
        p.phase, p.active_sequences, p.cells_used, p.tok_s = "idle", 0, 0, 0.0

    # -- what others see ------------------------------------------------------------------------------------

    def _note(self, phase: str) -> None:
        p = self.progress
        if p.phase != phase:
            p.phase, p.tok_s = phase, 0.0
        p.active_sequences = sum(len(running.alive) or 1 for running in self._running)
        if isinstance(self._context, EvictingContext):
            p.cells_used = self._context.cells_used
            return
        p.cells_used = sum(document.prefilled for document in self._documents)
        p.cells_used += sum(r.asked + sum(len(a.tokens) for a in r.alive) for r in self._running)

    def _count(self, seconds: float, prefilled: int, sampled: int) -> None:
        p = self.progress
        p.prefill_tokens += prefilled
        p.generated_tokens += sampled
        if p.phase == "decode":
            p.decode_s += seconds
            p.decode_steps += 1
            p.tok_s = sampled / seconds
        else:
            p.prefill_s += seconds
            p.grow_s += seconds if p.phase == "grow" else 0.0
            p.tok_s = prefilled / seconds

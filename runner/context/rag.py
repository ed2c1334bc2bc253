"""``rag``: the passages of a document that the question finds, in its place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from runner.context.base import Engine, Excerpt, PreparedPrompt, Request, Shortening, Stage
from runner.context.room import room_of, shortened, whole
from runner.context.stages import chars_of, stage_of, tokens_of
from runner.errors import PromptError
from runner.prompts import Prompt
from runner.retrieval.embedders import Embedder
from runner.retrieval.index import Index, IndexKey, open_index
from runner.retrieval.passages import Outline, Passage, outline
from runner.retrieval.search import Found, search
from runner.retrieval.splitting import Piece
from runner.strategy_config import RagConfig

_BETWEEN = "\n\n"
"""Between two passages that do not meet."""

_SECTIONS_FOR = 4
"""Rooms that the sections would fill in which a long document is searched."""

_LEAST_FOUND = 32
"""Passages that each search gives at least; more where the room wants them."""

# Sachan et al., Improving Passage Retrieval with Zero-Shot Question Generation (2022).
_BEFORE = "Here is a passage of a document."
_AFTER = "Please write a question based on this passage."


@dataclass(frozen=True)
class Rag(Shortening):
    """Sends the passages that a question finds, and what stands around the best of them, in the document's order.

    What a document was cut and embedded into is kept in ``folder``: another question about it embeds only itself.
    """

    config: RagConfig
    folder: Path

    name = "rag"

    def prepare(self, prompt: Prompt, engine: Engine) -> PreparedPrompt:
        """See :meth:`Strategy.prepare`."""
        full, fits = whole(prompt, engine, self.name)
        document = prompt.document
        if fits or document is None:
            return full
        room = room_of(prompt, engine)
        embedder = engine.embedder(self.config.embedder)
        index, stages = self._index(full, document, engine, embedder)
        passages = index.outline.passages
        within = None
        if self.config.sections == "on" or (
            self.config.sections == "auto" and full.tokens_in >= self.config.sections_from
        ):
            within, stage = self._sections(prompt, index, embedder, room)
            stages.append(stage)
        found, stage = self._search(prompt, index, embedder, room, within)
        stages.append(stage)
        if self.config.rerank:
            found, stage = self._reranked(prompt, engine, passages, found)
            stages.append(stage)

        began = time.monotonic()
        best, beside = self._chosen(passages, found, room)
        chosen = best + beside
        while engine.count(evidence := _evidence(document, passages, chosen)) > room:
            chosen.pop()
        if not chosen:
            raise PromptError(
                f"prompt {prompt.id!r}: no passage of its document has room in {self.config.retrieved} of "
                f"the {room} tokens that are left for it; lower context_strategy.rag.chunk, or raise "
                "context_strategy.rag.retrieved or context_strategy.window"
            )
        own = min(len(best), len(chosen))
        stages.append(
            Stage(
                stage="assemble",
                items_in=len(found),
                items_out=len(chosen),
                chars_in=chars_of([passages[each.number] for each in found]),
                chars_out=len(evidence),
                tokens_in=tokens_of([passages[each.number] for each in found]),
                tokens_out=engine.count(evidence),
                seconds=time.monotonic() - began,
                detail=f"{own} of {len(found)} passages found, {len(chosen) - own} that stand beside these",
            )
        )
        places = {each.number: (rank, each) for rank, each in enumerate(found)}
        excerpts = [
            _excerpt(index.outline, number, places.get(number), "retrieved" if number in best else "original")
            for number in sorted(chosen)
        ]
        return shortened(full, engine, self.name, evidence, stages=stages, excerpts=excerpts)

    def prefill_tokens(self, items: Sequence[PreparedPrompt], engine: Engine) -> int:
        """See :meth:`Shortening.prefill_tokens`; the vectors of ``wordllama`` take no prefill."""
        total = 0
        for item in items:
            room, asked = room_of(item.prompt, engine), len(item.question)
            found = int(self.config.retrieved * room)
            if self.config.passages is not None:
                found = min(found, self.config.passages * self.config.chunk)
            total += asked + min(found + int(self.config.original * room), room)
            total += self.config.rerank * (self.config.chunk + asked)
        return total

    def _index(
        self, full: PreparedPrompt, document: str, engine: Engine, embedder: Embedder
    ) -> tuple[Index, list[Stage]]:
        """The document's index, and the stages that it took: one where it was there already."""
        began = time.monotonic()
        cut: list[Stage] = []
        overlap = int(self.config.overlap * self.config.chunk)

        def make() -> Outline:
            found = outline(document, engine.count, chunk=self.config.chunk, overlap=overlap)
            text = Piece(0, len(document), document, full.tokens_in)
            said = f"{len(found.sections)} sections; neighbours share up to {overlap} tokens"
            cut.append(stage_of("split", [text], found.passages, began, detail=said))
            return found

        key = IndexKey(
            document_digest=str(full.prompt.document_digest),
            tokenizer=engine.model_digest,
            embedder=embedder.name,
            chunk=self.config.chunk,
            overlap=overlap,
        )
        index, how = open_index(self.folder / "indexes", key, embedder, document, make)
        passages = index.outline.passages
        said = f"{how or 'kept'}: {embedder.name}, vectors of {embedder.dim} elements"
        stage = stage_of("index", passages, passages, began, detail=said, cached=not how)
        own = stage.seconds - sum(each.seconds for each in cut)
        return index, [*cut, replace(stage, seconds=own)]

    def _sections(
        self, prompt: Prompt, index: Index, embedder: Embedder, room: int
    ) -> tuple[list[int], Stage]:
        """Numbers of the sections to look in: the first that are found, until their passages fill some rooms."""
        began = time.monotonic()
        sections, passages = index.outline.sections, index.outline.passages
        tokens = [0] * len(sections)
        for passage in passages:
            tokens[passage.section] += passage.tokens
        found = search(
            index, embedder, prompt.question, how=self.config.search, limit=len(sections), sections=True
        )
        taken: list[int] = []
        while len(taken) < len(found) and sum(tokens[n] for n in taken) < _SECTIONS_FOR * room:
            taken.append(found[len(taken)].number)
        stage = Stage(
            stage="sections",
            items_in=len(sections),
            items_out=len(taken),
            chars_in=sum(section.end_char - section.first_char for section in sections),
            chars_out=sum(sections[n].end_char - sections[n].first_char for n in taken),
            tokens_in=sum(tokens),
            tokens_out=sum(tokens[n] for n in taken),
            seconds=time.monotonic() - began,
            detail="; ".join(sections[n].title for n in taken[:3] if sections[n].title),
        )
        return taken, stage

    def _search(
        self, prompt: Prompt, index: Index, embedder: Embedder, room: int, within: Sequence[int] | None
    ) -> tuple[list[Found], Stage]:
        """The passages that the question finds, the best first.

        Raises:
            PromptError: it finds none.
        """
        began = time.monotonic()
        passages = index.outline.passages
        limit = max(_LEAST_FOUND, 2 * room // self.config.chunk)
        found = search(index, embedder, prompt.question, how=self.config.search, limit=limit, within=within)
        if not found:
            raise PromptError(
                f"prompt {prompt.id!r}: no passage of its document shares a word with the question; "
                "set context_strategy.rag.search=fused"
            )
        taken = [passages[each.number] for each in found]
        return found, stage_of("search", passages, taken, began, detail=self.config.search)

    def _reranked(
        self, prompt: Prompt, engine: Engine, passages: Sequence[Passage], found: Sequence[Found]
    ) -> tuple[list[Found], Stage]:
        """``found`` with its first in the order of how likely the model finds the question after each."""
        began = time.monotonic()
        first, rest = found[: self.config.rerank], found[self.config.rerank :]
        requests = [
            Request(f"{prompt.id} (passage {each.number})", _BEFORE, passages[each.number].text, _AFTER)
            for each in first
        ]
        likely = engine.log_likelihoods(requests, prompt.question)
        first = [replace(each, score=score) for each, score in zip(first, likely, strict=True)]
        ordered = sorted(first, key=lambda each: -each.score)
        texts = [passages[each.number] for each in first]
        said = "by the question's log-likelihood after each passage"
        return [*ordered, *rest], stage_of("rerank", texts, texts, began, detail=said)

    def _chosen(
        self, passages: Sequence[Passage], found: Sequence[Found], room: int
    ) -> tuple[list[int], list[int]]:
        """Numbers of the best passages found, and of those that stand beside them; the dearest first."""
        best: list[int] = []
        left = int(self.config.retrieved * room)
        for each in found[: self.config.passages]:
            if passages[each.number].tokens <= left:
                best.append(each.number)
                left -= passages[each.number].tokens
        beside: list[int] = []
        left = int(self.config.original * room)
        for number in (passage + step for passage in best for step in (-1, 1)):
            known = number in best or number in beside
            if 0 <= number < len(passages) and not known and passages[number].tokens <= left:
                beside.append(number)
                left -= passages[number].tokens
        return best, beside


def _evidence(document: str, passages: Sequence[Passage], numbers: Sequence[int]) -> str:
    """The passages as they stand in ``document``, in its order; those that meet or overlap are one piece."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        passage = passages[number]
        if spans and not document[spans[-1][1] : passage.first_char].strip():
            spans[-1] = (spans[-1][0], passage.end_char)
        else:
            spans.append((passage.first_char, passage.end_char))
    return _BETWEEN.join(document[first:end].strip() for first, end in spans)


def _excerpt(
    found: Outline, number: int, place: tuple[int, Found] | None, share: Literal["retrieved", "original"]
) -> Excerpt:
    """Passage ``number``, with its place among those that were found if it was."""
    passage = found.passages[number]
    rank, each = place or (None, None)
    return Excerpt(
        passage.first_char,
        passage.end_char,
        share,
        passage.text,
        rank=rank,
        score=each.score if each else None,
        section=found.sections[passage.section].title,
        dense_rank=each.dense_rank if each else None,
        bm25_rank=each.bm25_rank if each else None,
    )

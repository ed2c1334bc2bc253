"""``compress``: summaries of a document's chunks, and the passages closest to the question, in its place."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.context.base import Engine, Excerpt, PreparedPrompt, Request, Shortening, Stage
from runner.context.kept_texts import write_once
from runner.context.room import LEAST_TOKENS, room_of, shortened, whole
from runner.errors import PromptError
from runner.prompts import Prompt
from runner.retrieval.relevance import best_first, bm25
from runner.retrieval.splitting import split
from runner.strategy_config import CompressConfig

_SUMMARIES = "Summary of the document:\n"
_PASSAGES = "From the document itself:\n"
_PASSAGE_TOKENS = 128
_LEAST_PASSAGE = 16
"""A share of fewer tokens is for no passage."""

_SHRUNK = 0.9
"""Summaries of summaries that take more than this part of them end the rounds."""

_MARGIN = 8
"""Tokens that the parts of a request may take more together than one by one."""

_ABOUT_QUESTION = (
    "Here is a part of a long document. Write down what it says that helps to answer this question, in its own "
    "words, with every name and number as it stands there. If it says nothing about it, answer NONE.\n\n"
    "Question: {question}\n\nPart of the document:"
)
_ABOUT_DOCUMENT = (
    "Here is a part of a long document. Write down the facts that it states, in its own words, with every name "
    "and number as it stands there. If it states none, answer NONE.\n\nPart of the document:"
)
_AFTER = "What it says, in at most {words} words:"


@dataclass(frozen=True)
class _Piece:
    """A text of ``tokens`` that is, or is of, the document's characters from ``first_char`` to ``end_char``."""

    first_char: int
    end_char: int
    text: str
    tokens: int


@dataclass(frozen=True)
class _Shares:
    """Tokens of a room for summaries and for passages; with no summaries ``alone`` is for passages."""

    summaries: int
    passages: int
    alone: int


@dataclass(frozen=True)
class _Chosen:
    """The pieces that are sent, in the order of the document, each with its rank and score of ``among`` pieces."""

    pieces: tuple[tuple[_Piece, int, float], ...] = ()
    among: int = 0

    @property
    def left_out(self) -> int:
        return self.among - len(self.pieces)

    @property
    def texts(self) -> list[str]:
        return [piece.text for piece, _, _ in self.pieces]

    def without_last(self) -> _Chosen:
        """Without the one of the lowest rank."""
        last = max(rank for _, rank, _ in self.pieces)
        return _Chosen(tuple(each for each in self.pieces if each[1] != last), self.among)


@dataclass(frozen=True)
class Compress(Shortening):
    """Sends what the model wrote of every chunk, again of that until it fits, and the closest passages.

    What was written is kept in ``folder``: the same question, or with ``about="document"`` any, about the same
    document generates nothing more.
    """

    config: CompressConfig
    folder: Path

    name = "compress"

    def prepare(self, prompt: Prompt, engine: Engine) -> PreparedPrompt:
        """See :meth:`Strategy.prepare`."""
        full, fits = whole(prompt, engine, self.name)
        document = prompt.document
        if fits or document is None:
            return full
        room = room_of(prompt, engine)
        shares = self._shares(room, engine)
        pieces, stages = self._summaries(prompt, document, engine, shares.summaries)

        began = time.monotonic()
        summaries = _closest(prompt.question, pieces, shares.summaries)
        share = shares.passages if summaries.pieces else shares.alone
        passages = _Chosen()
        if share >= _LEAST_PASSAGE:
            known = _pieces(document, engine, min(_PASSAGE_TOKENS, share))
            passages = _closest(prompt.question, known, share)
        while engine.count(_evidence(summaries, passages)) > room:
            if len(summaries.pieces) > len(passages.pieces):
                summaries = summaries.without_last()
            else:
                passages = passages.without_last()
        evidence = _evidence(summaries, passages)
        if not evidence:
            raise PromptError(
                f"prompt {prompt.id!r}: nothing of its document has room in the {room} tokens left for it; "
                "raise context_strategy.compress.target or .original, or context_strategy.window"
            )
        stages.append(_assembled(pieces, summaries, passages, evidence, engine, time.monotonic() - began))
        return shortened(
            full,
            engine,
            self.name,
            evidence,
            stages=stages,
            excerpts=_excerpts(summaries, passages),
        )

    def prefill_tokens(self, items: Sequence[PreparedPrompt], engine: Engine) -> int:
        """See :meth:`Shortening.prefill_tokens`; summaries are taken to be as long as they may be."""
        total, known = 0, set()
        for item in items:
            room, asked = room_of(item.prompt, engine), len(item.question)
            total += asked + min(int(self.config.target * room) + int(self.config.original * room), room)
            if self.config.about == "document" and item.prompt.document_digest in known:
                continue
            known.add(item.prompt.document_digest)
            left = float(len(item.document))
            while True:
                total += int(left)
                left *= self.config.summary / self.config.chunk
                if left <= self.config.target * room:
                    break
        return total

    def _shares(self, room: int, engine: Engine) -> _Shares:
        left = room - engine.count(f"{_SUMMARIES}\n\n{_PASSAGES}")
        passages = min(int(self.config.original * room), left)
        summaries = min(int(self.config.target * room), left - passages)
        return _Shares(summaries, passages, alone=passages + summaries)

    def _summaries(
        self, prompt: Prompt, document: str, engine: Engine, limit: int
    ) -> tuple[list[_Piece], list[Stage]]:
        """What is written of all of ``document``, in rounds until it takes ``limit`` tokens or shrinks no more."""
        if self.config.about == "document":
            before = _ABOUT_DOCUMENT
            # Whatever is asked of a document it takes the same rounds, so that none is left to a later question.
            limit = int(self.config.target * (engine.window_tokens - engine.answer_tokens))
        else:
            before = _ABOUT_QUESTION.format(question=prompt.question)
        chunk = self._chunk(prompt, engine, before)
        began = time.monotonic()
        pieces = _pieces(document, engine, chunk)
        stages = [
            Stage(
                stage="split",
                items_in=1,
                items_out=len(pieces),
                chars_in=len(document),
                chars_out=_chars(pieces),
                tokens_in=engine.count(document),
                tokens_out=_tokens(pieces),
                seconds=time.monotonic() - began,
                detail=f"chunks of at most {chunk} tokens",
            )
        ]
        groups = [[piece] for piece in pieces]
        while groups:
            before_round = _tokens(pieces) if len(stages) > 1 else None
            pieces, stage = self._round(prompt, engine, before, groups, first=len(stages) == 1)
            stages.append(stage)
            total = _tokens(pieces)
            if total <= limit or (before_round is not None and total > _SHRUNK * before_round):
                break
            groups = self._groups(pieces, chunk, limit)
            if len(groups) == len(pieces):
                break
        return pieces, stages

    def _chunk(self, prompt: Prompt, engine: Engine, before: str) -> int:
        """Tokens of a chunk: with the request and the summary it fits the window.

        Raises:
            PromptError: the question leaves no room for one.
        """
        content = f"{before}\n\n\n\n{self._after}"
        request = engine.encode(prompt.id, [{"role": "user", "content": content}], None)
        around = len(request.document) + len(request.question) + _MARGIN
        room = engine.window_tokens - self.config.summary - around
        if room < LEAST_TOKENS:
            raise PromptError(
                f"prompt {prompt.id!r}: to ask what a part of its document says of the question takes "
                f"{around} tokens and the answer up to {self.config.summary}, which leaves {max(room, 0)} of the "
                f"strategy's window of {engine.window_tokens} for that part; shorten the question, lower "
                "context_strategy.compress.summary, set context_strategy.compress.about=document, or raise "
                "context_strategy.window"
            )
        return min(self.config.chunk, room)

    @property
    def _after(self) -> str:
        return _AFTER.format(words=self.config.summary // 2)

    def _groups(self, pieces: Sequence[_Piece], chunk: int, limit: int) -> list[list[_Piece]]:
        """Neighbours that are summarised together: of no more tokens than brings all of them to ``limit``.

        More would lose more than there is need to.
        """
        needed = _tokens(pieces) * self.config.summary // max(limit, 1)
        capacity = min(chunk, max(needed, 2 * max(piece.tokens for piece in pieces) + 2))
        groups: list[list[_Piece]] = []
        filled = capacity
        for piece in pieces:
            if filled + piece.tokens + 1 > capacity:
                groups.append([])
                filled = 0
            groups[-1].append(piece)
            filled += piece.tokens + 1
        return groups

    def _round(
        self, prompt: Prompt, engine: Engine, before: str, groups: Sequence[Sequence[_Piece]], *, first: bool
    ) -> tuple[list[_Piece], Stage]:
        """What is written of each group; one stays as it is where that is no shorter or, later, it is alone."""
        began = time.monotonic()
        asked = [number for number, group in enumerate(groups) if first or len(group) > 1]
        requests = [
            Request(
                id=f"{prompt.id} (summary {number})",
                before=before,
                text="\n".join(piece.text for piece in groups[number]),
                after=self._after,
            )
            for number in asked
        ]
        answers, cached = write_once(
            self.folder / "summaries",
            engine,
            requests,
            max_tokens=self.config.summary,
            together=self.config.together,
        )
        answer_of = dict(zip(asked, answers, strict=True))
        pieces: list[_Piece] = []
        nothing = 0
        for number, group in enumerate(groups):
            if number not in answer_of:
                pieces += group
                continue
            text = _said(answer_of[number].text)
            if not text:
                nothing += 1
                continue
            tokens = engine.count(text)
            if tokens < _tokens(group):
                pieces.append(_Piece(group[0].first_char, group[-1].end_char, text, tokens))
            else:
                pieces += group
        given = [piece for group in groups for piece in group]
        cut = sum(answer.cut for answer in answers)
        stage = Stage(
            stage="summarise",
            items_in=len(given),
            items_out=len(pieces),
            chars_in=_chars(given),
            chars_out=_chars(pieces),
            tokens_in=_tokens(given),
            tokens_out=_tokens(pieces),
            seconds=time.monotonic() - began,
            prefill_tokens=sum(answer.prefill_tokens for answer in answers),
            generated_tokens=sum(answer.generated_tokens for answer in answers),
            cached=cached,
            detail=(
                f"{len(requests)} requests; {nothing} found nothing, "
                f"{cut} were cut at {self.config.summary} tokens"
            ),
        )
        return pieces, stage


def _said(answer: str) -> str:
    """What was written, on one line; nothing where that says that there is nothing."""
    text = " ".join(answer.split())
    return "" if re.match(r"\W*NONE\b", text) or re.fullmatch(r"\W*none\W*", text, re.IGNORECASE) else text


def _pieces(document: str, engine: Engine, capacity: int) -> list[_Piece]:
    """``document`` in pieces of at most ``capacity`` tokens, none of them blank."""
    spans = split(document, engine.count, capacity)
    texts = [(span, document[span.first_char : span.end_char]) for span in spans]
    return [_Piece(s.first_char, s.end_char, text, engine.count(text)) for s, text in texts if text.strip()]


def _closest(question: str, pieces: Sequence[_Piece], limit: int) -> _Chosen:
    """The ``pieces`` that are closest to the question, as many as ``limit`` tokens hold with their line ends."""
    scores = bm25(question, [piece.text for piece in pieces])
    chosen: dict[int, int] = {}
    for rank, place in enumerate(best_first(scores)):
        if pieces[place].tokens + 1 <= limit:
            limit -= pieces[place].tokens + 1
            chosen[place] = rank
    return _Chosen(
        tuple((pieces[place], chosen[place], float(scores[place])) for place in sorted(chosen)), len(pieces)
    )


def _evidence(summaries: _Chosen, passages: _Chosen) -> str:
    parts = []
    if summaries.pieces:
        parts.append(_SUMMARIES + "\n".join(summaries.texts))
    if passages.pieces:
        parts.append(_PASSAGES + "\n".join(passages.texts))
    return "\n\n".join(parts)


def _assembled(
    pieces: Sequence[_Piece],
    summaries: _Chosen,
    passages: _Chosen,
    evidence: str,
    engine: Engine,
    seconds: float,
) -> Stage:
    """The row of the last stage, from all summaries to the text that is sent; it says what was left out."""
    return Stage(
        stage="assemble",
        items_in=len(pieces) + passages.among,
        items_out=len(summaries.pieces) + len(passages.pieces),
        chars_in=_chars(pieces),
        chars_out=len(evidence),
        tokens_in=_tokens(pieces),
        tokens_out=engine.count(evidence),
        seconds=seconds,
        detail=(
            f"{len(summaries.pieces)} summaries, {summaries.left_out} less close to the question left out; "
            f"{len(passages.pieces)} of {passages.among} passages"
        ),
    )


def _excerpts(summaries: _Chosen, passages: _Chosen) -> list[Excerpt]:
    """What is sent, in the order it is sent in."""
    return [
        Excerpt(
            piece.first_char,
            piece.end_char,
            "summary" if chosen is summaries else "original",
            piece.text,
            rank=rank,
            score=score,
        )
        for chosen in (summaries, passages)
        for piece, rank, score in chosen.pieces
    ]


def _tokens(pieces: Sequence[_Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _chars(pieces: Sequence[_Piece]) -> int:
    return sum(len(piece.text) for piece in pieces)

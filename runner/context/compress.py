"""``compress``: summaries of a document's chunks, and the passages closest to the question, in its place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.context.base import Engine, Excerpt, PreparedPrompt, Shortening, Stage
from runner.context.room import room_of, shortened, whole
from runner.context.stages import chars_of, tokens_of
from runner.context.summaries import Summaries, written_prefill
from runner.errors import PromptError
from runner.prompts import Prompt
from runner.retrieval.relevance import best_first, bm25
from runner.retrieval.splitting import Piece, cut
from runner.strategy_config import CompressConfig

_SUMMARIES = "Summary of the document:\n"
_PASSAGES = "From the document itself:\n"
_PASSAGE_TOKENS = 128
_LEAST_PASSAGE = 16
"""A share of fewer tokens is for no passage."""


@dataclass(frozen=True)
class _Shares:
    """Tokens of a room for summaries and for passages; with no summaries ``alone`` is for passages."""

    summaries: int
    passages: int
    alone: int


@dataclass(frozen=True)
class _Chosen:
    """The pieces that are sent, in the order of the document, each with its rank and score of ``among`` pieces."""

    pieces: tuple[tuple[Piece, int, float], ...] = ()
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
        pieces, stages = Summaries(self.config, self.folder / "summaries").write(
            prompt, document, engine, shares.summaries
        )

        began = time.monotonic()
        summaries = _closest(prompt.question, pieces, shares.summaries)
        share = shares.passages if summaries.pieces else shares.alone
        passages = _Chosen()
        if share >= _LEAST_PASSAGE:
            known = cut(document, engine.count, min(_PASSAGE_TOKENS, share))
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
            total += written_prefill(self.config, len(item.document), int(self.config.target * room))
        return total

    def _shares(self, room: int, engine: Engine) -> _Shares:
        left = room - engine.count(f"{_SUMMARIES}\n\n{_PASSAGES}")
        passages = min(int(self.config.original * room), left)
        summaries = min(int(self.config.target * room), left - passages)
        return _Shares(summaries, passages, alone=passages + summaries)


def _closest(question: str, pieces: Sequence[Piece], limit: int) -> _Chosen:
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
    pieces: Sequence[Piece],
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
        chars_in=chars_of(pieces),
        chars_out=len(evidence),
        tokens_in=tokens_of(pieces),
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

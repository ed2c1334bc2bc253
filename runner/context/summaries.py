"""What a model writes of all of a document, a chunk at a time, in rounds until that is short enough."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.context.base import Engine, Request, Stage
from runner.context.kept_texts import write_once
from runner.context.room import LEAST_TOKENS
from runner.context.stages import stage_of, tokens_of
from runner.errors import PromptError
from runner.prompts import Prompt
from runner.retrieval.splitting import Piece, cut
from runner.strategy_config import CompressConfig

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
class Summaries:
    """Writes them; what was written is kept in ``folder``."""

    config: CompressConfig
    folder: Path

    def write(
        self, prompt: Prompt, document: str, engine: Engine, limit: int
    ) -> tuple[list[Piece], list[Stage]]:
        """What is written of all of ``document``, in rounds until it takes ``limit`` tokens or shrinks no more."""
        if self.config.about == "document":
            before = _ABOUT_DOCUMENT
            # Whatever is asked of a document it takes the same rounds, so that none is left to a later question.
            limit = int(self.config.target * (engine.window_tokens - engine.answer_tokens))
        else:
            before = _ABOUT_QUESTION.format(question=prompt.question)
        chunk = self._chunk(prompt, engine, before)
        began = time.monotonic()
        pieces = cut(document, engine.count, chunk)
        whole = Piece(0, len(document), document, engine.count(document))
        stages = [stage_of("split", [whole], pieces, began, detail=f"chunks of at most {chunk} tokens")]
        groups = [[piece] for piece in pieces]
        while groups:
            before_round = tokens_of(pieces) if len(stages) > 1 else None
            pieces, stage = self._round(prompt, engine, before, groups, first=len(stages) == 1)
            stages.append(stage)
            total = tokens_of(pieces)
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

    def _groups(self, pieces: Sequence[Piece], chunk: int, limit: int) -> list[list[Piece]]:
        """Neighbours that are summarised together: of no more tokens than brings all of them to ``limit``.

        More would lose more than there is need to.
        """
        needed = tokens_of(pieces) * self.config.summary // max(limit, 1)
        capacity = min(chunk, max(needed, 2 * max(piece.tokens for piece in pieces) + 2))
        groups: list[list[Piece]] = []
        filled = capacity
        for piece in pieces:
            if filled + piece.tokens + 1 > capacity:
                groups.append([])
                filled = 0
            groups[-1].append(piece)
            filled += piece.tokens + 1
        return groups

    def _round(
        self, prompt: Prompt, engine: Engine, before: str, groups: Sequence[Sequence[Piece]], *, first: bool
    ) -> tuple[list[Piece], Stage]:
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
            self.folder,
            engine,
            requests,
            max_tokens=self.config.summary,
            together=self.config.together,
        )
        answer_of = dict(zip(asked, answers, strict=True))
        pieces: list[Piece] = []
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
            if tokens < tokens_of(group):
                pieces.append(Piece(group[0].first_char, group[-1].end_char, text, tokens))
            else:
                pieces += group
        given = [piece for group in groups for piece in group]
        short = sum(answer.cut for answer in answers)
        stage = stage_of(
            "summarise",
            given,
            pieces,
            began,
            detail=(
                f"{len(requests)} requests; {nothing} found nothing, "
                f"{short} were cut at {self.config.summary} tokens"
            ),
            answers=answers,
            cached=cached,
        )
        return pieces, stage


def written_prefill(config: CompressConfig, document_tokens: int, limit: int) -> int:
    """About how many tokens the rounds prefill, with summaries as long as they may be."""
    total, left, shrink = 0, document_tokens, config.summary / config.chunk
    while True:
        total += left
        left = int(left * shrink)
        if left <= limit or shrink > _SHRUNK:
            return total


def _said(answer: str) -> str:
    """What was written, on one line; nothing where that says that there is nothing."""
    text = " ".join(answer.split())
    return "" if re.match(r"\W*NONE\b", text) or re.fullmatch(r"\W*none\W*", text, re.IGNORECASE) else text

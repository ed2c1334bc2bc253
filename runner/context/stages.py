"""Rows of ``stages`` for steps from some pieces of a document to others."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runner.context.base import Stage, Written
from runner.retrieval.splitting import Piece


def tokens_of(pieces: Sequence[Piece]) -> int:
    """All of their tokens; what two share counts twice."""
    return sum(piece.tokens for piece in pieces)


def chars_of(pieces: Sequence[Piece]) -> int:
    """All of their characters; the same."""
    return sum(len(piece.text) for piece in pieces)


def stage_of(
    stage: str,
    given: Sequence[Piece],
    made: Sequence[Piece],
    began: float,
    *,
    detail: str,
    answers: Sequence[Written] = (),
    cached: bool = False,
) -> Stage:
    """The row of a step that ``began`` at that time of the monotonic clock and ends now."""
    return Stage(
        stage=stage,
        items_in=len(given),
        items_out=len(made),
        chars_in=chars_of(given),
        chars_out=chars_of(made),
        tokens_in=tokens_of(given),
        tokens_out=tokens_of(made),
        seconds=time.monotonic() - began,
        prefill_tokens=sum(answer.prefill_tokens for answer in answers),
        generated_tokens=sum(answer.generated_tokens for answer in answers),
        cached=cached,
        detail=detail,
    )

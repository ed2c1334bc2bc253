"""The ``context_strategy`` group: what happens to a prompt before the swarm sees it."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from runner.kv_mode import Count, Share

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

StrategyName = Literal["full", "compress", "rag", "auto"]
Search = Literal["fused", "dense", "bm25"]

WORDLLAMA = "wordllama"
"""The embedder that comes with the ``rag`` extra; any other is the path of an embedding model's GGUF file."""


@dataclass(frozen=True, config=_STRICT)
class CompressConfig:
    """``compress``: summaries of a document's chunks in place of the document.

    Chunks of ``chunk`` tokens are summarised in at most ``summary`` tokens each, ``together`` at once, ``about``
    the question or, for many questions, about the document itself; and the summaries again, until they take no
    more than ``target`` of the room. ``original`` of the room is for passages as they stand in the document, those
    that the question is closest to.
    """

    about: Literal["question", "document"] = "question"
    target: Annotated[float, Field(gt=0, le=1)] = 0.7
    original: Share = 0.2
    chunk: Annotated[int, Field(ge=64)] = 512
    summary: Annotated[int, Field(ge=16)] = 64
    together: Annotated[int, Field(ge=1, le=64)] = 8


@dataclass(frozen=True, config=_STRICT)
class RagConfig:
    """``rag``: the passages of a document that the question finds.

    Passages of ``chunk`` tokens, of which neighbours share up to ``overlap`` of that, are found by meaning
    (``dense``: the ``embedder``'s vectors), by words (``bm25``) or by both, fused. The first ``rerank`` are put in
    the order of how likely the model finds the question after each. ``retrieved`` of the room is for them, at most
    ``passages`` of them where that is given, and ``original`` for what stands beside the best in the document.
    ``sections`` narrows the search to the sections that are found first; ``auto`` does so in documents of
    ``sections_from`` tokens or more.
    """

    embedder: Annotated[str, Field(min_length=1)] = WORDLLAMA
    chunk: Annotated[int, Field(ge=16)] = 128
    overlap: Annotated[float, Field(ge=0, le=0.5)] = 0.25
    search: Search = "fused"
    rerank: Annotated[int, Field(ge=0)] = 0
    passages: Count | None = None
    retrieved: Annotated[float, Field(gt=0, le=1)] = 0.7
    original: Share = 0.2
    sections: Literal["auto", "on", "off"] = "auto"
    sections_from: Count = 100_000


@dataclass(frozen=True, config=_STRICT)
class StrategyConfig:
    """What happens to a prompt before the swarm sees it.

    ``window`` is how many tokens a prompt that was shortened may take together with its answer; None is the
    fixed window's length, else 8,192, and never more than the model was trained for. ``folder`` holds what is
    used again, indexes and summaries; None is in the user's cache.
    """

    name: StrategyName = "full"
    window: Annotated[int, Field(ge=256)] | None = None
    folder: str | None = None
    compress: CompressConfig = field(default_factory=CompressConfig)
    rag: RagConfig = field(default_factory=RagConfig)

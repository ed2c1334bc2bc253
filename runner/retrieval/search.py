"""Passages for a question: by meaning, by words, or both fused; in a long document by its sections first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.retrieval.embedders import Embedder
from runner.retrieval.index import Index
from runner.strategy_config import Search

_RRF_K = 60


@dataclass(frozen=True)
class Found:
    """A passage by its ``number``, and its places in the two searches, from 0; None where one did not find it.

    ``score`` is its sum of reciprocal ranks or, once it was reranked, the question's mean log-probability in nats.
    """

    number: int
    score: float
    dense_rank: int | None
    bm25_rank: int | None


def search(
    index: Index,
    embedder: Embedder,
    question: str,
    *,
    how: Search,
    limit: int,
    sections: bool = False,
    within: Sequence[int] | None = None,
) -> list[Found]:
    """The passages (or ``sections``) for ``question``, the best first, at most ``limit`` from each search.

    Reciprocal rank fusion: the score is the sum of 1 / (60 + rank) over the searches, with ranks from 1 (Cormack,
    Clarke & Büttcher 2009). Equal scores are in the order of the document.
    """
    dense: list[int] = []
    bm25: list[int] = []
    if how != "bm25":
        [vector] = embedder.embed([question])
        dense = index.by_meaning(vector, limit, sections=sections, within=within)
    if how != "dense":
        bm25 = index.by_words(question, limit, sections=sections, within=within)
    places = [{number: rank for rank, number in enumerate(ranks)} for ranks in (dense, bm25)]
    found = [
        Found(
            number,
            sum(1 / (_RRF_K + rank[number] + 1) for rank in places if number in rank),
            dense_rank=places[0].get(number),
            bm25_rank=places[1].get(number),
        )
        for number in sorted(places[0].keys() | places[1].keys())
    ]
    return sorted(found, key=lambda each: -each.score)

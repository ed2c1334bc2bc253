"""How often the passage with the answer is among the first k, apart from any model: dense, BM25 and both fused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.config import PromptsConfig, RecallConfig
from runner.prompts import Prompt, load_prompts
from runner.retrieval.embedders import WordLlamaEmbedder
from runner.retrieval.index import Index, IndexKey, open_index
from runner.retrieval.passages import outline
from runner.retrieval.search import search
from runner.strategy_config import Search

FACTS = 20
EMBEDDER = WordLlamaEmbedder()


def words(text: str) -> int:
    """About the tokens of a text."""
    return len(text.split()) * 4 // 3


@pytest.fixture(scope="module", params=["caravan", "pydoc"])
def asked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Index, list[Prompt]]]:
    """Twenty keyed facts of five kinds in 40,000 tokens, generated or of Python's manual, and their questions."""
    depths = [round(0.02 + 0.96 * n / (FACTS - 1), 3) for n in range(FACTS)]
    config = PromptsConfig(
        name="recall", tokens=40_000, count=FACTS, facts=FACTS, depths=depths,
        recall=RecallConfig(body=request.param),
    )  # fmt: skip
    prompts = load_prompts(config, words)
    document = str(prompts[0].document)
    key = IndexKey(str(prompts[0].document_digest), "words", EMBEDDER.name, 128, 32)
    folder: Path = tmp_path_factory.mktemp("indexes")
    index, _ = open_index(
        folder, key, EMBEDDER, document, lambda: outline(document, words, chunk=128, overlap=32)
    )
    yield index, prompts


def recall(index: Index, prompts: list[Prompt], how: Search, k: int, *, sections: bool = False) -> int:
    """For how many of ``prompts`` the fact about what is asked is in one of the first ``k`` passages."""
    right = 0
    for prompt in prompts:
        within = None
        if sections:
            ranked = search(index, EMBEDDER, prompt.question, how=how, limit=8, sections=True)
            within = [each.number for each in ranked[:8]]
        found = search(index, EMBEDDER, prompt.question, how=how, limit=max(k, 32), within=within)
        texts = [index.outline.passages[each.number].text for each in found[:k]]
        right += any(str(prompt.answer) in text for text in texts)
    return right


@pytest.mark.parametrize(("how", "k", "floor"), [("dense", 20, 14), ("bm25", 5, 18), ("fused", 20, 18)])
def test_recall_has_a_floor(asked: tuple[Index, list[Prompt]], how: Search, k: int, floor: int) -> None:
    index, prompts = asked
    assert len(prompts) == FACTS and len(index.outline.passages) > 200
    assert recall(index, prompts, how, k) >= floor


def test_fewer_are_found_by_chance(asked: tuple[Index, list[Prompt]]) -> None:
    index, prompts = asked
    others = prompts[7:] + prompts[:7]
    answers = [prompt.answer for prompt in others]
    found = [search(index, EMBEDDER, p.question, how="fused", limit=32)[:10] for p in prompts]
    right = sum(
        any(str(answer) in index.outline.passages[each.number].text for each in ranked)
        for answer, ranked in zip(answers, found, strict=True)
    )
    assert right < 14


def test_sections_first_finds_most_of_it(asked: tuple[Index, list[Prompt]]) -> None:
    index, prompts = asked
    assert recall(index, prompts, "fused", 10, sections=True) >= 15

"""Retrieval without a model: what is sent fits, stands in the document's order, and says how it was found."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from words import Words

from runner.context.base import PreparedPrompt
from runner.context.rag import Rag
from runner.errors import PromptError
from runner.prompts import Prompt
from runner.strategy_config import RagConfig

FACT = "The pass code of vault Q9 is 7503."
CONFIG = RagConfig(chunk=24)


def story(sentences: int, at: int = 5) -> str:
    said = [f"On day {day} the caravan traded {day * 7} bales of wool." for day in range(sentences)]
    return " ".join([*said[:at], FACT, *said[at:]])


def prepared(
    folder: Path,
    document: str | None,
    engine: Words,
    config: RagConfig = CONFIG,
    question: str = "What is the pass code of vault Q9?",
) -> PreparedPrompt:
    return Rag(config, folder).prepare(Prompt(id="p", prompt=question, document=document), engine)


def test_what_is_sent_fits_and_says_how_it_was_found(tmp_path: Path) -> None:
    engine, document = Words(), story(400, at=200)
    item = prepared(tmp_path, document, engine)
    assert item.strategy == "rag" and item.tokens_in > 4000
    assert item.tokens_sent + engine.answer_tokens <= engine.window_tokens
    assert item.evidence is not None and FACT in item.evidence
    found = [each for each in item.excerpts if each.share == "retrieved"]
    assert any(FACT in each.text and each.bm25_rank == 0 for each in found)
    assert all(each.rank is not None and each.score is not None for each in found)
    assert {each.share for each in item.excerpts} == {"retrieved", "original"}
    for each in item.excerpts:
        assert each.text == document[each.first_char : each.end_char]
        assert each.text in item.evidence
    assert all(a.first_char < b.first_char for a, b in itertools.pairwise(item.excerpts))
    places = [item.evidence.find(each.text) for each in item.excerpts]
    assert places == sorted(places) and -1 not in places
    room = engine.window_tokens
    assert sum(engine.count(each.text) for each in found) <= CONFIG.retrieved * room


def test_the_second_question_embeds_nothing(tmp_path: Path) -> None:
    first = prepared(tmp_path, story(400), Words())
    second = prepared(tmp_path, story(400), Words(), question="How many bales were traded on day 7?")
    assert [stage.stage for stage in first.stages] == ["split", "index", "search", "assemble"]
    assert [stage.stage for stage in second.stages] == ["index", "search", "assemble"]
    assert not first.stages[1].cached and second.stages[0].cached


def test_few_passages_are_few(tmp_path: Path) -> None:
    item = prepared(tmp_path, story(400), Words(), replace(CONFIG, passages=2, original=0))
    assert len(item.excerpts) == 2 and all(each.share == "retrieved" for each in item.excerpts)


def test_reranked_by_the_model_the_first_change_places(tmp_path: Path) -> None:
    plain = prepared(tmp_path, story(400), Words(), replace(CONFIG, search="dense", passages=8, original=0))
    config = replace(CONFIG, search="dense", passages=1, original=0, rerank=8)
    item = prepared(tmp_path, story(400), Words(), config)
    [best] = item.excerpts
    assert "rerank" in [stage.stage for stage in item.stages]
    said = {"What", "is", "the", "pass", "code", "of", "vault", "Q9"}
    likely = [len(said & {w.strip("?.,") for w in each.text.split()}) for each in plain.excerpts]
    assert best.score == max(likely)


@pytest.mark.parametrize("sections", ["on", "auto"])
def test_a_long_document_is_searched_by_its_sections(sections: str, tmp_path: Path) -> None:
    parts = [
        f"# Year {1800 + n}\n\n{story(150, at=n) if n == 9 else story(150).replace(FACT, '')}"
        for n in range(20)
    ]
    config = RagConfig(chunk=24, sections=sections, sections_from=5000)  # type: ignore[arg-type]
    item = prepared(tmp_path, "\n\n".join(parts), Words(), config)
    stage = next(stage for stage in item.stages if stage.stage == "sections")
    assert 0 < stage.items_out < stage.items_in
    found = next(each for each in item.excerpts if FACT in each.text)
    assert found.section == "Year 1809"


def test_what_fits_is_sent_whole(tmp_path: Path) -> None:
    item = prepared(tmp_path, story(10), Words())
    assert item.strategy == "full" and "fits the window" in item.reason
    assert prepared(tmp_path, None, Words()).reason == "rag: there is no document to shorten"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sentences=st.integers(30, 80),
    window=st.integers(80, 500),
    retrieved=st.floats(0.05, 1),
    original=st.floats(0, 1),
    chunk=st.integers(16, 120),
    overlap=st.floats(0, 0.5),
)
def test_whatever_the_shares_it_fits_or_says_why(
    tmp_path: Path, sentences: int, window: int, retrieved: float, original: float, chunk: int, overlap: float
) -> None:
    config = RagConfig(retrieved=retrieved, original=original, chunk=chunk, overlap=overlap)
    engine = Words(window_tokens=window)
    try:
        item = prepared(tmp_path, story(sentences), engine, config)
    except PromptError as error:
        assert "context_strategy" in str(error)
    else:
        assert item.tokens_sent + engine.answer_tokens <= window


@pytest.mark.parametrize(
    ("document", "question", "config", "says"),
    [
        (" \n ", "Who?", CONFIG, "document is blank"),
        (story(100), "why " * 400, CONFIG, "raise context_strategy.window"),
        (story(100), "Xyzzy?", replace(CONFIG, search="bm25"), "search=fused"),
    ],
)
def test_what_cannot_be_found_is_refused_in_a_line(
    tmp_path: Path, document: str, question: str, config: RagConfig, says: str
) -> None:
    with pytest.raises(PromptError, match=says):
        prepared(tmp_path, document, Words(), config, question)

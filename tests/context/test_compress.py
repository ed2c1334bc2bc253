"""Compression without a model: rounds that end, shares that hold, and nothing left out in silence."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from words import Words, first_words

from runner.context.base import PreparedPrompt
from runner.context.compress import Compress
from runner.errors import PromptError
from runner.prompts import Prompt
from runner.strategy_config import CompressConfig

FACT = "The pass code of vault Q9 is 7503."
CONFIG = CompressConfig(chunk=64, summary=16)


def story(sentences: int, at: int = 5) -> str:
    said = [f"On day {day} the caravan traded {day * 7} bales of wool." for day in range(sentences)]
    return " ".join([*said[:at], FACT, *said[at:]])


def prepared(
    folder: Path,
    document: str | None,
    engine: Words,
    config: CompressConfig = CONFIG,
    question: str = "What is the code of vault Q9?",
) -> PreparedPrompt:
    return Compress(config, folder).prepare(Prompt(id="p", prompt=question, document=document), engine)


def test_what_is_sent_fits_and_holds_what_is_asked_for(tmp_path: Path) -> None:
    engine, document = Words(), story(400)
    item = prepared(tmp_path, document, engine)
    assert item.strategy == "compress" and item.tokens_in > 4000
    assert item.tokens_sent + engine.answer_tokens <= engine.window_tokens
    assert item.evidence is not None and FACT in item.evidence
    for excerpt in item.excerpts:
        stands = document[excerpt.first_char : excerpt.end_char]
        assert excerpt.text in item.evidence
        assert (
            excerpt.text == stands if excerpt.share == "original" else first_words(excerpt.text, 3) in stands
        )
    assert {excerpt.share for excerpt in item.excerpts} == {"summary", "original"}


def test_summaries_are_summarised_until_they_fit_their_share(tmp_path: Path) -> None:
    engine = Words()
    item = prepared(tmp_path, story(400), engine)
    stages = [stage.stage for stage in item.stages]
    assert stages[0] == "split" and stages[-1] == "assemble" and stages.count("summarise") > 1
    rounds = [stage for stage in item.stages if stage.stage == "summarise"]
    assert all(after.tokens_in == before.tokens_out for before, after in itertools.pairwise(rounds))
    assert rounds[-1].tokens_out <= CONFIG.target * engine.window_tokens


def test_a_model_that_never_shortens_ends_the_rounds(tmp_path: Path) -> None:
    engine = Words(write=lambda text, most: text)
    item = prepared(tmp_path, story(100), engine)
    assert item.tokens_sent + engine.answer_tokens <= engine.window_tokens
    assert "left out" in item.stages[-1].detail and " 0 less close" not in item.stages[-1].detail


def test_what_says_nothing_leaves_its_room_to_passages(tmp_path: Path) -> None:
    item = prepared(tmp_path, story(100), Words(write=lambda text, most: "NONE."))
    assert {excerpt.share for excerpt in item.excerpts} == {"original"}
    assert item.evidence is not None and FACT in item.evidence
    assert "found nothing" in item.stages[1].detail


def test_what_fits_is_sent_whole(tmp_path: Path) -> None:
    engine = Words()
    item = prepared(tmp_path, story(10), engine)
    assert item.strategy == "full" and "fits the window" in item.reason and not engine.asked
    assert prepared(tmp_path, None, engine).reason == "compress: there is no document to shorten"


def test_about_the_document_any_question_is_served(tmp_path: Path) -> None:
    engine, config = Words(), replace(CONFIG, about="document")
    prepared(tmp_path, story(100), engine, config)
    asked = len(engine.asked)
    item = prepared(
        tmp_path, story(100), engine, config, question="How many bales were traded on the last day?"
    )
    assert len(engine.asked) == asked
    assert all(stage.cached for stage in item.stages if stage.stage == "summarise")
    assert not any("Q9" in request.before for request in engine.asked)


def test_about_the_question_each_is_asked_for_itself(tmp_path: Path) -> None:
    engine = Words()
    prepared(tmp_path, story(100), engine)
    asked = len(engine.asked)
    prepared(tmp_path, story(100), engine)
    assert len(engine.asked) == asked
    prepared(tmp_path, story(100), engine, question="Who traded wool?")
    assert len(engine.asked) > asked


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sentences=st.integers(0, 120),
    window=st.integers(120, 600),
    target=st.floats(0.05, 1),
    original=st.floats(0, 1),
    chunk=st.integers(64, 200),
    summary=st.integers(16, 40),
)
def test_whatever_the_shares_it_fits_or_says_why(
    tmp_path: Path, sentences: int, window: int, target: float, original: float, chunk: int, summary: int
) -> None:
    config = CompressConfig(target=target, original=original, chunk=chunk, summary=summary)
    engine = Words(window_tokens=window)
    try:
        item = prepared(tmp_path, story(sentences), engine, config)
    except PromptError as error:
        assert "context_strategy" in str(error)
    else:
        assert item.tokens_sent + engine.answer_tokens <= window


@pytest.mark.parametrize(
    ("document", "question", "says"),
    [
        (" \n ", "Who?", "document is blank"),
        (story(100), "why " * 400, "raise context_strategy.window"),
    ],
)
def test_what_cannot_be_shortened_is_refused_in_a_line(
    tmp_path: Path, document: str, question: str, says: str
) -> None:
    with pytest.raises(PromptError, match=says):
        prepared(tmp_path, document, Words(), question=question)

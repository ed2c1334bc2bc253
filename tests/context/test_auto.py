"""The choice between strategies: by what fits, then by what would be prefilled."""

from __future__ import annotations

from pathlib import Path

from words import Words

from runner.context.auto import Auto
from runner.context.base import PreparedPrompt, Reading
from runner.context.compress import Compress
from runner.context.full import Full
from runner.context.rag import Rag
from runner.prompts import Prompt
from runner.strategy_config import CompressConfig, RagConfig

DOCUMENT = " ".join(f"On day {day} the caravan traded {day * 7} bales of wool." for day in range(200))
QUESTIONS = [f"How many bales were traded on day {day}?" for day in range(6)]


def chosen(
    folder: Path, engine: Words, *, rag: bool = True, document: str | None = DOCUMENT
) -> list[PreparedPrompt]:
    prompts = [Prompt(id=str(n), prompt=q, document=document) for n, q in enumerate(QUESTIONS)]
    compress = Compress(CompressConfig(chunk=64, summary=16, about="document"), folder)
    strategies = (Rag(RagConfig(chunk=24), folder), compress) if rag else (compress,)
    auto = Auto(strategies, prompts)
    return [auto.prepare(prompt, engine) for prompt in prompts]


def test_what_fits_is_sent_whole_and_asked_once(tmp_path: Path) -> None:
    engine = Words()
    items = chosen(tmp_path, engine)
    assert {item.strategy for item in items} == {"full"} and engine.fits == 1
    assert all(item.reason.startswith("auto: ") and "tokens of" in item.reason for item in items)


def test_the_least_prefill_is_taken_and_the_others_are_named(tmp_path: Path) -> None:
    items = chosen(tmp_path, Words(memory=1000))
    assert {item.strategy for item in items} == {"rag"}
    assert "rag prefills the least" in items[0].reason and "compress" in items[0].reason
    assert "2008 tokens of 1000" in items[0].reason or "tokens of 1000" in items[0].reason


def test_a_guided_reading_is_taken_where_it_reads_once_for_all(tmp_path: Path) -> None:
    reading = Reading(("kv_mode=guided", "kv_mode.budget=512"), prefill_tokens=10)
    items = chosen(tmp_path, Words(memory=1000, reading=reading))
    assert {item.strategy for item in items} == {"full"}
    assert all(item.overrides == reading.overrides for item in items)
    assert "guided prefills the least" in items[0].reason
    dear = Reading(reading.overrides, prefill_tokens=10**6)
    items = chosen(tmp_path, Words(memory=1000, reading=dear))
    assert {item.strategy for item in items} == {"rag"} and "guided 1,000,000" in items[0].reason


def test_where_no_window_fits_only_a_guided_reading_does(tmp_path: Path) -> None:
    reading = Reading(("kv_mode=guided", "kv_mode.budget=512"), prefill_tokens=10**6)
    items = chosen(tmp_path, Words(memory=100, reading=reading))
    assert all(item.overrides for item in items) and "does not fit either" in items[0].reason


def test_without_the_extra_it_compresses(tmp_path: Path) -> None:
    items = chosen(tmp_path, Words(memory=1000), rag=False)
    assert {item.strategy for item in items} == {"compress"}


def test_a_prompt_without_a_document_is_sent_as_it_is(tmp_path: Path) -> None:
    items = chosen(tmp_path, Words(memory=1), document=None)
    assert {item.strategy for item in items} == {"full"} and not any(item.overrides for item in items)


def test_summaries_as_long_as_their_chunks_are_predicted_to_end(tmp_path: Path) -> None:
    compress = Compress(CompressConfig(chunk=64, summary=64), tmp_path)
    engine = Words()
    whole = Full().prepare(Prompt(id="p", prompt=QUESTIONS[0], document=DOCUMENT), engine)
    assert len(whole.document) <= compress.prefill_tokens([whole], engine) < 3 * len(whole.document)

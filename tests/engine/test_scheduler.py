"""What a person relies on of a swarm: one prefill, texts that repeat, answers that end where they should."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from swarm import SAMPLING, context, group, run, texts
from tiny_models import write_lfm2, write_qwen35moe

from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Group
from runner.engine.weights import Weights
from runner.errors import EngineError, Interrupted
from runner.progress import Progress

STORY = "The caravan left Orla at dawn with ninety bales of wool and crossed the river before noon. " * 5
Q1, Q2 = "How many bales were there?", "Where did the caravan start?"


@pytest.fixture(scope="module")
def alone(smol: Weights) -> list[str]:
    """The answers to Q1 about the story, with nothing else in the run."""
    with context(smol) as made:
        return texts(run(smol, made, [group(smol, "q1", Q1, STORY)])["q1"])


def test_prefilled_tokens_do_not_grow_with_the_swarm(smol: Weights) -> None:
    prefilled = []
    for workers in (1, 5):
        with context(smol, workers=workers) as made:
            asked = group(smol, "q1", Q1, STORY, workers)
            answers = run(smol, made, [asked])["q1"]
            prefilled.append(sum(answer.prefill_tokens for answer in answers))
            assert [answer.prompt_tokens for answer in answers] == [asked.prompt_tokens] * workers
    assert prefilled == [asked.prompt_tokens] * 2


def test_a_document_is_prefilled_once(smol: Weights) -> None:
    one, two = group(smol, "q1", Q1, STORY), group(smol, "q2", Q2, STORY)
    with context(smol) as made:
        answers = run(smol, made, [one, two])
    assert answers["q1"][0].prefill_tokens == one.prompt_tokens
    assert answers["q2"][0].prefill_tokens == len(two.question)


def test_texts_repeat(smol: Weights, alone: list[str]) -> None:
    with context(smol) as made:
        again = [texts(run(smol, made, [group(smol, "q1", Q1, STORY)])["q1"]) for _ in range(2)]
    assert again == [alone, alone]


def test_another_prompt_before_changes_nothing(smol: Weights, alone: list[str]) -> None:
    with context(smol) as made:
        answers = run(smol, made, [group(smol, "other", "Tell me of Rome."), group(smol, "q1", Q1, STORY)])
    assert texts(answers["q1"]) == alone


def test_a_shared_document_changes_nothing(smol: Weights, alone: list[str]) -> None:
    with context(smol) as made:
        answers = run(smol, made, [group(smol, "q2", Q2, STORY), group(smol, "q1", Q1, STORY)])
    assert answers["q1"][0].prefill_tokens < group(smol, "q1", Q1, STORY).prompt_tokens
    assert texts(answers["q1"]) == alone


def test_other_seeds_give_other_texts(smol: Weights, alone: list[str]) -> None:
    asked = group(smol, "q1", Q1, STORY)
    with context(smol) as made:
        hot = replace(SAMPLING, temperature=1.5)
        one = texts(run(smol, made, [asked], hot)["q1"])
        other = texts(run(smol, made, [replace(asked, seeds=(7, 8, 9))], hot)["q1"])
    assert len(set(one)) > 1
    assert one != other


@pytest.mark.parametrize("swa_full", [False, True])
def test_sliding_windows_share_documents_too(gemma: Weights, swa_full: bool) -> None:
    long = STORY * 8  # longer than the window of 512
    one, two = group(gemma, "q1", Q1, long), group(gemma, "q2", Q2, long)
    with context(gemma, cells=2048, n_ubatch=256, swa_full=swa_full) as made:
        assert len(one.document) > 600
        first = texts(run(gemma, made, [one])["q1"])
        after = run(gemma, made, [two, one])
    assert after["q1"][0].prefill_tokens == len(one.question)
    assert texts(after["q1"]) == first


def test_forked_sliding_windows_decode_on(gemma: Weights) -> None:
    """Forked cells of a small sliding-window cache are never free again: without care it runs full."""
    asked = group(gemma, "q1", "Once upon a time", STORY * 7, workers=8)
    sampling = replace(SAMPLING, max_tokens=100, ignore_eos=True, temperature=1.2)
    with context(gemma, cells=2048, workers=8, n_ubatch=256) as made:
        answers = run(gemma, made, [asked], sampling)["q1"]
    assert [answer.generated_tokens for answer in answers] == [100] * 8


@pytest.mark.parametrize("write", [write_qwen35moe, write_lfm2])
def test_hybrids_share_documents_too(write: object, tmp_path: Path) -> None:
    weights = Weights(write(tmp_path / "tiny.gguf"))  # type: ignore[operator]
    one, two = group(weights, "q1", Q1, STORY), group(weights, "q2", Q2, STORY)
    # Random weights are sure of themselves: only a hot sampler lets the seeds, and any difference, show.
    hot = replace(SAMPLING, temperature=10, top_k=0, top_p=1.0, min_p=0.0)
    with context(weights) as made:
        first = run(weights, made, [one], hot)["q1"]
        after = run(weights, made, [two, one], hot)["q1"]
    assert after[0].prefill_tokens == len(one.question)
    assert texts(after) == texts(first)
    assert [a.mean_logprob for a in after] == [a.mean_logprob for a in first]
    assert len(set(texts(first))) > 1
    weights.close()


def continued(asked: Group, more: str, weights: Weights) -> Group:
    """The same question after a document that goes on with ``more``."""
    tail = weights.tokenize(more, add_special=False, parse_special=False)
    return replace(asked, document=asked.document + tuple(tail))


def test_a_kept_document_is_extended(smol: Weights) -> None:
    """Without flash attention, whose sums depend on where batches end, to the same last digit."""
    short = group(smol, "q1", Q1, STORY)
    long = continued(short, STORY, smol)
    with context(smol, flash_attn=False) as made:
        fresh = run(smol, made, [long])["q1"]
        scheduler = Scheduler(smol, made, SAMPLING)
        for asked in (short, long, long, short):
            [(_, answers)] = scheduler.run([asked], keep=True)
            prefilled = answers[0].prefill_tokens
            if asked == long:
                assert texts(answers) == texts(fresh)
                assert [a.mean_logprob for a in answers] == [a.mean_logprob for a in fresh]
                assert prefilled in (
                    len(long.document) - len(short.document) + len(long.question),
                    len(long.question),
                )
        # What no group goes on from is dropped, never cut back.
        assert prefilled == short.prompt_tokens
        assert texts(run(smol, made, [long])["q1"]) == texts(fresh)


def test_a_kept_document_slides_on(gemma: Weights) -> None:
    """Past the window of 512, with forks of it in between, in a small cache that does not forget it."""
    short = group(gemma, "q1", Q1, STORY * 5)
    long = continued(short, STORY * 4, gemma)
    greedy = replace(SAMPLING, temperature=0.0, max_tokens=12)
    with context(gemma, cells=2048, n_ubatch=256, flash_attn=False) as made:
        fresh = texts(run(gemma, made, [long], greedy)["q1"])
        scheduler = Scheduler(gemma, made, greedy)
        [_] = scheduler.run([short], keep=True)
        [(_, answers)] = scheduler.run([long], keep=True)
    assert len(short.document) < 512 < len(long.document)
    assert answers[0].prefill_tokens == long.prompt_tokens - len(short.document)
    assert texts(answers) == fresh


def test_prefilling_again_is_growth(smol: Weights) -> None:
    asked, progress = group(smol, "q1", Q1, STORY), Progress()
    with context(smol) as made:
        phases = []

        def watch() -> bool:
            phases.append(progress.phase)
            return False

        scheduler = Scheduler(smol, made, SAMPLING, progress=progress, stopping=watch)
        [(_, answers)] = scheduler.run([asked], held=70)
    # Chunks of 64: 64 and 6 that were there before, then what is new.
    assert [phase for phase in phases if phase in ("grow", "prefill")][:3] == ["grow", "grow", "prefill"]
    assert answers[0].prefill_tokens == asked.prompt_tokens
    assert 0 < progress.grow_s < progress.prefill_s
    assert progress.decode_steps == max(a.generated_tokens for a in answers) - 1


def test_several_in_flight_answer_everything(smol: Weights) -> None:
    asked = [group(smol, f"q{i}", f"What is {i} and {i}?", STORY if i % 2 else "") for i in range(5)]
    with context(smol, in_flight=2, cells=2048) as made:
        answers = run(smol, made, asked, in_flight=2)
    assert {name: len(answer) for name, answer in answers.items()} == {f"q{i}": 3 for i in range(5)}
    document = len(asked[1].document)
    assert sum(a.prefill_tokens for group_ in answers.values() for a in group_) == (
        sum(g.prompt_tokens for g in asked) - document
    )


def test_finished_sequences_make_room_for_the_next_prompt(smol: Weights) -> None:
    """Two groups of four and a third one: it is prefilled beside them as soon as enough workers are done."""
    asked = [group(smol, f"q{i}", f"Say {i}.", workers=4) for i in range(3)]
    grammar = 'root ::= "a" | "b" | "a b c d e f g h i j k l m n o p q r s t u v w x y z"'
    sampling = replace(
        SAMPLING, max_tokens=60, grammar=grammar, temperature=3.0, top_p=1.0, min_p=0.0, top_k=0
    )
    for in_flight, at_once in ((2, 3), (1, 1)):
        running: list[int] = []

        def watch() -> bool:
            running.append(len(scheduler._running))  # noqa: B023 - both are this round's
            return False

        with context(smol, workers=4, in_flight=in_flight) as made:
            scheduler = Scheduler(smol, made, sampling, in_flight=in_flight, stopping=watch)
            done = [finished.prompt_id for finished, _ in scheduler.run(asked)]
        assert sorted(done) == ["q0", "q1", "q2"]
        assert max(running) == at_once


def test_answers_end_at_stop_strings(smol: Weights) -> None:
    sampling = replace(SAMPLING, temperature=0, max_tokens=40)
    with context(smol) as made:
        whole = run(smol, made, [group(smol, "q1", Q1, STORY)], sampling)["q1"][0]
        word = whole.text.split()[3]
        cut = run(smol, made, [group(smol, "q1", Q1, STORY)], replace(sampling, stop=[word]))["q1"][0]
    assert cut.text == whole.text[: whole.text.index(word)]
    assert (cut.finish_reason, cut.status) == ("stop", "ok")


def test_answers_end_at_their_length(smol: Weights) -> None:
    with context(smol) as made:
        answers = run(smol, made, [group(smol, "q1", Q1)], replace(SAMPLING, max_tokens=1))["q1"]
    assert {(a.generated_tokens, a.finish_reason, a.status) for a in answers} == {(1, "length", "truncated")}
    assert all(answer.mean_logprob is not None and answer.mean_logprob <= 0 for answer in answers)


def test_characters_spread_over_tokens_come_out_whole(smol: Weights) -> None:
    grammar = 'root ::= "日本語と🦙🧪 é ñ"'
    with context(smol) as made:
        answers = run(smol, made, [group(smol, "q1", Q1)], replace(SAMPLING, max_tokens=64, grammar=grammar))[
            "q1"
        ]
    assert texts(answers) == ["日本語と🦙🧪 é ñ"] * 3
    assert answers[0].generated_tokens > len("日本語と🦙🧪 é ñ")


def test_logprobs_are_the_models_own(smol: Weights) -> None:
    """Greedy's mean log-probability does not depend on the sampler's temperature or penalties."""
    one = replace(SAMPLING, temperature=0)
    with context(smol, workers=1) as made:
        asked = [group(smol, "q1", Q1, STORY, 1)]
        plain, sharp = (run(smol, made, asked, s)["q1"][0] for s in (one, replace(one, top_k=1)))
    assert plain.mean_logprob == pytest.approx(sharp.mean_logprob)
    assert plain.mean_logprob is not None and -3 < plain.mean_logprob < 0


def test_a_callback_that_raises_ends_the_run_with_its_error(smol: Weights) -> None:
    def broken(_: int, ask: bool) -> bool:
        raise ZeroDivisionError("in the callback")

    with context(smol, callback=broken) as made, pytest.raises(ZeroDivisionError, match="in the callback"):
        run(smol, made, [group(smol, "q1", Q1)])


@pytest.mark.parametrize(("batches", "cut"), [(0, 0), (2, 0), (7, 3)])
def test_an_interrupt_gives_the_rows_in_hand(batches: int, cut: int, smol: Weights) -> None:
    """Before anything, during prefill, and during decode: only the last has answers, marked as cut short."""
    asked = group(smol, "q1", Q1, STORY)
    chunks = -(-len(asked.document) // 64) + 1
    assert 2 < chunks < 7
    turns = count()
    with context(smol) as made:
        long = replace(SAMPLING, max_tokens=50, ignore_eos=True)
        scheduler = Scheduler(smol, made, long, stopping=lambda: next(turns) >= batches)
        got = []
        with pytest.raises(Interrupted):
            for _, generations in scheduler.run([asked, group(smol, "q2", Q2)]):
                got += generations
        assert [(g.status, g.finish_reason) for g in got] == [("interrupted", "interrupted")] * cut
        assert texts(run(smol, made, [asked])["q1"])  # the context is fit for another run


def test_too_long_a_batch_is_an_error_not_an_abort(smol: Weights) -> None:
    with context(smol) as made, pytest.raises(EngineError, match="65 tokens; this context takes 1 to 64"):
        made.decode([1] * 65, range(65), [0] * 65, [False] * 65)


def test_a_full_cache_is_an_error(smol: Weights) -> None:
    with context(smol, cells=256) as made, pytest.raises(EngineError, match="no 64 free cells among 256"):
        for start in range(0, 512, 64):
            made.decode([1] * 64, range(start, start + 64), [0] * 64, [False] * 64)

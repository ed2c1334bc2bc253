"""Documents read with a question in mind, by a swarm: who shares a reading, and that nothing else is shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from evicting import evicting, params
from swarm import texts
from tiny_models import write_llama

from runner.config import SamplingConfig
from runner.context import PreparedPrompt, with_probes
from runner.context.full import Full
from runner.engine.chat import PromptFormat
from runner.engine.eviction import EvictingContext
from runner.engine.reading import Reading
from runner.engine.scheduler import Scheduler
from runner.engine.sequence import Generation
from runner.engine.weights import Weights
from runner.errors import Interrupted, PromptError
from runner.kv_mode import GuidedConfig, KvModeConfig, ProbeConfig
from runner.prompts import Prompt
from runner.workers.diversity import Diversity
from runner.workers.shared import group_of, groups_of, run_swarm

BUDGET, CHUNK, INTERVAL = 96, 64, 8
HOT = SamplingConfig(max_tokens=10, temperature=2, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
DOCUMENT = " ".join(f"On day {day} {day * 37 % 91} bales of salt." for day in range(10))
QUESTIONS = {"a": "How much salt?", "b": "Which day?", "c": "Why?"}
DIVERSITY = Diversity(budget=BUDGET, least=20, chunk=CHUNK)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weights]:
    """With a head of its own it is unsure of itself: any difference shows in what is sampled, and how likely."""
    weights = Weights(write_llama(tmp_path_factory.mktemp("tiny") / "llama.gguf", untied=1))
    yield weights
    weights.close()


def asked(
    weights: Weights, names: str = "abc", *, document: str | None = DOCUMENT, probes: Sequence[str] = (),
    share: str = "question", **probe: object,
) -> list[PreparedPrompt]:  # fmt: skip
    """Prepared prompts as a job has them, in the order of ``names``."""
    mode = KvModeConfig(
        policy="guided", probe=ProbeConfig(**probe), guided=GuidedConfig(share=share)  # type: ignore[arg-type]
    )  # fmt: skip
    form = PromptFormat(weights)
    prompts = [
        Prompt(id=name, prompt=QUESTIONS[name], document=document, probes=list(probes)) for name in names
    ]
    return with_probes([Full().prepare(prompt, form) for prompt in prompts], form, mode)


@contextmanager
def guided(weights: Weights, *, workers: int = 3, budget: int = BUDGET) -> Iterator[EvictingContext]:
    wanted = params(512, sequences=workers + 1)
    with evicting(
        weights, wanted, "guided", budget=budget, chunk=CHUNK, interval=INTERVAL, compact=True
    ) as made:
        yield made


def answers(
    context: EvictingContext, prepared: Sequence[PreparedPrompt], *, workers: int = 3,
    sampling: SamplingConfig = HOT, diversity: Diversity | None = None,
) -> dict[str, list[Generation]]:  # fmt: skip
    scheduler = Scheduler(context.weights, context, sampling)
    swarm = run_swarm(scheduler, prepared, workers=workers, seed=0, diversity=diversity)
    return {item.prompt.id: generations for item, generations in swarm}


def told(generations: Sequence[Generation]) -> list[tuple[str, float | None]]:
    """What must be equal, to the last bit, of workers that did the same."""
    return [(generation.text, generation.mean_logprob) for generation in generations]


def prefilled(found: dict[str, list[Generation]]) -> dict[str, int]:
    return {name: sum(g.prefill_tokens for g in generations) for name, generations in found.items()}


def vaults(weights: Weights, names: Sequence[str] = ("T6", "Q9")) -> list[PreparedPrompt]:
    """Two facts in a document that is twice the budget, and a question for each."""
    traded = [f"On day {day} they traded {day * 37 % 91} bales of wool." for day in range(14)]
    traded[3:3] = ["The pass code of vault T6 is 4821."]
    traded[8:8] = ["The pass code of vault Q9 is 7350."]
    form = PromptFormat(weights)
    prompts = [
        Prompt(id=name, document=" ".join(traded), prompt=f"What is the pass code of vault {name}?")
        for name in names
    ]
    mode = KvModeConfig(policy="guided", guided=GuidedConfig(share="group"))
    return with_probes([Full().prepare(prompt, form) for prompt in prompts], form, mode)


# -- one reading for a question, or for all of a document ---------------------------------------------------


def test_each_question_has_a_reading_of_its_own(tiny: Weights) -> None:
    """And the texts that it has in a job of its own."""
    prepared = asked(tiny)
    with guided(tiny) as context:
        together = answers(context, prepared)
        alone = {item.prompt.id: answers(context, [item])[item.prompt.id] for item in prepared}
    assert prefilled(together) == {item.prompt.id: item.tokens_sent for item in prepared}
    assert {name: told(group) for name, group in together.items()} == {
        name: told(group) for name, group in alone.items()
    }
    assert len({said for group in together.values() for said in told(group)}) == 9


def test_a_group_shares_one_reading(tiny: Weights) -> None:
    """Every question is answered from the same cells, whichever come before it, or none."""
    prepared = {item.prompt.id: item for item in asked(tiny, share="group")}
    assert len({item.probes for item in prepared.values()}) == 1
    seen = []
    with guided(tiny) as context:
        for order in ("abc", "cab", "b"):
            found = answers(context, [prepared[name] for name in order])
            lengths = {name: len(prepared[name].question) for name in order}
            lengths[order[0]] += len(prepared["a"].document)
            assert prefilled(found) == lengths
            seen.append({name: told(group) for name, group in found.items()})
    assert seen[0] == seen[1]
    assert seen[2]["b"] == seen[0]["b"]


def test_the_order_of_prompts_is_not_that_of_probes(tiny: Weights) -> None:
    [first, *_], [second, *_] = asked(tiny, "abc", share="group"), asked(tiny, "cba", share="group")
    assert first.probes == second.probes
    assert {item.question for item in asked(tiny)} == set(first.probes)


def test_documents_read_otherwise_are_not_shared(tiny: Weights) -> None:
    """A document that an earlier run kept, read for another question, is dropped and read again."""
    [one, other] = [group_of(item, workers=1, seed=0) for item in asked(tiny, "ab")]
    with guided(tiny) as context:
        scheduler = Scheduler(tiny, context, HOT)
        [[expected]] = [generations for _, generations in scheduler.run([other])]
        tokens = []
        for group in (one, other, other):
            [[answer]] = [generations for _, generations in scheduler.run([group], keep=True)]
            tokens.append(answer.prefill_tokens)
        assert context.cells_used <= BUDGET + len(other.question)
    assert tokens == [one.prompt_tokens, other.prompt_tokens, len(other.question)]
    assert told([answer]) == told([expected])


def test_that_holds_for_a_real_model(smol: Weights) -> None:
    prepared = vaults(smol)
    greedy, seen = SamplingConfig(temperature=0, max_tokens=6), []
    for order in (prepared, prepared[::-1]):
        with evicting(
            smol, params(256, sequences=2), "guided", budget=96, chunk=CHUNK, pool=7, compact=True
        ) as context:  # fmt: skip
            found = answers(context, order, workers=1, sampling=greedy)
        assert prefilled(found)[order[1].prompt.id] == len(order[1].question)
        seen.append({name: told(group) for name, group in found.items()})
    assert seen[0] == seen[1]
    assert seen[0][order[0].prompt.id] != seen[0][order[1].prompt.id]


# -- workers that read for themselves -----------------------------------------------------------------------


def test_diverse_workers_read_for_themselves(tiny: Weights) -> None:
    """Each has its own budget, first chunk and prefill, and says what it says alone."""
    [item] = prepared = asked(tiny, "a")
    groups = groups_of(item, workers=3, seed=0, diversity=DIVERSITY)
    assert [(g.reading.budget, g.reading.first_chunk) for g in groups] == [(None, None), (86, 43), (76, 22)]
    with guided(tiny) as context:
        swarm = answers(context, prepared, diversity=DIVERSITY)["a"]
        rounds = context.take_rounds()
        alone = []
        for group in reversed(groups):
            [(_, generations)] = Scheduler(tiny, context, HOT).run([group])
            alone += generations
        one_reading = answers(context, prepared)["a"]
    assert [g.worker for g in swarm] == [0, 1, 2]
    assert [g.prefill_tokens for g in swarm] == [item.tokens_sent] * 3
    assert told(swarm) == told(alone[::-1])
    assert [g.seed for g in swarm] == [g.seed for g in one_reading]
    # Worker 0 reads as all do where they do not differ.
    assert texts(swarm)[0] == texts(one_reading)[0]
    assert texts(swarm)[1:] != texts(one_reading)[1:]
    first = [n for n, r in enumerate(rounds) if r.phase == "prefill" and r.chunk_tokens > CHUNK]
    starts = [rounds[n].position for n in first]
    assert starts == [2 * CHUNK, CHUNK + 43, CHUNK + 22]
    assert {rounds[n].kept_cells for n in first} == {96, 86, 76}


def test_diverse_workers_share_a_group_s_readings(tiny: Weights) -> None:
    """As many readings as workers, however many questions."""
    prepared = asked(tiny, share="group")
    with guided(tiny) as context:
        found = answers(context, prepared, diversity=DIVERSITY)
        again = answers(context, [prepared[1]], diversity=DIVERSITY)
    document = len(prepared[0].document)
    assert prefilled(found) == {
        item.prompt.id: 3 * (len(item.question) + document * (item is prepared[0])) for item in prepared
    }
    assert told(again["b"]) == told(found["b"])


def test_diverse_workers_take_turns_with_probes(tiny: Weights) -> None:
    [item] = asked(tiny, "a", texts=["{question}", "Find this: {question}"])
    assert [len(of_text) for of_text in item.probes_by_text] == [1, 1]
    readings = [DIVERSITY.reading(item, worker, 6) for worker in range(6)]
    assert [reading.probes for reading in readings[:3]] == [*item.probes_by_text, item.probes_by_text[0]]
    assert len(set(readings)) == 6
    budgets = [BUDGET if reading.budget is None else reading.budget for reading in readings]
    assert budgets == [96, 86, 76, 67, 96, 86]
    crowd = [DIVERSITY.reading(item, worker, 200) for worker in range(200)]
    assert {reading.first_chunk for reading in crowd[1:]} == set(range(1, CHUNK + 1))
    narrow = replace(DIVERSITY, least=90)
    assert [narrow.reading(item, worker, 3).budget for worker in range(3)] == [None, 90, 90]


def test_an_interrupt_leaves_the_answers_of_those_who_have_read(tiny: Weights) -> None:
    """Worker 0 is done, worker 1 is cut while it decodes, worker 2 has not begun; a second prompt neither."""
    prepared = asked(tiny, "ab")
    with guided(tiny) as context:
        whole = answers(context, prepared, diversity=DIVERSITY)["a"]
        turns, done = count(), []
        scheduler = Scheduler(tiny, context, HOT, stopping=lambda: next(turns) >= stop)
        batches = [
            -(-(len(prepared[0].document) + CHUNK - first) // CHUNK) + -(-len(prepared[0].question) // CHUNK)
            for first in (CHUNK, 43)
        ]
        stop = batches[0] + 9 + batches[1] + 4
        with pytest.raises(Interrupted):
            for item, generations in run_swarm(scheduler, prepared, workers=3, seed=0, diversity=DIVERSITY):
                done.append((item.prompt.id, generations))
        assert scheduler.progress.groups_done == 0
        again = answers(context, prepared, diversity=DIVERSITY)["a"]
    [(name, cut)] = done
    assert name == "a"
    assert [(g.worker, g.status, g.generated_tokens) for g in cut] == [
        (0, "ok" if whole[0].status == "ok" else "truncated", 10),
        (1, "interrupted", 5),
        (2, "interrupted", 0),
    ]
    assert [g.seed for g in cut] == [g.seed for g in whole]
    assert cut[0].text == whole[0].text
    assert told(again) == told(whole)


# -- long answers -------------------------------------------------------------------------------------------


def test_long_answers_stay_within_the_budget(tiny: Weights) -> None:
    """Evicted by the policy every interval; without a sampler's chance all workers say what one says alone."""
    prepared, long = asked(tiny, "a"), 5 * INTERVAL
    greedy = replace(HOT, temperature=0, max_tokens=long)
    said = {}
    for workers in (3, 1):
        seen: list[tuple[int, int]] = []

        def watch() -> bool:
            table = context.table
            cells = table.owners[: workers + 1].sum(axis=1).max()  # noqa: B023
            seen.append((int(table.nominal.max()), int(cells)))  # noqa: B023
            return False

        with guided(tiny, workers=workers) as context:
            scheduler = Scheduler(tiny, context, greedy, stopping=watch)
            [(_, group)] = run_swarm(scheduler, prepared, workers=workers, seed=0)
            rounds = [r for r in context.take_rounds() if r.phase == "decode"]
        said[workers] = group
        assert {(r.kept_cells, r.dropped_cells) for r in rounds} == {(BUDGET, INTERVAL)}
        assert len(rounds) >= 4
        positions, cells = np.max(seen, axis=0)
        assert positions < BUDGET + CHUNK + long
        assert cells == BUDGET + INTERVAL - 1
    assert texts(said[3]) == texts(said[1]) * 3
    likely = [answer.mean_logprob for answer in said[3]]
    assert likely == pytest.approx([said[1][0].mean_logprob] * 3, rel=0.02)


# -- what is asked, and when --------------------------------------------------------------------------------


def read(context: EvictingContext, tokens: Sequence[int], probes: Sequence[tuple[int, ...]]) -> list[int]:
    """A document chunk by chunk, as the scheduler does it; the tokens that each chunk's probes took."""
    context.begin(Reading(probes=tuple(probes)))
    took = []
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        places, last = range(start, start + len(part)), start + len(part) == len(tokens)
        context.decode(part, places, [0] * len(part), [False] * len(part))
        took.append(context.probe(0, 1, last=last))
        context.evict([0], "prefill")
    return took


def test_probes_are_the_questions_as_they_are_asked(tiny: Weights) -> None:
    form = PromptFormat(tiny)

    def question(content: str) -> tuple[int, ...]:
        return form.encode("a", [{"role": "user", "content": content}], DOCUMENT).question

    [plain] = asked(tiny, "a")
    assert plain.probes == (plain.question,)
    [worded] = asked(tiny, "a", texts=["{question}", "In brief: {question} {question}"], answer=" It is")
    answer = form.tokens(" It is")
    assert worded.probes == (
        question("How much salt?") + answer, question("In brief: How much salt? How much salt?") + answer
    )  # fmt: skip
    [own] = asked(tiny, "a", probes=["Salt?", "Bales?", "Salt?"], texts=["{question}", "-{question}"])
    assert own.question == plain.question
    assert own.probes == tuple(map(question, ("Salt?", "Bales?", "-Salt?", "-Bales?")))
    with pytest.raises(PromptError, match=r"prompt 'a' has no document .* give its long part as `document`"):
        asked(tiny, "a", document=None)


def test_every_other_chunk_is_probed_and_the_last(tiny: Weights) -> None:
    """Counted from the first that must be cut down, of which no probe has seen anything."""
    [item] = asked(tiny, "a")
    probe = len(item.question)
    expected = {1: [0, 1, 1, 1, 1], 2: [0, 1, 0, 1, 1], 3: [0, 1, 0, 0, 1], 9: [0, 1, 0, 0, 1]}
    for every, took in expected.items():
        with evicting(tiny, params(256, sequences=2), "guided", budget=BUDGET, probe_every=every) as context:
            assert read(context, item.document[: 4 * CHUNK + 9], item.probes) == [probe * n for n in took]


def test_earlier_probes_fade(tiny: Weights) -> None:
    [item] = asked(tiny, "a")
    found = {}
    for decay in (0.0, 0.5):
        with evicting(tiny, params(256, sequences=2), "guided", budget=BUDGET, probe_decay=decay) as context:
            read(context, item.document[: 2 * CHUNK], item.probes)
            cells = context.table.held([0])
            before = context.table.asked[:, cells].copy()
            tokens, start = item.document[2 * CHUNK : 3 * CHUNK], 2 * CHUNK
            context.decode(tokens, range(start, start + CHUNK), [0] * CHUNK, [False] * CHUNK)
            context.probe(0, 1, last=False)
            found[decay] = before, context.table.asked[:, cells].copy()
    (earlier, fresh), (same, both) = found.values()
    np.testing.assert_array_equal(earlier, same)
    assert (earlier > 0).mean() > 0.9
    np.testing.assert_allclose(both, fresh + 0.5 * earlier, rtol=1e-5)


def test_the_most_that_any_probe_gave_counts(tiny: Weights) -> None:
    items = asked(tiny, "ab")
    [one], [other] = (item.probes for item in items)
    found = []
    for probes in ((one,), (other,), (one, other)):
        with evicting(tiny, params(256, sequences=2), "guided", budget=32) as context:
            tokens = items[0].document[:CHUNK]
            context.decode(tokens, range(CHUNK), [0] * CHUNK, [False] * CHUNK)
            context.begin(Reading(probes=probes))
            assert context.probe(0, 1, last=False) == sum(map(len, probes))
            assert context.cells_used == CHUNK
            found.append(context.table.asked[:, context.table.held([0])].copy())
    assert (found[0] > found[1]).any()
    assert (found[0] < found[1]).any()
    np.testing.assert_allclose(found[2], np.maximum(found[0], found[1]), rtol=1e-3, atol=1e-5)


def test_a_probe_every_other_chunk_finds_the_same_fact(smol: Weights) -> None:
    """Where what was not asked about is still recent when it is."""
    traded = [f"On day {day} they traded {day * 37 % 91} bales of wool." for day in range(18)]
    traded[3:3] = ["The pass code of vault T6 is 4821."]
    form = PromptFormat(smol)
    prompt = Prompt(id="T6", document=" ".join(traded), prompt="What is the pass code of vault T6?")
    prepared = with_probes([Full().prepare(prompt, form)], form, KvModeConfig(policy="guided"))
    greedy = SamplingConfig(temperature=0, max_tokens=13)
    for every in (1, 2):
        with evicting(
            smol, params(256, n_ubatch=32, sequences=2), "guided", budget=160, chunk=32, pool=7, sinks=16,
            recent=0.3, compact=True, probe_every=every,
        ) as context:  # fmt: skip
            [answer] = answers(context, prepared, workers=1, sampling=greedy)["T6"]
        assert "4821" in answer.text, every

"""What a guided reading is charged, how much it prefills, and where it is proposed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned import DENSE, HYBRID, MIB, SMALL, again, ask, declared, job, plan

from runner.config import JobConfig, PromptsConfig
from runner.errors import BeyondTrainedError, PromptError
from runner.expected import expected, with_probe
from runner.kv_mode import GuidedConfig, KvModeConfig, ProbeConfig
from runner.overrides import with_overrides
from runner.planning.beyond import within
from runner.planning.plan import Plan
from runner.planning.prefill import Asked, prefill_tokens
from runner.planning.remedies import Step, ladder, sufficient
from runner.planning.resolve import resolve
from runner.prompts import load_prompts

GUIDED = KvModeConfig(name="guided", policy="guided", positions="compact", budget=160, chunk=128)
ASKED = (
    Asked("one", 600, 25, ((("a", 20),),)),
    Asked("one", 600, 35, ((("b", 30),),)),
    Asked("two", 150, 10, ((("a", 20),),)),
)
"""After its second chunk the first document passes the budget, and is probed four times; the other fits."""


@pytest.mark.parametrize(
    ("guided", "every", "tokens"),
    [
        (GuidedConfig(), 1, 600 + 4 * 20 + 600 + 4 * 30 + 150 + 70),
        (GuidedConfig(share="group"), 1, 600 + 4 * 50 + 150 + 70),
        (GuidedConfig(), 2, 600 + 3 * 20 + 600 + 3 * 30 + 150 + 70),
        # Workers of 160 and 144 cells; the second evicts after 64 tokens for the first time that a chunk fits in.
        (GuidedConfig(diversify=True), 1, 2 * (600 + 600 + 150 + 70) + (4 + 5) * 20 + (4 + 5) * 30 + 20),
    ],
)
def test_a_document_is_prefilled_as_often_as_it_is_read(
    guided: GuidedConfig, every: int, tokens: int
) -> None:
    mode = replace(GUIDED, guided=guided, probe=ProbeConfig(every=every))
    assert prefill_tokens(ASKED, mode, budget=160, least=20, workers=2) == tokens


def test_without_probes_once_for_all_its_questions() -> None:
    for mode in (KvModeConfig(), KvModeConfig(policy="h2o")):
        assert prefill_tokens(ASKED, mode, budget=160, least=20, workers=2) == 600 + 150 + 70


def test_both_shares_have_their_price() -> None:
    request = ask(kv_mode=GUIDED, flash_attn=False)
    made = resolve(replace(request, demand=replace(request.demand, asked=ASKED, probe_tokens=30)))
    assert (made.prefill_tokens, made.probe_tokens) == (1620, 30)
    assert "kv_mode.guided.share=group would prefill 1,020 tokens instead of 1,620" in made.notes
    alone = resolve(replace(request, demand=replace(request.demand, asked=ASKED[1:])))
    assert not any("guided.share" in note for note in alone.notes), "one question a document costs the same"
    assert plan(kv_mode=GUIDED, flash_attn=False).prefill_tokens is None


def test_a_probe_has_cells_and_positions() -> None:
    request = ask(kv_mode=replace(GUIDED, budget=1024, chunk=256), flash_attn=False, prefix=50_000)
    made = resolve(request)
    probed = resolve(replace(request, demand=replace(request.demand, probe_tokens=100)))
    assert (made.cells, probed.cells) == (1280, 1536)
    assert (made.window_tokens, probed.window_tokens) == (1344, 1444)


def overhead(profile: Any, mode: KvModeConfig, **changes: Any) -> int:
    return plan(profile, kv_mode=mode, flash_attn=False, prefix=4000, **changes).overhead_bytes


def test_what_a_compaction_needs() -> None:
    """One layer's K as floats; and where the engine cannot shift positions, the state three times."""
    budget, cells = 1024, 1280
    mode = KvModeConfig(policy="guided", budget=budget)
    compact = replace(mode, positions="compact")
    assert overhead(DENSE, compact) - overhead(DENSE, mode) == 40 * cells * 4 * 128
    quantised = overhead(SMALL, replace(compact, k="q8_0")) - overhead(SMALL, replace(mode, k="q8_0"))
    kv = budget * 30 * 3 * (2 * 34 + 64 * 2)
    assert quantised == 40 * cells * 3 * 64 + 3 * kv
    assert (
        overhead(SMALL, compact, documents=True) - overhead(SMALL, mode, documents=True) == 40 * cells * 192
    )
    gemma = declared("gemma3_270m")
    assert overhead(gemma, compact) - overhead(gemma, mode) > 3 * budget * 3 * 2 * 256 * 2
    imrope = replace(HYBRID, arch="qwen35")
    assert overhead(imrope, compact) - overhead(imrope, mode) > 3 * 12 * 4 * MIB


# -- proposed ------------------------------------------------------------------------------------------------

DOCUMENT = (Asked("d", 59_960, 40, ((("q", 40),),)),)


def refused(*overrides: str, tokens: int = 60_000, **known: Any) -> tuple[JobConfig, list[Step]]:
    config = job("hardware.ram=4GiB", "swarm_size=1", *overrides)

    def formula(changed: JobConfig) -> Plan:
        return again(changed, tokens, **known)

    made = formula(config)
    assert made.status == "refused"
    return config, list(ladder(config, made, formula))


def test_a_document_that_does_not_fit_is_read_with_its_question_in_mind() -> None:
    known = {"documents": True, "asked": DOCUMENT}
    config, steps = refused("kv_mode.k=q8_0", **known)
    assert [step.override.split()[0] for step in steps][-1] == "kv_mode=guided"
    enough = sufficient(steps)
    assert enough[-3:-1] == ["kv_mode=guided", "kv_mode.k=q8_0"]
    taken = with_overrides(config, enough)
    mode = taken.kv_mode
    assert (mode.name, mode.policy, mode.positions, mode.k, mode.sinks) == (
        "guided", "guided", "auto", "q8_0", 16
    )  # fmt: skip
    assert again(taken, 60_000, **known).status != "refused"
    assert isinstance(mode.budget, int)
    more = [*enough[:-1], f"kv_mode.budget={mode.budget + 256}"]
    assert again(with_overrides(config, more), 60_000, **known).status == "refused"


@pytest.mark.parametrize(
    "known", [{}, {"documents": True, "asked": (*DOCUMENT, Asked("", 0, 20_000, ((("p", 9),),)))}]
)
def test_what_has_no_document_is_not(known: dict[str, Any]) -> None:
    _, steps = refused(**known)
    overrides = " ".join(step.override for step in steps)
    assert "kv_mode=guided" not in overrides and "kv_mode.policy=peak" in overrides


def test_a_text_beyond_the_trained_context_is_read_in_it() -> None:
    llama, known = declared("llama31_8b"), {"documents": True, "asked": DOCUMENT}

    def formula(changed: JobConfig) -> Plan:
        return again(changed, 200_000, **known)

    def beyond(config: JobConfig) -> BeyondTrainedError:
        with pytest.raises(BeyondTrainedError) as refusal:
            formula(config)
        return refusal.value

    config = job("hardware.ram=512GiB", "swarm_size=1")
    with pytest.raises(BeyondTrainedError) as told:
        within(config, beyond(config), llama, formula)
    found = "this makes it fit: kv_mode=guided kv_mode.budget=130560, in a window of 131072 tokens"
    assert found in str(told.value)
    applied, step = within(with_overrides(config, ["plan.apply=true"]), beyond(config), llama, formula)
    assert (step.override, step.applied) == ("kv_mode=guided kv_mode.budget=130560", True)
    assert formula(applied).window_tokens == llama.n_ctx_train >= 130_560 + 256 + 40 + 64
    # Where the memory is shorter than the context, it is the memory's.
    small = job("hardware.ram=16GiB", "swarm_size=1", "plan.apply=true")
    assert 512 < formula(within(small, beyond(small), llama, formula)[0]).budget_cells < 100_000
    tiny = job("hardware.ram=1GiB", "swarm_size=1", "plan.apply=true")
    with pytest.raises(BeyondTrainedError, match=r"longer context$"):
        within(tiny, beyond(tiny), llama, formula)


# -- prompts -------------------------------------------------------------------------------------------------


def test_probes_are_estimated_at_the_questions_share() -> None:
    item = {"document": 4000 * "word ", "prompt": 20 * "why ", "probes": [12 * "how ", "when"]}
    workload = expected(PromptsConfig(name="inline", items=[item, item | {"probes": []}]))
    assert [asked.document_tokens for asked in workload.asked] == [4999, 4999]
    assert [[n for _, n in asked.probes] for asked in workload.asked] == [[12 + 40, 41], [20 + 40]]
    asked = with_probe(workload, ProbeConfig(texts=["{question}", "Look: {question}"], answer=" It is")).asked
    assert [[n for _, n in of_text] for of_text in asked[1].probes_by_text] == [[61], [62]]
    generated = expected(PromptsConfig(count=5, facts=2, tokens=2000), prompt_tokens=9000)
    assert [asked.document for asked in generated.asked] == [0, 0, 1, 1, 2]
    assert {asked.document_tokens + asked.question_tokens for asked in generated.asked} == {9000}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"document": "d", "turns": ["a"], "probes": ["b"]}, "`probes` do not go with `turns`"),
        ({"document": "d", "prompt": "a", "probes": ["b", "  "]}, "a probe is empty"),
        ({"document": "d", "prompt": "a", "probes": [""]}, "probes.0=''"),
    ],
)
def test_probes_that_ask_nothing(item: dict[str, Any], said: str) -> None:
    with pytest.raises(PromptError, match=r"prompts\.items\[0\]") as error:
        load_prompts(PromptsConfig(name="inline", items=[item]), len)
    assert said in str(error.value)

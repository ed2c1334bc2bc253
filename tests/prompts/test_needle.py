from __future__ import annotations

from dataclasses import replace

import pytest

from runner.config import PromptsConfig
from runner.engine.chat import PromptFormat
from runner.engine.weights import Weights
from runner.prompts import Prompt, load_prompts, needle_prompts

CONFIG = PromptsConfig(count=6, tokens=500, facts=3, depths=[0.0, 0.5, 1.0])


def words(text: str) -> int:
    return len(text.split())


def test_the_same_settings_give_the_same_prompts() -> None:
    assert needle_prompts(CONFIG, words) == needle_prompts(CONFIG, words)
    assert needle_prompts(CONFIG, words) != needle_prompts(replace(CONFIG, seed=1), words)


def test_every_fact_is_in_its_document_once_and_asked_for() -> None:
    prompts = needle_prompts(CONFIG, words)
    assert len({prompt.id for prompt in prompts}) == 6
    assert len({prompt.document for prompt in prompts}) == 2
    for prompt in prompts:
        key = prompt.id.rpartition("-")[2]
        fact = f"The pass code of vault {key} is {prompt.answer}."
        assert prompt.document is not None and prompt.document.count(fact) == 1
        assert f"vault {key}?" in prompt.question


def depth(prompt: Prompt) -> float:
    assert prompt.document is not None
    return prompt.document.index(f"is {prompt.answer}.") / len(prompt.document)


@pytest.mark.parametrize("facts", [1, 3])
def test_facts_lie_at_their_depths_dealt_out_over_documents(facts: int) -> None:
    first, second, third = map(depth, needle_prompts(replace(CONFIG, facts=facts, count=3), words))
    assert first < 0.05 and 0.4 < second < 0.6 and third > 0.95


@pytest.mark.parametrize("tokens", [128, 1000, 4000])
def test_the_length_is_about_what_was_asked(tokens: int, smollm2: object) -> None:
    weights = Weights(smollm2, vocab_only=True)  # type: ignore[arg-type]
    form = PromptFormat(weights)
    for prompt in load_prompts(replace(CONFIG, tokens=tokens, facts=1, count=2), form.count):
        encoded = form.encode(prompt.id, [{"role": "user", "content": prompt.question}], prompt.document)
        assert tokens - 60 <= len(encoded.document) + len(encoded.question) <= tokens + 20
    weights.close()

"""Documents with keyed facts hidden in them, and a question for each: a test a small model can pass."""

from __future__ import annotations

import random
from collections.abc import Callable

from runner.config import PromptsConfig
from runner.errors import PromptError
from runner.prompts.bodies import caravan, filled, hidden
from runner.prompts.prompt import Prompt

_QUESTION_TOKENS = 40
"""About what the question and a chat template take of ``prompts.tokens``."""


def needle_prompts(config: PromptsConfig, count_tokens: Callable[[str], int]) -> list[Prompt]:
    """``config.count`` questions over as many documents as ``config.facts`` facts in each make necessary.

    The same config and tokenizer give the same prompts. A document is ``config.tokens`` long less room for
    the question; the depths are dealt out to the facts of all documents in turn.

    Raises:
        PromptError: the documents are too short for their facts.
    """
    prompts: list[Prompt] = []
    for number in range(-(-config.count // config.facts)):
        rng = random.Random(f"{config.seed}/{number}")
        depths = [
            config.depths[(number * config.facts + i) % len(config.depths)] for i in range(config.facts)
        ]
        document, codes = _document(config, depths, rng, count_tokens)
        for key, code in codes.items():
            prompts.append(
                Prompt(
                    id=f"needle-{number}-{key}",
                    prompt=f"What is the pass code of vault {key}? Answer with the number.",
                    document=document,
                    answer=code,
                    kind="number",
                )
            )
    return prompts[: config.count]


def _document(
    config: PromptsConfig, depths: list[float], rng: random.Random, count_tokens: Callable[[str], int]
) -> tuple[str, dict[str, str]]:
    """A document with a fact at each of ``depths``, and the codes in it by the name of their vault."""
    codes: dict[str, str] = {}
    while len(codes) < config.facts:
        codes[f"{rng.choice('BCDFGHJKLMNPQRSTVWXZ')}{rng.randrange(10)}"] = str(rng.randint(1000, 9999))
    facts = [f"The pass code of vault {key} is {code}." for key, code in codes.items()]
    room = config.tokens - _QUESTION_TOKENS - sum(count_tokens(" " + fact) for fact in facts)
    if room <= 0:
        raise PromptError(
            f"prompts.tokens={config.tokens} has no room for prompts.facts={config.facts}; "
            f"set prompts.tokens={config.tokens - room + 100} or lower prompts.facts"
        )
    body = filled(caravan(rng), room, count_tokens)
    return hidden(body, zip(depths, facts, strict=True)), codes

"""Documents with facts of several kinds in them, and questions: how much of what they hold does a mode keep?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from runner.config import PromptsConfig, RecallConfig
from runner.errors import PromptError
from runner.prompt_config import FactName
from runner.prompts.bodies import CARAVAN, caravan, filled, hidden, sentences
from runner.prompts.facts import FACTS, FactKind
from runner.prompts.prompt import Prompt
from runner.prompts.texts import read_source

UNKNOWN = "unknown"
"""The answer where the document does not say."""

_TEMPLATE_TOKENS = 16
"""About what a chat template takes around a question."""


_FULL = 0.7
"""The least share of a document's room that its body must fill."""


@dataclass(frozen=True)
class _Asked:
    """A question, its answer, and what the document says for it: one statement a fact."""

    kind: FactName
    question: str
    answer: str
    facts: tuple[str, ...]


def recall_prompts(config: PromptsConfig, count_tokens: Callable[[str], int]) -> list[Prompt]:
    """``config.count`` questions, ``facts / needs`` of them about each document.

    The same config, body and tokenizer give the same prompts. A document is ``config.tokens`` long less room for
    the question. Kinds and depths are dealt out in turn, phrasings are drawn; the facts of one answer lie apart,
    at depths of their own. Each document begins at another place of a text, which goes on from its beginning
    after its end. A document whose question has no answer in it holds as many facts as any other, of the kind that
    is asked for too. An answer is the first value of its kind that is written or, where several facts are asked
    for, all that are, in order.

    Raises:
        PromptError: as :func:`check_recall`; a body that cannot be read or is too short; a document too short for
            its facts, or with more facts of a kind than there are.
    """
    check_recall(config)
    recall = config.recall
    documents = -(-config.count // (config.facts // recall.needs))
    prose = None
    if recall.body != CARAVAN:
        _, text = read_source(recall.body, "prompts.recall.body")
        # The paragraph break is for where the text goes on from its beginning.
        prose = sentences(f"\n\n{text.strip()}")
        begin = random.Random(f"{config.seed}/body").randrange(len(prose))
    prompts: list[Prompt] = []
    for number in range(documents):
        rng = random.Random(f"{config.seed}/recall/{number}")
        asked = _asked(config, number, rng)
        pieces: Iterator[str] = caravan(rng)
        if prose is not None:
            start = (begin + number * len(prose) // documents) % len(prose)
            pieces = islice(cycle(prose), start, start + len(prose))
        facts = [fact for each in asked for fact in each.facts]
        question_tokens = max(count_tokens(each.question) for each in asked)
        document = _document(config, facts, question_tokens, number, pieces, count_tokens)
        prompts += [_prompt(f"recall-{number}-{i}", each, document, recall) for i, each in enumerate(asked)]
    return prompts[: config.count]


def check_recall(config: PromptsConfig) -> None:
    """Whether the config makes questions at all.

    Raises:
        PromptError: facts that do not divide by ``needs``; absent answers that a base model cannot be asked for.
    """
    needs, facts = config.recall.needs, config.facts
    if facts % needs:
        raise PromptError(
            f"prompts.facts={facts} is no multiple of prompts.recall.needs={needs}, the facts of one answer; "
            f"set prompts.facts={-(-facts // needs) * needs}"
        )
    if config.recall.absent and config.recall.style == "completion":
        raise PromptError(
            "prompts.recall.absent asks for a word that a completion has no place for; "
            "set prompts.recall.absent=0 or prompts.recall.style=chat"
        )


def _asked(config: PromptsConfig, number: int, rng: random.Random) -> list[_Asked]:
    """The questions about document ``number``.

    Raises:
        PromptError: there are not as many different facts of a kind.
    """
    recall, of_document = config.recall, config.facts // config.recall.needs
    places = range(number * of_document, (number + 1) * of_document)
    kinds = [recall.kinds[place % len(recall.kinds)] for place in places]
    rng.shuffle(kinds)
    keys, values = {}, {}
    for name in dict.fromkeys(kinds):
        facts = kinds.count(name) * recall.needs
        keys[name], values[name] = (
            iter(FACTS[name].keys(rng, 2 * facts)),
            iter(FACTS[name].values(rng, facts)),
        )
    asked = []
    for place, name in zip(places, kinds, strict=True):
        kind = FACTS[name]
        mine = list(zip(islice(keys[name], recall.needs), islice(values[name], recall.needs), strict=False))
        absent = int((place + 1) * recall.absent) > int(place * recall.absent)
        about = list(islice(keys[name], recall.needs)) if absent else [key for key, _ in mine]
        if min(len(mine), len(about)) < recall.needs:
            raise PromptError(
                f"prompts.facts={config.facts} are more facts of kind {name} than there are different ones; "
                "lower it, or name more of prompts.recall.kinds"
            )
        asked.append(
            _Asked(
                kind=name,
                question=_question(kind, about, recall, rng),
                answer=UNKNOWN if absent else " ".join(value for _, value in mine),
                facts=tuple(rng.choice(kind.statements).format(key=key, value=value) for key, value in mine),
            )
        )
    return asked


def _question(kind: FactKind, keys: Sequence[str], recall: RecallConfig, rng: random.Random) -> str:
    """What is asked for the facts about ``keys``."""
    several = len(keys) > 1
    named = f"{', '.join(keys[:-1])} and {keys[-1]}" if several else keys[0]
    if recall.style == "completion":
        return (kind.stems if several else kind.stem).format(keys=named)
    question = (kind.several if several else rng.choice(kind.questions)).format(keys=named)
    with_what = f"{kind.answers.format(count=len(keys))}, in this order" if several else kind.answer
    unless = f" If the document does not say, answer: {UNKNOWN}." if recall.absent else ""
    return f"{question} Answer with {with_what}.{unless}"


def _document(
    config: PromptsConfig,
    facts: Sequence[str],
    question_tokens: int,
    number: int,
    pieces: Iterable[str],
    count_tokens: Callable[[str], int],
) -> str:
    """Document ``number``: ``facts`` at their depths among ``pieces``.

    Raises:
        PromptError: no room for the facts, or too little to fill it with.
    """
    taken = question_tokens + _TEMPLATE_TOKENS + sum(count_tokens(f" {fact}") for fact in facts)
    room = config.tokens - taken
    if room <= 0:
        raise PromptError(
            f"prompts.tokens={config.tokens} has no room for prompts.facts={config.facts}; "
            f"set prompts.tokens={taken + 100} or lower prompts.facts"
        )
    body = filled(pieces, room, count_tokens)
    fills = sum(map(count_tokens, body))
    if fills < _FULL * room:
        raise PromptError(
            f"prompts.recall.body={config.recall.body} fills {fills} of the {room} tokens of a document; "
            "give a longer text in sentences, or lower prompts.tokens"
        )
    depths = (config.depths[(number * len(facts) + i) % len(config.depths)] for i in range(len(facts)))
    return hidden(body, zip(depths, facts, strict=True))


def _prompt(prompt_id: str, asked: _Asked, document: str, recall: RecallConfig) -> Prompt:
    value = FACTS[asked.kind].pattern
    if recall.absent:
        value = rf"{value}|\b{UNKNOWN}\b"
    several = recall.needs > 1
    return Prompt(
        id=f"{prompt_id}-{asked.kind}" + "-absent" * (asked.answer == UNKNOWN),
        prompt=asked.question,
        document=document,
        answer=asked.answer,
        kind="list" if several else "regex",
        pattern=f"(?i){value}" if several else f"(?is)\\A.*?({value})",
    )

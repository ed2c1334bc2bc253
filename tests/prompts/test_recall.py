from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.config import PromptsConfig, RecallConfig
from runner.errors import PromptError
from runner.prompts import Prompt, load_prompts, recall_prompts
from runner.prompts.bodies import sentences
from runner.prompts.facts import FACTS
from runner.voting import extract, normalise

CONFIG = PromptsConfig(name="recall", count=8, tokens=600, facts=4, depths=[0.1, 0.3, 0.5, 0.7, 0.9])
KINDS = list(FACTS)


def words(text: str) -> int:
    return len(text.split())


def recall(**settings: Any) -> list[Prompt]:
    own = {
        field: settings.pop(field) for field in list(settings) if field in RecallConfig.__dataclass_fields__
    }
    return load_prompts(replace(CONFIG, recall=RecallConfig(**own), **settings), words)


def right(prompt: Prompt, text: str) -> bool:
    """Whether ``text`` would be marked as right."""
    assert prompt.answer is not None and prompt.kind is not None
    key = extract(text, prompt.kind, pattern=prompt.pattern).key
    return key == normalise(prompt.answer, prompt.kind)


def stated(prompt: Prompt, key: str) -> list[str]:
    """The sentences of the document that name ``key``."""
    assert prompt.document is not None
    return [piece for piece in sentences(prompt.document) if re.search(rf"\b{key}\b", piece)]


def keys(prompt: Prompt) -> list[str]:
    """What is asked about, in order: what the question has in common with a template's ``{keys}``."""
    kind = FACTS[prompt.id.split("-")[3]]  # type: ignore[index]
    for template in (*kind.questions, kind.several, kind.stem, kind.stems):
        before, after = template.split("{keys}")
        if match := re.match(rf"{re.escape(before)}(.+?){re.escape(after)}(?= Answer|$)", prompt.question):
            return re.split(r", | and ", match[1])
    raise AssertionError(prompt.question)


def test_the_same_settings_give_the_same_prompts() -> None:
    assert recall() == recall()
    assert recall() != recall(seed=1)
    assert recall(count=5) == recall(count=8)[:5]


@pytest.mark.parametrize("needs", [1, 2, 4])
@pytest.mark.parametrize("style", ["chat", "completion"])
def test_what_is_asked_is_said_once_and_only_that_answer_is_right(needs: int, style: str) -> None:
    prompts = recall(needs=needs, style=style, count=20)
    assert len({prompt.id for prompt in prompts}) == 20
    assert len({prompt.document for prompt in prompts}) == 20 * needs // 4
    for prompt in prompts:
        values = str(prompt.answer).split()
        assert len(keys(prompt)) == len(set(values)) == needs
        for key, value in zip(keys(prompt), values, strict=True):
            [sentence] = stated(prompt, key)
            assert value in sentence and sentence.strip() not in prompt.question
        assert right(prompt, f"They are {', '.join(values)}.") and not right(prompt, "I do not know.")
        if needs > 1:
            assert not right(prompt, " ".join(values[::-1])) and not right(prompt, values[0])
            assert not right(prompt, " ".join([*values, values[0]]))
        else:
            assert not right(prompt, f"{other(prompt)}. No, {values[0]}.")
            assert right(prompt, f" {values[0].upper()}.\nAnother one is {other(prompt)}")


def other(prompt: Prompt) -> str:
    """A value that the answer could have been."""
    numbers = prompt.id.split("-")[3] in ("code", "year", "price")
    return "5555" if numbers else "Odessa" if prompt.answer != "Odessa" else "Lyon"


def test_kinds_are_dealt_out_and_depths_are_kept() -> None:
    prompts = recall(count=20, tokens=1500)
    assert Counter(prompt.id.split("-")[3] for prompt in prompts) == dict.fromkeys(KINDS, 4)
    assert {prompt.id.split("-")[3] for prompt in recall(kinds=["year"])} == {"year"}
    for place, prompt in enumerate(prompts):
        assert prompt.document is not None
        [sentence] = stated(prompt, keys(prompt)[0])
        assert abs(prompt.document.index(sentence) / len(prompt.document) - CONFIG.depths[place % 5]) < 0.03
    phrasings = {prompt.question.replace(keys(prompt)[0], "") for prompt in prompts}
    assert len(phrasings) > len(KINDS)


def test_a_question_without_an_answer_is_about_the_like_of_what_is_there() -> None:
    prompts = recall(count=12, absent=0.25)
    absent = [prompt for prompt in prompts if prompt.id.endswith("-absent")]
    assert len(absent) == 3
    for prompt in prompts:
        assert "answer: unknown." in prompt.question
        [key] = keys(prompt)
        assert bool(stated(prompt, key)) == (prompt not in absent)
        assert right(prompt, "Unknown.") == (prompt in absent)
        assert not right(prompt, f"It is {other(prompt)}, or unknown.")
    assert "unknown" not in recall()[0].question


PROSE = "\n\n".join(
    f'Chapter {n}. Mr. Hale walked on, "slowly." He saw the lake. Nobody spoke to him there. It was dark.'
    for n in range(60)
)


def test_facts_stand_between_the_sentences_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "tale.txt").write_text(PROSE, encoding="utf-8")
    prompts = recall(body=str(tmp_path / "tale.txt"), tokens=300)
    first, second = prompts[0].document, prompts[4].document
    assert first != second and first is not None
    for prompt in prompts[:4]:
        [fact] = stated(prompt, keys(prompt)[0])
        assert "Mr. Hale" not in fact and fact.endswith(".")
        first = first.replace(fact, "")
    # Without its facts a document is the text as it was, from any place and round its end.
    assert first in f"{PROSE}\n\n{PROSE}"


def test_a_text_is_parted_where_sentences_end() -> None:
    text = 'Dr. No left. "Well?" He said e.g. this!  Then\nthree lines\n\nA heading\n\n\nThe end.'
    parts = [
        "Dr. No left.",
        ' "Well?"',
        " He said e.g. this!",
        "  Then\nthree lines",
        "\n\nA heading",
        "\n\n\nThe end.",
    ]
    assert sentences(text) == parts
    assert sentences("no sentence") == ["no sentence"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"needs": 3}, "prompts.facts=4 is no multiple of prompts.recall.needs=3.*set prompts.facts=6"),
        ({"style": "completion", "absent": 0.5}, "prompts.recall.absent.*style=chat"),
        ({"facts": 80, "kinds": ["price"], "tokens": 2000}, "more facts of kind price.*prompts.recall.kinds"),
        ({"tokens": 128, "facts": 40}, "no room for prompts.facts=40; set prompts.tokens=[0-9]+"),
        ({"body": "none.txt"}, "prompts.recall.body: there is no file none.txt"),
    ],
)
def test_what_cannot_be_made(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PromptError, match=said):
        recall(**settings)


def test_a_text_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "tale.txt").write_text(PROSE[:500], encoding="utf-8")
    with pytest.raises(PromptError, match=r"fills \d+ of the \d+ tokens.*give a longer text"):
        recall(body=str(tmp_path / "tale.txt"))


def test_a_mistake_is_seen_before_there_is_a_tokenizer() -> None:
    from runner.prompts import least_tokens

    with pytest.raises(PromptError, match="no multiple"):
        least_tokens(replace(CONFIG, recall=RecallConfig(needs=3)))
    assert recall_prompts(CONFIG, words)[0].id.startswith("recall-0-0-")

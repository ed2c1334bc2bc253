"""Texts to score: rows of a file, and passages that are cut out of long texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.config import PromptsConfig, TextsConfig
from runner.errors import PromptError
from runner.planner import expected
from runner.prompts import Passage, least_tokens, load_passages, load_prompts
from runner.prompts.texts import passages


def config(tmp_path: Path, *rows: Any, **more: Any) -> PromptsConfig:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return PromptsConfig(path=str(path), **more)


def words(text: str) -> int:
    return len(text.split())


def test_texts_and_questions_of_one_file_are_told_apart(tmp_path: Path) -> None:
    text = {"id": 7, "kind": "score", "text": " Once upon\na time. ", "last": 3, "meta": {"of": "tales"}}
    made = config(tmp_path, {"prompt": "Why?"}, text, {"kind": "score", "text": "x" * 8000}, kind="number")
    assert [prompt.id for prompt in load_prompts(made, len)] == ["p1"]
    assert load_passages(made, len) == [
        Passage("7", " Once upon\na time. ", last=3, meta={"of": "tales"}),
        Passage("p3", "x" * 8000),
    ]
    assert load_passages(replace(made, limit=1), len) == []
    assert least_tokens(made) == 1000
    workload = expected(made)
    assert (workload.prompt_tokens, workload.score_tokens, workload.prompts, workload.asks) == (
        2040,
        2000,
        1,
        True,
    )
    alone = expected(config(tmp_path, text))
    assert (alone.score_tokens, alone.prompts, alone.asks) == (4, 0, False)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"kind": "score"}, "line 1: kind=score needs a `text` to score"),
        ({"kind": "score", "text": " \n"}, "line 1: kind=score needs a `text` to score"),
        ({"kind": "score", "text": "a", "prompt": "b"}, "line 1: 'prompt' does not go with kind=score"),
        ({"kind": "score", "text": "a", "answer": "b"}, "line 1: 'answer' does not go with kind=score"),
        ({"kind": "score", "prompt": "b"}, "line 1: 'prompt' does not go with kind=score"),
        ({"kind": "score", "text": "a", "lats": 3}, "line 1: unknown key 'lats'; did you mean 'last'?"),
        ({"kind": "score", "text": "a", "last": 0}, "line 1: last=0: input should be greater than or equal to 1"),
        ({"kind": "score", "text": 3}, "line 1: text=3"),
        ({"text": "a"}, 'line 1: `text` is a text to score, which wants "kind": "score"'),
    ],
)  # fmt: skip
def test_a_bad_text(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError) as refused:
        load_prompts(config(tmp_path, row), len)
    assert said in str(refused.value)


def test_an_id_is_a_texts_or_a_questions(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="'a' is used twice"):
        load_prompts(
            config(tmp_path, {"id": "a", "prompt": "b"}, {"id": "a", "kind": "score", "text": "c"}), len
        )
    clash = config(tmp_path, {"id": "text-pydoc-0", "prompt": "b"}, texts=TextsConfig(count=1, tokens=64))
    with pytest.raises(PromptError, match="'text-pydoc-0' is used twice"):
        load_passages(clash, words)


def story(folder: Path, name: str = "story.txt", paragraphs: int = 40) -> str:
    path = folder / name
    path.write_text("\n\n".join(f"Paragraph {n} " + f"word{n} " * 48 for n in range(paragraphs)))
    return str(path)


def test_passages_are_whole_words_of_their_own_part(tmp_path: Path) -> None:
    source = story(tmp_path)
    made = passages(TextsConfig(sources=[source], count=4, tokens=120, last=9), words)
    assert [passage.id for passage in made] == [f"text-story-{n}" for n in range(4)]
    assert [passage.last for passage in made] == [9] * 4
    text = Path(source).read_text()
    at = [text.index(passage.text) for passage in made]
    assert at == sorted(at) and at[0] == 0
    assert all(a + len(p.text) <= b for a, b, p in zip(at, at[1:], made, strict=False))
    assert [words(passage.text) for passage in made] == [120] * 4
    assert all(p.text.startswith("Paragraph ") for p in made)
    assert made == passages(TextsConfig(sources=[source], count=4, tokens=120, last=9), words)


def test_spans_share_no_passage(tmp_path: Path) -> None:
    source = story(tmp_path)
    text = Path(source).read_text()
    first, second = (
        passages(TextsConfig(sources=[source], count=2, tokens=200, span=span), words)
        for span in ([0.0, 0.5], [0.5, 1.0])
    )
    assert text.index(first[1].text) + len(first[1].text) <= len(text) / 2 <= text.index(second[0].text)


def test_every_python_has_a_technical_text() -> None:
    [one, two] = passages(TextsConfig(count=2, tokens=300), words)
    assert one.text != two.text and words(one.text) == 300


def test_texts_stand_beside_questions_or_alone() -> None:
    beside = PromptsConfig(count=2, tokens=150, texts=TextsConfig(count=1, tokens=400))
    assert len(load_prompts(beside, words)) == 2 and len(load_passages(beside, words)) == 1
    assert (expected(beside).prompt_tokens, expected(beside).score_tokens, expected(beside).asks) == (
        400,
        400,
        True,
    )
    assert least_tokens(beside) == 200
    alone = replace(beside, name="texts")
    assert load_prompts(alone, words) == []
    assert (expected(alone).score_tokens, expected(alone).asks) == (400, False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sources": ["gone.txt"]}, "there is no file gone.txt"),
        ({"sources": ["a.txt"]}, "a.txt is too short for 3 passages of 2000 tokens"),
        ({"sources": ["b.bin"]}, "not UTF-8 text"),
        ({"sources": ["a.txt", "sub/a.txt"], "tokens": 20}, "names two files alike"),
    ],
)
def test_a_bad_source(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    story(tmp_path, "a.txt"), story(tmp_path / "sub", "a.txt")
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptError) as refused:
        passages(TextsConfig(**{"count": 3, "tokens": 2000} | changes), words)
    assert said in str(refused.value)


def test_a_group_of_texts_without_any() -> None:
    with pytest.raises(PromptError, match="prompts=texts has no prompts"):
        load_prompts(PromptsConfig(name="texts"), words)

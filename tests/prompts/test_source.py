from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.config import PromptsConfig
from runner.context.base import messages_of
from runner.errors import PromptError
from runner.prompts import Prompt, least_tokens, load_prompts


def read(tmp_path: Path, *rows: Any, **config: Any) -> list[Prompt]:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8-sig")
    return load_prompts(PromptsConfig(path=str(path), **config), len)


def test_what_a_row_may_hold(tmp_path: Path) -> None:
    one, two, three = read(
        tmp_path,
        {"prompt": "Why?", "document": " A story.\n", "answer": 42, "meta": {"any": ["thing"]}},
        {"id": 7, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Who?"}]},
        {"id": "c", "prompt": "Which?", "choices": ["true", "false"], "answer": True},
    )
    assert (one.id, one.document, one.answer, one.question) == ("p1", "A story.", "42", "Why?")
    assert (two.id, two.question) == ("7", "Who?")
    assert three.answer == "true"
    assert (one.kind, two.kind, three.kind) == ("number", "text", "choice")


def test_the_config_speaks_for_prompts_that_do_not(tmp_path: Path) -> None:
    one, two = read(
        tmp_path,
        {"prompt": "a"},
        {"prompt": "b", "kind": "text", "system": "mine"},
        kind="number",
        system="all",
    )
    assert (one.kind, one.system) == ("number", "all")
    assert (two.kind, two.system) == ("text", "mine")
    assert len(read(tmp_path, {"prompt": "a"}, {"prompt": "b"}, limit=1)) == 1


def test_inline_prompts() -> None:
    one, two = load_prompts(PromptsConfig(items=["Why?", {"id": "x", "prompt": "Who?"}]), len)
    assert (one.id, one.question, two.id) == ("p1", "Why?", "x")
    with pytest.raises(PromptError, match=r"prompts\.items\[0\]: a prompt is a JSON object"):
        load_prompts(PromptsConfig(items=[3]), len)


def test_a_group_without_prompts_says_so() -> None:
    for name in ("jsonl", "inline"):
        with pytest.raises(PromptError, match=f"prompts={name} has no prompts; set prompts.path"):
            load_prompts(PromptsConfig(name=name), len)


def test_the_bound_before_there_is_a_tokenizer(tmp_path: Path) -> None:
    read(tmp_path, {"prompt": "x" * 80}, {"prompt": "y", "document": "z" * 8000})
    assert least_tokens(PromptsConfig(path=str(tmp_path / "p.jsonl"))) == 1000
    assert 1 <= least_tokens(PromptsConfig(items=["?"])) <= 1


def test_choices_are_shown_unless_the_question_shows_them() -> None:
    shown = messages_of(Prompt(id="a", prompt="Which colour?", choices=["red", "blue"]))[-1]["content"]
    assert shown == "Which colour?\n\nA. red\nB. blue\n\nAnswer with the letter."
    itself = messages_of(Prompt(id="a", prompt="red or blue?", choices=["red", "blue"]))[-1]["content"]
    assert itself == "red or blue?"


def test_a_conversation(tmp_path: Path) -> None:
    [chat] = read(
        tmp_path,
        {
            "id": "chat",
            "document": "A story.",
            "turns": [
                " Who? ",
                {"content": "How many?", "answer": 42, "reply": "Many."},
                {"content": "b", "kind": "text"},
            ],
        },
        system="all",
    )
    one, two, three = chat.turns
    assert (chat.id, chat.question, chat.document, chat.system) == ("chat", "Who?", "A story.", "all")
    assert (one.content, one.kind, one.reply) == ("Who?", "text", None)
    assert (two.answer, two.kind, two.reply) == ("42", "number", "Many.")
    assert (three.kind, chat.turn_id(3)) == ("text", "chat/3")
    assert least_tokens(PromptsConfig(path=str(tmp_path / "p.jsonl"))) == 1


def test_a_turn_takes_what_the_config_says_for_all(tmp_path: Path) -> None:
    [chat] = read(tmp_path, {"turns": ["a", {"content": "b", "kind": "text"}]}, kind="number")
    assert [turn.kind for turn in chat.turns] == ["number", "text"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"turns": []}, "line 1: `turns` must be a list of questions, at least one"),
        ({"turns": "Why?"}, "line 1: `turns` must be a list of questions, at least one"),
        ({"turns": ["a"], "prompt": "b"}, "line 1: give one of `prompt`, `messages` and `turns`"),
        ({"turns": ["a"], "answer": "b"}, "line 1: 'answer' of a conversation belongs in the turn"),
        ({"turns": ["a", 3]}, "line 1, turn 2: a turn is a text, or a JSON object with `content`"),
        ({"turns": [{"answer": 3}]}, "line 1, turn 1: a turn is a text, or a JSON object with `content`"),
        ({"turns": ["a", "  "]}, "line 1, turn 2: content=''"),
        ({"turns": [{"content": "a", "anwser": 3}]}, "line 1, turn 1: unknown key 'anwser'; did you mean"),
        ({"turns": [{"content": "a", "answer": "many", "kind": "number"}]}, "'p1/1': its answer 'many' is no"),
        ({"turns": ["a", {"content": "a", "kind": "regex"}]}, "'p1/2': kind=regex needs a pattern"),
    ],
)  # fmt: skip
def test_a_bad_conversation(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError) as refused:
        read(tmp_path, row)
    assert said in str(refused.value)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_id_that_is_a_turns(swapped: bool, tmp_path: Path) -> None:
    rows = [{"id": "chat", "turns": ["a", "b"]}, {"id": "chat/2", "prompt": "c"}]
    with pytest.raises(PromptError, match=r"the id 'chat/2' is used twice \(turn 2 of 'chat'\)"):
        read(tmp_path, *(reversed(rows) if swapped else rows))
    assert len(read(tmp_path, rows[0], {"id": "chat/3", "prompt": "c"})) == 2

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

"""What was written once is read after that; whatever is wrong with the file, it is written again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from runner.context.base import Request, Written
from runner.context.kept_texts import write_once
from runner.errors import Interrupted, OutputError


class Writer:
    """Answers with the request's text; counts what it is asked."""

    model_digest = "m"

    def __init__(self) -> None:
        self.asked = 0

    def generate(self, requests: Sequence[Request], *, max_tokens: int, together: int) -> list[Written]:
        self.asked += len(requests)
        return [Written(request.text.upper(), 10, 5, cut=False) for request in requests]


class Interrupting(Writer):
    def generate(self, requests: Sequence[Request], *, max_tokens: int, together: int) -> list[Written]:
        raise Interrupted("interrupted")


REQUESTS = [Request("a", "Say it.", "one", "?"), Request("b", "Say it.", "two", "?")]


def written(folder: Path, engine: Writer, requests: Sequence[Request] = REQUESTS, **how: int) -> list[str]:
    answers, _ = write_once(folder, engine, requests, **{"max_tokens": 8, "together": 2} | how)  # type: ignore[arg-type]
    return [answer.text for answer in answers]


def test_the_second_time_nothing_is_generated(tmp_path: Path) -> None:
    engine = Writer()
    assert written(tmp_path, engine) == written(tmp_path, engine) == ["ONE", "TWO"]
    assert engine.asked == 2
    kept, cached = write_once(tmp_path, engine, REQUESTS, max_tokens=8, together=1)  # type: ignore[arg-type]
    assert cached and [(answer.prefill_tokens, answer.generated_tokens) for answer in kept] == [(0, 0)] * 2


def test_ids_do_not_count_but_texts_and_lengths_do(tmp_path: Path) -> None:
    engine = Writer()
    written(tmp_path, engine)
    written(tmp_path, engine, [replace(request, id="other") for request in REQUESTS])
    assert engine.asked == 2
    written(tmp_path, engine, [replace(request, before="Tell it.") for request in REQUESTS])
    written(tmp_path, engine, max_tokens=9)
    engine.model_digest = "another"
    written(tmp_path, engine)
    assert engine.asked == 8


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '[["ONE", false]]', '[["ONE", 1], ["TWO", false]]', "null"]
)
def test_a_damaged_file_is_written_again(tmp_path: Path, damage: str) -> None:
    engine = Writer()
    written(tmp_path, engine)
    [path] = tmp_path.glob("*.json")
    path.write_text(damage)
    assert written(tmp_path, engine) == ["ONE", "TWO"] and engine.asked == 4
    assert written(tmp_path, engine) == ["ONE", "TWO"] and engine.asked == 4


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_generated(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    engine = Writer()
    with pytest.raises(OutputError, match=r"context_strategy\.folder"):
        written(tmp_path / "file" / "below", engine)
    assert engine.asked == 0


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        written(tmp_path, Interrupting())
    assert list(tmp_path.iterdir()) == []

"""Who speaks for a vote in a conversation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runner.config import AnswerKind, JobConfig, VoteConfig
from runner.context import PreparedPrompt
from runner.engine.sequence import Generation
from runner.ledger import Ledger
from runner.prompts import Prompt
from runner.record import Score


def reply(kind: AnswerKind, rule: Any, *texts: str) -> str:
    record: Any = SimpleNamespace(job_id="j", score=Score())
    tables: Any = SimpleNamespace(append=lambda table, **row: None)
    item = PreparedPrompt(Prompt(id="chat/1", prompt="?", kind=kind), "full", (), (1,), 1)
    answers = [
        Generation("chat/1", worker, text, worker, 1, 1, 1, -1.0, "stop", "ok", 1.0)
        for worker, text in enumerate(texts)
    ]
    verdict = Ledger(tables, record, JobConfig(vote=VoteConfig(rule=rule))).group(item, answers)
    assert verdict is not None
    return verdict.reply


@pytest.mark.parametrize(
    ("kind", "rule", "texts", "worker"),
    [
        ("number", "majority", ("It is 3.", "I think it is 4.", "4, surely."), 1),
        ("number", "majority", ("I cannot tell.", "It is 5.", "It is 4."), 1),  # a tie
        ("number", "majority", ("I cannot tell.", "Nor can I."), 0),  # nobody voted
        ("text", "majority", ("blue", "red", "red"), 1),
        ("text", "similarity", ("the sea is far", "a red hat there", "a red hat here"), 1),
    ],
)
def test_the_whole_text_of_a_winner_stands(
    kind: AnswerKind, rule: str, texts: tuple[str, ...], worker: int
) -> None:
    assert reply(kind, rule, *texts) == texts[worker]

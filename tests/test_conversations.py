"""Jobs with conversations: what is in the tables, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import one_line, runner

from runner.tables import load

PLACES = ("Orla", "Veyra", "Tamsin", "Quell", "Harrow", "Lunde")


def notes(count: int) -> list[dict[str, Any]]:
    """Turns of about 85 tokens, scripted."""
    return [
        {
            "content": f"Note {number}: {place} pays {number * 7} coins. Say it back.",
            "reply": f"Noted: {place} pays {number * 7} coins. I will keep that in mind until you ask me for it. "
            * 3,
        }
        for number, place in enumerate(PLACES[:count], 1)
    ]


def written(folder: Path, *rows: dict[str, Any]) -> str:
    (folder / "p.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return "prompts.path=p.jsonl"


def test_a_conversation_among_prompts(tmp_path: Path) -> None:
    prompts = written(
        tmp_path,
        {"id": "chat", "document": "The pass code of vault K3 is 4821.",
         "turns": ["Name a vault.", {"content": "What is its pass code?", "answer": 4821}]},
        {"id": "sum", "prompt": "What is 2+2?", "answer": 4},
    )  # fmt: skip
    small = ("swarm_size=3", "sampling.max_tokens=12", "n_threads=1")
    for vote in ("majority", "majority", "similarity"):
        done = runner(tmp_path, prompts, *small, f"vote={vote}")
        assert done.returncode == 0 and done.stderr == "", done.stderr
    assert all(
        part in done.stdout
        for part in ("Name a vault.", "What is its pass code?", "What is 2+2?", "3 prompts")
    )
    t = load(tmp_path)
    # The winner of one turn is part of the next one's prompt, so the vote makes another job of a conversation.
    assert len(t.jobs) == 2
    _, one = next(iter(t.generations.groupby("job_id")))
    assert sorted(set(one["prompt_id"])) == ["chat/1", "chat/2", "sum"] and len(one) == 9
    assert one["seed"].nunique() == 9
    [row, *_] = t.jobs.to_dict("records")
    assert row["prefill_tokens"] == one["prefill_tokens"].sum()
    turn = t.prompts[t.prompts["prompt_id"] == "chat/2"].iloc[0]
    assert (turn["prompt"], turn["expected"], turn["strategy"]) == ("What is its pass code?", "4821", "full")
    fresh = one[one["prompt_id"] == "chat/2"]["prefill_tokens"].max()
    assert fresh < turn["tokens_sent"] and turn["document_tokens"] < turn["tokens_sent"]
    assert set(t.growth["action"]) == {"hold"} and set(t.growth["prompt_id"]) == {"chat/2"}
    assert set(t.plans["window_policy"]) == {"ladder"}


def test_a_window_that_grows(tmp_path: Path) -> None:
    prompts = written(tmp_path, {"id": "chat", "turns": [*notes(6), "Who pays most?"]})
    ladder = ("window.start=floor", "window.floor=256", "window.max=768", "window.speed_floor=0")
    done = runner(tmp_path, prompts, *ladder, "swarm_size=2", "sampling.max_tokens=8", "n_threads=1")
    assert done.returncode == 0, done.stderr
    t = load(tmp_path)
    assert (len(t.votes), t.jobs["status"].tolist()) == (7, ["done"])
    grown = t.growth[t.growth["action"] == "grow"]
    assert grown[["from_window", "to_window"]].to_numpy().tolist() == [[256, 384], [384, 576], [576, 768]]
    for _, row in grown.iterrows():
        before = t.prompts[t.prompts["prompt_id"] == f"chat/{row['turn'] - 1}"].iloc[0]
        assert row["reprefill_tokens"] == before["document_tokens"] and row["reprefill_s"] > 0
        assert row["decode_tok_s"] > 0
        assert 0 < row["needed_bytes"] <= row["available_bytes"]
    assert {"grow", "prefill", "decode"} <= set(t.traces["phase"])
    sums = t.generations.groupby("job_id")[["prefill_tokens", "generated_tokens"]].sum()
    assert sums.to_numpy().tolist() == t.jobs[["prefill_tokens", "generated_tokens"]].to_numpy().tolist()
    [plan] = t.plans.to_dict("records")
    assert plan["window_tokens"] == 256


def test_a_fixed_window_ends_or_is_made_to_do(tmp_path: Path) -> None:
    prompts = written(tmp_path, {"id": "chat", "turns": [*notes(4), "Who pays most?"]})
    fixed = (
        "window.policy=fixed",
        "window.tokens=320",
        "swarm_size=2",
        "sampling.max_tokens=8",
        "n_threads=1",
    )
    line = one_line(runner(tmp_path, prompts, *fixed, "hydra.run.dir=stop"))
    assert "turn 'chat/4' passes the window" in line and "set window.on_refusal=compress" in line
    stopped = load(tmp_path / "stop")
    assert stopped.jobs["status"].tolist() == ["refused"] and len(stopped.votes) == 3
    assert stopped.growth["action"].tolist()[-1] == "refused"

    done = runner(tmp_path, prompts, *fixed, "window.on_refusal=compress", "hydra.run.dir=compress")
    assert done.returncode == 0, done.stderr
    t = load(tmp_path / "compress")
    assert len(t.votes) == 5
    assert (t.prompts["tokens_sent"] + 8 <= 320).all()
    [row] = t.growth[t.growth["action"] == "compress"].to_dict("records")
    assert row["prompt_id"] == "chat/4" and row["summary"].startswith("Summary of the conversation so far:\n")
    assert t.prompts["strategy"].tolist() == ["full"] * 3 + ["full+summary"] * 2
    sent = t.prompts[t.prompts["strategy"] == "full+summary"]
    assert (sent["tokens_sent"] < sent["tokens_in"]).all()


def test_a_conversation_for_a_base_model(tmp_path: Path, gemma3: Path) -> None:
    prompts = written(tmp_path, {"id": "chat", "turns": ["Hello."]})
    line = one_line(runner(tmp_path, f"model.path={gemma3}", prompts))
    assert "'chat/1' is a turn of a conversation, and this is a base model without a chat template" in line

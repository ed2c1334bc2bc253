"""What the leaderboard says of tables whose figures are known."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from runner.config import JobConfig
from runner.kv_mode import KvModeConfig
from runner.report.quality import interval, leaderboard, shown
from runner.tables import TableWriter, load

F16 = KvModeConfig()
WINDOW = KvModeConfig(name="window", policy="window", budget=512)


class Jobs:
    """Writes jobs that scored texts and voted."""

    def __init__(self, folder: Path) -> None:
        self._writer, self._made = TableWriter(folder), 0

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(
        self, mode: KvModeConfig, nll: Sequence[float], votes: Sequence[tuple[str | None, float]] = (),
        *, reference: Sequence[float] | None = None, kl: float | None = None, **config: Any,
    ) -> str:  # fmt: skip
        job_id, write = f"job{self._made}", self._writer.append
        self._made += 1
        whole = replace(JobConfig(), kv_mode=mode, **config)
        write(
            "jobs",
            job_id=job_id,
            status="done",
            model="smol",
            model_digest="d",
            config=json.dumps(asdict(whole)),
        )
        write(
            "plans",
            job_id=job_id,
            status="fits",
            budget_cells=mode.budget_cells(4000),
            kv_bytes=2**20 * (3 - mode.evicts),
        )
        for number, value in enumerate(nll):
            write(
                "scores", job_id=job_id, prompt_id=f"t{number}", text_digest=f"d{number}", tokens=9, nll=value,
                kl_to_reference=kl, floor_kl=0.001, top1_agreement=0.75, status="ok",
                nll_reference=None if reference is None else reference[number],
            )  # fmt: skip
        for number, (winner, margin) in enumerate(votes):
            write(
                "votes", job_id=job_id, prompt_id=f"p{number}", tally_id="m", rule="majority", winner=winner,
                votes=2, workers=3, margin=margin, tie=winner is None, abstained=0, correct=winner == "1",
            )  # fmt: skip
        return job_id


def rows(folder: Path, *jobs: str) -> dict[str, dict[str, Any]]:
    board = leaderboard(load(folder), jobs or None)
    return {f"{row['mode']}@{row['budget']}": row for row in board.to_dict("records")}


def test_the_interval_is_the_bootstraps() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    low, high = interval(values)
    error = 2.0 / np.sqrt(400)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.05)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.05)
    assert interval(values) == (low, high)
    assert interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    # Of two values a mean is either or halfway, a quarter, a quarter and a half of the time.
    assert interval([0.0, 1.0]) == (0.0, 1.0)
    assert all(np.isnan(interval([1.0])))


def test_texts_are_compared_in_pairs(tmp_path: Path) -> None:
    """Texts that differ much make no interval wide, where the mode costs each of them the same."""
    base = [1.0, 2.0, 4.0]
    with Jobs(tmp_path) as jobs:
        jobs.add(F16, base, reference=base, kl=0.0)
        jobs.add(WINDOW, [x + 0.1 for x in base], reference=base, kl=0.2)
        jobs.add(replace(WINDOW, budget=256), [x + 0.3 for x in base])  # no reference of its own
    found = rows(tmp_path)
    assert list(found) == ["f16@0", "window@512", "window@256"]
    window = found["window@512"]
    assert window["nll"] == pytest.approx(np.mean(base) + 0.1)
    assert window["ppl"] == pytest.approx(np.exp(np.mean(base) + 0.1))
    for end in ("", "_low", "_high"):
        assert window[f"nll_difference{end}"] == pytest.approx(0.1)
        assert found["window@256"][f"nll_difference{end}"] == pytest.approx(0.3)
    assert (window["kl_to_reference"], window["floor_kl"], window["texts"]) == pytest.approx((0.2, 0.001, 3))
    assert (found["f16@0"]["kv_bytes"], window["kv_bytes"]) == (3 * 2**20, 2 * 2**20)
    assert found["f16@0"]["reference"] and not window["reference"]


def test_verdicts_are_compared_with_those_of_the_same_questions(tmp_path: Path) -> None:
    votes = [("1", 1.0), ("1", 0.5), ("2", 0.5), (None, 0.0)]
    with Jobs(tmp_path) as jobs:
        jobs.add(F16, [1.0], votes)
        jobs.add(F16, [1.0], [("9", 1.0)] * 4, seed=1)  # another swarm: nothing to compare with
        jobs.add(WINDOW, [1.0], [("1", 0.5), (None, 0.0), ("2", 0.5), (None, 0.0)])
        jobs.add(replace(WINDOW, budget=256), [1.0], [("3", 1.0)] * 4)
        jobs.add(replace(WINDOW, budget=128), [1.0], votes, seed=2)
    found = rows(tmp_path)
    one = found["window@512"]
    assert (one["flip_rate"], one["margin_change"], one["prompts"]) == (0.25, -0.25, 4)
    assert (one["flip_rate_low"], one["flip_rate_high"]) == (0.0, 0.75)
    assert -0.5 <= one["margin_change_low"] < -0.25 < one["margin_change_high"] <= 0.0
    assert one["accuracy"] == 0.25
    all_flip = found["window@256"]
    assert (all_flip["flip_rate"], all_flip["flip_rate_low"], all_flip["accuracy"]) == (1.0, 1.0, 0.0)
    assert np.isnan(found["window@128"]["flip_rate"]) and found["window@128"]["accuracy"] == 0.5
    assert np.isnan(found["f16@0"]["flip_rate"])


def test_modes_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    h2o = KvModeConfig(name="h2o", policy="h2o", budget=512)
    with Jobs(tmp_path) as jobs:
        jobs.add(h2o, [2.0])
        jobs.add(replace(h2o, recent=0.5, options={"decay": 0.9}), [1.0])
        # What a mode without a policy ignores makes no other mode of it.
        jobs.add(replace(F16, budget=512), [1.0])
        jobs.add(replace(F16, budget=256), [3.0])
    board = leaderboard(load(tmp_path))
    assert board["mode"].tolist()[0] == "f16" and board["nll"][0] == 2.0
    assert sorted(board["mode"][1:]) == ["h2o recent=0.25", "h2o recent=0.5 decay=0.9"]


def test_only_these_jobs_and_only_whole_texts(tmp_path: Path) -> None:
    with Jobs(tmp_path) as jobs:
        jobs.add(F16, [9.0])
        mine = jobs.add(F16, [1.0], seed=1)
        jobs._writer.append(
            "scores", job_id=mine, prompt_id="cut", text_digest="c", tokens=2, nll=50.0, status="interrupted"
        )
    assert rows(tmp_path, mine)["f16@0"]["nll"] == 1.0
    with Jobs(tmp_path / "none"):
        pass
    assert leaderboard(load(tmp_path / "none")).empty


def test_what_a_person_sees(tmp_path: Path) -> None:
    votes = [("1", 1.0), ("2", 0.5)]
    with Jobs(tmp_path) as jobs:
        jobs.add(F16, [1.0, 2.0], votes, reference=[1.0, 2.0], kl=0.0)
        jobs.add(WINDOW, [1.25, 2.5], [("1", 1.0), ("1", 0.5)], reference=[1.0, 2.0], kl=0.5)
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(shown(leaderboard(load(tmp_path))))
    text = captured.get()
    for part in (
        "+0.375",
        "+0.250 +0.500",
        "0.00 1.00",
        "0.001",
        "window",
        "2.0 MiB",
        "512",
        "2 texts and 2 prompts",
    ):
        assert part in text, text

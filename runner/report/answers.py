"""How many questions each KV mode answers, how many of those that f16 answers, and what that took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from rich import box
from rich.markup import escape
from rich.table import Table

from runner.report.intervals import figure, interval

_MIB = 2**20


def of_f16(votes: pd.DataFrame) -> dict[str, Any]:
    """Of the questions that f16 answers right, the share that these votes do, with its interval.

    Args:
        votes: with ``correct``, and ``correct_f16`` where f16 was asked the same.
    """
    both = votes[votes["correct_f16"].fillna(False).astype(bool)]["correct"].astype("float64")
    low, high = interval(both)
    return {"of_f16": both.mean(), "of_f16_low": low, "of_f16_high": high}


def of_costs(jobs: pd.DataFrame) -> dict[str, Any]:
    """What jobs took together, ``jobs`` being rows of that table; null where none of them says.

    ``prefill_tok_s`` is of the documents' and questions' own tokens, in the seconds that probes took too.
    """
    names = ["seconds", "prefill_s", "prefill_tokens", "probe_tokens"]
    sums = jobs.reindex(columns=names).astype("float64").sum(min_count=1)
    return {
        "seconds": sums["seconds"],
        "prefill_tok_s": sums["prefill_tokens"] / sums["prefill_s"]
        if sums["prefill_s"] > 0
        else float("nan"),
        "probe_tokens": sums["probe_tokens"],
    }


def answered(board: pd.DataFrame) -> Table:
    """What a leaderboard says of questions, for the terminal; a column that says nothing is left out."""
    board = board[board["prompts"] > 0]
    table = Table(box=box.SIMPLE_HEAD, padding=0, title="questions answered")
    columns: list[tuple[str, bool, Callable[[Any], str]]] = []

    def column(name: str, shown: bool, cell: Callable[[Any], str], *, words: bool = False) -> None:
        if shown:
            columns.append((name, words, cell))

    column("model", board["model"].nunique() > 1, lambda row: escape(row.model), words=True)
    column("asked", bool((board["asked"] != "").any()), lambda row: escape(row.asked), words=True)
    column("budget", bool((board["budget"] > 0).any()), lambda row: str(row.budget or "all"))
    column("kv_mode", True, lambda row: escape(row.mode), words=True)
    column("right", bool(board["accuracy"].notna().any()), lambda row: f"{row.right}/{row.graded}")
    column("of f16's", bool(board["of_f16"].notna().any()), _of_f16)
    column("KV MiB", True, lambda row: f"{row.kv_bytes / _MIB:.1f}")
    column("s", bool(board["seconds"].notna().any()), lambda row: figure(row.seconds, ".0f"))
    column("tok/s", bool(board["prefill_tok_s"].notna().any()), lambda row: figure(row.prefill_tok_s, ".0f"))
    column("probes", bool(board["probe_tokens"].fillna(0).any()), lambda row: figure(row.probe_tokens, ".0f"))
    for name, words, _ in columns:
        if words:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in board.itertuples():
        table.add_row(*(cell(row) for _, _, cell in columns))
    table.caption = (
        "right: votes with the expected answer; of f16's: of those that f16 has right, with a 95 % bootstrap "
        "interval; tok/s: of prefill, the time of probes in it"
    )
    return table


def _of_f16(row: Any) -> str:
    if pd.isna(row.of_f16):
        return ""
    return f"{row.of_f16:.2f} ({figure(row.of_f16_low, '.2f')}-{figure(row.of_f16_high, '.2f')})"

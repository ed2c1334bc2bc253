"""What each KV mode costs at each budget: texts against the f16 reference, verdicts against its votes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.markup import escape
from rich.table import Table

from runner.report.answers import of_costs, of_f16
from runner.report.intervals import figure, interval
from runner.tables import Tables

__all__ = ["interval", "leaderboard", "shown"]

_ROW = ["model", "asked", "mode", "budget"]
_OF_CELLS = ("k", "v", "swa_full", "codec")
_TOLD = ("survivors", "show_kept")
"""What a mode tells of what it does, which changes nothing of that."""
_OF_ANSWERS = ("seed", "in_flight", "swarm_size", "context_strategy", "prompts", "sampling")
"""What two jobs must share for their votes to be on the same: what is asked and how, not what is kept of it."""

_MIB = 2**20


def leaderboard(tables: Tables, job_ids: Collection[str] | None = None) -> pd.DataFrame:
    """A row for each model, set of prompts, KV mode and budget, the best of a budget first; budget 0 keeps all.

    ``asked`` says what the prompts' config has otherwise than that of other rows. Texts count alike, however long.
    ``nll_difference`` is to the reference that a text was compared with or, where there was none, to f16's own
    score. A verdict is a vote's winner, none on a tie and where all abstained: ``flip_rate`` is the share of
    prompts whose verdict is not f16's, ``margin_change`` the mean of the margin less f16's, ``of_f16`` the share
    of those that f16 has right which are right here too. ``_low`` and ``_high`` are 95 % bootstrap intervals, over
    texts or over prompts. Jobs that neither scored nor voted are left out.

    Args:
        tables: of any folder.
        job_ids: of these jobs alone.
    """
    jobs = _jobs(tables, job_ids)
    if jobs.empty:
        return pd.DataFrame(columns=_ROW)
    scores = _with_reference(tables.scores[tables.scores["status"] == "ok"].merge(jobs, on="job_id"))
    votes = _with_f16(tables.votes.merge(jobs, on="job_id"))
    ran = jobs[jobs["job_id"].isin([*scores["job_id"], *votes["job_id"]])]
    rows = []
    for key, mine in ran.groupby(_ROW):
        texts, verdicts = (rows_[rows_["job_id"].isin(mine["job_id"])] for rows_ in (scores, votes))
        own = {"kv_bytes": mine["kv_bytes"].max(), "reference": bool(mine["reference_job"].all())}
        costs = of_costs(tables.jobs[tables.jobs["job_id"].isin(mine["job_id"])])
        rows.append(dict(zip(_ROW, key, strict=True)) | own | _of_texts(texts) | _of_votes(verdicts) | costs)
    if not rows:
        return pd.DataFrame(columns=_ROW)
    order = ["model", "asked", "budget", "nll_difference", "accuracy"]
    return pd.DataFrame(rows).sort_values(order, key=_best_first, kind="stable", ignore_index=True)


def _best_first(column: pd.Series[Any]) -> pd.Series[Any]:
    """Everything kept before the largest budget, that before smaller ones; more right answers before fewer."""
    if column.name == "budget":
        return -column.where(column > 0, np.inf)
    return -column if column.name == "accuracy" else column


def _jobs(tables: Tables, job_ids: Collection[str] | None) -> pd.DataFrame:
    """By ``job_id`` the row of the leaderboard that it belongs to, and what its votes must share with f16's."""
    jobs = tables.jobs if job_ids is None else tables.jobs[tables.jobs["job_id"].isin(list(job_ids))]
    jobs = jobs[["job_id", "model", "model_digest", "config"]].merge(
        tables.plans[["job_id", "budget_cells", "kv_bytes"]], on="job_id"
    )
    configs = [json.loads(config) for config in jobs.pop("config")]
    modes = [_effective(config["kv_mode"]) for config in configs]
    return jobs.assign(
        mode=_labels([mode["name"] for mode in modes], modes),
        asked=_labels([""] * len(configs), [_flat(_questions(config["prompts"])) for config in configs]),
        budget=jobs.pop("budget_cells").fillna(0).astype("int64"),
        reference_job=[_is_reference(mode) for mode in modes],
        settings=[
            json.dumps({key: config[key] for key in _OF_ANSWERS}, sort_keys=True) for config in configs
        ],
    )


def _effective(mode: Mapping[str, Any]) -> dict[str, Any]:
    """What of a mode's config does anything, but for the budget; a policy's own numbers stand beside the rest."""
    if mode["policy"] == "none":
        return {key: mode[key] for key in ("name", *_OF_CELLS)}
    kept = {key: value for key, value in mode.items() if key not in ("budget", "options", *_TOLD)}
    return _flat({**kept, **mode["options"]})


def _questions(prompts: Mapping[str, Any]) -> dict[str, Any]:
    """What of the prompts' config makes questions of another sort; those of other seeds are more of the same."""
    return {key: value for key, value in prompts.items() if key not in ("texts", "seed")}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``config`` without groups in it, their keys with a point between."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _is_reference(mode: Mapping[str, Any]) -> bool:
    return "policy" not in mode and (mode["k"], mode["v"], mode["codec"]) == ("f16", "f16", "none")


def _labels(names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each name, with those keys of its config that another config of that name has otherwise."""
    labels = []
    for name, config in zip(names, configs, strict=True):
        others = [other for called, other in zip(names, configs, strict=True) if called == name]
        differs = [key for key in config if any(other.get(key) != config[key] for other in others)]
        labels.append(" ".join([name, *(f"{key}={config[key]}" for key in differs)]).strip())
    return labels


def _with_reference(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores with ``nll_difference``."""
    same_text = ["model_digest", "text_digest"]
    f16 = scores[scores["reference_job"]].groupby(same_text)["nll"].mean().rename("nll_f16").reset_index()
    scores = scores.merge(f16, on=same_text, how="left")
    return scores.assign(nll_difference=scores["nll"] - scores["nll_reference"].fillna(scores["nll_f16"]))


def _with_f16(votes: pd.DataFrame) -> pd.DataFrame:
    """Votes with ``flip`` and ``margin_change``, those that f16 was asked too; f16's own have neither."""
    same = ["model_digest", "settings", "prompt_id", "tally_id"]
    f16 = votes[votes["reference_job"]].drop_duplicates(same)
    votes = votes.merge(
        f16[[*same, "winner", "margin", "correct"]],
        on=same,
        how="left",
        suffixes=("", "_f16"),
        indicator=True,
    )
    paired = (votes["_merge"] == "both") & ~votes["reference_job"]
    flip = votes["winner"].fillna("") != votes["winner_f16"].fillna("")
    return votes.assign(
        correct_f16=votes["correct_f16"].where(paired),
        flip=flip.astype("float64").where(paired),
        margin_change=(votes["margin"] - votes["margin_f16"]).where(paired),
    )


def _of_texts(scores: pd.DataFrame) -> dict[str, Any]:
    """The columns that come from texts, each counted once however many jobs scored it."""
    names = ["nll", "nll_difference", "kl_to_reference", "top1_agreement", "floor_kl", "floor_top1_agreement"]
    texts = scores.groupby("text_digest")[names].mean()
    low, high = interval(texts["nll_difference"].dropna())
    means = texts.mean()
    return {
        "texts": len(texts),
        "ppl": float(np.exp(means["nll"])),
        **{str(name): float(value) for name, value in means.items()},
        "nll_difference_low": low,
        "nll_difference_high": high,
    }


def _of_votes(votes: pd.DataFrame) -> dict[str, Any]:
    """The columns that come from votes."""
    flips, margins = votes["flip"].dropna(), votes["margin_change"].dropna()
    flip_low, flip_high = interval(flips)
    margin_low, margin_high = interval(margins)
    correct = votes["correct"].astype("float64")
    return {
        "prompts": len(votes),
        "graded": int(correct.notna().sum()),
        "right": int(correct.sum()),
        "accuracy": correct.mean(),
        **of_f16(votes),
        "flip_rate": flips.mean(),
        "flip_rate_low": flip_low,
        "flip_rate_high": flip_high,
        "margin_change": margins.mean(),
        "margin_change_low": margin_low,
        "margin_change_high": margin_high,
    }


def shown(board: pd.DataFrame) -> Table:
    """What a leaderboard says of texts, for the terminal: a section for each budget, in 80 columns."""
    board = board[board["texts"] > 0]
    table = Table(box=box.SIMPLE_HEAD, padding=0, title="leaderboard per budget")
    several, asked = board["model"].nunique() > 1, bool(board["prompts"].sum())
    names = ["model"] * several + ["budget", "kv_mode", "ppl", "NLL - f16", "KL", "top-1"]
    for name in names + ["flips", "margin", "right"] * asked:
        if name in ("model", "kv_mode"):
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    before = None
    for row in board.to_dict("records"):
        if before is not None and before != (row["model"], row["budget"]):
            table.add_section()
        before = (row["model"], row["budget"])
        cells = [escape(row["model"])] * several + [
            str(row["budget"] or "all"),
            f"{escape(row['mode'])}\n{row['kv_bytes'] / _MIB:.1f} MiB",
            figure(row["ppl"], ".2f"),
            _ranged(row, "nll_difference", "+.3f"),
            f"{figure(row['kl_to_reference'], '.2g')}\n{figure(row['floor_kl'], '.1g')}",
            f"{figure(row['top1_agreement'], '.3f')}\n{figure(row['floor_top1_agreement'], '.3f')}",
        ]
        if asked:
            cells += [_ranged(row, "flip_rate", ".2f"), _ranged(row, "margin_change", "+.2f")]
            cells += [figure(row["accuracy"], ".2f")]
        table.add_row(*cells)
    of = f"{int(board['texts'].max())} texts" + f" and {int(board['prompts'].max())} prompts" * asked
    table.caption = (
        f"below: KV memory; 95 % bootstrap intervals over {of}; and of KL and top-1 the floor, "
        "f16 against itself in another micro-batch size"
    )
    return table


def _ranged(row: Mapping[Any, Any], name: str, form: str) -> str:
    """A figure, and its interval in the line below."""
    value, low, high = (row[name + end] for end in ("", "_low", "_high"))
    return f"{figure(value, form)}\n{figure(low, form)} {figure(high, form)}"

"""Plans on the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from runner.planning.hardware.budget import GIB, gib
from runner.planning.plan import Plan
from runner.planning.remedies import sufficient

if TYPE_CHECKING:
    from runner.answers import Answer

View = Literal["text", "markdown", "json"]
_Rows = list[list[str]]


def _size(name: str) -> Callable[[Plan], str]:
    return lambda plan: f"{getattr(plan, name) / GIB:.2f}"


_COLUMNS: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("model", lambda plan: plan.model),
    ("quant", lambda plan: plan.quant),
    ("hardware", lambda plan: plan.hardware),
    ("kv_mode", lambda plan: plan.kv_mode),
    ("workers", lambda plan: str(plan.workers)),
    ("policy", lambda plan: plan.policy),
    ("window", lambda plan: f"{plan.window_tokens}"),
    ("budget", lambda plan: f"{plan.budget_cells}" if plan.budget_cells else ""),
    ("cells", lambda plan: f"{plan.cells}"),
    ("weights", _size("weights_bytes")),
    ("kv", _size("kv_bytes")),
    ("recurrent", _size("recurrent_bytes")),
    ("compute", _size("compute_bytes")),
    ("total", _size("total_bytes")),
    ("available", _size("available_bytes")),
    ("status", lambda plan: plan.status if plan.weights == "resident" else f"{plan.status}, mapped"),
    ("spilled", lambda plan: _size("spill_bytes")(plan) if plan.spill_bytes else ""),
    ("missing", lambda plan: _size("missing_bytes")(plan) if plan.missing_bytes else ""),
)
"""Columns of a grid's table; sizes are GiB."""


def many(answers: Sequence[Answer], view: View) -> str:
    """A table with a row for each answer; sizes in GiB, but in JSON in bytes."""
    if view == "json":
        return _json(answers)
    plans = [answer.plan for answer in answers if answer.plan is not None]
    left_out = set() if any(plan.quant for plan in plans) else {"quant"}
    left_out |= set() if any(plan.budget_cells for plan in plans) else {"policy", "budget", "cells"}
    shown = [(name, show) for name, show in _COLUMNS if name not in left_out]
    rows: _Rows = [[name for name, _ in shown]]
    for answer in answers:
        if answer.plan is None:
            known = answer.row()
            rows.append([str(known.get(name, "")) for name, _ in shown])
        else:
            rows.append([show(answer.plan) for _, show in shown])
    if view == "markdown":
        return _markdown(rows)
    fits = sum(not answer.refused for answer in answers)
    reasons = sorted({answer.error for answer in answers if answer.error})
    said = "".join(f"refused: {reason}\n" for reason in reasons[:_MOST_REASONS])
    return f"{_aligned(rows)}{said}{fits} of {len(answers)} can run; sizes in GiB\n"


_MOST_REASONS = 10


def single(answers: Sequence[Answer], view: View, solve: str | None = None) -> str:
    """One plan in full, or what ``solve`` found."""
    if view == "json":
        return _json(answers)
    if solve == "both":
        return many(answers, view)
    return "".join(_full(answer, view, solve) for answer in answers)


def _json(answers: Sequence[Answer]) -> str:
    rows: list[dict[str, Any]] = [
        answer.row() | {"overrides": list(answer.overrides), "steps": [step.row() for step in answer.steps]}
        for answer in answers
    ]
    return json.dumps(rows, indent=1) + "\n"


def _full(answer: Answer, view: View, solve: str | None) -> str:
    plan = answer.plan
    if plan is None:
        return f"refused: {answer.error}\n"
    table = _markdown if view == "markdown" else _aligned
    name = f"{plan.model} {plan.quant}".strip()
    lines = [f"{name} on {plan.hardware}, kv_mode={plan.kv_mode}, {plan.workers} workers: {_verdict(plan)}"]
    if solve is not None:
        lines.append(_found(plan, solve))
    where = f"{plan.processes} processes of {plan.cells}" if plan.processes > 1 else f"{plan.cells}"
    lines.append(
        f"window {plan.window_tokens} tokens ({plan.window_policy}): the prompt and {plan.suffix_tokens} for an "
        f"answer; {where} cells, K {plan.kv_type_k}, V {plan.kv_type_v}, flash attention "
        f"{'on' if plan.flash_attn else 'off'}"
    )
    if plan.budget_cells:
        lines.append(evicting(plan))
    text = "\n".join(lines) + "\n\n" + table(_kinds(plan)) + "\n" + _pools(plan)
    if plan.reason:
        text += f"{plan.reason}\n"
    text += "".join(f"note: {note}\n" for note in plan.notes)
    if answer.steps:
        text += "\nremedies, the mildest first:\n" + table(_steps(answer))
        if enough := sufficient(answer.steps):
            done = "taken" if answer.steps[0].applied or any(s.applied for s in answer.steps) else "fits with"
            text += f"{done}: {' '.join(enough)}\n"
    return text + (f"\n{plan.llama_server}\n" if plan.llama_server else "")


def evicting(plan: Plan) -> str:
    """What an eviction mode keeps, in one line."""
    chosen = {"head": "each head its own", "layer": "each layer its own", "token": "all layers the same"}
    who = "the youngest" if plan.policy == "window" else chosen[plan.granularity]
    return (
        f"policy {plan.policy} keeps {plan.budget_cells} of these tokens, {who}, and evicts every "
        f"{plan.chunk_tokens} tokens of prefill; the cells are the same for any longer prompt"
    )


def _verdict(plan: Plan) -> str:
    if plan.status == "refused":
        return f"does not fit, {gib(plan.missing_bytes)} are missing"
    if plan.status == "spilled":
        where = "in host memory" if plan.weights == "resident" else "paged from the model's file"
        return f"fits with {gib(plan.spill_bytes)} {where}"
    return "fits" if plan.weights == "resident" else "fits, with its weights paged from their file"


def _found(plan: Plan, solve: str) -> str:
    if plan.status == "refused":
        return f"solve={solve}: not even the smallest fits"
    return f"solve={solve}: {plan.workers if solve == 'workers' else plan.window_tokens}"


def _kinds(plan: Plan) -> _Rows:
    rows = [["kind", "bytes", "", "source"]]
    for kind, source in plan.sources.items():
        size = getattr(plan, f"{kind}_bytes")
        if size:
            rows.append([kind, f"{size:,}", gib(size), source])
    return [*rows, ["total", f"{plan.total_bytes:,}", gib(plan.total_bytes), ""]]


def _pools(plan: Plan) -> str:
    hardware = plan.request.hardware
    if hardware.unified:
        return f"unified memory: {gib(plan.ram_bytes)} of {gib(hardware.ram_budget)}\n"
    card = f"VRAM: {gib(plan.vram_bytes)} of {gib(hardware.vram_budget)}; " if hardware.vram_budget else ""
    return f"{card}RAM: {gib(plan.ram_bytes)} of {gib(hardware.ram_budget)}\n"


def _steps(answer: Answer) -> _Rows:
    rows = [["", "override", "saves", "remedy", "cost"]]
    for step in answer.steps:
        mark = "*" if step.sufficient else ""
        rows.append([mark, step.override, gib(step.saved_bytes), step.remedy, step.reason])
    return rows


def _aligned(rows: _Rows) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    number = [_is_number(rows, column) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, number, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _markdown(rows: _Rows) -> str:
    rule = ["---:" if _is_number(rows, column) else "---" for column in range(len(rows[0]))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def _is_number(rows: _Rows, column: int) -> bool:
    cells = [row[column] for row in rows[1:] if row[column]]
    return bool(cells) and all(cell[0].isdigit() for cell in cells)

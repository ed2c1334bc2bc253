"""``docs/compatibility.md``, written from the rules: what with what, why, what to do, and a matrix of KV types."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import yaml

from runner.config import JobConfig
from runner.kv_mode import KvModeConfig
from runner.parsing import conf_dir, parse
from runner.planning.compatibility import RULES
from runner.planning.facts import Facts
from runner.planning.model.profile import Layer, ModelProfile
from runner.planning.rules import Rule

_INTRO = """\
# Options that cannot work together

This page is generated: `python -m runner.planning.compatibility_page > docs/compatibility.md`. The rules are data
in `runner/planning` (`compatibility.py`, `eviction_rules.py`). A test walks the combinations of models, hardware,
KV modes, flash attention, windows, workers, spill, prompts and prompts in flight, so many of them that every three
options meet: each one plans, or is refused by the first of these rules that it breaks.

`python -m runner` and `python -m runner.plan` hold a job against the same rules before anything is fetched or
loaded; what an option does not declare of its model is known once the file is here. A refusal is one line with the
options as they are set, the reason and the remedy, and exit status 2. What merely does not fit, memory or window,
is no matter of this page: the plan refuses that with the bytes or tokens that are missing.

## The rules
"""

_MATRIX = """\
## KV types, flash attention and kinds of model

A cell is `yes`, or the number of the rule that forbids it. Types of your own (`kv_mode.k`, `kv_mode.v`) meet the
same rules: what matters is which of the two are stored in blocks (`q8_0` to `iq4_nl`), and whether they differ.
"""

_NUMBERS = (
    "sequences",
    "most_in_flight",
    "head_k",
    "head_v",
    "kept",
    "least_budget",
    "least_sliding",
    "probe",
    "probed",
    "least_probed",
    "recent",
    "most_every",
    "unread",
)

_Flash = Literal["auto", "on", "off"]
_FLASH: tuple[_Flash, ...] = ("auto", "on", "off")


def page() -> str:
    """The whole page, in Markdown."""
    rules = [_row("", "What", "With what", "Why", "What to do"), _row(*["---"] * 5)]
    rules += [_rule(number, rule) for number, rule in enumerate(RULES, 1)]
    return "\n".join([_INTRO, *rules, "", _MATRIX, *_matrix(), ""])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(number: int, rule: Rule) -> str:
    first, *more = (words for _, words in rule.sides)
    numbers = dict.fromkeys(_NUMBERS, "N")
    remedies = [f"`{override.format_map(numbers)}`" for override in rule.overrides]
    remedies += [rule.otherwise] if rule.otherwise else []
    return _row(
        str(number), first, " and ".join(more), rule.reason.format_map(numbers), ", or ".join(remedies)
    )


def _matrix() -> Iterator[str]:
    kinds = _kinds()
    yield _row("`kv_mode`", "`flash_attn`", *kinds)
    yield _row(*["---"] * (2 + len(kinds)))
    # One row for all modes and settings whose verdicts are the same.
    modes: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for mode in _kv_modes():
        settings: dict[tuple[str, ...], list[str]] = {}
        for flash in _FLASH:
            config = JobConfig(kv_mode=mode, flash_attn=flash)
            verdicts = tuple(_verdict(Facts(config, profile)) for profile in kinds.values())
            settings.setdefault(verdicts, []).append(flash)
        rows = tuple((", ".join(flashes), *verdicts) for verdicts, flashes in settings.items())
        modes.setdefault(rows, []).append(mode.name)
    for rows, names in modes.items():
        for row in rows:
            yield _row(", ".join(names), *row)


def _verdict(facts: Facts) -> str:
    return next((str(number) for number, rule in enumerate(RULES, 1) if rule.applies(facts)), "yes")


def _kv_modes() -> list[KvModeConfig]:
    files = sorted((conf_dir() / "kv_mode").glob("*.yaml"))
    return [parse(KvModeConfig, yaml.safe_load(file.read_text())) for file in files]


def _kinds() -> dict[str, ModelProfile]:
    """A model of each kind, as far as its cache goes; experts are in the FFN and make no difference to it."""
    return {
        "dense or mixture of experts": _model("llama", [Layer("full", 8, 128, 128)]),
        "sliding window": _model("gemma3", [Layer("sliding", 8, 256, 256), Layer("full", 8, 256, 256)]),
        "hybrid": _model("qwen35moe", [Layer("recurrent", state_bytes=1), Layer("full", 2, 256, 256)]),
        "MLA": _model("deepseek2", [Layer("full", 1, 576, 0)]),
        "heads of 80": _model("llama", [Layer("full", 32, 80, 80)]),
        "Grok": _model("grok", [Layer("full", 8, 128, 128)]),
    }


def _model(arch: str, layers: Sequence[Layer]) -> ModelProfile:
    return ModelProfile(
        arch,
        tuple(layers),
        len(layers),
        n_embd=1,
        n_head=1,
        n_ff=1,
        n_vocab=1,
        n_ctx_train=1,
        weights_bytes=1,
    )


if __name__ == "__main__":
    sys.stdout.write(page())

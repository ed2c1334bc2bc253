"""The compatibility matrix: a combination of options plans, or a rule refuses it and says why and what to do."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import one_line, runner
from tiny_models import WRITERS

from runner.config import (
    HardwareConfig,
    JobConfig,
    KvModeConfig,
    ModelConfig,
    ProfileConfig,
    PromptsConfig,
    SpillConfig,
    StrategyConfig,
    SwarmConfig,
    TextsConfig,
    WindowConfig,
    WorkersConfig,
    defaults,
)
from runner.engine.context import Context, ContextParams
from runner.engine.weights import Weights
from runner.errors import ConfigError, EngineError, PlanRefusedError
from runner.kv_mode import ProbeConfig
from runner.overrides import with_overrides
from runner.parsing import conf_dir, parse
from runner.planner import Planner
from runner.planning.ask import facts_of
from runner.planning.compatibility import RULES, Rule
from runner.planning.compatibility_page import page
from runner.planning.facts import Facts
from runner.planning.hardware.budget import GIB
from runner.planning.model.gguf_header import from_gguf

ROOT = Path(__file__).parent.parent.parent


def options(group: str, cls: type[Any]) -> list[Any]:
    """Every option of a group, as Hydra composes it where it stands alone."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    assert files
    return [parse(cls, {**defaults()[group], **(yaml.safe_load(file.read_text()) or {})}) for file in files]


DIMS = {"n_layer": 4, "n_embd": 1024, "n_head": 8, "n_ff": 2048, "n_vocab": 32_000, "n_ctx_train": 32_768,
        "weights_bytes": 10**8}  # fmt: skip
MLA = ModelConfig(
    name="mla", profile=ProfileConfig(arch="deepseek2", n_head_kv=1, head_dim_k=576, head_dim_v=0, **DIMS)
)
HEADS_OF_80 = ModelConfig(
    name="heads_of_80", profile=ProfileConfig(arch="llama", n_head_kv=8, head_dim_k=80, head_dim_v=80, **DIMS)
)
GROK = ModelConfig(
    name="grok", profile=ProfileConfig(arch="grok", n_head_kv=8, head_dim_k=128, head_dim_v=128, **DIMS)
)
DRAFTING = ModelConfig(
    name="drafting",
    profile=ProfileConfig(arch="qwen3", n_head_kv=8, head_dim_k=128, head_dim_v=128, n_mtp_layer=1, **DIMS),
)
BASE = ModelConfig(name="base", chat=False, profile=HEADS_OF_80.profile)
LLAMA = next(model for model in options("model", ModelConfig) if model.name == "smollm2")
GEMMA = next(model for model in options("model", ModelConfig) if model.name == "gemma3_270m")
QUANTS = next(model for model in options("model", ModelConfig) if model.quants)
MAC = next(hardware for hardware in options("hardware", HardwareConfig) if hardware.unified)

CHAT = PromptsConfig(name="inline", items=[{"messages": [{"role": "user", "content": "Is 91 prime?"}]}])
PLAIN = replace(CHAT, items=["Is 91 prime?", "Is 93?", "Is 97?"])
SYSTEM = replace(CHAT, items=[{"prompt": "Is 91 prime?", "system": "Be brief."}])
LONG = replace(CHAT, items=["What is the last word? " + 2000 * "word "])
GUIDED = KvModeConfig(policy="guided", budget=768)
LONG_PROBE = ProbeConfig(texts=["Which words of this text are about it? {question}"])
TURNS = replace(CHAT, items=[{"turns": ["Is 91 prime?", "And 97?"]}])

AXES: dict[str, list[Any]] = {
    "model": [m for m in options("model", ModelConfig) if m.profile] + [MLA, HEADS_OF_80, GROK],
    "hardware": options("hardware", HardwareConfig),
    "kv_mode": options("kv_mode", KvModeConfig),
    "flash_attn": ["auto", "on", "off"],
    "window": [
        WindowConfig(),
        WindowConfig(policy="fixed", tokens=4096),
        WindowConfig(policy="fixed"),
        WindowConfig(policy="ladder"),
    ],
    "workers": options("workers", WorkersConfig),
    "spill": [SpillConfig(kv=kv, weights=weights) for kv in (False, True) for weights in ("none", "auto")],  # type: ignore[arg-type]
    "prompts": [PLAIN, CHAT, TURNS, LONG],
    "in_flight": [1, 3],
}  # fmt: skip

SAMPLED = 20_000


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner()


def cells() -> Iterator[tuple[int, ...]]:
    """:data:`SAMPLED` of all combinations, as the numbers of their options, spread evenly by a golden stride."""
    sizes = [len(values) for values in AXES.values()]
    total = math.prod(sizes)
    stride = int(total * (math.sqrt(5) - 1) / 2)
    while math.gcd(stride, total) != 1:
        stride += 1
    for n in range(min(SAMPLED, total)):
        rest, digits = n * stride % total, []
        for size in sizes:
            rest, digit = divmod(rest, size)
            digits.append(digit)
        yield tuple(digits)


def facts(planner: Planner, config: JobConfig) -> Facts:
    """All that is known of a job, or its config alone where its model cannot be."""
    if config.model.path is not None or config.model.profile is None:
        return Facts(config)
    return facts_of(
        config, planner.profile(config.model), planner.hardware(config.hardware), planner.workload(config)
    )


def broken(facts: Facts) -> Rule | None:
    return next((rule for rule in RULES if rule.applies(facts)), None)


def test_every_combination_plans_or_is_refused_by_a_rule(planner: Planner) -> None:
    """Of all combinations an even sample, in which every two and every three options meet at least once."""
    sampled = list(cells())
    for axes in (2, 3):
        for chosen in combinations(range(len(AXES)), axes):
            met = {tuple(cell[axis] for axis in chosen) for cell in sampled}
            assert len(met) == math.prod(len(list(AXES.values())[axis]) for axis in chosen), chosen
    outcomes: Counter[str] = Counter()
    evicting: Counter[str] = Counter()
    for cell in sampled:
        values = {axis: AXES[axis][number] for axis, number in zip(AXES, cell, strict=True)}
        config = JobConfig(**values)
        known = facts(planner, config)
        rule = broken(known)
        try:
            outcome = planner.plan(config).status
            assert rule is None, (rule, values)
        except PlanRefusedError:
            assert rule is None, (rule, values)
            outcome = "refused"
        except ConfigError as error:
            assert rule is not None, (error, values)
            assert str(error) == rule.line(known)
            outcome = rule.name
        outcomes[outcome] += 1
        evicting[outcome] += config.kv_mode.evicts
    assert {"fits", "spilled", "refused"} < set(outcomes)
    assert evicting["fits"] > 100 and evicting["spilled"] > 100


def job(**values: Any) -> JobConfig:
    return JobConfig(**{"model": LLAMA, **values})


BREAKERS: dict[str, JobConfig] = {
    "fixed-window-without-length": job(window=WindowConfig(policy="fixed")),
    "length-without-fixed-window": job(window=WindowConfig(tokens=4096)),
    "quant-of-own-file": job(model=replace(QUANTS, quant="auto", path="own.gguf")),
    "quant-without-quants": job(model=replace(MLA, quant="Q8_0")),
    "auto-quant-without-profile": job(model=replace(QUANTS, quant="auto", profile=None)),
    "unified-with-vram": job(hardware=HardwareConfig(ram=16 * GIB, vram=8 * GIB, unified=True)),
    "cards-without-vram": job(hardware=HardwareConfig(cards=2)),
    "base-model-with-system": job(model=BASE, prompts=PromptsConfig(system="Be brief.")),
    "base-model-with-chat": job(model=BASE, prompts=SYSTEM),
    "turns-in-flight": job(prompts=TURNS, in_flight=2),
    "shortened-turns": job(prompts=TURNS, context_strategy=StrategyConfig(name="compress")),
    "quantised-v-without-flash": job(flash_attn="off", kv_mode=KvModeConfig(v="iq4_nl")),
    "quantised-v-where-flash-is-not": job(model=GROK, kv_mode=KvModeConfig(k="q8_0", v="q8_0")),
    "flash-where-it-is-not": job(model=GROK, flash_attn="on"),
    "two-types-in-one-row": job(model=MLA, kv_mode=KvModeConfig(k="f32")),
    # The engine takes this one without a word, and its logits are not numbers.
    "k-blocks-in-heads": job(model=HEADS_OF_80, kv_mode=KvModeConfig(k="q8_0"), flash_attn="off"),
    "v-blocks-in-heads": job(model=HEADS_OF_80, kv_mode=KvModeConfig(v="q8_0")),
    "more-sequences-than-a-context": job(
        prompts=PLAIN, swarm_size=SwarmConfig(workers=128), in_flight=3, n_ubatch=64
    ),
    "codec-in-other-cells": job(kv_mode=KvModeConfig(codec="fp8", k="q8_0")),
    "attention-with-flash": job(kv_mode=KvModeConfig(policy="snapkv"), flash_attn="on"),
    "attention-with-quantised-v": job(kv_mode=KvModeConfig(policy="h2o", k="q8_0", v="q8_0")),
    "probes-that-nobody-asks": job(kv_mode=KvModeConfig(policy="window", probe=ProbeConfig(every=2))),
    "compaction-without-policy": job(kv_mode=KvModeConfig(positions="compact")),
    "compaction-of-fp8": job(kv_mode=KvModeConfig(policy="h2o", positions="compact", codec="fp8")),
    "probes-without-document": job(kv_mode=GUIDED, prompts=LONG),
    "probes-of-scored-texts": job(kv_mode=GUIDED, prompts=PromptsConfig(texts=TextsConfig(count=1))),
    "budget-below-probe": job(kv_mode=replace(GUIDED, budget=60, probe=LONG_PROBE)),
    "probe-longer-than-chunk": job(kv_mode=replace(GUIDED, chunk=32)),
    "probe-longer-than-micro-batch": job(kv_mode=GUIDED, n_ubatch=32),
    "chunks-that-leave-unasked": job(kv_mode=replace(GUIDED, budget=512, probe=ProbeConfig(every=2))),
    "budget-of-sinks-alone": job(kv_mode=KvModeConfig(policy="window", budget=4)),
    "nothing-to-choose": job(kv_mode=KvModeConfig(policy="keydiff", recent=1.0)),
    "budget-below-sliding-window": job(
        model=GEMMA, prompts=LONG, kv_mode=KvModeConfig(policy="window", budget=515)
    ),
    "shared-choice-in-sliding-window": job(
        model=GEMMA, prompts=LONG, kv_mode=KvModeConfig(policy="mean", granularity="token")
    ),
    "layer-weights-alone": job(kv_mode=KvModeConfig(policy="mean", layer_weights=[1.0, 2.0])),
    "eviction-in-flight": job(kv_mode=KvModeConfig(policy="keydiff"), in_flight=2),
    "eviction-with-turns": job(kv_mode=KvModeConfig(policy="window"), prompts=TURNS),
    "more-sequences-than-a-chunk": job(
        prompts=LONG, kv_mode=KvModeConfig(policy="tova", chunk=32), swarm_size=SwarmConfig(workers=60)
    ),
    "more-sequences-than-a-batch": job(swarm_size=SwarmConfig(workers=60), n_ubatch=32),
    "spilled-cache-in-one-pool": job(hardware=MAC, spill=SpillConfig(kv=True)),
    "drafts-without-heads": job(speculative="mtp"),
}
"""A job for each rule that breaks it, and none before it."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_why_and_its_remedies_mend_it(rule: Rule, planner: Planner) -> None:
    config = BREAKERS[rule.name]
    known = facts(planner, config)
    assert broken(known) is rule
    with pytest.raises(ConfigError) as error:
        planner.plan(planner.chosen(config))
    line = str(error.value)
    assert line == rule.line(known)
    before, _, after = line.partition(": ")
    reason, _, remedy = after.rpartition("; ")
    assert " with " in before and len(reason) > 20 and "{" not in line
    overrides = rule.typed(known)
    assert overrides or rule.otherwise
    assert all(override in remedy for override in overrides) and remedy.endswith(rule.otherwise)
    for override in overrides:
        assert not rule.applies(facts(planner, with_overrides(config, [override]))), override


def test_a_model_with_draft_heads_drafts(planner: Planner) -> None:
    assert planner.plan(job(model=DRAFTING, speculative="mtp")).status == "fits"


def test_grok_is_planned_without_flash_attention(planner: Planner) -> None:
    assert not planner.plan(job(model=GROK)).flash_attn


SHAPES = {
    "llama": {"n_embd": 256},
    "heads_of_80": {"n_embd": 320},
    "qwen35moe": {},
    "deepseek2": {},
    "lfm2": {},
}


@pytest.mark.parametrize("kind", SHAPES)
def test_the_engine_agrees(kind: str, tmp_path: Path) -> None:
    """What no rule forbids gives numbers; what one forbids llama.cpp refuses, or gives none."""
    path = WRITERS[kind if kind in WRITERS else "llama"](tmp_path / "tiny.gguf", **SHAPES[kind])
    weights, profile = Weights(path), from_gguf(path)
    types = ("f16", "bf16", "q8_0", "q4_0")
    for k, v, flash_attn in product(types, types, (True, False)):
        config = JobConfig(kv_mode=KvModeConfig(k=k, v=v), flash_attn="on" if flash_attn else "off")
        allowed = broken(Facts(config, profile)) is None
        assert _gives_numbers(weights, k, v, flash_attn) == allowed, (k, v, flash_attn)
    weights.close()


def _gives_numbers(weights: Weights, k: str, v: str, flash_attn: bool) -> bool:
    params = ContextParams(
        n_ctx=256, n_seq_max=1, n_ubatch=64, kv_type_k=k, kv_type_v=v, flash_attn=flash_attn, swa_full=False,
        n_threads=1,
    )  # fmt: skip
    try:
        context = Context(weights, params)
    except EngineError:
        return False
    logits = context.decode(range(1, 33), range(32), [0] * 32, [False] * 31 + [True])
    finite = bool(np.isfinite(logits).all())
    context.close()
    return finite


def test_the_page_is_the_rules() -> None:
    """``python -m runner.planning.compatibility_page > docs/compatibility.md``."""
    assert (ROOT / "docs" / "compatibility.md").read_text() == page()


PAIRS = [
    (["kv_mode=h2o", "kv_mode.v=q8_0"],
     "kv_mode.policy=h2o with kv_mode.v=q8_0: a quantised V needs flash attention, which never writes down the "
     "attention that the policy looks at; set kv_mode.v=f16, or choose a policy that looks at none, as "
     "kv_mode=keydiff or kv_mode=window"),
    (["kv_mode=h2o", "flash_attn=on"], "kv_mode.policy=h2o with flash_attn=on: "),
    (["kv_mode=h2o", "kv_mode.budget=3"], "kv_mode.budget=3 with kv_mode.sinks=4: "),
    (["kv_mode=guided", "prompts.items=[Why?]"],
     "kv_mode.policy=guided with a prompt without a document: the question guides how a document is read, and "
     "this prompt has none; give its long part as `document`, or choose another kv_mode, as kv_mode=evict"),
    (["kv_mode=fp8", "kv_mode.k=q8_0"], "kv_mode.codec=fp8 with kv_mode.k=q8_0 and kv_mode.v=f16: "),
    (["kv_mode=k8v4", "flash_attn=off"],
     "kv_mode.v=q4_0 with flash_attn=off: a quantised V needs flash attention; "
     "set flash_attn=on or kv_mode.v=f16"),
    (["model=gemma3_270m", "prompts=inline", "prompts.items=[{messages: [{role: user, content: hi}]}]"],
     "model=gemma3_270m with chat prompts: a base model has no chat template"),
    (["prompts.items=[{turns: [a, b]}]", "in_flight=2"], "in_flight=2 with prompts with turns: "),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), PAIRS, ids=lambda value: str(value)[:40])
def test_both_verbs_refuse_alike(arguments: list[str], said: str, tmp_path: Path) -> None:
    """In one line, with nothing fetched."""
    cache = tmp_path / "cache"
    environment = os.environ | {"KVSWARM_CACHE": str(cache)}
    line = one_line(runner(tmp_path, *arguments, env=environment))
    assert said in line
    assert one_line(runner(tmp_path, *arguments, module="runner.plan", env=environment)) == line
    assert not list(cache.rglob("*.gguf*"))


@pytest.mark.parametrize(
    ("mode", "least"),
    [
        (KvModeConfig(policy="h2o"), 512),
        (KvModeConfig(policy="window"), 516),
        (KvModeConfig(policy="window", sinks=16), 528),
        (KvModeConfig(policy="h2o", granularity="token", recent=0.5), 1028),
    ],
)
def test_a_sliding_window_stays_whole(mode: KvModeConfig, least: int, planner: Planner) -> None:
    """Sliding layers lose what leaves; the newest cells stay, or with tokens for all layers the recent ones."""
    for cells in (least - 1, least):
        config = job(model=GEMMA, prompts=LONG, kv_mode=replace(mode, budget=cells))
        assert (broken(facts(planner, config)) is None) == (cells == least)


def test_a_share_is_judged_by_the_cells_that_it_comes_to(planner: Planner) -> None:
    few = job(kv_mode=KvModeConfig(policy="h2o", budget=0.01), prompts=PLAIN)
    rule = broken(facts(planner, few))
    assert rule is not None and rule.name == "budget-of-sinks-alone"
    assert broken(Facts(few)) is None, "before the prompts are known nothing is"
    assert broken(facts(planner, replace(few, prompts=LONG))) is None


def test_isolated_workers_are_planned_not_run(tmp_path: Path) -> None:
    line = one_line(runner(tmp_path, "workers=isolated", "prompts.items=[Why?]"))
    assert "workers=isolated" in line and "python -m runner.plan" in line
    done = runner(tmp_path, "workers=isolated", "hardware=cpu_16gb", module="runner.plan")
    assert done.returncode == 0 and "fits" in done.stdout

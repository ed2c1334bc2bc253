"""Weights and cells that a plan moves off a card: without a card they stay, and nothing else may change."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import swarm
from planned import AUTO, KIB, MIB, card, plan
from tiny_models import write_qwen35, write_qwen35moe

from runner.config import SamplingConfig
from runner.engine.context import Context, context_params
from runner.engine.dryrun import LogLines
from runner.engine.weights import Weights
from runner.planning.model.gguf_header import from_gguf
from runner.planning.model.weights_map import FFN
from runner.planning.plan import Plan
from runner.planning.spill import Spill

GREEDY = SamplingConfig(temperature=0, max_tokens=12)
PROMPT = "Say in a few words what the sea is like in winter."


def texts(path: Path, made: Plan) -> tuple[list[str], list[str], list[str]]:
    """What three workers say, the tensors that were placed by name, and the sizes of the weights' buffers."""
    spill = made.spill
    with LogLines() as log:
        weights = Weights(
            path, n_gpu_layers=made.n_gpu_layers, on_host=spill.overrides if spill is not None else ()
        )
    context = Context(weights, replace(context_params(made), n_threads=1))
    group = swarm.group(weights, "p", PROMPT)
    said = swarm.texts(swarm.run(weights, context, [group], GREEDY)["p"])
    context.close()
    weights.close()
    lines = "\n".join(log.lines)
    placed = re.findall(r"tensor (\S+) \(.*buffer type overridden", lines)
    return said, placed, re.findall(r"\S+ model buffer size = +[\d.]+ MiB", lines)


def unchanged(path: Path, moved: Plan) -> list[str]:
    """The tensors that ``moved`` names, after its workers said what they say without it."""
    at_home = plan(from_gguf(path), prefix=200, workers=3)
    said, placed, buffers = texts(path, replace(moved, cells=at_home.cells, n_seq_max=at_home.n_seq_max))
    assert moved.offload_kqv is False and moved.n_gpu_layers > 0
    assert (said, [], buffers) == texts(path, at_home)
    assert any(said)
    return placed


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_dense_ffn(model: str, request: pytest.FixtureRequest) -> None:
    """Gemma's has Q4_K matrices, whose copies for the CPU at hand must be made all the same."""
    path = request.getfixturevalue(model)
    moved = Spill(3, (rf"blk\.(0|2|10){FFN}",), n_cpu_ffn=3)
    made = replace(plan(from_gguf(path), prefix=200), spill=moved, n_gpu_layers=3, offload_kqv=False)
    names = [f"blk.{block}.ffn_{part}.weight" for block in (0, 2, 10) for part in ("down", "gate", "up")]
    assert sorted(unchanged(path, made)) == sorted(names)


def test_experts_of_a_mixture(tmp_path: Path) -> None:
    path = write_qwen35moe(tmp_path / "moe.gguf")
    made = spilled(path)
    assert made.spill is not None and made.spill.n_cpu_moe
    names = [
        f"blk.{block}.ffn_{part}_exps.weight"
        for block in range(made.spill.n_cpu_moe)
        for part in ("down", "gate", "up")
    ]
    assert sorted(unchanged(path, made)) == sorted(names)


def test_the_ffn_of_a_hybrids_recurrent_blocks(tmp_path: Path) -> None:
    path = write_qwen35(tmp_path / "dense.gguf")
    made = spilled(path)
    assert made.spill is not None and made.spill.n_cpu_ffn
    placed = unchanged(path, made)
    assert len(placed) == 3 * made.spill.n_cpu_ffn
    assert all(re.fullmatch(r"blk\.\d+\.ffn_(down|gate|up)\.weight", name) for name in placed)


def spilled(path: Path) -> Plan:
    """The plan of a card that is short of some of the weights, with the cells on the host."""
    profile = from_gguf(path)
    ample = plan(profile, card(64 * MIB), prefix=200, workers=3, spill=replace(AUTO, kv=True))
    return plan(
        profile, card(ample.vram_bytes - 60 * KIB), prefix=200, workers=3, spill=replace(AUTO, kv=True)
    )

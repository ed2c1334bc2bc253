"""Models, machines and plans in a few words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.config import JobConfig, RecurrentConfig, SpillConfig
from runner.kv_mode import KvModeConfig
from runner.models.catalogue import named
from runner.overrides import with_overrides
from runner.parsing import parse
from runner.planning.ask import Workload, request_for
from runner.planning.hardware.budget import GIB, Gpu, Hardware, Machine, probe
from runner.planning.model.profile import Block, Layer, ModelProfile, from_config
from runner.planning.plan import Plan
from runner.planning.request import Demand, Request
from runner.planning.resolve import resolve

MIB = 2**20
KIB = 1024
Q8 = KvModeConfig("q8_0", "q8_0", "q8_0")
AUTO = SpillConfig(weights="auto")

SMALL = ModelProfile(
    "llama", (Layer("full", 3, 64, 64),) * 30, n_layer=30, n_embd=576, n_head=9, n_ff=1536, n_vocab=49_152,
    n_ctx_train=8192, weights_bytes=96_576_768,
)  # fmt: skip
"""SmolLM2, of whose blocks nothing is known."""


def model(blocks: list[Block], *, ctx: int = 262_144, tied: bool = False, mtp: int = 0) -> ModelProfile:
    """A model of ``blocks``: recurrent ones with a state of 4 MiB, the others with 1,024 elements of K and V."""
    attention, recurrent = Layer("full", 4, 128, 128), Layer("recurrent", state_bytes=4 * MIB)
    inputs, outputs = 300 * MIB, 200 * MIB
    mixture = any(block.expert_bytes for block in blocks)
    return ModelProfile(
        "qwen3moe" if mixture else "llama", tuple(recurrent if b.recurrent else attention for b in blocks),
        n_layer=len(blocks), n_embd=2048, n_head=16, n_ff=2048, n_vocab=100_000, n_ctx_train=ctx,
        weights_bytes=inputs + sum(b.total_bytes for b in blocks) + (0 if tied else outputs) + mtp,
        n_expert=64 if mixture else 0, n_expert_used=8 if mixture else 0, n_ff_expert=512 if mixture else 0,
        recurrent=RecurrentConfig(4, 2048, 128, 8) if any(b.recurrent for b in blocks) else None,
        blocks=tuple(blocks), block_of_layer=tuple(range(len(blocks))), input_bytes=inputs,
        output_bytes=outputs, tied=tied, n_mtp_layer=1 if mtp else 0, mtp_bytes=mtp,
    )  # fmt: skip


DENSE = model([Block(100 * MIB, 200 * MIB)] * 16)
MIXTURE = model([Block(60 * MIB, 10 * MIB, 400 * MIB)] * 16)
HYBRID = model([Block(100 * MIB, 200 * MIB, recurrent=n % 4 != 3) for n in range(16)])


def declared(name: str) -> ModelProfile:
    """A model of ``conf/model``."""
    profile = named(name).profile
    assert profile is not None
    return from_config(profile)


def host(ram: int = 50 * GIB) -> Hardware:
    return Hardware("host", 64 * GIB, 60 * GIB, ram)


def card(vram: int, ram: int = 50 * GIB, cards: int = 1) -> Hardware:
    share = vram // cards
    return replace(host(ram), name="card", gpus=(Gpu("card", share, share),) * cards, vram_budget=vram)


def unified(pool: int) -> Hardware:
    return replace(host(pool), name="unified", gpus=(Gpu("one", pool, pool),), vram_budget=pool, unified=True)


def ask(
    profile: ModelProfile = SMALL, hardware: Hardware | None = None, *, prefix: int = 1000, suffix: int = 64,
    workers: int = 1, in_flight: int = 1, n_seq_max: int | None = None, documents: bool = False,
    conversation: bool = False, processes: int = 1, **changes: Any,
) -> Request:  # fmt: skip
    """A request; ``changes`` are its own attributes."""
    demand = Demand(
        prefix, suffix, workers, in_flight, n_seq_max=n_seq_max or in_flight * -(-workers // processes),
        documents=documents, conversation=conversation, processes=processes,
    )  # fmt: skip
    request = Request(
        profile, hardware or host(), "small", KvModeConfig(), window=JobConfig().window, demand=demand,
        flash_attn=True, n_ubatch=512, n_threads=1,
    )  # fmt: skip
    return replace(request, **changes)


def plan(profile: ModelProfile = SMALL, hardware: Hardware | None = None, **changes: Any) -> Plan:
    """The plan of :func:`ask`."""
    return resolve(ask(profile, hardware, **changes))


def job(*overrides: str, model: str = "llama31_8b") -> JobConfig:
    """A job of a shipped model on a declared machine, with overrides as a person types them."""
    config: JobConfig = parse(JobConfig, {"model": named(model), "hardware": {"name": "mine", "vram": 0}})
    return with_overrides(config, overrides)


def again(config: JobConfig, tokens: int = 2000, **known: Any) -> Plan:
    """The plan of a job whose longest prompt has ``tokens``, on the machine that it declares."""
    assert config.model.profile is not None
    profile = from_config(config.model.profile)
    hardware = probe(config.hardware, can_offload=True, machine=Machine(threads=4))
    return resolve(request_for(config, profile, hardware, Workload(tokens, **known), {}))

"""What a plan is asked for: the model, the memory there is, and what the prompts and the swarm need of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from runner.config import SpillConfig, WindowConfig
from runner.kv_mode import KvModeConfig
from runner.planning.hardware.budget import Hardware
from runner.planning.model.profile import ModelProfile
from runner.planning.prefill import Asked


@dataclass(frozen=True)
class Demand:
    """What the prompts and the swarm ask for, in tokens.

    Attributes:
        prefix_tokens: the longest prompt, its document included: prefilled once a prompt.
        suffix_tokens: the longest answer: one for each worker.
        workers: answers a prompt.
        in_flight: prompts decoded at once.
        n_seq_max: sequences that a context must hold.
        outputs: tokens of one micro-batch whose logits are wanted; 0 is one a sequence.
        documents: whether prompts share documents, each of which keeps cells of its own; with eviction, a copy in
            host memory between its prompts.
        conversation: whether prompts have turns; their window climbs the ladder unless it is fixed.
        processes: processes with a context each: the workers of an isolated swarm. Each serves
            ``workers / processes`` of them.
        probe_tokens: the longest probe, which stands beside a chunk and what is kept.
        asked: what every prompt is prefilled with; empty where that is not known, as of conversations.
    """

    prefix_tokens: int
    suffix_tokens: int
    workers: int = 1
    in_flight: int = 1
    n_seq_max: int = 1
    outputs: int = 0
    documents: bool = False
    conversation: bool = False
    processes: int = 1
    probe_tokens: int = 0
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True)
class Request:
    """Everything that :func:`runner.planning.plan.resolve` depends on.

    Attributes:
        weights: ``resident`` refuses weights that would be paged from their file.
        speculative: whether the llama-server command may draft with the model's own heads.
        mmproj_bytes: a vision projector beside the model.
        source: how llama-server finds the model: ``-m FILE`` or ``-hf REPO -hff FILE``.
        quant: the name of the model's file among its quants.
    """

    profile: ModelProfile
    hardware: Hardware
    model_name: str
    kv_mode: KvModeConfig
    window: WindowConfig
    demand: Demand
    flash_attn: bool
    n_ubatch: int
    n_threads: int
    spill: SpillConfig = field(default_factory=SpillConfig)
    weights: Literal["auto", "resident"] = "auto"
    speculative: Literal["auto", "mtp", "off"] = "off"
    mmproj_bytes: int = 0
    source: tuple[str, ...] = ()
    quant: str = ""

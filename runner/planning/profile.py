"""What a model remembers, layer by layer: all that a plan needs to know of it, from a header or a config."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kvcache import budget
from runner.config import ProfileConfig, RecurrentConfig
from runner.errors import ConfigError
from runner.planning import architectures

LayerKind = Literal["full", "sliding", "recurrent"]


@dataclass(frozen=True)
class Layer:
    """One thing that remembers: attention over all positions, over a window, or a recurrent state.

    Attributes:
        kind: ``full`` and ``sliding`` keep cells, ``recurrent`` keeps a state per sequence.
        n_head_kv: KV heads; 0 for a recurrent layer.
        head_dim_k: elements of one head's K.
        head_dim_v: elements of one head's V; 0 where the cache keeps no V (MLA).
        state_bytes: bytes of one sequence's recurrent state; 0 for attention.
    """

    kind: LayerKind
    n_head_kv: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0
    state_bytes: int = 0


@dataclass(frozen=True)
class ModelProfile:
    """A model as the planner sees it.

    Attributes:
        arch: llama.cpp's architecture name.
        layers: what remembers, in order. A block that holds nothing (an FFN alone, a shared KV cache) has no
            entry, a block with attention beside a recurrent state has two; ``n_layer`` counts blocks.
        n_embd, n_head, n_ff, n_vocab: width, query heads, FFN width, vocabulary.
        n_ctx_train: the native context in tokens.
        sliding_window: tokens that a sliding layer sees; 0 where there is none.
        weights_bytes: bytes of all tensors.
        n_expert, n_expert_used, n_ff_expert: experts a block, experts a token, width of an expert.
        recurrent: dimensions of the recurrent layers, None where there is none.
        approximate: ``weights_bytes`` was not read from the file.
        known: False where the architecture is not modelled; then only the engine's dry run is exact.
    """

    arch: str
    layers: tuple[Layer, ...]
    n_layer: int
    n_embd: int
    n_head: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    weights_bytes: int
    sliding_window: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    recurrent: RecurrentConfig | None = None
    approximate: bool = False
    known: bool = True

    @cached_property
    def groups(self) -> tuple[tuple[Layer, int], ...]:
        """The distinct layers and how many there are of each; keeps the arithmetic short."""
        return tuple(Counter(self.layers).items())

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of one sequence's recurrent state over all layers."""
        return sum(layer.state_bytes for layer in self.layers)

    @cached_property
    def widest_v(self) -> int:
        """Elements of the widest V row; without flash attention llama.cpp pads every layer's V to it."""
        return max((layer.n_head_kv * layer.head_dim_v for layer in self.layers), default=0)

    def kv_bytes(
        self, cells: int, sliding_cells: int, kv_type_k: str, kv_type_v: str, *, flash_attn: bool = True
    ) -> int:
        """Bytes of the KV cache with ``cells`` cells a full layer and ``sliding_cells`` a sliding one.

        Exactly what ``llama_kv_cache`` allocates for K and V.

        Raises:
            ValueError: the type's blocks do not fit the heads (as :func:`kvcache.budget.row_bytes`).
        """
        total = 0
        for layer, count in self.groups:
            if layer.kind == "recurrent":
                continue
            v_elements = layer.n_head_kv * layer.head_dim_v
            if v_elements and not flash_attn:
                v_elements = self.widest_v
            row = budget.row_bytes(kv_type_k, layer.n_head_kv * layer.head_dim_k)
            row += budget.row_bytes(kv_type_v, v_elements)
            total += count * row * (cells if layer.kind == "full" else sliding_cells)
        return total


def from_config(config: ProfileConfig) -> ModelProfile:
    """The profile that ``conf/model`` declares for a model whose file is not here.

    Raises:
        ConfigError: recurrent layers without their dimensions, or a window without its pattern.
    """
    if (config.full_attention_interval is None) != (config.recurrent is None):
        raise ConfigError(
            "model.profile: full_attention_interval and recurrent (d_conv, d_inner, d_state, n_group) go "
            "together; give both or neither"
        )
    if (config.sliding_window is None) != (config.sliding_pattern is None):
        raise ConfigError(
            "model.profile: sliding_window and sliding_pattern go together; give both or neither"
        )
    attention = Layer("full", config.n_head_kv, config.head_dim_k, config.head_dim_v)
    layers: list[Layer] = []
    for index in range(config.n_layer):
        if config.full_attention_interval is not None and (index + 1) % config.full_attention_interval:
            layers.append(Layer("recurrent", state_bytes=_ssm_bytes(config.recurrent)))
        elif config.sliding_pattern is not None and (index + 1) % config.sliding_pattern:
            layers.append(Layer("sliding", config.n_head_kv, config.head_dim_k, config.head_dim_v))
        else:
            layers.append(attention)
    return ModelProfile(
        arch=config.arch,
        layers=tuple(layers),
        n_layer=config.n_layer,
        n_embd=config.n_embd,
        n_head=config.n_head,
        n_ff=config.n_ff,
        n_vocab=config.n_vocab,
        n_ctx_train=config.n_ctx_train,
        weights_bytes=config.weights_bytes,
        sliding_window=config.sliding_window or 0,
        n_expert=config.n_expert,
        n_expert_used=config.n_expert_used,
        n_ff_expert=config.n_ff_expert,
        recurrent=config.recurrent,
        approximate=config.approximate,
        known=architectures.is_known(config.arch),
    )


def _ssm_bytes(dims: RecurrentConfig | None) -> int:
    assert dims is not None
    return budget.ssm_state_bytes(dims.d_conv, dims.d_inner, dims.d_state, dims.n_group)

"""What a model remembers, layer by layer: all that a plan needs to know of it, from a header or a config."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from kvcache import budget
from runner.config import ProfileConfig, RecurrentConfig
from runner.planning.model import architectures, declared, weights_estimate
from runner.planning.model.architectures import LayerKind
from runner.planning.model.weights_map import Block

__all__ = ["Block", "Layer", "LayerKind", "ModelProfile", "from_config"]


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
        blocks: what each of the ``n_layer`` blocks weighs; empty where nothing is known of the tensors.
        block_of_layer: for each of ``layers`` the number of its block.
        input_bytes: token embeddings and what else llama.cpp's input layer keeps on the host.
        output_bytes: output head and final norm; with tied embeddings the copy of the embedding that
            llama.cpp makes where the output is on a card, which is no part of ``weights_bytes``.
        tied: the embedding is the output head, too.
        n_mtp_layer: appended draft blocks (``nextn_predict_layers``). llama.cpp counts them in
            ``n_gpu_layers`` and loads them only with ``load_mtp``.
        mtp_bytes: their tensors; 0 where the file leaves them out.

    ``weights_bytes`` is ``input_bytes``, the blocks, ``mtp_bytes`` and, unless tied, ``output_bytes``.
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
    blocks: tuple[Block, ...] = ()
    block_of_layer: tuple[int, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    tied: bool = False
    n_mtp_layer: int = 0
    mtp_bytes: int = 0

    @cached_property
    def groups(self) -> tuple[tuple[Layer, int], ...]:
        """The distinct layers and how many there are of each; keeps the arithmetic short."""
        return tuple(Counter(self.layers).items())

    @cached_property
    def attention_layers(self) -> tuple[tuple[int, Layer], ...]:
        """What keeps cells, each with the number of its block."""
        pairs = zip(self.block_of_layer, self.layers, strict=True)
        return tuple((block, layer) for block, layer in pairs if layer.kind != "recurrent")

    @cached_property
    def full_layers(self) -> tuple[tuple[int, Layer], ...]:
        """Those of them that see every position."""
        return tuple((block, layer) for block, layer in self.attention_layers if layer.kind == "full")

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
            row = self.row_bytes(layer, kv_type_k, kv_type_v, flash_attn=flash_attn)
            total += count * row * (cells if layer.kind == "full" else sliding_cells)
        return total

    def row_bytes(self, layer: Layer, kv_type_k: str, kv_type_v: str, *, flash_attn: bool = True) -> int:
        """Bytes of one cell in ``layer``, K and V; 0 for a recurrent one.

        Raises:
            ValueError: as :meth:`kv_bytes`.
        """
        if layer.kind == "recurrent":
            return 0
        v_elements = layer.n_head_kv * layer.head_dim_v
        if v_elements and not flash_attn:
            v_elements = self.widest_v
        row = budget.row_bytes(kv_type_k, layer.n_head_kv * layer.head_dim_k)
        return row + budget.row_bytes(kv_type_v, v_elements)

    def fp8_bytes(self, cells: int, sliding_cells: int) -> int:
        """Bytes of the cells under the FP8 codec: a byte an element, a float scale a row."""
        total = 0
        for layer, count in self.groups:
            if layer.kind != "recurrent":
                cell = budget.fp8_cell_bytes(layer.n_head_kv, layer.head_dim_k, layer.head_dim_v)
                total += count * cell * (cells if layer.kind == "full" else sliding_cells)
        return total


def from_config(config: ProfileConfig) -> ModelProfile:
    """The profile that ``conf/model`` declares for a model whose file is not here.

    What its blocks weigh is an estimate (:mod:`runner.planning.model.weights_estimate`).

    Raises:
        ConfigError: keys that contradict each other, or what llama.cpp does with ``arch``.
    """
    layout = declared.layout(config)
    layers = [[_layer(config, kind, n_head_kv) for kind in kinds] for n_head_kv, kinds in layout]
    weights = weights_estimate.distribute(config, layout)
    return ModelProfile(
        arch=config.arch,
        layers=tuple(layer for kept in layers for layer in kept),
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
        known=architectures.is_declarable(config.arch),
        blocks=weights.blocks,
        block_of_layer=tuple(index for index, kept in enumerate(layers) for _ in kept),
        input_bytes=weights.input_bytes,
        output_bytes=weights.output_bytes,
        tied=weights.tied,
        n_mtp_layer=config.n_mtp_layer,
        mtp_bytes=weights.mtp_bytes,
    )


def _layer(config: ProfileConfig, kind: LayerKind, n_head_kv: int) -> Layer:
    if kind == "recurrent":
        dims = config.recurrent
        assert dims is not None
        state = budget.ssm_state_bytes(dims.d_conv, dims.d_inner, dims.d_state, dims.n_group)
        return Layer(kind, state_bytes=state)
    return Layer(kind, n_head_kv, config.head_dim_k, config.head_dim_v)

"""What a model's blocks weigh when only its dimensions and its whole size are known: an estimate, never a reading.

The elements of every tensor are counted from the dimensions, then weighed so that the sum is the declared size:
norms, routers and convolutions stay in 32 bits (``tensor_allows_quantization`` in ``llama-quant.cpp``), what a
quantiser spares has at least the bits of an output head, and the rest shares what is left. Spared is the head of
a dense model, and everything but the routed experts of a mixture, since they are where the bytes are. With the
file at hand its header is read instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.config import ProfileConfig, RecurrentConfig
from runner.planning.model import architectures
from runner.planning.model.architectures import LayerKind
from runner.planning.model.declared import Layout
from runner.planning.model.weights_map import Block, WeightsMap, is_recurrent

_Q6_K_BITS, _Q8_0_BITS, _FLOAT_BITS = 6.5625, 8.5, 32.0
_K_BLOCK = 256
_GATED_FFN = 3  # gate, up, down


@dataclass(frozen=True)
class _Elements:
    """How many numbers a block stores; ``floats`` are never quantised."""

    floats: int
    core: int
    ffn: int
    experts: int


@dataclass(frozen=True)
class _Bits:
    """Bits an element: of floats, of what is spared, of the rest."""

    floats: float
    spared: float
    rest: float


def distribute(config: ProfileConfig, layout: Layout) -> WeightsMap:
    """``config.weights_bytes`` over the input, the output, the blocks and the draft heads.

    The parts add up to the declared size exactly; what rounding leaves, a few bytes a block, is the input's.

    Args:
        config: a model's dimensions, consistent with each other.
        layout: what :func:`runner.planning.model.declared.layout` says of its blocks.
    """
    mixture, tied = config.n_expert > 0, config.tied_embeddings
    trunk = [_block(config, index, *block) for index, block in enumerate(layout)]
    drafts = [_draft(config, layout)] * config.n_mtp_layer
    embedding = config.n_embd * config.n_vocab
    norm = 0 if tied else config.n_embd
    bits = _bits(config, [*trunk, *drafts], embedding, norm)
    plain = bits.spared if mixture else bits.rest

    def weigh(elements: _Elements, *, recurrent: bool = False) -> Block:
        core = _bytes(elements.core, plain) + _bytes(elements.floats, bits.floats)
        ffn, experts = _bytes(elements.ffn, plain), _bytes(elements.experts, bits.rest)
        return Block(core, ffn, experts, recurrent)

    blocks = tuple(
        weigh(elements, recurrent=is_recurrent(kinds))
        for elements, (_, kinds) in zip(trunk, layout, strict=True)
    )
    mtp = sum(weigh(elements).total_bytes for elements in drafts)
    head = _bytes(embedding, bits.spared) + _bytes(norm, bits.floats)
    placed = sum(block.total_bytes for block in blocks) + mtp + (0 if tied else head)
    return WeightsMap(blocks, config.weights_bytes - placed, head, tied, mtp)


def _bytes(elements: int, bits: float) -> int:
    return int(elements * bits / 8)


def _bits(config: ProfileConfig, parts: Sequence[_Elements], embedding: int, norm: int) -> _Bits:
    size = 8 * config.weights_bytes
    floats = norm + sum(part.floats for part in parts)
    plain = sum(part.core + part.ffn for part in parts)
    experts = sum(part.experts for part in parts)
    n_embeddings = 1 if config.tied_embeddings else 2
    spared, rest = embedding, plain + experts + (n_embeddings - 1) * embedding
    if config.n_expert:
        spared, rest = plain + n_embeddings * embedding, experts
    average = size / (floats + spared + rest)
    head = _Q8_0_BITS if config.n_embd % _K_BLOCK else _Q6_K_BITS
    bits = _Bits(_FLOAT_BITS, max(head, average), 0.0)
    if rest:
        left = size - floats * bits.floats - spared * bits.spared
        bits = _Bits(bits.floats, bits.spared, left / rest)
    # Below a bit an element the size is of no such file; then nothing better than its average is known.
    return bits if bits.rest >= 1 else _Bits(average, average, average)


def _block(config: ProfileConfig, index: int, n_head_kv: int, kinds: Sequence[LayerKind]) -> _Elements:
    floats, core = 2 * config.n_embd, 0
    for kind in kinds:
        if kind == "recurrent":
            assert config.recurrent is not None
            floats += config.recurrent.d_conv * _convolved(config.recurrent)
            core += _mixer(config, config.recurrent)
        else:
            core += _attention(config, n_head_kv)
    if not config.n_expert or index < config.n_dense_layer:
        return _Elements(floats, core, _GATED_FFN * config.n_embd * config.n_ff, 0)
    width = config.n_ff_expert or config.n_ff
    expert = _GATED_FFN * config.n_embd * width
    shared = expert if config.arch in architectures.SHARED_EXPERT else 0
    return _Elements(floats + config.n_embd * config.n_expert, core, shared, config.n_expert * expert)


def _draft(config: ProfileConfig, layout: Layout) -> _Elements:
    """A head for multi-token prediction: a block with attention, and what joins the embedding to the state."""
    block = _block(config, config.n_layer, max(n_head_kv for n_head_kv, _ in layout), ("full",))
    return _Elements(block.floats, block.core + 2 * config.n_embd**2, block.ffn, block.experts)


def _attention(config: ProfileConfig, n_head_kv: int) -> int:
    """Projections of q, k, v and the output; a gated model's q brings its gate (``llama_model_qwen35moe``)."""
    k, v = config.head_dim_k, config.head_dim_v
    if v == 0:
        return _latent_attention(config.n_embd, config.n_head, k)
    queries = 2 if config.arch in architectures.BY_INTERVAL else 1
    return config.n_embd * (config.n_head * (queries * k + v) + n_head_kv * (k + v))


def _latent_attention(n_embd: int, n_head: int, row: int) -> int:
    """MLA, whose own ranks are not declared: in DeepSeek's proportions, a head has a third of the row for its
    query and two ninths for its value, and the queries' rank is a quarter of the width."""
    rank, query, value = n_embd // 4, row // 3, 2 * row // 9
    queries = n_embd * rank + rank * n_head * query
    return queries + n_embd * row + 2 * n_head * row * value + n_head * value * n_embd


def _mixer(config: ProfileConfig, dims: RecurrentConfig) -> int:
    """Projections into and out of a recurrent layer: what is convolved, a gate as wide, and the output."""
    if config.arch in architectures.SHORT_CONVOLUTION:
        return 4 * config.n_embd * dims.d_inner
    return config.n_embd * (_convolved(dims) + 2 * dims.d_inner)


def _convolved(dims: RecurrentConfig) -> int:
    return dims.d_inner + 2 * dims.n_group * dims.d_state

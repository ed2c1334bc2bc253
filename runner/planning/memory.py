"""The bytes a job needs besides its weights and its cache: compute buffers, scratch, the process itself.

KV and recurrent bytes are exact (:mod:`kvcache.budget`). What is here is a bound from above, fitted to what
the engine's dry run reserves; where a file is at hand the dry run's figure replaces it.
"""

from __future__ import annotations

from kvcache import budget
from runner.planning import architectures
from runner.planning.profile import ModelProfile

PROCESS_BYTES = 160 * 2**20
"""RSS of this process with every module of the runner imported and no model loaded: 131 MiB on x86-64 Linux,
rounded up for the rows, samplers and threads of a running job."""

VOCABULARY_TOKEN_BYTES = 384
"""What llama.cpp keeps per vocabulary entry (text, scores, merges): 373 B for SmolLM2's BPE with 49k merges,
171 B for Gemma's SentencePiece, from the growth of RSS on loading less the weights."""

_FLOAT = budget.FLOAT_BYTES

# Every tensor of a buffer is aligned, and small inputs (token ids, positions) are not worth a formula.
_ALIGNMENT_BYTES = 64 * 1024


def compute_bytes(
    profile: ModelProfile,
    *,
    cells: int,
    sliding_cells: int,
    n_ubatch: int,
    n_seq_max: int,
    n_outputs: int,
    kv_type_k: str,
    kv_type_v: str,
    flash_attn: bool,
) -> int:
    """A bound on llama.cpp's compute and output buffers.

    Per token of a micro-batch the widest moment is the FFN (gate, up and their product beside the residual)
    or, without flash attention, the attention scores over every cell, or a recurrent layer with every
    sequence's state; each cache has a mask. At the end the logits of ``n_outputs`` tokens take their place.

    The coefficients were fitted to dry runs of eleven shapes from SmolLM2 to Qwen3.5-397B, 64 to 512 tokens a
    micro-batch, 512 to 16,384 cells, 1 and 8 sequences: never under, at most 15 % over.
    """
    tokens, sequences = min(cells, n_ubatch), min(n_seq_max, n_ubatch)
    masks = cells + (sliding_cells if profile.sliding_window else 0)
    indices = 8 + 16 * (2 if profile.sliding_window else 1)
    per_token, per_sequence = _recurrent_elements(profile)
    widest = max(
        tokens * _ffn_elements(profile),
        0 if flash_attn else tokens * _score_elements(profile, cells, kv_type_k),
        # Without flash attention the mask is there twice, in two types.
        tokens * (per_token + (0 if flash_attn else cells)) + sequences * per_sequence if per_token else 0,
    )
    body = tokens * ((2 if flash_attn else _FLOAT) * masks + indices) + _FLOAT * widest
    body += _rotation_bytes(profile, kv_type_k, kv_type_v)
    logits = n_outputs * profile.n_vocab * _FLOAT
    output_buffer = max(n_outputs, n_seq_max) * profile.n_vocab * _FLOAT
    return max(body, logits + body // 8) + output_buffer + _ALIGNMENT_BYTES


def _ffn_elements(profile: ModelProfile) -> int:
    experts = profile.n_expert_used * (3 * profile.n_ff_expert + profile.n_embd) + 2 * profile.n_expert
    residuals = 4 if profile.recurrent is not None and _is_mamba(profile) else 3
    return max(3 * profile.n_ff, experts) + residuals * profile.n_embd + _query_elements(profile)


def _score_elements(profile: ModelProfile, cells: int, kv_type_k: str) -> int:
    kv = max((n.n_head_kv * max(n.head_dim_k, n.head_dim_v) for n, _ in profile.groups), default=0)
    query, residuals = _query_elements(profile), 3
    queries = 2 * query
    if profile.arch in architectures.BY_INTERVAL:
        # A second half of the query gates the attention's output; the rotation of K needs the query once more.
        queries = (9 if budget.is_quantised(kv_type_k) else 7) * query // 2
    elif profile.recurrent is not None and _is_mamba(profile):
        residuals = 4
    return profile.n_head * cells + queries + residuals * profile.n_embd + 4 * kv


def _recurrent_elements(profile: ModelProfile) -> tuple[int, int]:
    """Elements per token and per sequence while a recurrent layer runs."""
    dims = profile.recurrent
    if dims is None or dims.d_state == 0:
        return 0, 0
    mixed = dims.d_inner + 2 * dims.n_group * dims.d_state
    state, convolution = dims.d_state * dims.d_inner, (dims.d_conv - 1) * mixed
    if _is_mamba(profile):
        return 3 * mixed + 3 * dims.d_inner + dims.d_inner // 16 + profile.n_embd, state + 2 * convolution
    return 2 * (mixed + dims.d_inner + profile.n_embd), 2 * (state + convolution)


def _is_mamba(profile: ModelProfile) -> bool:
    return profile.arch not in architectures.BY_INTERVAL | architectures.SHORT_CONVOLUTION


def _query_elements(profile: ModelProfile) -> int:
    return profile.n_head * max((layer.head_dim_k for layer, _ in profile.groups), default=0)


def _rotation_bytes(profile: ModelProfile, kv_type_k: str, kv_type_v: str) -> int:
    """Rotation matrices of a quantised cache (``llama_kv_cache::build_input_k_rot``, ``build_input_v_rot``).

    K is rotated over the largest power of two in its head, V over 64, where the head is a multiple of 64 and
    every layer has the same; full and sliding layers have their own cache and matrices.
    """
    sides: list[int] = []
    dims = [layer.head_dim_k for layer, _ in profile.groups if layer.head_dim_k]
    if budget.is_quantised(kv_type_k) and dims and all(dim % 64 == 0 for dim in dims):
        sides.append(max(dim & -dim for dim in dims))
    if budget.is_quantised(kv_type_v):
        sides.append(64)
    return sum(side * side * _FLOAT for side in sides) * (2 if profile.sliding_window else 1)


def overhead_bytes(
    profile: ModelProfile, *, cells: int, n_ubatch: int, flash_attn: bool, n_threads: int
) -> int:
    """Host memory that no log of the engine shows: the process, the vocabulary and the CPU backend's scratch.

    The scratch (``ggml_graph_plan``) holds the widest matrix product's input converted to the weights' dot
    type, at most 2 bytes an element; without flash attention that is the scores over every cell.
    """
    tokens = min(cells, n_ubatch)
    widest = max(profile.n_ff, profile.n_expert_used * profile.n_ff_expert, _query_elements(profile))
    if not flash_attn:
        widest = max(widest, profile.n_head * cells)
    head = max((max(layer.head_dim_k, layer.head_dim_v) for layer, _ in profile.groups), default=0)
    tiles = n_threads * _FLOAT * (64 * 4 * head + 2 * 64 * 64)
    return PROCESS_BYTES + VOCABULARY_TOKEN_BYTES * profile.n_vocab + 2 * widest * tokens + tiles

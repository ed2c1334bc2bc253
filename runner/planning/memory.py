"""The bytes a job needs besides its weights and its cache: compute buffers, scratch, the process itself.

KV and recurrent bytes are exact (:mod:`kvcache.budget`). What is here is a bound from above, fitted to what
the engine's dry run reserves; where a file is at hand the dry run's figure replaces it.
"""

from __future__ import annotations

from kvcache import budget
from runner.planning.profile import ModelProfile

PROCESS_BYTES = 160 * 2**20
"""RSS of this process with every module of the runner imported and no model loaded: 131 MiB on x86-64 Linux,
rounded up for the rows, samplers and threads of a running job."""

VOCABULARY_TOKEN_BYTES = 384
"""What llama.cpp keeps per vocabulary entry (text, scores, merges): 373 B for SmolLM2's BPE with 49k merges,
171 B for Gemma's SentencePiece, from the growth of RSS on loading less the weights."""

_FLOAT = budget.FLOAT_BYTES

# Every tensor of a buffer is aligned, and small inputs (token ids, positions) are not worth a formula.
_ALIGNMENT_BYTES = 32 * 1024


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
    or, without flash attention, the attention scores over every cell; every kind of cache has a mask. At the
    end the logits of ``n_outputs`` tokens take their place.
    """
    tokens = min(cells, n_ubatch)
    masks = cells + (sliding_cells if profile.sliding_window else 0)
    indices = 8 + 16 * (2 if profile.sliding_window else 1)
    row = (
        (2 if flash_attn else _FLOAT) * masks
        + indices
        + _FLOAT * max(_ffn_elements(profile), 0 if flash_attn else _score_elements(profile, cells))
    )
    body = tokens * row + _rotation_bytes(profile, kv_type_k, kv_type_v)
    logits = n_outputs * profile.n_vocab * _FLOAT
    output_buffer = max(n_outputs, n_seq_max) * profile.n_vocab * _FLOAT
    return max(body, logits + body // 8) + output_buffer + _ALIGNMENT_BYTES


def _ffn_elements(profile: ModelProfile) -> int:
    experts = profile.n_expert_used * (3 * profile.n_ff_expert + profile.n_embd) + 2 * profile.n_expert
    return max(3 * profile.n_ff, experts) + 3 * profile.n_embd + _query_elements(profile)


def _score_elements(profile: ModelProfile, cells: int) -> int:
    kv = max(
        (layer.n_head_kv * max(layer.head_dim_k, layer.head_dim_v) for layer, _ in profile.groups), default=0
    )
    return profile.n_head * cells + 3 * _query_elements(profile) + profile.n_embd + 5 * kv


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

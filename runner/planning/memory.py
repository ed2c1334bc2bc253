"""The bytes a job needs besides its weights and its cache: compute buffers, scratch, the process itself.

KV and recurrent bytes are exact (:mod:`kvcache.budget`). What is here is a bound from above, fitted to what
the engine's dry run reserves; where a file is at hand the dry run's figure replaces it.
"""

from __future__ import annotations

from kvcache import budget
from runner.kv_mode import KvModeConfig
from runner.planning.model import architectures
from runner.planning.model.profile import ModelProfile

PROCESS_BYTES = 160 * 2**20
"""RSS of this process with every module of the runner imported and no model loaded: 131 MiB on x86-64 Linux,
rounded up for the rows, samplers and threads of a running job."""

VOCABULARY_TOKEN_BYTES = 384
"""What llama.cpp keeps per vocabulary entry (text, scores, merges): 373 B for SmolLM2's BPE with 49k merges,
171 B for Gemma's SentencePiece, from the growth of RSS on loading less the weights."""

_FLOAT = budget.FLOAT_BYTES

# Three graphs (``llm_graph_result``: the reserved one, one with outputs, one without), each with the struct of a
# tensor (368 B), its place in two lists and in a hash table; and the scheduler's table of where each runs.
_NODE_BYTES = 1400

# No architecture has more tensors a block: 19 in Qwen3.5's, 18 in DeepSeek V2's, 13 in Gemma's, 9 in Llama's.
_BLOCK_TENSORS = 20

# What a matrix product of K-quants keeps of its tiles for each thread (``ggml_tiled_ws_size``).
_TILE_BYTES = 512 * 1024

# What is kept of the token that a head holds in a cell: its position, place and age, the attention it got, of how
# many queries, of probes, and of this batch (40 bytes); what an eviction or a compaction sorts them by, and what
# is remembered of the last one for people to see.
_HELD_TOKEN_BYTES = 88

# An element of K that is rotated: as it is stored and as a float, its pair before and after, and what each pair is
# multiplied by, with the doubles that this is made of.
_ROTATED_BYTES = 40

# Every tensor of a buffer is aligned, and a graph has inputs of a few bytes a sequence.
_ALIGNMENT_BYTES = 24 * 1024


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

    llama.cpp reserves the graph of a whole micro-batch over a full cache, its tokens rounded up to a multiple of
    the sequences (``llama_context::sched_reserve``, ``graph_reserve``). Beside the graph's inputs stands the
    widest moment of its layers: an FFN, attention with its scores or its casts, or a recurrent layer with every
    sequence's state. At the end the logits of ``n_outputs`` tokens take that place.

    What is live at each moment was read off the addresses of real graphs' tensors; the gaps that ggml's
    allocator leaves between them are in the coefficients. Checked against dry runs of 34 models, from tiny ones
    to the blocks of DeepSeek V3 and Qwen3.5-397B, in 17,056 shapes of 32 to 2,048 tokens a micro-batch, 256 to
    17,664 cells and 1 to 25 sequences: never under. With the dimensions of real models and cells of 16 bits or
    less it is 3 % over in the mean and 13 % in 99 of 100 shapes; at worst 26 % (Qwen3.5-0.8B, short prompts),
    with f32 cells under flash attention 27 %, with MLA and no flash attention in a short window 65 %. In the
    shapes of eviction modes, micro-batches from 16 tokens and up to 128 rows of logits, it is never under
    either, and 18 % over at worst, with MLA 43 %.
    """
    tokens = -(-min(cells, n_ubatch) // n_seq_max) * n_seq_max
    inputs = tokens * _input_bytes(profile, cells, sliding_cells, flash_attn=flash_attn)
    body = inputs + _rotation_bytes(profile, kv_type_k, kv_type_v)
    attention, turned = tokens * _attention_elements(profile, kv_type_k), 0
    ffn = tokens * _ffn_elements(profile)
    if flash_attn:
        casts = _cast_elements(profile, cells, kv_type_k, kv_type_v)
        attention += casts
        # A cast is freed before the FFN, but leaves a gap that is too small for its rows.
        ffn += min(casts, tokens * profile.n_embd)
    else:
        attention += tokens * profile.n_head * cells
        if _is_mla(profile):
            # V is a view of K, which must be turned.
            turned = cells * _widest_k(profile) // (1 if kv_type_k == "f32" else 2)
            attention += turned
    body += _FLOAT * max(ffn, attention, _recurrent_elements(profile, tokens, n_seq_max))
    logits = _FLOAT * n_outputs * profile.n_vocab
    if _is_mla(profile):
        # The graph's inputs, or the gap that a turned V leaves, are still there.
        logits += inputs + _FLOAT * turned
    last_rows = _FLOAT * 4 * profile.n_embd * (tokens + n_outputs)
    output_buffer = _FLOAT * max(n_outputs, n_seq_max) * profile.n_vocab
    return max(body, logits + last_rows) + output_buffer + _ALIGNMENT_BYTES


def late_output_bytes(profile: ModelProfile, *, n_outputs: int, n_seq_max: int) -> int:
    """What the output buffer still grows by when a batch first wants ``n_outputs`` tokens' logits.

    A context begins with a row a sequence, whatever it is told to expect (``llama_context::output_reserve``); so
    its log, and with it a dry run, has less than :func:`compute_bytes`.
    """
    return _FLOAT * max(n_outputs - n_seq_max, 0) * profile.n_vocab


def _input_bytes(profile: ModelProfile, cells: int, sliding_cells: int, *, flash_attn: bool) -> int:
    """Bytes of the graph's inputs for one token: id, embedding, position, and for each cache a row of the mask
    and where K and V go; without flash attention V is stored transposed and has an index for each element."""
    caches = 2 if profile.sliding_window else 1
    masked = cells + (sliding_cells if profile.sliding_window else 0)
    v_indices = 1 if flash_attn else _widest_v(profile)
    # IMROPE has four positions a token.
    position = 16 if profile.arch in architectures.BY_INTERVAL else 4
    mask = masked * (2 if flash_attn else _FLOAT)
    return 4 + _FLOAT * profile.n_embd + position + caches * 8 * (1 + v_indices) + mask


def _ffn_elements(profile: ModelProfile) -> int:
    """Gate, up and their product, or the chosen experts' and their outputs, beside the residuals."""
    n_embd = profile.n_embd
    experts = profile.n_expert_used * (3 * profile.n_ff_expert + n_embd) + 2 * profile.n_expert
    dense = not profile.n_expert or not profile.blocks or not all(b.expert_bytes for b in profile.blocks)
    residuals = 10 * n_embd // 3 if _is_mamba(profile) else 2 * n_embd
    query = 0 if _is_mla(profile) else _query_elements(profile)
    return max(3 * profile.n_ff if dense else 0, experts) + residuals + max(query, n_embd)


def _attention_elements(profile: ModelProfile, kv_type_k: str) -> int:
    """The query before and after its rotation beside the residuals; all but the scores and the casts."""
    query, n_embd = _query_elements(profile), profile.n_embd
    if _is_mla(profile):
        # The query is there four times: compressed, split in two, and joined again as wide as the cache's row.
        return 8 * query // 3 + 17 * n_embd // 4
    if profile.arch in architectures.BY_INTERVAL:
        # A second half of the query gates the attention's output; the rotation of K needs the query once more.
        halves = 9 if budget.is_quantised(kv_type_k) else 8
        return halves * query // 2 + (3 if profile.n_expert else 2) * n_embd + 2 * profile.n_expert
    return 2 * query + (3 if _is_mamba(profile) else 2) * n_embd


def _cast_elements(profile: ModelProfile, cells: int, kv_type_k: str, kv_type_v: str) -> int:
    """Floats that the f16 copies of one layer's f32 cells take: flash attention reads no f32
    (``llm_graph_context::build_attn_mha``); with MLA, V is a view of K and copied too."""
    k = _widest_k(profile) if kv_type_k == "f32" else 0
    v = k if _is_mla(profile) else _widest_v(profile) if kv_type_v == "f32" else 0
    return cells * (k + v) // 2


def _recurrent_elements(profile: ModelProfile, tokens: int, sequences: int) -> int:
    """What is live while a recurrent layer runs, over all tokens and sequences."""
    dims = profile.recurrent
    if dims is None or dims.d_state == 0:
        return 0
    mixed = dims.d_inner + 2 * dims.n_group * dims.d_state
    state, convolution = dims.d_state * dims.d_inner, (dims.d_conv - 1) * mixed
    if _is_mamba(profile):
        per_token = 3 * mixed + 3 * dims.d_inner + dims.d_inner // 16
        # The scan with its new states, or its output once more when they have been stored.
        return max(tokens * per_token + sequences * state, tokens * (per_token + dims.d_inner)) + (
            2 * sequences * convolution
        )
    per_token = 3 * mixed + 2 * profile.n_embd
    return tokens * per_token + 2 * sequences * (state + 2 * convolution)


def _widest_k(profile: ModelProfile) -> int:
    return max((layer.n_head_kv * layer.head_dim_k for layer, _ in profile.groups), default=0)


def _widest_v(profile: ModelProfile) -> int:
    return max((layer.n_head_kv * layer.head_dim_v for layer, _ in profile.groups), default=0)


def _is_mla(profile: ModelProfile) -> bool:
    return any(layer.n_head_kv and not layer.head_dim_v for layer, _ in profile.groups)


def _is_mamba(profile: ModelProfile) -> bool:
    others = architectures.BY_INTERVAL | architectures.SHORT_CONVOLUTION
    return profile.recurrent is not None and profile.arch not in others


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
    """Host memory that no log of the engine shows: the process, the vocabulary, the graphs and scratch."""
    tokens = min(cells, n_ubatch)
    scratch = _scratch_bytes(profile, tokens, cells, flash_attn=flash_attn, n_threads=n_threads)
    vocabulary = VOCABULARY_TOKEN_BYTES * profile.n_vocab
    return PROCESS_BYTES + vocabulary + _graph_bytes(profile, tokens) + scratch


def _graph_bytes(profile: ModelProfile, tokens: int) -> int:
    """Nodes of the graphs that a context keeps (``llama_context::graph_max_nodes``)."""
    n_tensors = _BLOCK_TENSORS * profile.n_layer
    if profile.arch in architectures.BY_INTERVAL:
        return _NODE_BYTES * max(40 * tokens, 32 * n_tensors)
    return _NODE_BYTES * max(1024, 8 * n_tensors)


def _scratch_bytes(
    profile: ModelProfile, tokens: int, cells: int, *, flash_attn: bool, n_threads: int
) -> int:
    """The CPU backend's scratch (``ggml_graph_plan``): the widest matrix product's input converted to the
    weights' dot type, at most 2 bytes an element, which without flash attention is the scores over every cell;
    which tokens go to which expert, 8 bytes each; and tiles of every thread."""
    widest = max(profile.n_ff, profile.n_expert_used * profile.n_ff_expert, _query_elements(profile))
    if not flash_attn:
        widest = max(widest, profile.n_head * cells)
    routes = 8 * profile.n_expert * profile.n_expert_used
    head = max((max(layer.head_dim_k, layer.head_dim_v) for layer, _ in profile.groups), default=0)
    tiles = max(_TILE_BYTES, _FLOAT * (64 * 4 * head + 2 * 64 * 64))
    return tokens * (2 * widest + routes) + n_threads * tiles


def eviction_bytes(
    profile: ModelProfile,
    mode: KvModeConfig,
    *,
    cells: int,
    sliding_cells: int,
    kept_cells: int,
    n_ubatch: int,
    n_seq_max: int,
    flash_attn: bool,
    documents: bool,
    on_card: bool,
) -> int:
    """Host memory of an eviction mode beside the cache: a bound.

    The table of what each head of each full-attention layer holds in each cell (one row for all of them where the
    policy looks at nothing and nothing is rotated), and what a policy looks at: keys as floats; where the cache is
    on a card also a copy of one layer's probabilities and cells. With ``documents`` one of them waits between its
    prompts as a copy of its ``kept_cells`` and states, which is there twice while it is read or written. A
    compaction rotates one layer's K as floats, and where the engine cannot shift positions it has the sequence's
    state three times.
    """
    looks = mode.needs != "nothing" or mode.compacts
    full = [(layer, count) for layer, count in profile.groups if layer.kind == "full"]
    rows = sum(layer.n_head_kv * count for layer, count in full) if looks else 1
    size = cells * (rows * _HELD_TOKEN_BYTES + 8 + n_seq_max)
    if mode.needs == "keys":
        # As they are, of unit length, and their products with the mean.
        size += 3 * _FLOAT * cells * _widest_k(profile)
    if mode.reads_values:
        # As they are and their distances, of one layer.
        size += 2 * _FLOAT * cells * _widest_v(profile)
    if on_card and looks:
        row = (profile.row_bytes(layer, mode.k, mode.v, flash_attn=flash_attn) for layer, _ in full)
        size += cells * max(row, default=0)
    if on_card and mode.needs == "attention":
        size += _FLOAT * profile.n_head * n_ubatch * cells
    window = min(sliding_cells, kept_cells if mode.swa_full else profile.sliding_window + n_ubatch)
    state = profile.kv_bytes(kept_cells, window, mode.k, mode.v, flash_attn=flash_attn) + profile.state_bytes
    copies = 0
    if mode.compacts:
        size += _ROTATED_BYTES * max(cells, sliding_cells) * _widest_k(profile)
        copies = 3 if _rewrites_positions(profile, mode) else 0
    if documents:
        size += kept_cells * rows * _HELD_TOKEN_BYTES
        copies = copies + 1 if copies else 2
    return size + copies * state


def _rewrites_positions(profile: ModelProfile, mode: KvModeConfig) -> bool:
    """Whether the engine cannot shift the positions of a cache, as far as a profile tells: IMROPE, a quantised K,
    sliding-window layers with a smaller cache, and MLA, whose models have YaRN."""
    return (
        profile.arch in architectures.BY_INTERVAL
        or budget.is_quantised(mode.k)
        or (profile.sliding_window > 0 and not mode.swa_full)
        or _is_mla(profile)
    )

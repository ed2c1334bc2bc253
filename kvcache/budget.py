"""What a KV cache weighs, to the byte: llama.cpp's own arithmetic, without llama.cpp.

A *cell* is one slot of the cache; it holds K and V of one position for every attention layer. A *row* is the
part of a cell that one layer keeps of K (or of V): ``n_head_kv * head_dim`` elements of the cache's type.
"""

from __future__ import annotations

CELL_PADDING = 256
"""llama.cpp rounds cells up to a multiple of this (``llama_context``: ``GGML_PAD(n_ctx, 256)``)."""

FLOAT_BYTES = 4

KV_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""Elements and bytes of one block of each type a KV cache may have (ggml's ``type_traits``)."""


def is_quantised(kv_type: str) -> bool:
    """Whether ``kv_type`` stores blocks with a shared scale instead of single numbers."""
    return KV_TYPES[kv_type][0] > 1


def row_bytes(kv_type: str, elements: int) -> int:
    """Bytes of ``elements`` numbers stored as ``kv_type`` (``ggml_row_size``).

    Raises:
        ValueError: a type that no KV cache has, or ``elements`` that do not fill whole blocks.
    """
    if kv_type not in KV_TYPES:
        raise ValueError(f"{kv_type!r} is no KV type; there are {', '.join(KV_TYPES)}")
    block, size = KV_TYPES[kv_type]
    if elements % block:
        raise ValueError(f"{kv_type} stores blocks of {block} elements, {elements} elements do not fill them")
    return elements // block * size


def kv_cell_bytes(
    n_head_kv: int, head_dim_k: int, head_dim_v: int, kv_type_k: str = "f16", kv_type_v: str = "f16"
) -> int:
    """Bytes of one cell in one layer: a row of K and a row of V.

    Raises:
        ValueError: as :func:`row_bytes`.
    """
    return row_bytes(kv_type_k, n_head_kv * head_dim_k) + row_bytes(kv_type_v, n_head_kv * head_dim_v)


def fp8_cell_bytes(n_head_kv: int, head_dim_k: int, head_dim_v: int, n_scales: int = 1) -> int:
    """Bytes of one cell in one layer under the FP8 codec: a byte an element, a float scale for K and for V.

    ``n_scales`` is ``n_head_kv`` where heads move on their own: a cell then holds slices of several positions,
    and each needs its position's scale beside it.
    """
    return n_head_kv * (head_dim_k + head_dim_v) + 2 * n_scales * FLOAT_BYTES


def padded_cells(n: int) -> int:
    """``n`` cells as llama.cpp allocates them: the next multiple of :data:`CELL_PADDING`."""
    return -(-n // CELL_PADDING) * CELL_PADDING


def sliding_cells(cells: int, window: int, n_seq_max: int, n_ubatch: int, *, swa_full: bool = False) -> int:
    """Cells of the sliding-window layers' own cache, in a context of ``cells`` shared by all sequences.

    Each sequence keeps its window of ``window`` positions, and a micro-batch needs room to be written before
    anything leaves; ``swa_full`` keeps every position instead (``llama_kv_cache_iswa``, unified).
    """
    if swa_full:
        return cells
    return padded_cells(min(cells, window * n_seq_max + n_ubatch))


def ssm_state_bytes(d_conv: int, d_inner: int, d_state: int, n_group: int) -> int:
    """Bytes of one sequence's state in one recurrent layer, always f32.

    The last ``d_conv - 1`` inputs of the convolution and the state matrix (``llama_hparams::n_embd_r``,
    ``n_embd_s``). An LFM2 short convolution is the case ``d_inner = n_embd``, ``d_state = n_group = 0``.
    """
    convolution = max(d_conv - 1, 0) * (d_inner + 2 * n_group * d_state)
    return (convolution + d_state * d_inner) * FLOAT_BYTES


def rwkv_state_bytes(n_embd: int, head_size: int, token_shift_count: int = 2) -> int:
    """Bytes of one sequence's state in one RWKV layer, always f32 (``n_embd_r``, ``n_embd_s``)."""
    return (token_shift_count + head_size) * n_embd * FLOAT_BYTES

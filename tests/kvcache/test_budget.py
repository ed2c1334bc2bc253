from __future__ import annotations

import pytest

from kvcache import budget

KIB, MIB = 2**10, 2**20

# (full layers, linear layers, linear value heads) of the models in shared/facts.md section 2; KV heads 2 x 256,
# linear key heads 16, linear head 128, convolution kernel 4.
MODELS = {
    "Qwen3.5-35B-A3B": (10, 30, 32),
    "Qwen3.5-397B-A17B": (15, 45, 64),
    "Qwen3-Next-80B-A3B": (12, 36, 32),
}


@pytest.mark.parametrize(
    ("kv_type", "size"),
    [("f32", 128), ("f16", 64), ("bf16", 64), ("q8_0", 34), ("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18),
     ("iq4_nl", 18)],
)  # fmt: skip
def test_row_of_32_elements(kv_type: str, size: int) -> None:
    assert budget.row_bytes(kv_type, 32) == size


def test_row_refuses_what_ggml_refuses() -> None:
    with pytest.raises(ValueError, match="fp8"):
        budget.row_bytes("fp8", 32)
    with pytest.raises(ValueError, match="blocks of 32"):
        budget.row_bytes("q8_0", 80 * 3 + 1)


@pytest.mark.parametrize(
    ("model", "f32", "f16", "q8_0", "fp8"),
    [
        ("Qwen3.5-35B-A3B", 40 * KIB, 20 * KIB, 10_880, 10_320),
        ("Qwen3.5-397B-A17B", 60 * KIB, 30 * KIB, 16_320, 15_480),
        ("Qwen3-Next-80B-A3B", 48 * KIB, 24 * KIB, 13_056, 12_384),
    ],
)
def test_bytes_per_position(model: str, f32: int, f16: int, q8_0: int, fp8: int) -> None:
    layers = MODELS[model][0]
    for kv_type, size in (("f32", f32), ("f16", f16), ("q8_0", q8_0)):
        assert layers * budget.kv_cell_bytes(2, 256, 256, kv_type, kv_type) == size
    assert layers * budget.fp8_cell_bytes(2, 256, 256) == fp8


@pytest.mark.parametrize(
    ("model", "mib"), [("Qwen3.5-35B-A3B", 62.81), ("Qwen3.5-397B-A17B", 186.3), ("Qwen3-Next-80B-A3B", 75.4)]
)
def test_recurrent_state(model: str, mib: float) -> None:
    _, layers, value_heads = MODELS[model]
    state = layers * budget.ssm_state_bytes(d_conv=4, d_inner=value_heads * 128, d_state=128, n_group=16)
    assert state / MIB == pytest.approx(mib, abs=0.05)


def test_context_of_the_35b_ladder() -> None:
    rungs = [65_536, 98_304, 147_456, 221_184, 262_144]
    gib = [rung * 10 * budget.kv_cell_bytes(2, 256, 256, "q8_0", "q8_0") / 2**30 for rung in rungs]
    assert gib == pytest.approx([0.664, 0.996, 1.494, 2.241, 2.656], abs=5e-4)


def test_cells_are_padded_to_256() -> None:
    assert [budget.padded_cells(n) for n in (1, 256, 257, 2512)] == [256, 256, 512, 2560]


def test_sliding_cache_of_gemma_at_32k() -> None:
    """576 MiB with the full cache, 163.5 without (measured: shared/facts.md section 1)."""
    cell = budget.kv_cell_bytes(1, 256, 256)
    small = budget.sliding_cells(32_768, 512, n_seq_max=8, n_ubatch=512)
    full = budget.sliding_cells(32_768, 512, n_seq_max=8, n_ubatch=512, swa_full=True)
    assert cell * (3 * 32_768 + 15 * small) == 163.5 * MIB
    assert cell * (3 * 32_768 + 15 * full) == 576 * MIB


def test_sliding_cache_never_passes_the_context() -> None:
    assert budget.sliding_cells(768, 512, n_seq_max=8, n_ubatch=512) == 768


def test_short_convolution_is_a_state_without_a_matrix() -> None:
    assert budget.ssm_state_bytes(d_conv=3, d_inner=2048, d_state=0, n_group=0) == 2 * 2048 * 4


def test_rwkv_state() -> None:
    assert budget.rwkv_state_bytes(n_embd=2048, head_size=64) == (2 + 64) * 2048 * 4


@pytest.mark.parametrize(
    ("model", "tokens", "f32_mib", "fp8_mib"),
    [
        ("Qwen3.5-35B-A3B", 2048, 80, 20.15625),
        ("Qwen3.5-35B-A3B", 4096, 160, 40.3125),
        ("Qwen3.5-35B-A3B", 8192, 320, 80.625),
        ("Qwen3.5-35B-A3B", 32_768, 1280, 322.5),
        ("Qwen3.5-397B-A17B", 2048, 120, 30.234375),
        ("Qwen3.5-397B-A17B", 4096, 240, 60.46875),
        ("Qwen3.5-397B-A17B", 32_768, 1920, 483.75),
    ],
)
def test_the_seeds_table_with_its_scales(model: str, tokens: int, f32_mib: float, fp8_mib: float) -> None:
    """The seed's f32 column in MiB, and its FP8 column plus the scales that it leaves out."""
    layers = MODELS[model][0]
    assert tokens * layers * budget.kv_cell_bytes(2, 256, 256, "f32", "f32") == f32_mib * MIB
    assert tokens * layers * budget.fp8_cell_bytes(2, 256, 256) == fp8_mib * MIB


def test_heads_that_move_alone_each_carry_a_scale() -> None:
    assert budget.fp8_cell_bytes(2, 256, 256, n_scales=2) == budget.fp8_cell_bytes(2, 256, 256) + 8

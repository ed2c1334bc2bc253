from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_models
from gguf import GGUFWriter

from runner.config import RecurrentConfig
from runner.errors import ModelError
from runner.planning.model.gguf_header import from_gguf
from runner.planning.model.profile import Layer, ModelProfile


def header(path: Path, arch: str, **fields: int | list[int] | list[bool]) -> Path:
    """A GGUF without tensors: all that a profile reads."""
    writer = GGUFWriter(path, arch)
    base = {"block_count": 12, "context_length": 4096, "embedding_length": 512, "feed_forward_length": 1024,
            "attention__head_count": 8, "attention__head_count_kv": 2, "vocab_size": 1000}  # fmt: skip
    for name, value in {**base, **fields}.items():
        key = f"{arch}.{name.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def kinds(profile: ModelProfile) -> str:
    return "".join(layer.kind[0] for layer in profile.layers)


def test_smollm2(smollm2: Path) -> None:
    profile = from_gguf(smollm2)
    assert profile.layers == (Layer("full", 3, 64, 64),) * 30
    assert (profile.arch, profile.n_embd, profile.n_head, profile.n_ff) == ("llama", 576, 9, 1536)
    assert (profile.n_vocab, profile.n_ctx_train, profile.weights_bytes) == (49_152, 8192, 96_576_768)
    assert profile.kv_bytes(1, 0, "f16", "f16") == 23_040
    assert profile.known and not profile.approximate and profile.recurrent is None


def test_gemma3(gemma3: Path) -> None:
    profile = from_gguf(gemma3)
    assert kinds(profile) == "sssssf" * 3
    assert profile.layers[0] == Layer("sliding", 1, 256, 256)
    assert (profile.sliding_window, profile.n_ctx_train, profile.n_vocab) == (512, 32_768, 262_144)
    assert profile.weights_bytes == 246_587_904


@pytest.mark.parametrize(
    ("arch", "fields", "expected"),
    [
        ("gemma2", {}, "sf" * 6),
        ("gpt-oss", {"attention__sliding_window": 128}, "sf" * 6),
        ("cohere2", {"attention__sliding_window": 4096}, "sssf" * 3),
        ("gemma3", {"attention__sliding_window": 1024}, "sssssf" * 2),
        ("gemma3", {}, "f" * 12),
        ("gemma3", {"attention__sliding_window": 1024, "attention__sliding_window_pattern": 3}, "ssf" * 4),
        ("smallthinker", {"attention__sliding_window": 4096}, "fsss" * 3),
        ("gemma4", {"attention__sliding_window": 512, "attention__sliding_window_pattern": [True, False] * 6},
         "sf" * 6),
        ("phi3", {"attention__sliding_window": 2047}, "f" * 12),
        ("qwen2", {"attention__sliding_window": 4096}, "f" * 12),
    ],
)  # fmt: skip
def test_sliding_pattern(tmp_path: Path, arch: str, fields: dict[str, int], expected: str) -> None:
    profile = from_gguf(header(tmp_path / "model.gguf", arch, **fields))
    assert kinds(profile) == expected
    assert bool(profile.sliding_window) == ("s" in expected)


def test_shared_kv_layers_hold_nothing(tmp_path: Path) -> None:
    path = header(tmp_path / "model.gguf", "gemma4", attention__sliding_window=512, attention__shared_kv_layers=4,
                  attention__sliding_window_pattern=[True, False] * 6)  # fmt: skip
    profile = from_gguf(path)
    assert (len(profile.layers), profile.n_layer) == (8, 12)


def test_sliding_layers_may_have_their_own_head(tmp_path: Path) -> None:
    path = header(tmp_path / "model.gguf", "gemma4", attention__sliding_window=512, attention__key_length=512,
                  attention__value_length=512, attention__key_length_swa=256, attention__value_length_swa=256,
                  attention__sliding_window_pattern=[True, False] * 6)  # fmt: skip
    profile = from_gguf(path)
    assert {(layer.kind, layer.head_dim_k) for layer in profile.layers} == {("sliding", 256), ("full", 512)}


def test_draft_heads_are_no_layers(tmp_path: Path) -> None:
    profile = from_gguf(header(tmp_path / "model.gguf", "glm4moe", nextn_predict_layers=1))
    assert (len(profile.layers), profile.n_layer, profile.n_mtp_layer) == (11, 11, 1)
    assert profile.mtp_bytes == 0  # the header names a head, the file leaves it out


LATENT = {"attention__head_count_kv": 1, "attention__key_length": 576, "attention__value_length": 512,
          "attention__key_length_mla": 192, "attention__value_length_mla": 128}  # fmt: skip


@pytest.mark.parametrize("arch", ["deepseek2", "mistral4"])
def test_compressed_kv_has_no_v(tmp_path: Path, arch: str) -> None:
    profile = from_gguf(header(tmp_path / "model.gguf", arch, **LATENT))
    assert profile.kv_bytes(1, 0, "f16", "f16") == 12 * 576 * 2
    assert profile.kv_bytes(1, 0, "f16", "f16", flash_attn=False) == 12 * 576 * 2
    assert profile.known


def test_an_old_file_of_the_same_architecture_has_both(tmp_path: Path) -> None:
    old = {"attention__head_count_kv": 8, "attention__key_length": 192, "attention__value_length": 128}
    profile = from_gguf(header(tmp_path / "model.gguf", "deepseek2", **old))
    assert profile.kv_bytes(1, 0, "f16", "f16") == 12 * 8 * (192 + 128) * 2


@pytest.mark.parametrize(
    "arch",
    ["deepseek32", "deepseek4", "glm-dsa", "glm5-next", "minimax-m3", "hy_v4", "dots3note", "qwen4exp",
     "kimi-linear", "bailingmoe3", "minimax-01", "graniteswitch", "llama9"],
)  # fmt: skip
def test_a_memory_that_is_not_modelled_says_so(tmp_path: Path, arch: str) -> None:
    """Sparse indexers, compressed caches and states of another shape are never taken for dense in silence."""
    assert not from_gguf(header(tmp_path / "model.gguf", arch, **LATENT)).known


def test_hybrids(tmp_path: Path) -> None:
    qwen = from_gguf(tiny_models.write_qwen35moe(tmp_path / "qwen.gguf"))
    assert kinds(qwen) == "rrrf" * 2
    assert qwen.recurrent == RecurrentConfig(d_conv=4, d_inner=128, d_state=32, n_group=2)
    assert qwen.state_bytes == 6 * 4 * (3 * (128 + 2 * 2 * 32) + 128 * 32)
    assert (qwen.n_expert, qwen.n_expert_used, qwen.n_ff_expert) == (4, 2, 32)
    assert kinds(from_gguf(tiny_models.write_lfm2(tmp_path / "lfm2.gguf"))) == "rrf" * 2
    assert kinds(from_gguf(tiny_models.write_granitehybrid(tmp_path / "granite.gguf"))) == "rrrf"


def test_a_block_may_hold_both_or_nothing(tmp_path: Path) -> None:
    ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 16, "ssm__group_count": 1}
    both = from_gguf(header(tmp_path / "falcon.gguf", "falcon-h1", **ssm))
    assert kinds(both) == "rf" * 12
    assert both.block_of_layer == tuple(n // 2 for n in range(24))
    kv_heads, n_ff = [0, 2, 0] * 4, [0, 0, 2048] * 4
    some = from_gguf(header(tmp_path / "nemotron.gguf", "nemotron_h", attention__head_count_kv=kv_heads,
                            feed_forward_length=n_ff, **ssm))  # fmt: skip
    assert kinds(some) == "rf" * 4
    assert some.block_of_layer == (0, 1, 3, 4, 6, 7, 9, 10)


def test_draft_heads_that_may_keep_cells_are_not_modelled(tmp_path: Path) -> None:
    ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 16, "ssm__group_count": 1}
    assert from_gguf(header(tmp_path / "trunk.gguf", "nemotron_h_moe", **ssm)).known
    assert not from_gguf(
        header(tmp_path / "heads.gguf", "nemotron_h_moe", nextn_predict_layers=1, **ssm)
    ).known


def test_header_without_what_every_model_has(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="block_count"):
        from_gguf(tmp_path / "model.gguf")


def test_split_model_is_weighed_as_a_whole(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    for name in ("context_length", "embedding_length", "attention.head_count"):
        writer.add_uint32(f"llama.{name}", 1)
    writer.add_uint32("llama.block_count", 4)
    for index in range(4):
        writer.add_tensor(f"blk.{index}.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, second = (tmp_path / f"model-0000{n}-of-00002.gguf" for n in (1, 2))
    profile = from_gguf(first)
    assert profile.weights_bytes == 4 * 32 * 32 * 4
    assert [block.total_bytes for block in profile.blocks] == [32 * 32 * 4] * 4
    with pytest.raises(ModelError, match="00001-of-00002"):
        from_gguf(second)
    second.unlink()
    with pytest.raises(ModelError, match=r"00002-of-00002.*No such file"):
        from_gguf(first)

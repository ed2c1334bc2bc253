"""Where the bytes of a model lie: read from its tensors, and estimated where there are none to read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models

from runner.config import ProfileConfig, RecurrentConfig
from runner.models import known
from runner.planning.model import weights_map
from runner.planning.model.gguf_header import from_gguf
from runner.planning.model.profile import Block, ModelProfile, from_config

DECLARED = {model.name: model.profile for model in known() if model.profile is not None}
KINDS = ("core_bytes", "ffn_bytes", "expert_bytes")


def adds_up(profile: ModelProfile) -> None:
    blocks = sum(block.total_bytes for block in profile.blocks)
    head = 0 if profile.tied else profile.output_bytes
    assert profile.weights_bytes == profile.input_bytes + blocks + profile.mtp_bytes + head
    assert len(profile.blocks) == profile.n_layer
    assert len(profile.block_of_layer) == len(profile.layers)


def by_kind(profile: ModelProfile) -> dict[str, int]:
    return {kind: sum(getattr(block, kind) for block in profile.blocks) for kind in KINDS} | {
        "input": profile.input_bytes,
        "output": profile.output_bytes,
    }


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("token_embd.weight", "input"),
        ("per_layer_token_embd.weight", "input"),
        ("position_embd.weight", "input"),
        ("output.weight", "output"),
        ("output_norm.weight", "output"),
        ("output_norm.bias", "output"),
        ("blk.1.attn_q.weight", "core"),
        ("blk.1.attn_sinks.weight", "core"),
        ("blk.1.ffn_norm.weight", "core"),
        ("blk.1.ffn_gate_inp.weight", "core"),
        ("blk.1.ffn_gate_inp_shexp.weight", "core"),
        ("blk.1.exp_probs_b.bias", "core"),
        ("blk.1.ssm_a", "core"),
        ("blk.1.ffn_gate.weight", "ffn"),
        ("blk.1.ffn_up.bias", "ffn"),
        ("blk.1.ffn_down_shexp.weight", "ffn"),
        ("blk.1.ffn_gate_exps.weight", "experts"),
        ("blk.1.ffn_gate_up_exps.weight", "experts"),
        ("blk.1.ffn_down_exps.bias", "experts"),
        ("blk.1.ffn_up_chexps.weight", "experts"),
        ("blk.2.attn_q.weight", "mtp"),
        ("blk.2.nextn.eh_proj.weight", "mtp"),
        ("blk.12.ffn_up.weight", "mtp"),
        ("rope_freqs.weight", "first"),
        ("token_embd_norm.weight", "first"),
        ("per_layer_model_proj.weight", "first"),
    ],
)
def test_a_tensor_lies_where_llama_cpp_puts_it(name: str, where: str) -> None:
    """As ``LLM_TENSOR_INFOS`` in ``llama-arch.cpp`` and the expressions of ``--n-cpu-moe`` have it."""
    placed = weights_map.from_tensors({"output.weight": 0, name: 7}, [("full",), ("full",)])
    at_home, empty = {"core": Block(7), "ffn": Block(0, 7), "experts": Block(0, 0, 7)}, Block(0)
    first = Block(7) if where == "first" else empty
    assert placed.blocks == (first, at_home.get(where, empty))
    assert placed.input_bytes == 7 * (where == "input")
    assert placed.output_bytes == 7 * (where == "output")
    assert placed.mtp_bytes == 7 * (where == "mtp")


def test_the_norm_that_lfm2_names_otherwise_is_the_outputs() -> None:
    tensors = {"output.weight": 1, "token_embd_norm.weight": 7}
    assert weights_map.from_tensors(tensors, [("full",)], lfm2=True).output_bytes == 8


def test_a_tied_head_is_a_copy_of_the_embedding() -> None:
    tensors = {"token_embd.weight": 100, "output_norm.weight": 4, "blk.0.attn_q.weight": 10}
    placed = weights_map.from_tensors(tensors, [("full",)])
    assert placed.tied
    assert (placed.input_bytes, placed.output_bytes) == (100, 100)
    assert placed.blocks == (Block(14),)


def test_smollm2(smollm2: Path) -> None:
    profile = from_gguf(smollm2)
    adds_up(profile)
    assert profile.tied and profile.input_bytes == profile.output_bytes == 49_152 * 576 // 32 * 34
    assert {block.ffn_bytes for block in profile.blocks} == {3 * 576 * 1536 // 32 * 20}
    assert not any(block.expert_bytes or block.recurrent for block in profile.blocks)


@pytest.mark.parametrize("arch", tiny_models.WRITERS)
@pytest.mark.parametrize("untied", [0, 1])
def test_every_file_adds_up(tmp_path: Path, arch: str, untied: int) -> None:
    profile = from_gguf(tiny_models.WRITERS[arch](tmp_path / "m.gguf", untied=untied))
    adds_up(profile)
    assert profile.tied == (arch == "lfm2" or not untied)
    assert any(block.expert_bytes for block in profile.blocks) == (profile.n_expert > 0)
    states = {block for block, layer in zip(profile.block_of_layer, profile.layers, strict=True)
              if layer.kind == "recurrent"}  # fmt: skip
    assert {index for index, block in enumerate(profile.blocks) if block.recurrent} == states


def test_draft_heads_are_weighed_apart(tmp_path: Path) -> None:
    trunk = from_gguf(tiny_models.write_qwen35moe(tmp_path / "trunk.gguf"))
    whole = from_gguf(tiny_models.write_qwen35moe(tmp_path / "whole.gguf", n_mtp=1))
    adds_up(whole)
    assert (trunk.n_mtp_layer, trunk.mtp_bytes, whole.n_mtp_layer) == (0, 0, 1)
    assert whole.mtp_bytes == whole.weights_bytes - trunk.weights_bytes > 0
    assert (whole.blocks, whole.layers) == (trunk.blocks, trunk.layers)


def test_a_dense_lead_has_no_experts(tmp_path: Path) -> None:
    blocks = from_gguf(tiny_models.write_deepseek2(tmp_path / "m.gguf")).blocks
    assert [bool(block.expert_bytes) for block in blocks] == [False, True, True]
    assert all(block.ffn_bytes for block in blocks)  # the dense one's own, then the shared expert


def test_a_header_without_tensors_says_nothing_of_blocks(tmp_path: Path) -> None:
    assert weights_map.from_tensors({}, [("full",)]).blocks == ()


@pytest.mark.parametrize("name", ["smollm2", "gemma3_270m"])
def test_declared_profile_is_the_files(name: str, smollm2: Path, gemma3: Path) -> None:
    """What conf/model says of a model must be what its file says; only what a block weighs is estimated."""
    declared = from_config(DECLARED[name])
    read = from_gguf({"smollm2": smollm2, "gemma3_270m": gemma3}[name])
    weights = {"blocks": (), "input_bytes": 0, "output_bytes": 0}
    assert replace(declared, **weights) == replace(read, **weights)  # type: ignore[arg-type]
    for kind, size in by_kind(read).items():
        assert by_kind(declared)[kind] == pytest.approx(size, rel=0.05), kind


def test_every_estimate_adds_up() -> None:
    for config in DECLARED.values():
        adds_up(from_config(config))
        adds_up(from_config(replace(config, n_mtp_layer=1)))
        adds_up(from_config(replace(config, weights_bytes=1000)))


QWEN35 = RecurrentConfig(d_conv=4, d_inner=4096, d_state=128, n_group=16)
SHAPES: dict[str, tuple[dict[str, int], dict[str, object]]] = {
    "llama": ({"n_layer": 4, "n_embd": 4096, "n_head": 32, "n_head_kv": 8, "n_ff": 14_336},
              {"head_dim_k": 128, "head_dim_v": 128}),
    "qwen3moe": ({"n_layer": 4, "n_embd": 2048, "n_head": 32, "n_head_kv": 4, "n_ff": 5472, "n_expert": 128,
                  "n_expert_used": 8, "n_ff_expert": 768, "head_dim": 128},
                 {"head_dim_k": 128, "head_dim_v": 128}),
    "qwen35moe": ({"n_layer": 8, "n_embd": 2048, "n_head": 16, "n_head_kv": 2, "n_expert": 256, "n_mtp": 1,
                   "n_expert_used": 8, "n_ff_expert": 512, "head_dim": 256, "d_state": 128, "dt_rank": 32,
                   "n_group": 16},
                  {"head_dim_k": 256, "head_dim_v": 256, "n_ff": 512, "full_attention_interval": 4,
                   "recurrent": QWEN35, "n_mtp_layer": 1}),
    "deepseek2": ({"n_layer": 4, "n_embd": 7168, "n_head": 128, "n_ff": 18_432, "kv_rank": 512, "q_rank": 1536,
                   "d_rope": 64, "d_nope": 128, "d_v": 128, "n_expert": 64, "n_expert_used": 8,
                   "n_ff_expert": 2048},
                  {"n_head_kv": 1, "head_dim_k": 576, "head_dim_v": 0, "n_dense_layer": 1}),
    "lfm2": ({"n_layer": 6, "n_embd": 2048, "n_head": 32, "n_head_kv": 8, "n_ff": 8192},
             {"n_head_kv": [0, 0, 8] * 2, "head_dim_k": 64, "head_dim_v": 64,
              "recurrent": RecurrentConfig(3, 2048, 0, 0)}),
}  # fmt: skip


@pytest.mark.parametrize("arch", SHAPES)
def test_elements_are_counted_as_a_file_has_them(tmp_path: Path, arch: str) -> None:
    """Against files in one type throughout, where nothing but the count can be wrong."""
    dims, more = SHAPES[arch]
    untied = {} if arch == "lfm2" else {"untied": 1}
    path = tiny_models.WRITERS[arch](tmp_path / "m.gguf", sparse=True, vocabulary=32_000, **dims, **untied)
    read = from_gguf(path)
    fields = {key: value for key, value in dims.items() if key in ProfileConfig.__dataclass_fields__}
    estimated = from_config(
        ProfileConfig(**(fields | {"arch": arch, "n_vocab": 32_000, "n_ctx_train": 262_144} | more
                         | {"weights_bytes": read.weights_bytes, "tied_embeddings": read.tied}))  # type: ignore[arg-type]
    )  # fmt: skip
    for kind, size in by_kind(read).items():
        # A router is quantised in these files, and MLA's own ranks are DeepSeek's only about.
        assert by_kind(estimated)[kind] == pytest.approx(size, rel=0.05 if arch != "deepseek2" else 0.1), kind
    assert estimated.mtp_bytes == pytest.approx(read.mtp_bytes, rel=0.05)
    assert estimated.layers == read.layers
    assert [block.recurrent for block in estimated.blocks] == [block.recurrent for block in read.blocks]


def test_a_mixture_keeps_what_every_token_passes_in_more_bits() -> None:
    """gpt-oss stores its experts in MXFP4, 4.25 bits, and the rest in Q8_0; both follow from its size."""
    profile = from_config(DECLARED["gpt_oss_20b"])
    assert sum(block.expert_bytes for block in profile.blocks) == pytest.approx(
        24 * 32 * 3 * 2880 * 2880 * 4.25 / 8, rel=0.01
    )
    assert profile.output_bytes == pytest.approx(201_088 * 2880 * 34 / 32, rel=0.001)

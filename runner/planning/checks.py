"""What cannot be planned at all, whatever the memory: a window too short, types that do not combine."""

from __future__ import annotations

from kvcache import budget
from runner.config import KvModeConfig, WindowConfig
from runner.errors import ConfigError, PlanRefusedError
from runner.planning.profile import ModelProfile


def check_types(profile: ModelProfile, model_name: str, mode: KvModeConfig, *, flash_attn: bool) -> None:
    """Whether the engine can hold this model's cache in these types (``llama_init_from_model``).

    Raises:
        ConfigError: a quantised V without flash attention, two types where the cache has one row, or blocks
            that do not fit the heads.
    """
    if budget.is_quantised(mode.v) and not flash_attn:
        raise ConfigError(
            f"kv_mode={mode.name}: a quantised V ({mode.v}) needs flash attention; "
            f"set flash_attn=on or kv_mode.v=f16"
        )
    for layer, _ in profile.groups:
        if layer.kind == "recurrent":
            continue
        if not layer.head_dim_v and mode.k != mode.v:
            raise ConfigError(
                f"kv_mode={mode.name}: {model_name} keeps one compressed row for K and V, of one type; "
                f"set kv_mode.k and kv_mode.v alike"
            )
        for name, kv_type, dim in (("k", mode.k, layer.head_dim_k), ("v", mode.v, layer.head_dim_v)):
            block = budget.KV_TYPES[kv_type][0]
            elements = dim if flash_attn else dim * layer.n_head_kv
            if elements % block:
                raise ConfigError(
                    f"kv_mode.{name}={kv_type} stores blocks of {block} elements, {model_name} has heads of "
                    f"{dim}; set kv_mode.{name}=f16"
                )


def window_tokens(profile: ModelProfile, window: WindowConfig, prefix_tokens: int, suffix_tokens: int) -> int:
    """How far one worker's positions reach, in tokens: what the longest prompt needs, or the fixed window.

    Raises:
        ConfigError: a fixed window without its length.
        PlanRefusedError: the prompt and its answer pass the window, or the window passes ``window.max`` or
            the model's native context.
    """
    need = prefix_tokens + suffix_tokens
    what = f"{prefix_tokens} prompt tokens and {suffix_tokens} for the answer make {need}"
    remedy = "shorten the prompt or lower sampling.max_tokens"
    tokens = need
    if window.policy == "fixed":
        if window.tokens is None:
            raise ConfigError("window.policy=fixed needs the window's length; set window.tokens")
        tokens = window.tokens
        if need > tokens:
            raise PlanRefusedError(
                f"the longest prompt does not fit the window: {what}, window.tokens is {tokens}; "
                f"set window.tokens={need} or window.policy=need, or {remedy}"
            )
        what = f"window.tokens={tokens}"
        remedy = f"window.policy=need would take {need}"
    if window.max is not None and tokens > window.max:
        raise PlanRefusedError(
            f"the window passes its limit: {what}, window.max is {window.max}; raise window.max, or {remedy}"
        )
    if profile.n_ctx_train and tokens > profile.n_ctx_train:
        raise PlanRefusedError(
            f"a context beyond the model's native length: {what}, {profile.arch} was trained to "
            f"{profile.n_ctx_train} tokens; {remedy}, or choose a model with a longer context"
        )
    return tokens

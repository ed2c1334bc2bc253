"""How long a one-shot job's window is, and what is refused whatever the memory: a window too short or too long."""

from __future__ import annotations

from runner.config import WindowConfig
from runner.errors import BeyondTrainedError, PlanRefusedError
from runner.kv_mode import KvModeConfig
from runner.planning.model.profile import ModelProfile

_PLAIN = KvModeConfig()


def window_tokens(
    profile: ModelProfile,
    window: WindowConfig,
    prefix_tokens: int,
    suffix_tokens: int,
    *,
    mode: KvModeConfig = _PLAIN,
    documents: bool | None = None,
) -> int:
    """How far one worker's positions reach, in tokens: what the longest prompt needs, or the fixed window.

    Tokens that are evicted keep their positions, so that they count too, unless ``mode`` compacts: then
    ``prefix_tokens`` are the positions that are left. ``documents`` says whether prompts have documents, None
    where nothing could be asked about one.

    Raises:
        BeyondTrainedError: the window passes the model's native context.
        PlanRefusedError: the prompt and its answer pass the window, or the window passes ``window.max``.
    """
    need = prefix_tokens + suffix_tokens
    what = f"{prefix_tokens} prompt tokens and {suffix_tokens} for the answer make {need}"
    remedy = "shorten the prompt or lower sampling.max_tokens"
    if mode.compacts:
        what = f"{prefix_tokens} positions of the prompt and {suffix_tokens} for the answer make {need}"
        remedy = "lower kv_mode.budget, kv_mode.chunk or sampling.max_tokens"
    tokens = need
    if window.policy == "fixed":
        assert window.tokens is not None  # a request is only made of options that go together
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
        if mode.evicts and not mode.compacts:
            remedy = (
                "eviction keeps fewer tokens at the positions that they have: set kv_mode.positions=compact"
            )
        if need > profile.n_ctx_train and not mode.compacts and documents is not None:
            document = "" if documents else "give its long part as `document` and "
            remedy += f", or {document}set kv_mode=guided, which reads a document of any length"
        raise BeyondTrainedError(
            f"a context beyond the model's native length: {what}, {profile.arch} was trained to "
            f"{profile.n_ctx_train} tokens; {remedy}, or choose a model with a longer context"
        )
    return tokens


def budget(mode: KvModeConfig, cells: int, window_tokens: int) -> None:
    """See that a budget of ``cells`` is smaller than what it is a budget for.

    Raises:
        PlanRefusedError: the whole window stays.
    """
    if mode.evicts and cells >= window_tokens:
        raise PlanRefusedError(
            f"nothing would ever be evicted: kv_mode.budget={mode.budget} keeps {cells} cells, prompt and answer "
            f"take {window_tokens}; lower kv_mode.budget, or set kv_mode=f16"
        )

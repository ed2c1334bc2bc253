"""Evicting contexts on a real model in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kvcache.policies import make_policy
from kvcache.selection import Granularity, Selector
from runner.engine.chooser import Eviction
from runner.engine.context import Context, ContextParams, Logits
from runner.engine.eviction import EvictingContext
from runner.engine.weights import Weights
from runner.planning.model.gguf_header import from_gguf


def params(
    cells: int, *, n_ubatch: int = 64, sequences: int = 1, flash_attn: bool = False, swa_full: bool = False,
    k: str = "f16", v: str = "f16", outputs: int | None = None,
) -> ContextParams:  # fmt: skip
    return ContextParams(
        n_ctx=cells, n_seq_max=sequences, n_ubatch=n_ubatch, kv_type_k=k, kv_type_v=v, flash_attn=flash_attn,
        swa_full=swa_full, n_threads=1, n_outputs=outputs,
    )  # fmt: skip


@contextmanager
def plain(weights: Weights, wanted: ContextParams) -> Iterator[Context]:
    context = Context(weights, wanted)
    try:
        yield context
    finally:
        context.close()


@contextmanager
def evicting(
    weights: Weights, wanted: ContextParams, policy: str = "h2o", *, budget: int = 128, chunk: int = 64,
    granularity: Granularity = "head", sinks: int = 4, interval: int = 16, pool: int = 1, compact: bool = False,
    recent: float = 0.25, probe_every: int = 1, probe_decay: float = 0.0, probe_common: float = 0.0,
    **options: float,
) -> Iterator[EvictingContext]:  # fmt: skip
    eviction = Eviction(
        make_policy(policy, options), Selector(sinks=sinks, recent=recent, pool=pool), budget, chunk, interval,
        granularity, compact=compact, probe_every=probe_every, probe_decay=probe_decay, probe_common=probe_common,
    )  # fmt: skip
    profile = from_gguf(weights.path)
    recurrent = profile.state_bytes > 0
    context = EvictingContext(weights, wanted, eviction, profile.attention_layers, recurrent=recurrent)
    try:
        yield context
    finally:
        context.close()


def prefill(context: Context, tokens: Sequence[int], *, chunk: int = 64, sequence: int = 0) -> Logits:
    """The text chunk by chunk, evicting after each; logits of its last token, a copy."""
    logits = np.empty((0, context.n_vocab), np.float32)
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        last = start + len(part) == len(tokens)
        logits = context.decode(
            part, range(start, start + len(part)), [sequence] * len(part), [False] * (len(part) - 1) + [last]
        ).copy()
        context.evict([sequence], "prefill")
    return logits


def prose(weights: Weights, n: int) -> list[int]:
    """``n`` tokens of a text that does not repeat itself word for word."""
    rivers = ("Orla", "Veyra", "Tamsin", "Quell", "Ister")
    goods = ("salt", "copper", "cloth", "amber", "grain", "glass")
    days = (
        f"On day {i} the caravan crossed the {rivers[i * 7 % 5]} and traded {i * 37 % 91} bales of "
        f"{goods[i * 5 % 6]} for {goods[i * 11 % 6]}; the guide, who was {20 + i % 50} years old, slept."
        for i in range(n // 16 + 8)
    )
    return weights.tokenize(" ".join(days), add_special=True, parse_special=False)[:n]

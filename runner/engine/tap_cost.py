"""What looking at attention costs: the same decode with and without, step by step in turn."""

from __future__ import annotations

import time
from dataclasses import replace

from kvcache.policies import make_policy
from kvcache.selection import Selector
from runner.engine.chooser import Eviction
from runner.engine.context import Context, ContextParams
from runner.engine.eviction import EvictingContext
from runner.engine.weights import Weights
from runner.planning.model.profile import ModelProfile

_PREFIX, _STEPS = 512, 32


def tap_ratio(weights: Weights, profile: ModelProfile, params: ContextParams, workers: int) -> float:
    """Seconds of decode that are observed over those of the same graph that are not.

    ``workers`` sequences go on from a shared prefix of 512 tokens; nothing is evicted.

    Args:
        weights: the model.
        profile: its layers.
        params: of the job's context; flash attention is off in both, since it leaves nothing to look at.
        workers: sequences that decode together.
    """
    cells = _PREFIX + workers * _STEPS
    params = replace(
        params, n_ctx=cells, n_seq_max=workers, flash_attn=False, kv_type_v="f16", n_outputs=None
    )
    eviction = Eviction(
        make_policy("h2o", {}), Selector(), budget=cells, chunk=params.n_ubatch, interval=_STEPS
    )
    bare = Context(weights, params)
    observed = EvictingContext(weights, params, eviction, profile.attention_layers)
    contexts: list[Context] = [bare, observed]
    seconds = {id(context): 0.0 for context in contexts}
    try:
        for context in contexts:
            _prefill(context)
            for worker in range(1, workers):
                context.fork(0, worker)
        for step in range(_STEPS):
            # Each goes first as often: the second finds the weights in the cache of the processor.
            for context in contexts if step % 2 else reversed(contexts):
                began = time.perf_counter()
                position = _PREFIX + step
                context.decode(
                    [step % weights.n_vocab] * workers, [position] * workers, range(workers), [True] * workers
                )
                seconds[id(context)] += time.perf_counter() - began
    finally:
        for context in contexts:
            context.close()
    return seconds[id(observed)] / seconds[id(bare)]


def _prefill(context: Context) -> None:
    for start in range(0, _PREFIX, context.params.n_ubatch):
        n = min(context.params.n_ubatch, _PREFIX - start)
        tokens = [(start + i) * 7919 % context.n_vocab for i in range(n)]
        context.decode(tokens, range(start, start + n), [0] * n, [False] * n)

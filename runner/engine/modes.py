"""From a plan to the context that runs it: a plain one, one that rounds to FP8, one that evicts."""

from __future__ import annotations

from kvcache.policies import make_policy
from kvcache.policies.base import Ints
from runner.engine.cache_layer import CacheLayer
from runner.engine.chooser import Eviction
from runner.engine.context import Context, context_params
from runner.engine.eviction import EvictingContext
from runner.engine.tap import CacheTap
from runner.engine.weights import Weights
from runner.planning.model.profile import Layer
from runner.planning.plan import Plan


def open_context(weights: Weights, plan: Plan) -> Context:
    """A context as planned, with the plan's KV mode at work in it; to be closed by the caller.

    Raises:
        EngineError: llama.cpp refuses the parameters or has no memory.
    """
    mode, params, profile = plan.request.kv_mode, context_params(plan), plan.request.profile
    rounding = _Rounding(dict(profile.attention_layers), plan) if mode.codec == "fp8" else None
    if mode.evicts:
        eviction = Eviction(
            policy=make_policy(mode.policy, mode.options),
            selector=mode.selector,
            budget=plan.budget_cells,
            chunk=plan.chunk_tokens,
            interval=mode.interval,
            granularity=mode.granularity,
            layer_weights=tuple(mode.layer_weights),
            compact=mode.compacts,
            reach=plan.reach,
            probe_every=mode.probe.every,
            probe_decay=mode.probe.decay,
            probe_common=mode.probe.common,
        )
        evicting = EvictingContext(
            weights,
            params,
            eviction,
            profile.attention_layers,
            recurrent=profile.state_bytes > 0,
            on_write=rounding,
        )
        if rounding is not None:
            rounding.tap = evicting.tap
        return evicting
    if rounding is not None:
        rounding.tap = CacheTap({}, params.n_ctx, moment=0, on_write=rounding)
        return Context(weights, params, rounding.tap)
    return Context(weights, params)


class _Rounding:
    """Rounds every K and V to E4M3 as they are written."""

    def __init__(self, layers: dict[int, Layer], plan: Plan) -> None:
        self._layers, self._params = layers, context_params(plan)
        self.tap: CacheTap | None = None

    def __call__(self, kind: str, block: int, cells: Ints) -> None:
        assert self.tap is not None  # set before the first decode
        layer = CacheLayer.of(self.tap.tensors, block, self._layers[block], self._params)
        layer.round_to_fp8(kind, cells)

"""``kv_mode=fp8``: what attention reads out of the engine's f16 cells went through the codec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evicting import prose
from planned import plan

from kvcache import fp8
from runner.engine import modes
from runner.engine.cache_layer import CacheLayer
from runner.engine.context import Context, context_params
from runner.engine.modes import open_context
from runner.engine.tap import CacheTap
from runner.engine.weights import Weights
from runner.kv_mode import KvModeConfig
from runner.planning.model.gguf_header import from_gguf
from runner.planning.plan import Plan


def planned(path: Path, mode: KvModeConfig, *, flash_attn: bool) -> Plan:
    return plan(
        from_gguf(path), prefix=192, suffix=8, workers=1, kv_mode=mode, n_ubatch=64, flash_attn=flash_attn
    )


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("policy", ["none", "keydiff"])
def test_the_cells_hold_what_the_codec_gives_back(
    gemma: Weights, monkeypatch: pytest.MonkeyPatch, flash_attn: bool, policy: str
) -> None:
    """In sliding and in full layers, K and V, with V stored either way, evicted or not."""
    taps: list[CacheTap] = []

    class Kept(CacheTap):
        def __call__(self, address: int, ask: bool) -> bool:
            if self not in taps:
                taps.append(self)
            return super().__call__(address, ask)

    monkeypatch.setattr(modes, "CacheTap", Kept)
    monkeypatch.setattr("runner.engine.eviction.CacheTap", Kept)
    mode = KvModeConfig(codec="fp8", policy=policy, budget=160, chunk=64, sinks=4)
    made = planned(gemma.path, mode, flash_attn=flash_attn)
    params = context_params(made)
    tokens = prose(gemma, 128)
    context = open_context(gemma, made)
    bare = Context(gemma, params)
    try:
        for start in (0, 64):
            rows = tokens[start : start + 64], range(start, start + 64), [0] * 64, [False] * 63 + [True]
            rounded = context.decode(*rows).copy()
            exact = bare.decode(*rows).copy()
        (tap,) = taps
        for block, shape in made.request.profile.attention_layers:
            layer = CacheLayer.of(tap.tensors, block, shape, params)
            for read in (layer.keys, layer.values):
                held = read(np.arange(128)).transpose(1, 0, 2).reshape(128, -1).astype(np.float16)
                assert held.any()
                np.testing.assert_array_equal(held, fp8.rounded(held))
                levels = [len(np.unique(np.abs(row))) for row in held]
                assert max(levels) <= 127
    finally:
        context.close()
        bare.close()
    assert 0 < np.abs(rounded - exact).max() < 6
    assert np.corrcoef(rounded[0], exact[0])[0, 1] > 0.98

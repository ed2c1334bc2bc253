"""The engine's evictions against a numpy cache that does everything itself.

Q, K and V of a few layers are recorded as the real model computes them. A store of :mod:`kvcache.stores` gets the
same K and V, computes its own probabilities, scores, selections and moves, and its attention outputs must be the
engine's, chunk after chunk.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from evicting import evicting, params, prefill, prose

from kvcache.attention import attention, visible
from kvcache.policies import make_policy
from kvcache.selection import Granularity, Selector
from kvcache.stores.base import LayerShape
from kvcache.stores.evicting import EvictingStore, evict_layers
from kvcache.stores.floats import FloatCells
from runner.engine import eviction
from runner.engine.tap import CacheTap
from runner.engine.tensors import Tensor, op_number, read_bytes
from runner.engine.weights import Weights
from runner.planning.model.gguf_header import from_gguf
from runner.planning.model.profile import Layer

BUDGET, CHUNK, TEXT = 128, 64, 384
TOLERANCE = 5e-3
"""Of the largest output. The engine multiplies the f16 cells with f16 queries and probabilities, the oracle with
float64; a token at the edge of the budget may then be another one, too."""
OPS = {
    "Qcur": op_number("ROPE"),
    "Kcur": op_number("ROPE"),
    "Vcur": op_number("MUL_MAT"),
    "kqv_out": op_number("CONT"),
}
Array = npt.NDArray[np.float32]


class Recorder(CacheTap):
    """A tap that also keeps what goes into the cache and into attention, and what comes out, of some layers."""

    watched: tuple[int, ...] = ()
    seen: dict[tuple[str, int], list[Array]]

    def __call__(self, address: int, ask: bool) -> bool:
        name = Tensor.from_address(address).name.decode()
        kind, _, layer = name.rpartition("-")
        wanted = layer.isdigit() and int(layer) in self.watched and self._is_input_or_output(kind, address)
        if wanted and not ask:
            self.seen.setdefault((kind, int(layer)), []).append(_floats(address))
        return super().__call__(address, ask) or wanted

    @staticmethod
    def _is_input_or_output(kind: str, address: int) -> bool:
        # Each has its name before and after it is reshaped, Q and K once more when they are rotated.
        return Tensor.from_address(address).op == OPS.get(kind)


def _floats(address: int) -> Array:
    """A contiguous f32 tensor with its dimensions in numpy's order, a copy."""
    tensor = Tensor.from_address(address)
    shape = tuple(n for n in reversed(tensor.ne))
    return read_bytes(address).view(np.float32).reshape(shape)[0].copy()


@pytest.mark.parametrize(
    ("policy", "granularity"),
    [
        ("peak", "head"),
        ("h2o", "head"),
        ("mean", "layer"),
        ("snapkv", "head"),
        ("h2o", "token"),
        ("keydiff", "head"),
    ],
)
def test_attention_over_the_evicted_cache(
    smol: Weights, monkeypatch: pytest.MonkeyPatch, policy: str, granularity: Granularity
) -> None:
    layers = dict(from_gguf(smol.path).full_layers)
    watched = tuple(layers) if granularity == "token" else (0, 7, 29)
    monkeypatch.setattr(Recorder, "watched", watched)
    monkeypatch.setattr(Recorder, "seen", {}, raising=False)
    monkeypatch.setattr(eviction, "CacheTap", Recorder)
    with evicting(
        smol, params(BUDGET + CHUNK), policy, budget=BUDGET, chunk=CHUNK, granularity=granularity
    ) as context:
        prefill(context, prose(smol, TEXT), chunk=CHUNK)
    stores = {block: _store(layers[block], policy, granularity) for block in watched}
    evicted = 0
    for chunk in range(TEXT // CHUNK):
        positions = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK)
        for block, store in stores.items():
            q, k, v, out = (
                Recorder.seen[kind, block][chunk].reshape(CHUNK, -1, 64)
                for kind in ("Qcur", "Kcur", "Vcur", "kqv_out")
            )
            store.write(positions, k, v)
            held = store.read()
            expected, probabilities = attention(q, held.keys, held.values, visible(positions, held.nominal))
            error = np.abs(out - expected).max() / np.abs(expected).max()
            assert error < TOLERANCE, f"layer {block}, chunk {chunk}"
            store.observe(probabilities, positions)
        if granularity == "token":
            evicted += evict_layers(list(stores.values()))
        else:
            evicted += sum(store.evict() for store in stores.values())
    assert evicted >= TEXT - BUDGET


def _store(layer: Layer, policy: str, granularity: Granularity) -> EvictingStore:
    shape = LayerShape(layer.n_head_kv, layer.head_dim_k, layer.head_dim_v)
    cells = FloatCells(BUDGET + CHUNK, shape, "f16")
    return EvictingStore(cells, make_policy(policy, {}), Selector(), BUDGET, granularity)

"""Random layers of a random text, streamed through stores as the engine streams a prompt through its cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvcache.attention import attention, visible
from kvcache.stores import EvictingStore, LayerShape, Store, evict_layers

SHAPE = LayerShape(n_head_kv=2, head_dim_k=8, head_dim_v=6)
N_HEAD = 4


@dataclass(frozen=True)
class Text:
    """Q, K and V of one layer, ``[n, heads, dim]``; queries are long, so that attention is choosy."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)


def text(n: int, seed: int = 0, shape: LayerShape = SHAPE, n_head: int = N_HEAD) -> Text:
    rng = np.random.default_rng(seed)

    def drawn(heads: int, dim: int) -> np.ndarray:
        return rng.standard_normal((n, heads, dim)).astype(np.float32)

    queries = drawn(n_head, shape.head_dim_k) * np.float32(3)
    return Text(queries, drawn(shape.n_head_kv, shape.head_dim_k), drawn(shape.n_head_kv, shape.head_dim_v))


def chunks(n: int, size: int) -> Iterator[np.ndarray]:
    for start in range(0, n, size):
        yield np.arange(start, min(start + size, n))


def step(store: Store, text: Text, at: np.ndarray, window: int | None = None) -> np.ndarray:
    """Write a chunk and attend; an evicting store observes. Outputs ``[n_query, n_head, d_v]``."""
    store.write(at, text.keys[at], text.values[at])
    held = store.read()
    seen = visible(at, held.nominal, window)
    outputs, probabilities = attention(text.queries[at], held.keys, held.values, seen)
    if isinstance(store, EvictingStore):
        store.observe(probabilities, at)
    return outputs


def stream(store: Store, text: Text, size: int, window: int | None = None) -> np.ndarray:
    """The whole text through one store; an evicting one evicts after every chunk."""
    outputs = []
    for at in chunks(len(text), size):
        outputs.append(step(store, text, at, window))
        if isinstance(store, EvictingStore):
            evict_layers([store])
    return np.concatenate(outputs)

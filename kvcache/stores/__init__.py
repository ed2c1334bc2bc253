"""Where K and V of a layer are kept: number formats (cells) and what stays in them (stores)."""

from __future__ import annotations

from kvcache.stores.base import Cells, Contents, LayerShape, Store
from kvcache.stores.dense import DenseStore
from kvcache.stores.evicting import EvictingStore, evict_layers
from kvcache.stores.floats import FloatCells
from kvcache.stores.fp8 import FP8Cells
from kvcache.stores.ring import RingStore

__all__ = [
    "Cells",
    "Contents",
    "DenseStore",
    "EvictingStore",
    "FP8Cells",
    "FloatCells",
    "LayerShape",
    "RingStore",
    "Store",
    "evict_layers",
]

"""Who stays: the policy's scores of what each layer's heads hold, and the selector's choice by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from kvcache.attention import with_all_heads
from kvcache.cells import CellTable
from kvcache.policies import Floats, HeldTokens, Policy
from kvcache.policies.base import Ints
from kvcache.selection import Mask, Selector, choose_together
from runner.engine.cache_layer import CacheLayer
from runner.engine.context import ContextParams
from runner.engine.tap import CacheTap
from runner.planning.model.profile import Layer

Granularity = Literal["head", "layer", "token"]


@dataclass(frozen=True)
class Eviction:
    """What is kept of a prompt: the policy, the selector, and the numbers of ``kv_mode``.

    ``budget`` is in cells, ``chunk`` and ``interval`` in tokens between two evictions, of prefill and of
    answers. With ``compact`` what stays of a prompt that has passed ``reach`` positions gets contiguous ones.
    Every ``probe_every``-th eviction is preceded by probes, after which ``probe_decay`` is left of what earlier
    ones looked at; ``probe_common`` is how much the attention of all heads counts beside a head's own.
    """

    policy: Policy
    selector: Selector
    budget: int
    chunk: int
    interval: int
    granularity: Granularity = "head"
    layer_weights: tuple[float, ...] = ()
    compact: bool = False
    reach: int = 0
    probe_every: int = 1
    probe_decay: float = 0.0
    probe_common: float = 0.0

    @property
    def looks(self) -> bool:
        """Whether the policy looks at anything."""
        return self.policy.needs != "nothing"

    @property
    def alike(self) -> bool:
        """Whether all layers and heads keep the same tokens in the cells where they are.

        Compaction wants the cells that stay to be the newest, whoever chooses.
        """
        return not self.compact and (self.granularity == "token" or not self.looks)


class Chooser:
    """Scores and chooses among the cells of one context; a *row* of its table is a KV head of a full layer."""

    def __init__(
        self,
        eviction: Eviction,
        table: CellTable,
        rows: dict[int, slice],
        layers: Sequence[tuple[int, Layer]],
        tap: CacheTap | None,
        params: ContextParams,
    ) -> None:
        """``rows`` are those of each of ``layers``, by block; none where nothing but positions is known."""
        self.budget = eviction.budget
        self._eviction, self._table, self._rows, self._layers = eviction, table, rows, list(layers)
        self._tap, self._params = tap, params

    def quota(self, shared: Ints, own: Sequence[Ints], end: int) -> int:
        """How many of the shared cells stay: as many as the workers would keep on average, each for itself."""
        if not own:
            return self.budget
        scores = self.score(shared, end)
        wanted = []
        for cells in own:
            both = np.concatenate([scores, self.score(cells, end)], axis=1)
            positions = self._table.positions[:, np.concatenate([shared, cells])]
            if both.shape[1] <= self.budget:
                wanted.append(float(len(shared)))
                continue
            keep = self._eviction.selector.keep(both, positions, self.budget, end)
            wanted.append(float(keep[:, : len(shared)].sum(axis=1).mean()))
        return min(int(np.mean(wanted)), len(shared))

    def score(self, cells: Ints, end: int) -> Floats:
        """Scores of what every row holds in these cells, ``[n_rows, n_cells]``; the text goes on at ``end``."""
        eviction, table = self._eviction, self._table
        asked = with_all_heads(table.asked[:, cells], table.positions[:, cells], eviction.probe_common)
        if not (self._rows and eviction.looks):
            scores = eviction.policy.score(self._held(slice(None), cells, asked, end, None))
            return np.broadcast_to(scores, (len(self._table.positions), len(cells)))
        by_layer = [
            eviction.policy.score(
                self._held(self._rows[block], cells, asked, end, self.cache_layer(block, layer))
            )
            for block, layer in self._layers
        ]
        return np.concatenate(choose_together(by_layer, eviction.granularity, eviction.layer_weights))

    def _held(
        self, rows: slice, cells: Ints, asked: Floats, end: int, layer: CacheLayer | None
    ) -> HeldTokens:
        table = self._table
        return HeldTokens(
            positions=table.positions[rows][:, cells],
            mass=table.mass[rows][:, cells],
            queries=table.queries[rows][:, cells],
            asked=asked[rows],
            end=end,
            read_keys=_nothing if layer is None else partial(layer.keys, cells),
            read_values=None if layer is None or layer.v is None else partial(layer.values, cells),
        )

    def choose(self, cells: Ints, count: int, end: int) -> tuple[Floats, Mask]:
        """Scores and what stays of ``cells``, ``[n_rows, n_cells]``, exactly ``count`` in each row."""
        scores = self.score(cells, end)
        positions = self._table.positions[:, cells]
        return scores, self._eviction.selector.keep(scores, positions, self.budget, end, count)

    def cache_layer(self, block: int, layer: Layer) -> CacheLayer:
        """Where the layer of ``block`` keeps its cells."""
        assert self._tap is not None  # only a context with a tap has rows
        return CacheLayer.of(self._tap.tensors, block, layer, self._params)


def _nothing() -> Floats:
    raise LookupError("a policy that needs nothing has no rows to read")

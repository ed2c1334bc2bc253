"""Eviction with compaction in place, exactly as the engine does it.

Where heads choose for themselves, the cells that stay are those of the newest nominal positions. Tokens that a
head keeps and that lie elsewhere are copied into them, over tokens that the head lets go; the other cells are free
again. Where all heads keep the same tokens, these simply stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvcache.attention import mass
from kvcache.cells import CellTable
from kvcache.policies.base import Floats, HeldTokens, Ints, Policy
from kvcache.selection import Granularity, Mask, Moves, Selector, choose_together, moves
from kvcache.stores.base import Cells, Store


class EvictingStore(Store):
    """``budget`` tokens a head after every eviction; the other cells are room for the next chunk.

    A round is :meth:`write`, attention over :meth:`read`, :meth:`observe`, :meth:`evict`; layers that choose
    together are evicted by :func:`evict_layers`.

    Attributes:
        table: what each cell holds for each head.
    """

    def __init__(
        self,
        cells: Cells,
        policy: Policy,
        selector: Selector,
        budget: int,
        granularity: Granularity = "head",
    ) -> None:
        """See the class.

        Raises:
            ValueError: a budget that leaves nothing to choose, or no room for a chunk.
        """
        super().__init__(cells)
        if not selector.sinks < budget < cells.n_cells:
            raise ValueError(
                f"a budget of {budget} must be above the {selector.sinks} sinks "
                f"and below the {cells.n_cells} cells"
            )
        self.policy = policy
        self.selector = selector
        self.budget = budget
        self.granularity: Granularity = granularity
        self.table = CellTable(cells.n_cells, 1, cells.shape.n_head_kv)

    @property
    def positions(self) -> Ints:
        """True positions of the tokens in use, int64 ``[n_head_kv, n]`` in the order of :meth:`read`."""
        return self._positions(self._held())

    def observe(self, probabilities: Floats, query_positions: npt.ArrayLike) -> None:
        """Take note of a chunk's attention.

        Args:
            probabilities: ``[n_head, n_query, n]``, a column for each cell of :meth:`read`, in its order. Of
                these queries the last ``policy.observed`` count.
            query_positions: ``[n_query]``.
        """
        if self.policy.needs != "attention":
            return
        queries = np.asarray(query_positions, np.int64)
        first = 0 if self.policy.observed is None else max(len(queries) - int(self.policy.observed), 0)
        queries = queries[first:]
        n_head_kv = self.cells.shape.n_head_kv
        collected = np.zeros_like(self.table.mass)
        collected[:, self._held()] = mass(probabilities[:, first:] ** self.policy.moment, n_head_kv)
        self.table.observe(collected, self.table.seen_by(np.zeros_like(queries), queries))

    def evict(self) -> int:
        """Come down to the budget, on this layer's own scores: :func:`evict_layers` of one layer."""
        return evict_layers([self])

    def scores(self) -> Floats:
        """What the policy says of the tokens in use, float32 ``[n_head_kv, n]`` in the order of :meth:`read`."""
        cells = self._held()
        held = HeldTokens(
            positions=self.table.positions[:, cells],
            mass=self.table.mass[:, cells],
            queries=self.table.queries[:, cells],
            asked=self.table.asked[:, cells],
            end=self.end,
            read_keys=lambda: self.cells.get(cells)[0].transpose(1, 0, 2),
            read_values=lambda: self.cells.get(cells)[1].transpose(1, 0, 2),
        )
        return self.policy.score(held)

    def compact(self, keep: Mask) -> None:
        """Keep these tokens, ``[n_head_kv, n]`` in the order of :meth:`read` and ``budget`` of each head."""
        cells = self._held()
        if self.granularity == "token" or self.policy.needs == "nothing":
            stay = keep[0]
        else:
            stay = np.arange(len(cells)) >= len(cells) - self.budget
        chosen = moves(keep, stay)
        if len(chosen.heads):
            moved = Moves(chosen.heads, cells[chosen.source], cells[chosen.target])
            self.cells.move(moved)
            self.table.move(0, moved)
        self.table.release(cells[~stay])

    def _place(self, positions: Ints) -> Ints:
        cells = self.table.free(len(positions))
        self.table.write(cells, positions, 0)
        return cells

    def _held(self) -> Ints:
        return self.table.held([0])

    def _nominal(self, cells: Ints) -> Ints:
        return self.table.nominal[cells]

    def _positions(self, cells: Ints) -> Ints:
        return self.table.positions[:, cells]


def evict_layers(stores: Sequence[EvictingStore], layer_weights: Sequence[float] = ()) -> int:
    """Bring the layers of one model down to their budget, sharing scores as their granularity says.

    What was observed fades by the policy's decay, whether anything had to leave or not.

    Args:
        stores: one a layer, all written alike, of one budget, selector and granularity.
        layer_weights: as :func:`kvcache.selection.choose_together`.

    Returns:
        How many cells became free in each.
    """
    first = stores[0]
    excess = first.table.used - first.budget
    if excess > 0:
        shared = choose_together([store.scores() for store in stores], first.granularity, layer_weights)
        for store, scores in zip(stores, shared, strict=True):
            store.compact(store.selector.keep(scores, store.positions, store.budget, store.end))
    for store in stores:
        store.table.fade(store.policy.decay)
    return max(excess, 0)

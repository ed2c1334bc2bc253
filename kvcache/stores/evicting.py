"""Eviction with compaction in place, exactly as the engine does it.

Where heads choose for themselves, the cells that stay are those of the newest nominal positions. Tokens that a
head keeps and that lie elsewhere are copied into them, over tokens that the head lets go; the other cells are free
again. Where all heads keep the same tokens, these simply stay where they are.

With a rope what stays moves together as well: each head's tokens, in the order of the text, are rotated to the
places 0, 1, 2..., and the text goes on behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kvcache.attention import mass, most_asked
from kvcache.cells import CellTable
from kvcache.policies.base import Floats, HeldTokens, Ints, Policy
from kvcache.rope import Rope
from kvcache.selection import Granularity, Mask, Moves, Selector, choose_together, moves
from kvcache.stores.base import Cells, Store


class EvictingStore(Store):
    """``budget`` tokens a head after every eviction; the other cells are room for the next chunk.

    A round is :meth:`write`, attention over :meth:`read`, :meth:`observe`, for a policy that probes :meth:`ask`,
    and :meth:`evict`; layers that choose together are evicted by :func:`evict_layers`.

    Positions are true ones, in the text, here as in :class:`Store`. Q and K are rotated to *places*: that of a
    token to come is its position less ``offset``, and that is where a query sees from, too.

    Attributes:
        table: what each cell holds for each head.
        offset: the true position of place 0, which stays 0 without a rope.
    """

    def __init__(
        self,
        cells: Cells,
        policy: Policy,
        selector: Selector,
        budget: int,
        granularity: Granularity = "head",
        rope: Rope | None = None,
    ) -> None:
        """See the class; ``rope`` is how K was rotated, where positions are to be made contiguous.

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
        self.rope = rope
        self.offset = 0
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
            query_positions: ``[n_query]``, true ones.
        """
        if self.policy.needs != "attention":
            return
        queries = np.asarray(query_positions, np.int64) - self.offset
        first = 0 if self.policy.observed is None else max(len(queries) - int(self.policy.observed), 0)
        queries = queries[first:]
        n_head_kv = self.cells.shape.n_head_kv
        collected = np.zeros_like(self.table.mass)
        collected[:, self._held()] = mass(probabilities[:, first:] ** self.policy.moment, n_head_kv)
        self.table.observe(collected, self.table.seen_by(np.zeros_like(queries), queries))

    def ask(self, probes: Iterable[Floats], decay: float = 0.0) -> None:
        """Take note of what probes look at, which are not written.

        Args:
            probes: the probabilities of each, ``[n_head, n_query, n + n_query]``: a column for each cell of
                :meth:`read`, in its order, and behind them one for each of the probe's own tokens.
            decay: what is left of the attention of earlier probes.
        """
        if not self.policy.probes:
            return
        n_head_kv, cells = self.cells.shape.n_head_kv, self._held()
        most = np.zeros((n_head_kv, len(cells)), np.float32)
        for probabilities in probes:
            most = most_asked(most, mass(probabilities, n_head_kv))
        asked = np.zeros_like(self.table.asked)
        asked[:, cells] = most
        self.table.ask(asked, decay)

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

    def keep(self, keep: Mask) -> None:
        """Keep these tokens, ``[n_head_kv, n]`` in the order of :meth:`read` and ``budget`` of each head."""
        cells = self._held()
        alike = self.granularity == "token" or self.policy.needs == "nothing"
        newest = np.arange(len(cells)) >= len(cells) - self.budget
        stay = keep[0] if alike and self.rope is None else newest
        chosen = moves(keep, stay)
        if len(chosen.heads):
            moved = Moves(chosen.heads, cells[chosen.source], cells[chosen.target])
            self.cells.move(moved)
            self.table.move(0, moved)
        self.table.release(cells[~stay])

    def compact(self) -> None:
        """Rotate each head's tokens to the places 0, 1, 2..., and let the cells' nominal positions follow."""
        if self.rope is None:
            return
        cells = self._held()
        by, shift = self.table.compact(cells)
        self.offset -= shift
        self.cells.rotate(cells, by, self.rope)

    def _place(self, positions: Ints) -> Ints:
        cells = self.table.free(len(positions))
        self.table.write(cells, positions, 0, self.offset)
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
            store.keep(store.selector.keep(scores, store.positions, store.budget, store.end))
            store.compact()
    for store in stores:
        store.table.fade(store.policy.decay)
    return max(excess, 0)

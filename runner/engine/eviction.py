"""Eviction inside llama.cpp's cache: every head keeps its own tokens, in the cells that stay.

The engine knows one position a cell and frees cells for all layers and heads at once. But attention does not care
which cell holds which token: K is stored after RoPE, and the mask only asks whether the cell's nominal position is
in the past. So the cells with the newest nominal positions stay, every head's chosen tokens are copied into them,
and the others are removed. The memory is a cache of budget and chunk, whatever the text's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from kvcache.budget import padded_cells
from kvcache.cells import CellTable
from kvcache.policies import Floats, HeldTokens, Policy
from kvcache.policies.base import Ints
from kvcache.selection import Mask, Moves, Selector, choose_together, moves
from runner.engine.bindings import lib
from runner.engine.cache_layer import CacheLayer
from runner.engine.context import Context, ContextParams, Logits, Phase
from runner.engine.eviction_log import EvictionLog, EvictionRound
from runner.engine.tap import CacheTap, OnWrite
from runner.engine.weights import Weights
from runner.errors import EngineError
from runner.planning.model.profile import Layer

Granularity = Literal["head", "layer", "token"]


@dataclass(frozen=True)
class Eviction:
    """What is kept of a prompt: the policy, the selector, and the numbers of ``kv_mode``.

    ``budget`` is in cells, ``chunk`` and ``interval`` in tokens between two evictions, of prefill and of answers.
    """

    policy: Policy
    selector: Selector
    budget: int
    chunk: int
    interval: int
    granularity: Granularity = "head"
    layer_weights: tuple[float, ...] = ()

    @property
    def alike(self) -> bool:
        """Whether all layers and heads keep the same tokens, so that nothing needs to be moved."""
        return self.granularity == "token" or self.policy.needs == "nothing"


@dataclass(frozen=True)
class SavedSequence:
    """A sequence as it was: the engine's state, and what its cells hold, in the order of cells."""

    state: bytes
    nominal: Ints
    positions: Ints
    born: Ints
    mass: Floats
    queries: Floats


class EvictingContext(Context):
    """A context whose prompt, one at a time, never holds more than ``eviction.budget`` cells after an eviction."""

    def __init__(
        self,
        weights: Weights,
        params: ContextParams,
        eviction: Eviction,
        layers: Sequence[tuple[int, Layer]],
        on_write: OnWrite | None = None,
    ) -> None:
        """``layers`` are the model's full-attention layers, each with the number of its block; ``on_write`` is
        told of every K and V that is written, as :class:`runner.engine.tap.CacheTap` does.
        """
        self.eviction = eviction
        self.chunk, self.interval = eviction.chunk, eviction.interval
        self._log = EvictionLog(eviction.selector, eviction.budget)
        self._layers = list(layers)
        n_cells = padded_cells(params.n_ctx)
        self._rows: dict[int, slice] = {}
        row = 0
        for block, layer in layers if eviction.policy.needs != "nothing" else ():
            self._rows[block] = slice(row, row + layer.n_head_kv)
            row += layer.n_head_kv
        looks = eviction.policy.needs == "attention"
        self.tap: CacheTap | None = None
        if self._rows or on_write is not None:
            moment = eviction.policy.moment if looks else 0
            self.tap = CacheTap(self._rows, n_cells, moment=moment, on_write=on_write)
        self.table = CellTable(n_cells, params.n_seq_max, max(row, 1))
        super().__init__(weights, params, self.tap)

    # -- what a context does, with the table kept -------------------------------------------------------------

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: Sequence[bool],
    ) -> Logits:
        """See :meth:`Context.decode`; what attention looked at is observed."""
        policy, n = self.eviction.policy, len(tokens)
        owners, at = np.asarray(sequences), np.asarray(positions)
        alone = n > 1 and owners[0] == owners[-1]
        skip = max(n - int(policy.observed), 0) if alone and policy.observed is not None else 0
        if self.tap is not None:
            self.tap.begin(skip)
        logits = super().decode(tokens, positions, sequences, outputs)
        # Without heads to move nothing depends on which cell it really is.
        cells = self.tap.cells(n) if self.tap is not None and self._rows else self.table.free(n)
        self.table.write(cells, at, owners)
        if self.tap is not None and policy.needs == "attention":
            self.table.observe(self.tap.mass, self.table.seen_by(owners[skip:], at[skip:]))
        return logits

    def clear(self) -> None:
        """See :meth:`Context.clear`."""
        super().clear()
        self.table.clear()
        self._log.restart()

    def fork(self, source: int, target: int) -> None:
        """See :meth:`Context.fork`."""
        super().fork(source, target)
        self.table.share(source, target)

    def drop(self, sequence: int) -> None:
        """See :meth:`Context.drop`."""
        super().drop(sequence)
        self.table.drop(sequence)

    def save(self, sequence: int) -> SavedSequence:
        """All of a sequence, in host memory."""
        cells, table = np.sort(self.table.held([sequence])), self.table
        return SavedSequence(
            state=self._read_state(sequence, 0),
            nominal=table.nominal[cells],
            positions=table.positions[:, cells],
            born=table.born[:, cells],
            mass=table.mass[:, cells],
            queries=table.queries[:, cells],
        )

    def restore(self, sequence: int, saved: SavedSequence) -> None:
        """Put a saved sequence into the context, which forgets all else, in a layout that is always the same."""
        self.clear()
        self._write_state(sequence, saved.state, 0)
        cells, table = np.arange(len(saved.nominal)), self.table
        table.write(cells, saved.nominal, sequence)
        table.positions[:, cells], table.born[:, cells] = saved.positions, saved.born
        table.mass[:, cells], table.queries[:, cells] = saved.mass, saved.queries
        self._log.restart(int(saved.nominal.max(initial=-1)) + 1)

    def take_rounds(self) -> list[EvictionRound]:
        """See :meth:`Context.take_rounds`."""
        return self._log.take()

    @property
    def cells_used(self) -> int:
        """Cells that somebody owns."""
        return self.table.used

    # -- eviction ---------------------------------------------------------------------------------------------

    def evict(self, sequences: Sequence[int], phase: Phase) -> None:
        """Bring what each of ``sequences`` sees to the budget.

        Cells that all of them own are judged by what all of them looked at and leave for all at once; each one's
        own cells are judged alone.
        """
        shared = self.table.held(sequences)
        own = [self.table.held([s]) for s in sequences] if len(sequences) > 1 else []
        longest = max((len(cells) for cells in own), default=0)
        if len(shared) + longest > self.eviction.budget:
            end = int(max(self.table.nominal[cells].max(initial=-1) for cells in (shared, *own))) + 1
            self._bring_down(shared, own, end, phase)
        self.table.fade(self.eviction.policy.decay)

    def _bring_down(self, shared: Ints, own: Sequence[Ints], end: int, phase: Phase) -> None:
        budget = self.eviction.budget
        count = self._quota(shared, own, end)
        before = len(shared) + max((len(cells) for cells in own), default=0)
        scores, keep = self._choose(shared, count, end)
        self._log.note(self.table.positions[:, shared], scores, keep, before, end, phase)
        self._keep(shared, keep, count)
        for cells in own:
            left = min(len(cells), budget - count)
            if left < len(cells):
                self._keep(cells, self._choose(cells, left, end)[1], left)

    def _quota(self, shared: Ints, own: Sequence[Ints], end: int) -> int:
        """How many of the shared cells stay: as many as the workers would keep on average, each for itself."""
        budget = self.eviction.budget
        if not own:
            return budget
        scores = self._score(shared, end)
        wanted = []
        for cells in own:
            both = np.concatenate([scores, self._score(cells, end)], axis=1)
            positions = self.table.positions[:, np.concatenate([shared, cells])]
            if both.shape[1] <= budget:
                wanted.append(float(len(shared)))
                continue
            keep = self.eviction.selector.keep(both, positions, budget, end)
            wanted.append(float(keep[:, : len(shared)].sum(axis=1).mean()))
        return min(int(np.mean(wanted)), len(shared))

    def _score(self, cells: Ints, end: int) -> Floats:
        """Scores of what every row holds in these cells, ``[n_rows, n_cells]``."""
        table, eviction = self.table, self.eviction

        def held(rows: slice, layer: CacheLayer | None) -> HeldTokens:
            return HeldTokens(
                positions=table.positions[rows][:, cells],
                mass=table.mass[rows][:, cells],
                queries=table.queries[rows][:, cells],
                end=end,
                read_keys=_nothing if layer is None else partial(layer.keys, cells),
                read_values=None if layer is None or layer.v is None else partial(layer.values, cells),
            )

        if not self._rows:
            return eviction.policy.score(held(slice(0, 1), None))
        by_layer = [
            eviction.policy.score(held(self._rows[block], self._cache_layer(block, layer)))
            for block, layer in self._layers
        ]
        return np.concatenate(choose_together(by_layer, eviction.granularity, eviction.layer_weights))

    def _choose(self, cells: Ints, count: int, end: int) -> tuple[Floats, Mask]:
        """Scores and what stays of ``cells``, ``[n_rows, n_cells]``, exactly ``count`` in each row."""
        scores = self._score(cells, end)
        positions = self.table.positions[:, cells]
        eviction = self.eviction
        return scores, eviction.selector.keep(scores, positions, eviction.budget, end, count)

    def _keep(self, cells: Ints, keep: Mask, count: int) -> None:
        """Let each row keep its own of ``cells``, which are in the order of nominal positions."""
        if self.eviction.alike:
            stay = keep[0]
        else:
            stay = np.arange(len(cells)) >= len(cells) - count
            for block, layer in self._layers:
                rows = self._rows[block]
                found = moves(keep[rows], stay)
                found = Moves(found.heads, cells[found.source], cells[found.target])
                self._cache_layer(block, layer).move(found)
                self.table.move(rows.start, found)
        self._remove(cells, ~stay)

    def _remove(self, cells: Ints, gone: Mask) -> None:
        """Free those of ``cells`` that are gone, in runs with nothing that stays between them."""
        at = np.flatnonzero(gone)
        if not len(at):
            return
        owners = np.flatnonzero(self.table.owners[:, cells[at[0]]])
        for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
            first, last = self.table.nominal[cells[run[0]]], self.table.nominal[cells[run[-1]]]
            for owner in owners:
                if not lib.llama_memory_seq_rm(self._memory, int(owner), int(first), int(last) + 1):
                    raise EngineError(
                        f"this model's cache does not let positions {first} to {last} go; "
                        f"it cannot be run with an eviction policy, set kv_mode=f16"
                    )
        self.table.release(cells[at])

    def _cache_layer(self, block: int, layer: Layer) -> CacheLayer:
        assert self.tap is not None  # only a policy that looks at something has rows
        return CacheLayer.of(self.tap.tensors, block, layer, self.params)


def _nothing() -> Floats:
    raise LookupError("a policy that needs nothing has no rows to read")

"""Eviction inside llama.cpp's cache: every head keeps its own tokens, in the cells that stay.

The engine knows one position a cell and frees cells for all layers and heads at once. But attention does not
care which cell holds which token: K is stored after RoPE, and the mask only asks whether the cell's nominal
position is in the past. So the cells with the newest nominal positions stay, every head's chosen tokens are
copied into them, and the others are removed. The memory is a cache of budget and chunk, whatever the text's
length.

Nor does it care at which positions tokens are, as long as they are in order. With compaction every head's
tokens are rotated to the places 0, 1, 2... and the cells' nominal positions follow, so that the text's length
does not reach the model either. Callers go on to speak of true positions: that of place 0 is known here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcache.attention import most_asked
from kvcache.budget import padded_cells
from kvcache.cells import CellTable
from kvcache.policies.base import Ints
from kvcache.selection import Mask, Moves, moves
from runner.engine.bindings import lib
from runner.engine.chooser import Chooser, Eviction
from runner.engine.context import Context, ContextParams, Logits, Phase
from runner.engine.eviction_log import EvictionLog, EvictionRound
from runner.engine.reading import Reading
from runner.engine.sequence_state import StateLayout, shift_positions
from runner.engine.survivors import Kept
from runner.engine.tap import CacheTap, OnWrite
from runner.engine.weights import Weights
from runner.errors import EngineError
from runner.planning.model.profile import Layer


@dataclass(frozen=True)
class SavedSequence:
    """A sequence as it was: the engine's state, and what its cells hold, in the order of cells.

    ``by_row`` are the arrays of :attr:`kvcache.cells.CellTable.by_row`; ``offset`` is the true position of
    place 0, ``kept`` what the last eviction left.
    """

    state: bytearray
    nominal: Ints
    by_row: tuple[npt.NDArray[np.generic], ...]
    offset: int
    kept: Kept | None = None


class EvictingContext(Context):
    """A context whose prompt, one at a time, never holds more than ``eviction.budget`` cells after an eviction."""

    def __init__(
        self,
        weights: Weights,
        params: ContextParams,
        eviction: Eviction,
        layers: Sequence[tuple[int, Layer]],
        *,
        recurrent: bool = False,
        on_write: OnWrite | None = None,
    ) -> None:
        """``layers`` are the model's attention layers, each with the number of its block; ``recurrent`` says that
        there are others; ``on_write`` is told of every K and V that is written, as
        :class:`runner.engine.tap.CacheTap` does.
        """
        self.eviction = eviction
        self.chunk, self.interval = eviction.chunk, eviction.interval
        self._layers = [(block, layer) for block, layer in layers if layer.kind == "full"]
        self._sliding = [(block, layer) for block, layer in layers if layer.kind == "sliding"]
        self._reading, self._rounds, self._offset = Reading(), 0, 0
        n_cells = padded_cells(params.n_ctx)
        self._rows: dict[int, slice] = {}
        row = 0
        for block, layer in self._layers if eviction.looks or eviction.compact else ():
            self._rows[block] = slice(row, row + layer.n_head_kv)
            row += layer.n_head_kv
        self._log = EvictionLog(eviction.selector, eviction.budget, self._rows)
        self.tap: CacheTap | None = None
        if self._rows or on_write is not None:
            moment = eviction.policy.moment if eviction.policy.needs == "attention" else 0
            self.tap = CacheTap(
                self._rows, n_cells, moment=moment, on_write=on_write, rotations=eviction.compact
            )
        self.table = CellTable(n_cells, params.n_seq_max, max(row, 1))
        self._chooser = Chooser(eviction, self.table, self._rows, self._layers, self.tap, params)
        self._layout = StateLayout(
            attention_parts=(1 if self._layers else 0) + (1 if self._sliding else 0),
            recurrent=recurrent,
            two_dimensional=weights.is_mrope,
            has_v=any(layer.head_dim_v for _, layer in layers),
        )
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
        owners, places = np.asarray(sequences), np.asarray(positions) - self._offset
        alone = n > 1 and owners[0] == owners[-1]
        skip = max(n - int(policy.observed), 0) if alone and policy.observed is not None else 0
        if self.tap is not None:
            self.tap.begin(skip)
        logits = self._write(tokens, places, owners, outputs)
        if self.tap is not None and policy.needs == "attention":
            self.table.observe(self.tap.mass, self.table.seen_by(owners[skip:], places[skip:]))
        return logits

    def _write(self, tokens: Sequence[int], places: Ints, owners: Ints, outputs: Sequence[bool]) -> Logits:
        logits = super().decode(tokens, places.tolist(), owners.tolist(), outputs)
        n = len(tokens)
        # Without heads to move nothing depends on which cell it really is.
        cells = self.tap.cells(n) if self.tap is not None and self._rows else self.table.free(n)
        self.table.write(cells, places + self._offset, owners, self._offset)
        return logits

    def clear(self) -> None:
        """See :meth:`Context.clear`."""
        super().clear()
        self.table.clear()
        self._offset = 0
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
            by_row=tuple(array[:, cells] for array in table.by_row),
            offset=self._offset,
            kept=self._log.kept,
        )

    def restore(self, sequence: int, saved: SavedSequence) -> None:
        """Put a saved sequence into the context, which forgets all else, in a layout that is always the same."""
        self._put(sequence, saved)
        self._log.resume(int(saved.nominal.max(initial=-1)) + 1 + saved.offset, saved.kept)

    def _put(self, sequence: int, saved: SavedSequence) -> None:
        super().clear()
        self._write_state(sequence, saved.state, 0)
        cells, table = np.arange(len(saved.nominal)), self.table
        step = table.step
        table.clear()
        table.step, self._offset = step, saved.offset
        table.write(cells, saved.nominal + saved.offset, sequence, saved.offset)
        for array, values in zip(table.by_row, saved.by_row, strict=True):
            array[:, cells] = values

    def take_rounds(self) -> list[EvictionRound]:
        """See :meth:`Context.take_rounds`."""
        return self._log.take()

    def take_kept(self) -> Kept | None:
        """See :meth:`Context.take_kept`."""
        return self._log.take_kept()

    @property
    def cells_used(self) -> int:
        """Cells that somebody owns."""
        return self.table.used

    # -- probes -----------------------------------------------------------------------------------------------

    def begin(self, reading: Reading) -> None:
        """See :meth:`Context.begin`."""
        self._reading, self._rounds = reading, 0
        self._chooser.budget = self.eviction.budget if reading.budget is None else reading.budget
        self._log.begin(self._chooser.budget)

    def probe(self, sequence: int, spare: int, *, last: bool) -> int:
        """See :meth:`Context.probe`."""
        cells = self.table.held([sequence])
        if not self._reading.probes or len(cells) <= self._chooser.budget:
            return 0
        # The first of them judges tokens that no probe has seen yet.
        skipped = self._rounds % self.eviction.probe_every > 0
        self._rounds += 1
        if skipped and not last:
            return 0
        assert self.tap is not None  # a policy that probes looks at attention
        first = int(self.table.nominal[cells].max()) + 1
        most = np.zeros_like(self.tap.mass)
        for tokens in self._reading.probes:
            self.fork(sequence, spare)
            self.tap.begin(moment=1)
            owners = np.full(len(tokens), spare)
            self._write(tokens, first + np.arange(len(tokens)), owners, [False] * len(tokens))
            most = most_asked(most, self.tap.mass)
            self.drop(spare)
        self.table.ask(most, self.eviction.probe_decay)
        n_probed = sum(len(tokens) for tokens in self._reading.probes)
        self._log.probed(n_probed)
        return n_probed

    # -- eviction ---------------------------------------------------------------------------------------------

    def evict(self, sequences: Sequence[int], phase: Phase) -> None:
        """Bring what each of ``sequences`` sees to the budget.

        Cells that all of them own are judged by what all of them looked at and leave for all at once; each one's
        own cells are judged alone.
        """
        shared = self.table.held(sequences)
        own = [self.table.held([s]) for s in sequences] if len(sequences) > 1 else []
        longest = max((len(cells) for cells in own), default=0)
        if len(shared) + longest > self._chooser.budget:
            last = int(max(self.table.nominal[cells].max(initial=-1) for cells in (shared, *own)))
            self._bring_down(shared, own, last + 1 + self._offset, phase)
            if self.eviction.compact and phase == "prefill" and last >= self.eviction.reach:
                self._compact(sequences[0])
        self.table.fade(self.eviction.policy.decay)

    def _bring_down(self, shared: Ints, own: Sequence[Ints], end: int, phase: Phase) -> None:
        chooser = self._chooser
        count = chooser.quota(shared, own, end)
        before = len(shared) + max((len(cells) for cells in own), default=0)
        scores, keep = chooser.choose(shared, count, end)
        self._log.note(self.table.positions[:, shared], scores, keep, before, end, phase)
        self._keep(shared, keep, count)
        for cells in own:
            left = min(len(cells), chooser.budget - count)
            if left < len(cells):
                self._keep(cells, chooser.choose(cells, left, end)[1], left)

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
                self._chooser.cache_layer(block, layer).move(found)
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

    # -- compaction -------------------------------------------------------------------------------------------

    def _compact(self, sequence: int) -> None:
        """Bring every row's tokens of ``sequence`` to the places 0, 1, 2... and its cells' positions with them.

        Where the engine can shift positions (``llama_memory_seq_add``) its rotation would add to ours. But it
        rounds every K twice a round, also what stays in place, multiplies by YaRN's magnitude again, and comes
        with the next decode only, so that a saved sequence lacks it: positions are rewritten in the state
        instead.
        """
        cells = self.table.held([sequence])
        by, shift = self.table.compact(cells)
        self._offset -= shift
        self._rotate(cells, by)
        self._rotate_sliding(shift)
        saved = self.save(sequence)
        shift_positions(saved.state, shift, self._layout)
        self._put(sequence, saved)

    def _rotate(self, cells: Ints, by: Ints) -> None:
        assert self.tap is not None  # compaction has rows
        for block, layer in self._layers:
            if (rope := self.tap.ropes.get(block)) is not None:
                self._chooser.cache_layer(block, layer).rotate(cells, by[self._rows[block]], rope)

    def _rotate_sliding(self, by: int) -> None:
        """Sliding layers keep the text's last tokens, every one of which moves alike; so may free cells."""
        assert self.tap is not None  # compaction has rows
        for block, layer in self._sliding:
            if (rope := self.tap.ropes.get(block)) is not None:
                held = self._chooser.cache_layer(block, layer)
                cells = np.arange(held.n_cells)
                held.rotate(cells, np.full((layer.n_head_kv, len(cells)), by), rope)

"""What each cell of a cache holds: its owners, and for every layer and head a token with its age and its score.

The cache itself knows one *nominal* position a cell, for all layers and heads; it decides who may look at the
cell. Once heads choose their own tokens, what a head really holds there is another token, with a true position
of its own, and once positions are compacted, at a *place* of its own: the position that its K is rotated to.
All three are here, and nothing else knows the second and the third.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvcache.policies.base import Floats, Ints
from kvcache.selection import Mask, Moves

FREE = -1


class CellTable:
    """``n_cells`` cells; a *row* is one KV head of one layer.

    Attributes:
        nominal: int64 ``[n_cells]``, the position that the cache believes in; -1 where the cell is free.
        owners: bool ``[n_sequences, n_cells]``; a cell is free when its last owner lets go.
        positions: int64 ``[n_rows, n_cells]``, the true position in its text of the token that a row holds.
        places: int64 ``[n_rows, n_cells]``, the position that its K is rotated to.
        born: int64 ``[n_rows, n_cells]``, the step at which that token was written.
        mass: float32 ``[n_rows, n_cells]``, the attention it has collected.
        queries: float32 ``[n_rows, n_cells]``, how many of the observed queries could see it.
        asked: float32 ``[n_rows, n_cells]``, the attention that probes gave it.
        step: how many writes there were.
    """

    def __init__(self, n_cells: int, n_sequences: int, n_rows: int = 1) -> None:
        self.nominal: Ints = np.full(n_cells, FREE, np.int64)
        self.owners: Mask = np.zeros((n_sequences, n_cells), bool)
        self.positions: Ints = np.full((n_rows, n_cells), FREE, np.int64)
        self.places: Ints = np.full((n_rows, n_cells), FREE, np.int64)
        self.born: Ints = np.zeros((n_rows, n_cells), np.int64)
        self.mass: Floats = np.zeros((n_rows, n_cells), np.float32)
        self.queries: Floats = np.zeros((n_rows, n_cells), np.float32)
        self.asked: Floats = np.zeros((n_rows, n_cells), np.float32)
        self.step = 0

    @property
    def used(self) -> int:
        """Cells that somebody owns."""
        return int((self.nominal != FREE).sum())

    def clear(self) -> None:
        """Forget every token."""
        self.owners[:] = False
        self._forget(np.arange(len(self.nominal)))
        self.step = 0

    def free(self, n: int) -> Ints:
        """The first ``n`` free cells.

        Raises:
            ValueError: there are fewer.
        """
        cells = np.flatnonzero(self.nominal == FREE)[:n]
        if len(cells) < n:
            raise ValueError(f"{n} cells are wanted, {len(cells)} of {len(self.nominal)} are free")
        return cells

    def write(
        self,
        cells: npt.ArrayLike,
        positions: npt.ArrayLike,
        sequences: npt.ArrayLike | int,
        offset: int = 0,
    ) -> None:
        """New tokens: each cell's true position, the sequence that owns it, and the true position of place 0."""
        at, owner = np.asarray(cells, np.int64), np.asarray(sequences, np.int64)
        self._forget(at)
        self.owners[:, at] = False
        self.owners[owner, at] = True
        self.positions[:, at] = positions
        self.nominal[at] = np.asarray(positions) - offset
        self.places[:, at] = self.nominal[at]
        self.born[:, at] = self.step
        self.step += 1

    def share(self, source: int, target: int) -> None:
        """``target`` owns what ``source`` owns, too."""
        self.owners[target] |= self.owners[source]

    def drop(self, sequence: int) -> None:
        """``sequence`` owns nothing any more."""
        self.owners[sequence] = False
        self._forget(np.flatnonzero(~self.owners.any(axis=0) & (self.nominal != FREE)))

    def release(self, cells: npt.ArrayLike) -> None:
        """All owners let go of these cells."""
        at = np.asarray(cells, np.int64)
        self.owners[:, at] = False
        self._forget(at)

    def held(self, sequences: Sequence[int]) -> Ints:
        """The cells that these sequences own and no others do, in the order of nominal positions."""
        pattern = np.zeros((len(self.owners), 1), bool)
        pattern[list(sequences)] = True
        cells = np.flatnonzero((self.owners == pattern).all(axis=0) & (self.nominal != FREE))
        return cells[np.argsort(self.nominal[cells], kind="stable")]

    def seen_by(self, sequences: Ints, positions: Ints) -> Floats:
        """How many of these queries see each cell: those of an owner, from its nominal position on.

        Args:
            sequences: ``[n_query]``, whose they are.
            positions: ``[n_query]``, where they stand.

        Returns:
            float32 ``[n_cells]``.
        """
        counts = np.zeros(len(self.nominal), np.float32)
        for sequence in np.unique(sequences):
            at = np.sort(positions[sequences == sequence])
            seen = len(at) - np.searchsorted(at, self.nominal, side="left")
            counts += np.where(self.owners[sequence], seen, 0)
        return counts

    def observe(self, mass: Floats, queries: Floats) -> None:
        """Add attention ``[n_rows, n_cells]`` and how many queries could give it ``[n_cells]``."""
        self.mass += mass
        self.queries += queries

    def fade(self, decay: float) -> None:
        """Leave ``decay`` of what was observed so far."""
        if decay != 1:
            self.mass *= decay
            self.queries *= decay

    def ask(self, asked: Floats, decay: float) -> None:
        """Let the attention of new probes ``[n_rows, n_cells]`` take the place of the last, of which ``decay`` is
        left."""
        self.asked *= decay
        self.asked += np.where(self.nominal != FREE, asked, 0)

    def compact(self, cells: Ints) -> tuple[Ints, int]:
        """Give what rows hold in ``cells`` the places from 0 on, in the order of the text, and the cells the
        nominal positions from 0 on, in their own.

        Returns:
            How far each K is to be rotated, ``[n_rows, n_cells]``, and how far every nominal position went.

        Raises:
            ValueError: the nominal positions are not contiguous, so that no single shift brings them to 0.
        """
        nominal = self.nominal[cells]
        shift = -int(nominal.min())
        if int(nominal.max()) + shift != len(cells) - 1:
            raise ValueError(f"{len(cells)} cells have nominal positions {nominal.min()} to {nominal.max()}")
        ranks = np.argsort(np.argsort(self.positions[:, cells], axis=1), axis=1)
        by = ranks - self.places[:, cells]
        self.places[:, cells] = ranks
        self.nominal[cells] += shift
        return by, shift

    def move(self, first_row: int, moves: Moves) -> None:
        """What is known of tokens goes with them; ``moves.heads`` count from ``first_row``."""
        rows = first_row + moves.heads
        for array in self.by_row:
            array[rows, moves.target] = array[rows, moves.source]

    @property
    def by_row(self) -> tuple[npt.NDArray[np.generic], ...]:
        """What is known of each row's tokens, ``[n_rows, n_cells]`` each."""
        return self.positions, self.places, self.born, self.mass, self.queries, self.asked

    def _forget(self, cells: Ints) -> None:
        self.nominal[cells] = FREE
        self.positions[:, cells] = FREE
        self.mass[:, cells] = 0
        self.queries[:, cells] = 0
        self.asked[:, cells] = 0

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache.cells import FREE, CellTable
from kvcache.selection import Moves, moves


def ints(*x: int) -> np.ndarray:
    return np.array(x, np.int64)


def table_of(n_cells: int, positions: list[int], n_sequences: int = 1, n_rows: int = 1) -> CellTable:
    table = CellTable(n_cells, n_sequences, n_rows)
    table.write(table.free(len(positions)), positions, 0)
    return table


def test_a_new_table_is_free() -> None:
    table = CellTable(4, 2, 3)
    assert table.used == 0
    assert table.free(4).tolist() == [0, 1, 2, 3]
    assert table.held([0]).tolist() == []
    assert (table.positions == FREE).all()


def test_no_more_cells_than_there_are() -> None:
    table = table_of(4, [0, 1, 2])
    assert table.free(1).tolist() == [3]
    with pytest.raises(ValueError, match="2 cells are wanted, 1 of 4 are free"):
        table.free(2)


def test_write_says_who_what_and_when() -> None:
    table = CellTable(6, 3, 2)
    table.write([4, 1], [10, 11], 2)
    table.write([0, 5], [12, 12], [0, 1])
    assert table.nominal.tolist() == [12, 11, FREE, FREE, 10, 12]
    assert table.positions[1].tolist() == [12, 11, FREE, FREE, 10, 12]
    assert table.owners[:, [0, 1, 4, 5]].T.tolist() == [
        [True, False, False],
        [False, False, True],
        [False, False, True],
        [False, True, False],
    ]
    assert table.born[0, [0, 1, 4, 5]].tolist() == [1, 0, 0, 1]
    assert table.step == 2


def test_writing_over_a_cell_forgets_it() -> None:
    table = table_of(3, [0, 1, 2], n_sequences=2)
    table.share(0, 1)
    table.observe(np.ones((1, 3), np.float32), np.full(3, 2, np.float32))
    table.write([1], [9], 0)
    assert table.nominal.tolist() == [0, 9, 2]
    assert table.owners.tolist() == [[True, True, True], [True, False, True]]
    assert table.mass.tolist() == [[1, 0, 1]]
    assert table.queries.tolist() == [[2, 0, 2]]


def test_cells_of_nothing() -> None:
    table = table_of(3, [0, 1])
    table.release([])
    table.write([], [], 0)
    assert table.used == 2


def test_a_shared_cell_is_free_when_its_last_owner_lets_go() -> None:
    table = table_of(4, [0, 1], n_sequences=3)
    table.share(0, 1)
    table.write([2], [2], 1)
    table.drop(0)
    assert table.used == 3
    assert table.held([1]).tolist() == [0, 1, 2]
    table.drop(1)
    assert table.used == 0
    assert not table.owners.any()


def test_held_are_the_cells_of_exactly_these() -> None:
    table = CellTable(5, 3)
    table.write([3, 0], [0, 1], 0)
    table.share(0, 1)
    table.write([1, 4], [2, 2], [0, 1])
    assert table.held([0, 1]).tolist() == [3, 0]
    assert table.held([0]).tolist() == [1]
    assert table.held([1]).tolist() == [4]
    assert table.held([2]).tolist() == []
    assert table.held([]).tolist() == []


def test_release_lets_all_owners_go() -> None:
    table = table_of(4, [0, 1, 2], n_sequences=2, n_rows=2)
    table.share(0, 1)
    table.observe(np.ones((2, 4), np.float32), np.ones(4, np.float32))
    table.release([0, 2])
    assert table.held([0, 1]).tolist() == [1]
    assert table.free(3).tolist() == [0, 2, 3]
    assert table.mass[:, [0, 2]].tolist() == table.queries[:, [0, 2]].tolist() == [[0, 0], [0, 0]]
    assert (table.positions[:, [0, 2]] == FREE).all()


def test_clear_forgets_everything() -> None:
    table = table_of(4, [0, 1, 2], n_rows=2)
    table.observe(np.ones((2, 4), np.float32), np.ones(4, np.float32))
    table.clear()
    new = CellTable(4, 1, 2)
    for name in ("nominal", "owners", "positions", "mass", "queries", "step"):
        np.testing.assert_array_equal(getattr(table, name), getattr(new, name))


def test_a_query_sees_what_its_sequence_owns_up_to_itself() -> None:
    table = CellTable(5, 2)
    table.write([0, 1], [0, 1], 0)
    table.share(0, 1)
    table.write([2, 3], [2, 2], [0, 1])
    seen = table.seen_by(ints(0, 0, 1), ints(2, 0, 2))
    assert seen.tolist() == [3, 2, 1, 1, 0]
    assert seen.dtype == np.float32


def test_seeing_is_by_nominal_position() -> None:
    """A head's own token may be older than its cell: it still is seen only where the cell is."""
    table = table_of(2, [5, 6])
    table.positions[0, 1] = 1
    assert table.seen_by(ints(0), ints(5)).tolist() == [1, 0]


def test_observations_add_up_and_fade() -> None:
    table = table_of(2, [0, 1], n_rows=2)
    table.observe(np.array([[1, 2], [3, 4]], np.float32), np.array([2, 1], np.float32))
    table.fade(0.5)
    table.observe(np.array([[1, 0], [0, 1]], np.float32), np.array([1, 1], np.float32))
    assert table.mass.tolist() == [[1.5, 1], [1.5, 3]]
    assert table.queries.tolist() == [[2, 1.5], [2, 1.5]]
    table.fade(0)
    assert not table.mass.any()
    assert not table.queries.any()


def test_all_that_is_known_of_a_token_moves_with_it() -> None:
    table = CellTable(4, 1, 3)
    table.write([0, 1], [0, 1], 0)
    table.write([2, 3], [2, 3], 0)
    table.observe(np.arange(12, dtype=np.float32).reshape(3, 4), np.array([4, 3, 2, 1], np.float32))
    table.move(1, Moves(heads=ints(0, 1), source=ints(0, 1), target=ints(3, 2)))
    assert table.positions.tolist() == [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 1, 3]]
    assert table.born.tolist() == [[0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert table.mass.tolist() == [[0, 1, 2, 3], [4, 5, 6, 4], [8, 9, 9, 11]]
    assert table.queries.tolist() == [[4, 3, 2, 1], [4, 3, 2, 4], [4, 3, 3, 1]]
    assert table.nominal.tolist() == [0, 1, 2, 3]


class Swarm(RuleBasedStateMachine):
    """A prompt and its workers against a model of dictionaries: who owns what, and what each head holds."""

    n_cells, n_sequences, n_rows = 24, 3, 2

    def __init__(self) -> None:
        super().__init__()
        self.table = CellTable(self.n_cells, self.n_sequences, self.n_rows)
        self.cells: dict[int, tuple[int, set[int], list[int]]] = {}  # cell: nominal, owners, tokens by row
        self.end = 0

    @property
    def room(self) -> int:
        return self.n_cells - len(self.cells)

    @precondition(lambda self: self.room > 0)
    @rule(n=st.integers(1, 6), sequence=st.integers(0, 2))
    def write(self, n: int, sequence: int) -> None:
        n = min(n, self.room)
        cells = self.table.free(n)
        self.table.write(cells, np.arange(self.end, self.end + n), sequence)
        for i, cell in enumerate(cells.tolist()):
            self.cells[cell] = (self.end + i, {sequence}, [self.end + i] * self.n_rows)
        self.end += n

    @rule(source=st.integers(0, 2), other=st.integers(0, 2))
    def share(self, source: int, other: int) -> None:
        self.table.share(source, other)
        for _, owners, _ in self.cells.values():
            if source in owners:
                owners.add(other)

    @rule(sequence=st.integers(0, 2))
    def drop(self, sequence: int) -> None:
        self.table.drop(sequence)
        for cell, (_, owners, _) in list(self.cells.items()):
            owners.discard(sequence)
            if not owners:
                del self.cells[cell]

    @rule(owners=st.sets(st.integers(0, 2), min_size=1), budget=st.integers(0, 8), seed=st.integers(0, 99))
    def evict(self, owners: set[int], budget: int, seed: int) -> None:
        cells = self.table.held(sorted(owners))
        budget = min(budget, len(cells))
        rng = np.random.default_rng(seed)
        keep = np.argsort(rng.random((self.n_rows, len(cells))), axis=1) < budget
        stay = np.arange(len(cells)) >= len(cells) - budget
        kept = [{int(p) for p in self.table.positions[row, cells[keep[row]]]} for row in range(self.n_rows)]
        found = moves(keep, stay)
        self.table.move(0, Moves(found.heads, cells[found.source], cells[found.target]))
        self.table.release(cells[~stay])
        for cell in cells[~stay].tolist():
            del self.cells[cell]
        for row in range(self.n_rows):
            assert {int(p) for p in self.table.positions[row, cells[stay]]} == kept[row]
            for cell in cells[stay].tolist():
                self.cells[cell][2][row] = int(self.table.positions[row, cell])

    @invariant()
    def agrees(self) -> None:
        assert self.table.used == len(self.cells)
        for cell in range(self.n_cells):
            nominal, owners, tokens = self.cells.get(cell, (FREE, set(), [FREE] * self.n_rows))
            assert self.table.nominal[cell] == nominal
            assert set(np.flatnonzero(self.table.owners[:, cell]).tolist()) == owners
            assert self.table.positions[:, cell].tolist() == tokens


Swarm.TestCase.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
TestSwarm = Swarm.TestCase

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.selection import Selector, choose_together, moves, pooled

INF, NAN = np.inf, np.nan


def f32(x: object) -> np.ndarray:
    return np.array(x, np.float32)


def kept(selector: Selector, scores: object, budget: int, **more: int) -> list[list[int]]:
    scores = f32(scores)
    positions = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    keep = selector.keep(scores, positions, budget, scores.shape[1], **more)
    return [np.flatnonzero(row).tolist() for row in keep]


def test_the_seeds_numbers() -> None:
    """Budget 2,048: 4 sinks, 511 recent, 1,533 heavy."""
    selector = Selector()
    assert (selector.sinks, selector.recent_cells(2048)) == (4, 511)
    positions = np.arange(3000)[None]
    assert selector.protected(positions, 2048, 3000).sum() == 4 + 511
    assert 2048 - 4 - 511 == 1533


def test_recent_share_that_is_a_whole_number() -> None:
    """In floats 100 * 0.29 is a hair below 29."""
    assert Selector(sinks=0, recent=0.29).recent_cells(100) == 29
    assert Selector(sinks=4, recent=0.5).recent_cells(3) == 0


def test_sinks_and_recent_stay_whatever_their_score() -> None:
    scores = [[0, 0, 9, 8, 7, 6, 5, 4, 0, 0]]
    assert kept(Selector(sinks=2, recent=0.5), scores, 6) == [[0, 1, 2, 3, 8, 9]]


def test_heads_choose_for_themselves() -> None:
    scores = [[0, 5, 1, 2, 0], [0, 1, 2, 5, 0]]
    assert kept(Selector(sinks=1, recent=0.5), scores, 3) == [[0, 1, 4], [0, 3, 4]]


def test_equal_scores_are_a_window() -> None:
    assert kept(Selector(sinks=1, recent=0), np.ones((1, 8)), 4) == [[0, 5, 6, 7]]
    assert kept(Selector(sinks=1, recent=0), [[0, INF, INF, INF, INF, 3]], 3) == [[0, 3, 4]]


def test_equal_scores_are_a_window_in_whatever_column() -> None:
    positions = np.array([[9, 3, 7, 1, 5]])
    keep = Selector(sinks=0, recent=0).keep(np.ones((1, 5), np.float32), positions, 2, 10)
    assert positions[keep].tolist() == [9, 7]


@pytest.mark.parametrize("count", [4, 9])
def test_as_many_as_there_are_stay(count: int) -> None:
    assert kept(Selector(sinks=1), [[4, 3, 2, 1]], 20, count=count) == [[0, 1, 2, 3]]


def test_fewer_than_are_protected() -> None:
    """Sinks first, then the youngest."""
    selector = Selector(sinks=2, recent=0.5)
    scores = [[0, 0, 9, 9, 5, 4, 3, 2]]
    assert kept(selector, scores, 8, count=4) == [[0, 1, 6, 7]]
    assert kept(selector, scores, 8, count=2) == [[0, 1]]
    assert kept(selector, scores, 8, count=0) == [[]]


def test_nan_is_the_worst_score() -> None:
    assert kept(Selector(sinks=0, recent=0), [[NAN, 1, NAN, -5]], 2) == [[1, 3]]


@given(st.data())
def test_exactly_the_budget_whatever_the_scores(data: st.DataObject) -> None:
    n_cells = data.draw(st.integers(1, 40))
    budget = data.draw(st.integers(0, 50))
    selector = Selector(
        data.draw(st.integers(0, 6)), data.draw(st.floats(0, 1)), data.draw(st.integers(1, 9))
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scores = rng.choice(f32([0, 1, 2, -3, INF, -INF, NAN]), (3, n_cells))
    positions = np.stack([rng.choice(60, n_cells, replace=False) for _ in range(3)])
    keep = selector.keep(scores, positions, budget, 60)
    assert (keep.sum(axis=1) == min(budget, n_cells)).all()
    protected = selector.protected(positions, budget, 60)
    enough = protected.sum(axis=1) <= keep.sum(axis=1)
    assert (keep | ~protected)[enough].all()
    sinks = positions < selector.sinks
    enough = sinks.sum(axis=1) <= keep.sum(axis=1)
    assert (keep | ~sinks)[enough].all()


@given(
    st.lists(st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0]), min_size=1, max_size=30).flatmap(
        lambda scores: st.tuples(st.just(scores), st.permutations(range(len(scores))))
    ),
    st.integers(0, 30),
)
def test_the_best_stay_and_of_equals_the_youngest(drawn: tuple[list[float], list[int]], budget: int) -> None:
    scores, positions = drawn
    keep = Selector(sinks=0, recent=0).keep(f32([scores]), np.array([positions]), budget, len(scores))[0]
    worth = [-INF if np.isnan(score) else score for score in f32(scores).tolist()]
    ranked = sorted(zip(worth, positions, strict=True))
    assert sorted(np.array(positions)[keep].tolist()) == sorted(
        p for _, p in ranked[max(len(scores) - budget, 0) :]
    )


@pytest.mark.parametrize("pool", [1, 4])
def test_columns_are_in_no_order(pool: int) -> None:
    rng = np.random.default_rng(0)
    selector = Selector(sinks=2, pool=pool)
    scores, positions = (
        rng.random((2, 30), np.float32),
        np.stack([rng.permutation(40)[:30] for _ in range(2)]),
    )
    mixed = rng.permutation(30)
    keep = selector.keep(scores, positions, 10, 40)
    again = selector.keep(scores[:, mixed], positions[:, mixed], 10, 40)
    np.testing.assert_array_equal(keep[:, mixed], again)


def test_pooling_is_over_neighbours_in_the_text() -> None:
    scores, positions = f32([[3, 0, 6, 9]]), np.array([[7, 1, 2, 30]])
    # in the text's order: 0 6 3 9; the ends repeat
    np.testing.assert_allclose(pooled(scores, positions, 3), [[6, 2, 3, 7]])
    np.testing.assert_allclose(pooled(scores, positions, 2), [[6, 3, 4.5, 9]])
    np.testing.assert_array_equal(pooled(scores, positions, 1), scores)
    assert pooled(scores, positions, 3).dtype == np.float32


def test_pooling_leaves_what_is_not_finite_alone() -> None:
    """A token under grace does not put its neighbours under grace."""
    out = pooled(f32([[1, 3, INF, 5, -INF, 2]]), np.arange(6)[None], 3)
    np.testing.assert_allclose(out, [[5 / 3, 2, INF, 5, -INF, 2]])


def test_pooling_wider_than_the_text() -> None:
    np.testing.assert_allclose(pooled(f32([[1, 4]]), np.arange(2)[None], 7), [[2.5 - 3 / 14, 2.5 + 3 / 14]])


def test_moves_fill_the_cells_that_stay() -> None:
    keep = np.array([[1, 0, 1, 0, 1], [0, 1, 0, 1, 1], [0, 0, 1, 1, 1]], bool)
    stay = np.array([0, 0, 1, 1, 1], bool)
    found = moves(keep, stay)
    assert found.heads.tolist() == [0, 1]
    assert found.source.tolist() == [0, 1]
    assert found.target.tolist() == [3, 2]


@given(st.integers(1, 5), st.integers(1, 30), st.data())
def test_moves_bring_every_kept_token_home(n_head: int, n_cells: int, data: st.DataObject) -> None:
    budget = data.draw(st.integers(0, n_cells))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    keep = np.zeros((n_head, n_cells), bool)
    for row in keep:
        row[rng.choice(n_cells, budget, replace=False)] = True
    stay = np.zeros(n_cells, bool)
    stay[rng.choice(n_cells, budget, replace=False)] = True
    held = np.broadcast_to(np.arange(n_cells), keep.shape).copy()
    found = moves(keep, stay)
    held[found.heads, found.target] = held[found.heads, found.source]
    for head in range(n_head):
        assert sorted(held[head, stay]) == np.flatnonzero(keep[head]).tolist()


def test_moves_refuse_heads_of_unequal_counts() -> None:
    """As many in total, so that a token would have gone to another head."""
    keep = np.array([[1, 1, 1, 0], [0, 0, 0, 1]], bool)
    with pytest.raises(ValueError, match="2 cells stay, but heads keep 1 to 3"):
        moves(keep, np.array([0, 0, 1, 1], bool))


LAYERS = [f32([[1, 2], [3, 6]]), f32([[8, 1]])]


def test_heads_alone() -> None:
    for alone, scores in zip(choose_together(LAYERS, "head"), LAYERS, strict=True):
        np.testing.assert_array_equal(alone, scores)


def test_layers_alone() -> None:
    first, second = choose_together(LAYERS, "layer", [1, 0])
    assert first.tolist() == [[2, 4], [2, 4]]
    assert second.tolist() == [[8, 1]]
    assert first.dtype == np.float32


def test_all_layers_together() -> None:
    """Every head counts once; layers may have different numbers of them."""
    first, second = choose_together(LAYERS, "token")
    assert first.tolist() == [[4, 3], [4, 3]]
    assert second.tolist() == [[4, 3]]


def test_layers_weigh() -> None:
    first, second = choose_together(LAYERS, "token", [1, 2])
    assert first.tolist() == [[5, 2.5], [5, 2.5]]
    assert second.tolist() == [[5, 2.5]]


@pytest.mark.parametrize("granularity", ["head", "layer", "token"])
def test_infinities_survive_and_make_no_nan(granularity: str) -> None:
    layers = [f32([[INF, -INF, 1, INF], [INF, -INF, 3, -INF]]), f32([[INF, -INF, 2, 0]])]
    for scores in choose_together(layers, granularity):  # type: ignore[arg-type]
        assert not np.isnan(scores).any()
        assert (scores[:, 0] == INF).all()
        assert (scores[:, 1] == -INF).all()
        assert np.isfinite(scores[:, 2]).all()
    shared = choose_together(layers, granularity)[0]  # type: ignore[arg-type]
    assert shared[0, 3] == INF


def test_one_infinite_score_is_everyones() -> None:
    first, second = choose_together([f32([[INF, 1]]), f32([[2, 3]])], "token")
    assert first.tolist() == second.tolist() == [[INF, 2]]


def test_a_layer_without_weight_has_no_say() -> None:
    first, second = choose_together([f32([[INF, 1]]), f32([[2, 3]])], "token", [0, 1])
    assert first.tolist() == second.tolist() == [[2, 3]]


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [1, NAN], [1, INF], [1, 1, 1]])
def test_weights_that_are_none(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="2 layers need a weight each"):
        choose_together(LAYERS, "token", weights)


def test_layers_of_other_cells_cannot_choose_together() -> None:
    layers = [f32([[1, 2]]), f32([[1, 2, 3]])]
    with pytest.raises(ValueError, match="same cells"):
        choose_together(layers, "token")
    assert [scores.shape for scores in choose_together(layers, "layer")] == [(1, 2), (1, 3)]


def test_scores_of_the_caller_are_left_alone() -> None:
    layers = [f32([[1, 2], [3, 4]])]
    shared = choose_together(layers, "layer")[0]
    shared[:] = 0
    assert layers[0].tolist() == [[1, 2], [3, 4]]

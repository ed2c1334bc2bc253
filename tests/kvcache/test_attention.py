from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.attention import attention, mass, most_asked, visible


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def by_the_book(queries, keys, values, mask, scale):  # type: ignore[no-untyped-def]
    """Softmax attention one query, head and cell at a time."""
    n_query, n_head, _ = queries.shape
    n_cells, n_head_kv, d_v = values.shape
    outputs = np.zeros((n_query, n_head, d_v))
    probabilities = np.zeros((n_head, n_query, n_cells))
    for head in range(n_head):
        kv = head * n_head_kv // n_head
        for q in range(n_query):
            cells = [c for c in range(n_cells) if mask[q, c]]
            e = [
                np.exp(float(queries[q, head].astype(float) @ keys[c, kv].astype(float)) * scale)
                for c in cells
            ]
            for c, weight in zip(cells, e, strict=True):
                probabilities[head, q, c] = weight / sum(e)
                outputs[q, head] += weight / sum(e) * values[c, kv]
    return outputs, probabilities


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_against_the_definition(
    n_head_kv: int, group: int, n_query: int, n_cells: int, d_v: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    queries = drawn(seed, n_query, n_head_kv * group, 4)
    keys, values = drawn(seed + 1, n_cells, n_head_kv, 4), drawn(seed + 2, n_cells, n_head_kv, d_v)
    mask = rng.random((n_query, n_cells)) < 0.7
    mask[:, 0] = True
    outputs, probabilities = attention(queries, keys, values, mask)
    expected = by_the_book(queries, keys, values, mask, 4**-0.5)
    assert outputs.dtype == probabilities.dtype == np.float32
    np.testing.assert_allclose(outputs, expected[0], atol=1e-6)
    np.testing.assert_allclose(probabilities, expected[1], atol=1e-6)


def test_scale_is_the_callers() -> None:
    queries, keys, values = drawn(0, 2, 4, 8), drawn(1, 5, 2, 8), drawn(2, 5, 2, 3)
    mask = np.ones((2, 5), bool)
    np.testing.assert_allclose(
        attention(queries, keys, values, mask, 0.7)[0],
        by_the_book(queries, keys, values, mask, 0.7)[0],
        atol=1e-6,
    )


def test_large_logits_do_not_overflow() -> None:
    queries = np.full((1, 1, 1), 1e4, np.float32)
    keys = np.array([[[1e4]], [[9e3]]], np.float32)
    _, probabilities = attention(queries, keys, np.ones((2, 1, 1), np.float32), np.ones((1, 2), bool))
    assert probabilities.tolist() == [[[1, 0]]]


def test_a_mask_of_its_own_for_each_head() -> None:
    queries, keys, values = drawn(0, 3, 4, 8), drawn(1, 6, 2, 8), drawn(2, 6, 2, 8)
    masks = np.random.default_rng(3).random((4, 3, 6)) < 0.6
    masks[:, :, 0] = True
    outputs, probabilities = attention(queries, keys, values, masks)
    for head in range(4):
        alone, its = attention(queries, keys, values, masks[head])
        np.testing.assert_allclose(outputs[:, head], alone[:, head], atol=1e-6)
        np.testing.assert_allclose(probabilities[head], its[head], atol=1e-6)


def test_seeing_nothing_is_zero() -> None:
    mask = np.array([[False, False], [True, False]])
    outputs, probabilities = attention(drawn(0, 2, 2, 4), drawn(1, 2, 1, 4), drawn(2, 2, 1, 4), mask)
    assert not outputs[0].any()
    assert not probabilities[:, 0].any()
    np.testing.assert_allclose(probabilities[:, 1], [[1, 0], [1, 0]])


def test_no_cells_at_all() -> None:
    outputs, probabilities = attention(
        drawn(0, 2, 2, 4), drawn(1, 0, 1, 4), drawn(2, 0, 1, 3), np.ones((2, 0), bool)
    )
    assert outputs.shape == (2, 2, 3)
    assert not outputs.any()
    assert probabilities.shape == (2, 2, 0)


@pytest.mark.parametrize(
    ("queries", "keys", "values", "mask", "says"),
    [
        ((2, 3, 4), (5, 2, 4), (5, 2, 4), (2, 5), "3 query heads"),
        ((2, 4, 4), (5, 2, 8), (5, 2, 4), (2, 5), "do not match"),
        ((2, 4, 4), (5, 2, 4), (6, 2, 4), (2, 5), "do not match"),
        ((2, 4, 4), (5, 2, 4), (5, 2, 4), (5, 2), "a mask of"),
    ],
)
def test_shapes_that_do_not_fit(queries, keys, values, mask, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=says):
        attention(drawn(0, *queries), drawn(1, *keys), drawn(2, *values), np.ones(mask, bool))


def test_mass_of_a_kv_head_is_that_of_its_query_heads() -> None:
    probabilities = np.zeros((4, 2, 3), np.float32)
    probabilities[0, 0, 0] = probabilities[1, 1, 0] = 1
    probabilities[2, 0, 1] = 0.5
    probabilities[3, 1, 2] = 0.25
    assert mass(probabilities, 2).tolist() == [[2, 0, 0], [0, 0.5, 0.25]]


def test_mass_adds_up_to_the_queries() -> None:
    queries, keys, values = drawn(0, 5, 6, 8), drawn(1, 9, 2, 8), drawn(2, 9, 2, 8)
    _, probabilities = attention(queries, keys, values, np.ones((5, 9), bool))
    np.testing.assert_allclose(mass(probabilities, 2).sum(axis=1), [5 * 3, 5 * 3], rtol=1e-6)
    np.testing.assert_allclose(mass(probabilities[:, -2:], 2).sum(axis=1), [2 * 3, 2 * 3], rtol=1e-6)


def test_who_sees_what() -> None:
    seen = visible(np.array([2, 4]), np.array([3, 0, 2, 4]))
    assert seen.tolist() == [[False, True, True, False], [True, True, True, True]]
    seen = visible(np.array([2, 4]), np.array([3, 0, 2, 4]), window=2)
    assert seen.tolist() == [[False, False, True, False], [True, False, False, True]]


def test_what_any_probe_asks_at_the_most() -> None:
    """Two cells; the first probe has two queries and two tokens of its own, the second one of each."""
    first, second = np.array([[1.0, 0.5, 0.4, 0.1]], np.float32), np.array([[0.2, 0.6, 0.2]], np.float32)
    most = most_asked(np.zeros((1, 2), np.float32), first)
    np.testing.assert_allclose(most, [[0.5, 0.25]], rtol=1e-6)
    np.testing.assert_allclose(most_asked(most, second), [[0.5, 0.6]], rtol=1e-6)
    assert most.dtype == np.float32

"""Rotations by numpy alone; what the engine writes is compared in ``tests/engine/test_compaction.py``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvcache.rope import Rope, frequencies, hadamard

RANDOM = np.random.default_rng(5)


def rope(*, interleaved: bool, n_dims: int = 16, first: int = 0) -> Rope:
    return Rope(frequencies(n_dims, 1e4), interleaved=interleaved, first=first)


def rows(n: int = 6, width: int = 16) -> np.ndarray:
    return RANDOM.standard_normal((n, width)).astype(np.float32)


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_turns_by_its_own_angle(interleaved: bool) -> None:
    x, by = rows(), np.array([0, 1, -3, 40, 700, -700])
    turned = x.copy()
    rope(interleaved=interleaved).rotate(turned, by)
    for row, distance in enumerate(by):
        for pair in range(8):
            a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 8)
            angle = distance * 1e4 ** (-pair / 8)
            cos, sin = math.cos(angle), math.sin(angle)
            expected = [x[row, a] * cos - x[row, b] * sin, x[row, a] * sin + x[row, b] * cos]
            np.testing.assert_allclose(turned[row, [a, b]], expected, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("far", [30, 100_000])
def test_turns_add_up_and_go_back(interleaved: bool, far: int) -> None:
    """Near distances share a table of turns, far ones have few values: both are the same rotation."""
    x, made = rows(200), rope(interleaved=interleaved)
    one, other = RANDOM.integers(-far, far, (2, 200))
    twice, once = x.copy(), x.copy()
    made.rotate(twice, one)
    made.rotate(twice, other)
    made.rotate(once, one + other)
    np.testing.assert_allclose(twice, once, atol=1e-5)
    made.rotate(once, -one - other)
    np.testing.assert_allclose(once, x, atol=1e-5)


def test_scores_depend_on_the_distance_alone() -> None:
    made, q, k = rope(interleaved=False), rows(1), rows(1)
    scores = []
    for start in (0, 50, 3000):
        moved_q, moved_k = q.copy(), k.copy()
        made.rotate(moved_q, np.array([start + 7]))
        made.rotate(moved_k, np.array([start]))
        scores.append(float((moved_q @ moved_k.T).item()))
    np.testing.assert_allclose(scores, scores[0], atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_what_is_not_rotated_is_left_alone(interleaved: bool) -> None:
    x, by = rows(4, width=32), np.array([3, 1, 4, 15])
    turned = x.copy()
    rope(interleaved=interleaved, first=10).rotate(turned, by)
    np.testing.assert_array_equal(turned[:, :10], x[:, :10])
    np.testing.assert_array_equal(turned[:, 26:], x[:, 26:])
    alone = x[:, 10:26].copy()
    rope(interleaved=interleaved).rotate(alone, by)
    np.testing.assert_array_equal(turned[:, 10:26], alone)


def test_no_rows_are_rotated() -> None:
    rope(interleaved=False).rotate(rows(0), np.empty(0, np.int64))


def test_linear_scaling_and_factors_change_the_rate() -> None:
    plain = frequencies(8, 1e4)
    np.testing.assert_allclose(plain, [1, 0.1, 0.01, 0.001])
    np.testing.assert_allclose(frequencies(8, 1e4, scale=1 / 8), plain / 8)
    factors = np.array([1, 2, 4, 8, 16], np.float32)  # a model may have more than are rotated
    np.testing.assert_allclose(frequencies(8, 1e4, factors=factors), plain / factors[:4])


def test_yarn_leaves_fast_pairs_scales_slow_ones_and_blends_between() -> None:
    """GPT-OSS: a pair that turns more than 32 times in 4,096 tokens is fast, less than once slow."""
    plain = frequencies(64, 150_000)
    ratio = frequencies(64, 150_000, scale=1 / 32, extrapolate=1, n_ctx_orig=4096) / plain
    turns = 4096 * plain / (2 * math.pi)
    np.testing.assert_allclose(ratio[:9], 1)
    np.testing.assert_allclose(ratio[18:], 1 / 32)
    assert (turns[:9] > 32).all()
    assert (turns[18:] < 1).all()
    # A straight line from the pair 8 to the pair 18.
    np.testing.assert_allclose(ratio[8:19], np.linspace(1, 1 / 32, 11))


@pytest.mark.parametrize("size", [1, 2, 64, 128])
def test_the_hadamard_matrix_is_its_own_inverse(size: int) -> None:
    x = rows(3, width=256)
    turned = hadamard(x, size)
    np.testing.assert_allclose(hadamard(turned, size), x, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)
    # Sylvester's: the sign of an entry is the parity of the bits that its row and its column share.
    column = np.array([(-1) ** bin(i & (size - 1)).count("1") for i in range(size)]) / math.sqrt(size)
    np.testing.assert_allclose(turned[0, size - 1], x[0, :size] @ column, atol=1e-5)

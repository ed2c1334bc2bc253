"""Every policy passes the matrix; below it, what each one is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from streams import SHAPE, Text, chunks, step, stream, text

from kvcache.attention import attention, mass, visible
from kvcache.policies import POLICIES, HeldTokens, Policy, check_policy, make_policy
from kvcache.selection import Granularity, Selector
from kvcache.stores import DenseStore, EvictingStore, FloatCells, FP8Cells

BUDGET, CHUNK = 24, 8


def refused() -> np.ndarray:
    raise AssertionError("this policy said that it needs no keys")


def held_tokens(
    policy: Policy | None = None, n_head: int = 3, n_cells: int = 40, seed: int = 0
) -> HeldTokens:
    """Tokens as they stand some chunks into a text; the last were just written, and few queries saw them."""
    rng = np.random.default_rng(seed)
    end = 3 * n_cells
    positions = np.stack([rng.permutation(end)[:n_cells] for _ in range(n_head)])
    queries = np.minimum(end - positions, 32).astype(np.float32)
    total = (rng.random((n_head, n_cells)) * queries * 0.1).astype(np.float32)
    if policy is not None and policy.needs != "attention":
        queries, total = np.zeros_like(queries), np.zeros_like(total)
    probes = policy is None or policy.probes
    asked = (rng.random((n_head, n_cells)) * 0.1 * probes).astype(np.float32)
    keys = rng.standard_normal((n_head, n_cells, 8)).astype(np.float32)
    values = rng.standard_normal((n_head, n_cells, 6)).astype(np.float32)
    for array in (positions, queries, total, asked, keys, values):
        array.flags.writeable = False
    needs_keys = policy is None or policy.needs == "keys"
    return HeldTokens(
        positions, total, queries, asked, end, (lambda: keys) if needs_keys else refused, lambda: values
    )


def tokens(got: object, queries: object, keys: object = None) -> HeldTokens:
    """Tokens at positions 0, 1, 2 and so on, with this mass."""
    total, seen = np.array(got, np.float32), np.array(queries, np.float32)
    at = np.broadcast_to(np.arange(total.shape[1]), total.shape)
    rows = np.array(keys, np.float32)
    return HeldTokens(at, total, seen, np.zeros_like(total), total.shape[1], lambda: rows, lambda: rows)


def evicting(policy: Policy, granularity: Granularity = "head", budget: int = BUDGET) -> EvictingStore:
    cells = FloatCells(budget + CHUNK, SHAPE, "f32")
    return EvictingStore(cells, policy, Selector(sinks=3), budget, granularity)


# -- the matrix: what every policy must do ----------------------------------------------------------------------


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return make_policy(request.param, {})


def test_scores_are_numbers_for_every_token(policy: Policy) -> None:
    scores = policy.score(held_tokens(policy))
    assert scores.shape == (3, 40)
    assert scores.dtype == np.float32
    assert (np.isfinite(scores) | (scores == np.inf)).all()


@pytest.mark.parametrize("n_cells", [1, 5])
def test_tokens_that_nobody_looked_at_have_scores_too(policy: Policy, n_cells: int) -> None:
    nothing = np.zeros((2, n_cells), np.float32)
    keys = np.zeros((2, n_cells, 8), np.float32)
    scores = policy.score(tokens(nothing, nothing, keys=keys))
    assert (np.isfinite(scores) | (scores == np.inf)).all()


def test_columns_are_in_no_order(policy: Policy) -> None:
    held = held_tokens(policy)
    assert held.read_values is not None
    values = held.read_values()
    mixed = np.random.default_rng(1).permutation(40)
    again = HeldTokens(
        held.positions[:, mixed],
        held.mass[:, mixed],
        held.queries[:, mixed],
        held.asked[:, mixed],
        held.end,
        lambda: held.read_keys()[:, mixed],
        lambda: values[:, mixed],
    )
    scores, shuffled = policy.score(held), policy.score(again)
    np.testing.assert_allclose(scores[:, mixed], shuffled, rtol=1e-5, atol=1e-6)
    selector = Selector(sinks=3)
    keep = selector.keep(scores, held.positions, 20, held.end)
    np.testing.assert_array_equal(keep[:, mixed], selector.keep(shuffled, again.positions, 20, held.end))


@pytest.mark.parametrize("pool", [1, 7])
def test_exactly_the_budget_stays_sinks_and_recent_among_it(policy: Policy, pool: int) -> None:
    held, selector = held_tokens(policy), Selector(sinks=3, pool=pool)
    keep = selector.keep(policy.score(held), held.positions, 20, held.end)
    assert keep.sum(axis=1).tolist() == [20, 20, 20]
    protected = selector.protected(held.positions, 20, held.end)
    assert protected.any()
    assert (keep | ~protected).all()


@pytest.mark.parametrize("granularity", ["head", "layer", "token"])
def test_a_long_text_streams_through_few_cells(policy: Policy, granularity: Granularity) -> None:
    script, store = text(150), evicting(policy, granularity)
    allocated = store.allocated_bytes
    for at in chunks(len(script), CHUNK):
        step(store, script, at)
        assert store.table.used <= BUDGET + CHUNK
        store.evict()
        end = int(at[-1]) + 1
        held = store.read()
        assert len(held.nominal) == min(end, BUDGET)
        assert store.allocated_bytes == allocated
        for head in range(SHAPE.n_head_kv):
            here = held.positions[head]
            assert len({*here.tolist()}) == len(here)
            assert {*range(min(3, end)), *range(end - store.selector.recent_cells(BUDGET), end)} <= {*here}
            np.testing.assert_array_equal(held.keys[:, head], script.keys[here, head])
            np.testing.assert_array_equal(held.values[:, head], script.values[here, head])


def test_a_budget_as_long_as_the_text_is_the_whole_cache(policy: Policy) -> None:
    script = text(64)
    whole = stream(DenseStore(FloatCells(64, SHAPE, "f32")), script, CHUNK)
    store = evicting(policy, budget=64)
    np.testing.assert_array_equal(stream(store, script, CHUNK), whole)
    assert store.read().nominal.tolist() == list(range(64))


def test_what_is_known_of_a_token_goes_where_it_goes(policy: Policy) -> None:
    script, store = text(80), evicting(policy)
    for at in chunks(len(script), CHUNK):
        step(store, script, at)
        table, cells = store.table, store.table.held([0])
        known = [
            {int(table.positions[row, c]): (table.mass[row, c], table.queries[row, c]) for c in cells}
            for row in range(SHAPE.n_head_kv)
        ]
        store.evict()
        for row in range(SHAPE.n_head_kv):
            for cell in table.held([0]):
                position = int(table.positions[row, cell])
                assert table.born[row, cell] == position // CHUNK
                faded = np.array(known[row][position], np.float32) * np.float32(policy.decay)
                assert table.mass[row, cell] == faded[0]
                assert table.queries[row, cell] == faded[1]


def test_heads_that_choose_together_hold_the_same(policy: Policy) -> None:
    store = evicting(policy, "layer")
    stream(store, text(80), CHUNK)
    first, second = np.sort(store.positions, axis=1)
    np.testing.assert_array_equal(first, second)


def test_evicts_from_fp8_cells(policy: Policy) -> None:
    cells = FP8Cells(BUDGET + CHUNK, SHAPE, movable=True)
    store = EvictingStore(cells, policy, Selector(sinks=3), BUDGET)
    outputs = stream(store, text(80), CHUNK)
    assert np.isfinite(outputs).all()
    assert len(store.read().nominal) == BUDGET


def test_an_unknown_option_is_refused_with_those_there_are(policy: Policy) -> None:
    name = next(name for name, cls in POLICIES.items() if type(policy) is cls)
    there = [option.name for option in fields(policy)]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"the policy {name} has no option 'colour'; it has") as said:
        make_policy(name, {"colour": 1})
    assert str(said.value).endswith(", ".join(there) if there else "none")


def test_every_option_can_be_set_and_none_is_negative(policy: Policy) -> None:
    name = next(name for name, cls in POLICIES.items() if type(policy) is cls)
    for option in fields(policy):  # type: ignore[arg-type]
        assert getattr(make_policy(name, {option.name: 1}), option.name) == 1
        with pytest.raises(ValueError, match=f"{option.name}=-1"):
            make_policy(name, {option.name: -1})


# -- names ------------------------------------------------------------------------------------------------------


def test_an_unknown_policy_lists_those_there_are() -> None:
    for ask in (lambda: check_policy("h3o"), lambda: make_policy("h3o", {})):
        with pytest.raises(ValueError, match=", ".join(POLICIES)):
            ask()


def test_none_is_a_name_but_no_policy() -> None:
    assert check_policy("none") == "none"
    with pytest.raises(ValueError, match="'none' is no policy"):
        make_policy("none", {})


def test_decay_is_what_is_left() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        make_policy("h2o", {"decay": 1.5})


# -- what each one is for ---------------------------------------------------------------------------------------


def best(policy: Policy, held: HeldTokens) -> list[int]:
    """Columns of the first head, from the best to the worst."""
    return np.argsort(-policy.score(held)[0], kind="stable").tolist()


def kept_of(policy: Policy, attention_of: Callable[[int, int], float], n: int, budget: int) -> set[int]:
    """What one head keeps of ``n`` tokens, one a step, where query ``q`` gives key ``k`` this much attention."""
    one = replace(SHAPE, n_head_kv=1)
    store = EvictingStore(FloatCells(budget + 1, one, "f32"), policy, Selector(sinks=1, recent=0.25), budget)
    script = text(n, shape=one, n_head=1)
    for q in range(n):
        at = np.array([q])
        store.write(at, script.keys[at], script.values[at])
        seen = store.positions[0]
        store.observe(np.array([[[attention_of(q, int(k)) for k in seen]]], np.float32), at)
        store.evict()
    return {int(p) for p in store.positions[0]}


def test_h2o_is_cumulative_mass() -> None:
    held = held_tokens()
    np.testing.assert_array_equal(make_policy("h2o", {}).score(held), held.mass)
    heavy = kept_of(make_policy("h2o", {}), lambda q, k: 0.5 if k in (3, 7) else 0.01, 40, 8)
    assert {0, 3, 7, 39} <= heavy


def test_h2o_freezes_on_the_beginning_where_the_mean_does_not() -> None:
    """Later tokens get more attention from each query, early ones have had more queries."""

    def growing(q: int, k: int) -> float:
        return 0.1 + 0.002 * k

    h2o, mean = (kept_of(make_policy(name, {}), growing, 100, 16) for name in ("h2o", "mean"))
    assert sorted(h2o)[1:10] == list(range(1, 10))
    assert min(mean - {0}) > 50


def test_h2o_forgets_with_decay() -> None:
    """Tokens 1 to 9 were looked at until query 30, 31 to 39 since then."""

    def shifting(q: int, k: int) -> float:
        return 0.5 if (1 <= k < 10 and q < 30) or (31 <= k < 40 and q >= 30) else 0.01

    frozen, fading = (kept_of(make_policy("h2o", {"decay": d}), shifting, 60, 13) for d in (1, 0.8))
    assert {*range(1, 10)} <= frozen
    assert {*range(31, 40)} <= fading


def test_h2o_under_grace_keeps_what_few_queries_saw() -> None:
    held = tokens([[9, 5, 1, 0, 2]], [[40, 4, 3, 2, 1]])
    policy = make_policy("h2o", {"grace": 4})
    assert policy.score(held)[0].tolist() == [9, 5, np.inf, np.inf, np.inf]
    keep = Selector(sinks=0, recent=0).keep(policy.score(held), held.positions, 2, 5)
    assert np.flatnonzero(keep[0]).tolist() == [3, 4]


def test_mean_does_not_favour_old_tokens() -> None:
    held = tokens([[10, 8, 1, 0.9]], [[100, 40, 4, 3]])
    assert best(make_policy("h2o", {}), held) == [0, 1, 2, 3]
    assert best(make_policy("mean", {}), held) == [3, 2, 1, 0]
    np.testing.assert_allclose(make_policy("mean", {}).score(held), [[0.1, 0.2, 0.25, 0.3]])


def test_mean_draws_what_few_saw_towards_what_is_usual() -> None:
    """One lucky glance is no evidence: with a prior a token seen once is near the head's mean."""
    held = tokens([[30, 0.9, 0]], [[100, 1, 1]])
    assert best(make_policy("mean", {}), held) == [1, 0, 2]
    score = make_policy("mean", {"prior": 50}).score(held)[0]
    usual = 30.9 / 102
    np.testing.assert_allclose(score, (np.array([30, 0.9, 0]) + 50 * usual) / (np.array([100, 1, 1]) + 50))
    assert abs(score[2] - usual) < abs(score[0] - usual) + 0.01


def asked_last(store: EvictingStore, script: Text, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What these queries alone give to each token in use, and how many of them see it."""
    held = store.read()
    seen = visible(last, held.nominal)
    _, probabilities = attention(script.queries[last], held.keys, held.values, seen)
    return mass(probabilities, SHAPE.n_head_kv), seen.sum(axis=0)


def test_snapkv_asks_the_last_queries_of_the_chunk() -> None:
    script, store = text(16), evicting(make_policy("snapkv", {"observed": 4}), budget=12)
    step(store, script, np.arange(0, 8))
    store.evict()
    step(store, script, np.arange(8, 16))
    got, queries = asked_last(store, script, np.arange(12, 16))
    np.testing.assert_allclose(store.scores(), got / queries, rtol=1e-5)


def test_one_hard_look_outweighs_many_faint_ones() -> None:
    """The same mass over 16 queries: as 0.8 once, or as 0.05 every time."""
    probabilities = np.zeros((1, 16, 17), np.float32)
    probabilities[0, 5, 0], probabilities[0, :, 1] = 0.8, 0.05
    seen = {}
    for name in ("h2o", "peak"):
        store = evicting(make_policy(name, {}))
        rng = np.random.default_rng(0)
        keys, values = rng.standard_normal((2, 17, SHAPE.n_head_kv, SHAPE.head_dim_k)).astype(np.float32)
        store.write(np.arange(17), keys, values[..., : SHAPE.head_dim_v])
        store.observe(np.repeat(probabilities, SHAPE.n_head_kv, axis=0), np.arange(1, 17))
        seen[name] = store.table.mass[0, :2]
    np.testing.assert_allclose(seen["h2o"], [0.8, 0.8], rtol=1e-5)
    np.testing.assert_allclose(seen["peak"], [0.64, 0.04], rtol=1e-5)


def test_peak_lets_a_token_go_whose_value_is_what_the_head_puts_out_anyway() -> None:
    got, queries = [[1.0, 1.0, 1.0, 1.0]], [[8.0] * 4]
    held = tokens(got, queries, keys=[[[1, 0], [1, 0.1], [1, -0.1], [-9, 4]]])
    policy = make_policy("peak", {"prior": 0})
    assert best(policy, held)[0] == 3
    without_values = replace(held, read_values=None)
    np.testing.assert_allclose(policy.score(without_values), np.full((1, 4), 0.125), rtol=1e-6)


def test_tova_asks_one_query() -> None:
    script, store = text(16), evicting(make_policy("tova", {}), budget=12)
    step(store, script, np.arange(0, 8))
    store.evict()
    step(store, script, np.arange(8, 16))
    np.testing.assert_allclose(store.scores(), asked_last(store, script, np.array([15]))[0], rtol=1e-5)


def test_keydiff_drops_a_repeated_direction() -> None:
    """Five keys of one direction and of any length, two of others: the crowd goes first."""
    keys = [[[1, 0, 0], [2, 0, 0], [5, 0.1, 0], [1, 0, 0.1], [0.1, 0, 0], [0, 1, 0], [0, 0, -3]]]
    nothing = np.zeros((1, 7))
    order = best(make_policy("keydiff", {}), tokens(nothing, nothing, keys=keys))
    assert set(order[:2]) == {5, 6}


def test_keydiff_does_not_ask_how_long_a_key_is() -> None:
    keys = np.random.default_rng(0).standard_normal((1, 9, 4))
    nothing = np.zeros((1, 9))
    policy = make_policy("keydiff", {})
    longer = keys * np.arange(1, 10)[None, :, None]
    np.testing.assert_allclose(
        policy.score(tokens(nothing, nothing, keys=keys)),
        policy.score(tokens(nothing, nothing, keys=longer)),
        atol=1e-6,
    )


def test_window_is_recency() -> None:
    script, store = text(100), evicting(make_policy("window", {}))
    stream(store, script, CHUNK)
    assert store.positions[0].tolist() == [0, 1, 2, *range(100 - BUDGET + 3, 100)]


def test_window_needs_nothing() -> None:
    assert POLICIES["window"].needs == "nothing"
    assert POLICIES["keydiff"].needs == "keys"
    assert {POLICIES[name].needs for name in ("h2o", "peak", "mean", "snapkv", "tova")} == {"attention"}

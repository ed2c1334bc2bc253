from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import N_HEAD, SHAPE, Text, chunks, step, stream, text

from kvcache import budget
from kvcache.attention import attention, visible
from kvcache.fp8 import rounded
from kvcache.policies import POLICIES, make_policy
from kvcache.rope import Rope, frequencies
from kvcache.selection import Moves, Selector
from kvcache.stores import (
    Cells,
    DenseStore,
    EvictingStore,
    FloatCells,
    FP8Cells,
    LayerShape,
    RingStore,
    Store,
    evict_layers,
)

FORMATS: dict[str, Callable[[int, LayerShape], Cells]] = {
    "f32": lambda n, shape: FloatCells(n, shape, "f32"),
    "f16": lambda n, shape: FloatCells(n, shape),
    "fp8": FP8Cells,
    "fp8 movable": lambda n, shape: FP8Cells(n, shape, movable=True),
}
WIDE = LayerShape(n_head_kv=2, head_dim_k=256, head_dim_v=256)
ROPE = Rope(frequencies(8, 10_000.0), interleaved=True)


def f32(n: int) -> Cells:
    return FloatCells(n, SHAPE, "f32")


def as_kept(name: str, rows: np.ndarray) -> np.ndarray:
    """What a format makes of ``[n, n_head_kv, dim]``."""
    if name == "f32":
        return rows
    if name == "f16":
        return rows.astype(np.float16).astype(np.float32)
    return rounded(rows.reshape(len(rows), -1)).reshape(rows.shape)


def evicting(cells: Cells, policy: str = "h2o", kept: int = 12, **selector: float) -> EvictingStore:
    options = {"sinks": 2, **selector}
    return EvictingStore(cells, make_policy(policy, {}), Selector(**options), kept)  # type: ignore[arg-type]


# -- formats --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_comes_back_as_the_format_keeps_it(name: str) -> None:
    script = text(20)
    store = DenseStore(FORMATS[name](32, SHAPE))
    for at in chunks(20, 7):
        store.write(at, script.keys[at], script.values[at])
    held = store.read()
    np.testing.assert_array_equal(held.keys, as_kept(name, script.keys))
    np.testing.assert_array_equal(held.values, as_kept(name, script.values))
    assert held.keys.dtype == held.values.dtype == np.float32
    assert held.nominal.tolist() == list(range(20))
    assert held.positions.tolist() == [list(range(20))] * 2


@pytest.mark.parametrize("name", FORMATS)
def test_allocated_bytes_are_those_of_the_arrays(name: str) -> None:
    store = DenseStore(FORMATS[name](100, SHAPE))
    arrays = [value for value in vars(store.cells).values() if isinstance(value, np.ndarray)]
    assert store.allocated_bytes == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize(("layers", "f32", "fp8"), [(10, 40 * 1024, 10_320), (15, 60 * 1024, 15_480)])
def test_bytes_a_position_of_the_seeds_models(layers: int, f32: int, fp8: int) -> None:
    assert layers * FORMATS["f32"](1, WIDE).cell_bytes == f32
    assert layers * FORMATS["fp8"](1, WIDE).cell_bytes == fp8


def test_movable_fp8_pays_a_scale_a_head() -> None:
    assert FP8Cells(1, WIDE, movable=True).cell_bytes == budget.fp8_cell_bytes(2, 256, 256) + 2 * 4


@pytest.mark.parametrize("name", ["f32", "f16", "fp8 movable"])
def test_a_moved_slice_is_what_it_was(name: str) -> None:
    """Rows of very different size, so that a scale left behind would show."""
    script = text(6)
    size = 10.0 ** np.arange(-3, 3, dtype=np.float32)[:, None, None]
    cells = FORMATS[name](6, SHAPE)
    cells.put(np.arange(6), script.keys * size, script.values * size)
    keys, values = cells.get(np.arange(6))
    cells.move(Moves(heads=np.array([1, 0]), source=np.array([0, 1]), target=np.array([4, 5])))
    for before, after in zip((keys, values), cells.get(np.arange(6)), strict=True):
        before[4, 1], before[5, 0] = before[0, 1], before[1, 0]
        np.testing.assert_array_equal(after, before)


def test_fp8_of_one_scale_a_row_refuses_to_change_heads() -> None:
    cells = FP8Cells(4, SHAPE)
    with pytest.raises(ValueError, match="make them movable"):
        cells.move(Moves(*(np.array([0]) for _ in range(3))))
    with pytest.raises(ValueError, match="make them movable"):
        cells.rotate(np.array([0]), np.array([[0], [1]]), ROPE)


# -- what all stores do -----------------------------------------------------------------------------------------

STORES: dict[str, Callable[[], Store]] = {
    "dense": lambda: DenseStore(f32(16)),
    "ring": lambda: RingStore(f32(16)),
    "evicting": lambda: evicting(f32(16)),
}


@pytest.mark.parametrize("name", STORES)
def test_an_empty_store_reads_nothing(name: str) -> None:
    store = STORES[name]()
    store.write([], np.empty((0, 2, 8), np.float32), np.empty((0, 2, 6), np.float32))
    held = store.read()
    assert held.keys.shape == (0, 2, 8)
    assert held.positions.shape == (2, 0)
    assert store.end == 0


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("at", [[4, 5], [5, 5], [6, 5], [3, 6]])
def test_positions_must_rise(name: str, at: list[int]) -> None:
    script = text(10)
    store = STORES[name]()
    store.write(np.arange(5), script.keys[:5], script.values[:5])
    with pytest.raises(ValueError, match="must rise from 5"):
        store.write(at, script.keys[at], script.values[at])
    assert store.read().nominal.tolist() == [0, 1, 2, 3, 4]
    assert store.end == 5


@pytest.mark.parametrize("name", STORES)
def test_other_shapes_are_refused(name: str) -> None:
    script = text(3)
    with pytest.raises(ValueError, match="keys"):
        STORES[name]().write(np.arange(2), script.keys, script.values[:2])
    with pytest.raises(ValueError, match="values"):
        STORES[name]().write(np.arange(3), script.keys, script.keys)


def test_a_full_dense_store_refuses_and_stays_as_it_was() -> None:
    script = text(20)
    store = DenseStore(f32(16))
    store.write(np.arange(15), script.keys[:15], script.values[:15])
    with pytest.raises(ValueError, match="2 tokens do not fit: 15 of 16"):
        store.write([15, 16], script.keys[15:17], script.values[15:17])
    assert len(store.read().nominal) == 15
    store.write([15], script.keys[15:16], script.values[15:16])


# -- ring -------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12)), max_size=6))
def test_ring_holds_the_last_positions_and_nothing_else(n_cells: int, writes: list[tuple[int, int]]) -> None:
    """Chunks longer than the ring and skipped positions included; garbage in cells never written stays there."""
    script = text(100)
    cells = FloatCells(n_cells, SHAPE, "f32")
    cells.keys[:] = cells.values[:] = np.nan
    store, written = RingStore(cells), []
    for skip, n in writes:
        at = np.arange(store.end + skip, store.end + skip + n)
        store.write(at, script.keys[at], script.values[at])
        written += at.tolist()
    held = store.read()
    expected = [p for p in written if p > written[-1] - n_cells]
    assert held.nominal.tolist() == expected
    np.testing.assert_array_equal(held.keys, script.keys[expected])
    np.testing.assert_array_equal(held.values, script.values[expected])


def test_ring_is_position_modulo_window() -> None:
    script = text(10)
    cells = FloatCells(4, SHAPE, "f32")
    RingStore(cells).write(np.arange(10), script.keys, script.values)
    np.testing.assert_array_equal(cells.keys, script.keys[[8, 9, 6, 7]])


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("name", ["f32", "fp8"])
def test_a_ring_with_room_for_the_chunk_is_a_sliding_window(name: str, size: int) -> None:
    script, window = text(50), 9
    ring = RingStore(FORMATS[name](window + size - 1, SHAPE))
    dense = DenseStore(FORMATS[name](50, SHAPE))
    np.testing.assert_allclose(
        stream(ring, script, size, window), stream(dense, script, size, window), atol=1e-6
    )


# -- eviction ---------------------------------------------------------------------------------------------------


def per_head_h2o(script: Text, kept: int, selector: Selector, size: int, decay: float):  # type: ignore[no-untyped-def]
    """H2O with every head a list of its own: nothing is moved, nothing has a cell."""
    group = N_HEAD // SHAPE.n_head_kv
    tokens: list[list[int]] = [[], []]
    weight: list[dict[int, float]] = [{}, {}]
    outputs = np.zeros((len(script), N_HEAD, SHAPE.head_dim_v), np.float32)
    for at in chunks(len(script), size):
        end = int(at[-1]) + 1
        for kv in range(2):
            tokens[kv] += at.tolist()
            held = np.array(tokens[kv])
            heads = slice(kv * group, (kv + 1) * group)
            out, p = attention(
                script.queries[at][:, heads],
                script.keys[held][:, kv : kv + 1],
                script.values[held][:, kv : kv + 1],
                visible(at, held),
            )
            outputs[at, heads] = out
            for token, got in zip(tokens[kv], p.sum(axis=(0, 1)).tolist(), strict=True):
                weight[kv][token] = weight[kv].get(token, 0) + got
            recent = end - selector.recent_cells(kept)
            safe = [t for t in tokens[kv] if t < selector.sinks or t >= recent]
            others = sorted(set(tokens[kv]) - set(safe), key=lambda t: -weight[kv][t])
            if len(tokens[kv]) > kept:
                tokens[kv] = sorted(safe + others[: kept - len(safe)])
            weight[kv] = {t: weight[kv][t] * decay for t in tokens[kv]}
    return outputs, tokens, weight


@pytest.mark.parametrize("decay", [1, 0.5])
@pytest.mark.parametrize("size", [1, 7, 16])
def test_in_place_is_what_lists_a_head_would_do(size: int, decay: float) -> None:
    script, selector, kept = text(90, seed=size), Selector(sinks=2, recent=0.25), 20
    store = EvictingStore(f32(kept + size), make_policy("h2o", {"decay": decay}), selector, kept)
    outputs = stream(store, script, size)
    expected, tokens, weight = per_head_h2o(script, kept, selector, size, decay)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    cells = store.table.held([0])
    for head in range(2):
        assert sorted(store.positions[head]) == tokens[head]
        got = store.table.mass[head, cells]
        np.testing.assert_allclose(got, [weight[head][t] for t in store.positions[head]], rtol=1e-4)
    assert set(tokens[0]) != set(tokens[1])


@pytest.mark.parametrize("name", ["f32", "f16", "fp8 movable"])
def test_every_format_can_evict(name: str) -> None:
    script = text(60)
    store = evicting(FORMATS[name](20, SHAPE))
    stream(store, script, 8)
    held = store.read()
    for head in range(2):
        at = held.positions[head]
        np.testing.assert_array_equal(held.keys[:, head], as_kept(name, script.keys)[at, head])
        np.testing.assert_array_equal(held.values[:, head], as_kept(name, script.values)[at, head])


def test_the_cells_that_stay_are_the_newest() -> None:
    store = evicting(f32(20))
    script = text(40)
    for at in chunks(40, 8):
        step(store, script, at)
        before, cells = store.read().nominal, store.table.held([0])
        freed = store.evict()
        assert freed == max(len(before) - 12, 0)
        assert store.read().nominal.tolist() == before[-12:].tolist()
        assert store.table.held([0]).tolist() == cells[-12:].tolist()


PROBES = (np.arange(200, 203), np.arange(203, 208))
"""Rows of a text that are asked, the second's tokens after the first's."""


def at_places(rows: np.ndarray, places: np.ndarray, rope: Rope = ROPE) -> np.ndarray:
    """``[n, heads, dim]`` as they are at ``places`` ``[n]``."""
    out = rows.copy()
    for head in range(rows.shape[1]):
        rope.rotate(out[:, head], places)
    return out


def guided_by_lists(script: Text, kept: int, selector: Selector, size: int, decay: float):  # type: ignore[no-untyped-def]
    """Every head a list of tokens in order, K kept as it was before RoPE and rotated to a token's place in the
    list whenever it is read; a token is worth what probes give it, and nothing else."""
    tokens: list[list[int]] = [[], []]
    asked: list[dict[int, float]] = [{}, {}]
    outputs = np.zeros((150, N_HEAD, SHAPE.head_dim_v), np.float32)

    def attend(kv: int, added: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        held, heads, own = np.array([*tokens[kv], *added]), slice(kv * 2, kv * 2 + 2), slice(kv, kv + 1)
        places = np.arange(len(held))
        last = places[len(tokens[kv]) :]
        queries = at_places(script.queries[added][:, heads], last)
        keys = at_places(script.keys[held][:, own], places)
        return attention(queries, keys, script.values[held][:, own], visible(last, places))

    for at in chunks(150, size):
        end = int(at[-1]) + 1
        for kv in range(2):
            outputs[at, kv * 2 : kv * 2 + 2] = attend(kv, at)[0]
            tokens[kv] += at.tolist()
            if len(tokens[kv]) <= kept:
                continue
            means = [attend(kv, probe)[1].mean(axis=(0, 1)) for probe in PROBES]
            for i, token in enumerate(tokens[kv]):
                asked[kv][token] = asked[kv].get(token, 0) * decay + max(mean[i] for mean in means)
            recent = end - selector.recent_cells(kept)
            safe = [t for t in tokens[kv] if t < selector.sinks or t >= recent]
            others = sorted(set(tokens[kv]) - set(safe), key=lambda t: -asked[kv][t])
            tokens[kv] = sorted(safe + others[: kept - len(safe)])
            asked[kv] = {t: asked[kv][t] for t in tokens[kv]}
    return outputs, tokens, asked


@pytest.mark.parametrize("decay", [0, 0.5])
@pytest.mark.parametrize("size", [7, 16])
def test_asked_and_compacted_is_what_lists_a_head_would_do(size: int, decay: float) -> None:
    script, selector, kept = text(208, seed=size), Selector(sinks=2, recent=0.25), 20
    policy = make_policy("guided", {"base": 0})
    store = EvictingStore(f32(kept + size), policy, selector, kept, rope=ROPE)
    expected, tokens, asked = guided_by_lists(script, kept, selector, size, decay)
    for at in chunks(150, size):
        places = at - store.offset
        store.write(at, at_places(script.keys[at], places), script.values[at])
        held = store.read()
        queries = at_places(script.queries[at], places)
        outputs, probabilities = attention(queries, held.keys, held.values, visible(places, held.nominal))
        np.testing.assert_allclose(outputs, expected[at], atol=1e-4)
        store.observe(probabilities, at)
        if len(held.nominal) > kept:
            store.ask([probe_of(store, script, probe) for probe in PROBES], decay)
        store.evict()
    cells = store.table.held([0])
    assert store.table.nominal[cells].tolist() == list(range(kept))
    assert store.offset == 150 - kept
    for head in range(2):
        assert sorted(store.positions[head]) == tokens[head]
        ranks = np.argsort(np.argsort(store.positions[head]))
        assert store.table.places[head, cells].tolist() == ranks.tolist()
        got = store.table.asked[head, cells]
        np.testing.assert_allclose(got, [asked[head][t] for t in store.positions[head]], rtol=1e-3)
    assert set(tokens[0]) != set(tokens[1])


def probe_of(store: EvictingStore, script: Text, probe: np.ndarray) -> np.ndarray:
    """What a probe looks at, its own tokens last; nothing of it is written."""
    held = store.read()
    places = store.end - store.offset + np.arange(len(probe))
    keys = np.concatenate([held.keys, at_places(script.keys[probe], places)])
    values = np.concatenate([held.values, script.values[probe]])
    seen = visible(places, np.concatenate([held.nominal, places]))
    return attention(at_places(script.queries[probe], places), keys, values, seen)[1]


@pytest.mark.parametrize("name", ["f32", "f16", "fp8 movable"])
@pytest.mark.parametrize("policy", ["window", "keydiff"])
def test_every_format_can_compact(name: str, policy: str) -> None:
    """Keys are within the format's rounding of what they would be had they been written where they are now."""
    script = text(60)
    cells = FORMATS[name](20, SHAPE)
    store = EvictingStore(cells, make_policy(policy, {}), Selector(sinks=2), 12, rope=ROPE)
    for at in chunks(60, 8):
        store.write(at, at_places(script.keys[at], at - store.offset), script.values[at])
        store.evict()
    held = store.read()
    assert held.nominal.tolist() == list(range(12))
    for head in range(2):
        positions = held.positions[head]
        ranks = np.argsort(np.argsort(positions))
        expected = at_places(script.keys[positions][:, head : head + 1], ranks)[:, 0]
        error = np.abs(held.keys[:, head] - expected).max() / np.abs(expected).max()
        assert error < {"f32": 1e-6, "f16": 2e-3, "fp8 movable": 0.1}[name]
        np.testing.assert_array_equal(held.values[:, head], as_kept(name, script.values)[positions, head])


def test_what_is_not_rotated_is_not_rounded_again() -> None:
    script = text(6)
    cells = FORMATS["fp8 movable"](6, SHAPE)
    cells.put(np.arange(6), script.keys, script.values)
    before = cells.get(np.arange(6))[0]
    by = np.zeros((2, 3), np.int64)
    by[1, 2] = 5
    cells.rotate(np.array([1, 3, 5]), by, ROPE)
    after = cells.get(np.arange(6))[0]
    assert np.argwhere((before != after).any(axis=2)).tolist() == [[5, 1]]


def test_a_layer_whose_keys_are_not_rotated_moves_to_places_too() -> None:
    script, nope = text(40), Rope(frequencies(0, 10_000.0), interleaved=False)
    store = EvictingStore(f32(20), make_policy("keydiff", {}), Selector(sinks=2), 12, rope=nope)
    for at in chunks(40, 8):
        store.write(at, script.keys[at], script.values[at])
        store.evict()
    held = store.read()
    assert held.nominal.tolist() == list(range(12))
    for head in range(2):
        np.testing.assert_array_equal(held.keys[:, head], script.keys[held.positions[head], head])


def test_who_does_not_probe_is_not_told() -> None:
    script = text(208)
    store = evicting(f32(16))
    step(store, script, np.arange(8))
    store.ask([probe_of(store, script, PROBES[0])])
    assert not store.table.asked.any()


def layers_of_text(granularity: str, weights: tuple[float, ...] = ()) -> list[EvictingStore]:
    """Two layers of two and three KV heads, streamed together."""
    shapes = [SHAPE, LayerShape(3, 8, 6)]
    scripts = [text(60, i, shape, shape.n_head_kv * 2) for i, shape in enumerate(shapes)]
    stores = [
        EvictingStore(
            FloatCells(24, shape, "f32"),
            make_policy("h2o", {}),
            Selector(sinks=2),
            16,
            granularity,  # type: ignore[arg-type]
        )
        for shape in shapes
    ]
    for at in chunks(60, 8):
        for store, script in zip(stores, scripts, strict=True):
            step(store, script, at)
        evict_layers(stores, weights)
    for store, script in zip(stores, scripts, strict=True):
        held = store.read()
        for head, positions in enumerate(held.positions):
            np.testing.assert_array_equal(held.keys[:, head], script.keys[positions, head])
    return stores


def choices(store: EvictingStore) -> list[tuple[int, ...]]:
    return [tuple(sorted(row)) for row in store.positions.tolist()]


def test_granularity_says_who_chooses_together() -> None:
    first, second = layers_of_text("head")
    assert len({*choices(first), *choices(second)}) == 5
    first, second = layers_of_text("layer")
    assert len({*choices(first)}) == len({*choices(second)}) == 1
    assert choices(first)[0] != choices(second)[0]
    first, second = layers_of_text("token")
    assert len({*choices(first), *choices(second)}) == 1


def test_tokens_that_all_keep_stay_in_their_cells() -> None:
    for store in layers_of_text("token"):
        np.testing.assert_array_equal(store.positions, [store.read().nominal] * len(store.positions))


def test_a_layer_that_alone_weighs_decides_for_all() -> None:
    alone = choices(layers_of_text("layer")[1])[0]
    first, second = layers_of_text("token", (0, 1))
    assert {*choices(first), *choices(second)} == {alone}


@pytest.mark.parametrize("kept", [1, 2, 16, 20])
def test_budgets_that_leave_no_choice_or_no_room(kept: int) -> None:
    with pytest.raises(ValueError, match=f"a budget of {kept} must be above the 2 sinks and below the 16"):
        evicting(f32(16), kept=kept)


def test_without_eviction_there_is_no_room() -> None:
    script = text(20)
    store = evicting(f32(16))
    step(store, script, np.arange(12))
    with pytest.raises(ValueError, match="8 cells are wanted, 4 of 16 are free"):
        step(store, script, np.arange(12, 20))
    assert store.end == 12
    assert len(store.read().nominal) == 12


def test_only_the_last_queries_of_a_chunk_are_observed() -> None:
    script = text(8)
    store = EvictingStore(f32(16), make_policy("snapkv", {"observed": 3}), Selector(sinks=2), 12)
    step(store, script, np.arange(8))
    cells = store.table.held([0])
    np.testing.assert_allclose(store.table.mass[:, cells].sum(axis=1), [3 * 2, 3 * 2], rtol=1e-6)
    assert store.table.queries[0, cells].tolist() == [3, 3, 3, 3, 3, 3, 2, 1]


def test_what_was_observed_fades_without_eviction_too() -> None:
    script = text(8)
    store = EvictingStore(f32(16), make_policy("h2o", {"decay": 0.5}), Selector(sinks=2), 12)
    step(store, script, np.arange(8))
    before = store.table.mass.copy()
    assert store.evict() == 0
    np.testing.assert_allclose(store.table.mass, before / 2)


@pytest.mark.parametrize("name", [name for name, cls in POLICIES.items() if cls.needs != "attention"])
def test_who_needs_no_attention_has_none_observed(name: str) -> None:
    store = evicting(f32(20), name)
    stream(store, text(40), 8)
    assert not store.table.mass.any()
    assert not store.table.queries.any()

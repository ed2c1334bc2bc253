"""Compaction against the engine: K that is rotated to a place is the K that the engine writes there.

A lone token's K depends on nothing but itself and its position, in every layer of every architecture; so does
that of a first layer in any text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tiny_models as tiny
from evicting import evicting, params, prose
from tiny_gguf import Fields

from kvcache.policies import Floats, HeldTokens, Policy
from kvcache.policies.base import Needs
from kvcache.rope import hadamard
from kvcache.selection import Selector
from runner.engine.bindings import lib
from runner.engine.cache_layer import CacheLayer
from runner.engine.chooser import Eviction
from runner.engine.context import ContextParams, Logits
from runner.engine.eviction import EvictingContext
from runner.engine.key_rope import KeyRope, key_rope
from runner.engine.reading import Reading
from runner.engine.sequence_state import StateLayout, shift_positions
from runner.engine.tensors import Tensor, op_number
from runner.engine.weights import Weights
from runner.errors import EngineError
from runner.planning.model.gguf_header import from_gguf

BUDGET, CHUNK = 64, 32
REMEDY = "set kv_mode.positions=original"
LINEAR: Fields = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
YARN: Fields = {"rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
                "rope.scaling.original_context_length": 4096}  # fmt: skip
IMROPE: Fields = {"rope.freq_base": 1e7, "rope.dimension_sections": [11, 11, 10, 0]}
ALTERNATING: Fields = {"attention.sliding_window_pattern": 2}

MODELS: dict[str, Callable[[Path], Path]] = {
    "smollm2": lambda p: tiny.write_llama(p, n_embd=256, extra={"rope.freq_base": 1e5}),
    "llama31_8b": lambda p: tiny.write_llama(
        p, n_embd=256, n_head=2, n_head_kv=2, factors=1, extra={"rope.freq_base": 5e5}
    ),
    "qwen3_8b": lambda p: tiny.write_qwen3moe(p, n_layer=2, head_dim=128, extra={"rope.freq_base": 1e6}),
    "gemma3_12b": lambda p: tiny.write_gemma3(p, n_layer=2, window=40, extra=ALTERNATING | LINEAR),
    "gpt_oss_20b": lambda p: tiny.write_gpt_oss(p, window=40),
    "qwen35b": lambda p: tiny.write_qwen35moe(p, n_layer=4, head_dim=256, extra=IMROPE),
    "qwen_next_80b": lambda p: tiny.write_qwen3next(p, head_dim=256),
    # Not shipped: pairs that no section covers, MLA without and with YaRN, a layer that is not rotated.
    "uncovered": lambda p: tiny.write_qwen35moe(p, n_layer=4, head_dim=256),
    "lfm2": lambda p: tiny.write_lfm2(p, n_layer=3),
    "deepseek2": lambda p: tiny.write_deepseek2(p, n_layer=1, d_rope=64),
    "deepseek_v2": lambda p: tiny.write_deepseek2(p, n_layer=1, d_rope=64, extra=YARN),
    "granitehybrid": tiny.write_granitehybrid,
    "smollm3": lambda p: tiny.write_llama(p, n_layer=4, n_head=2, n_head_kv=1, arch="smollm3"),
}
"""By the name of the config whose rotary embedding they have, where there is one."""

WITHIN = {"f32": 2e-4, "f16": 1e-3, "bf16": 8e-3, "q8_0": 0.02, "q4_0": 0.25}
"""How far a rotated row may be from a written one, of its length.

Measured at most 5e-5 (the engine's angles are float32), 5e-4, 4e-3, 0.011 and 0.17, half and more of which is the
rounding of the row that was written.
"""

Open = Callable[[str], Weights]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder, models = tmp_path_factory.mktemp("models"), dict[str, Weights]()

    def weights(name: str) -> Weights:
        if name not in models:
            models[name] = Weights(MODELS[name](folder / f"{name}.gguf"))
        return models[name]

    yield weights
    for made in models.values():
        made.close()


@dataclass(frozen=True)
class Lots(Policy):
    """Every head draws its own lots for the text's tokens, and for nothing else: no rounding changes a choice."""

    needs: ClassVar[Needs] = "keys"

    def score(self, held: HeldTokens) -> Floats:
        heads = np.arange(len(held.positions))[:, None]
        return np.asarray(np.sin(held.positions * 12.9898 + heads * 78.233) * 43758.5453 % 1, np.float32)


def layers_of(context: EvictingContext) -> dict[int, CacheLayer]:
    """Where the layers keep their cells, by block."""
    profile = from_gguf(context.weights.path)
    assert context.tap is not None
    return {
        block: CacheLayer.of(context.tap.tensors, block, layer, context.params)
        for block, layer in profile.attention_layers
    }


def read(
    context: EvictingContext, tokens: Sequence[int], *, budget: int = BUDGET, chunk: int = CHUNK
) -> Logits:
    """A text chunk by chunk; no position of its cells passes budget and chunk. Logits of the last token."""
    logits = np.empty((0, context.n_vocab), np.float32)
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        places, wanted = range(start, start + len(part)), [False] * (len(part) - 1) + [True]
        logits = context.decode(part, places, [0] * len(part), wanted).copy()
        if context.eviction.compact:
            assert lib.llama_memory_seq_pos_max(context._memory, 0) < budget + chunk
        context.evict([0], "prefill")
    return logits


def noise(n: int) -> list[int]:
    return np.random.default_rng(3).integers(0, 256, n).tolist()


def apart(some: Floats, others: Floats) -> float:
    """The largest distance of two rows, of the length of the second."""
    return float(np.max(np.linalg.norm(some - others, axis=-1) / np.linalg.norm(others, axis=-1)))


# -- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_rotated_row_is_the_row_written_there(opened: Open, name: str) -> None:
    weights = opened(name)
    places = np.array([0, 1, 37, 255, 600, 1111, 1500, 2047])
    mla = name.startswith("deepseek")  # whose V is a part of K, and of its type
    for kv_type, within in WITHIN.items():
        quantised = kv_type.startswith("q")
        wanted = params(
            256, sequences=8, k=kv_type, v=kv_type if mla or kv_type == "f32" else "f16",
            flash_attn=mla and quantised,
        )  # fmt: skip
        with evicting(weights, wanted, "window", compact=True) as context:
            context.decode([65] * 8, places, range(8), [False] * 8)
            assert context.tap is not None
            cells = context.tap.cells(8)
            for block, layer in layers_of(context).items():
                rope, written = context.tap.ropes[block], layer.keys(cells)
                if rope is None:
                    assert (name, block) == ("smollm3", 3)
                    assert apart(written, written[:, ::-1]) == 0
                    continue
                assert bool(rope.turned) is (quantised and not mla)
                assert apart(written, written[:, ::-1]) > 0.4
                layer.rotate(cells, np.tile(places[::-1] - places, (layer.n_head_kv, 1)), rope)
                assert apart(layer.keys(cells), written[:, ::-1]) < within, (kv_type, block)


# -- texts --------------------------------------------------------------------------------------------------


TWO_WAYS = (
    "smollm2",
    "llama31_8b",
    "qwen3_8b",
    "gemma3_12b",
    "qwen_next_80b",
    "lfm2",
    "deepseek2",
    "granitehybrid",
)
"""Models whose positions the engine can shift, if sliding layers have as many cells as the others."""


def compacting(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Let positions be shifted through the state, or by the engine, whose rotation adds to ours."""
    monkeypatch.undo()
    if way == "engine":
        monkeypatch.setattr(EvictingContext, "_compact", _shifted_by_the_engine)


def _shifted_by_the_engine(context: EvictingContext, sequence: int) -> None:
    cells = context.table.held([sequence])
    by, shift = context.table.compact(cells)
    context._offset -= shift
    context._rotate(cells, by - shift)
    lib.llama_memory_seq_add(context._memory, sequence, -shift, -1, shift)


@contextmanager
def by_lots(weights: Weights, wanted: ContextParams) -> Iterator[EvictingContext]:
    """Every head keeps tokens of its own, from all over the text."""
    eviction = Eviction(Lots(), Selector(sinks=2, recent=0.25), BUDGET, CHUNK, CHUNK, compact=True)
    profile = from_gguf(weights.path)
    context = EvictingContext(
        weights, wanted, eviction, profile.attention_layers, recurrent=profile.state_bytes > 0
    )
    try:
        yield context
    finally:
        context.close()


@pytest.mark.parametrize(
    ("name", "swa_full"),
    [*((name, False) for name in MODELS), ("gemma3_12b", True), ("gpt_oss_20b", True)],
)
def test_moving_all_alike_changes_no_logit(
    opened: Open, monkeypatch: pytest.MonkeyPatch, name: str, swa_full: bool
) -> None:
    """Where the last tokens stay, and see each other alone, only distances count, and none changes."""
    weights, tokens = opened(name), noise(6 * CHUNK)
    wanted = params(512, n_ubatch=CHUNK, k="f32", v="f32", swa_full=swa_full)

    def told(*, compact: bool) -> Logits:
        with evicting(
            weights, wanted, "window", budget=BUDGET, chunk=CHUNK, sinks=0, recent=1, compact=compact
        ) as context:
            return read(context, tokens)

    expected = told(compact=False)
    shifts = name in TWO_WAYS and (swa_full or not weights.n_swa)
    for way in ("engine", "state") if shifts else ("state",):
        compacting(monkeypatch, way)
        assert np.abs(told(compact=True) - expected).max() < 1e-4 * expected.std(), way


@pytest.mark.parametrize("name", TWO_WAYS)
@pytest.mark.parametrize(("kv_type", "within"), [("f32", 2e-5), ("f16", 3e-3)])
def test_the_engine_and_the_state_agree(
    opened: Open, monkeypatch: pytest.MonkeyPatch, name: str, kv_type: str, within: float
) -> None:
    """After eight rounds in which every head's tokens went their own ways: the same tokens, K and logits.

    A first layer that is full holds, for each head, what the engine writes if it reads that head's tokens alone.
    """
    weights, tokens = opened(name), [*noise(10 * CHUNK), 7]
    wanted = params(256, n_ubatch=BUDGET + 1, k=kv_type, v=kv_type, swa_full=True)
    seen = []
    for way in ("engine", "state"):
        compacting(monkeypatch, way)
        with by_lots(weights, wanted) as context:
            read(context, tokens[:-1])
            # The engine rotates before it decodes again.
            logits = context.decode(tokens[-1:], [len(tokens) - 1], [0], [True]).copy()
            cells, layers = context.table.held([0]), layers_of(context)
            places, positions = context.table.places[:, cells], context.table.positions[:, cells]
            assert (np.sort(places) == np.arange(BUDGET + 1)).all()
            assert len(positions) == 1 or (positions[0] != positions[1]).any()
            keys = {block: layers[block].keys(cells) for block in context._rows}
            seen.append((logits, positions, keys))
            for head, k in enumerate(keys.get(0, ())):
                context.clear()
                order = np.argsort(places[head])
                kept = np.array(tokens)[positions[head][order]].tolist()
                context.decode(kept, range(BUDGET + 1), [0] * len(kept), [False] * len(kept))
                assert apart(k[order], layers[0].keys(context.table.held([0]))[head]) < within
    (logits, positions, keys), (other_logits, others_positions, other_keys) = seen
    np.testing.assert_array_equal(positions, others_positions)
    assert np.abs(logits - other_logits).max() < within * other_logits.std()
    for block, k in keys.items():
        assert apart(k, other_keys[block]) < within


PER_ROUND = {"f16": 2.0e-4, "bf16": 1.5e-3, "q8_0": 5.2e-3, "q4_0": 8.4e-2}
"""What a round does to a real model's K: the root mean square of a row's error, of its length."""


@pytest.mark.parametrize("kv_type", PER_ROUND)
def test_rounding_adds_up_as_the_root_of_the_rounds(smol: Weights, kv_type: str) -> None:
    random, n = np.random.default_rng(0), 32
    with evicting(smol, params(256, k=kv_type), "window", compact=True) as context:
        context.decode(prose(smol, n), range(n), [0] * n, [False] * n)
        assert context.tap is not None
        rope, layer = context.tap.ropes[15], layers_of(context)[15]
        assert rope is not None
        cells, moved = context.table.held([0]), np.zeros((layer.n_head_kv, n), np.int64)

        def keys() -> Floats:
            k = layer.keys(cells).reshape(-1, layer.head_dim_k)
            return hadamard(k, rope.turned) if rope.turned else k

        exact = keys()
        for rounds in range(1, 10):
            by = random.integers(-200, 200, moved.shape)
            layer.rotate(cells, by, rope)
            moved += by
            if rounds in (1, 9):
                expected = exact.copy()
                rope.rope.rotate(expected, moved.ravel())
                off = np.linalg.norm(keys() - expected, axis=1) / np.linalg.norm(exact, axis=1)
                assert np.sqrt((off**2).mean()) == pytest.approx(PER_ROUND[kv_type] * rounds**0.5, rel=0.1)


# -- probes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["qwen35b", "qwen_next_80b", "lfm2", "granitehybrid", "gemma3_12b", "gpt_oss_20b"]
)
def test_a_probe_leaves_a_sequence_as_it_was(opened: Open, name: str) -> None:
    """The state of recurrent layers, what sliding ones see, and every K and V, to the last bit; with compaction
    after it, round by round."""
    weights, tokens = opened(name), noise(6 * CHUNK)
    wanted = params(512, n_ubatch=CHUNK, sequences=2)
    with evicting(weights, wanted, "guided", budget=BUDGET, chunk=CHUNK, compact=True) as context:
        context.begin(Reading(probes=((72, 105), (87, 104, 121))))
        probed = []
        for start in range(0, len(tokens), CHUNK):
            context.decode(
                tokens[start : start + CHUNK], range(start, start + CHUNK), [0] * CHUNK, [False] * CHUNK
            )
            partial, saved = context.save_partial(0), context.save(0)
            probed.append(context.probe(0, 1, last=False))
            assert context.save_partial(0) == partial
            assert context.save(0).state == saved.state
            context.evict([0], "prefill")
            assert (
                lib.llama_memory_seq_pos_max(context._memory, 0)
                == context.table.nominal.max()
                < BUDGET + CHUNK
            )
            assert lib.llama_memory_seq_pos_max(context._memory, 1) == -1
        assert probed == [0, 0, 5, 5, 5, 5]
        assert np.isfinite(context.decode([7], [len(tokens)], [0], [True])).all()


# -- what is refused ----------------------------------------------------------------------------------------


def shifted(state: bytes, shift: int, layout: StateLayout) -> bytes:
    buffer = bytearray(state)
    shift_positions(buffer, shift, layout)
    return bytes(buffer)


def state_of(weights: Weights, *, flash_attn: bool = False) -> tuple[bytes, StateLayout]:
    with evicting(
        weights, params(512, n_ubatch=CHUNK, flash_attn=flash_attn), "window", compact=True
    ) as context:
        context.decode(noise(9), range(9), [0] * 9, [False] * 9)
        return bytes(context.save(0).state), context._layout


@pytest.mark.parametrize("name", ["smollm2", "gpt_oss_20b", "qwen35b", "lfm2", "deepseek2"])
@pytest.mark.parametrize("flash_attn", [False, True])
def test_only_positions_change_in_a_state(opened: Open, name: str, flash_attn: bool) -> None:
    state, layout = state_of(opened(name), flash_attn=flash_attn)
    assert shifted(state, 0, layout) == state
    further = shifted(state, 100, layout)
    changed = np.flatnonzero(np.frombuffer(further, np.uint8) != np.frombuffer(state, np.uint8))
    cells = 9 * layout.attention_parts * (3 if layout.two_dimensional else 1) + layout.recurrent
    assert len(changed) == cells
    assert shifted(further, -100, layout) == state


@pytest.mark.parametrize("name", ["smollm2", "gpt_oss_20b", "qwen35b", "lfm2", "deepseek2"])
def test_a_state_of_another_layout_is_refused(opened: Open, name: str) -> None:
    state, layout = state_of(opened(name))
    for wrong in (
        replace(layout, attention_parts=3 - layout.attention_parts),
        replace(layout, recurrent=not layout.recurrent),
        replace(layout, two_dimensional=not layout.two_dimensional),
        replace(layout, has_v=not layout.has_v),
    ):
        with pytest.raises(EngineError, match=REMEDY):
            shifted(state, 1, wrong)
    for other in (state[:-1], state + b"\0", state[:40], b""):
        with pytest.raises(EngineError, match=REMEDY):
            shifted(other, 1, layout)


def node(op: str, *sources: Tensor, op_params: Sequence[int] = (), name: bytes = b"") -> Tensor:
    tensor = Tensor(op=op_number(op), name=name)
    tensor.src[: len(sources)] = [ctypes.addressof(source) for source in sources]
    tensor.op_params[: len(op_params)] = op_params
    tensor.kept = sources  # addresses keep nothing
    return tensor


def projected() -> Tensor:
    return node("MUL_MAT", node("NONE"), node("RMS_NORM", rotated_once(node("NONE"))))


def rotated_once(k: Tensor, mode: int = 2) -> Tensor:
    numbers = np.array([1e4, 1, 0, 1, 32, 1], np.float32).view(np.int32).tolist()
    return node("ROPE", k, node("NONE"), op_params=[0, 64, mode, 0, 4096, *numbers, 11, 11, 10, 0, 0])


def rotation(k: Tensor) -> KeyRope | None:
    written = node("SET_ROWS", node("VIEW", k))
    return key_rope(ctypes.addressof(written))


def test_a_rotation_of_an_unknown_kind_is_refused() -> None:
    found = rotation(rotated_once(projected()))
    assert found is not None
    assert (found.rope.n_dims, found.rope.interleaved, found.turned) == (64, False, 0)
    with pytest.raises(EngineError, match=rf"type \(24\).*{REMEDY}"):
        rotation(rotated_once(projected(), mode=24))


@pytest.mark.parametrize("op", ["RMS_NORM", "MUL", "ADD", "SCALE"])
def test_a_key_that_changes_after_its_rotation_is_refused(op: str) -> None:
    with pytest.raises(EngineError, match=rf"\({op}\).*{REMEDY}"):
        rotation(node(op, rotated_once(projected()), node("NONE")))


def test_a_key_that_is_not_rotated_has_no_rotation() -> None:
    """Whatever earlier layers did."""
    assert rotation(node("ADD", projected(), node("NONE"))) is None

"""Models that are planned before their file is here: what may be declared, and that what ships is true."""

from __future__ import annotations

import pytest

from kvcache.budget import ssm_state_bytes
from runner.config import ProfileConfig, RecurrentConfig
from runner.errors import ConfigError
from runner.models import known
from runner.planning.model.profile import ModelProfile, from_config

MODELS = {model.name: model for model in known()}
STATE = RecurrentConfig(4, 128, 32, 2)
MIXTURE = {"n_expert": 8, "n_expert_used": 2, "n_ff_expert": 64}


def declared(**changes: object) -> ModelProfile:
    base = {"arch": "llama", "n_layer": 12, "n_embd": 512, "n_head": 8, "n_head_kv": 2, "head_dim_k": 64,
            "head_dim_v": 64, "n_ff": 1024, "n_vocab": 1000, "n_ctx_train": 4096,
            "weights_bytes": 10**8}  # fmt: skip
    return from_config(ProfileConfig(**(base | changes)))  # type: ignore[arg-type]


def kinds(profile: ModelProfile) -> str:
    return "".join(layer.kind[0] for layer in profile.layers)


def shipped(name: str) -> ModelProfile:
    profile = MODELS[name].profile
    assert profile is not None
    return from_config(profile)


def test_every_shipped_profile_resolves() -> None:
    for name in MODELS:
        profile = shipped(name)
        assert profile.known, name
        assert profile.kv_bytes(256, 256, "q8_0", "q8_0") > 0


@pytest.mark.parametrize(
    ("name", "elements", "f32", "f16", "q8_0", "fp8", "mebibytes"),
    [
        ("qwen35b", 10_240, 40 * 1024, 20 * 1024, 10_880, 10_320, 62.81),
        ("qwen397b", 15_360, 60 * 1024, 30 * 1024, 16_320, 15_480, 186.3),
        ("qwen_next_80b", 12_288, 48 * 1024, 24 * 1024, 13_056, 12_384, 75.4),
    ],
)
def test_a_position_and_a_state_cost_what_was_measured(
    name: str, elements: int, f32: int, f16: int, q8_0: int, fp8: int, mebibytes: float
) -> None:
    profile = shipped(name)
    assert profile.kv_bytes(1, 0, "f32", "f32") == 4 * elements == f32
    assert profile.kv_bytes(1, 0, "f16", "f16") == f16
    assert profile.kv_bytes(1, 0, "q8_0", "q8_0") == q8_0
    assert profile.fp8_bytes(1, 0) == fp8
    assert profile.state_bytes / 2**20 == pytest.approx(mebibytes, abs=0.05)


def test_windows_keep_cells_of_their_own() -> None:
    profile = declared(arch="gemma3", sliding_window=512, sliding_pattern=6)
    assert kinds(profile) == "sssssf" * 2
    assert profile.fp8_bytes(100, 10) == (2 * 100 + 10 * 10) * (2 * 128 + 8)


def test_quants_are_listed_the_best_first() -> None:
    several = [model for model in MODELS.values() if model.quants]
    assert len(several) >= 7
    for model in several:
        assert model.source is not None and model.profile is not None
        sizes = [quant.weights_bytes for quant in model.quants]
        assert sizes == sorted(sizes, reverse=True), model.name
        assert (
            len({quant.name for quant in model.quants})
            == len({quant.file for quant in model.quants})
            == len(sizes)
        )
        default = next(quant for quant in model.quants if quant.file == model.source.file)
        assert default.weights_bytes == model.profile.weights_bytes
        assert (default.size_bytes, default.sha256) == (model.source.size_bytes, model.source.sha256)
        for quant in model.quants:
            assert quant.name in quant.file
            # Bits an element, against a name that promises them.
            promised = float(next(letter for letter in quant.name if letter.isdigit()))
            bits = quant.weights_bytes / default.weights_bytes * 4.85
            assert promised - 0.3 < bits < promised + 1.6, (model.name, quant.name)


def test_every_model_says_whether_it_chats() -> None:
    assert {name: model.chat for name, model in MODELS.items() if model.chat is not True} == {
        "gemma3_270m": False
    }


def test_heads_by_block_say_which_are_recurrent() -> None:
    profile = declared(arch="lfm2", n_head_kv=[0, 0, 2] * 4, recurrent=RecurrentConfig(3, 512, 0, 0))
    assert kinds(profile) == "rrf" * 4
    assert [block.recurrent for block in profile.blocks] == [True, True, False] * 4
    assert profile.state_bytes == 8 * ssm_state_bytes(3, 512, 0, 0)
    varied = declared(arch="openelm", n_head_kv=[1, 2, 4] * 4)
    assert varied.kv_bytes(1, 0, "f16", "f16") == 4 * 7 * 128 * 2


def test_some_architectures_place_layers_their_own_way() -> None:
    assert kinds(declared(arch="smallthinker", sliding_window=512, sliding_pattern=4)) == "fsss" * 3
    both = declared(arch="falcon-h1", recurrent=STATE)
    assert kinds(both) == "rf" * 12
    assert both.block_of_layer == tuple(n // 2 for n in range(24))
    assert not any(block.recurrent for block in both.blocks)


def test_mla_is_one_row() -> None:
    profile = declared(
        arch="deepseek2", n_head_kv=1, head_dim_k=576, head_dim_v=0, n_dense_layer=1, **MIXTURE
    )
    assert profile.kv_bytes(1, 0, "f16", "f16") == 12 * 576 * 2
    assert [bool(block.expert_bytes) for block in profile.blocks] == [False] + [True] * 11


@pytest.mark.parametrize("arch", ["llama9", "deepseek32", "gemma4", "nemotron_h"])
def test_what_these_keys_cannot_say_is_not_modelled(arch: str) -> None:
    if arch == "gemma4":
        assert not declared(arch=arch, sliding_window=512, sliding_pattern=6).known
    else:
        assert not declared(arch=arch).known


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "qwen35", "full_attention_interval": 4}, "recurrent .*go together"),
        ({"recurrent": STATE}, "full_attention_interval, .*go together"),
        ({"arch": "lfm2", "n_head_kv": [0, 2] * 6}, "n_head_kv with zeros, and recurrent .*go together"),
        (
            {"arch": "qwen35", "n_head_kv": [0, 2] * 6, "recurrent": STATE, "full_attention_interval": 2},
            "drop one",
        ),
        ({"n_head_kv": [2] * 11}, "lists 11 blocks, n_layer is 12"),
        ({"arch": "qwen35moe", **MIXTURE}, "qwen35moe has recurrent blocks"),
        ({"sliding_window": 512}, "sliding_window and sliding_pattern go together"),
        ({"arch": "gemma3", "sliding_pattern": 6}, "sliding_window and sliding_pattern go together"),
        ({"sliding_window": 512, "sliding_pattern": 6}, "gives llama full attention everywhere"),
        ({"arch": "gpt-oss", **MIXTURE}, "gpt-oss has sliding-window layers"),
        ({"n_expert": 8}, "n_expert_used=0 of n_expert=8"),
        ({"n_expert": 8, "n_expert_used": 9}, "n_expert_used=9 of n_expert=8"),
        ({"n_dense_layer": 1}, "n_dense_layer"),
        ({"n_dense_layer": 13, **MIXTURE}, "n_dense_layer=13 is more than n_layer=12"),
        ({"arch": "deepseek2", "head_dim_v": 0}, "set n_head_kv=1"),
        ({"head_dim_v": 0, "n_head_kv": 1}, "MLA, which llama.cpp does not do for llama"),
    ],
)
def test_keys_that_contradict_each_other_are_refused_in_one_line(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        declared(**changes)
    assert str(error.value).startswith("model.profile: ")
    assert "\n" not in str(error.value)

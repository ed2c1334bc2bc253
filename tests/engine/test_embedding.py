"""A real embedding model through llama.cpp, held against its own forward pass in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from minilm import member, minilm, tensors

from runner.engine.embedding import EmbeddingModel
from runner.errors import ModelError

Floats = npt.NDArray[np.float32]
DIGEST = "d" * 64


@pytest.fixture(scope="module")
def model() -> Iterator[EmbeddingModel]:
    loaded = EmbeddingModel(minilm(), digest=DIGEST, n_threads=1)
    yield loaded
    loaded.close()


def forward(words: str) -> Floats:
    """all-MiniLM-L6-v2 of known lower-case words: BERT, the mean of its rows, length 1."""
    w = tensors()
    vocabulary = member("vocab.txt").read_text().splitlines()
    ids = [vocabulary.index(word) for word in ["[CLS]", *words.split(), "[SEP]"]]

    def normed(x: Floats, name: str) -> Floats:
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Floats, name: str) -> Floats:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def heads(x: Floats) -> Floats:
        return x.reshape(len(ids), 12, 32).swapaxes(0, 1)

    e = "embeddings"
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.position_embeddings.weight"][: len(ids)]
    x = normed(x + w[f"{e}.token_type_embeddings.weight"][0], f"{e}.LayerNorm")
    for n in range(6):
        a = f"encoder.layer.{n}.attention"
        q, k, v = (heads(linear(x, f"{a}.self.{part}")) for part in ("query", "key", "value"))
        scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(32))
        looked = (scores / scores.sum(2, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), 384)
        x = normed(x + linear(looked, f"{a}.output.dense"), f"{a}.output.LayerNorm")
        h = linear(x, f"encoder.layer.{n}.intermediate.dense")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = normed(x + linear(h, f"encoder.layer.{n}.output.dense"), f"encoder.layer.{n}.output.LayerNorm")
    mean = x.mean(0)
    unit: Floats = mean / np.linalg.norm(mean)
    return unit


def test_vectors_are_those_of_the_models_own_forward_pass(model: EmbeddingModel) -> None:
    said = ["the cat sat on the mat", "interest rates rose last year", "a vault has a code"]
    found = model.embed(said)
    assert found.shape == (3, 384) and model.dim == 384
    for row, words in zip(found, said, strict=True):
        assert float(row @ forward(words)) > 0.999


def test_what_means_the_same_is_closer(model: EmbeddingModel) -> None:
    a, b, c = model.embed(["The cat sat on the mat.", "A cat is resting on a rug.", "Interest rates rose."])
    assert a @ b > 0.5 > 0.2 > max(a @ c, b @ c)


def test_together_or_alone_and_in_any_order(model: EmbeddingModel) -> None:
    texts = [f"On day {day} they traded {day * day} bales of wool for salt." for day in range(40)]
    together = model.embed(texts)
    alone = np.concatenate([model.embed([text]) for text in reversed(texts)])[::-1]
    np.testing.assert_allclose(together, alone, atol=2e-3)


def test_no_text_is_cut_and_none_is_no_vector(model: EmbeddingModel) -> None:
    long = "the caravan went on and on " * 150
    plain, other, empty = model.embed([long, f"{long} Interest rates rose sharply.", ""])
    assert plain @ other < 0.9999
    assert not empty.any() and np.linalg.norm(other) == pytest.approx(1, abs=1e-5)


def test_control_tokens_of_a_text_are_text(model: EmbeddingModel) -> None:
    a, b = model.embed(["the code [SEP] of the vault", "the code of the vault"])
    assert a @ b < 0.9999


def test_a_chat_model_is_refused(smollm2: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no embedding model.*embedder=wordllama"):
        EmbeddingModel(smollm2, digest=DIGEST, n_threads=1)
    (tmp_path / "no.gguf").write_text("no model")
    with pytest.raises(ModelError, match="cannot be loaded"):
        EmbeddingModel(tmp_path / "no.gguf", digest=DIGEST, n_threads=1)

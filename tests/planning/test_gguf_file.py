from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from tiny_models import write_llama

from runner.errors import ModelError
from runner.planning.model import gguf_file


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "tiny.gguf")


def test_header_of_a_real_model_is_read_at_once(gemma3: Path) -> None:
    gguf_file.read(gemma3)
    started = time.perf_counter()
    header = gguf_file.read(gemma3)
    assert time.perf_counter() - started < 1
    assert header.fields["general.architecture"] == "gemma3"
    assert header.lengths["tokenizer.ggml.tokens"] == 262_144
    assert sum(header.tensors.values()) == 246_587_904


@pytest.mark.parametrize("cut", [4, 20, 100, 2000])
def test_truncated_header(tiny: Path, cut: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"truncated.*fetch the file again"):
        gguf_file.read(tiny)


def test_truncated_tensors(tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"truncated GGUF: .*missing.*fetch the file again"):
        gguf_file.read(tiny)


def test_every_cut_of_the_file_is_refused_in_one_line(tiny: Path) -> None:
    whole = tiny.read_bytes()
    for cut in range(0, len(whole) - 64, len(whole) // 97):
        tiny.write_bytes(whole[:cut])
        with pytest.raises(ModelError) as error:
            gguf_file.read(tiny)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"GG", b"#!/bin/sh\n", b"PK\x03\x04" + bytes(100)])
def test_not_a_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF file"):
        gguf_file.read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        gguf_file.read(tmp_path / "none.gguf")


def test_another_byte_order(tiny: Path) -> None:
    data = bytearray(tiny.read_bytes())
    data[4:8] = struct.pack(">I", 3)
    tiny.write_bytes(data)
    with pytest.raises(ModelError, match="byte order"):
        gguf_file.read(tiny)

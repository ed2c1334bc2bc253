"""Indexes on disk: made once, whole or not at all, whoever else wants them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.errors import OutputError
from runner.retrieval.embedders import Vectors, WordLlamaEmbedder, unit
from runner.retrieval.index import Index, IndexKey, open_index
from runner.retrieval.passages import Outline, outline
from runner.retrieval.search import search

DOCUMENT = "\n\n".join(
    f"# Year {year}\n\n## Spring\n\nIn {year} the caravan of {name} sold {year * 3} bales.\n\n## Autumn\n\nRest."
    for year, name in enumerate(["Anna", "Bela", "Clara", "Dora", "Edith", "Frida"] * 5, 1800)
)
KEY = IndexKey("0123456789abcdef", "words", "counting", 24, 4)


def words(text: str) -> int:
    return len(text.split())


class Counting:
    """An embedder of letters that knows how often it was asked."""

    def __init__(self, dim: int = 26) -> None:
        self.name, self.dim, self.texts = "counting", dim, 0

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += len(texts)
        return unit(
            np.array([[text.lower().count(chr(97 + n % 26)) for n in range(self.dim)] for text in texts])
        )


def opened(folder: Path, embedder: Counting, key: IndexKey = KEY) -> tuple[Index, str]:
    def make() -> Outline:
        return outline(DOCUMENT, words, chunk=key.chunk, overlap=key.overlap)

    return open_index(folder, key, embedder, DOCUMENT, make)


def test_a_second_job_embeds_nothing(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    made, how = opened(tmp_path, first)
    assert how == "made" and first.texts == len(made.outline.passages) > 20
    kept, how = opened(tmp_path, second)
    assert how == "" and second.texts == 0
    assert kept.outline == made.outline == outline(DOCUMENT, words, chunk=24, overlap=4)
    for each in kept.outline.passages:
        assert DOCUMENT[each.first_char : each.end_char] == each.text and words(each.text) <= 24


def test_other_passages_or_another_embedder_are_another_index(tmp_path: Path) -> None:
    opened(tmp_path, Counting())
    for other in (
        replace(KEY, chunk=32),
        replace(KEY, embedder="other"),
        replace(KEY, document_digest="f" * 16),
    ):
        assert opened(tmp_path, Counting(), other)[1] == "made"
    assert opened(tmp_path, Counting())[1] == ""


@pytest.mark.parametrize("damage", ["manifest", "cut", "missing", "empty"])
def test_what_is_damaged_is_made_again(damage: str, tmp_path: Path) -> None:
    opened(tmp_path, Counting())
    place = tmp_path / KEY.place
    data = next((place / "passages.lance" / "data").glob("*"))
    if damage == "manifest":
        (place / "manifest.json").write_text("{")
    elif damage == "cut":
        data.write_bytes(data.read_bytes()[:-100])
    elif damage == "missing":
        data.unlink()
    else:
        shutil.rmtree(place)
        place.mkdir()
    index, how = opened(tmp_path, Counting())
    assert how.startswith("made again, ") and index.by_words("Bela", 3)
    assert opened(tmp_path, Counting())[1] == ""


def test_vectors_of_another_length_are_made_again_and_said(tmp_path: Path) -> None:
    opened(tmp_path, Counting())
    index, how = opened(tmp_path, Counting(dim=40))
    assert how == "made again, its vectors had 26 elements, the embedder's have 40" and index.dim == 40


PROCESS = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_index

class Slow(test_index.Counting):
    def embed(self, texts):
        print("embedding", flush=True)
        time.sleep({seconds})
        return super().embed(texts)

print(test_index.opened(Path({folder!r}), Slow())[1] or "kept", flush=True)
"""


def process(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """Another process that wants the index, and is slow to embed."""
    code = PROCESS.format(tests=str(Path(__file__).parent), folder=str(folder), seconds=seconds)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_killed_while_indexing_it_leaves_none(tmp_path: Path) -> None:
    killed = process(tmp_path, 60)
    assert killed.stdout is not None and killed.stdout.readline() == "embedding\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    place = tmp_path / KEY.place
    assert not place.exists() and list(place.parent.glob("*.tmp"))
    index, how = opened(tmp_path, Counting())
    assert how == "made" and len(index.outline.passages) > 20
    assert not list(place.parent.glob("*.tmp"))


def test_of_two_processes_one_makes_it(tmp_path: Path) -> None:
    both = [process(tmp_path, 2) for _ in range(2)]
    said = sorted(each.communicate(timeout=60)[0].split() for each in both)
    assert said == [["embedding", "made"], ["kept"]]
    assert opened(tmp_path, Counting())[1] == ""


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"context_strategy\.folder"):
        opened(tmp_path / "file", Counting())


def test_sections_have_the_path_of_their_headings(tmp_path: Path) -> None:
    long = "\n\n".join(f"# Part {n}\n\n## Wool\n\n{f'Part {n} is about bales. ' * 600}" for n in range(3))
    found = outline(long, words, chunk=100, overlap=20)
    assert len(found.sections) >= 3 and max(p.section for p in found.passages) == len(found.sections) - 1
    for section in found.sections:
        part = long[section.first_char : section.end_char]
        [number] = {n for n in range(3) if f"Part {n}" in part} or {None}
        assert number is None or section.title in (f"Part {number}", f"Part {number} > Wool")
    assert "Part 2 > Wool" in {section.title for section in found.sections}


def test_a_run_without_spaces_is_cut_and_found(tmp_path: Path) -> None:
    document = "x" * 60_000 + " The code is 4711. " + "y" * 40_000

    def tokens(text: str) -> int:
        return -(-len(text) // 4)

    began = time.monotonic()
    embedder = WordLlamaEmbedder()
    index, _ = open_index(
        tmp_path, KEY, embedder, document, lambda: outline(document, tokens, chunk=64, overlap=16)
    )
    assert sum(len(each.text) for each in index.outline.passages) >= 99_000
    best = search(index, embedder, "What is the code?", how="fused", limit=8)
    assert any("4711" in index.outline.passages[each.number].text for each in best[:3])
    assert time.monotonic() - began < 300


def test_meaning_and_words_are_fused_by_reciprocal_rank(tmp_path: Path) -> None:
    embedder = WordLlamaEmbedder()
    index, _ = open_index(
        tmp_path, KEY, embedder, DOCUMENT, lambda: outline(DOCUMENT, words, chunk=24, overlap=4)
    )
    found = search(index, embedder, "How many bales did Clara sell in 1814?", how="fused", limit=10)
    for each in found:
        ranks = [rank for rank in (each.dense_rank, each.bm25_rank) if rank is not None]
        assert ranks and each.score == pytest.approx(sum(1 / (61 + rank) for rank in ranks))
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert search(index, embedder, "bales", how="fused", limit=10, within=[]) == []
    only = search(index, embedder, "bales", how="bm25", limit=10, within=[0])
    assert only and {index.outline.passages[each.number].section for each in only} == {0}
    assert json.loads((tmp_path / KEY.place / "manifest.json").read_text())["embedder"] == embedder.name

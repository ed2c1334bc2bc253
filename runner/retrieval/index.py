"""A document's passages and their vectors in a LanceDB database on disk: made once, then only read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import FileLock

from runner.errors import OutputError
from runner.retrieval.embedders import Embedder, Vectors, unit
from runner.retrieval.passages import Outline, Passage, Section

_VERSION = 1
"""Of what an index holds, and of how it is made; another one is another index."""

_MANIFEST = "manifest.json"
_PASSAGES, _SECTIONS = "passages", "sections"


@dataclass(frozen=True)
class IndexKey:
    """What an index is of: a text, and all that decides how it is cut and embedded."""

    document_digest: str
    tokenizer: str
    embedder: str
    chunk: int
    overlap: int

    @property
    def place(self) -> Path:
        """Below the folder of all indexes: one folder a document, in it one a way to index it."""
        settings = json.dumps([_VERSION, *list(asdict(self).values())[1:]])
        return Path(self.document_digest) / hashlib.sha256(settings.encode()).hexdigest()[:16]


class Index:
    """The passages of one document, to be searched by meaning and by words."""

    def __init__(self, folder: Path) -> None:
        """Open what :func:`open_index` made."""
        import lancedb

        database = lancedb.connect(str(folder))
        self._tables = {name: database.open_table(name) for name in (_PASSAGES, _SECTIONS)}
        self.outline = Outline(
            tuple(Section(**row) for row in self._rows(_SECTIONS, ["first_char", "end_char", "title"])),
            tuple(
                Passage(**row)
                for row in self._rows(_PASSAGES, ["first_char", "end_char", "text", "tokens", "section"])
            ),
        )
        self.dim = int(self._tables[_PASSAGES].schema.field("vector").type.list_size)

    def by_meaning(
        self, vector: Vectors, limit: int, *, sections: bool = False, within: Sequence[int] | None = None
    ) -> list[int]:
        """Numbers of the passages (or ``sections``) whose vectors are closest to ``vector`` by angle, exactly.

        Args:
            vector: float32 ``[dim]``.
            limit: how many, at most.
            sections: find sections.
            within: numbers of the sections to look in; None is all.
        """
        query = self._tables[_SECTIONS if sections else _PASSAGES].search(vector).distance_type("cosine")
        return self._found(query, "_distance", limit, within)

    def by_words(
        self, question: str, limit: int, *, sections: bool = False, within: Sequence[int] | None = None
    ) -> list[int]:
        """The same by BM25 of the words' stems, without English stop words; only what shares a word."""
        from lancedb.query import MatchQuery

        query = self._tables[_SECTIONS if sections else _PASSAGES].search(MatchQuery(question, "text"))
        return self._found(query, "_score", limit, within)

    def _found(self, query: Any, by: str, limit: int, within: Sequence[int] | None) -> list[int]:
        if within is not None:
            if not within:
                return []
            query = query.where(f"section IN ({', '.join(map(str, within))})", prefilter=True)
        # Not to select what was ordered by is warned of, on stderr.
        return [row["number"] for row in query.select(["number", by]).limit(limit).to_list()]

    def _rows(self, table: str, columns: list[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            self._tables[table].to_arrow().sort_by("number").select(columns).to_pylist()
        )
        return rows


def open_index(
    folder: Path, key: IndexKey, embedder: Embedder, document: str, make: Callable[[], Outline]
) -> tuple[Index, str]:
    """The index of ``key`` below ``folder``, which is made if it is not there whole.

    It is written beside its place and renamed when it is complete, so that one whose making was killed is none.
    One process makes it, others that want it wait for that.

    Args:
        folder: of all indexes.
        key: what the index is of.
        embedder: makes the passages' vectors.
        document: its text.
        make: cuts it, if need be.

    Returns:
        The index, and how it came: empty where it was there already, else ``made``, or ``made again`` and why.

    Raises:
        OutputError: ``folder`` cannot be written.
        KvswarmError: as the embedder.
    """
    place = folder / key.place
    found, _ = _opened(place, embedder.dim)
    if found is not None:
        return found, ""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_suffix(".lock")):
            found, why = _opened(place, embedder.dim)
            if found is not None:
                return found, ""
            for left in place.parent.glob(f"{place.name}-*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
            with _beside(place) as temporary:
                _write(temporary, embedder, document, make())
                shutil.rmtree(place, ignore_errors=True)
                temporary.rename(place)
    except OSError as error:
        raise OutputError(
            f"{folder}: an index cannot be kept there ({error.strerror or error}); make it a folder that can be "
            "written, or name another one in context_strategy.folder"
        ) from None
    return Index(place), f"made again, {why}" if why else "made"


def _opened(place: Path, dim: int) -> tuple[Index | None, str]:
    """The index at ``place``; or None, and what is wrong with the one that is there."""
    if not place.exists():
        return None, ""
    try:
        manifest = json.loads((place / _MANIFEST).read_text())
        for name, size in manifest["files"].items():
            if (place / name).stat().st_size != size:
                return None, f"{name} had another size"
        index = Index(place)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        return None, f"it was damaged: {' '.join(str(error).split())[:120] or type(error).__name__}"
    if index.dim != dim:
        return None, f"its vectors had {index.dim} elements, the embedder's have {dim}"
    return index, ""


@contextlib.contextmanager
def _beside(place: Path) -> Iterator[Path]:
    temporary = Path(tempfile.mkdtemp(prefix=f"{place.name}-", suffix=".tmp", dir=place.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, embedder: Embedder, document: str, found: Outline) -> None:
    """The tables of an index, and at last the manifest, which says that they are whole."""
    import lancedb
    from lancedb.index import FTS

    database = lancedb.connect(str(folder))
    vectors = embedder.embed([passage.text for passage in found.passages])
    owners = np.array([passage.section for passage in found.passages], np.intp)
    means = np.zeros((len(found.sections), embedder.dim), np.float32)
    np.add.at(means, owners, vectors)
    texts = [document[section.first_char : section.end_char] for section in found.sections]
    for name, rows, columns in (
        (_PASSAGES, [asdict(passage) for passage in found.passages], {"vector": vectors}),
        (
            _SECTIONS,
            [
                asdict(s) | {"text": t, "section": n}
                for n, (s, t) in enumerate(zip(found.sections, texts, strict=True))
            ],
            {"vector": unit(means)},
        ),
    ):
        table = pa.Table.from_pylist([{"number": number} | row for number, row in enumerate(rows)])
        flat = pa.array(columns["vector"].ravel(), pa.float32())
        table = table.append_column("vector", pa.FixedSizeListArray.from_arrays(flat, embedder.dim))
        database.create_table(name, table).create_index("text", config=FTS())
    files = {
        str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }
    (folder / _MANIFEST).write_text(json.dumps({"embedder": embedder.name, "files": files}))

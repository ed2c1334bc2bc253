"""Documents: prefixes that stay in the cache on a sequence of their own while prompts start from them.

They are only ever extended, never cut back, since neither a recurrent state nor a small sliding-window cache can
be: that makes them a conversation's history too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from runner.engine.context import Context
from runner.engine.eviction import EvictingContext, SavedSequence
from runner.engine.reading import Reading


@dataclass
class Document:
    """A document's cells, read as ``reading`` says; ``users`` groups in flight started from it or will.

    The first ``held`` of its tokens are known from another context, and prefilling them is growth.
    """

    tokens: tuple[int, ...]
    sequence: int
    reading: Reading = field(default_factory=Reading)
    held: int = 0
    users: int = 0
    prefilled: int = 0
    state: bytes | SavedSequence | None = None

    @property
    def grows(self) -> bool:
        """Whether the next chunk is of the tokens that another context held."""
        return self.prefilled < self.held

    def next_chunk(self, room: int) -> tuple[int, ...]:
        """At most ``room`` of the tokens that are not prefilled; they count as prefilled from here on."""
        end = min(self.prefilled + room, self.held if self.grows else len(self.tokens))
        chunk = self.tokens[self.prefilled : end]
        self.prefilled = end
        return chunk

    def begins(self, tokens: Sequence[int]) -> bool:
        """Whether a document of ``tokens`` begins with this one, or is it."""
        return tuple(tokens[: len(self.tokens)]) == self.tokens


class Documents:
    """The documents in one context's cache."""

    def __init__(self, context: Context, free: deque[int]) -> None:
        """``free`` are the sequences that nobody uses, shared with the scheduler."""
        self._context, self._free = context, free
        self._all: list[Document] = []

    def __iter__(self) -> Iterator[Document]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def take(self, tokens: tuple[int, ...], reading: Reading | None = None, held: int = 0) -> Document | None:
        """The document of these tokens for one more group: as it is there, as a longer one, or new.

        One that no group uses is extended in its place. None where there are no tokens. ``held`` is for a new
        one: how many of its tokens another context held.
        """
        reading = reading or Reading()
        self._context.begin(reading)
        if not tokens:
            return None
        found = next((d for d in self._all if d.tokens == tokens and d.reading == reading), None)
        found = found or next((d for d in self._all if not d.users and self.serves(d, tokens, reading)), None)
        if found is None:
            found = Document(tokens, self._free.popleft(), reading, held)
            self._all.append(found)
        elif found.tokens != tokens:
            found.tokens, found.state = tokens, None
        found.users += 1
        return found

    def serves(self, document: Document, tokens: Sequence[int], reading: Reading) -> bool:
        """Whether a document of ``tokens`` can go on from ``document``, or is it."""
        if isinstance(self._context, EvictingContext):
            # What it holds of a document depends on where that ended and on how it was read.
            return document.tokens == tuple(tokens) and document.reading == reading
        return document.begins(tokens)

    def fork(self, document: Document, sequence: int) -> None:
        """Start ``sequence`` from where ``document`` ends."""
        if isinstance(self._context, EvictingContext):
            # The question evicts cells of the document: each starts from the document as saved, the first one too.
            if not isinstance(document.state, SavedSequence):
                document.state = self._context.save(document.sequence)
            self._context.restore(sequence, document.state)
            return
        if self._context.partial_state:
            # A small sliding-window cache has moved on by the time a second question comes, and shared cells
            # could never be re-used: every question starts from the state as saved, the first one too.
            if not isinstance(document.state, bytes):
                document.state = self._context.save_partial(document.sequence)
            self._context.load_partial(document.sequence, document.state)
        self._context.fork(document.sequence, sequence)

    def drop(self, document: Document) -> None:
        """Free a document's cells and its sequence."""
        self._all.remove(document)
        self._context.drop(document.sequence)
        self._free.append(document.sequence)

    def forget(self) -> None:
        """Know of no documents; their cells are for the caller to clear."""
        self._all.clear()

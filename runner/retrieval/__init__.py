"""Finding passages of a document: splitting it, embedding the pieces, and a database of them on disk."""

from runner.retrieval.extra import is_installed, needs_extra

__all__ = ["is_installed", "needs_extra"]

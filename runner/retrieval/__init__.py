"""Finding passages of a document: splitting it, embedding the pieces, and a database of them on disk."""

"""Which texts are closest to a question, by the words they share with it: BM25, for some thousand texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]

_K1, _B = 1.2, 0.75


def words(text: str) -> list[str]:
    """The words of a text in lower case, in order."""
    return re.findall(r"\w+", text.lower())


def bm25(question: str, texts: Sequence[str]) -> Scores:
    """Of each of ``texts`` how close it is to ``question``, float64 ``[len(texts)]``; 0 where they share no word.

    Okapi BM25 as in Robertson & Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009), with
    1 added under the logarithm, as Lucene does, so that a word of most texts counts little rather than against
    them. A word that the question repeats counts once.
    """
    terms = list(dict.fromkeys(words(question)))
    if not terms or not texts:
        return np.zeros(len(texts))
    counted = [Counter(words(text)) for text in texts]
    frequency = np.array([[of_text[term] for term in terms] for of_text in counted], dtype=np.float64)
    length = np.array([of_text.total() for of_text in counted], dtype=np.float64)
    having = np.count_nonzero(frequency, axis=0)
    idf = np.log1p((len(texts) - having + 0.5) / (having + 0.5))
    # Texts without any word have no mean to be compared with, and no frequencies either.
    norm = _K1 * (1 - _B + _B * length / max(length.mean(), 1.0))
    scores: Scores = (frequency * (_K1 + 1) / (frequency + norm[:, None]) * idf).sum(axis=1)
    return scores


def best_first(scores: Scores) -> list[int]:
    """The places of ``scores`` from the highest down, equal ones in order."""
    return [int(place) for place in np.argsort(-scores, kind="stable")]

"""How far the evidence that a prompt was sent with says what a worker answered."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from runner.voting.numbers import scan

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n")
_LONGEST = 64
"""Words of a sentence at most, so that in a text without stops, as a table, not everything is near everything.

A longer one is read in overlapping pieces, and an answer in pieces of half the length, each of which lies whole in
one of the evidence's.
"""

# Chinese and Japanese are written without spaces: there a character is a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
_DIGIT = re.compile(r"\d")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a about above after again all also am an and any are as at be because been before being below between "
        "both but by can could did do does doing down during each few for from further had has have having he her "
        "here hers him his how i if in into is it its itself just me more most my no nor not now of off on once "
        "only or other our out over own s same she should so some such t than that the their theirs them then "
        "there these they this those through to too under until up very was we were what when where which while "
        "who whom why will with would you your yours answer yes true false"
    )
)


def support(answer: str, evidence: str, question: str = "") -> float | None:
    """How far ``evidence`` says ``answer``, from 0 to 1; None where one of them has no content words.

    With w(t) = ln((n + 1) / (df(t) + 1/2)), how rare word t is among the n sentences s of the evidence
    (an inverse document frequency, Spärck Jones 1972, that stays above 0),

        found(x, s) = sum of w(t) over words t of x in s / sum of w(t) over words t of x
        asked(s)    = sum of w(t) over words t of the question in s, or half of w(t) if only beside it
        near(s)     = (1 + asked(s) / max of asked) / 2
        support     = mean over sentences x of the answer of max over s of found(x, s) near(s)

    where sentences x weigh as much as their words. So 1 is an answer that stands, in whatever form, where the
    evidence speaks of the question; 1/2 one that stands elsewhere; near 0 one that stands nowhere. Words are
    compared without case, numbers as numbers; stop words do not count. It is a measure of words: it cannot
    see a negation, nor a paraphrase.
    """
    read, sentences = _read(evidence), list(map(_terms, _sentences(answer, _LONGEST // 2)))
    if not read.sentences or not any(sentences):
        return None
    near = read.near(_terms(question))
    weights, shares = [], []
    for terms in filter(None, sentences):
        # In the order of the sums in found, so that an answer all of which is found has exactly 1.
        weights.append(sum(map(read.weight, terms)))
        shares.append(float((read.found(terms) / weights[-1] * near).max()))
    return math.fsum(w * s for w, s in zip(weights, shares, strict=True)) / math.fsum(weights)


def says(text: str, answer: str) -> bool | None:
    """Whether one sentence of ``text`` has every content word of ``answer``; None where that has none."""
    terms, read = _terms(answer), _read(text)
    if not terms:
        return None
    places = [set(read.places.get(term, ())) for term in terms]
    return bool(set.intersection(*places))


@dataclass(frozen=True)
class _Read:
    """Evidence as it is searched: how many ``sentences``, and in which of them each word stands, in order."""

    sentences: int
    places: dict[str, npt.NDArray[np.intp]]

    def weight(self, term: str) -> float:
        """How rare a word is, above 0."""
        having = len(self.places[term]) if term in self.places else 0
        return math.log((self.sentences + 1) / (having + 0.5))

    def found(self, terms: Iterable[str], beside: float = 0.0) -> npt.NDArray[np.float64]:
        """The weight of ``terms`` in each sentence, float64 ``[sentences]``.

        ``beside`` is the share of it that counts in a sentence next to one with the word.
        """
        weights = np.zeros(self.sentences)
        for term in terms:
            if term in self.places:
                places, share = self.places[term], np.zeros(self.sentences)
                share[np.maximum(places - 1, 0)] = share[np.minimum(places + 1, self.sentences - 1)] = beside
                share[places] = 1.0
                weights += self.weight(term) * share
        return weights

    def near(self, question: Iterable[str]) -> npt.NDArray[np.float64]:
        """How near each sentence is to what is asked, from 1/2 to 1; float64 ``[sentences]``."""
        asked = self.found(question, beside=0.5)
        most = asked.max()
        return (1 + asked / most) / 2 if most > 0 else np.ones(self.sentences)


@lru_cache(maxsize=8)
def _read(evidence: str) -> _Read:
    places: dict[str, list[int]] = {}
    sentences = 0
    for terms in filter(None, map(_terms, _sentences(evidence, _LONGEST))):
        for term in terms:
            places.setdefault(term, []).append(sentences)
        sentences += 1
    return _Read(sentences, {term: np.array(where, dtype=np.intp) for term, where in places.items()})


def _sentences(text: str, longest: int) -> Iterator[str]:
    """``text`` in its sentences and paragraphs, those of more than ``longest`` words in pieces."""
    for sentence in _SENTENCE_END.split(text):
        words = [match.span() for match in re.finditer(r"\S+", sentence)]
        for first in range(0, len(words), _LONGEST // 2):
            piece = words[first : first + longest]
            yield sentence[piece[0][0] : piece[-1][1]]
            if first + longest >= len(words):
                break


def _terms(sentence: str) -> tuple[str, ...]:
    """The content words of a sentence, each once; of a number that stands for itself its key."""
    sentence = unicodedata.normalize("NFC", sentence)
    terms = []
    if _DIGIT.search(sentence):
        numbers = list(scan(sentence))
        terms = [number.key for number in numbers]
        for number in reversed(numbers):
            sentence = f"{sentence[: number.start]} {sentence[number.end :]}"
    terms += (word for word in _WORD.findall(sentence.casefold()) if word not in _STOP_WORDS)
    return tuple(dict.fromkeys(terms))

"""A model of words for the tests of context strategies: its token is a word, and it writes the first of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runner.context.base import Fit, PreparedPrompt, Reading, Request, Written
from runner.retrieval.embedders import Embedder, WordLlamaEmbedder


@dataclass(frozen=True)
class Parts:
    document: tuple[int, ...]
    question: tuple[int, ...]


def first_words(text: str, most: int) -> str:
    return " ".join(text.split()[:most])


@dataclass
class Words:
    """An engine; ``memory`` is how many tokens fit, ``reading`` what a guided reading would take."""

    window_tokens: int = 300
    answer_tokens: int = 10
    model_digest: str = "words"
    write: Callable[[str, int], str] = lambda text, most: first_words(text, most // 2)
    memory: int = 10**9
    reading: Reading | None = None
    asked: list[Request] = field(default_factory=list)
    fits: int = 0

    def count(self, text: str) -> int:
        return len(text.split())

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(map(hash, text.split()))

    def encode(self, prompt_id: str, messages: Sequence[dict[str, str]], document: str | None) -> Parts:
        return Parts(self.tokens(document or ""), self.tokens(" ".join(m["content"] for m in messages)))

    def fit(self, items: Sequence[PreparedPrompt]) -> Fit:
        self.fits += 1
        longest = max(item.tokens_sent for item in items)
        return Fit(longest <= self.memory, f"{longest} tokens of {self.memory}")

    def guided(self, items: Sequence[PreparedPrompt]) -> Reading | None:
        return self.reading

    def generate(self, requests: Sequence[Request], *, max_tokens: int, together: int) -> list[Written]:
        for request in requests:
            assert (
                self.count(f"{request.before} {request.text} {request.after}") + max_tokens
                <= self.window_tokens
            )
        self.asked += requests
        return [Written(self.write(request.text, max_tokens), 1, 1, cut=False) for request in requests]

    def embedder(self, name: str) -> Embedder:
        return WordLlamaEmbedder()

    def log_likelihoods(self, requests: Sequence[Request], continuation: str) -> list[float]:
        """The more of the question's words a text has, the likelier."""
        said = {word.strip("?.,") for word in continuation.split()}
        return [float(len(said & {word.strip("?.,") for word in r.text.split()})) for r in requests]

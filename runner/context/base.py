"""The seam between a prompt and the swarm: a strategy prepares, and says what it did."""

from __future__ import annotations

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol

from runner.prompts import Prompt
from runner.retrieval.embedders import Embedder

Probe = tuple[int, ...]
"""Token ids of a question that a document is asked while it is read."""


class TokenParts(Protocol):
    """Token ids up to the end of the document, and of the rest."""

    @property
    def document(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def question(self) -> tuple[int, ...]: ...  # noqa: D102


class Tokenizer(Protocol):
    """What a strategy may ask of the engine."""

    def count(self, text: str) -> int:
        """Tokens of a plain text."""

    def tokens(self, text: str) -> tuple[int, ...]:
        """A plain text as it would go on after others."""

    def encode(self, prompt_id: str, messages: Sequence[dict[str, str]], document: str | None) -> TokenParts:
        """The tokens of a chat with ``document`` before its first question."""


@dataclass(frozen=True)
class Request:
    """Something that a strategy has the model write.

    ``before`` is what requests may share, and is then prefilled once; ``text`` is somebody's text, in which
    nothing is a control token; ``after`` ends the request.
    """

    id: str
    before: str
    text: str
    after: str


@dataclass(frozen=True)
class Written:
    """What the model wrote for a request; ``cut`` says that it ran out of tokens."""

    text: str
    prefill_tokens: int
    generated_tokens: int
    cut: bool


@dataclass(frozen=True)
class Fit:
    """Whether prompts fit as they are, without remedies; ``reason`` says it in words."""

    fits: bool
    reason: str


@dataclass(frozen=True)
class Reading:
    """A guided reading of documents: the ``overrides`` that it takes, as a person types them.

    ``prefill_tokens`` is what all prompts are prefilled with, probes included.
    """

    overrides: tuple[str, ...]
    prefill_tokens: int


class Engine(Tokenizer, Protocol):
    """What a strategy may ask of the engine.

    ``window_tokens`` is what a prompt that was shortened may take, with ``answer_tokens`` for its answer.
    ``model_digest`` names the weights: what they wrote or counted may be kept for another job under it.
    """

    window_tokens: int
    answer_tokens: int
    model_digest: str

    def fit(self, items: Sequence[PreparedPrompt]) -> Fit:
        """Whether the job's plan has room for ``items``."""

    def guided(self, items: Sequence[PreparedPrompt]) -> Reading | None:
        """How ``items``, all that the job asks, are read by their questions, with the largest budget that fits.

        None where they cannot be: one has no document, the job evicts by a mode of its own or scores texts.
        """

    def generate(self, requests: Sequence[Request], *, max_tokens: int, together: int) -> list[Written]:
        """What the model writes for each of ``requests``, greedily, at most ``together`` at once.

        Raises:
            PlanRefusedError: not even one at a time fits the memory.
            Interrupted: Ctrl-C; what was written is lost.
        """

    def embedder(self, name: str) -> Embedder:
        """The embedder of this name, or the embedding model in the GGUF file at this path.

        Raises:
            ConfigError: the ``rag`` extra is not installed.
            ModelError: there is no such file, or it is no embedding model.
        """

    def log_likelihoods(self, requests: Sequence[Request], continuation: str) -> list[float]:
        """Of ``continuation`` after each of ``requests`` its tokens' mean log-probability, in nats.

        Raises:
            PlanRefusedError: they do not fit the memory.
            Interrupted: Ctrl-C.
        """


@dataclass(frozen=True)
class Stage:
    """One step of a strategy, a row of ``stages``: what went in and came out, in items, characters and tokens.

    ``stage`` is one word, as the ``stages`` table lists them.
    ``prefill_tokens`` and ``generated_tokens`` are what the engine did. ``cached`` says that what came out had
    been kept from before. ``detail`` is one line for a person.
    """

    stage: str
    items_in: int
    items_out: int
    chars_in: int
    chars_out: int
    tokens_in: int
    tokens_out: int
    seconds: float
    prefill_tokens: int = 0
    generated_tokens: int = 0
    cached: bool = False
    detail: str = ""


@dataclass(frozen=True)
class Excerpt:
    """A piece of what is sent in place of a document, a row of ``excerpts``.

    ``first_char`` to ``end_char`` is where it stands in the document; of a summary, what it is of. ``share`` is
    which part of the room it took. ``rank`` counts from 0, the closest to the question by ``score``; both are None
    of what only stands beside such a one. ``section`` is the path of headings above it. ``dense_rank`` and
    ``bm25_rank`` are its places in a search by meaning and by words, None where it was not found so.
    """

    first_char: int
    end_char: int
    share: Literal["retrieved", "summary", "original"]
    text: str
    rank: int | None = None
    score: float | None = None
    section: str = ""
    dense_rank: int | None = None
    bm25_rank: int | None = None


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt ready to run: ``tokens_in`` is the length of what was given, ``tokens_sent`` of what is run.

    ``evidence`` is the text that stands in the place of the document, and the document itself where that is sent
    whole. ``reason`` says why this strategy, where one was chosen; ``stages`` what it did and ``excerpts`` what it
    sends of the document. ``overrides`` are what the job is run with for its sake, as a person types them.

    ``probes_by_text`` is what the document is asked while it is read, where the KV mode probes: of each of its
    ``probe.texts``, the questions in that text.
    """

    prompt: Prompt
    strategy: str
    document: tuple[int, ...]
    question: tuple[int, ...]
    tokens_in: int
    probes_by_text: tuple[tuple[Probe, ...], ...] = ()
    evidence: str | None = None
    reason: str = ""
    overrides: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()

    @property
    def probes(self) -> tuple[Probe, ...]:
        """All that the document is asked, each once."""
        return tuple(dict.fromkeys(chain.from_iterable(self.probes_by_text)))

    @property
    def tokens_sent(self) -> int:
        """Length of what the model gets, in tokens."""
        return len(self.document) + len(self.question)


class Strategy(ABC):
    """Turns a prompt into what the swarm prefills."""

    name: str

    @abstractmethod
    def prepare(self, prompt: Prompt, engine: Engine) -> PreparedPrompt:
        """``prompt`` as tokens.

        Raises:
            PromptError: the model cannot take it.
            KvswarmError: as the engine's methods.
        """


class Shortening(Strategy):
    """A strategy that sends less than there is, and knows what that costs."""

    @abstractmethod
    def prefill_tokens(self, items: Sequence[PreparedPrompt], engine: Engine) -> int:
        """About what it takes to prepare and run ``items``, whole still, with nothing kept from before."""


def messages_of(prompt: Prompt) -> list[dict[str, str]]:
    """The chat that a prompt stands for, system text first."""
    turns = [{"role": "system", "content": prompt.system}] if prompt.system else []
    turns += [{"role": message.role, "content": message.content} for message in prompt.messages]
    if prompt.prompt is not None:
        turns.append({"role": "user", "content": prompt.prompt})
    turns[-1]["content"] += _options(prompt)
    return turns


def _options(prompt: Prompt) -> str:
    """The lettered choices, where the question does not spell them out itself."""
    if all(re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", prompt.question) for choice in prompt.choices):
        return ""
    lines = [
        f"{letter}. {choice}" for letter, choice in zip(string.ascii_uppercase, prompt.choices, strict=False)
    ]
    return "\n\n" + "\n".join(lines) + "\n\nAnswer with the letter."

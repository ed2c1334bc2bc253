"""The seam between a prompt and the swarm: a strategy prepares, and says what it did."""

from __future__ import annotations

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from runner.prompts import Prompt

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
class PreparedPrompt:
    """A prompt ready to run: ``tokens_in`` is the length of what was given, ``tokens_sent`` of what is run.

    ``probes_by_text`` is what the document is asked while it is read, where the KV mode probes: of each of its
    ``probe.texts``, the questions in that text.
    """

    prompt: Prompt
    strategy: str
    document: tuple[int, ...]
    question: tuple[int, ...]
    tokens_in: int
    probes_by_text: tuple[tuple[Probe, ...], ...] = ()

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
    def prepare(self, prompt: Prompt, tokenizer: Tokenizer) -> PreparedPrompt:
        """``prompt`` as tokens.

        Raises:
            PromptError: the model cannot take it.
        """


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

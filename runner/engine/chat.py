"""A prompt as the tokens a model was trained to read: its chat template, or plain text for a base model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runner.engine.weights import Weights
from runner.errors import PromptError

_DOCUMENT = "\ue000document\ue001"
"""Stands for the document while the template is rendered: its own words may occur anywhere in a chat."""

_TODAY = datetime(2024, 7, 26)
"""The day Llama 3.1's template assumes when it is not told: a prompt must not change overnight."""


@dataclass(frozen=True)
class PromptTokens:
    """A prompt's token ids in two parts: up to the end of its document (empty without one), and the rest."""

    document: tuple[int, ...]
    question: tuple[int, ...]


class PromptFormat:
    """Renders and tokenises prompts for one model."""

    def __init__(self, weights: Weights) -> None:
        """Compile the model's template, in Jinja's sandbox: a GGUF file is somebody else's code.

        Raises:
            PromptError: the template does not compile.
        """
        self._weights = weights
        source = weights.chat_template()
        self._template = None if source is None else _compile(source)
        self._names = {"bos_token": weights.special_text("bos"), "eos_token": weights.special_text("eos")}

    @property
    def is_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def count(self, text: str) -> int:
        """Tokens of a plain text."""
        return len(self._weights.tokenize(text, add_special=False, parse_special=False))

    def encode(
        self, prompt_id: str, messages: Sequence[dict[str, str]], document: str | None
    ) -> PromptTokens:
        """Tokenise a chat whose first user message gets ``document`` put before it.

        Text of the document that looks like a control token is read as text: who wrote the document is not
        who wrote the prompt. A base model takes one user message, as plain text.

        Raises:
            PromptError: a chat for a base model, or a chat that the model's template refuses.
        """
        if self._template is None:
            return self._encode_plain(prompt_id, messages, document)
        turns = [dict(message) for message in messages]
        if document is not None:
            first = next(turn for turn in turns if turn["role"] == "user")
            first["content"] = f"{_DOCUMENT}\n\n{first['content']}"
        try:
            text = self._template.render(
                messages=turns, add_generation_prompt=True, tools=None, **self._names
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise PromptError(
                f"prompt {prompt_id!r}: the model's chat template refuses it: {error}"
            ) from None
        begins_itself = bool(self._names["bos_token"]) and text.startswith(self._names["bos_token"])
        if document is None:
            return PromptTokens((), self._tokens(text, start=not begins_itself))
        head, *rest = text.split(_DOCUMENT)
        if len(rest) != 1:
            raise PromptError(
                f"prompt {prompt_id!r}: the model's chat template does not show its document once"
            )
        opening = self._tokens(head, start=not begins_itself)
        return PromptTokens(opening + self._tokens(document, special=False), self._tokens(rest[0]))

    def _encode_plain(
        self, prompt_id: str, messages: Sequence[dict[str, str]], document: str | None
    ) -> PromptTokens:
        if len(messages) != 1:
            raise PromptError(
                f"prompt {prompt_id!r} is a chat, and this is a base model without a chat template; "
                "give one `prompt` without a system text, or choose a chat model"
            )
        text = messages[0]["content"]
        if document is None:
            return PromptTokens((), self._tokens(text, start=True))
        return PromptTokens(self._tokens(document, start=True, special=False), self._tokens(f"\n\n{text}"))

    def _tokens(self, text: str, *, start: bool = False, special: bool = True) -> tuple[int, ...]:
        return tuple(self._weights.tokenize(text, add_special=start, parse_special=special))


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    if "strftime_now is defined" not in source:
        environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise PromptError(
            f"the model's chat template does not compile: {error}; the GGUF file is at fault"
        ) from None


def _refuse(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return _TODAY.strftime(form)

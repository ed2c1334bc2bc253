"""A prompt as the tokens a model was trained to read: its chat template, or plain text for a base model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runner.context.base import Request
from runner.engine.weights import Weights
from runner.errors import PromptError

_DOCUMENT = "\ue000document\ue001"
"""Stands for the document while the template is rendered: its own words may occur anywhere in a chat."""

_TURN = "\ue000turn\ue001"
"""Stands where the user's turn ends while the template is rendered."""

_SEAM = "\ue000\ue001"
"""Parts what must not become one token; the text on either side is tokenised by itself."""

_TODAY = datetime(2024, 7, 26)
"""The day Llama 3.1's template assumes when it is not told: a prompt must not change overnight."""


@dataclass(frozen=True)
class PromptTokens:
    """A prompt's token ids in two parts: what other prompts can go on from, which may be empty, and the rest.

    The first is up to the end of the document or, in a conversation, of the user's turn.
    """

    document: tuple[int, ...]
    question: tuple[int, ...]


class PromptFormat:
    """Renders and tokenises prompts for one model; with ``conversation`` they are turns that others follow."""

    def __init__(self, weights: Weights, *, conversation: bool = False) -> None:
        """Compile the model's template, in Jinja's sandbox: a GGUF file is somebody else's code.

        Raises:
            PromptError: the template does not compile.
        """
        self._weights, self._conversation = weights, conversation
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

    def tokens(self, text: str) -> tuple[int, ...]:
        """A plain text as it would go on after others."""
        return self._tokens(text, special=False)

    def encode(
        self, prompt_id: str, messages: Sequence[dict[str, str]], document: str | None
    ) -> PromptTokens:
        """Tokenise a chat whose first user message gets ``document`` put before it.

        Text of the document that looks like a control token is read as text: who wrote the document is not
        who wrote the prompt. So is text of a conversation's answers. A base model takes one user message, as
        plain text.

        Raises:
            PromptError: a chat for a base model, or a chat that the model's template refuses.
        """
        if self._template is None:
            return self._encode_plain(prompt_id, messages, document)
        turns = [dict(message) for message in messages]
        if document is not None:
            first = next(turn for turn in turns if turn["role"] == "user")
            first["content"] = f"{_DOCUMENT}\n\n{first['content']}"
        if self._conversation:
            self._mark(turns)
        text = self._render(prompt_id, turns)
        start = not (self._names["bos_token"] and text.startswith(self._names["bos_token"]))
        known: tuple[int, ...] = ()
        if document is not None:
            head, text = _parted(prompt_id, text, _DOCUMENT, "document")
            known = self._tokens(head, start=start) + self._tokens(document, special=False)
            start = False
        if not self._conversation:
            return PromptTokens(known, self._tokens(text, start=start))
        text, tail = _parted(prompt_id, text, _TURN, "last turn")
        opening, *parts = text.split(_SEAM)
        known += self._tokens(opening, start=start)
        for part in parts:
            known += self._tokens(part)
        return PromptTokens(known, self._tokens(tail))

    def encode_request(self, request: Request) -> PromptTokens:
        """A request as one user message: what requests share as the document, and nothing of ``text`` as control.

        Raises:
            PromptError: the model's template refuses it.
        """
        before, after = f"{request.before}\n\n{_DOCUMENT}", f"\n\n{request.after}" if request.after else ""
        if self._template is None:
            head, tail = before.removesuffix(_DOCUMENT), after
        else:
            text = self._render(request.id, [{"role": "user", "content": before + after}])
            head, tail = _parted(request.id, text, _DOCUMENT, "document")
        start = not (self._names["bos_token"] and head.startswith(self._names["bos_token"]))
        return PromptTokens(
            self._tokens(head, start=start), self._tokens(request.text, special=False) + self._tokens(tail)
        )

    def _mark(self, turns: Sequence[dict[str, str]]) -> None:
        """Mark where the turns of a conversation are parted: always where a question ends.

        What follows there, the opening of an answer, need not come back in the turns after it as it is in the
        last: templates that hide a model's reasoning open an answer otherwise than they show a past one.
        """
        for turn in turns[:-1]:
            if turn["role"] == "user":
                turn["content"] += _SEAM
            elif turn["role"] == "assistant":
                turn["content"] = self._seamed(turn["content"])
        turns[-1]["content"] += _TURN

    def _render(self, prompt_id: str, turns: Sequence[dict[str, str]]) -> str:
        assert self._template is not None
        try:
            return self._template.render(
                messages=turns, add_generation_prompt=True, tools=None, **self._names
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise PromptError(
                f"prompt {prompt_id!r}: the model's chat template refuses it: {error}"
            ) from None

    def _encode_plain(
        self, prompt_id: str, messages: Sequence[dict[str, str]], document: str | None
    ) -> PromptTokens:
        if self._conversation:
            raise PromptError(
                f"prompt {prompt_id!r} is a turn of a conversation, and this is a base model without a chat "
                "template; give prompts without `turns`, or choose a chat model"
            )
        if len(messages) != 1:
            raise PromptError(
                f"prompt {prompt_id!r} is a chat, and this is a base model without a chat template; "
                "give one `prompt` without a system text, or choose a chat model"
            )
        text = messages[0]["content"]
        if document is None:
            return PromptTokens((), self._tokens(text, start=True))
        return PromptTokens(self._tokens(document, start=True, special=False), self._tokens(f"\n\n{text}"))

    def _seamed(self, reply: str) -> str:
        """``reply`` with a seam in everything that would be a control token."""
        while True:
            tokens = self._weights.tokenize(reply, add_special=False, parse_special=True)
            controls = {token for token in tokens if not self._weights.piece(token)}
            seamed = reply
            for text in (
                self._weights.piece(token, special=True).decode("utf-8", "replace") for token in controls
            ):
                if len(text) > 1:
                    seamed = seamed.replace(text, f"{text[0]}{_SEAM}{text[1:]}")
            if seamed == reply:
                return reply
            reply = seamed

    def _tokens(self, text: str, *, start: bool = False, special: bool = True) -> tuple[int, ...]:
        return tuple(self._weights.tokenize(text, add_special=start, parse_special=special))


def _parted(prompt_id: str, text: str, mark: str, what: str) -> tuple[str, str]:
    """``text`` before and after ``mark``, which stands for ``what``."""
    before, *after = text.split(mark)
    if len(after) != 1:
        raise PromptError(f"prompt {prompt_id!r}: the model's chat template does not show its {what} once")
    return before, after[0]


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

"""One prompt as a person writes it, and the mistakes a person makes in one."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from runner.config import AnswerKind, parse
from runner.errors import ConfigError, PromptError

_STRICT = ConfigDict(extra="forbid")
Text = Annotated[str, Field(min_length=1)]


def _answer_text(value: Any) -> Any:
    """An expected answer of 42 or true is as good as "42" or "true"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) and math.isfinite(value) else value


Answer = Annotated[str, BeforeValidator(_answer_text)]


@dataclass(frozen=True, config=_STRICT)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, config=_STRICT)
class Prompt:
    """A question, or a chat that ends in one, and what is known about it.

    ``document`` stands before the question; prompts with the same document prefill it once. ``answer`` is
    the expected one, ``choices`` are option texts in the order A, B, C..., ``meta`` is carried, never read.
    ``kind`` says how an answer is read out of a text; it is None only until the prompts are loaded.
    """

    id: Text
    prompt: Text | None = None
    messages: list[Message] = field(default_factory=list)
    document: Text | None = None
    answer: Answer | None = None
    choices: Annotated[list[Text], Field(max_length=26)] = field(default_factory=list)
    kind: AnswerKind | None = None
    pattern: str | None = None
    system: str | None = None
    meta: Any = None

    @property
    def question(self) -> str:
        """What is asked: the prompt, or the last message of the chat."""
        return self.prompt if self.prompt is not None else self.messages[-1].content

    @property
    def document_digest(self) -> str | None:
        """A short digest that is the same for the same document."""
        return None if self.document is None else hashlib.sha256(self.document.encode()).hexdigest()[:16]


_KEYS = [f.name for f in fields(Prompt)]


def parse_prompt(row: Any, where: str, default_id: str) -> Prompt:
    """A row of a prompt file as a :class:`Prompt`; ``where`` names the row in an error.

    Raises:
        PromptError: the row is no object, has an unknown key, a value of a wrong type, or asks nothing.
    """
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, Mapping):
        raise PromptError(
            f"{where}: a prompt is a JSON object with `prompt` or `messages`, not {type(row).__name__}"
        )
    for key in row:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(_KEYS)}."
            raise PromptError(f"{where}: unknown key {key!r}; {hint} Anything else goes under 'meta'")
    values = {"id": default_id, **{key: value for key, value in row.items() if value is not None}}
    values["id"] = str(values["id"])
    if isinstance(values.get("document"), str):
        values["document"] = values["document"].strip() or None
    try:
        prompt: Prompt = parse(Prompt, values)
    except ConfigError as error:
        raise PromptError(f"{where}: {error}") from None
    if (prompt.prompt is None) == (not prompt.messages):
        raise PromptError(f"{where}: give either `prompt` or `messages`")
    if prompt.messages and prompt.messages[-1].role != "user":
        raise PromptError(f"{where}: the last message must be the user's; nothing is asked")
    if not prompt.question.strip():
        raise PromptError(f"{where}: the question is empty")
    return prompt

"""One prompt as a person writes it, and the mistakes a person makes in one."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from runner.config import AnswerKind
from runner.errors import ConfigError, PromptError
from runner.parsing import parse
from runner.prompts.documents import read_document

_STRICT = ConfigDict(extra="forbid")
Text = Annotated[str, Field(min_length=1)]


def _answer_text(value: Any) -> Any:
    """An expected answer of 42 or true is as good as "42" or "true"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) and math.isfinite(value) else value


def _stripped(value: Any) -> Any:
    """Without the space around it, which many chat templates drop from all turns but the last."""
    return value.strip() if isinstance(value, str) else value


Answer = Annotated[str, BeforeValidator(_answer_text)]
Choices = Annotated[list[Text], Field(max_length=26)]


@dataclass(frozen=True, config=_STRICT)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, config=_STRICT)
class Turn:
    """One question of a conversation, and what is known about it, as of a :class:`Prompt`.

    ``reply`` is what the conversation goes on with in place of the swarm's answer.
    """

    content: Annotated[Text, BeforeValidator(_stripped)]
    answer: Answer | None = None
    choices: Choices = field(default_factory=list)
    kind: AnswerKind | None = None
    pattern: str | None = None
    reply: str | None = None


@dataclass(frozen=True, config=_STRICT)
class Prompt:
    """A question, a chat that ends in one, or a conversation of several, and what is known about it.

    ``document`` stands before the (first) question; prompts with the same document prefill it once.
    ``probes`` are questions that a KV mode which probes asks the document in place of the prompt's own; under one
    that does not they change nothing, so that a grid can compare the two.
    ``answer`` is the expected one, ``choices`` are option texts in the order A, B, C..., ``meta`` is carried,
    never read. ``kind`` says how an answer is read out of a text; it is None only until the prompts are
    loaded. With ``turns`` all of these are each turn's own.
    """

    id: Text
    prompt: Text | None = None
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    document: Text | None = None
    probes: list[Text] = field(default_factory=list)
    answer: Answer | None = None
    choices: Choices = field(default_factory=list)
    kind: AnswerKind | None = None
    pattern: str | None = None
    system: str | None = None
    meta: Any = None

    @property
    def question(self) -> str:
        """What is asked: the prompt, the last message of the chat, or a conversation's first turn."""
        if self.turns:
            return self.turns[0].content
        return self.prompt if self.prompt is not None else self.messages[-1].content

    @property
    def document_digest(self) -> str | None:
        """A short digest that is the same for the same document."""
        return None if self.document is None else hashlib.sha256(self.document.encode()).hexdigest()[:16]

    def turn_id(self, number: int) -> str:
        """What names turn ``number`` of a conversation, counted from 1, in every table."""
        return f"{self.id}/{number}"


@dataclass(frozen=True, config=_STRICT)
class Passage:
    """A text that is scored, not asked about: a row of kind ``score``.

    ``last`` is how many of its tokens are scored, the last ones; None is what the config says. ``meta`` is
    carried, never read.
    """

    id: Text
    text: Text
    last: Annotated[int, Field(ge=1)] | None = None
    meta: Any = None

    @property
    def digest(self) -> str:
        """A short digest that is the same for the same text."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:16]


SCORE = "score"
"""The kind of a row that is a :class:`Passage`; every other kind says how an answer is read."""

_PATH = "document_path"
"""What a row may have in place of a document: the file or folder that it is in."""

_OF_A_TURN = ("answer", "choices", "kind", "pattern")


def parse_prompt(row: Any, where: str, default_id: str, folder: Path = Path()) -> Prompt | Passage:
    """A row of a prompt file; ``where`` names the row in an error, and paths in it begin at ``folder``.

    Raises:
        PromptError: the row is no object, has an unknown key, a value of a wrong type, or asks nothing; its
            document is empty or cannot be read.
        ConfigError: as :func:`runner.prompts.documents.read_document`.
    """
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, Mapping):
        raise PromptError(
            f"{where}: a prompt is a JSON object with `prompt`, `messages` or `turns`, "
            f"not {type(row).__name__}"
        )
    if row.get("kind") == SCORE:
        return _passage(row, where, default_id)
    if row.get("text") is not None:
        raise PromptError(
            f'{where}: `text` is a text to score, which wants "kind": "{SCORE}"; a question is a `prompt`'
        )
    _check_keys(row, Prompt, where, "'meta'", _PATH)
    values = {"id": default_id, **{key: value for key, value in row.items() if value is not None}}
    values["id"] = str(values["id"])
    _take_document(values, where, folder)
    if "turns" in values:
        values["turns"] = _turns(values, where)
    prompt: Prompt = _parsed(Prompt, values, where)
    if [prompt.prompt is not None, bool(prompt.messages), bool(prompt.turns)].count(True) != 1:
        raise PromptError(f"{where}: give one of `prompt`, `messages` and `turns`")
    if prompt.messages and prompt.messages[-1].role != "user":
        raise PromptError(f"{where}: the last message must be the user's; nothing is asked")
    if not prompt.question.strip():
        raise PromptError(f"{where}: the question is empty")
    if prompt.turns and prompt.probes:
        raise PromptError(
            f"{where}: `probes` do not go with `turns`: a conversation keeps all of its document; drop one of them"
        )
    if not all(probe.strip() for probe in prompt.probes):
        raise PromptError(f"{where}: a probe is empty; write what the document is to be asked, or drop it")
    return prompt


def _take_document(values: dict[str, Any], where: str, folder: Path) -> None:
    """Put the text of the document into ``values``, where a row has one or names its file.

    Raises:
        PromptError: it is empty or cannot be read, or there are two.
        ConfigError: as :func:`runner.prompts.documents.read_document`.
    """
    path = values.pop(_PATH, None)
    if path is not None and "document" in values:
        raise PromptError(f"{where}: give one of `document` and `{_PATH}`")
    if path is not None:
        if not isinstance(path, str) or not path.strip():
            raise PromptError(f"{where}: {_PATH}={path!r} is no path; name a file or a folder of documents")
        try:
            values["document"] = read_document(path, folder)
        except PromptError as error:
            raise PromptError(f"{where}: {error}") from None
    elif isinstance(document := values.get("document"), str):
        values["document"] = document.strip()
        if not values["document"]:
            raise PromptError(f"{where}: the document is empty; write what it says, or leave `document` out")


def _passage(row: Mapping[Any, Any], where: str, default_id: str) -> Passage:
    """A row of kind ``score``.

    Raises:
        PromptError: it has no text, or a key of something that is asked.
    """
    values = {key: value for key, value in row.items() if value is not None and key != "kind"}
    known = {field.name for field in fields(Passage)}
    of_prompts = {*(field.name for field in fields(Prompt)), _PATH}
    asked = [key for key in values if key not in known and key in of_prompts]
    if asked:
        raise PromptError(
            f"{where}: {asked[0]!r} does not go with kind={SCORE}: nothing is asked of a `text`; drop one of them"
        )
    _check_keys(values, Passage, where, "'meta'")
    text = values.get("text")
    if text is None or (isinstance(text, str) and not text.strip()):
        raise PromptError(f"{where}: kind={SCORE} needs a `text` to score, and this one is empty")
    values["id"] = str(values.get("id", default_id))
    passage: Passage = _parsed(Passage, values, where)
    return passage


def _check_keys(row: Mapping[Any, Any], cls: type, where: str, home: str, *more: str) -> None:
    """Refuse what is no field of the dataclass ``cls`` nor one of ``more``; ``home`` is where to put it."""
    known = [*(f.name for f in fields(cls)), *more]
    for key in row:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}."
            raise PromptError(f"{where}: unknown key {key!r}; {hint} Anything else goes under {home}")


def _parsed(cls: type, values: Mapping[str, Any], where: str) -> Any:
    try:
        return parse(cls, dict(values))
    except ConfigError as error:
        raise PromptError(f"{where}: {error}") from None


def _turns(values: Mapping[str, Any], where: str) -> list[Turn]:
    """The turns of a conversation whose row holds ``values``."""
    for key in _OF_A_TURN:
        if key in values:
            raise PromptError(f"{where}: {key!r} of a conversation belongs in the turn that it is about")
    rows, turns = values["turns"], []
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise PromptError(f"{where}: `turns` must be a list of questions, at least one")
    for number, row in enumerate(rows, 1):
        place = f"{where}, turn {number}"
        row = {"content": row} if isinstance(row, str) else row
        if not isinstance(row, Mapping) or "content" not in row:
            raise PromptError(f"{place}: a turn is a text, or a JSON object with `content`")
        _check_keys(row, Turn, place, "the prompt's 'meta'")
        turns.append(_parsed(Turn, {key: value for key, value in row.items() if value is not None}, place))
    return turns

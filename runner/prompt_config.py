"""The ``prompts`` group: what a job asks and what it scores, read from a file, written down, or generated."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from runner.kv_mode import Count, Share

AnswerKind = Literal["number", "choice", "boolean", "regex", "text", "list"]
FactName = Literal["code", "birthplace", "year", "capital", "price"]

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=_STRICT)
class TextsConfig:
    """Texts to score: ``count`` passages of ``tokens`` tokens out of each of ``sources``, beside the prompts.

    A source is a text file, or ``pydoc``: Python's own language reference. The passages are spread over ``span``,
    a share of the source from where to where, so that two jobs can have passages of which none is in both. Their
    ``last`` tokens are scored, as many as the ``scoring`` group says if None.
    """

    sources: Annotated[list[str], Field(min_length=1)] = field(default_factory=lambda: ["pydoc"])
    count: Annotated[int, Field(ge=0)] = 0
    tokens: Annotated[int, Field(ge=16)] = 2048
    last: Count | None = None
    span: Annotated[list[Share], Field(min_length=2, max_length=2)] = field(
        default_factory=lambda: [0.0, 1.0]
    )


@dataclass(frozen=True, config=_STRICT)
class RecallConfig:
    """What the documents of ``prompts=recall`` are made of, and how they are asked.

    ``kinds`` of fact are dealt out in turn. The ``body`` that hides them is ``caravan`` (generated), ``pydoc``, or
    a text file. An answer ``needs`` so many facts, all of one kind. The ``absent`` share of the questions is about
    what the document does not say; every question then asks for ``unknown`` in that case. With
    ``style=completion`` a question is the beginning of a statement, for base models.
    """

    kinds: Annotated[list[FactName], Field(min_length=1)] = field(
        default_factory=lambda: ["code", "birthplace", "year", "capital", "price"]
    )
    body: Annotated[str, Field(min_length=1)] = "caravan"
    needs: Annotated[int, Field(ge=1, le=8)] = 1
    absent: Share = 0.0
    style: Literal["chat", "completion"] = "chat"


@dataclass(frozen=True, config=_STRICT)
class PromptsConfig:
    """Where the prompts come from: ``path`` (JSONL), else ``items``, else the generator ``needle`` or ``recall``.

    ``texts`` are scored beside them, and alone with ``prompts=texts``. ``document`` is a file or folder that every
    prompt of a file or of ``items`` is about which has no document of its own.

    ``count`` questions about documents of ``tokens`` tokens that hold ``facts`` keyed facts each, at
    ``depths`` (0 is the beginning, 1 the end), are what ``needle`` makes, and in more kinds ``recall``. ``limit``
    takes the first prompts only; ``kind``, ``pattern`` and ``system`` hold for every prompt that does not say
    otherwise.
    """

    name: str = "needle"
    path: str | None = None
    document: Annotated[str, Field(min_length=1)] | None = None
    items: list[Any] = field(default_factory=list)
    count: Count = 8
    tokens: Annotated[int, Field(ge=128)] = 1000
    facts: Annotated[int, Field(ge=1, le=100)] = 1
    depths: Annotated[list[Share], Field(min_length=1)] = field(
        default_factory=lambda: [0.1, 0.35, 0.6, 0.85]
    )
    seed: Annotated[int, Field(ge=0)] = 0
    limit: Count | None = None
    kind: AnswerKind | None = None
    pattern: str | None = None
    system: str | None = None
    texts: TextsConfig = field(default_factory=TextsConfig)
    recall: RecallConfig = field(default_factory=RecallConfig)

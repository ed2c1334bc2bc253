"""The ``context_strategy`` group: what happens to a prompt before the swarm sees it."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from runner.kv_mode import Share

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

StrategyName = Literal["full", "compress"]


@dataclass(frozen=True, config=_STRICT)
class CompressConfig:
    """``compress``: summaries of a document's chunks in place of the document.

    Chunks of ``chunk`` tokens are summarised in at most ``summary`` tokens each, ``together`` at once, ``about``
    the question or, for many questions, about the document itself; and the summaries again, until they take no
    more than ``target`` of the room. ``original`` of the room is for passages as they stand in the document, those
    that the question is closest to.
    """

    about: Literal["question", "document"] = "question"
    target: Annotated[float, Field(gt=0, le=1)] = 0.7
    original: Share = 0.2
    chunk: Annotated[int, Field(ge=64)] = 512
    summary: Annotated[int, Field(ge=16)] = 64
    together: Annotated[int, Field(ge=1, le=64)] = 8


@dataclass(frozen=True, config=_STRICT)
class StrategyConfig:
    """What happens to a prompt before the swarm sees it.

    ``window`` is how many tokens a prompt that was shortened may take together with its answer; None is the
    fixed window's length, else 8,192, and never more than the model was trained for. ``folder`` holds summaries
    that are used again; None is in the user's cache.
    """

    name: StrategyName = "full"
    window: Annotated[int, Field(ge=256)] | None = None
    folder: str | None = None
    compress: CompressConfig = field(default_factory=CompressConfig)

"""The ``kv_mode`` group: the types of the cells, which tokens stay in them, and what is asked to choose them."""

from __future__ import annotations

import math
from dataclasses import field, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from kvcache.policies import POLICIES, Needs, check_policy, make_policy
from kvcache.selection import Selector

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def _check_budget(value: Any) -> Any:
    """A number of cells, or a share of a prompt.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, float) and value > 1 and value.is_integer():
        value = int(value)
    cells = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not (cells or (isinstance(value, float) and 0 < value < 1)):
        raise ValueError(
            "give a whole number of cells, at least 1, or a share of the longest prompt between 0 and 1"
        )
    return value


Budget = Annotated[int | float, BeforeValidator(_check_budget)]


def _check_text(text: str) -> str:
    """A probe's text, which must have the question in it.

    Raises:
        ValueError: it has not.
    """
    if QUESTION not in text:
        raise ValueError(f"every text of a probe has {QUESTION} in it, where the prompt's question goes")
    return text


QUESTION = "{question}"
"""Stands for the prompt's question in a probe's text."""


@dataclass(frozen=True, config=_STRICT)
class ProbeConfig:
    """What a policy that probes asks the document after a chunk.

    A probe is the prompt with each of ``texts`` in place of its question, ``{question}`` being the question
    itself, up to where the model would answer, and the first words of an ``answer``. What any of them looks at
    counts: each head goes by its own attention and ``common`` times the mean of all heads'. Only every
    ``every``-th chunk is probed, from the first that the budget does not hold, and the last one; ``decay`` is
    what is left of earlier probes' attention.
    """

    texts: Annotated[list[Annotated[str, AfterValidator(_check_text)]], Field(min_length=1)] = field(
        default_factory=lambda: [QUESTION]
    )
    answer: str = ""
    common: Annotated[float, Field(ge=0)] = 4.0
    every: Count = 1
    decay: Share = 0.7


@dataclass(frozen=True, config=_STRICT)
class GuidedConfig:
    """Whose questions guide a document's reading.

    With ``share=question`` a document is read anew for each question, with ``group`` once for all of them, which
    then share what is kept. With ``diversify`` every worker reads it for itself, each with another first chunk,
    budget and probe.
    """

    share: Literal["question", "group"] = "question"
    diversify: bool = False


@dataclass(frozen=True, config=_STRICT)
class KvModeConfig:
    """What the cache holds: the types of its cells, and which of a prompt's tokens stay in it.

    ``codec=fp8`` rounds K and V to E4M3 with a scale a position, inside f16 cells: true numerics, no byte saved.

    ``policy`` scores tokens (:mod:`kvcache.policies`; ``options`` are its own numbers) and every ``chunk``
    tokens of prefill, every ``interval`` generated ones, those with the lowest scores leave until ``budget``
    cells are held: a number of cells, or a share of the longest prompt. The first ``sinks`` tokens and the
    ``recent`` share of the rest never leave; scores are averaged over ``pool`` neighbouring tokens. Each KV
    head, each layer, or the whole model chooses its tokens (``granularity``); ``layer_weights`` weigh the
    layers' scores where they choose together, in turn from the first layer to the last.

    With ``positions=compact`` what stays moves together after every eviction of prefill: no position passes the
    budget, a chunk and an answer. With ``auto`` it does so where the text would pass what the model was trained
    for, and keeps its distances until then.
    """

    name: str = "f16"
    k: KvType = "f16"
    v: KvType = "f16"
    swa_full: bool = False
    codec: Literal["none", "fp8"] = "none"
    policy: Annotated[str, AfterValidator(check_policy)] = "none"
    options: dict[str, float] = field(default_factory=dict)
    budget: Budget = 1024
    chunk: Annotated[int, Field(ge=16)] = 256
    interval: Count = 32
    granularity: Literal["head", "layer", "token"] = "head"
    sinks: Annotated[int, Field(ge=0)] = 4
    recent: Share = 0.25
    pool: Annotated[int, Field(ge=1)] = 1
    layer_weights: list[Annotated[float, Field(ge=0)]] = field(default_factory=list)
    positions: Literal["original", "compact", "auto"] = "original"
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    guided: GuidedConfig = field(default_factory=GuidedConfig)
    survivors: Annotated[int, Field(ge=0)] = 16
    show_kept: bool = False

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        policy = info.data.get("policy")  # missing where it is wrong itself
        if policy == "none" and options:
            raise ValueError("there is no policy to have options; choose one, as kv_mode=h2o")
        if policy in POLICIES:
            known = {f.name for f in fields(POLICIES[policy])}  # type: ignore[arg-type]  # they are dataclasses
            try:
                make_policy(policy, options)
            except ValueError as error:
                hint = "" if set(options) <= known else f"; kv_mode={policy} starts without it"
                raise ValueError(f"{error}{hint}") from None
        return options

    @property
    def evicts(self) -> bool:
        """Whether tokens leave the cache before their prompt is answered."""
        return self.policy != "none"

    @property
    def needs(self) -> Needs:
        """What the policy looks at; nothing where there is none."""
        return POLICIES[self.policy].needs if self.evicts else "nothing"

    @property
    def reads_values(self) -> bool:
        """Whether the policy looks at V."""
        return self.evicts and POLICIES[self.policy].reads_values

    @property
    def probes(self) -> bool:
        """Whether the policy wants to know what the question looks at."""
        return self.evicts and POLICIES[self.policy].probes

    @property
    def compacts(self) -> bool:
        """Whether positions are made contiguous after evictions, of every one or of those that need it."""
        return self.evicts and self.positions != "original"

    @property
    def selector(self) -> Selector:
        """What stays, by score."""
        return Selector(self.sinks, self.recent, self.pool)

    def budget_cells(self, prompt_tokens: int) -> int:
        """Cells that are kept of a prompt, where the longest has ``prompt_tokens``; 0 without eviction."""
        if not self.evicts:
            return 0
        return self.budget if isinstance(self.budget, int) else math.ceil(self.budget * prompt_tokens)

    def micro_batch(self, n_ubatch: int) -> int:
        """``n_ubatch``; with eviction no longer than the chunk after which that happens."""
        return min(n_ubatch, self.chunk) if self.evicts else n_ubatch

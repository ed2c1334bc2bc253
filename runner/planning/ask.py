"""From a job's config to a planning request: what its prompts and its swarm ask of the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from runner.config import JobConfig, ModelConfig
from runner.errors import ConfigError
from runner.planning.compatibility import check
from runner.planning.facts import Facts
from runner.planning.flash import Ratios, choose, shape_of
from runner.planning.hardware.budget import Hardware
from runner.planning.model.profile import ModelProfile
from runner.planning.prefill import Asked
from runner.planning.request import Demand, Request
from runner.planning.sequences import sequences_needed


@dataclass(frozen=True)
class Workload:
    """What is known of the prompts.

    Attributes:
        prompt_tokens: the longest prompt, or the longest first turn of a conversation.
        documents: whether prompts have documents.
        prompts: how many there are; None where that is not known yet.
        conversation: whether any of them has turns.
        chats: whether any of them has messages or a system text of its own.
        score_tokens: the longest text that is scored, which ``prompt_tokens`` counts too; 0 without any.
        asks: whether anything is asked; False where there are texts to score alone.
        asked: what the prompts that are not conversations are prefilled with, each with its own probes; empty
            where that is not known.
    """

    prompt_tokens: int
    documents: bool = False
    prompts: int | None = None
    conversation: bool = False
    chats: bool = False
    score_tokens: int = 0
    asks: bool = True
    asked: tuple[Asked, ...] = ()

    @property
    def probe_tokens(self) -> int:
        """The longest probe; 0 without any."""
        return max((tokens for item in self.asked for _, tokens in item.probes), default=0)

    @property
    def bare(self) -> bool:
        """Whether a prompt is known to have no document."""
        return any(not item.document_tokens for item in self.asked)


STRATEGY_WINDOW = 8192
"""What a shortened prompt and its answer take unless the config says otherwise: the window of many models."""


def strategy_window(config: JobConfig, native: int) -> int:
    """Tokens that a shortened prompt and its answer may take; ``native`` is what was trained for, or 0."""
    wanted = config.context_strategy.window or config.window.tokens or STRATEGY_WINDOW
    return min(limit for limit in (wanted, config.window.max, native) if limit)


def as_sent(config: JobConfig, profile: ModelProfile, workload: Workload) -> Workload:
    """``workload`` with its documents as short as the context strategy makes them, where it shortens any.

    What was prepared already is no longer than that.
    """
    if config.context_strategy.name == "full":
        return workload
    most = max(strategy_window(config, profile.n_ctx_train) - config.sampling.max_tokens, 1)
    asked = tuple(
        replace(item, document_tokens=min(item.document_tokens, max(most - item.question_tokens, 1)))
        if item.document_tokens
        else item
        for item in workload.asked
    )
    longest = max((item.document_tokens + item.question_tokens for item in asked), default=most)
    tokens = max(min(workload.prompt_tokens, longest), workload.score_tokens)
    return replace(workload, prompt_tokens=tokens, asked=asked)


SCORED_AT_ONCE = 128
"""Tokens of a text whose logits are there at the same time; at a vocabulary of 262k they are 128 MiB."""


def request_for(
    config: JobConfig,
    profile: ModelProfile,
    hardware: Hardware,
    workload: Workload,
    ratios: Ratios,
    file: Path | None = None,
) -> Request:
    """The request of a job, which is only made of options that go together; ``file`` is the model's, if here.

    Raises:
        ConfigError: options that exclude each other (:mod:`runner.planning.compatibility`).
    """
    facts = facts_of(config, profile, hardware, workload)
    check(facts)
    n_threads = config.n_threads or hardware.threads
    return Request(
        profile=profile,
        hardware=hardware,
        model_name=config.model.label,
        kv_mode=config.kv_mode,
        window=config.window,
        demand=Demand(
            prefix_tokens=workload.prompt_tokens,
            suffix_tokens=config.sampling.max_tokens if workload.asks else 1,
            workers=config.swarm_size.workers,
            in_flight=facts.in_flight,
            n_seq_max=facts.sequences,
            outputs=min(workload.score_tokens, SCORED_AT_ONCE, config.kv_mode.micro_batch(config.n_ubatch)),
            documents=_keeps_documents(workload),
            conversation=workload.conversation,
            processes=config.swarm_size.workers if config.workers.kind == "isolated" else 1,
            probe_tokens=facts.probe_tokens,
            asked=() if workload.conversation else workload.asked,
        ),
        flash_attn=not facts.without_flash
        and choose(
            config.flash_attn, config.kv_mode, shape_of(config, workload.prompt_tokens, n_threads), ratios
        ),
        n_ubatch=config.n_ubatch,
        n_threads=n_threads,
        spill=config.spill,
        weights=config.weights,
        speculative=config.speculative,
        mmproj_bytes=_projector_bytes(config.model),
        source=_source(config.model, file),
        quant=config.model.quant or "",
    )


def facts_of(config: JobConfig, profile: ModelProfile, hardware: Hardware, workload: Workload) -> Facts:
    """All that the rules of :mod:`runner.planning.compatibility` are asked about."""
    together = 1 if config.workers.kind == "isolated" or not workload.asks else config.swarm_size.workers
    in_flight = min(config.in_flight, workload.prompts or config.in_flight) if workload.asks else 1
    sliding = profile.sliding_window > 0 and not config.kv_mode.swa_full
    return Facts(
        config=config,
        profile=profile,
        hardware=hardware,
        chats=workload.chats,
        turns=workload.conversation,
        in_flight=in_flight,
        sequences=sequences_needed(
            together, in_flight, documents=_keeps_documents(workload), sliding=sliding
        ),
        prompt_tokens=workload.prompt_tokens,
        probe_tokens=workload.probe_tokens if config.kv_mode.probes else 0,
        bare=workload.bare,
        scores=workload.score_tokens > 0,
    )


def _keeps_documents(workload: Workload) -> bool:
    """Whether prefixes stay in the cache between prompts; a conversation's history is kept like a document."""
    return workload.documents or workload.conversation


def _projector_bytes(model: ModelConfig) -> int:
    """What a vision projector weighs: as declared, else its file's size.

    Raises:
        ConfigError: there is no such file.
    """
    if model.mmproj is None or model.mmproj_bytes:
        return model.mmproj_bytes
    try:
        return Path(model.mmproj).expanduser().stat().st_size
    except OSError as error:
        raise ConfigError(
            f"model.mmproj={model.mmproj}: {error.strerror}; mend the path, or set model.mmproj_bytes"
        ) from None


def _source(model: ModelConfig, file: Path | None) -> tuple[str, ...]:
    """How llama-server is told which model to serve."""
    projector = ("--mmproj", model.mmproj) if model.mmproj is not None else ()
    path = file or model.path
    if path is not None:
        return ("-m", str(path), *projector)
    if model.source is not None and model.source.repo is not None and model.source.file is not None:
        return ("-hf", model.source.repo, "-hff", model.source.file, *projector)
    return ("-m", f"{model.name}.gguf", *projector)

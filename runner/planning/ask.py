"""From a job's config to a planning request: what its prompts and its swarm ask of the engine."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config import JobConfig, ModelConfig
from runner.errors import ConfigError
from runner.planning.flash import Ratios, choose, shape_of
from runner.planning.hardware import Hardware
from runner.planning.profile import ModelProfile
from runner.planning.request import Demand, Request
from runner.planning.sequences import sequences_needed

MAX_SEQUENCES = 256
"""llama.cpp numbers no more in one context (``LLAMA_MAX_SEQ``)."""


@dataclass(frozen=True)
class Workload:
    """What is known of the prompts.

    Attributes:
        prompt_tokens: the longest prompt, or the longest first turn of a conversation.
        documents: whether prompts have documents.
        prompts: how many there are; None where that is not known yet.
        conversation: whether any of them has turns.
    """

    prompt_tokens: int
    documents: bool = False
    prompts: int | None = None
    conversation: bool = False


def request_for(
    config: JobConfig, profile: ModelProfile, hardware: Hardware, workload: Workload, ratios: Ratios
) -> Request:
    """The request of a job.

    Raises:
        ConfigError: more sequences than the engine or a micro-batch holds, or a quantised V with
            ``flash_attn=off``.
    """
    isolated = config.workers.kind == "isolated"
    workers = config.swarm_size.workers
    together = 1 if isolated else workers
    in_flight = min(config.in_flight, workload.prompts or config.in_flight)
    # A conversation's history is kept like a document.
    documents = workload.documents or workload.conversation
    sliding = profile.sliding_window > 0 and not config.kv_mode.swa_full
    n_seq_max = sequences_needed(together, in_flight, documents=documents, sliding=sliding)
    _check_sequences(config, n_seq_max)
    n_threads = config.n_threads or hardware.threads
    return Request(
        profile=profile,
        hardware=hardware,
        model_name=config.model.label,
        kv_mode=config.kv_mode,
        window=config.window,
        demand=Demand(
            prefix_tokens=workload.prompt_tokens,
            suffix_tokens=config.sampling.max_tokens,
            workers=workers,
            in_flight=in_flight,
            n_seq_max=n_seq_max,
            documents=documents,
            conversation=workload.conversation,
            processes=workers if isolated else 1,
        ),
        flash_attn=choose(
            config.flash_attn, config.kv_mode, shape_of(config, workload.prompt_tokens, n_threads), ratios
        ),
        n_ubatch=config.n_ubatch,
        n_threads=n_threads,
        spill=config.spill,
        weights=config.weights,
        speculative=config.speculative,
        mmproj_bytes=config.model.mmproj_bytes,
        source=_source(config.model),
        quant=config.model.quant or "",
    )


def _source(model: ModelConfig) -> tuple[str, ...]:
    """How llama-server is told which model to serve."""
    projector = ("--mmproj", model.mmproj) if model.mmproj is not None else ()
    if model.path is not None:
        return ("-m", model.path, *projector)
    if model.source is not None and model.source.repo is not None and model.source.file is not None:
        return ("-hf", model.source.repo, "-hff", model.source.file, *projector)
    return ("-m", f"{model.name}.gguf", *projector)


def _check_sequences(config: JobConfig, n_seq_max: int) -> None:
    """A decode batch holds a token of every sequence, and llama.cpp numbers no more than 256 of them."""
    asked = f"swarm_size={config.swarm_size.workers} with in_flight={config.in_flight}"
    if n_seq_max > MAX_SEQUENCES:
        raise ConfigError(
            f"{asked} needs {n_seq_max} sequences, the engine has {MAX_SEQUENCES}; lower either"
        )
    if n_seq_max > config.n_ubatch:
        raise ConfigError(
            f"{asked} decodes {n_seq_max} tokens a step, n_ubatch={config.n_ubatch} holds fewer; "
            f"set n_ubatch={n_seq_max}"
        )

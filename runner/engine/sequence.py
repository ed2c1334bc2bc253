"""What the scheduler moves around: groups of workers, and one worker's answer as it grows."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from runner.config import SamplingConfig
from runner.engine.context import Logits
from runner.engine.reading import Reading
from runner.engine.sampler import Ids, Sampler
from runner.engine.weights import Weights

FinishReason = Literal["stop", "length", "interrupted", "error"]
Status = Literal["ok", "truncated", "interrupted", "failed"]
_STATUS: dict[FinishReason, Status] = {
    "stop": "ok", "length": "truncated", "interrupted": "interrupted", "error": "failed",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One prompt and the seeds of its workers: the unit that repeats exactly.

    ``document`` and ``question`` are token ids; prompts whose ``document`` and ``reading`` are equal share its
    prefill. The workers' answers go on where ``question`` ends; the first of them is number ``first_worker``.
    """

    prompt_id: str
    document: tuple[int, ...]
    question: tuple[int, ...]
    seeds: tuple[int, ...]
    reading: Reading = field(default_factory=Reading)
    first_worker: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt in tokens."""
        return len(self.document) + len(self.question)


@dataclass(frozen=True)
class Generation:
    """One worker's answer.

    ``prefill_tokens`` is what this worker made the engine prefill: the group's for worker 0, else 0.
    ``mean_logprob`` is over all sampled tokens, the end token included, of the model's own distribution at
    temperature 1, before any sampler. ``seconds`` runs from the group's admission to this worker's end.
    """

    prompt_id: str
    worker: int
    text: str
    seed: int
    prompt_tokens: int
    prefill_tokens: int
    generated_tokens: int
    mean_logprob: float | None
    finish_reason: FinishReason
    status: Status
    seconds: float


@dataclass
class Rows:
    """The rows of the next decode, one entry a token in each list."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)

    def add(self, tokens: Sequence[int], first_position: int, sequence: int, *, output: bool = False) -> None:
        """Append ``tokens`` at consecutive positions of one sequence; ``output`` wants the last one's logits."""
        self.tokens.extend(tokens)
        self.positions.extend(range(first_position, first_position + len(tokens)))
        self.sequences.extend([sequence] * len(tokens))
        self.outputs.extend([False] * (len(tokens) - 1) + [output])


class Answer:
    """A worker's state while it decodes: its sampler, its tokens, and the text they spell so far."""

    def __init__(
        self, weights: Weights, config: SamplingConfig, worker: int, seed: int, sequence: int
    ) -> None:
        self.worker, self.seed, self.sequence = worker, seed, sequence
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.text = ""
        self._weights, self._config = weights, config
        self._sampler = Sampler(weights, config, seed)
        # Incremental, so that a character whose bytes are spread over tokens comes out whole.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._logprob_sum = 0.0
        self._longest_stop = max((len(stop) for stop in config.stop), default=0)

    def advance(self, row: Logits, candidates: Ids, log_normalizer: float) -> None:
        """Sample the next token from ``row`` [n_vocab] and find out whether the answer is complete."""
        token = self._sampler.sample(row, candidates)
        self.tokens.append(token)
        self._logprob_sum += float(row[token]) - float(log_normalizer)
        if not self._config.ignore_eos and self._weights.is_end(token):
            self._finish("stop")
            return
        new = self._decoder.decode(self._weights.piece(token))
        self.text += new
        if self._longest_stop and (at := self._stop_at(len(new))) is not None:
            self._finish("stop")
            self.text = self.text[:at]
        elif len(self.tokens) >= self._config.max_tokens:
            self._finish("length")

    def cut(self, reason: FinishReason) -> None:
        """End an answer that did not end by itself."""
        if self.finish_reason is None:
            self._finish(reason)

    def result(self, group: Group, prefill_tokens: int, started: float) -> Generation:
        """The finished answer; ``started`` is the group's admission on the monotonic clock."""
        assert self.finish_reason is not None
        return Generation(
            prompt_id=group.prompt_id,
            worker=self.worker,
            text=self.text,
            seed=self.seed,
            prompt_tokens=group.prompt_tokens,
            prefill_tokens=prefill_tokens if self.worker == group.first_worker else 0,
            generated_tokens=len(self.tokens),
            mean_logprob=self._logprob_sum / len(self.tokens) if self.tokens else None,
            finish_reason=self.finish_reason,
            status=_STATUS[self.finish_reason],
            seconds=self._ended - started,
        )

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.text += self._decoder.decode(b"", final=True)
        self._ended = time.monotonic()
        self._sampler.close()

    def _stop_at(self, fresh: int) -> int | None:
        """Where the earliest stop string begins that the last ``fresh`` characters completed."""
        start = max(0, len(self.text) - fresh - self._longest_stop)
        found = [at for stop in self._config.stop if (at := self.text.find(stop, start)) >= 0]
        return min(found, default=None)

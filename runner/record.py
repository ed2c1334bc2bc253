"""A job's own row: written when its model is known, again when it ends, however it ends."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from runner import __version__
from runner.config import JobConfig
from runner.engine import bindings
from runner.errors import Interrupted, KvswarmError, PlanRefusedError
from runner.planning.hardware.cpu import cpu_name
from runner.progress import Progress
from runner.tables import TableWriter
from runner.trace import Tracer
from runner.voting import Grade


@dataclass
class Score:
    """Running totals of a job's votes that have a known answer; worker shares are in [0, 1]."""

    known: int = 0
    right: int = 0
    worker_share: float = 0.0

    def add(self, grade: Grade) -> None:
        """Count one vote; one without a known answer does not count."""
        if grade.correct is not None and grade.mean_worker_correct is not None:
            self.known += 1
            self.right += grade.correct
            self.worker_share += grade.mean_worker_correct

    @property
    def accuracy(self) -> float | None:
        """Share of the votes that are right."""
        return self.right / self.known if self.known else None

    @property
    def mean_worker_accuracy(self) -> float | None:
        """Mean share of the workers that are right alone."""
        return self.worker_share / self.known if self.known else None


class JobRecord:
    """A context manager around a job; what escapes the block becomes the row's status and reason."""

    def __init__(self, tables: TableWriter, config: JobConfig, job_id: str, overrides: Sequence[str]) -> None:
        self.job_id = job_id
        self.status, self.reason = "running", ""
        self.score = Score()
        self.began = time.monotonic()
        self._facts: dict[str, Any] = {}
        self._tables, self._identified = tables, False
        self._traces: list[dict[str, Any]] = []
        self._fixed = {
            "name": config.name,
            "config": _json(config),
            "overrides": " ".join(overrides),
            "model": config.model.label,
            "engine_version": bindings.version(),
            "runner_version": __version__,
            "host": platform.node(),
            "cpu": cpu_name(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def identify(self, job_id: str, config: JobConfig, model_digest: str, n_threads: int) -> None:
        """The model is here and the plan is made, so the job's identity is known: its row can stand.

        ``config`` is what will run: with the quant that was chosen and the remedies that were taken.
        """
        self.job_id, self._identified = job_id, True
        self._facts |= {"config": _json(config), "model_digest": model_digest, "n_threads": n_threads}
        self._write_traces()
        self._write()

    def trace(self, row: dict[str, Any]) -> None:
        """A row of ``traces``; written as soon as the job has its id."""
        self._traces.append(row)
        if self._identified:
            self._write_traces()

    @contextmanager
    def preparing(self, progress: Progress, tracer: Tracer) -> Iterator[None]:
        """Trace a block in which prompts are prepared; its figures are in the row however the block ends."""
        try:
            with tracer:
                yield
        finally:
            self._facts |= {
                "prepare_s": tracer.seconds,
                "prepare_prefill_tokens": progress.prefill_tokens,
                "prepare_generated_tokens": progress.generated_tokens,
            } | self._peaks(tracer)

    @contextmanager
    def measuring(self, progress: Progress, tracer: Tracer) -> Iterator[None]:
        """Trace a block in which prompts are run; its figures are in the row however the block ends."""
        try:
            with tracer:
                yield
        finally:
            self._facts |= {
                "load_s": progress.load_s,
                "prefill_s": progress.prefill_s,
                "probe_s": progress.probe_s,
                "decode_s": progress.decode_s,
                "prefill_tokens": progress.prefill_tokens,
                "probe_tokens": progress.probe_tokens,
                "generated_tokens": progress.generated_tokens,
            } | self._peaks(tracer)

    def __enter__(self) -> JobRecord:
        self._forget_hook = bindings.on_abort(self._aborted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget_hook()
        self.status, self.reason = _outcome(error)
        self._write_traces()
        self._write()

    @property
    def seconds(self) -> float:
        """Since the job started."""
        return time.monotonic() - self.began

    def _aborted(self, message: str) -> None:
        self.status, self.reason = "failed", f"llama.cpp stopped the process: {message}"
        self._write()

    def _peaks(self, tracer: Tracer) -> dict[str, int | None]:
        """The highest of what was traced so far."""
        peaks = {"peak_rss_bytes": tracer.peak_rss_bytes, "peak_vram_bytes": tracer.peak_vram_bytes}
        return {
            key: max((n for n in (value, self._facts.get(key)) if n is not None), default=None)
            for key, value in peaks.items()
        }

    def _write_traces(self) -> None:
        rows, self._traces = self._traces, []
        self._tables.extend("traces", [{"job_id": self.job_id} | row for row in rows])

    def _write(self) -> None:
        self._tables.append(
            "jobs",
            job_id=self.job_id,
            status=self.status,
            reason=self.reason,
            seconds=self.seconds,
            accuracy=self.score.accuracy,
            mean_worker_accuracy=self.score.mean_worker_accuracy,
            **(self._fixed | self._facts),
        )


def _json(config: JobConfig) -> str:
    return json.dumps(asdict(config), sort_keys=True)


def record_unusable(folder: Path, config: str, overrides: Sequence[str], reason: str) -> None:
    """A row for a job whose config never became one; its id is a digest of what was composed."""
    with TableWriter(folder) as tables:
        tables.append(
            "jobs",
            job_id=hashlib.sha256(config.encode()).hexdigest()[:16],
            status="failed",
            reason=reason,
            overrides=" ".join(overrides),
            runner_version=__version__,
            host=platform.node(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _outcome(error: BaseException | None) -> tuple[str, str]:
    if error is None:
        return "done", ""
    if isinstance(error, PlanRefusedError):
        return "refused", str(error)
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return "interrupted", "Ctrl-C"
    if isinstance(error, KvswarmError):
        return "failed", str(error)
    return "failed", f"{type(error).__name__}: {error}"

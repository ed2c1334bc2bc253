"""One thread that samples memory and throughput while a job runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import psutil
import pynvml

from runner.planning.plan import Plan
from runner.progress import Progress

_FAMILY_EVERY_S = 1.0
"""Walking the process tree costs milliseconds; children do not come and go at the sampling rate."""


class Tracer:
    """A context manager that hands rows of ``traces`` on at ``hz`` and remembers the peaks, in bytes."""

    def __init__(
        self, append: Callable[[dict[str, Any]], None], progress: Progress, *, hz: float, began: float
    ) -> None:
        """Sample what ``progress`` says; VRAM, of every NVIDIA card, once a plan puts layers on one.

        Args:
            append: takes a row.
            progress: what is sampled.
            hz: samples a second.
            began: when the job did, by ``time.monotonic``.
        """
        self.peak_rss_bytes = 0
        self.peak_vram_bytes: int | None = None
        self._process = f"runner-{os.getpid()}"
        self._append, self._progress = append, progress
        self._period = 1.0 / hz
        self._bytes_per_cell, self._vram = 0.0, False
        self._family = [psutil.Process()]
        self._family_at = -_FAMILY_EVERY_S
        self._job_began, self._began = began, time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracer", daemon=True)
        self.error: Exception | None = None

    def follow(self, plan: Plan) -> None:
        """From here on the context is as ``plan`` has it."""
        self._bytes_per_cell, self._vram = plan.kv_bytes / plan.cells, plan.n_gpu_layers > 0

    def __enter__(self) -> Tracer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self.error is not None and error is None:
            raise self.error

    @property
    def seconds(self) -> float:
        """Since the tracer was made."""
        return time.monotonic() - self._began

    def _run(self) -> None:
        try:
            while True:
                self._sample()
                if self._done.wait(self._period):
                    self._sample()
                    return
        except Exception as error:  # raised again by __exit__, in the thread that can report it
            self.error = error

    def _sample(self) -> None:
        now, p = time.monotonic(), self._progress
        rss = self._rss(now)
        vram = _vram_used_bytes() if self._vram else None
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        if vram is not None:
            self.peak_vram_bytes = max(self.peak_vram_bytes or 0, vram)
        self._append(
            {
                "process": self._process,
                "t_s": now - self._job_began,
                "phase": p.phase,
                "rss_bytes": rss,
                "vram_bytes": vram,
                "kv_cells_used": p.cells_used,
                "kv_bytes": round(p.cells_used * self._bytes_per_cell),
                "active_sequences": p.active_sequences,
                "tok_s": p.tok_s,
            }
        )

    def _rss(self, now: float) -> int:
        """Resident bytes of this process and its children."""
        if now - self._family_at >= _FAMILY_EVERY_S:
            self._family = [self._family[0], *self._family[0].children(recursive=True)]
            self._family_at = now
        total = 0
        for process in self._family:
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total


def _vram_used_bytes() -> int | None:
    """Memory in use on all NVIDIA cards together; None where there is no driver."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except pynvml.NVMLError:
        return None

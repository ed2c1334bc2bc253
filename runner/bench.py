"""``python -m runner.bench``: what the runner costs over its engine, and what sharing a prefix saves, as ratios.

Everything that is compared runs in one process, alternating, so that a noisy machine is noisy for both sides.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from kvcache import budget
from runner import cli, models
from runner.config import JobConfig
from runner.context import Full
from runner.engine.chat import PromptFormat
from runner.engine.context import Batch, Context, ContextParams, Logits, context_params
from runner.engine.modes import open_context
from runner.engine.scheduler import Scheduler
from runner.engine.tap_cost import tap_ratio
from runner.engine.weights import Weights
from runner.errors import ConfigError
from runner.ledger import Ledger
from runner.planner import measured_shapes
from runner.planning.flash import remember, shape_of
from runner.planning.model.gguf_header import from_gguf
from runner.planning.plan import Plan
from runner.planning.remedies import accept
from runner.progress import Progress
from runner.prompts import load_prompts
from runner.record import JobRecord
from runner.resolve import choose_quant, resolve_job, workload_of
from runner.session import Session
from runner.tables import TableWriter
from runner.trace import Tracer
from runner.workers.shared import run_swarm

_JOB_ID = "bench"


@dataclass(frozen=True)
class Bench:
    """What ``bench.json`` holds; each ratio is the median of the rounds' own ratios.

    Attributes:
        shared_vs_isolated: the same workers one after the other, a context each, over all on one prefix.
        decode_ratio: decode tok/s of the swarm, its sampling, text, traces and tables included, over those of
            a bare ``llama_decode`` loop on the same batches.
        fa_total_ratio: seconds with flash attention on over off; below 1, on is faster. None where the KV
            types allow only one of them.
        fa_prefill_ratio: the same, prefill alone.
        fa_decode_ratio: the same, decode alone.
        tap_ratio_1: seconds of decode of one worker with attention looked at, as an eviction policy does, over the
            same graph without.
        tap_ratio_8: the same, eight workers together.
    """

    shared_vs_isolated: float
    decode_ratio: float
    fa_total_ratio: float | None = None
    fa_prefill_ratio: float | None = None
    fa_decode_ratio: float | None = None
    tap_ratio_1: float | None = None
    tap_ratio_8: float | None = None


@dataclass(frozen=True)
class _Seconds:
    """What one run took; ``total`` includes creating the context."""

    total: float
    prefill: float
    decode: float


class _Twin(Context):
    """A context that has each of its batches run bare, just before, on a second one like it.

    Side by side a slow moment of the machine is slow for both: run one after the other, two decodes of a few
    seconds differ by more than what is to be measured.
    """

    def __init__(self, weights: Weights, params: ContextParams) -> None:
        super().__init__(weights, params)
        self._bare = Context(weights, params)
        self.bare_decode_s = 0.0
        self.bare_s = 0.0

    def close(self) -> None:
        self._bare.close()
        super().close()

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: Sequence[bool],
    ) -> Logits:
        arrived = time.monotonic()
        batch = Batch(len(tokens))
        batch.fill(tokens, positions, sequences, outputs)
        began = time.monotonic()
        self._bare.run(batch)
        ended = time.monotonic()
        if all(outputs):  # a prefill chunk has one at most, on its last token
            self.bare_decode_s += ended - began
        self.bare_s += ended - arrived
        return super().decode(tokens, positions, sequences, outputs)

    def clear(self) -> None:
        self._bare.clear()
        super().clear()

    def fork(self, source: int, target: int) -> None:
        self._bare.fork(source, target)
        super().fork(source, target)

    def drop(self, sequence: int) -> None:
        self._bare.drop(sequence)
        super().drop(sequence)

    def load_partial(self, sequence: int, state: bytes) -> None:
        self._bare.load_partial(sequence, state)
        super().load_partial(sequence, state)


@dataclass(frozen=True)
class _Posture:
    """One way to run the job."""

    config: JobConfig
    plan: Plan


class _Shape:
    """The job's prompts on a loaded model, to be run in several postures."""

    def __init__(self, config: JobConfig, folder: Path, session: Session) -> None:
        config = choose_quant(config)
        self.config, self._folder = config, folder
        self._path = models.locate(config.model) or models.fetch(config.model, allow_large=config.fetch)
        self._profile = from_gguf(self._path)
        form = PromptFormat(session.vocabulary(self._path))
        self._prepared = [Full().prepare(prompt, form) for prompt in load_prompts(config.prompts, form.count)]
        self.planned = self.posture(config)
        self._weights = session.weights(self._path, self.planned.plan)

    def posture(self, config: JobConfig) -> _Posture:
        resolved = resolve_job(config, self._path, self._profile, workload_of(self._prepared))
        return _Posture(resolved.config, accept(resolved.plan, resolved.steps))

    def run(self, posture: _Posture) -> _Seconds:
        """The swarm in a context of its own, with nothing around it."""
        began = time.monotonic()
        context = open_context(self._weights, posture.plan)
        try:
            progress = Progress()
            self._answer(context, posture.config, progress)
        finally:
            context.close()
        return _Seconds(time.monotonic() - began, progress.prefill_s, progress.decode_s)

    def job_and_bare(self) -> tuple[float, float]:
        """Seconds of decode as a job does it, traces and tables included, and of the same batches, bare."""
        config, plan = self.planned.config, self.planned.plan
        twin = _Twin(self._weights, context_params(plan))
        try:
            with TableWriter(self._folder) as tables, JobRecord(tables, config, _JOB_ID, ()) as record:
                progress = Progress()
                ledger = Ledger(tables, record, config)

                def append(row: dict[str, Any], tables: TableWriter = tables) -> None:
                    tables.append("traces", job_id=_JOB_ID, **row)

                tracer = Tracer(append, progress, hz=config.trace.hz, began=record.began)
                tracer.follow(plan)
                with tracer:
                    began = time.monotonic()
                    self._answer(twin, config, progress, ledger)
                    everything = time.monotonic() - began
        finally:
            twin.close()
        # The scheduler's own clock of the prefill holds the twin's prefill too.
        prefill = progress.prefill_s - (twin.bare_s - twin.bare_decode_s)
        return everything - twin.bare_s - prefill, twin.bare_decode_s

    def tap_ratio(self, workers: int) -> float:
        """What looking at attention costs a decode of so many workers."""
        return tap_ratio(self._weights, self._profile, context_params(self.planned.plan), workers)

    def _answer(
        self, context: Context, config: JobConfig, progress: Progress, ledger: Ledger | None = None
    ) -> None:
        scheduler = Scheduler(self._weights, context, config.sampling, progress=progress)
        workers = config.swarm_size.workers
        for item, generations in run_swarm(scheduler, self._prepared, workers=workers, seed=config.seed):
            if ledger is not None:
                ledger.group(item, generations)


def measure(config: JobConfig, folder: Path, rounds: int, console: Console) -> Bench:
    """Run every posture ``rounds`` times, alternating, and compare within each round.

    The flash-attention ratio is remembered for ``flash_attn=auto``.

    Raises:
        KvswarmError: the job cannot be planned or run.
    """
    session = Session()
    try:
        shape = _Shape(config, folder, session)
        alone = shape.posture(replace(config, swarm_size=replace(config.swarm_size, workers=1)))
        flash = {}
        if not budget.is_quantised(config.kv_mode.v):
            flash = {
                on: shape.posture(replace(config, flash_attn="on" if on else "off")) for on in (True, False)
            }
        measured: dict[str, list[float]] = {f.name: [] for f in fields(Bench)}
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}", highlight=False)
            job, bare = shape.job_and_bare()
            measured["decode_ratio"].append(bare / job)
            shared = shape.run(shape.planned)
            isolated = sum(shape.run(alone).total for _ in range(config.swarm_size.workers))
            measured["shared_vs_isolated"].append(isolated / shared.total)
            measured["tap_ratio_1"].append(shape.tap_ratio(1))
            measured["tap_ratio_8"].append(shape.tap_ratio(8))
            if flash:
                on, off = shape.run(flash[True]), shape.run(flash[False])
                measured["fa_total_ratio"].append((on.prefill + on.decode) / (off.prefill + off.decode))
                measured["fa_prefill_ratio"].append(on.prefill / off.prefill)
                measured["fa_decode_ratio"].append(on.decode / off.decode)
    finally:
        session.close()
    ratios = Bench(**{name: statistics.median(values) for name, values in measured.items() if values})
    if ratios.fa_total_ratio is not None:
        plan = shape.planned.plan
        shape_measured = shape_of(config, plan.prefix_tokens, plan.n_threads)
        remember(measured_shapes(), shape_measured, ratios.fa_total_ratio)
    return ratios


def _task(config: DictConfig) -> None:
    rounds = config.rounds
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise ConfigError(f"rounds={rounds}: must be a whole number of at least 1")
    job = cli.to_job(config, without=("rounds",))
    folder, console = Path(HydraConfig.get().runtime.output_dir), Console()
    ratios = measure(job, folder, rounds, console)
    (folder / "bench.json").write_text(json.dumps(asdict(ratios), indent=2) + "\n")
    table = Table()
    table.add_column("ratio")
    table.add_column("value", justify="right")
    for name, value in asdict(ratios).items():
        table.add_row(name, "-" if value is None else f"{value:.3f}")
    console.print(table)
    console.print(f"written: {folder / 'bench.json'}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(cli.run_hydra(_task, config_name="bench"))

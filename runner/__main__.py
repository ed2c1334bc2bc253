"""``python -m runner [overrides]``: compose, plan, run, vote, write; ``-m`` sweeps."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from runner import cli
from runner.errors import ConfigError, Interrupted, KvswarmError, PlanRefusedError

if TYPE_CHECKING:
    from runner.config import JobConfig
    from runner.job import JobResult
    from runner.session import Session

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Outcome:
    """A job of this command: its result, the error it ended with, or the overrides of the job that it repeats."""

    overrides: str
    folder: Path
    result: JobResult | None = None
    error: Exception | None = None
    same_as: str | None = None

    def line(self) -> str:
        """The one line that a sweep ends with."""
        name = self.overrides or "(defaults)"
        if self.same_as is not None:
            return f"{'skipped':8} {name}: it keeps every token, so that it is the same job as {self.same_as}"
        if self.result is None:
            word = "refused" if isinstance(self.error, PlanRefusedError) else "failed"
            return f"{word:8} {name}: {self.error}"
        vote, worker = self.result.accuracy, self.result.mean_worker_accuracy
        right = (
            "" if vote is None or worker is None else f"; right: vote {vote:.2f}, mean worker {worker:.2f}"
        )
        prompts, texts = self.result.prompts, self.result.texts
        what = [f"{prompts} prompts"] * bool(prompts or not texts) + [f"{texts} texts"] * bool(texts)
        return f"{'done':8} {name}: {' and '.join(what)} in {self.result.seconds:.1f} s{right}"


class _Command:
    """The jobs of one command line, one after the other, with the model kept between them."""

    def __init__(self) -> None:
        self.console = Console()
        self.outcomes: list[_Outcome] = []
        self.sweep = False
        self._done: dict[str, str] = {}
        self._session: Session | None = None

    def __call__(self, config: DictConfig) -> None:
        from runner.job import run_job
        from runner.record import record_unusable
        from runner.report.terminal import View
        from runner.session import Session

        self._session = self._session or Session()
        hydra_config = HydraConfig.get()
        self.sweep = hydra_config.mode == RunMode.MULTIRUN
        overrides = list(hydra_config.overrides.task)
        name, folder = " ".join(overrides), Path(hydra_config.runtime.output_dir)
        view = View(self.console)
        try:
            try:
                job = cli.to_job(config)
            except ConfigError as error:
                record_unusable(folder, OmegaConf.to_yaml(config), overrides, str(error))
                raise
            made_of = _essence(job)
            if made_of in self._done:
                outcome = _Outcome(name, folder, same_as=self._done[made_of])
                self.console.print(outcome.line(), highlight=False, markup=False, soft_wrap=True)
                self.outcomes.append(outcome)
                return
            result = run_job(job, folder, self._session, view, overrides=overrides)
            self.outcomes.append(_Outcome(name, folder, result=result))
            self._done[made_of] = name
            if result.interrupted:
                raise KeyboardInterrupt
        except Interrupted:
            # Not an Exception: Hydra's launcher would go on to the next job.
            raise KeyboardInterrupt from None
        except KvswarmError as error:
            if not self.sweep:
                raise
            cli.complain(str(error), error.exit_status)
            self.outcomes.append(_Outcome(name, folder, error=error))
        except Exception as error:
            if not self.sweep:
                raise
            _log.exception("this job failed in a way that is not yours to mend; please report it")
            self.outcomes.append(_Outcome(name, folder, error=error))
        finally:
            view.votes()
            view.scores()

    def summary(self) -> None:
        """One line a job, what each mode costs and answers, and where the tables are."""
        for outcome in self.outcomes:
            self.console.print(outcome.line(), highlight=False, markup=False, soft_wrap=True)
        self._compare()
        if self.outcomes:
            folder = self.outcomes[0].folder.parent if self.sweep else self.outcomes[0].folder / "tables"
            self.console.print(f"tables: {cli.near(folder)}", highlight=False, markup=False, soft_wrap=True)

    def _compare(self) -> None:
        """The leaderboard, where this sweep has more than one row of it."""
        results = [outcome.result for outcome in self.outcomes if outcome.result is not None]
        if not self.sweep or len(results) < 2:
            return
        from runner.report import answers, quality
        from runner.tables import load

        tables = load(self.outcomes[0].folder.parent)
        board = quality.leaderboard(tables, {result.job_id for result in results})
        if len(board) > 1:
            for rows, table in (("texts", quality.shown), ("prompts", answers.answered)):
                if board[rows].any():
                    self.console.print(table(board))

    def status(self) -> int:
        """Non-zero where a job failed, or where none of several was done; a refused cell is a result."""
        if any(o.error is not None and not isinstance(o.error, PlanRefusedError) for o in self.outcomes):
            return 1
        refused = bool(self.outcomes) and all(outcome.result is None for outcome in self.outcomes)
        return ConfigError.exit_status if refused else 0

    def close(self) -> None:
        """Free the model."""
        if self._session is not None:
            self._session.close()


def _essence(config: JobConfig) -> str:
    """``config`` without the keys that its mode ignores: equal for two jobs that are one."""
    values = asdict(config)
    if not config.kv_mode.evicts:
        mode = values["kv_mode"]
        values["kv_mode"] = {key: mode[key] for key in ("name", "k", "v", "swa_full", "codec")}
    return json.dumps(values, sort_keys=True)


def main() -> int:
    """Run the command line; the exit status."""
    command = _Command()
    try:
        status = cli.run_hydra(command)
        command.summary()
        return status or command.status()
    finally:
        command.close()


if __name__ == "__main__":
    sys.exit(main())

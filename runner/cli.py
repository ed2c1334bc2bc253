"""What every command line shares: plain integers for groups, errors in one line, and what a typo could be."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config import CUSTOM_MODEL, JobConfig, defaults
from runner.errors import ConfigError, KvswarmError
from runner.parsing import conf_dir, parse

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_SLUG = re.compile(r"[^A-Za-z0-9_.,=+-]+")
_LONGEST_FOLDER = 120
_PATHS = {
    "model.path",
    "prompts.path",
    "prompts.document",
    "context_strategy.folder",
    "hydra.run.dir",
    "hydra.sweep.dir",
}


def rewrite(arguments: Sequence[str]) -> list[str]:
    """Arguments as a person types them, turned into what Hydra takes.

    ``swarm_size=5`` becomes ``swarm_size.workers=5``: Hydra refuses an integer as a group's option. An
    ``experiment=NAME`` is optional, so Hydra wants it as ``+experiment=NAME``. ``model.path=FILE`` alone also
    chooses ``model=custom``, so that a file is not taken for the default model. A ``~`` in a path, which
    shells leave alone behind a dotted key and Hydra's grammar refuses, is the home folder.

    Raises:
        ConfigError: ``swarm_size`` mixes integers and named options; ``~name`` is nobody's home.
    """
    keys = {argument.partition("=")[0] for argument in arguments}
    own_file = "model.path" in keys and "model" not in keys
    taken = []
    for argument in arguments:
        taken.append(_rewrite(argument))
        if own_file and argument.startswith("model.path="):
            taken.append(f"model={CUSTOM_MODEL}")
            own_file = False
    return taken


def _rewrite(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if key == "experiment" and equals:
        return f"+{argument}"
    if key in _PATHS and "~" in value:
        try:
            return f"{key}={','.join(str(Path(part).expanduser()) for part in value.split(','))}"
        except RuntimeError:
            raise ConfigError(f"{argument}: there is no such home folder; write the path in full") from None
    if key != "swarm_size" or not equals:
        return argument
    if not value:
        raise ConfigError("swarm_size= has no value; write a number or an option, for example swarm_size=5")
    values = [part.strip() for part in value.split(",")]
    numbers = [bool(_NUMBER.fullmatch(part)) for part in values]
    if all(numbers) or value.startswith("range("):
        return f"swarm_size.workers={value}"
    if any(numbers):
        raise ConfigError(
            f"swarm_size={value} mixes numbers and named options; write one kind, for example 1,3,5"
        )
    return argument


def run_hydra(task: Callable[[DictConfig], None], config_name: str = "config") -> int:
    """Compose from the command line and run ``task`` for it; the exit status.

    Every error that a person can make ends as one line on stderr.
    """
    raised: list[Exception] = []

    def guarded(config: DictConfig) -> None:
        # Hydra announces an exception that it sees leaving a job with a line of its own.
        try:
            task(config)
        except Exception as error:
            raised.append(error)

    def composed() -> None:
        hydra.main(version_base="1.3", config_path=str(conf_dir().resolve()), config_name=config_name)(
            guarded
        )()

    return run(composed) or (_end(raised[0]) if raised else 0)


def run(command: Callable[[], None]) -> int:
    """Run ``command`` on arguments as a person types them; the exit status.

    Every error that a person can make ends as one line on stderr.
    """
    # Hydra would print a traceback's tail of its own; with this it lets the exception through to us.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        sys.argv[1:] = rewrite(sys.argv[1:])
        ConfigStore.instance().store(name="schema", node=defaults())
        OmegaConf.register_new_resolver("folder_name", folder_name, replace=True)
        command()
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        return complain(explain(error), ConfigError.exit_status)
    except KvswarmError as error:
        return complain(str(error), error.exit_status)
    except KeyboardInterrupt:
        return complain("interrupted; what was finished is in the tables", 130)
    except OSError as error:
        if error.filename is None:
            raise
        return complain(
            f"{error.filename}: {error.strerror}; choose another output folder with hydra.run.dir", 2
        )
    return 0


def _end(error: Exception) -> int:
    """The exit status of a job's error; one that is not a person's to mend keeps its traceback."""
    if isinstance(error, KvswarmError):
        return complain(str(error), error.exit_status)
    raise error


def to_job(config: DictConfig, without: Sequence[str] = ()) -> JobConfig:
    """What Hydra composed, as checked dataclasses; keys in ``without`` are another command's.

    Raises:
        ConfigError: names the first key that is wrong.
    """
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    job: JobConfig = parse(
        JobConfig, {str(key): value for key, value in values.items() if key not in without}
    )
    return job


def near(folder: Path) -> Path:
    """``folder`` as seen from here, where it lies below."""
    try:
        return folder.relative_to(Path.cwd())
    except ValueError:
        return folder


def complain(message: str, status: int) -> int:
    """Print one line on stderr and give the exit status back."""
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    return status


def explain(error: Exception) -> str:
    """Hydra's or OmegaConf's many lines as one that says what exists."""
    text = str(error)
    if match := re.search(r"Could not find '([^']+)/([^'/]*)'", text):
        options = re.findall(r"^\s+(\S+)$", text.partition("Available options")[2], re.MULTILINE)
        return no_such_option(match[1], match[2], options)
    if match := re.search(r"Could not override '([^']+)'\.\s*No match in the defaults list", text):
        return f"{match[1]}: there is no such group{_what_exists(*_first_unknown(match[1]))}"
    if match := re.search(r"Could not override '?\+*([\w.]+)", text):
        return f"{match[1]}: there is no such key{_what_exists(*_first_unknown(match[1]))}"
    if match := re.search(r"Ambiguous value for argument '([^=']+)=", text):
        return f"{match[1]}: several values are a sweep; add -m, or write key=[a,b] for a list"
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override}: this does not parse; write key=value, and quote what has spaces or brackets"
        )
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return f"these overrides do not compose ({text}); mend them, `--cfg job` shows every key"
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("See https")]
    return "; ".join(lines[:2]) or type(error).__name__


def no_such_option(group: str, name: str, options: Sequence[str]) -> str:
    """One line about an option that does not exist."""
    return f"{group}={name}: there is no such option{_what_exists(name, options)}"


def _first_unknown(key: str) -> tuple[str, list[str]]:
    """The first part of a dotted key that does not exist, and what does in its place."""
    node: Any = defaults()
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return part, sorted(node) if isinstance(node, dict) else []
        node = node[part]
    return key, []


def _what_exists(wrong: str, options: Sequence[str]) -> str:
    if not options:
        return ""
    near = difflib.get_close_matches(wrong, options, 1)
    listed = f"here are {', '.join(options)}"
    return f"; did you mean {near[0]}? T{listed}" if near else f"; t{listed}"


def folder_name(overrides: str) -> str:
    """A job's overrides as one folder's name: no separators, no surprises, never too long for a file system."""
    slug = _SLUG.sub("_", overrides).strip("_.") or "job"
    if len(slug) <= _LONGEST_FOLDER and slug == overrides:
        return slug
    digest = hashlib.sha256(overrides.encode()).hexdigest()[:8]
    return f"{slug[: _LONGEST_FOLDER - 9]}-{digest}"

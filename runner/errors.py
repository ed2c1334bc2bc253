"""Every error a person can make, named once.

The message is one line that says what is wrong and what to do about it. The command line prints it without
a traceback and exits with ``exit_status``. A room raises the error where it knows the fact.
"""

from __future__ import annotations


class KvswarmError(Exception):
    """Something a person can mend; ``str(error)`` is one line that ends with the remedy."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ConfigError(KvswarmError):
    """A group, key or value of the configuration that does not exist or is out of range."""


class ModelError(KvswarmError):
    """Weights that are missing, damaged, not what was promised, or not to be fetched."""


class PromptError(KvswarmError):
    """A prompt file or prompt that cannot be used as it is."""


class PlanRefusedError(KvswarmError):
    """A job that does not fit the window or the memory; the message carries the missing bytes."""


class BeyondTrainedError(PlanRefusedError):
    """A window that passes the context that the model was trained for."""


class OutputError(KvswarmError):
    """An output folder that cannot be written, or that another run is writing."""


class EngineError(KvswarmError):
    """llama.cpp failed; the message carries what it said."""

    exit_status = 1


class Interrupted(KvswarmError):  # noqa: N818 - it is what happened, not what went wrong
    """Ctrl-C: the rows in hand are written, nothing more is started."""

    exit_status = 130

"""Ctrl-C while the engine runs: finish the rows in hand rather than die between two of them."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """A function that is True once Ctrl-C was pressed.

    An exception raised by a signal would be lost in the engine's callbacks, so the first Ctrl-C only sets a
    flag. The second ends the process at once: what was written stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = threading.Event()

    def handler(_: int, __: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stderr.write("\nstopping after the batch in hand; Ctrl-C again to quit at once\n")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)

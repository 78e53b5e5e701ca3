"""How the process ends that plans the batches of a streaming query.

When the query stops, Spark ends that process by SIGTERM (its class PythonWorkerFactory), so
pyspark may not come to call the reader's ``stop``. It does when the JVM is gone, whose socket the
process reads from.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_last: Callable[[], None] | None = None
_is_put_off = False
_is_due = False
_is_ending = False


def at_end(last: Callable[[], None]) -> None:
    """Have SIGTERM call ``last`` before it ends this process.

    Nothing is done where somebody handles the signal already, or outside the main thread.
    """
    global _last
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _last = last
        signal.signal(signal.SIGTERM, _end)


def forget_end() -> None:
    """Take back ``at_end``: there is nothing left to do."""
    global _last
    if _last is not None and not _is_ending:
        _last = None
        if not _is_due:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def end_put_off() -> Iterator[None]:
    """What must not be cut short: a signal waits until it is done. These are not nested."""
    global _is_put_off
    _is_put_off = True
    try:
        yield
    finally:
        _is_put_off = False
        if _is_due:
            _end(signal.SIGTERM, None)


def _end(number: int, frame: FrameType | None) -> None:
    global _is_due, _is_ending
    _is_due = True
    if _is_put_off or _is_ending:
        # Spark sends the signal twice.
        return
    _is_ending = True
    try:
        if _last is not None:
            _last()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

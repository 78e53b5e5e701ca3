"""How far long work is, on the terminal of whoever waits: a bar by `rich`, on standard error.

Where standard error is no terminal, or there is no `rich`, nothing is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Is told how much is done by now, of how much; None: nobody knows.
Report = Callable[[float, float | None], None]


def ignore(done: float, total: float | None) -> None:
    """Tells nobody."""


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """A bar until the work ends. It moves by itself where nobody knows how much is left."""
    if not sys.stderr.isatty():
        yield ignore
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn
    except ImportError:
        yield ignore
        return
    columns = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: float, total: float | None) -> None:
            bar.update(task, completed=done, total=total)

        yield report

"""How far long work is, on the terminal of whoever waits: a bar by `rich`, on standard error.

Where standard error is no terminal, or there is no `rich`, nothing is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Report(Protocol):
    """Is told how far the work is."""

    def __call__(self, done: float, total: float | None, text: str = "") -> None:
        """So much is done, of so much, None: nobody knows; in words."""


def ignore(done: float, total: float | None, text: str = "") -> None:
    """Tells nobody."""


@contextmanager
def progress(title: str, is_still: bool = False) -> Iterator[Report]:
    """A bar until the work ends. It moves by itself where nobody knows how much is left.

    ``is_still``: it is only drawn when it is told something, so that it takes no time of the work.
    """
    if not sys.stderr.isatty():
        yield ignore
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    except ImportError:
        yield ignore
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=not is_still)
    with bar:
        task = bar.add_task(title, total=None, text="")

        def report(done: float, total: float | None, text: str = "") -> None:
            bar.update(task, completed=done, total=total, text=text, refresh=is_still)

        yield report

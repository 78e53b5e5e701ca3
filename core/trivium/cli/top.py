"""`trivium top`: a broker on the terminal, each second anew, until q is pressed."""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from trivium.cli.clients import UsageError
from trivium.cli.control import Api, find_api, run_command
from trivium.cli.status import (
    COLUMNS,
    GROUP_COLUMNS,
    QUEUE_COLUMNS,
    SECONDS,
    STATUS_ROWS,
    Look,
    as_json,
    late_groups,
    lines_of,
    look,
    queues_of,
    shown_rates,
)
from trivium.cli.tables import aligned, print_json, rich_table, texts_of

#: q, Q, Ctrl-C and Ctrl-D.
_ENDS: Final = b"qQ\x03\x04"


def run(options: argparse.Namespace) -> int:
    """Do what the options say; the exit code."""
    return run_command(options, _run)


def _run(options: argparse.Namespace) -> None:
    """Show a broker until q is pressed. Raises ClientError, UsageError."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal and not options.json:
        raise UsageError("this is no terminal; see trivium status, or --json")
    api = find_api(options)
    before = look(api)
    if options.json:
        _print(api, before)
        return
    with _keys() as is_over, Live(screen=True, auto_refresh=False) as live:
        while not is_over():
            now = look(api)
            live.update(screen(before, now))
            live.refresh()
            before = now


def _print(api: Api, before: Look) -> None:
    """One object each second, until interrupted."""
    while True:
        time.sleep(SECONDS)
        now = look(api)
        print_json(as_json(before, now))
        sys.stdout.flush()
        before = now


def screen(before: Look, now: Look) -> Group:
    """What is shown of a broker, with the rates between two looks."""
    tables: tuple[tuple[Iterable[Mapping[str, Any]], Sequence[str]], ...] = (
        (shown_rates(before, now), COLUMNS),
        (queues_of(before, now), QUEUE_COLUMNS),
        (late_groups(now)[:STATUS_ROWS], GROUP_COLUMNS),
    )
    return Group(
        Text("\n".join(aligned(lines_of(before, now))) + "\n", no_wrap=True),
        *(_table(list(rows), columns) for rows, columns in tables),
        Text("q ends"),
    )


def _table(rows: list[Mapping[str, Any]], columns: Sequence[str]) -> RenderableType:
    return rich_table(list(texts_of(rows, columns)), columns) if rows else ""


@contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    """Keys reach us as they are pressed: what waits a while for one, and says whether it ends."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def is_over() -> bool:
        ready, _, _ = select.select([file], [], [], SECONDS)
        if not ready:
            return False
        keys = os.read(file, 64)
        return not keys or any(key in _ENDS for key in keys)

    tty.setcbreak(file)
    try:
        yield is_over
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)

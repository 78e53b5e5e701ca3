"""`trivium top`: a broker on the terminal, each second anew, until q is pressed."""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from trivium.cli.clients import UsageError
from trivium.cli.control import Api, find_api, run_command
from trivium.cli.status import COLUMNS, SECONDS, Look, as_json, lines_of, look, rates_of
from trivium.cli.tables import aligned, print_json, rich_table, texts_of

#: Queues that are shown: those with most messages.
_QUEUES: Final = 10
_QUEUE_COLUMNS: Final = (
    "vhost",
    "name",
    "type",
    "ready",
    "unsettled",
    "consumers",
    "in/s",
    "out/s",
)
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
    before, queues = look(api), _queues(api)
    if options.json:
        _print(api, before, queues)
        return
    with _keys() as is_over, Live(screen=True, auto_refresh=False) as live:
        while not is_over():
            now, found = look(api), _queues(api)
            live.update(_screen(before, now, list(_rates(queues, found, now.at - before.at))))
            live.refresh()
            before, queues = now, found


def _print(api: Api, before: Look, queues: list[dict[str, Any]]) -> None:
    """One object each second, until interrupted."""
    while True:
        time.sleep(SECONDS)
        now, found = look(api), _queues(api)
        shown = list(_rates(queues, found, now.at - before.at))
        print_json({**as_json(before, now), "queues_with_most": shown})
        sys.stdout.flush()
        before, queues = now, found


def _screen(before: Look, now: Look, queues: list[dict[str, Any]]) -> Group:
    return Group(
        Text("\n".join(aligned(lines_of(before, now))) + "\n", no_wrap=True),
        rich_table(list(texts_of(rates_of(before, now), COLUMNS)), COLUMNS),
        rich_table(list(texts_of(queues, _QUEUE_COLUMNS)), _QUEUE_COLUMNS),
        Text("q ends"),
    )


def _queues(api: Api) -> list[dict[str, Any]]:
    query = {"sort": "ready", "sort_reverse": "true", "page": "1", "page_size": str(_QUEUES)}
    found: list[dict[str, Any]] = api.ask("GET", "queues", query)["items"]
    return found


def _rates(
    before: list[dict[str, Any]], now: list[dict[str, Any]], seconds: float
) -> Iterator[dict[str, Any]]:
    earlier = {(each["vhost"], each["name"]): each["counters"] for each in before}
    for each in now:
        known = earlier.get((each["vhost"], each["name"]), each["counters"])
        found = dict(each)
        for column, names in (
            ("in/s", ("published",)),
            ("out/s", ("delivered", "delivered_settled", "got", "got_settled")),
        ):
            new = sum(each["counters"][name] - known[name] for name in names)
            found[column] = round(max(new, 0) / max(seconds, 0.001))
        yield found


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

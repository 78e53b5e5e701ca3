"""Commands that ask a broker: run in this process, as a process, or on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import COMMAND, serve
from trivium.cli import EXIT_OK, main


@dataclass
class Running:
    """A broker process: its data directory, and its addresses by protocol."""

    data: Path
    places: dict[str, str]

    @property
    def port(self) -> int:
        return int(self.places["mqtt"].rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"http://guest:guest@{self.places['http']}"


@contextlib.contextmanager
def running(data: Path) -> Iterator[Running]:
    """A broker process on a data directory."""
    ports = [f"--{name}=0" for name in ("mqtt", "amqp", "native", "http")]
    with serve("--data", str(data), *ports) as (_, line):
        yield Running(data, dict(word.split("=", 1) for word in line.split()[2:]))


@dataclass
class Commands:
    """Runs commands in this process."""

    broker: Running
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str, place: tuple[str, str] | None = None) -> tuple[int, str, str]:
        """The exit code, and what is on standard output and standard error."""
        try:
            where = place or ("--data", str(self.broker.data))
            code = main([*arguments[:2], *where, *arguments[2:]])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        out, err = self.capsys.readouterr()
        return code, out, err

    def done(self, *arguments: str) -> str:
        """What a command prints that does what it should."""
        code, out, err = self.run(*arguments)
        assert (code, err) == (EXIT_OK, "")
        return out

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        asked = (*arguments[:2], "--json", *arguments[2:])
        return [json.loads(line) for line in self.done(*asked).splitlines()]

    def names(self, *arguments: str) -> list[str]:
        return [row["name"] for row in self.rows(*arguments)]


def on_terminal(
    arguments: list[str], answers: dict[str, str] | None = None, **environment: str
) -> tuple[int, str]:
    """Exit code and output of a command whose standard streams are a terminal.

    It is answered what it asks, by how the question ends.
    """
    left = dict(answers or {})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **environment},
        start_new_session=True,
    )
    os.close(theirs)
    found = bytearray()
    try:
        while True:
            for question in [each for each in left if found.endswith(each.encode())]:
                os.write(ours, left.pop(question).encode())
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, found
            try:
                part = os.read(ours, 65536)
            except OSError:
                # EIO: nobody has the other side open any more.
                break
            if not part:
                break
            found += part
    finally:
        process.kill() if process.poll() is None and not found else None
        os.close(ours)
    return process.wait(60), found.decode()

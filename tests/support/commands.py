"""The command ``trivium``, run as a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COMMAND = [sys.executable, "-m", "trivium"]
NO_PROTOCOLS = ["--mqtt", "off", "--amqp", "off", "--native", "off", "--http", "off"]


def run(
    *arguments: str, stdin: str = "", cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env=os.environ | environment,
    )


@contextlib.contextmanager
def serve(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running broker and its ready line; killed at the end if the test did not stop it."""
    process = subprocess.Popen(
        [*COMMAND, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"no ready line: {process.communicate(timeout=30)[1]}")
        yield process, line
    finally:
        process.kill()
        process.communicate(timeout=30)

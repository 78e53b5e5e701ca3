"""What tests started ends when the process of the tests does, in whatever way.

A test that is too slow ends its process at once (``timeout_method`` in pyproject.toml), and a run
may be killed: no fixture ends its brokers then. So another process waits at the end of a pipe that
nobody but the process of the tests keeps open, and kills what carries that process's mark in its
environment.
"""

from __future__ import annotations

import os
import subprocess
from typing import Final
from uuid import uuid4

MARK: Final = "TRIVIUM_TESTS"
#: Reads until the pipe is closed. What is started meanwhile is found by the next round.
SCRIPT: Final = """
cat
mark=$1
found=1
while [ "$found" ]; do
    found=
    for process in /proc/[0-9]*; do
        if grep -qszxF "$mark" "$process/environ"; then
            kill -9 "${process#/proc/}" && found=1
        fi
    done
done
"""

_reapers: list[subprocess.Popen[bytes]] = []


def start_reaper() -> None:
    """Mark what this process starts from now on; once in a process."""
    if _reapers:
        return
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    os.environ[MARK] = uuid4().hex
    _reapers.append(
        subprocess.Popen(
            ["sh", "-c", SCRIPT, "sh", f"{MARK}={os.environ[MARK]}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            # A signal for the tests is not for it.
            start_new_session=True,
        )
    )

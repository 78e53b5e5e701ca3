"""For how long a broker's loop, and the machine, let a client wait: ``python -m bench.probe``.

A process of its own, so that nothing that the load generator does is counted. Every few
milliseconds it asks the broker for a PINGRESP and waits for it, which comes when the loop has done
its turn. On a machine that others use too, much of that wait may be for a core: the system counts
for how long a thread was ready to run and had none. What it counts for the loop's thread and this
process meanwhile is not the turn's; that of other threads of the broker, which may keep the
interpreter's lock, is. A line on standard input asks for the longest times so far, in seconds and
as JSON, and begins anew; the end of the input ends the process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from bench.endpoints import Address, receive_exactly
from bench.mqtt_clients import open_session

#: Seconds between two requests: short beside the turns that are looked for.
_WAIT: Final = 0.002
_STOP_SECONDS: Final = 20.0
_PINGREQ: Final = b"\xc0\x00"


@dataclass(frozen=True)
class Waits:
    """The longest waits of an interval, in seconds."""

    answer: float
    """For a PINGRESP."""
    turn: float
    """The same without waits for a core."""


class Probe:
    """Asks the broker of a process until it is closed. A context manager."""

    def __init__(self, address: Address, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.probe", address[0], str(address[1]), str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self) -> Waits:
        """Return the longest waits since the last call, or the begin."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Waits(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=_STOP_SECONDS)


class CoreWaits:
    """Seconds for which the first thread of a process, and this process, had to wait for a core."""

    def __init__(self, pid: int) -> None:
        paths = (f"/proc/{pid}/task/{pid}/schedstat", "/proc/self/schedstat")
        self._files = [os.open(path, os.O_RDONLY) for path in paths]

    def total(self) -> float:
        """Since they exist."""
        # Nanoseconds that it ran, that it waited, and how often it was given a core.
        return sum(int(os.pread(file, 64, 0).split()[1]) for file in self._files) / 1e9


def main(host: str, port: int, pid: int) -> None:
    """Ask, and tell, until standard input ends."""
    connection = open_session(Address(host, port), "probe")
    waits = CoreWaits(pid)
    answer = turn = 0.0
    while True:
        if select.select([sys.stdin], [], [], _WAIT)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps({"answer": answer, "turn": turn}), flush=True)
            answer = turn = 0.0
            continue
        waited = waits.total()
        start = time.perf_counter()
        connection.sendall(_PINGREQ)
        receive_exactly(connection, 2)
        took = time.perf_counter() - start
        answer = max(answer, took)
        turn = max(turn, took - (waits.total() - waited))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

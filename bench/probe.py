"""For how long a broker's loop, and the machine, let a client wait: ``python -m bench.probe``.

A process of its own, so that nothing that the load generator does is counted. Every few
milliseconds it asks the broker for a PINGRESP and waits for it, which comes when the loop has done
its turn. How much later than wanted the process is woken for the next one shows for how long the
machine lets any process stand still. A line on standard input asks for the longest times so far, in
seconds and as JSON, and begins anew; the end of the input ends the process.
"""

from __future__ import annotations

import json
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
    machine: float
    """To be woken."""


class Probe:
    """Asks a broker until it is closed. A context manager."""

    def __init__(self, address: Address) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.probe", address[0], str(address[1])],
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


def main(host: str, port: int) -> None:
    """Ask, and tell, until standard input ends."""
    connection = open_session((host, port), "probe")
    answer = machine = 0.0
    while True:
        start = time.perf_counter()
        is_asked = bool(select.select([sys.stdin], [], [], _WAIT)[0])
        end = time.perf_counter()
        if is_asked:
            if not sys.stdin.readline():
                return
            print(json.dumps({"answer": answer, "machine": machine}), flush=True)
            answer = machine = 0.0
            continue
        machine = max(machine, end - start - _WAIT)
        connection.sendall(_PINGREQ)
        receive_exactly(connection, 2)
        answer = max(answer, time.perf_counter() - end)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""Measure what an idle MQTT connection costs a server in resident memory."""

from __future__ import annotations

import contextlib
import resource
import time
from dataclasses import dataclass
from typing import Final

from bench.doors import PLAIN, TLS, WEBSOCKET
from bench.mqtt_clients import open_session
from bench.runner import make_server, server_cores, working_directory
from bench.servers import ServerError

GOALS: Final = {TLS: 40, WEBSOCKET: 16}
"""KiB of a connection that the compiled server must stay below."""
_KEEP_ALIVE: Final = 600
"""Seconds: too long to matter, yet each connection has its timer as a device's would."""
_SPARE_DESCRIPTORS: Final = 200
_SETTLE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class IdleResult:
    """Resident memory of a server without and with idle connections, in bytes."""

    server: str
    door: str
    connections: int
    resident_before: int
    resident_after: int

    @property
    def bytes_per_connection(self) -> float:
        """The growth, by connection."""
        return (self.resident_after - self.resident_before) / self.connections

    def __str__(self) -> str:
        return (
            f"{self.server:20} {self.bytes_per_connection / 1024:6.2f} KiB per connection"
            f" ({self.connections} {self.door}, {self.resident_before / 2**20:.1f} ->"
            f" {self.resident_after / 2**20:.1f} MiB){_goal(self)}"
        )


def _goal(result: IdleResult) -> str:
    goal = GOALS.get(result.door)
    if goal is None or result.server != "trivium":
        return ""
    return f" goal {goal} KiB {'met' if result.bytes_per_connection < goal * 1024 else 'MISSED'}"


def _raise_descriptor_limit(connections: int) -> None:
    """Allow this process, and the server that inherits its limits, a descriptor per connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ServerError(f"{connections} connections need {needed} open files; {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def measure_idle(name: str, connections: int, door: str = PLAIN) -> IdleResult:
    """Start the named server, open ``connections`` clean sessions, compare its memory.

    Raises:
        ServerError: the server cannot be started, or this process may not open so many files.
        PeerError: the server refused a connection.
    """
    _raise_descriptor_limit(connections)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        cores = stack.enter_context(server_cores(pin=False))
        server = make_server(name, directory, cores, on_disk=False, door=door)
        server.start()
        stack.callback(server.stop)
        address = server.addresses["mqtt"]
        # The first connections pay for what is loaded and allocated once.
        for number in range(10):
            open_session(address, f"bench-first-{number}").close()
        time.sleep(_SETTLE_SECONDS)
        before = server.resident_bytes()
        for number in range(connections):
            stack.enter_context(open_session(address, f"bench-idle-{number:05}", _KEEP_ALIVE))
        time.sleep(_SETTLE_SECONDS)
        return IdleResult(name, door, connections, before, server.resident_bytes())

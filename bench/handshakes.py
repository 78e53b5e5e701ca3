"""Measure how long a server takes to let clients in by TLS 1.3, each by a full handshake.

A client counts once it has CONNACK: then the server too is done with the handshake. The load
generator's own part of a handshake costs about as much, on the other core.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from bench import mqtt_frames
from bench.doors import TLS, tls_context
from bench.endpoints import SETUP_TIMEOUT, Address, PeerError
from bench.runner import make_server, working_directory
from bench.servers import Server

GOAL: Final = 1.0
"""How many times the peer's rate the compiled server must reach."""
PEER: Final = "mosquitto"
_DONE: Final = object()
_CONNACK: Final = bytes((mqtt_frames.CONNACK, 2, 0, 0))


@dataclass
class HandshakeResult:
    """One server's runs; times in seconds for all of the handshakes of a run."""

    server: str
    handshakes: int
    at_once: int
    seconds: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    generator_cpu: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Handshakes a second, of the median run."""
        return self.handshakes / statistics.median(self.seconds)

    def __str__(self) -> str:
        each = 1e3 / self.handshakes
        return (
            f"{self.server:20} {self.handshakes} handshakes, {self.at_once:4} at a time:"
            f" {statistics.median(self.seconds):6.3f} s, {self.rate:7.0f}/s;"
            f" cpu of each {statistics.median(self.server_cpu) * each:.2f} ms"
            f" (generator {statistics.median(self.generator_cpu) * each:.2f} ms)"
        )


class _Client:
    """A connection that is being made."""

    def __init__(self, address: Address, context: ssl.SSLContext, number: int) -> None:
        plain = socket.create_connection(address[:2], SETUP_TIMEOUT)
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(plain, do_handshake_on_connect=False)
        self.steps = self._steps(mqtt_frames.connect(f"bench-handshake-{number}"))

    def _steps(self, connect: bytes) -> Iterator[None]:
        """Go on until CONNACK is there, and yield where that waits for the server."""
        while True:
            try:
                self.socket.do_handshake()
                break
            except ssl.SSLWantReadError:
                yield
        self.socket.sendall(connect)
        answer = b""
        while len(answer) < len(_CONNACK):
            try:
                data = self.socket.recv(len(_CONNACK) - len(answer))
            except ssl.SSLWantReadError:
                yield
                continue
            if not data:
                break
            answer += data
        if answer != _CONNACK:
            raise PeerError(f"CONNECT was answered by {answer.hex(' ')!r}")


def shake_hands(address: Address, count: int, at_once: int) -> float:
    """Make ``count`` connections, so many at a time; the seconds that it took.

    Raises:
        PeerError: the server refused one, or does not go on.
    """
    context = tls_context()
    numbers = iter(range(count))
    start = time.perf_counter()
    with selectors.DefaultSelector() as selector, ExitStack() as stack:

        def begin() -> None:
            for number in numbers:
                client = _Client(address, context, number)
                stack.callback(client.socket.close)
                if next(client.steps, _DONE) is not _DONE:
                    selector.register(client.socket, selectors.EVENT_READ, client)
                    return
                # It has been served meanwhile.
                client.socket.close()

        for _ in range(at_once):
            begin()
        while selector.get_map():
            ready = selector.select(SETUP_TIMEOUT)
            if not ready:
                raise PeerError("no handshake goes on")
            for key, _ in ready:
                if next(key.data.steps, _DONE) is _DONE:
                    selector.unregister(key.fileobj)
                    key.data.socket.close()
                    begin()
    return time.perf_counter() - start


def measure_handshakes(
    names: Sequence[str], count: int, at_once: int, repetitions: int
) -> list[HandshakeResult]:
    """Start the named servers, and load them in turns. Raises ServerError, PeerError."""
    with ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        servers: list[tuple[Server, HandshakeResult]] = []
        for number, name in enumerate(names):
            server = make_server(name, directory / str(number), None, on_disk=False, door=TLS)
            server.start()
            stack.callback(server.stop)
            servers.append((server, HandshakeResult(name, count, at_once)))
        for repetition in range(repetitions + 1):
            for server, result in servers:
                before = server.cpu_seconds(), time.process_time()
                seconds = shake_hands(server.addresses["mqtt"], count, at_once)
                if repetition:
                    # The first one warms up.
                    result.seconds.append(seconds)
                    result.server_cpu.append(server.cpu_seconds() - before[0])
                    result.generator_cpu.append(time.process_time() - before[1])
        return [result for _, result in servers]


def compared(results: Sequence[HandshakeResult]) -> str:
    """What each took, and whether the goal was met."""
    peer = next((result for result in results if result.server == PEER), None)
    lines = []
    for result in results:
        line = str(result)
        if peer is not None and result is not peer:
            times = result.rate / peer.rate
            line += f"; {times:.2f} x {PEER}"
            if result.server == "trivium":
                line += f" (goal {GOAL:g} {'met' if times >= GOAL else 'MISSED'})"
        lines.append(line)
    return "\n".join(lines)

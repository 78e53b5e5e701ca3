"""How long one message takes to be confirmed when nothing else is under way.

Every exchange is a publish and the confirm of it, on a connection that blocks, to a durable queue.
Beside it, on the same disk and in the same run, stand what no broker can do without: a write with
fdatasync, and a round trip through a socket to another process; and what both of them take by an
event loop that does nothing else, with the write on a thread so that the loop is never held up.
Rounds take turns, so that a slow spell of the machine hits all alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np
import uvloop

from bench import amqp_frames, mqtt_frames, native_frames
from bench.amqp_clients import CHANNEL, AmqpSetup
from bench.endpoints import Address, Connection, PeerError, receive_exactly
from bench.frames import payload
from bench.mqtt_clients import open_session
from bench.native_clients import NativeSetup
from bench.runner import make_server, server_kind, working_directory
from bench.servers import Server

KINDS: Final = ("amqp", "mqtt", "native")
PERCENTILES: Final = (50.0, 99.0, 99.9)
GOALS: Final = {"amqp": 1.2}
"""How many times a write with fdatasync and a round trip, by their medians, a confirm may take."""
_ROUND: Final = 100
"""Exchanges before the next one's turn."""
_WARM_UP: Final = 20
"""Exchanges that do not count."""
_QUEUE: Final = "latency"
_FILE_BYTES: Final = 64 << 20
_SYNC: Final = "write + fdatasync"
_ROUND_TRIP: Final = "round trip"
_LOOP: Final = "both by a bare loop"


@dataclass
class LatencyRow:
    """What one kind of exchange took, in seconds."""

    server: str
    kind: str
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The 50th percentile."""
        return statistics.median(self.seconds)

    def percentiles(self) -> list[float]:
        """Return those of :data:`PERCENTILES`."""
        return [float(value) for value in np.percentile(self.seconds, PERCENTILES)]


class Exchange:
    """Messages to a durable queue over one connection, each published once the last is confirmed.

    Subclasses connect and say how a message and its confirm look.
    """

    socket: Connection

    def frame(self, number: int) -> bytes:
        """Return the publish of message ``number``, the first of which is 1."""
        raise NotImplementedError

    def answers(self, number: int) -> Sequence[bytes]:
        """Return the confirms of it that are right, all of one size."""
        raise NotImplementedError

    def run(self, numbers: range) -> list[float]:
        """Publish messages; return the seconds that each took.

        Raises:
            PeerError: the broker answered something else than a confirm.
        """
        took = []
        for number in numbers:
            frame, answers = self.frame(number), self.answers(number)
            start = time.perf_counter()
            self.socket.sendall(frame)
            answer = receive_exactly(self.socket, len(answers[0]))
            took.append(time.perf_counter() - start)
            if answer not in answers:
                raise PeerError(f"not the confirm of message {number}: {answer.hex(' ')}")
        return took


class AmqpExchange(Exchange):
    """Publisher confirms."""

    def __init__(self, address: Address, size: int) -> None:
        setup = AmqpSetup(address)
        setup.declare_queue(_QUEUE)
        setup.select_confirms()
        self.socket = setup.socket
        self._frame, _ = amqp_frames.publish(CHANNEL, "", _QUEUE, payload(size))

    def frame(self, number: int) -> bytes:
        return self._frame

    def answers(self, number: int) -> Sequence[bytes]:
        return [amqp_frames.ack(CHANNEL, number, multiple=multiple) for multiple in (False, True)]


class MqttExchange(Exchange):
    """QoS 1 to a durable queue that is bound to the topic."""

    def __init__(self, addresses: dict[str, Address], size: int) -> None:
        setup = AmqpSetup(addresses["amqp"])
        setup.declare_queue(f"{_QUEUE}-mqtt")
        setup.bind_queue(f"{_QUEUE}-mqtt", "amq.topic", _QUEUE)
        setup.close()
        self.socket = open_session(addresses["mqtt"], _QUEUE)
        self._frame, fields = mqtt_frames.publish(_QUEUE, 1, payload(size))
        self._at = fields[mqtt_frames.PACKET_ID][1]

    @staticmethod
    def _identifier(number: int) -> bytes:
        return ((number - 1) % mqtt_frames.PACKET_IDS + 1).to_bytes(2, "big")

    def frame(self, number: int) -> bytes:
        return self._frame[: self._at] + self._identifier(number) + self._frame[self._at + 2 :]

    def answers(self, number: int) -> Sequence[bytes]:
        return [mqtt_frames.acknowledgement(mqtt_frames.PUBACK)[:2] + self._identifier(number)]


class NativeExchange(Exchange):
    """Requests of one message."""

    def __init__(self, address: Address, size: int) -> None:
        setup = NativeSetup(address)
        setup.declare("queue", f"{_QUEUE}-native")
        self.socket = setup.socket
        frame, _ = native_frames.publish(f"{_QUEUE}-native", payload(size), 1)
        self._body = frame[native_frames.HEAD.size :]

    def frame(self, number: int) -> bytes:
        return native_frames.frame(native_frames.PUBLISH, number, self._body)

    def answers(self, number: int) -> Sequence[bytes]:
        one = (1).to_bytes(4, "little")
        return [native_frames.frame(native_frames.CONFIRM, number, one)]


def _exchange(kind: str, server: Server, size: int) -> Exchange:
    if kind == "mqtt":
        return MqttExchange(server.addresses, size)
    made = AmqpExchange if kind == "amqp" else NativeExchange
    return made(server.addresses[kind], size)


class _Disk:
    """Writes of as many bytes as a publish has, one after the other in a file, each synced."""

    def __init__(self, path: Path, size: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._descriptor, 0, _FILE_BYTES)
        os.fsync(self._descriptor)
        self._data = bytes(size)
        self._position = 0

    def run(self, numbers: range) -> list[float]:
        """Write and sync as often as there are numbers; return the seconds that each took."""
        took = []
        for _ in numbers:
            start = time.perf_counter()
            os.pwrite(self._descriptor, self._data, self._position)
            os.fdatasync(self._descriptor)
            took.append(time.perf_counter() - start)
            self._position = (self._position + len(self._data)) % _FILE_BYTES
        return took

    def close(self) -> None:
        os.close(self._descriptor)


class _Echo(Exchange):
    """A process that answers as many bytes as a publish has with as many as a confirm has: at once,
    or from an event loop when they are written to the file at ``path`` and synced.
    """

    def __init__(self, frame: bytes, answer: bytes, path: str = "") -> None:
        self._frame, self._answer = frame, answer
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            arguments = (str(listener.fileno()), str(len(frame)), answer.hex(), path)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.latency", *arguments], pass_fds=[listener.fileno()]
            )
            self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def frame(self, number: int) -> bytes:
        return self._frame

    def answers(self, number: int) -> Sequence[bytes]:
        return [self._answer]

    def close(self) -> None:
        self.socket.close()
        self._process.wait()


def measure_latency(
    names: Sequence[str], kinds: Sequence[str], messages: int, size: int
) -> list[LatencyRow]:
    """Measure ``messages`` exchanges of each kind with each server, and of what all need.

    Raises:
        ServerError: a server cannot be started.
        PeerError: it misbehaved.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        frame, _ = amqp_frames.publish(CHANNEL, "", _QUEUE, payload(size))
        disk = _Disk(directory / "bare", len(frame))
        stack.callback(disk.close)
        echo = _Echo(frame, amqp_frames.ack(CHANNEL, 1, multiple=False))
        stack.callback(echo.close)
        loop = _Echo(frame, echo.answers(1)[0], str(directory / "loop"))
        stack.callback(loop.close)
        runs: list[tuple[LatencyRow, Callable[[range], list[float]]]] = [
            (LatencyRow("", _SYNC), disk.run),
            (LatencyRow("", _ROUND_TRIP), echo.run),
            (LatencyRow("", _LOOP), loop.run),
        ]
        for number, name in enumerate(names):
            server = make_server(name, directory / str(number), None, on_disk=True)
            server.start()
            stack.callback(server.stop)
            for kind in kinds:
                if kind in server_kind(name).protocols:
                    exchange = _exchange(kind, server, size)
                    stack.callback(exchange.socket.close)
                    runs.append((LatencyRow(name, kind), exchange.run))
        for _, run in runs:
            run(range(1, 1 + _WARM_UP))
        for first in range(1 + _WARM_UP, 1 + _WARM_UP + messages, _ROUND):
            for row, run in runs:
                row.seconds += run(range(first, min(first + _ROUND, 1 + _WARM_UP + messages)))
    return [row for row, _ in runs]


def latency_table(rows: Sequence[LatencyRow]) -> str:
    """The rows for people; ``x bare`` is the median over those of what all need."""
    bare = sum(row.median for row in rows if row.kind in (_SYNC, _ROUND_TRIP))
    width = max(20, *(len(row.server) for row in rows))
    lines = [f"{'':{width}} {'':20}{'p50 µs':>9}{'p99 µs':>9}{'p99.9 µs':>10}{'x bare':>8}  goal"]
    for row in rows:
        p50, p99, p999 = (f"{value * 1e6:,.0f}" for value in row.percentiles())
        times = row.median / bare
        ratio = "" if row.kind in (_SYNC, _ROUND_TRIP) else f"{times:.2f}"
        goal = GOALS.get(row.kind) if row.server else None
        met = "" if goal is None else f"{goal:g} {'met' if times <= goal else 'missed'}"
        line = f"{row.server:{width}} {row.kind:20}{p50:>9}{p99:>9}{p999:>10}{ratio:>8}  {met}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def main(descriptor: int, size: int, answer: bytes, path: str) -> None:
    """Answer every ``size`` bytes of one connection until it ends."""
    with socket.socket(fileno=descriptor) as listener:
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if path:
        uvloop.run(_answer_from_loop(connection, size, answer, Path(path)))
        return
    with connection, contextlib.suppress(PeerError, OSError):
        while True:
            receive_exactly(connection, size)
            connection.sendall(answer)


class _SyncedEcho(asyncio.Protocol):
    """Hands what comes to the thread that writes it."""

    def __init__(self, size: int, written: SimpleQueue[bytes], ended: asyncio.Event) -> None:
        self._size = size
        self._written = written
        self._ended = ended
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) == self._size:
            self._written.put(self._received)
            self._received = b""

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()


async def _answer_from_loop(
    connection: socket.socket, size: int, answer: bytes, path: Path
) -> None:
    loop = asyncio.get_running_loop()
    queue: SimpleQueue[bytes] = SimpleQueue()
    ended = asyncio.Event()
    transport, _ = await loop.create_connection(
        lambda: _SyncedEcho(size, queue, ended), sock=connection
    )
    disk = _Disk(path, size)

    def write() -> None:
        while queue.get():
            disk.run(range(1))
            loop.call_soon_threadsafe(transport.write, answer)

    thread = threading.Thread(target=write)
    thread.start()
    await ended.wait()
    queue.put(b"")
    thread.join()
    disk.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), sys.argv[4])

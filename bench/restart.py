"""Measure how soon a broker with many queues and retained messages is ready again."""

from __future__ import annotations

import contextlib
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.amqp_clients import AmqpSetup
from bench.endpoints import SETUP_TIMEOUT, PeerError, closed_on_error
from bench.frames import payload
from bench.mqtt_clients import MqttSubscriber
from bench.runner import make_server, working_directory
from bench.servers import ServerError, Trivium
from trivium_native.errors import NativeError
from trivium_native.sync import SyncClient, connect
from trivium_native.values import Publication

#: Messages of 1 KiB that go to the journal behind the declarations: nearly as many as there are
#: between two checkpoints.
_FILLER: Final = 54 << 10
_BATCH: Final = 500
_BODY: Final = payload(64)

#: Seconds that a start may take after a clean stop, and after a kill.
MAX_CLEAN: Final = 3.0
MAX_KILLED: Final = 10.0


@dataclass(frozen=True)
class RestartResult:
    """Seconds from the start of the process to its ready line."""

    server: str
    count: int
    retained: int
    clean_seconds: float
    clean_cpu: float
    """What it had used of a core then."""
    killed_seconds: float
    killed_cpu: float

    def __str__(self) -> str:
        is_met = self.clean_seconds < MAX_CLEAN and self.killed_seconds < MAX_KILLED
        return (
            f"{self.server:20} {self.count:,} queues with a binding and a message each,"
            f" {self.retained:,} retained messages:"
            f" ready {self.killed_seconds:.2f} s after a kill with a full journal"
            f" ({self.killed_cpu:.2f} s of a core), {self.clean_seconds:.2f} s after a clean stop"
            f" ({self.clean_cpu:.2f} s): {'met' if is_met else 'missed'}"
        )


def measure_restart(name: str, count: int, retained: int) -> RestartResult:
    """Declare and use ``count`` queues, and ``retained`` messages, then start anew twice.

    Raises:
        ServerError: the server cannot be started, or is not Trivium.
        PeerError: it refused something, or has forgotten something.
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        server = make_server(name, directory, None, on_disk=True)
        if not isinstance(server, Trivium):
            raise ServerError(f"{name} prints no ready line")
        server.start()
        stack.callback(server.stop)
        with _client(server) as client:
            for number in range(count):
                client.declare_queue(f"restart-{number}")
                client.bind_queue(f"restart-{number}", "amq.topic", f"restart-{number}")
            for publish, most in ((_message, count), (_retained, retained)):
                client.publish_many(
                    [publish(number) for number in range(start, min(start + _BATCH, most))]
                    for start in range(0, most, _BATCH)
                )
            filler = Publication(payload=bytes(1024), routing_key="restart-0", exchange="")
            client.publish_many([filler] * _BATCH for _ in range(_FILLER // _BATCH))
        killed = server.restart(signal.SIGKILL)
        killed_cpu = server.cpu_seconds()
        _check(server, count, retained)
        clean = server.restart(signal.SIGTERM)
        clean_cpu = server.cpu_seconds()
        _check(server, count, retained)
        return RestartResult(name, count, retained, clean, clean_cpu, killed, killed_cpu)


def _message(number: int) -> Publication:
    return Publication(payload=_BODY, routing_key=f"restart-{number}", exchange="")


def _retained(number: int) -> Publication:
    return Publication(payload=_BODY, routing_key=f"restart.{number}", retain=True)


@contextlib.contextmanager
def _client(server: Trivium) -> Iterator[SyncClient]:
    host, port, _ = server.addresses["native"]
    try:
        with connect(f"trivium://{host}:{port}", timeout=60.0) as client:
            yield client
    except NativeError as error:
        raise PeerError(str(error)) from error


def _check(server: Trivium, count: int, retained: int) -> None:
    """Whether every queue has what it had, and the last retained message is there."""
    setup = AmqpSetup(server.addresses["amqp"])
    with closed_on_error(setup.socket):
        found = [setup.message_count(f"restart-{number}") for number in range(count)]
        setup.close()
    if found != [1 + _FILLER // _BATCH * _BATCH, *[1] * (count - 1)]:
        raise PeerError(f"the queues have {sum(found)} messages")
    check_retained(server, f"restart/{retained - 1}", _BODY)


def check_retained(server: Trivium, topic: str, body: bytes) -> None:
    """Whether a message as long as ``body`` is retained for ``topic``. Raises PeerError."""
    reader = MqttSubscriber(server.addresses["mqtt"], "reader", topic, 0, body, 4096)
    with contextlib.closing(reader):
        select.select([reader.socket], [], [], SETUP_TIMEOUT)
        reader.readable()
        if reader.check.received != 1:
            raise PeerError(f"no message is retained for {topic}")

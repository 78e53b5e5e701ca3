"""Measure what each thing of a kind that a broker keeps costs it in resident memory."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench import amqp_frames, mqtt_frames
from bench.amqp_clients import CHANNEL, AmqpConsumer, AmqpPublisher, AmqpSetup
from bench.backlog import Watch, drive
from bench.endpoints import PeerError, Publisher, receive_exactly
from bench.frames import payload
from bench.mqtt_clients import MqttPublisher, open_session
from bench.runner import make_server, working_directory
from bench.servers import ServerError, Trivium

#: Things that are made before the first look, so that what is made once is there.
_FIRST: Final = 1000
_COUNT: Final = 20_000
#: Enough that the caches of addresses, of 65,536 each, count for little.
_RETAINED: Final = 300_000
_BODY: Final = payload(20)
_WINDOW: Final = 1000
#: SUBSCRIBE packets whose answers are read together.
_PIPELINED: Final = 100
_SETTLE_SECONDS: Final = 2.0
_EXCHANGE: Final = "amq.topic"
#: Milliseconds, longer than any run.
_RETRY_DELAY: Final = 3_600_000
_NEVER: Final = 1 << 30


@dataclass(frozen=True)
class MemoryResult:
    """Resident memory of a server with few and with many things of a kind, in bytes."""

    server: str
    kind: str
    count: int
    """How many more there are of them."""
    resident_before: int
    resident_after: int

    @property
    def bytes_each(self) -> float:
        """The growth, by thing."""
        return (self.resident_after - self.resident_before) / self.count

    def __str__(self) -> str:
        return f"{self.server:20} {self.kind:16} {self.bytes_each:8,.0f} bytes ({self.count:,})"


def measure_memory(name: str, kind: str, wanted: int | None) -> MemoryResult:
    """Start the named server on disk, and have it keep ``wanted`` things of ``kind``.

    Raises:
        ServerError: the server cannot be started, or is not Trivium.
        PeerError: it refused something.
    """
    make = KINDS[kind]
    count = wanted or (_RETAINED if kind == "retained" else _COUNT)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        server = make_server(name, directory, None, on_disk=True)
        if not isinstance(server, Trivium):
            raise ServerError(f"{name} is not measured")
        server.start()
        stack.callback(server.stop)
        make(server, stack, "first", _FIRST)
        time.sleep(_SETTLE_SECONDS)
        before = server.resident_bytes()
        make(server, stack, "more", count)
        time.sleep(_SETTLE_SECONDS)
        return MemoryResult(name, kind, count, before, server.resident_bytes())


def _setup(server: Trivium, stack: ExitStack) -> AmqpSetup:
    setup = AmqpSetup(server.addresses["amqp"])
    stack.enter_context(contextlib.closing(setup.socket))
    return setup


def _queues(server: Trivium, stack: ExitStack, name: str, count: int) -> None:
    """Durable queues, each with a binding of its own."""
    setup = _setup(server, stack)
    for number in range(count):
        setup.declare_queue(f"memory.{name}.{number:06}")
        setup.bind_queue(f"memory.{name}.{number:06}", _EXCHANGE, f"bound.{name}.{number:06}")


def _bindings(server: Trivium, stack: ExitStack, name: str, count: int) -> None:
    """Bindings of one durable queue."""
    setup = _setup(server, stack)
    setup.declare_queue("memory")
    for number in range(count):
        setup.bind_queue("memory", _EXCHANGE, f"bound.{name}.{number:06}")


def _retained(server: Trivium, stack: ExitStack, name: str, count: int) -> None:
    """Retained messages of 20 bytes, each of a topic of its own."""
    address = server.addresses["mqtt"]
    publisher = MqttPublisher(address, name, name, 1, _BODY, _WINDOW, count, is_retained=True)
    with contextlib.closing(publisher):
        _publish(server, publisher, count)


def _sessions(server: Trivium, _stack: ExitStack, name: str, count: int) -> None:
    """Persistent MQTT sessions without a subscription, whose clients are away."""
    address = server.addresses["mqtt"]
    for number in range(count):
        open_session(address, f"memory-{name}-{number:06}", is_kept=True).close()


def _subscriptions(server: Trivium, stack: ExitStack, name: str, count: int) -> None:
    """Subscriptions of one persistent MQTT session."""
    connection = open_session(server.addresses["mqtt"], f"memory-{name}", is_kept=True)
    stack.enter_context(contextlib.closing(connection))
    for start in range(0, count, _PIPELINED):
        numbers = range(start, min(start + _PIPELINED, count))
        packets = [mqtt_frames.subscribe(1, f"bound/{name}/{number:06}", 1) for number in numbers]
        connection.sendall(b"".join(packets))
        receive_exactly(connection, 5 * len(numbers))


def _unacknowledged(server: Trivium, stack: ExitStack, name: str, count: int) -> None:
    """Persistent messages of 20 bytes that an AMQP consumer has got and does not acknowledge."""
    _deliver(server, stack, name, count, amqp_frames.EMPTY_TABLE)


def _retries(server: Trivium, stack: ExitStack, name: str, count: int) -> None:
    """The same, put back by the consumer, that wait for their next try."""
    argument = amqp_frames.short_string("x-retry-delay") + b"l" + struct.pack(">q", _RETRY_DELAY)
    consumer = _deliver(server, stack, name, count, amqp_frames.long_string(argument))
    # All of them (tag 0, multiple), to the queue.
    consumer.write(
        amqp_frames.method(CHANNEL, amqp_frames.BASIC_NACK, struct.pack(">QB", 0, 0b011))
    )


def _deliver(
    server: Trivium, stack: ExitStack, name: str, count: int, table: bytes
) -> AmqpConsumer:
    """Publish to a queue of its own, and have a consumer take all of it."""
    queue = f"memory-{name}"
    setup = _setup(server, stack)
    setup.declare_queue(queue, table)
    publisher = AmqpPublisher(server.addresses["amqp"], "", queue, _BODY, _WINDOW)
    with contextlib.closing(publisher):
        _publish(server, publisher, count)
    consumer = AmqpConsumer(setup, queue, _BODY, 0, _NEVER, 1 << 18)
    drive(consumer, lambda: consumer.check.received, count, Watch(server))
    return consumer


def _publish(server: Trivium, publisher: Publisher, count: int) -> None:
    """Publish ``count`` messages, and wait until all are acknowledged."""

    def act() -> int:
        if publisher.refused:
            raise PeerError(f"{publisher.refused} messages were refused")
        while not publisher.has_unsent:
            allowed = min(_WINDOW - publisher.unsettled, count - publisher.sent)
            if allowed <= 0:
                break
            publisher.publish(allowed)
        return publisher.settled

    drive(publisher, act, count, Watch(server))


KINDS: Final[dict[str, Callable[[Trivium, ExitStack, str, int], None]]] = {
    "queue": _queues,
    "binding": _bindings,
    "retained": _retained,
    "session": _sessions,
    "subscription": _subscriptions,
    "unacknowledged": _unacknowledged,
    "retry": _retries,
}
"""What is measured, and what makes so many of it, with a name that no others have."""

"""What the tests share about AMQP clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from interop.brokers import LOOPBACK

#: How long anything may take before the test fails; only failures take as long.
PATIENCE: Final = 20.0

PERSISTENT: Final = BasicProperties(delivery_mode=2)
TRANSIENT: Final = BasicProperties(delivery_mode=1)


def url(port: int) -> str:
    return f"amqp://guest:guest@{LOOPBACK}:{port}/"


@contextmanager
def connection(port: int) -> Iterator[pika.BlockingConnection]:
    """A pika connection, closed at the end unless the test or the broker closed it."""
    made = pika.BlockingConnection(
        pika.ConnectionParameters(
            LOOPBACK, port, blocked_connection_timeout=PATIENCE, socket_timeout=PATIENCE
        )
    )
    try:
        yield made
    finally:
        if made.is_open:
            made.close()


@contextmanager
def channel(port: int, *, confirms: bool = False) -> Iterator[BlockingChannel]:
    """A channel on a connection of its own."""
    with connection(port) as made:
        opened = made.channel()
        if confirms:
            opened.confirm_delivery()
        yield opened


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as pika gave it."""

    tag: int
    redelivered: bool
    exchange: str
    key: str
    properties: Any
    body: bytes


def _delivery(method: Any, properties: BasicProperties | None, body: bytes | None) -> Delivery:
    assert body is not None
    return Delivery(
        method.delivery_tag,
        method.redelivered,
        method.exchange,
        method.routing_key,
        properties,
        body,
    )


def consume(
    opened: BlockingChannel, queue: str, count: int, *, auto_ack: bool = False
) -> list[Delivery]:
    """Consume this many messages, which the caller acknowledges unless ``auto_ack``."""
    found: list[Delivery] = []
    for method, properties, body in opened.consume(
        queue, auto_ack=auto_ack, inactivity_timeout=PATIENCE
    ):
        if method is None:
            raise AssertionError(f"{len(found)} of {count} messages came from {queue!r}")
        found.append(_delivery(method, properties, body))
        if len(found) == count:
            break
    return found


def get(opened: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Delivery | None:
    """Take one message out of a queue if there is one."""
    method, properties, body = opened.basic_get(queue, auto_ack=auto_ack)
    return None if method is None else _delivery(method, properties, body)


def await_one(opened: BlockingChannel, queue: str) -> Delivery:
    """Wait for one message and take it, and no other, out of a queue."""
    deadline = time.monotonic() + PATIENCE
    while (found := get(opened, queue)) is None:
        assert time.monotonic() < deadline, f"no message came to {queue!r}"
        opened.connection.process_data_events(0.01)
    return found


def bodies(opened: BlockingChannel, queue: str) -> list[bytes]:
    """What is ready in a queue, taken out of it."""
    found: list[bytes] = []
    while (message := get(opened, queue)) is not None:
        found.append(message.body)
    return found

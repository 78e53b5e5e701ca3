"""The core without protocols: messages, and consumers that record."""

from __future__ import annotations

from tests.support.server import Server
from trivium.messages.message import AT_LEAST_ONCE, PROTOCOL_NONE, Address, Message
from trivium.queues.namespace import QueueNamespace
from trivium.queues.queue import Consumer, Queue
from trivium.queues.sub_queues import QueueEntry
from trivium.runtime.broker import Broker
from trivium.storage.base import Storage
from trivium.vhost.virtual_host import VirtualHost


class RecordingConsumer(Consumer):
    """Keeps what it gets; takes up to ``credit`` entries."""

    def __init__(self, credit: int = 1_000_000, priority: int = 0, no_ack: bool = False) -> None:
        self.credit = credit
        self.priority = priority
        self.settles_on_delivery = no_ack
        self.entries: list[QueueEntry] = []
        self.was_cancelled = False

    def takes_delivery(self) -> bool:
        return self.credit > 0

    def deliver(self, entry: QueueEntry) -> None:
        self.credit -= 1
        self.entries.append(entry)

    def cancelled(self) -> None:
        self.was_cancelled = True

    @property
    def payloads(self) -> list[bytes]:
        return [entry.message.payload for entry in self.entries]


def open_broker(storage: Storage | None = None) -> Broker:
    return Server(storage).broker


def open_vhost(storage: Storage | None = None) -> VirtualHost:
    return open_broker(storage).vhosts["/"]


def message(
    payload: bytes = b"",
    key: bytes = b"k",
    exchange: str = "",
    persistent: bool = True,
    mode: int = AT_LEAST_ONCE,
    expires: int = 0,
    priority: int = 0,
) -> Message:
    return Message(
        PROTOCOL_NONE,
        Address(exchange, key),
        b"",
        payload,
        mode,
        persistent,
        timestamp=1_700_000_000_000,
        expires=expires,
        priority=priority,
    )


def drain(queue: Queue) -> list[bytes]:
    """Take and settle everything that is ready."""
    payloads: list[bytes] = []
    while (entry := queue.get()) is not None:
        payloads.append(entry.message.payload)
        queue.settle(entry)
    return payloads


def broker_of(vhost: QueueNamespace) -> Broker:
    """The broker that a virtual host is in."""
    broker = vhost.broker
    assert isinstance(broker, Broker)
    return broker

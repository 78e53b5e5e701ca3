"""Messages that operators publish, and take from queues to look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.errors import PreconditionFailed
from trivium.messages.delivery import DELAY_HEADER, DELIVERY_HEADER, delay_of, delivery_mode
from trivium.messages.message import (
    AT_MOST_ONCE,
    PROTOCOL_NEUTRAL,
    Message,
    Properties,
)
from trivium.messages.neutral import encode_neutral
from trivium.messages.topics import MAX_LEVELS
from trivium.queues.ready import LoadWaiter

if TYPE_CHECKING:
    from trivium.queues.queue import Queue, QueueEntry
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

#: Messages, and bytes of payload, that are taken together.
MAX_TAKEN: Final = 1000
MAX_TAKEN_BYTES: Final = 16 * 1024 * 1024
#: Bytes of a routing key, as of the longest topic on another road.
MAX_KEY_BYTES: Final = 65_535


def publish(
    broker: Broker,
    vhost: VirtualHost,
    exchange: str,
    key: bytes,
    properties: Properties,
    payload: bytes,
    mode: int = AT_MOST_ONCE,
    priority: int = 0,
    retain: bool = False,
) -> int:
    """Publish a message: what ``VirtualHost.publish`` says, UNROUTABLE or REJECTED among it.

    The headers that choose how a message is treated mean what they mean on every protocol. Raises
    TopologyError.
    """
    if len(payload) > broker.config.limits.max_message_bytes:
        most = broker.config.limits.max_message_bytes
        raise PreconditionFailed(f"a message has at most {most} bytes")
    if len(key) > MAX_KEY_BYTES or key.count(b".") >= MAX_LEVELS:
        bounds = f"{MAX_KEY_BYTES} bytes and {MAX_LEVELS} levels"
        raise PreconditionFailed(f"a routing key has at most {bounds}")
    source = vhost.exchange(exchange)
    wanted = properties.header(DELIVERY_HEADER)
    insists = wanted is not None
    if insists:
        mode = delivery_mode(wanted)
        if mode < 0:
            raise PreconditionFailed(f"'{DELIVERY_HEADER}' is no delivery mode")
    delay = delay_of(properties.header(DELAY_HEADER) or 0)
    if delay < 0:
        raise PreconditionFailed(f"'{DELAY_HEADER}' is no time in milliseconds")
    if delay:
        # As consumers see it of one that was delayed: who passes it on does not delay it again.
        others = [pair for pair in properties.headers if pair[0] != DELAY_HEADER]
        properties.headers = [*others, (DELAY_HEADER, -delay)]
    route = vhost.route(source, key)
    now_ms = broker.now_ms
    message = Message(
        PROTOCOL_NEUTRAL,
        route.address,
        encode_neutral(properties),
        payload,
        mode,
        mode != AT_MOST_ONCE,
        now_ms,
        0 if properties.expiration is None else now_ms + properties.expiration,
        retain,
        priority,
        deliver_at=now_ms + delay if delay else 0,
        insists=insists,
    )
    return vhost.publish(message, route.resolve(message))


def give_back(queue: Queue, entries: list[QueueEntry]) -> None:
    """What was taken comes back as if nobody had seen it."""
    for entry in entries:
        queue.requeue(entry, False)
    queue.dispatch_later()


class Taking(LoadWaiter):
    """Takes messages of a queue, then calls ``done`` with them, who settles or requeues each.

    It waits for those that have to be read from the disk.
    """

    def __init__(self, queue: Queue, count: int, done: Callable[[list[QueueEntry]], None]) -> None:
        self._queue = queue
        self._left = min(count, MAX_TAKEN)
        self._done = done
        self._bytes = 0
        self._taken: list[QueueEntry] = []

    def go_on(self) -> None:
        """Take what there is."""
        queue = self._queue
        while self._left and self._bytes < MAX_TAKEN_BYTES and not queue.is_deleted:
            entry = queue.get()
            if entry is None:
                if queue.ready.is_loading:
                    queue.ready.await_load(self)
                    return
                break
            if queue.vhost.is_watched:
                vhost = queue.vhost
                vhost.delivered(entry.message, queue.name, entry.is_redelivered, entry=entry)
            self._left -= 1
            self._bytes += entry.message.size
            self._taken.append(entry)
        taken = self._taken
        self._taken = []
        self._done(taken)

    def loaded(self) -> None:
        self.go_on()

"""Which consumers and queues of a connection can go on, and when they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.queues.queue import Queue

if TYPE_CHECKING:
    from trivium_amqp.consumer import AmqpConsumer


class Dispatches:
    """What one connection dispatches at the end of a feed, and when its output was written."""

    def __init__(self) -> None:
        self._credited: list[AmqpConsumer] = []
        self._held: dict[int, Queue] = {}

    def credit(self, consumer: AmqpConsumer) -> None:
        """The consumer can take more again: dispatch at the end of this feed, in its turn where
        the channel as a whole is limited."""
        consumer.is_credited = True
        self._credited.append(consumer)
        channel = consumer.channel
        if channel.limit != 0:
            channel.waiting.setdefault(id(consumer), consumer)

    def hold(self, queue: Queue) -> None:
        """Dispatch ``queue`` once output has been written."""
        self._held[id(queue)] = queue

    def end_feed(self) -> None:
        """Dispatch to the consumers that can take more again."""
        if not self._credited:
            return
        consumers = self._credited
        self._credited = []
        # All of them first, so that those of one queue are served in rotation.
        for consumer in consumers:
            consumer.is_credited = False
            if consumer.channel.limit == 0:
                consumer.queue.consumers.resume(consumer)
        for consumer in consumers:
            if consumer.channel.limit == 0:
                consumer.queue.serve(consumer)
            else:
                consumer.channel.serve_waiting()

    def written(self) -> None:
        """There is room for output again: dispatch the queues that waited for it."""
        if self._held:
            queues = list(self._held.values())
            self._held.clear()
            for queue in queues:
                queue.dispatch()

    def clear(self) -> None:
        """Nobody is to get anything any more."""
        self._credited.clear()
        self._held.clear()

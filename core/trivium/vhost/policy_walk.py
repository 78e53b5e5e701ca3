"""Putting policies in force: a part of the queues and streams in each turn.

A virtual host may have many of them, and each is compared with up to all policies. What is made
while a walk is under way has the policies of that moment from the start. Another change meanwhile
has the walk go on once round from where it is, so that everything is reached however often policies
change. Nothing of it is kept: a restart applies what the policies are then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from trivium.common.timers import Timed
from trivium.idempotence.deduplication import QUEUE
from trivium.queues.queue import Queue
from trivium.queues.settings import settings_of
from trivium.streams.settings import stream_settings_of
from trivium.streams.stream import Stream
from trivium.vhost.policies import STREAMS, kind_of

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost

#: Queues and streams that are reached in one turn.
MAX_PER_TURN: Final = 128


@mypyc_attr(allow_interpreted_subclasses=True)
class PolicyWaiter:
    """Wants to know when the policies as they are now are in force everywhere."""

    def in_force(self) -> None:
        """They are, or later ones."""
        raise NotImplementedError


class PolicyWalk(Timed):
    """The walk over what the policies may match. One for a virtual host."""

    def __init__(self, vhost: VirtualHost, default_delivery: int) -> None:
        self._vhost = vhost
        self._default_delivery = default_delivery
        self._items: list[Queue | Stream] = []
        self._next = 0
        # Items that are yet to be reached, and what may be reached in this turn.
        self._left = 0
        self._allowed = MAX_PER_TURN
        self._waiters: list[PolicyWaiter] = []

    def apply_to_queue(self, queue: Queue) -> None:
        """Put in force for ``queue`` what its arguments and the policies say."""
        vhost = self._vhost
        policies = vhost.policies.in_force(queue.name, kind_of(queue.arguments))
        settings = settings_of(
            queue.arguments,
            policies.definition,
            self._default_delivery,
            is_private=queue.adapter != "",
            passes_on=policies.passes_on,
        )
        if settings is not queue.settings:
            queue.apply(settings)
        vhost.deduplication.limit(QUEUE, queue.name, settings.deduplication.size)

    def apply_to_stream(self, stream: Stream) -> None:
        """Put in force for ``stream`` what its arguments and the policies say."""
        policies = self._vhost.policies.in_force(stream.name, STREAMS)
        stream.apply(stream_settings_of(stream.arguments, policies.definition))

    @property
    def is_done(self) -> bool:
        """Whether the policies are in force everywhere."""
        return self._left == 0

    def begin(self) -> None:
        """The policies have changed."""
        if not self._items:
            vhost = self._vhost
            self._items = [*vhost.queues.values(), *vhost.streams.values()]
            self._next = 0
        self._left = len(self._items)
        self._go_on()

    def add(self, item: Queue | Stream) -> None:
        """Something was made, with the policies as they are now."""
        if self._left:
            self._items.append(item)
            self._left += 1

    def wait(self, waiter: PolicyWaiter) -> None:
        """Tell ``waiter`` when the policies are in force everywhere; not for when ``is_done``."""
        self._waiters.append(waiter)

    def finish(self) -> None:
        """Reach everything now."""
        while self._left:
            self._allowed = MAX_PER_TURN
            self._go_on()

    def due(self) -> None:
        """Another turn."""
        self._allowed = MAX_PER_TURN
        self._go_on()

    def _go_on(self) -> None:
        items = self._items
        vhost = self._vhost
        while self._left and self._allowed:
            item = items[self._next]
            self._next = self._next + 1 if self._next + 1 < len(items) else 0
            self._left -= 1
            self._allowed -= 1
            if not item.is_deleted:
                if isinstance(item, Queue):
                    self.apply_to_queue(item)
                else:
                    self.apply_to_stream(item)
        if self._allowed < MAX_PER_TURN:
            vhost.broker.timeouts.call_at(vhost.broker.elapsed_ms, self)
        if not self._left:
            self._items = []
            waiters = self._waiters
            self._waiters = []
            for waiter in waiters:
                waiter.in_force()

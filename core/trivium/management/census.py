"""What there is in some virtual hosts, counted a part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trivium.management.listing import Slices
from trivium.queues.queue import Queue

if TYPE_CHECKING:
    from trivium.streams.stream import Stream
    from trivium.vhost.virtual_host import VirtualHost


class Census:
    """The sums, once they are counted."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.queues = 0
        self.streams = 0
        self.consumers = 0
        #: messages of queues
        self.ready = 0
        self.unsettled = 0
        #: that are routed later
        self.delayed = 0
        #: of streams
        self.records = 0
        self.retained = 0
        self.groups = 0

    def count(self, vhosts: Iterable[VirtualHost]) -> Iterator[None]:
        """Count; each time that it pauses others are to be served."""
        slices = Slices()
        for vhost in vhosts:
            self.exchanges += len(vhost.exchanges)
            self.queues += len(vhost.queues)
            self.streams += len(vhost.streams)
            self.delayed += len(vhost.delays)
            self.retained += len(vhost.retained)
            self.groups += len(vhost.groups)
            items: list[Queue | Stream] = [*vhost.queues.values(), *vhost.streams.values()]
            for item in items:
                self._add(item)
                if slices.is_over:
                    yield
                    slices.begin()

    def _add(self, item: Queue | Stream) -> None:
        if isinstance(item, Queue):
            self.ready += len(item)
            self.unsettled += item.unsettled
            self.consumers += item.consumers.present()
        else:
            self.records += item.record_count

"""The queues and streams of virtual hosts by name, as long as none comes or goes.

Lists are asked for page after page, and again and again: what has been put in order once serves
for all of that. Names are kept, so that nothing lives on that was deleted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from trivium.management import views
from trivium.management.listing import InOrder, ordered

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.queues.queue import Queue
    from trivium.streams.stream import Stream
    from trivium.vhost.virtual_host import VirtualHost


class _Order:
    def __init__(self, vhost: VirtualHost, version: int, names: list[str]) -> None:
        self.vhost = vhost
        self.version = version
        self.names = names


class Orders:
    """Those of one broker."""

    def __init__(self) -> None:
        # By virtual host, and whether its streams are among them.
        self._known: dict[tuple[str, bool], _Order] = {}

    def names(self, vhost: VirtualHost, has_streams: bool) -> Generator[None, None, list[str]]:
        """The names, in order; others may be served between. They must not be changed."""
        key = vhost.name, has_streams
        known = self._known.get(key)
        if known is not None and known.vhost is vhost and known.version == vhost.topology_version:
            return known.names
        version = vhost.topology_version
        names: list[str] = []
        for name in ordered([*vhost.queues, *(vhost.streams if has_streams else ())]):
            if name is None:
                yield
            else:
                names.append(name)
        self._known[key] = _Order(vhost, version, names)
        return names

    def forget(self, vhost: str) -> None:
        """A virtual host is gone."""
        for has_streams in (False, True):
            self._known.pop((vhost, has_streams), None)


def in_order(
    call: Call, has_streams: bool
) -> Generator[None, None, InOrder[tuple[VirtualHost, Queue | Stream]]]:
    """The queues, and streams, that the caller may see, in order."""
    places: list[tuple[VirtualHost, list[str]]] = []
    for vhost in call.vhosts():
        names = yield from call.state.orders.names(vhost, has_streams)
        places.append((vhost, names))

    def some(first: int, count: int) -> Iterator[tuple[VirtualHost, Queue | Stream]]:
        for vhost, names in places:
            taken = names[first : first + count]
            for name in taken:
                found = views.find_queue(vhost, name)
                if found is not None:
                    yield vhost, found
            first = max(first - len(names), 0)
            count -= len(taken)

    return InOrder(sum(len(names) for _, names in places), some)

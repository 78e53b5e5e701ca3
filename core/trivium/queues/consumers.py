"""The consumers of a queue, and which of them is next: round robin within a priority.

Those that may take an entry stand in a row for each priority. The first one of the highest row is
asked: it takes the entry and goes to the end of its row, or takes none and stands aside until it,
or the queue as a whole, says that it may take some again. So an entry finds its consumer in a few
steps however many there are, and nobody is asked twice for nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from mypy_extensions import mypyc_attr

from trivium.common.descriptions import ConsumerDescription
from trivium.queues.sub_queues import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """Receives entries of one queue. Adapters subclass it."""

    #: entries are settled by being handed over (AMQP no-ack)
    settles_on_delivery: bool = False
    #: of several consumers that can take an entry, those with the highest priority get it
    priority: int = 0

    def takes_delivery(self) -> bool:
        """Whether it has credit left and its connection takes output.

        After False it is not asked again before ``Queue.serve`` or ``Queue.dispatch`` is called.
        """
        raise NotImplementedError

    def deliver(self, entry: QueueEntry) -> None:
        """Take an entry. It is this consumer's until it calls ``settle``, ``reject`` or ``requeue``
        of ``entry.queue``."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """The queue is gone; entries still held need not be settled any more."""

    def describe(self) -> ConsumerDescription | None:
        """What operators see of it; None for one that has no client."""
        return None

    def client(self) -> object:
        """The connection of its client; None for one that has none."""
        return None

    def is_there(self) -> bool:
        """Whether whoever it is of is there, and not a client that may come back."""
        return True


class Place:
    """Where a consumer stands: in the row of its priority, or aside."""

    def __init__(self, consumer: Consumer, row: Row) -> None:
        self.consumer = consumer
        self.home = row
        self.row = row
        self.before: Place | None = None
        self.behind: Place | None = None


class Row:
    """Places behind each other."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.first: Place | None = None
        self.last: Place | None = None
        #: consumers of this priority, also those that stand aside
        self.members = 0
        #: whether it is among the rows that are looked at
        self.is_open = False

    def append(self, place: Place) -> None:
        """Put ``place``, which stands nowhere, at the end."""
        last = self.last
        if last is None:
            self.first = place
        else:
            last.behind = place
        place.before = last
        place.row = self
        self.last = place

    def remove(self, place: Place) -> None:
        """Take out ``place``, which stands here."""
        before = place.before
        behind = place.behind
        if before is None:
            self.first = behind
        else:
            before.behind = behind
        if behind is None:
            self.last = before
        else:
            behind.before = before
        # They would keep each other in memory.
        place.before = place.behind = None


def _priority(row: Row) -> int:
    return row.priority


class Rotation:
    """The consumers of one queue in the order in which they are asked."""

    def __init__(self) -> None:
        self._places: dict[Consumer, Place] = {}
        self._rows: dict[int, Row] = {}
        # Those in which somebody may stand, by ascending priority.
        self._open: list[Row] = []
        self._aside = Row(0)
        #: one consumer has the queue for itself (AMQP exclusive), and others are refused
        self.is_exclusive = False
        #: only the first consumer is asked, and others wait until it leaves (single active)
        self.is_single = False

    def __len__(self) -> int:
        return len(self._places)

    def present(self) -> int:
        """How many there are for those who count consumers: whose client is away is none."""
        count = 0
        for consumer in self._places:
            if consumer.is_there():
                count += 1
        return count

    def all(self) -> list[Consumer]:
        """All consumers, in the order in which they came."""
        return list(self._places)

    def add(self, consumer: Consumer) -> None:
        """A consumer comes; it is not among them."""
        row = self._rows.get(consumer.priority)
        if row is None:
            row = self._rows[consumer.priority] = Row(consumer.priority)
        row.members += 1
        place = self._places[consumer] = Place(consumer, row)
        self._stand(place)

    def remove(self, consumer: Consumer) -> bool:
        """A consumer leaves; whether it was among them."""
        place = self._places.pop(consumer, None)
        if place is None:
            return False
        place.row.remove(place)
        home = place.home
        home.members -= 1
        if home.members == 0:
            del self._rows[home.priority]
            if home.is_open:
                del self._open[bisect_left(self._open, home.priority, key=_priority)]
        return True

    def first(self) -> Consumer | None:
        """Of those with the highest priority the one that came first, if nobody was ever asked."""
        while self._open:
            first = self._open[-1].first
            if first is not None:
                return first.consumer
            self._open.pop().is_open = False
        return None

    def next(self) -> Consumer | None:
        """The consumer that is to have an entry; None when nobody takes any."""
        if self.is_single:
            # Nobody else is asked, so the first is the one that came first.
            only = self.first()
            return only if only is not None and only.takes_delivery() else None
        while self._open:
            row = self._open[-1]
            place = row.first
            if place is None:
                self._open.pop().is_open = False
                continue
            consumer = place.consumer
            takes = consumer.takes_delivery()
            if takes and place.behind is None:
                return consumer
            row.remove(place)
            if takes:
                row.append(place)
                return consumer
            self._aside.append(place)
        return None

    def resume(self, consumer: Consumer) -> None:
        """``consumer`` may take entries again."""
        place = self._places.get(consumer)
        if place is not None and place.row is self._aside:
            self._aside.remove(place)
            self._stand(place)

    def resume_all(self) -> None:
        """Whoever stands aside may take entries again."""
        aside = self._aside
        place = aside.first
        while place is not None:
            aside.remove(place)
            self._stand(place)
            place = aside.first

    def clear(self) -> None:
        """Nobody is left."""
        for consumer in self.all():
            self.remove(consumer)

    def _stand(self, place: Place) -> None:
        row = place.home
        row.append(place)
        if not row.is_open:
            row.is_open = True
            insort(self._open, row, key=_priority)


#: The consumers of a queue that has none. Nobody is ever put in.
NOBODY: Final[Rotation] = Rotation()

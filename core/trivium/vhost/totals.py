"""What queues and streams have counted since the start, to be shown, and their sums."""

from __future__ import annotations

from trivium.queues.queue import Queue
from trivium.streams.stream import Stream


class Totals:
    """Of the queues and streams that were added: one of them, or those of a virtual host."""

    def __init__(self) -> None:
        #: messages that queues took, and that they refused for want of room
        self.published = 0
        self.refused = 0
        #: handed to consumers, to be settled or settled thereby
        self.delivered = 0
        self.delivered_settled = 0
        self.redelivered = 0
        #: taken without a consumer
        self.got = 0
        self.got_settled = 0
        self.got_nothing = 0
        #: settled by those who got them to settle them
        self.acknowledged = 0
        self.expired = 0
        #: given up, by reason: for a dead letter exchange, and for good
        self.dead_lettered: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        #: records of streams: appended, and read by clients
        self.appended = 0
        self.records_read = 0
        #: messages that streams took
        self.stream_messages = 0

    def copy(self) -> Totals:
        """The same, to add more."""
        totals = Totals()
        totals.add_totals(self)
        return totals

    def add_totals(self, other: Totals) -> None:
        """Add what was summed up."""
        self.published += other.published
        self.refused += other.refused
        self.delivered += other.delivered
        self.delivered_settled += other.delivered_settled
        self.redelivered += other.redelivered
        self.got += other.got
        self.got_settled += other.got_settled
        self.got_nothing += other.got_nothing
        self.acknowledged += other.acknowledged
        self.expired += other.expired
        self.appended += other.appended
        self.records_read += other.records_read
        self.stream_messages += other.stream_messages
        _add(self.dead_lettered, other.dead_lettered)
        _add(self.dropped, other.dropped)

    def add(self, queue: Queue) -> None:
        """Add what a queue has counted."""
        counters = queue.counters
        given_up = queue.given_up
        self.published += counters.published
        self.refused += counters.refused
        self.delivered += counters.delivered
        self.delivered_settled += counters.delivered_settled
        self.redelivered += counters.redelivered
        self.got += counters.got
        self.got_settled += counters.got_settled
        self.got_nothing += counters.got_nothing
        self.expired += given_up.expired
        # What is on its way to the dead letter exchange is not settled yet.
        others = counters.delivered_settled + counters.got_settled - given_up.count
        others += _add(self.dead_lettered, given_up.dead_lettered)
        others += _add(self.dropped, given_up.dropped)
        self.acknowledged += counters.settled - others

    def add_stream(self, stream: Stream) -> None:
        """Add what a stream has counted."""
        self.stream_messages += stream.published
        for partition in stream.partitions:
            self.appended += partition.appended
            self.records_read += partition.records_read


def _add(sums: dict[str, int], counts: dict[str, int]) -> int:
    """Add counts by reason to ``sums``; how many they are in all."""
    total = 0
    for reason, count in counts.items():
        sums[reason] = sums.get(reason, 0) + count
        total += count
    return total


def totals_of(queue: Queue) -> Totals:
    """What one queue has counted."""
    totals = Totals()
    totals.add(queue)
    return totals

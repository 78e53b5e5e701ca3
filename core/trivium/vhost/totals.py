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
        #: settled by those who got them to settle them
        self.acknowledged = 0
        self.expired = 0
        #: given up, by reason: for a dead letter exchange, and for good
        self.dead_lettered: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        #: records of streams: appended, and read by clients
        self.appended = 0
        self.records_read = 0

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
        self.expired += given_up.expired
        # What is on its way to the dead letter exchange is not settled yet.
        others = counters.delivered_settled + counters.got_settled - given_up.count
        for sums, counts in (
            (self.dead_lettered, given_up.dead_lettered),
            (self.dropped, given_up.dropped),
        ):
            for reason, count in counts.items():
                sums[reason] = sums.get(reason, 0) + count
                others += count
        self.acknowledged += counters.settled - others

    def add_stream(self, stream: Stream) -> None:
        """Add what a stream has counted."""
        for partition in stream.partitions:
            self.appended += partition.appended
            self.records_read += partition.records_read


def totals_of(queue: Queue) -> Totals:
    """What one queue has counted."""
    totals = Totals()
    totals.add(queue)
    return totals

"""What is counted of each queue, exchange and connection since the start of the process.

Counters are native integers of compiled classes: to count costs one addition, and nothing is looked
up, locked or rendered before somebody asks. They only ever rise. What is made anew, such as a queue
that is declared again under its name, begins at 0.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(acyclic=True)
class QueueCounters:
    """Of one queue, once it has messages. What became of those that no client acknowledged is told
    by ``GivenUp.dropped`` and ``GivenUp.dead_lettered``."""

    def __init__(self) -> None:
        #: messages that it took
        self.published: i64 = 0
        #: messages that it refused for want of room
        self.refused: i64 = 0
        #: handed to consumers that are to settle them, redeliveries included
        self.delivered: i64 = 0
        #: handed to consumers and thereby settled
        self.delivered_settled: i64 = 0
        #: of those handed to consumers: were handed out before
        self.redelivered: i64 = 0
        #: taken without a consumer (AMQP basic.get), to be settled later, and settled thereby
        self.got: i64 = 0
        self.got_settled: i64 = 0
        #: how often there was nothing to take
        self.got_nothing: i64 = 0
        #: done with for good, for whatever reason
        self.settled: i64 = 0


#: Those of a queue that never had messages, as most are that are idle. They stay 0.
NOTHING_COUNTED: Final[QueueCounters] = QueueCounters()


@mypyc_attr(acyclic=True)
class ExchangeCounters:
    """Of one exchange."""

    def __init__(self) -> None:
        #: messages that publishers addressed to it
        self.published: i64 = 0
        #: messages that it led to destinations, each counted once for each of them
        self.routed: i64 = 0
        #: messages that led nowhere
        self.unroutable: i64 = 0


#: Where routes count that are no exchange's own. Nobody reads them.
UNREAD: Final[ExchangeCounters] = ExchangeCounters()


@mypyc_attr(acyclic=True)
class Traffic:
    """Of one connection or channel, or the sum of those of a user, virtual host or listener."""

    def __init__(self) -> None:
        #: messages that the client published
        self.published: i64 = 0
        #: publishes that were confirmed, MQTT's at QoS 1 and 2 among them
        self.confirmed: i64 = 0
        #: publishes that led nowhere: the client was told of it, and others
        self.returned: i64 = 0
        self.unroutable: i64 = 0
        #: messages that were sent to the client: to be settled by it, and others
        self.delivered: i64 = 0
        self.delivered_settled: i64 = 0
        #: of all that were sent to it: were sent to somebody before
        self.redelivered: i64 = 0
        #: messages that the client fetched one by one, likewise
        self.got: i64 = 0
        self.got_settled: i64 = 0
        #: how often it would have fetched one, and there was none
        self.got_nothing: i64 = 0
        #: deliveries that the client acknowledged
        self.acknowledged: i64 = 0
        self.bytes_received: i64 = 0
        self.bytes_sent: i64 = 0
        #: how often something was read of its socket, and written to it
        self.reads: i64 = 0
        self.writes: i64 = 0

    def is_any(self) -> bool:
        """Whether there is something that it has counted."""
        sent = self.delivered + self.delivered_settled + self.got + self.got_settled
        others = self.published + self.got_nothing + self.acknowledged
        return sent + others + self.bytes_received + self.bytes_sent > 0

    def add(self, other: Traffic) -> None:
        """Add what another one has counted."""
        self.published += other.published
        self.confirmed += other.confirmed
        self.returned += other.returned
        self.unroutable += other.unroutable
        self.delivered += other.delivered
        self.delivered_settled += other.delivered_settled
        self.redelivered += other.redelivered
        self.got += other.got
        self.got_settled += other.got_settled
        self.got_nothing += other.got_nothing
        self.acknowledged += other.acknowledged
        self.bytes_received += other.bytes_received
        self.bytes_sent += other.bytes_sent
        self.reads += other.reads
        self.writes += other.writes

"""Publishers wait for moments while live subscribers read what they published.

What a live subscription gets is kept nowhere, so it is dropped once the subscriber's output is too
large. A publisher at full speed would outrun any subscriber, also one that reads as fast as it can.
So while the output of a subscriber whose socket is full is above its high-water mark, and the
socket goes on taking bytes, whoever publishes to it is not read: until the socket takes all of it,
and for MOMENT_MS in a row at most, so that the publisher makes progress whatever the subscriber
does. A subscriber whose socket takes nothing, or next to nothing, slows nobody: it is dropped from.

Nothing here costs anything per message. A subscriber is looked at when its output is above its
high-water mark, a publisher at the end of its feed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed

if TYPE_CHECKING:
    from trivium.runtime.adapter import Connection
    from trivium.runtime.broker import Broker

#: The longest time in a row, in milliseconds, that a publisher waits.
MOMENT_MS: Final = 80
#: A subscriber reads if its socket takes so many bytes within so many milliseconds. It is several
#: moments, since the kernel makes room in steps of some hundred kilobytes on loopback, and since a
#: busy machine lets a client wait.
PROGRESS: Final = 16 * 1024
STALL_MS: Final = 400


class Slowdown(Timed):
    """One subscriber with a full socket, from when its output passed its high-water mark."""

    def __init__(self, broker: Broker, subscriber: Connection) -> None:
        #: it does not read: what comes for it is dropped until its socket takes output again
        self.has_stalled = False
        #: this feed has given it something
        self.is_reached = False
        self.publishers: list[Connection] = []
        self._broker = broker
        self._subscriber = subscriber
        self._unsent = subscriber.transport.unsent()
        self._progressed_at = broker.elapsed_ms

    def wait(self, publisher: Connection) -> None:
        """Have ``publisher`` wait for a moment."""
        if not self.publishers:
            self._broker.timeouts.call_at(self._broker.elapsed_ms + MOMENT_MS, self)
        self.publishers.append(publisher)
        publisher.waits_for += 1

    def release(self) -> None:
        """Let the publishers go on."""
        publishers = self.publishers
        self.publishers = []
        for publisher in publishers:
            publisher.waits_for -= 1
            if publisher.waits_for == 0 and not publisher.is_closed:
                publisher.subscribers_ready()

    def due(self) -> None:
        """The moment is over."""
        if self._subscriber.slowdown is self:
            self._look()
        # Also once it has ended: what reached the subscriber just before, a will perhaps, may have
        # had a publisher wait that was fed just after.
        self.release()

    def _look(self) -> None:
        """Whether the socket has taken enough."""
        now = self._broker.elapsed_ms
        unsent = self._subscriber.transport.unsent()
        if self._unsent - unsent >= PROGRESS:
            self._unsent = unsent
            self._progressed_at = now
        elif now - self._progressed_at >= STALL_MS:
            self.has_stalled = True


class Pacing:
    """Which publishers wait for which subscribers. One for a broker."""

    def __init__(self, broker: Broker) -> None:
        #: subscribers above their high-water mark that this feed has given something
        self.reached: list[Slowdown] = []
        #: times that a publisher waited
        self.waits = 0
        #: whether all publishers are paused until the disk has caught up
        self.is_behind = False
        #: times that they were
        self.brief_pauses = 0
        self._broker = broker
        self._limit = broker.config.limits.live_burst_bytes

    def follow_backlog(self, size: int, limit: int) -> bool:
        """So many bytes wait for the disk, which is behind above ``limit``, and then until half of
        that is left; whether that has changed."""
        is_behind = size > (limit // 2 if self.is_behind else limit)
        if is_behind == self.is_behind:
            return False
        self.is_behind = is_behind
        if is_behind:
            self.brief_pauses += 1
        return True

    def admits(self, subscriber: Connection) -> bool:
        """Whether a live message may be added to output that is above its high-water mark."""
        if subscriber.output_size >= self._limit or subscriber.is_closed:
            return False
        if subscriber.is_writable:
            return True
        slowdown = subscriber.slowdown
        if slowdown is None:
            slowdown = Slowdown(self._broker, subscriber)
            subscriber.slowdown = slowdown
        if slowdown.has_stalled:
            return False
        if not slowdown.is_reached:
            slowdown.is_reached = True
            self.reached.append(slowdown)
        return True

    def fed(self, publisher: Connection) -> None:
        """The feed in which ``publisher`` reached subscribers is over."""
        for slowdown in self._take_reached():
            slowdown.wait(publisher)
        self.waits += 1
        publisher.wait_for_subscribers()

    def end_turn(self) -> None:
        """What reached subscribers otherwise (wills, delayed messages) has nobody to be slowed."""
        self._take_reached()

    def _take_reached(self) -> list[Slowdown]:
        reached = self.reached
        self.reached = []
        for slowdown in reached:
            slowdown.is_reached = False
        return reached

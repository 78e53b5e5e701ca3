"""The way into a connection: what has arrived and is not taken yet, and why it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from trivium.common.pieces import Pieces
from trivium.common.timers import Timed
from trivium.messages.large import LARGE_PAYLOAD
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Connection, Peer, Transport
from trivium.runtime.usage import Throttle

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

# Why input is held; a set of bits. The first: the turn has lasted long enough, others are served
# first. The second: live subscribers are behind with what the client has published.
FOR_TURN: Final = 1
FOR_SUBSCRIBERS: Final = 2

#: The first bit that protocols may use; the one before is ``trivium.runtime.usage.FOR_QUOTA``.
FOR_PROTOCOL: Final = 8

#: Frames that are taken between two looks at the clock, and bytes after which it is looked at in
#: any case (16 KiB).
CLOCK_FRAMES: Final = 64
CLOCK_BYTES: Final = 16 * 1024

#: Deliveries of one message that take about as long as its frame.
FRAME_DELIVERIES: Final = 8

#: Milliseconds that the disk gets with what a connection that ends has yet to be answered.
FAREWELL_MS: Final = 3000


class Farewell(Timed):
    """What a connection that is over is told last, once the disk has what it is told before."""

    def __init__(self, connection: FramedConnection, last: bytes) -> None:
        self._connection = connection
        self.last = last

    def due(self) -> None:
        """The disk has had time enough."""
        self._connection.say_farewell()


@mypyc_attr(allow_interpreted_subclasses=True)
class Work:
    """What one frame asks for, where that takes several turns."""

    def go_on(self) -> bool:
        """Do what fits in the turn; whether that was the last of it. What refuses it is answered,
        never raised.
        """
        raise NotImplementedError

    def give_up(self) -> None:
        """It is not gone on with. Release what it holds."""
        raise NotImplementedError


def run_length(destinations: int) -> int:
    """Messages of a row with so many destinations each that are taken between two looks."""
    return max(CLOCK_FRAMES * FRAME_DELIVERIES // max(destinations, FRAME_DELIVERIES), 1)


@mypyc_attr(allow_interpreted_subclasses=True)
class FramedConnection(Connection):
    """A connection whose input is cut into frames, and may have to wait.

    A subclass implements ``take_frames``, which takes whole frames where they lie in what was
    read. What it leaves waits here: for the bytes that complete a frame, or until nothing holds
    input any more. While input is held the socket is not read.
    """

    def __init__(
        self, metrics: ProtocolMetrics, broker: Broker, transport: Transport, peer: Peer
    ) -> None:
        super().__init__(broker, transport, peer)
        self.metrics = metrics
        #: when input came last, or could not be heard of, in ``Broker.elapsed_ms``
        self.heard_at = broker.elapsed_ms
        #: when the client came, likewise: the time in which it must authenticate began then
        self.came_at = peer.came_at or self.heard_at
        #: why input is held, a set of the FOR_ constants; 0 when it is not
        self.held_for = 0
        #: bytes without which there is no whole frame in what waits
        self.needed = 0
        self.usage.input = self
        #: what lets its input through where it may publish so fast only
        self.throttle: Throttle | None = None
        self._farewell: Farewell | None = None
        self._pieces = Pieces()
        # What was read, and how much of it was taken, while only the turn holds input.
        self._read: bytes = b""
        self._taken = 0
        self._frames = CLOCK_FRAMES
        # What goes on in the next turn, before more frames are taken.
        self._work: Work | None = None

    def take_frames(self, data: bytes, at: int) -> int:
        """Take the whole frames in ``data`` from ``at`` on; return where what is left begins.

        Called with at least one byte. It ends before a frame where ``stops_input`` says so, and
        sets ``needed`` where a frame is incomplete. What cannot be read is answered, never raised.
        """
        raise NotImplementedError

    def take_large(self, frame: Pieces) -> bool:
        """Take the one whole frame that ``frame`` holds, of ``LARGE_PAYLOAD`` bytes or more.

        Called instead of ``take_frames``, so that the frame need not be joined. False, and nothing
        is done or changed, for one that must be.
        """
        return False

    def frames_taken(self) -> None:
        """Called after ``take_frames`` unless the connection was closed; what is left is safe."""

    def stops_input(self) -> bool:
        """Whether ``take_frames`` must leave the next frame; called before each."""
        self._frames -= 1
        if self._frames == 0:
            self._look_at_clock()
        return self.held_for != 0 or self.is_closed

    def count_frames(self, count: int) -> None:
        """So many frames were taken since ``stops_input`` was asked, or what took as long."""
        self._frames = max(self._frames - count, 1)

    def count_opened(self, size: int) -> None:
        """What was taken came compressed, and is so many bytes more than came."""
        self.count_frames(size // CLOCK_BYTES)
        if self.throttle is not None:
            self.throttle.count(0, size)

    def _look_at_clock(self) -> None:
        self._frames = CLOCK_FRAMES
        if not self.held_for & FOR_TURN and self.broker.driver.is_turn_long():
            self.hold_input(FOR_TURN)
            self.broker.driver.next_turn(self)

    def feed(self, data: bytes) -> None:
        if self.login is None and not self.broker.logins.received(self, len(data)):
            return
        if self.throttle is not None and self.throttle.takes(data):
            return
        self.heard_at = self.broker.elapsed_ms
        self.metrics.bytes_received += len(data)
        self.traffic.bytes_received += len(data)
        self.traffic.reads += 1
        pieces = self._pieces
        if self.held_for:
            self._set_aside()
            pieces.add(data)
            return
        at = 0
        if pieces.size:
            at = self.needed - pieces.size
            if at > len(data):
                pieces.add(data)
                return
            if self.needed < LARGE_PAYLOAD or at < 0:
                pieces.add(data)
                data = pieces.take()
                at = 0
            elif not self._takes_large(data, at):
                data = pieces.take() + data[at:]
                at = 0
        self._take(data, at)

    def _takes_large(self, data: bytes, end: int) -> bool:
        """Take the large frame that is whole with ``data[:end]``; False when it is in ``_pieces``
        for ``take_frames``.
        """
        pieces = self._pieces
        pieces.add_part(data, 0, end)
        before = self.metrics.messages_received
        is_taken = self.take_large(pieces)
        if self.throttle is not None:
            self.throttle.count(self.metrics.messages_received - before)
        if is_taken:
            pieces.clear()
        return is_taken

    def _take(self, data: bytes, at: int) -> None:
        size = len(data)
        self.needed = 0
        if at < size:
            before = self.metrics.messages_received
            at = self.take_frames(data, at)
            if self.throttle is not None:
                self.throttle.count(self.metrics.messages_received - before)
        if not self.is_closed:
            if at < size:
                self._read = data
                self._taken = at
                if self.held_for != FOR_TURN:
                    self._set_aside()
            self.frames_taken()
        if self.broker.pacing.reached:
            self.broker.pacing.fed(self)
        if size >= CLOCK_BYTES and not self.is_closed:
            self._look_at_clock()

    def _set_aside(self) -> None:
        """Keep what is left of what was read, without what was taken."""
        data = self._read
        if data:
            if self.needed < LARGE_PAYLOAD:
                self._pieces.add(data[self._taken :] if self._taken else data)
            else:
                self._pieces.add_part(data, self._taken, len(data))
                self._pieces.end_read()
            self._read = b""

    def hold_input(self, reason: int) -> None:
        """Take no more input for ``reason``; what the client sends stays in the socket."""
        if not self.held_for:
            self.transport.pause_reading()
        self.held_for |= reason

    def continue_input(self, reason: int) -> None:
        """``reason`` holds input no longer: go on, unless another does."""
        if not self.held_for & reason:
            return
        self.held_for &= ~reason
        if self.held_for or self.is_closed:
            return
        # Nothing could be heard of it.
        self.heard_at = self.broker.elapsed_ms
        self.transport.resume_reading()
        self.broker.driver.go_on(self)

    def take_waiting(self) -> None:
        """Take what waits, if there may be a whole frame in it."""
        data = self._read
        if data:
            self._read = b""
            self._take(data, self._taken)
        elif self._pieces.size and self._pieces.size >= self.needed:
            self._take(self._pieces.take(), 0)
        if self.throttle is not None:
            self.throttle.go_on()

    def take_back(self) -> bytes:
        """What was read and is not taken: it does not wait here any more."""
        self._set_aside()
        self.needed = 0
        return self._pieces.take()

    def put_back(self, data: bytes) -> None:
        """What waits begins with ``data``: whole frames that were left for later."""
        self._set_aside()
        waiting = self._pieces.take()
        self._pieces.add(data)
        if waiting:
            self._pieces.add(waiting)
        self.needed = 0

    @property
    def awaits_disk(self) -> bool:
        """Whether the client is to be told something that waits for the disk."""
        return False

    def close(self, waits: bool = True) -> None:
        """What waits for the disk is written first, if it comes in time."""
        if waits:
            self.close_with(b"")
        else:
            super().close(False)

    def close_with(self, last: bytes) -> None:
        """Send ``last`` and close; where the client ``awaits_disk``, once all that waits has left
        and ``say_farewell`` is called, or after ``FAREWELL_MS`` without it.

        Nothing more is fed or delivered.
        """
        if self.is_closed:
            return
        if not self.awaits_disk:
            if last:
                self.send(last)
            super().close()
            return
        self.is_closed = True
        self.usage.leave()
        farewell = self._farewell = Farewell(self, last)
        self.broker.timeouts.call_at(self.broker.elapsed_ms + FAREWELL_MS, farewell)

    @property
    def awaits_farewell(self) -> bool:
        """Whether it is over, but waits for the disk."""
        return self._farewell is not None

    def say_farewell(self) -> None:
        """Send what comes last, if that waits, and close."""
        farewell = self._farewell
        if farewell is not None:
            self.forget_farewell()
            if farewell.last:
                self.send(farewell.last)
            self.transport.close()

    def forget_farewell(self) -> None:
        """Say it no more: it is said, or there is nobody who could be told."""
        farewell = self._farewell
        if farewell is not None:
            self._farewell = None
            self.broker.timeouts.stop(farewell)

    def drop_input(self) -> None:
        """Forget what waits: nothing is taken any more."""
        self._read = b""
        self._pieces.clear()
        work = self._work
        if work is not None:
            self._work = None
            work.give_up()

    @property
    def waits_for_turn(self) -> bool:
        return self.held_for & FOR_TURN != 0 and not self.is_closed

    def next_turn(self) -> None:
        work = self._work
        if work is not None:
            if self.is_cut_off:
                # It would hold up all others, and nobody could be told how far it came. What is
                # behind it must not be taken without it.
                self.is_closed = True
            if self.is_closed:
                self.drop_input()
                return
            if not self._goes_on(work):
                return
            self._work = None
        self.continue_input(FOR_TURN)

    def take_turns(self, work: Work) -> None:
        """No frame is taken until ``work`` is done, which goes on in each turn that it asks the
        driver for."""
        self._work = work
        self.hold_input(FOR_TURN)

    def _goes_on(self, work: Work) -> bool:
        """Go on with ``work``; whether it is done."""
        before = self.metrics.messages_received
        is_done = work.go_on()
        if self.throttle is not None:
            self.throttle.count(self.metrics.messages_received - before)
        if not self.is_closed:
            self.frames_taken()
        if self.broker.pacing.reached:
            self.broker.pacing.fed(self)
        return is_done

    def wait_for_subscribers(self) -> None:
        self.hold_input(FOR_SUBSCRIBERS)

    def subscribers_ready(self) -> None:
        self.continue_input(FOR_SUBSCRIBERS)

"""The order of answers: those on one channel leave in the order of what they answer.

A method is carried out when it is read, but its answer may have to wait for the disk. What the
channel sends after it, deliveries aside, then waits in line behind it. Usually nothing waits,
and there are no lines. They are kept by channel number, since another channel of the number may be
open before the answers on the last one have left.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.runtime.framed import FAREWELL_MS
from trivium_amqp.consumer import AmqpConsumer

if TYPE_CHECKING:
    from trivium_amqp.connection import AmqpConnection

#: What each answer counts beside its bytes.
_COST: Final = 64


class Reply:
    """Frames that may leave once ``write_batch`` is durable."""

    def __init__(self, data: bytes, write_batch: int = 0) -> None:
        self.data = data
        self.write_batch = write_batch

    def leave(self, connection: AmqpConnection) -> bool:
        """Send it, unless it must wait: then False. It is first in its line."""
        if self.write_batch > connection.broker.storage.durable:
            return False
        connection.send(self.data)
        return True


class Confirm(Reply):
    """basic.ack, basic.nack or basic.return to a publisher: no call of the client waits for it."""


class ConsumeOk(Reply):
    """basic.consume-ok, behind which the deliveries come."""

    def __init__(self, data: bytes, consumer: AmqpConsumer) -> None:
        super().__init__(data)
        self._consumer = consumer

    def leave(self, connection: AmqpConnection) -> bool:
        """The reply is sent at the latest when nothing is before it."""
        super().leave(connection)
        self._consumer.start()
        return True


class CloseOk(Reply):
    """channel.close-ok, for which the disk gets a while: what waits before it leaves by then, or
    never."""

    def __init__(self, data: bytes, overdue: Overdue) -> None:
        super().__init__(data)
        self._overdue = overdue

    def leave(self, connection: AmqpConnection) -> bool:
        connection.broker.timeouts.stop(self._overdue)
        return super().leave(connection)


class Overdue(Timed):
    """The first channel.close-ok in the line of a channel has waited long enough."""

    def __init__(self, replies: Replies, channel: int) -> None:
        self._replies = replies
        self._channel = channel

    def due(self) -> None:
        self._replies.give_up_channel(self._channel)


class Replies:
    """The lines of one connection."""

    def __init__(self, connection: AmqpConnection) -> None:
        #: None once it is gone
        self._connection: AmqpConnection | None = connection
        self._lines: dict[int, deque[Reply]] = {}
        # connection.close, which leaves behind all answers.
        self._goodbye = b""

    @property
    def wait(self) -> bool:
        """Whether there are answers that wait for the disk, or behind one that does."""
        return len(self._lines) > 0

    def say_goodbye(self, frame: bytes) -> None:
        """Send connection.close behind all answers, now or later."""
        self.advance_all()
        connection = self._connection
        assert connection is not None
        if self._lines:
            self._goodbye = frame
        else:
            connection.send(frame)

    def _end(self, connection: AmqpConnection) -> None:
        """The last line is gone: send what was to come behind them."""
        if self._goodbye:
            connection.send(self._goodbye)
            self._goodbye = b""
        connection.say_farewell()

    def send(self, channel: int, data: bytes) -> None:
        """Send frames of a channel in their turn."""
        connection = self._connection
        if connection is None:
            return
        if not self._lines:
            connection.send(data)
        else:
            self.put(channel, Reply(data))

    def confirm(self, channel: int, data: bytes) -> None:
        """Tell a publisher what became of its messages, in its turn."""
        connection = self._connection
        if connection is None:
            return
        if not self._lines:
            connection.send(data)
        else:
            self.put(channel, Confirm(data))

    def put(self, channel: int, reply: Reply) -> None:
        """Have ``reply`` leave in its turn: now, when nothing is before it and it need not wait."""
        connection = self._connection
        if connection is None:
            return
        line = self._lines.get(channel)
        if line is None:
            if reply.leave(connection):
                return
            line = deque()
            self._lines[channel] = line
        line.append(reply)
        connection.unread_limit -= len(reply.data) + _COST
        if reply.write_batch:
            connection.await_durable()

    def close_channel(self, channel: int, data: bytes) -> None:
        """Send channel.close-ok in its turn, or after ``FAREWELL_MS``."""
        connection = self._connection
        assert connection is not None
        overdue = Overdue(self, channel)
        self.advance(channel)
        self.put(channel, CloseOk(data, overdue))
        if channel in self._lines:
            broker = connection.broker
            broker.timeouts.call_at(broker.elapsed_ms + FAREWELL_MS, overdue)

    def advance(self, channel: int) -> None:
        """Send what need not wait any more on a channel."""
        line = self._lines.get(channel)
        connection = self._connection
        if line is None or connection is None:
            return
        while line and line[0].leave(connection):
            connection.unread_limit += len(line.popleft().data) + _COST
        if not line:
            del self._lines[channel]
            if not self._lines:
                self._end(connection)

    def advance_all(self) -> None:
        """A write batch has become durable."""
        for channel in list(self._lines):
            self.advance(channel)

    def give_up(self) -> bool:
        """The disk has had time enough: what waits for it does not leave, so that connection.close
        does. Whether something was waiting.
        """
        connection = self._connection
        if connection is None or not self._lines:
            return False
        for line in self._lines.values():
            _give_up(line, connection)
        self._lines.clear()
        self._end(connection)
        return True

    def give_up_channel(self, channel: int) -> None:
        """The same for channel.close-ok."""
        line = self._lines.get(channel)
        connection = self._connection
        if line is not None and connection is not None:
            _give_up(line, connection)
            self.advance(channel)

    def end(self) -> None:
        """The connection is gone, and need not be kept in memory."""
        self._lines.clear()
        self._connection = None


def _give_up(line: deque[Reply], connection: AmqpConnection) -> None:
    """Drop what waits in a line, as far as channel.close-ok, which leaves.

    But publishers learn what became of their messages, or they would publish them again, where
    only what stands before that waits for the disk.
    """
    is_due = True
    while line:
        reply = line.popleft()
        connection.unread_limit += len(reply.data) + _COST
        if isinstance(reply, CloseOk):
            reply.leave(connection)
            return
        if not isinstance(reply, Confirm):
            # It is due only once the one before it has left, and so is what comes behind it.
            is_due = is_due and reply.write_batch > 0
        elif is_due:
            reply.leave(connection)

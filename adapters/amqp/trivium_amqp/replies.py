"""The order of answers: those on one channel leave in the order of what they answer.

A method is carried out when it is read, but its answer may have to wait for the disk. What the
channel sends after it, deliveries aside, then waits in line behind it. Usually nothing waits,
and there are no lines. They are kept by channel number, since another channel of the number may be
open before the answers on the last one have left.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

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


class Replies:
    """The lines of one connection."""

    def __init__(self, connection: AmqpConnection) -> None:
        #: None once it is gone
        self._connection: AmqpConnection | None = connection
        self._lines: dict[int, deque[Reply]] = {}
        # What leaves behind all answers, and whether the socket is closed then.
        self._goodbye = b""
        self._ends = False

    def say_goodbye(self, frame: bytes, ends: bool) -> bool:
        """Send connection.close, or connection.close-ok with which the connection ``ends``, behind
        all answers, now or later.

        Whether it has left.
        """
        self.advance_all()
        connection = self._connection
        assert connection is not None
        if self._lines:
            self._goodbye += frame
            self._ends = ends
            return False
        connection.send(frame)
        return True

    def _end(self, connection: AmqpConnection) -> None:
        """The last line is gone: send what was to come behind them."""
        if self._goodbye:
            connection.send(self._goodbye)
            self._goodbye = b""
            if self._ends:
                connection.transport.close()

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

        But publishers learn what became of their messages, or they would publish them again, where
        only what stands before that waits for the disk.
        """
        connection = self._connection
        if connection is None or not self._lines:
            return False
        for line in self._lines.values():
            for reply in line:
                if isinstance(reply, Confirm):
                    reply.leave(connection)
                elif not reply.write_batch:
                    # An answer that is due only once the one before it has left.
                    break
        self._lines.clear()
        self._end(connection)
        return True

    def end(self) -> None:
        """The connection is gone, and need not be kept in memory."""
        self._lines.clear()
        self._connection = None

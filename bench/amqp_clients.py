"""AMQP 0-9-1 publisher with confirms and consumer with acknowledgements, of the load generator."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from bench import amqp_frames
from bench.amqp_frames import ACK_LAYOUT, ACK_SIZE, DELIVERY_TAG, Method
from bench.endpoints import (
    Address,
    PeerError,
    Publisher,
    Receiver,
    closed_on_error,
    connect,
    receive_exactly,
)
from bench.frames import FrameBlock, Rows, layout, rows_per_batch

CHANNEL: Final = 1
FRAME_MAX: Final = 131072
_PASSIVE: Final = 0x01
_DURABLE: Final = 0x02
_MULTIPLE: Final = 0x01
_CLOSES: Final = (amqp_frames.CONNECTION_CLOSE, amqp_frames.CHANNEL_CLOSE)


def _unexpected(data: bytes, wanted: str) -> PeerError:
    """Return the error for a frame at the start of ``data`` that is not what was ``wanted``."""
    number = (int.from_bytes(data[7:9], "big"), int.from_bytes(data[9:11], "big"))
    if data[0] == amqp_frames.METHOD_FRAME and number in _CLOSES and len(data) > 13:
        code, length = struct.unpack_from(">HB", data, 11)
        return PeerError(f"closed: {code} {data[14 : 14 + length].decode(errors='replace')}")
    return PeerError(f"frame of type {data[0]}, method {number}, where {wanted} was expected")


class AmqpSetup:
    """A connection with one open channel, driven by blocking calls."""

    def __init__(self, address: Address) -> None:
        self.socket = connect(address)
        with closed_on_error(self.socket):
            self._open()

    def _open(self) -> None:
        self.socket.sendall(amqp_frames.PROTOCOL_HEADER)
        self._expect(amqp_frames.CONNECTION_START)
        start_ok = (
            amqp_frames.EMPTY_TABLE
            + amqp_frames.short_string("PLAIN")
            + amqp_frames.long_string(b"\0guest\0guest")
            + amqp_frames.short_string("en_US")
        )
        self.call(0, amqp_frames.CONNECTION_START_OK, start_ok, amqp_frames.CONNECTION_TUNE)
        no_heartbeat = struct.pack(">HIH", CHANNEL, FRAME_MAX, 0)
        self.socket.sendall(amqp_frames.method(0, amqp_frames.CONNECTION_TUNE_OK, no_heartbeat))
        virtual_host = amqp_frames.short_string("/") + b"\0\0"
        self.call(0, amqp_frames.CONNECTION_OPEN, virtual_host, amqp_frames.CONNECTION_OPEN_OK)
        self.call(CHANNEL, amqp_frames.CHANNEL_OPEN, b"\0", amqp_frames.CHANNEL_OPEN_OK)

    def call(self, channel: int, number: Method, arguments: bytes, reply: Method) -> bytes:
        """Send a method and return the arguments of its ``reply``.

        Raises:
            PeerError: the server closed the channel or connection, or answered otherwise.
        """
        self.socket.sendall(amqp_frames.method(channel, number, arguments))
        return self._expect(reply)

    def _expect(self, reply: Method) -> bytes:
        frame = receive_exactly(self.socket, 7)
        frame += receive_exactly(self.socket, int.from_bytes(frame[3:], "big") + 1)
        if frame[0] != amqp_frames.METHOD_FRAME or frame[7:11] != struct.pack(">HH", *reply):
            raise _unexpected(frame, f"method {reply}")
        return frame[11:-1]

    def declare_queue(self, name: str, table: bytes = amqp_frames.EMPTY_TABLE) -> None:
        """Declare a durable queue, with the arguments of ``table``."""
        arguments = b"\0\0" + amqp_frames.short_string(name) + bytes((_DURABLE,)) + table
        self.call(CHANNEL, amqp_frames.QUEUE_DECLARE, arguments, amqp_frames.QUEUE_DECLARE_OK)

    def message_count(self, name: str) -> int:
        """How many messages a queue has that are ready; it must exist."""
        head = b"\0\0" + amqp_frames.short_string(name) + bytes((_PASSIVE,))
        reply = self.call(
            CHANNEL,
            amqp_frames.QUEUE_DECLARE,
            head + amqp_frames.EMPTY_TABLE,
            amqp_frames.QUEUE_DECLARE_OK,
        )
        return int.from_bytes(reply[-8:-4], "big")

    def bind_queue(self, name: str, exchange: str, routing_key: str) -> None:
        """Bind a queue to an exchange."""
        names = (amqp_frames.short_string(part) for part in (name, exchange, routing_key))
        arguments = b"\0\0" + b"".join(names) + b"\0" + amqp_frames.EMPTY_TABLE
        self.call(CHANNEL, amqp_frames.QUEUE_BIND, arguments, amqp_frames.QUEUE_BIND_OK)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with whatever is in it."""
        arguments = b"\0\0" + amqp_frames.short_string(name) + b"\0"
        self.call(CHANNEL, amqp_frames.QUEUE_DELETE, arguments, amqp_frames.QUEUE_DELETE_OK)

    def select_confirms(self) -> None:
        """Ask for publisher confirms."""
        self.call(CHANNEL, amqp_frames.CONFIRM_SELECT, b"\0", amqp_frames.CONFIRM_SELECT_OK)

    def consume(self, queue: str, prefetch: int, table: bytes = amqp_frames.EMPTY_TABLE) -> None:
        """Start a consumer that acknowledges, with a prefetch count of ``prefetch``."""
        qos = struct.pack(">IHB", 0, prefetch, 0)
        self.call(CHANNEL, amqp_frames.BASIC_QOS, qos, amqp_frames.BASIC_QOS_OK)
        arguments = (
            b"\0\0"
            + amqp_frames.short_string(queue)
            + amqp_frames.short_string("bench")
            + b"\0"
            + table
        )
        self.call(CHANNEL, amqp_frames.BASIC_CONSUME, arguments, amqp_frames.BASIC_CONSUME_OK)

    def close(self) -> None:
        """Close the connection in the protocol's way."""
        arguments = struct.pack(">HBHH", 200, 0, 0, 0)
        self.call(0, amqp_frames.CONNECTION_CLOSE, arguments, amqp_frames.CONNECTION_CLOSE_OK)
        self.socket.close()


class AmqpPublisher(Publisher):
    """Publishes persistent messages to one routing key of an exchange, with confirms."""

    def __init__(
        self, address: Address, exchange: str, routing_key: str, payload: bytes, batch: int
    ) -> None:
        setup = AmqpSetup(address)
        with closed_on_error(setup.socket):
            setup.select_confirms()
        frame, fields = amqp_frames.publish(CHANNEL, exchange, routing_key, payload)
        block = FrameBlock(frame, fields, rows_per_batch(len(frame), batch))
        super().__init__(setup.socket, block)
        self._confirmed_to = 0
        self._confirmed_beyond: set[int] = set()

    def consume(self, filled: int) -> int:
        whole = filled // ACK_SIZE * ACK_SIZE
        for index, frame in enumerate(ACK_LAYOUT.iter_unpack(self.buffer[:whole])):
            position = index * ACK_SIZE
            frame_type, _, _, class_id, method_id, tag, bits, end = frame
            is_answer = (class_id, method_id) in (amqp_frames.BASIC_ACK, amqp_frames.BASIC_NACK)
            if frame_type != amqp_frames.METHOD_FRAME or not is_answer or end != 0xCE:
                raise _unexpected(bytes(self.buffer[position:filled]), "a confirm")
            count = self._confirm(tag, multiple=bool(bits & _MULTIPLE))
            if method_id == amqp_frames.BASIC_ACK[1]:
                self.settled += count
            else:
                self.refused += count
        return whole

    def _confirm(self, tag: int, *, multiple: bool) -> int:
        """Return how many messages this confirm is the first one for."""
        beyond = self._confirmed_beyond
        if not multiple and tag != self._confirmed_to + 1:
            if tag <= self._confirmed_to or tag in beyond:
                return 0
            beyond.add(tag)
            return 1
        if tag <= self._confirmed_to:
            return 0
        count = tag - self._confirmed_to
        if beyond:
            settled = {other for other in beyond if other <= tag}
            beyond -= settled
            count -= len(settled)
        self._confirmed_to = tag
        while self._confirmed_to + 1 in beyond:
            self._confirmed_to += 1
            beyond.remove(self._confirmed_to)
        return count


class AmqpConsumer(Receiver):
    """Consumes one queue and sends one acknowledgement per ``acknowledge_every`` messages."""

    def __init__(
        self,
        setup: AmqpSetup,
        queue: str,
        payload: bytes,
        prefetch: int,
        acknowledge_every: int,
        receive_bytes: int,
        table: bytes = amqp_frames.EMPTY_TABLE,
    ) -> None:
        with closed_on_error(setup.socket):
            setup.consume(queue, prefetch, table)
        super().__init__(setup.socket, max(receive_bytes, 2 * len(payload) + 1024))
        self._every = acknowledge_every
        self._delivery: amqp_frames.DeliveryLayout | None = None
        self._layout = np.dtype(np.void)
        self._acknowledged = 0
        ack = amqp_frames.ack(CHANNEL, 0, multiple=acknowledge_every > 1)
        most = len(self.buffer) // len(payload) + 1
        self._acks = FrameBlock(ack, amqp_frames.ACK_FIELDS, most)

    def consume(self, filled: int) -> int:
        used = 0
        while (delivery := self._next(used, filled)) is not None:
            if self._delivery is None:
                self._delivery = delivery
                self._layout = layout(delivery.size, delivery.fields)
            form, count = self._layout, (filled - used) // delivery.size
            if delivery.size != self._delivery.size:
                # One with headers, as the broker gives them to what it traces.
                form, count = layout(delivery.size, delivery.fields), 1
            rows: Rows = np.frombuffer(self.buffer, dtype=form, count=count, offset=used)
            alike = rows[amqp_frames.HEADER_SIZE] == rows[amqp_frames.HEADER_SIZE][0]
            if not alike.all():
                rows = rows[: int(alike.argmin())]
            self.observe(rows)
            self._acknowledge(int(rows[DELIVERY_TAG][-1]))
            used += len(rows) * delivery.size
        return used

    def _next(self, used: int, filled: int) -> amqp_frames.DeliveryLayout | None:
        """The form of the delivery there, once it is whole."""
        data = memoryview(self.buffer)[used:filled]
        known = self._delivery
        try:
            found = amqp_frames.delivery_layout(data, filled - used)
        except ValueError as error:
            raise _unexpected(bytes(data), "a delivery") from error
        if known is not None and found is not None and found.head != known.head:
            raise _unexpected(bytes(data), "a delivery")
        return found

    def _acknowledge(self, tag: int) -> None:
        first = self._acknowledged + self._every
        if first > tag:
            return
        tags = np.arange(first, tag + 1, self._every, dtype=np.uint64)
        self._acks.column(DELIVERY_TAG)[: len(tags)] = tags
        self.write(self._acks.take(len(tags)))
        self._acknowledged = int(tags[-1])

    def finish(self) -> None:
        if self._acknowledged < self.check.received:
            self.write(amqp_frames.ack(CHANNEL, self.check.received, multiple=True))

"""A consumer: what basic.consume starts. It turns queue entries into deliveries.

Most of a delivery is what the previous one to this consumer was, so the bytes before and after the
delivery tag are kept and only the tag and the body are new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, u8

from trivium.common.descriptions import ConsumerDescription
from trivium.common.pieces import Piece
from trivium.messages.message import PROTOCOL_AMQP, SAMPLED, Message
from trivium.queues.queue import Consumer, Queue, QueueEntry
from trivium.runtime.adapter import LARGE_OUTPUT
from trivium_amqp.codec import methods
from trivium_amqp.codec.frames import (
    BODY,
    CONTENT_HEADER,
    CONTENT_HEADER_SIZE,
    END,
    FRAME_END,
    HEAD,
    HEADER,
    METHOD,
    MIN_FRAME_MAX,
    OVERHEAD,
    U32,
    U64,
    content_frames,
)
from trivium_amqp.codec.properties import encode_properties, first_value_at, with_headers
from trivium_amqp.stream_cursor import OFFSET, StreamCursor

if TYPE_CHECKING:
    from trivium_amqp.channel import Channel
    from trivium_amqp.connection import AmqpConnection

_MAX_SHORT: Final = 255
#: Under which an encoding is kept with the message.
_VARIANT: Final = PROTOCOL_AMQP * 16
#: A content header's property bytes of this size fit every client's frames.
SMALLEST_ROOM: Final = MIN_FRAME_MAX - OVERHEAD - CONTENT_HEADER_SIZE
#: Octets of a frame before its payload; the other one is behind it.
_FRAME_HEAD: Final = OVERHEAD - 1
_DELIVER_ID: Final = U32.pack(methods.BASIC_DELIVER)


class _Fitted:
    """What a consumer's frames are made of, for a header and a size."""

    def __init__(
        self,
        header: bytes,
        size: int,
        before_size: bytes,
        between_sizes: bytes,
        tail: bytes,
        total: int,
    ) -> None:
        self.header = header
        self.size = size
        self.before_size = before_size
        self.between_sizes = between_sizes
        self.tail = tail
        self.total = total
        #: what is before the size of a message with a header of another size
        self.other_size = -1
        self.other_before = b""


class AmqpConsumer(Consumer):
    """``limit`` is the prefetch count of this consumer, 0 for none (60.10, per consumer)."""

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        no_ack: bool,
        limit: int,
        priority: int,
    ) -> None:
        self.settles_on_delivery = no_ack
        self.priority = priority
        self.queue = queue
        self.tag = tag
        self.limit = 0 if no_ack else limit
        #: whether the channel's limit holds it up; RabbitMQ's holds consumers without
        #: acknowledgement up too, but not those of direct replies
        self.is_limited = queue is not channel.reply_queue
        #: unacknowledged deliveries to this consumer
        self.held = 0
        #: False until the client was told that it consumes
        self.is_started = False
        #: whether the connection will dispatch the queue at the end of this feed
        self.is_credited = False
        self.channel = channel
        self._connection = channel.connection
        self._metrics = channel.connection.metrics
        # What the frames below were made of.
        self._exchange = ""
        self._key = b""
        self._header = b""
        self._size = -1
        # Frames up to the delivery tag, and from behind it to the body, in two parts where the
        # offset in a stream stands between them; what of them is before and between the two sizes.
        self._head = b""
        self._tail = b""
        self._rest = b""
        self._before_size = b""
        self._between_sizes = b""
        self._total = 0
        self._offset_at = -1
        # The same of the messages around one that is followed, whose header nobody else has.
        self._usual: _Fitted | None = None
        self._shows_offset = isinstance(queue, StreamCursor)

    def start(self) -> None:
        """The client knows that it consumes, unless it has cancelled that already."""
        if self.channel.consumers.get(self.tag) is self:
            self.is_started = True
            self.queue.serve(self)

    def takes_delivery(self) -> bool:
        if not self.is_started:
            return False
        if self.limit != 0 and self.held >= self.limit:
            return False
        channel = self.channel
        if channel.limit != 0 and channel.held >= channel.limit and self.is_limited:
            channel.waiting[id(self)] = self
            return False
        connection = self._connection
        if not connection.takes_output:
            connection.dispatches.hold(self.queue)
            return False
        return True

    def describe(self) -> ConsumerDescription:
        return ConsumerDescription(
            tag=self.tag,
            queue=self.queue.name,
            connection=self._connection,
            channel=self.channel.number,
            acknowledges=not self.settles_on_delivery,
            limit=self.limit,
            arguments={"x-priority": self.priority} if self.priority else {},
        )

    def client(self) -> object:
        return self._connection

    def deliver(self, entry: QueueEntry) -> None:
        channel = self.channel
        tag = channel.delivery_tag + 1
        channel.delivery_tag = tag
        connection = self._connection
        if self.settles_on_delivery:
            channel.publisher.traffic.delivered_settled += 1
            connection.traffic.delivered_settled += 1
        else:
            channel.publisher.traffic.delivered += 1
            connection.traffic.delivered += 1
            entry.tag = tag
            entry.holder = self
            channel.unacked.add(tag, entry)
            channel.held += 1
            self.held += 1
        message = entry.message
        address = message.address
        body = message.content
        size = message.size
        self._metrics.messages_sent += 1
        if (
            address.key == self._key
            and address.exchange == self._exchange
            and not entry.is_redelivered
            and message.protocol == PROTOCOL_AMQP
            and message.annotations is None
            and isinstance(body, bytes)
            and (message.header == self._header or self._has_other_header(message, size))
            and (size == self._size or self._has_resized(size))
        ):
            output = connection.output
            output.write(self._head)
            write_i64_be(output, tag)
            output.write(self._tail)
            if self._shows_offset:
                write_i64_be(output, entry.offset)
                output.write(self._rest)
            if size < LARGE_OUTPUT:
                output.write(body)
            else:
                connection.write_large(body)
                output = connection.output
            output.append(FRAME_END)
            connection.output_size += self._total
            connection.mark_dirty()
            return
        connection.send_parts(self._frames(tag, entry))

    def _has_other_header(self, message: Message, size: int) -> bool:
        """Fit the frames to other property bytes before a body of this size; whether that can
        be."""
        room = self._connection.frame_room
        if self._size < 0 or self._shows_offset or not 0 < size <= room:
            return False
        header = message.header
        known = len(self._header)
        usual = self._usual
        if message.traced != SAMPLED:
            if usual is not None and header == usual.header:
                self._header, self._size, self._total = header, usual.size, usual.total
                self._before_size, self._between_sizes = usual.before_size, usual.between_sizes
                self._tail = usual.tail
                return True
            self._usual = usual = None
        elif usual is None:
            self._usual = usual = _Fitted(
                self._header,
                self._size,
                self._before_size,
                self._between_sizes,
                self._tail,
                self._total,
            )
        if usual is not None and len(header) == usual.other_size:
            self._before_size = usual.other_before
        elif len(header) != known:
            if len(header) > room - CONTENT_HEADER_SIZE:
                return False
            writer = BytesWriter()
            writer.write(self._before_size[: -_FRAME_HEAD - len(CONTENT_HEADER)])
            number: i64 = self.channel.number
            writer.append(HEADER)
            writer.append(u8(number >> 8))
            writer.append(u8(number & 0xFF))
            write_i32_be(writer, i32(CONTENT_HEADER_SIZE + len(header)))
            writer.write(CONTENT_HEADER)
            self._before_size = writer.getvalue()
            if usual is not None:
                usual.other_size, usual.other_before = len(header), self._before_size
        self._between_sizes = header + self._between_sizes[known:]
        self._header = header
        return self._has_resized(size)

    def _has_resized(self, size: int) -> bool:
        """Fit the frames to a body of another size; whether that can be."""
        if self._size < 0 or not 0 < size <= self._connection.frame_room:
            return False
        self._size = size
        writer = BytesWriter()
        writer.write(self._before_size)
        write_i64_be(writer, size)
        writer.write(self._between_sizes)
        write_i32_be(writer, i32(size))
        tail = writer.getvalue()
        self._total = len(self._head) + 8 + len(tail) + size + 1
        if self._shows_offset:
            at = len(self._before_size) + 8 + self._offset_at
            self._rest = tail[at + 8 :]
            tail = tail[:at]
        self._tail = tail
        return True

    def _frames(self, tag: int, entry: QueueEntry) -> list[Piece]:
        """All frames of a delivery; keeps what the next one may have in common with it."""
        message = entry.message
        connection = self._connection
        number = self.channel.number
        header = entry_header(self.channel, entry)
        offset_at = -1
        if self._shows_offset:
            shown = with_headers(header, {OFFSET: 0}, True)
            if len(shown) <= connection.frame_room - CONTENT_HEADER_SIZE:
                offset_at = first_value_at(shown, OFFSET)
                header = shown[:offset_at] + U64.pack(entry.offset) + shown[offset_at + 8 :]
        encoded_tag = _short(self.tag.encode())
        routing = _short(message.address.exchange.encode()) + _short(cut_key(message.address.key))
        head = (
            HEAD.pack(METHOD, number, 4 + len(encoded_tag) + 9 + len(routing))
            + _DELIVER_ID
            + encoded_tag
        )
        size = message.size
        redelivered = b"\x01" if entry.is_redelivered else b"\x00"
        if entry.is_redelivered:
            self._metrics.messages_redelivered += 1
            self.channel.publisher.traffic.redelivered += 1
            connection.traffic.redelivered += 1
        elif (
            message.protocol == PROTOCOL_AMQP
            and message.annotations is None
            and 0 < size <= connection.frame_room
            and (offset_at >= 0 or not self._shows_offset)
        ):
            self._offset_at = offset_at
            self._exchange = message.address.exchange
            self._key = message.address.key
            self._header = message.header
            self._head = head
            self._before_size = (
                redelivered
                + routing
                + END
                + HEAD.pack(HEADER, number, CONTENT_HEADER_SIZE + len(header))
                + CONTENT_HEADER
            )
            self._between_sizes = header + END + HEAD.pack(BODY, number, 0)[:3]
            self._usual = None
            self._size = 0
            self._has_resized(size)
        return [
            b"".join((head, U64.pack(tag), redelivered, routing, END)),
            *content_frames(number, header, message.content, connection.frame_room),
        ]

    def cancelled(self) -> None:
        self.channel.consumer_cancelled(self.tag)


def header_bytes(connection: AmqpConnection, message: Message) -> bytes:
    """The property bytes of ``message`` for the client of ``connection``.

    A content header cannot be split, so one that is too large for this client's frames leaves
    without its headers.
    """
    room = connection.frame_room - CONTENT_HEADER_SIZE
    now_ms = connection.broker.now_ms
    annotations = message.annotations
    if message.protocol == PROTOCOL_AMQP:
        header = message.header
        if annotations is not None:
            kept = message.encoding(_VARIANT)
            if kept is None:
                kept = with_headers(header, annotations, False)
                message.keep_encoding(_VARIANT, kept)
            header = kept
        if len(header) <= room:
            return header
        return encode_properties(message, now_ms, connection.metrics, room)
    if message.expires:
        return encode_properties(message, now_ms, connection.metrics, room)
    kept = message.encoding(_VARIANT)
    if kept is None:
        kept = encode_properties(message, now_ms, connection.metrics, room)
        if len(kept) <= SMALLEST_ROOM:
            message.keep_encoding(_VARIANT, kept)
    return kept


def entry_header(channel: Channel, entry: QueueEntry) -> bytes:
    """The property bytes of a delivery: those of its message, and x-delivery-count where the
    message comes from a quorum queue and was delivered before."""
    header = header_bytes(channel.connection, entry.message)
    if entry.requeues and entry.queue.arguments.get("x-queue-type") == "quorum":
        counted = with_headers(header, {"x-delivery-count": entry.requeues}, True)
        if len(counted) <= channel.connection.frame_room - CONTENT_HEADER_SIZE:
            return counted
    return header


def cut_key(key: bytes) -> bytes:
    """A routing key as a short string holds it; a longer one is in the header x-routing-key."""
    return key if len(key) <= _MAX_SHORT else key[:_MAX_SHORT]


def _short(data: bytes) -> bytes:
    return bytes((len(data),)) + data

"""The message: an immutable envelope that keeps the encoding of the protocol it came by.

A message is never translated on its way in. It carries its publisher's own property bytes
(``header``) next to the payload, so that a reader of the same protocol gets them back to the byte.
A reader of another protocol asks for ``properties()``, the neutral form; the codec that the
publisher's adapter registered makes it, once per message.
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_le,
    read_i32_le,
    read_i64_le,
    write_i16_le,
    write_i32_le,
    write_i64_le,
)
from mypy_extensions import i16, i32, i64, mypyc_attr

from trivium.common.values import HeaderValue as HeaderValue
from trivium.common.values import pack, unpack
from trivium.messages.large import LARGE_PAYLOAD, Content, LargePayload
from trivium.messages.topics import levels_of, topic_of

AT_MOST_ONCE: Final = 0
AT_LEAST_ONCE: Final = 1
EXACTLY_ONCE: Final = 2

#: ``Message.protocol`` of the adapters in this distribution. Others take numbers from 64 up.
PROTOCOL_NONE: Final = 0
PROTOCOL_MQTT: Final = 1
PROTOCOL_AMQP: Final = 2
PROTOCOL_NATIVE: Final = 3
#: by none of them, as those of operators: ``trivium.messages.neutral``
PROTOCOL_NEUTRAL: Final = 4

#: ``Message.traced``, whether it belongs to a trace that is sampled: nobody has asked and nobody
#: needs to, as it was made by its publisher's adapter; it does not; its header says; it does.
FRESH: Final[i64] = 0
UNSAMPLED: Final[i64] = 1
UNKNOWN: Final[i64] = 2
SAMPLED: Final[i64] = 3

_PERSISTENT: Final = 4
_RETAIN: Final = 8
_ANNOTATED: Final = 16
_DELAYED: Final = 32
_INSISTS: Final = 64
_MODE_MASK: Final = 3

#: The fixed part of a record, little-endian: mode and flags, protocol, priority, hops (a byte
#: each), timestamp and expiry in milliseconds (8), length of the exchange (2), the key (4) and the
#: header (4).
_FIXED_SIZE: Final = 30
#: Headers and payloads of this size and more together are copied once, straight to where they stay
#: (16 KiB).
_LARGE: Final = 16 * 1024


class RecordError(ValueError):
    """A stored message record cannot be decoded."""


class Properties:
    """Protocol-neutral message properties; every field may be absent.

    ``headers`` is a list of pairs, so that order and duplicate names survive (MQTT 5 user
    properties may repeat, MQTT-3.3.2.3.7).  ``expiration`` is the lifetime in milliseconds that the
    publisher asked for, ``timestamp`` is the publisher's clock in seconds since the epoch.
    """

    def __init__(
        self,
        content_type: str | None = None,
        content_encoding: str | None = None,
        correlation_id: bytes | None = None,
        reply_to: str | None = None,
        reply_to_topic: bytes | None = None,
        expiration: int | None = None,
        message_id: str | None = None,
        timestamp: int | None = None,
        type_: str | None = None,
        user_id: str | None = None,
        app_id: str | None = None,
        payload_is_text: bool = False,
        key: bytes | None = None,
        delay: int | None = None,
        headers: list[tuple[str, HeaderValue]] | None = None,
        partition: int | None = None,
    ) -> None:
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.correlation_id = correlation_id
        #: name of the queue to reply to (AMQP ``reply_to``)
        self.reply_to = reply_to
        #: routing key, in canonical form, to reply to (MQTT response topic, ``x-reply-to-topic``)
        self.reply_to_topic = reply_to_topic
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type_ = type_
        self.user_id = user_id
        self.app_id = app_id
        self.payload_is_text = payload_is_text
        #: partitioning and compaction key
        self.key = key
        #: milliseconds between its publishing and its routing
        self.delay = delay
        #: the partition of a stream that it is for, whatever its key; counted modulo
        self.partition = partition
        self.headers: list[tuple[str, HeaderValue]] = [] if headers is None else headers

    def header(self, name: str) -> HeaderValue:
        """The first header called ``name``; None when there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class PropertyCodec:
    """Turns one protocol's property bytes into the neutral form. Adapters subclass it."""

    #: the header with the further routing keys that a message was published with; "" for none
    copies_header: str = ""
    #: whether ``message_id`` tells a message from others, where no header for that does
    identifies_messages: bool = False

    def decode(self, header: bytes) -> Properties:
        """Decode ``Message.header`` as this protocol's adapter stored it."""
        raise NotImplementedError

    def key_at(self, header: bytes) -> i64:
        """Where in a header that holds nothing else the partitioning key begins, which is the rest
        of it; 0 for all others.

        A quicker ``decode`` of headers that differ from message to message. It need not know all.
        """
        return 0

    def with_header(self, header: bytes, name: str, value: str) -> bytes:
        """``header`` with this value for the header ``name``; b"" where it cannot have any."""
        return b""


class _NoProperties(PropertyCodec):
    def decode(self, header: bytes) -> Properties:
        return Properties()


_codecs: dict[int, PropertyCodec] = {PROTOCOL_NONE: _NoProperties()}


def codec_of(protocol: int) -> PropertyCodec:
    """The codec of messages whose ``protocol`` is the given number."""
    return _codecs.get(protocol, _codecs[PROTOCOL_NONE])


def register_codec(protocol: int, codec: PropertyCodec) -> None:
    """Make ``codec`` the decoder of messages whose ``protocol`` is the given number."""
    _codecs[protocol] = codec


@mypyc_attr(acyclic=True)
class Address:
    """Where a message was published: an exchange name and a routing key in canonical form.

    The canonical form is AMQP's, bytes with levels parted by ``.``; ``topic`` is the same address
    in MQTT's form. Addresses are made once per distinct raw topic and shared by their messages.
    """

    def __init__(self, exchange: str, key: bytes) -> None:
        self.exchange = exchange
        self.key = key
        self._topic: bytes | None = None
        self._topic_known = False
        self._encoded: bytes | None = None

    @property
    def topic(self) -> bytes | None:
        """The MQTT topic name (UTF-8); None where the key has no MQTT form (see ``topics``)."""
        if not self._topic_known:
            self._topic = topic_of(self.key)
            self._topic_known = True
        return self._topic

    def levels(self) -> list[bytes]:
        """The level list, empty levels included."""
        return levels_of(self.key)

    def encoded(self) -> bytes:
        """Exchange and key as they stand in a record, one after the other."""
        found = self._encoded
        if found is None:
            found = self.exchange.encode() + self.key
            self._encoded = found
        return found


@mypyc_attr(acyclic=True)
class Message:
    """One published message. Immutable: it is shared by every queue and subscriber that gets it.

    ``mode`` is one of AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE; ``persistent`` says whether it
    must survive a restart where it reaches disk storage. ``timestamp`` (arrival) and ``expires`` (0
    for never) are milliseconds since the epoch. ``origin`` is an identity of the publisher
    for those who do not want their own messages (MQTT's no-local): not the connection, which the
    message would keep in memory. It is not stored.
    """

    def __init__(
        self,
        protocol: int,
        address: Address,
        header: bytes,
        payload: Content,
        mode: int,
        persistent: bool,
        timestamp: int,
        expires: int = 0,
        retain: bool = False,
        priority: int = 0,
        origin: object = None,
        deliver_at: int = 0,
        annotations: dict[str, HeaderValue] | None = None,
        insists: bool = False,
        hops: int = 0,
    ) -> None:
        self.protocol = protocol
        self.address = address
        self.header = header
        #: the payload as it is held, and its bytes
        self.content = payload
        self.size = len(payload) if isinstance(payload, bytes) else payload.size
        self.mode = mode
        self.persistent = persistent
        self.timestamp = timestamp
        self.expires = expires
        self.retain = retain
        self.priority = priority
        self.origin = origin
        #: not to be delivered before this time, in milliseconds since the epoch; 0 for at once
        self.deliver_at = deliver_at
        #: headers that the broker set, None for one that it took away; they go before those in
        #: ``header``, whose expiration does not count any more
        self.annotations = annotations
        #: its publisher asked for this very mode (``x-delivery``): queues must not change it
        self.insists = insists
        #: queues in a row that gave it up, since a client had it
        self.hops = hops
        #: FRESH, UNSAMPLED, UNKNOWN or SAMPLED
        self.traced: i64 = FRESH
        #: what is known to who follows it (``trivium.messages.tracing.Tracer``)
        self.trace: object = None
        self._record: bytes | None = None
        self._properties: Properties | None = None
        #: encodings made for readers, by a number that the reading adapter chooses
        #: (``protocol * 16 + variant``); see ``encoding`` and ``keep_encoding``
        self._encodings: dict[int, bytes] | None = None

    @property
    def payload(self) -> bytes:
        """The payload in one. A large one is copied: those who can should take ``content``."""
        content = self.content
        return content if isinstance(content, bytes) else content.joined()

    def properties(self) -> Properties:
        """The neutral form of ``header``, decoded once."""
        found = self._properties
        if found is None:
            # A protocol whose adapter is not installed any more has no properties to show.
            found = codec_of(self.protocol).decode(self.header)
            if self.annotations is not None:
                found = _annotated(found, self.annotations)
            self._properties = found
        return found

    def set_header(self, header: bytes) -> None:
        """Give it other property bytes, before anybody has it."""
        self.header = header
        self._properties = None
        self._record = None

    def encoding(self, variant: int) -> bytes | None:
        """What ``keep_encoding`` kept under ``variant``; None when nothing was."""
        kept = self._encodings
        return None if kept is None else kept.get(variant)

    def keep_encoding(self, variant: int, data: bytes) -> None:
        """Cache an encoding of this message for all further readers of the same kind."""
        kept = self._encodings
        if kept is None:
            self._encodings = {variant: data}
        else:
            kept[variant] = data

    def record(self) -> bytes:
        """The message as it is stored; encoded once, shared by every log that keeps it."""
        found = self._record
        if found is None:
            found = self._encoded()
            self._record = found
        return found

    def _encoded(self) -> bytes:
        flags = self.mode
        if self.persistent:
            flags |= _PERSISTENT
        if self.retain:
            flags |= _RETAIN
        if self.insists:
            flags |= _INSISTS
        if self.deliver_at:
            flags |= _DELAYED
        if self.annotations is not None:
            flags |= _ANNOTATED
        header = self.header
        content = self.content
        address = self.address.encoded()
        key_size: i64 = len(self.address.key)
        exchange_size: i64 = len(address) - key_size
        writer = BytesWriter()
        writer.append(flags)
        writer.append(self.protocol)
        writer.append(self.priority)
        writer.append(self.hops)
        write_i64_le(writer, self.timestamp)
        write_i64_le(writer, self.expires)
        write_i16_le(writer, i16(exchange_size))
        write_i32_le(writer, i32(key_size))
        write_i32_le(writer, i32(len(header)))
        writer.write(address)
        if self.deliver_at:
            write_i64_le(writer, self.deliver_at)
        if self.annotations is not None:
            packed = pack(self.annotations)
            write_i32_le(writer, i32(len(packed)))
            writer.write(packed)
        if not isinstance(content, bytes):
            record = b"".join([writer.getvalue(), header, *content.parts])
            content.lies_in(record)
            return record
        if len(header) + len(content) >= _LARGE:
            return b"".join((writer.getvalue(), header, content))
        writer.write(header)
        writer.write(content)
        return writer.getvalue()


def records_of(messages: list[Message]) -> list[bytes]:
    """``record`` of each. What precedes the payload is encoded once for those in a row that have it
    in common.
    """
    records: list[bytes] = []
    head = b""
    like: Message | None = None
    for message in messages:
        record = message._record
        if record is None:
            content = message.content
            if not isinstance(content, bytes):
                record = message.record()
            elif like is not None and _is_headed_alike(message, like):
                record = head + content
                message._record = record
            else:
                record = message.record()
                # One that is followed is like no other.
                if message.traced != SAMPLED:
                    head = record[: len(record) - len(content)]
                    like = message
        records.append(record)
    return records


def _is_headed_alike(message: Message, like: Message) -> bool:
    """Whether the records of two messages differ in the payload at most."""
    return (
        message.address is like.address
        and message.header is like.header
        and message.timestamp == like.timestamp
        and message.expires == like.expires
        and message.deliver_at == like.deliver_at
        and message.mode == like.mode
        and message.persistent is like.persistent
        and message.protocol == like.protocol
        and message.priority == like.priority
        and message.retain is like.retain
        and message.insists is like.insists
        and message.hops == like.hops
        and message.annotations is None
        and like.annotations is None
    )


def payload_bytes_of(records: list[bytes | None]) -> int:
    """The payloads of ``Message.record()`` of some messages that are there, together; of one that
    is not to be delivered yet nothing counts."""
    total: i64 = 0
    for record in records:
        if record is None:
            continue
        size: i64 = len(record)
        if size < _FIXED_SIZE or record[0] & _DELAYED:
            continue
        at: i64 = _FIXED_SIZE + (i64(read_i16_le(record, 20)) & 0xFFFF)
        at += i64(read_i32_le(record, 22)) & 0xFFFF_FFFF
        if record[0] & _ANNOTATED:
            if size < at + 4:
                continue
            at += 4 + (i64(read_i32_le(record, at)) & 0xFFFF_FFFF)
        at += i64(read_i32_le(record, 26)) & 0xFFFF_FFFF
        if at < size:
            total += size - at
    return total


def decode_record(record: bytes) -> Message:
    """Rebuild a message from ``Message.record()``. Raises RecordError when it is damaged."""
    size: i64 = len(record)
    if size < _FIXED_SIZE:
        raise RecordError("message record is shorter than its fixed part")
    flags = record[0]
    key_at: i64 = _FIXED_SIZE + (i64(read_i16_le(record, 20)) & 0xFFFF)
    at: i64 = key_at + (i64(read_i32_le(record, 22)) & 0xFFFF_FFFF)
    if at > size:
        raise RecordError("message record is shorter than the lengths it states")
    key = record[key_at:at]
    deliver_at: i64 = 0
    annotations: dict[str, HeaderValue] | None = None
    try:
        address = Address(record[_FIXED_SIZE:key_at].decode(), key)
        if flags & _DELAYED:
            deliver_at = read_i64_le(record, at)
            at += 8
        if flags & _ANNOTATED:
            start = at + 4
            at = start + (i64(read_i32_le(record, at)) & 0xFFFF_FFFF)
            annotations = unpack(record[start:at])
    except (IndexError, TypeError, ValueError) as error:
        raise RecordError(f"message record has a damaged field: {error}") from None
    payload_at: i64 = at + (i64(read_i32_le(record, 26)) & 0xFFFF_FFFF)
    if payload_at > size:
        raise RecordError("message record is shorter than the lengths it states")
    content: Content
    if size - payload_at < LARGE_PAYLOAD:
        content = record[payload_at:]
    else:
        content = LargePayload([memoryview(record)[payload_at:]])
    message = Message(
        record[1],
        address,
        record[at:payload_at],
        content,
        flags & _MODE_MASK,
        flags & _PERSISTENT != 0,
        read_i64_le(record, 4),
        read_i64_le(record, 12),
        flags & _RETAIN != 0,
        record[2],
        None,
        deliver_at,
        annotations,
        flags & _INSISTS != 0,
        record[3],
    )
    message._record = record
    message.traced = UNKNOWN
    return message


def _annotated(properties: Properties, annotations: dict[str, HeaderValue]) -> Properties:
    """``properties`` with the broker's headers in front, and without an expiration."""
    headers = [(name, value) for name, value in annotations.items() if value is not None]
    headers.extend([pair for pair in properties.headers if pair[0] not in annotations])
    properties.headers = headers
    properties.expiration = None
    return properties

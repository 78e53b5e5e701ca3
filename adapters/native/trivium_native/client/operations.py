"""Requests as values: frame type, body, what the reply means. Both clients run the same ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import isfinite
from typing import Any, Final, Generic, TypeVar

from trivium.common.pieces import Piece
from trivium.streams.compression import CODECS, compress
from trivium.streams.record_layout import CODEC_NONE
from trivium_native.client.values import (
    Fetched,
    FramedMessages,
    LogStart,
    OffsetCommit,
    OwnQueue,
    Part,
    PartitionInfo,
    Producer,
    Publication,
    Settlement,
    StoredBatch,
    StreamInfo,
)
from trivium_native.wire import frames
from trivium_native.wire.errors import (
    InvalidArgument,
    Malformed,
    RemoteProtocolError,
    error_of,
)
from trivium_native.wire.frames import Frame, pack, unpack
from trivium_native.wire.messages import (
    CODEC_SHIFT,
    HAS_PRODUCER,
    MAX_MESSAGES,
    MAX_PRODUCER_BYTES,
    PRODUCER,
    PUBLISH_HEAD,
    REQUEUE,
    SETTLE,
    TX_HEAD,
    UNPACKED,
    decode_fetched,
)

T = TypeVar("T")


class Operation(Generic[T]):
    """One request. ``parse`` turns the body of the reply into its meaning.

    ``behind``: what follows ``body``, and need not be copied. ``publishes``: the broker refuses it
    while publishers are paused. ``wait``: seconds for which the request lets the broker wait before
    it answers. ``repeats``: a repetition on another connection changes nothing that the first one
    has not. ``needs``: a feature that a broker must have. ``secret``: what the client shows from
    now on for who it is. ``belongs``: what it makes is this connection's alone. ``members``: whose
    offsets it commits, by group and name.
    """

    secret: bytes | None = None
    belongs: bool = False
    members: Sequence[tuple[str, str]] = ()

    def __init__(
        self,
        kind: int,
        body: bytes,
        reply: int,
        parse: Callable[[bytes], T],
        *,
        behind: Piece = b"",
        publishes: bool = False,
        wait: float = 0.0,
        repeats: bool = False,
        needs: str = "",
    ) -> None:
        self.kind = kind
        self.body = body
        self.behind = behind
        self.publishes = publishes
        self.wait = wait
        self.repeats = repeats
        self.needs = needs
        self._reply = reply
        self._parse = parse

    def result(self, frame: Frame) -> T:
        """What the reply says. Raises RemoteProtocolError when it is not one to this request."""
        if frame.kind != self._reply:
            raise RemoteProtocolError(f"the broker answered with frame type {frame.kind:#04x}")
        try:
            return self._parse(frame.body)
        except (Malformed, KeyError, TypeError, ValueError, IndexError) as error:
            raise RemoteProtocolError(f"the broker's answer cannot be read: {error!r}") from None


#: Requests that may be repeated, whether they were done or not.
_REPEATABLE: Final = frozenset(
    (
        *(frames.PRODUCER, frames.COMMIT, frames.COMMITTED, frames.METADATA, frames.OFFSETS),
        *(frames.BIND, frames.UNBIND, frames.SET_POLICY, frames.LIST_POLICIES),
        *(frames.JOIN, frames.HEARTBEAT, frames.LIST_GROUPS, frames.DESCRIBE_GROUP),
    )
)


def _nothing(body: bytes) -> None:
    return None


def request(kind: int, parse: Callable[[Any], T], /, **fields: object) -> Operation[T]:
    """A request with the fields that are not None, answered by OK."""
    given = {name: value for name, value in fields.items() if value is not None}
    return Operation(
        kind,
        pack_fields(given),
        frames.OK,
        lambda body: parse(unpack(body)),
        # The broker makes up a new name for each queue without one.
        repeats=kind in _REPEATABLE or (kind == frames.DECLARE and bool(given.get("name"))),
    )


def pack_fields(fields: dict[str, object]) -> bytes:
    """The fields as msgpack. Raises InvalidArgument for what would cost the connection."""
    try:
        packed = pack(fields)
        unpack(packed)
    except OverflowError:
        raise InvalidArgument("the request cannot be sent: a number is too large") from None
    except Malformed as error:
        raise InvalidArgument(f"the request cannot be sent: {error.text}") from None
    return packed


def done(reply: Any) -> None:
    """OK says it all."""


def pattern_bytes(pattern: bytes | str) -> bytes:
    """A pattern as it is sent."""
    return pattern.encode() if isinstance(pattern, str) else pattern


# Publishing


def codec(compression: str, known: Collection[str]) -> int:
    """The codec of that name; none where the broker does not know it. Raises InvalidArgument."""
    found = CODECS.get(compression)
    if found is None:
        raise InvalidArgument(f"compression is {compression!r}, not one of {', '.join(CODECS)}")
    return found if compression in known else CODEC_NONE


def publish(
    publications: Sequence[Publication] | FramedMessages,
    producer: Producer | None = None,
    codec: int = CODEC_NONE,
) -> Operation[None]:
    """All messages in one request; answered once what must survive is durable.

    With a codec they are sent compressed, where that makes them smaller. Raises InvalidArgument.
    """
    _check_count(len(publications), 1)
    flags = 0
    block = b""
    if producer is not None:
        flags = HAS_PRODUCER
        name = producer.name.encode()
        if not 0 < len(name) <= MAX_PRODUCER_BYTES:
            raise InvalidArgument(f"a producer's name has 1 to {MAX_PRODUCER_BYTES} bytes")
        block = PRODUCER.pack(len(name), producer.epoch, producer.sequence) + name
    messages = FramedMessages.of(publications).data
    packed = compress(codec, messages)
    if packed is not None:
        flags |= codec << CODEC_SHIFT
        block += UNPACKED.pack(len(messages))
        messages = packed
    return Operation(
        frames.PUBLISH,
        PUBLISH_HEAD.pack(len(publications), flags) + block,
        frames.CONFIRM,
        _nothing,
        behind=messages,
        publishes=True,
        repeats=producer is not None,
    )


def _check_count(count: int, least: int) -> None:
    if not least <= count <= MAX_MESSAGES:
        raise InvalidArgument(f"a request has {least} to {MAX_MESSAGES} messages, not {count}")


def open_producer(name: str, *, transactional: bool = False) -> Operation[Producer]:
    """Start a new epoch of an idempotent producer; whoever published in an older one is fenced.

    The result says at which number it goes on: of its messages, or of its transactions. These are
    two kinds of producers that share no names.
    """
    return request(
        frames.PRODUCER,
        lambda reply: Producer(name, int(reply["epoch"]), int(reply["sequence"])),
        producer=name,
        transactional=transactional or None,
    )


def transaction(
    entries: Sequence[bytes],
    settlements: Sequence[Settlement],
    commits: Sequence[OffsetCommit],
    producer: Producer | None = None,
    parts: Sequence[Part] = (),
) -> Operation[int]:
    """All of it or nothing; answered once it is durable. The messages are framed already.

    The result is how many requests of parts are not published yet.
    """
    _check_count(len(entries), 0)
    fields: dict[str, object] = {}
    if producer is not None:
        fields["producer"] = producer.name
        fields["epoch"] = producer.epoch
        fields["sequence"] = producer.sequence
    if settlements:
        fields["settle"] = [
            [each.subscription, each.action, each.first, each.last] for each in settlements
        ]
    if commits:
        fields["commits"] = [each.fields() for each in commits]
    if parts:
        fields["parts"] = [[part.name, part.requests] for part in parts]
    # Publishing is what the broker refuses at times.
    publishes = bool(entries or parts)
    body = _with_fields(fields, FramedMessages(len(entries), b"".join(entries)))
    operation = Operation(
        frames.TX, body, frames.OK, _left, publishes=publishes, repeats=producer is not None
    )
    operation.members = [
        (each.membership.group, each.membership.member)
        for each in commits
        if each.membership is not None
    ]
    return operation


def _with_fields(fields: dict[str, object], messages: FramedMessages) -> bytes:
    packed = pack_fields(fields)
    return b"".join((TX_HEAD.pack(len(packed), messages.count), packed, messages.data))


def _left(body: bytes) -> int:
    reply = unpack(body)
    refused = reply.get("refused")
    if refused is not None:
        # The transaction is committed, and goes on when this has passed.
        raise error_of(int(refused[0]), str(refused[1]))
    return int(reply.get("left", 0))


def stage(
    producer: str,
    sequence: int,
    part: str,
    index: int,
    publications: Sequence[Publication] | FramedMessages,
) -> Operation[bool]:
    """Stage request ``index`` of a part for a transaction that somebody else will commit.

    Returns once the messages are durable; nobody gets them before that transaction is committed. A
    request may be repeated. False means that it was committed already, and that nothing more can
    belong to it. Raises what publishing raises, PreconditionFailed, OutOfSequence.
    """
    _check_count(len(publications), 1)
    fields: dict[str, object] = {
        "producer": producer,
        "sequence": sequence,
        "part": part,
        "index": index,
    }
    return Operation(
        frames.STAGE,
        _with_fields(fields, FramedMessages.of(publications)),
        frames.OK,
        lambda body: not unpack(body).get("committed", False),
        publishes=True,
        repeats=True,
    )


def discard_part(producer: str, part: str) -> Operation[None]:
    """Forget a part, if there is one of that name. Raises PreconditionFailed once committed."""
    return request(frames.DELETE, done, kind="part", producer=producer, name=part)


def delete_producer(name: str, *, transactional: bool = False) -> Operation[None]:
    """Forget a producer, its numbers and its parts; one that is opened anew begins at 0.

    Raises PreconditionFailed while parts that it has committed are not published.
    """
    return request(
        frames.DELETE, done, kind="producer", name=name, transactional=transactional or None
    )


# Receiving


def subscribe_live(
    subscription: int, exchange: str, pattern: bytes | str, no_local: bool
) -> Operation[None]:
    """Mode ``pubsub``."""
    return request(
        frames.SUBSCRIBE,
        done,
        subscription=subscription,
        mode="pubsub",
        exchange=exchange,
        pattern=pattern_bytes(pattern),
        no_local=no_local,
    )


def subscribe_queue(
    subscription: int,
    queue: str,
    credit: int,
    priority: int,
    no_ack: bool,
    exclusive: bool,
    own: OwnQueue | None = None,
    ack_timeout: float | None = None,
) -> Operation[None]:
    """Mode ``queue``."""
    return request(
        frames.SUBSCRIBE,
        done,
        subscription=subscription,
        mode="queue",
        queue=queue,
        credit=credit,
        priority=priority,
        no_ack=no_ack,
        exclusive=exclusive,
        ack_timeout_ms=milliseconds(ack_timeout),
        **({} if own is None else own.fields()),
    )


def subscribe_poll(
    subscription: int, queue: str, credit: int, own: OwnQueue | None, ack_timeout: float | None
) -> Operation[None]:
    """Mode ``poll``."""
    return request(
        frames.SUBSCRIBE,
        done,
        subscription=subscription,
        mode="poll",
        queue=queue,
        credit=credit,
        ack_timeout_ms=milliseconds(ack_timeout),
        **({} if own is None else own.fields()),
    )


def poll(
    subscription: int, max_messages: int | None, max_bytes: int | None, max_wait: float
) -> Operation[int]:
    """Have a subscription get what there is, or what comes in time; how many messages came."""
    fields: dict[str, object] = {
        "subscription": subscription,
        "max_messages": max_messages,
        "max_bytes": max_bytes,
        "max_wait_ms": milliseconds(max_wait),
    }
    return Operation(
        frames.POLL,
        pack_fields({name: value for name, value in fields.items() if value is not None}),
        frames.OK,
        lambda body: int(unpack(body)["messages"]),
        wait=max_wait,
    )


def milliseconds(seconds: float | None) -> int | None:
    """As fields have it. Raises InvalidArgument for what is no number of seconds."""
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or not isfinite(seconds):
        raise InvalidArgument(f"{seconds!r} is no number of seconds")
    return int(seconds * 1000)


def subscribe_log(
    subscription: int,
    stream: str,
    partition: int,
    offset: int | str | None,
    timestamp: int | None,
    credit: int,
    incarnation: str | None,
    topic_filter: str | None,
) -> Operation[LogStart]:
    """Mode ``log`` from an offset or a time on."""
    operation = request(
        frames.SUBSCRIBE,
        lambda reply: LogStart(int(reply["offset"]), reply.get("incarnation", incarnation)),
        subscription=subscription,
        mode="log",
        stream=stream,
        partition=partition,
        offset=offset,
        timestamp=timestamp,
        credit=credit,
        incarnation=incarnation,
        filter=topic_filter,
    )
    if topic_filter is not None:
        operation.needs = frames.FILTER
    return operation


def unsubscribe(subscription: int) -> Operation[None]:
    """End a subscription; what is unsettled goes back to its queue."""
    return request(frames.UNSUBSCRIBE, done, subscription=subscription)


def settle(subscription: int, first: int, last: int) -> Operation[None]:
    """Deliveries ``first`` to ``last`` are done with; answered once that is durable."""
    body = SETTLE.pack(subscription, 0, first, last)
    return Operation(frames.ACK, body, frames.OK, _nothing)


def give_back(subscription: int, first: int, last: int, requeue: bool) -> Operation[None]:
    """Deliveries ``first`` to ``last`` were not wanted: back to the queue, or away."""
    body = SETTLE.pack(subscription, REQUEUE if requeue else 0, first, last)
    return Operation(frames.NACK, body, frames.OK, _nothing)


# Streams


def fetched(body: bytes, offset: int | str) -> Fetched:
    """What FETCHED says to who wants the records from ``offset`` on."""
    first_offset, mark, found, start, after = decode_fetched(body)
    if isinstance(offset, int):
        start = max(start, offset)
    batches = [StoredBatch(base, data, start) for base, data in found]
    return Fetched(first_offset, mark, batches, None if after < 0 else after)


def fetch(
    stream: str,
    partition: int,
    offset: int | str,
    *,
    incarnation: str | None = None,
    max_bytes: int | None = None,
    min_bytes: int = 1,
    max_wait: float = 0.0,
    topic_filter: str | None = None,
) -> Operation[Fetched]:
    """Whole record batches from the one that holds ``offset`` on.

    The offset may also be ``first``, ``last`` (the newest record) or ``next``. Waits up to
    ``max_wait`` seconds for ``min_bytes``; the result may be empty. With an MQTT ``topic_filter``
    there are no other records than those of topics that match, and ``next_offset`` is where to go
    on, also where nothing was found: the broker looks at some thousand records at a time. Raises
    NotFound, OffsetOutOfRange, StreamChanged, and of a filter InvalidArgument, and NotSupported by
    an older broker.
    """
    fields: dict[str, object] = {
        "stream": stream,
        "partition": partition,
        "offset": offset,
        "min_bytes": min_bytes,
        "max_wait_ms": milliseconds(max_wait),
    }
    if incarnation is not None:
        fields["incarnation"] = incarnation
    if max_bytes is not None:
        fields["max_bytes"] = max_bytes
    needs = ""
    if topic_filter is not None:
        fields["filter"] = topic_filter
        needs = frames.FILTER

    def parse(body: bytes) -> Fetched:
        return fetched(body, offset)

    return Operation(
        frames.FETCH,
        pack_fields(fields),
        frames.FETCHED,
        parse,
        wait=max_wait,
        repeats=True,
        needs=needs,
    )


def metadata(streams: Sequence[str] | None = None) -> Operation[list[StreamInfo]]:
    """The named streams, at most 1,024, or all of the virtual host. Raises NotFound."""
    return request(
        frames.METADATA,
        lambda reply: [_stream_info(row) for row in reply["streams"]],
        streams=None if streams is None else list(streams),
    )


def _stream_info(row: dict[str, Any]) -> StreamInfo:
    partitions = [PartitionInfo(*partition) for partition in row["partitions"]]
    return StreamInfo(row["name"], row["incarnation"], partitions, row["arguments"])


def offset_for_timestamp(
    stream: str, partition: int, timestamp: int, *, incarnation: str | None = None
) -> Operation[int]:
    """The first record that arrived at or after a time in milliseconds since the epoch."""
    return request(
        frames.OFFSETS,
        lambda reply: int(reply["offset"]),
        stream=stream,
        partition=partition,
        timestamp=timestamp,
        incarnation=incarnation,
    )

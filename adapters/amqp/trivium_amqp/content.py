"""What a publish is made of besides its body: where it goes, and what its content header says.

Publishers repeat both, byte for byte, so both are parsed once and kept by the channel.
"""

from __future__ import annotations

from typing import Final

from trivium.messages.delivery import DELAY_HEADER, DELIVERY_HEADER, delay_of, delivery_mode
from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE
from trivium.routing.exchanges import Exchange, Route
from trivium.vhost.delays import MAX_COPIES_BYTES
from trivium_amqp.codec.errors import PRECONDITION_FAILED, ChannelException
from trivium_amqp.codec.properties import (
    PERSISTENT,
    RETAIN_HEADER,
    BasicProperties,
    decode_properties,
    parse_expiration,
    with_headers,
    without_header,
)
from trivium_amqp.codec.tables import signed_int

#: The name under which a client asks for direct replies, and what the made-up names start with.
REPLY_TO_NAME: Final = b"amq.rabbitmq.reply-to"

#: Headers with further routing keys; the second one does not reach consumers.
CC: Final = "CC"
BCC: Final = "BCC"
#: Routing keys in both together: each counts at every exchange on the way.
MAX_COPIES: Final = 1024


class Target:
    """The arguments of a basic.publish and the route that they lead to."""

    def __init__(self, exchange: Exchange, key: bytes, mandatory: bool, route: Route) -> None:
        self.exchange = exchange
        self.key = key
        self.mandatory = mandatory
        #: valid while its topology version is that of the virtual host
        self.route = route


class ContentHeader:
    """A content header's properties as far as the broker acts on them."""

    def __init__(
        self,
        received: bytes,
        header: bytes,
        persistent: bool,
        priority: int,
        expiration: int,
        retain: bool,
        copies: list[bytes],
        delivery: int = -1,
        delay: int = 0,
        delayed: bytes = b"",
    ) -> None:
        #: property bytes as they came; equal ones mean an equal header
        self.received = received
        #: property bytes as they go on
        self.header = header
        #: the publisher insists on a delivery mode (header x-delivery)
        self.insists = delivery >= 0
        self.persistent = persistent
        self.mode = AT_LEAST_ONCE if persistent else AT_MOST_ONCE
        if delivery >= 0:
            self.mode = delivery
            self.persistent = delivery != AT_MOST_ONCE
        self.priority = priority
        #: milliseconds to live; -1 for ever
        self.expiration = expiration
        self.retain = retain
        #: further routing keys (the headers CC and BCC)
        self.copies = copies
        #: milliseconds until it is routed (header x-delay)
        self.delay = delay
        #: property bytes of a message that was delayed
        self.delayed = delayed
        #: nothing here is out of the ordinary: see ``Destination.accept_run``
        self.is_plain = delivery < 0 and expiration < 0 and not (retain or copies or delay)


def read_header(received: bytes, user: str, reply_name: bytes) -> ContentHeader:
    """Read property flags and list of a publish by ``user``.

    ``reply_name`` is the queue that ``amq.rabbitmq.reply-to`` stands for on this channel, empty
    when there is none. Raises ConnectionException (502) when they are malformed,
    ChannelException (406) for a value that is not allowed.
    """
    basic = decode_properties(received)
    expiration = _expiration(basic)
    if basic.user_id is not None and basic.user_id != user.encode():
        shown = basic.user_id.decode("utf-8", "replace")
        raise ChannelException(
            PRECONDITION_FAILED,
            f"user_id property set to '{shown}' but authenticated user was '{user}'",
        )
    header = _with_reply_name(received, basic, reply_name)
    delivery = _delivery(basic)
    delay = _delay(basic)
    copies = _routing_keys(basic, CC)
    if BCC in basic.headers:
        copies += _routing_keys(basic, BCC)
        header = without_header(header, BCC)
    if len(copies) > MAX_COPIES:
        raise ChannelException(
            PRECONDITION_FAILED,
            f"headers 'CC' and 'BCC' have more than {MAX_COPIES} routing keys",
        )
    return ContentHeader(
        received,
        header,
        basic.delivery_mode == PERSISTENT,
        basic.priority,
        expiration,
        basic.headers.get(RETAIN_HEADER) is True,
        copies,
        delivery,
        delay,
        _delayed(header, delay, copies) if delay else b"",
    )


def _expiration(basic: BasicProperties) -> int:
    """Milliseconds to live; -1 for ever."""
    if basic.expiration is None:
        return -1
    parsed = parse_expiration(basic.expiration)
    if parsed is None:
        shown = basic.expiration.decode("utf-8", "replace")
        raise ChannelException(PRECONDITION_FAILED, f"invalid expiration '{shown}'")
    return parsed


def _delivery(basic: BasicProperties) -> int:
    """The delivery mode that the publisher insists on; -1 for none."""
    if DELIVERY_HEADER not in basic.headers:
        return -1
    delivery = delivery_mode(basic.headers[DELIVERY_HEADER])
    if delivery < 0:
        raise ChannelException(
            PRECONDITION_FAILED, f"invalid header '{DELIVERY_HEADER}': it is no delivery mode"
        )
    return delivery


def _delay(basic: BasicProperties) -> int:
    """Milliseconds until the message is routed; 0 for at once."""
    if DELAY_HEADER not in basic.headers:
        return 0
    delay = delay_of(basic.headers[DELAY_HEADER])
    if delay < 0:
        raise ChannelException(
            PRECONDITION_FAILED,
            f"invalid header '{DELAY_HEADER}': it is no number of milliseconds",
        )
    return delay


def _delayed(header: bytes, delay: int, copies: list[bytes]) -> bytes:
    """The property bytes of a message that was delayed."""
    if sum([len(key) + 5 for key in copies]) > MAX_COPIES_BYTES:
        raise ChannelException(
            PRECONDITION_FAILED, "headers 'CC' and 'BCC' are too long for a delayed message"
        )
    # As RabbitMQ's plugin does, so that nobody who passes it on delays it again.
    return with_headers(header, {DELAY_HEADER: signed_int(-delay)}, True)


def _routing_keys(basic: BasicProperties, name: str) -> list[bytes]:
    """The routing keys in a header for sender-selected distribution; what is no text is none."""
    if name not in basic.headers:
        return []
    value = basic.headers[name]
    if not isinstance(value, list):
        raise ChannelException(PRECONDITION_FAILED, f"invalid header '{name}': it is no array")
    keys: list[bytes] = []
    for key in value:
        if isinstance(key, str):
            keys.append(key.encode())
        elif isinstance(key, bytes):
            keys.append(key)
    return keys


def _with_reply_name(received: bytes, basic: BasicProperties, reply_name: bytes) -> bytes:
    if basic.reply_to != REPLY_TO_NAME:
        return received
    if not reply_name:
        raise ChannelException(PRECONDITION_FAILED, "fast reply consumer does not exist")
    at = basic.reply_to_at
    rest = at + 1 + len(REPLY_TO_NAME)
    return received[:at] + bytes((len(reply_name),)) + reply_name + received[rest:]

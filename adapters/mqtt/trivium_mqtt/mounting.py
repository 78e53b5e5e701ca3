"""Mount points: clients of a listener see what is below a prefix of topics, and nothing else.

Every topic that such a client sends gets the prefix, every topic that it is sent loses it: names,
filters, wills, response topics. What is inside the broker has whole names. A name that begins with
``$`` does not go through, neither in nor out: behind a mount point it would be any other name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.messages.message import Address, Message
from trivium.messages.topics import RESERVED, key_of
from trivium_mqtt.codec.packets import Will
from trivium_mqtt.codec.properties import PacketProperties, change_response_topic
from trivium_mqtt.codec.reasons import TOPIC_NAME_INVALID, RemoteError
from trivium_mqtt.codec.wire import read_varint, varint, varint_size
from trivium_mqtt.encoder import PublishEncoder
from trivium_mqtt.shares import PREFIX as SHARED

if TYPE_CHECKING:
    from trivium.observability.metrics import ProtocolMetrics
    from trivium.runtime.broker import Broker

_DOLLAR: Final = b"$"
#: Longest text of MQTT (1.5.4).
_MAX_TEXT: Final = 65_535


def mount_topic(mount_point: bytes, topic: bytes) -> bytes:
    """The whole name of a topic that a client publishes to; one that is the broker's own, to which
    nobody publishes, for one with ``$``. Raises RemoteError for one that gets too long.
    """
    if topic.startswith(_DOLLAR):
        return RESERVED
    if len(mount_point) + len(topic) > _MAX_TEXT:
        raise RemoteError(TOPIC_NAME_INVALID, "topic name is too long behind the mount point")
    # What is no name does not become one.
    return mount_point + topic if topic else topic


def mount_filter(mount_point: bytes, topic_filter: bytes) -> bytes:
    """The whole filter of one that a client gives, also that of a shared subscription."""
    if not topic_filter.startswith(SHARED):
        return mount_point + topic_filter
    name, slash, shared = topic_filter[len(SHARED) :].partition(b"/")
    return SHARED + name + slash + mount_point + shared


def mount_header(mount_point: bytes, header: bytes) -> bytes:
    """Properties with the whole name of their response topic."""
    return change_response_topic(header, lambda topic: mount_point + topic)


def mount_will(mount_point: bytes, will: Will) -> Will:
    """A will with whole names. Raises RemoteError."""
    return Will(
        mount_topic(mount_point, will.topic),
        mount_header(mount_point, will.header),
        will.payload,
        will.qos,
        will.retain,
        will.delay,
    )


def mount_properties(mount_point: bytes, properties: PacketProperties) -> PacketProperties:
    """The same of a PUBLISH. What was decoded may stand for later packets too, and stays."""
    changed = PacketProperties()
    changed.numbers = properties.numbers
    changed.delivery = properties.delivery
    changed.delay = properties.delay
    changed.raw = mount_header(mount_point, properties.raw)
    return changed


class MountedEncoder(PublishEncoder):
    """Encodes for the clients behind one mount point. A message that is not below it has no form
    for them."""

    def __init__(self, broker: Broker, metrics: ProtocolMetrics, mount_point: bytes) -> None:
        super().__init__(broker, metrics)
        self._mount_point = mount_point
        # The last address, and what clients know it as.
        self._whole: Address | None = None
        self._below: Address | None = None

    def head(self, first: i64, remaining: i64, address: Address) -> bytes:
        if address is not self._whole:
            self._whole = address
            topic = self._unmounted(address.topic)
            self._below = None if topic is None else Address(address.exchange, key_of(topic))
        below = self._below
        return b"" if below is None else super().head(first, remaining, below)

    def block(self, message: Message, more: bytes) -> bytes:
        found = super().block(message, more)
        if len(found) == 1:
            return found
        size = varint_size(read_varint(found, 0, len(found)))
        changed = change_response_topic(found[size:], self._unmounted)
        return varint(len(changed)) + changed

    def _unmounted(self, topic: bytes | None) -> bytes | None:
        """What clients know a topic as; None for one that they may not know."""
        mount_point = self._mount_point
        if topic is None or not topic.startswith(mount_point):
            return None
        below = topic[len(mount_point) :]
        return None if not below or below.startswith(_DOLLAR) else below


class Encoders:
    """Those of a virtual host: one for all clients behind the same mount point, or behind none."""

    def __init__(self, broker: Broker, metrics: ProtocolMetrics) -> None:
        self._broker = broker
        self._metrics = metrics
        self.plain = PublishEncoder(broker, metrics)
        self._mounted: dict[bytes, MountedEncoder] = {}

    def of(self, mount_point: bytes) -> PublishEncoder:
        """The encoder for clients behind a mount point; empty for none."""
        if not mount_point:
            return self.plain
        found = self._mounted.get(mount_point)
        if found is None:
            found = MountedEncoder(self._broker, self._metrics, mount_point)
            self._mounted[mount_point] = found
        return found

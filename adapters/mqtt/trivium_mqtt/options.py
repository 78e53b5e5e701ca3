"""What can be set about the MQTT adapter: the section ``[mqtt]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trivium.errors import ConfigError
from trivium.messages.topics import MAX_LEVELS

#: What the protocol's fields can say (2.2.1, 1.5.4, 2.1.4).
_TWO_BYTES: Final = 65_535
_FOUR_BYTES: Final = 0xFFFF_FFFF

#: The smallest and the largest value of each key that has such.
_RANGES: Final = {
    "receive_maximum": (1, _TWO_BYTES),
    "maximum_inflight": (1, _TWO_BYTES),
    "topic_alias_maximum": (0, _TWO_BYTES),
    "server_keep_alive": (0, _TWO_BYTES),
    "maximum_session_expiry": (0, _FOUR_BYTES),
    "maximum_packet_bytes": (0, _FOUR_BYTES),
    "maximum_client_id_bytes": (23, _TWO_BYTES),
    "maximum_topic_bytes": (1, _TWO_BYTES),
    "maximum_topic_levels": (1, MAX_LEVELS),
    "maximum_subscriptions": (1, _FOUR_BYTES),
    "maximum_queued": (1, _FOUR_BYTES),
    "maximum_queued_bytes": (0, 1 << 62),
    "sys_interval_seconds": (0, 3600),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOptions:
    """Limits and defaults of one MQTT adapter. Raises ConfigError for a value out of its range."""

    #: QoS 1 and 2 messages that a client may have under way to the broker; told to MQTT 5 clients
    receive_maximum: int = 8192
    #: unacknowledged QoS 1 and 2 messages that one session gets at most, whatever its client allows
    maximum_inflight: int = 8192
    #: topic aliases that an MQTT 5 client may set, and that the broker sets toward a client
    topic_alias_maximum: int = 64
    #: seconds after which any session without a connection ends; None: as its client asked, which
    #: for MQTT 3 means never
    maximum_session_expiry: int | None = None
    #: seconds that overrule a longer (or absent) keep alive of an MQTT 5 client; 0: never
    server_keep_alive: int = 0
    #: bytes of one packet of a client; 0: ``max_message_bytes`` of ``[limits]``, which is never
    #: exceeded
    maximum_packet_bytes: int = 0
    #: bytes of a client identifier
    maximum_client_id_bytes: int = 1024
    #: bytes of a topic name or filter, and its levels
    maximum_topic_bytes: int = _TWO_BYTES
    maximum_topic_levels: int = MAX_LEVELS
    #: subscriptions of one session
    maximum_subscriptions: int = 100_000
    #: messages that wait for one session in memory; further ones are dropped. On disk: no limit.
    maximum_queued: int = 100_000
    #: bytes of payload that wait for one session, in memory or on disk, above which further
    #: messages are dropped; 0: no limit
    maximum_queued_bytes: int = 0
    #: seconds between two looks at what `$SYS/broker/...` says; 0: there are no such topics
    sys_interval_seconds: int = 10
    #: whether a user name `vhost:user` names a virtual host
    vhost_in_username: bool = True

    @property
    def limits_topics(self) -> bool:
        """Whether there are topics that the protocol admits and this does not."""
        return self.maximum_topic_bytes < _TWO_BYTES or self.maximum_topic_levels < MAX_LEVELS

    def admits_topic(self, topic: bytes) -> bool:
        """Whether a topic name or filter is not too long and has not too many levels."""
        return (
            len(topic) <= self.maximum_topic_bytes and topic.count(b"/") < self.maximum_topic_levels
        )

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name} must be from {least} to {most}")

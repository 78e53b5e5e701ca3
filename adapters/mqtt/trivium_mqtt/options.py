"""What can be set about the MQTT adapter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOptions:
    """Limits and defaults of one MQTT adapter."""

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
    #: subscriptions of one session
    maximum_subscriptions: int = 100_000
    #: messages that wait for one session in memory; further ones are dropped. On disk: no limit.
    maximum_queued: int = 100_000

    def __post_init__(self) -> None:
        for value in (self.receive_maximum, self.maximum_inflight):
            if not 1 <= value <= 65_535:
                raise ValueError("receive_maximum and maximum_inflight are 1 to 65535")
        for value in (self.topic_alias_maximum, self.server_keep_alive):
            if not 0 <= value <= 65_535:
                raise ValueError("topic_alias_maximum and server_keep_alive are 0 to 65535")

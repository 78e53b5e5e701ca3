"""What protocols tell of their clients to whoever manages the broker, in no protocol's words.

They are made when somebody asks. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trivium.common.counters import Traffic
from trivium.common.values import HeaderValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDescription:
    """What a protocol knows of one connection."""

    #: with its version, as the protocol is usually called
    protocol: str
    #: ``starting``, ``running``, ``closing``, or ``blocked``: it publishes while publishers are
    #: paused
    state: str
    #: what the client says of itself
    client: Mapping[str, HeaderValue] = field(default_factory=dict)
    #: how it has authenticated, in the protocol's word
    mechanism: str = ""
    channels: int = 0
    #: most channels that it may have, 0 where there are none
    max_channels: int = 0
    #: bytes of its largest frame, 0 where none was agreed
    max_frame: int = 0
    #: seconds without a sign of life that are allowed, 0 for any
    timeout: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDescription:
    """One channel of a connection."""

    number: int
    consumers: int
    #: messages that the client has and that are not settled
    unsettled: int
    #: published and not confirmed yet
    unconfirmed: int
    #: published and settled in a transaction that is open
    uncommitted: int
    unsettled_uncommitted: int
    #: unsettled messages that each new consumer, and all together, may have; 0 for any number
    consumer_limit: int
    limit: int
    confirms: bool
    transactional: bool
    #: what it has counted
    traffic: Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDescription:
    """One consumer of a queue or stream."""

    #: by which its client knows it
    tag: str
    queue: str
    #: that has it (``trivium.runtime.adapter.Connection``)
    connection: object
    #: of the connection, 0 where it has none
    channel: int
    #: whether deliveries are settled by the client
    acknowledges: bool
    #: unsettled messages that it may have, 0 for any number
    limit: int
    arguments: Mapping[str, HeaderValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDescription:
    """What outlives the connections of one client."""

    client_id: str
    user: str
    is_connected: bool
    #: seconds that it outlives its connection
    expiry: int
    subscriptions: int
    #: the queue of what waits for the client; "" while it has none
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """What a session has subscribed to."""

    client_id: str
    topic_filter: str
    qos: int
    #: name of the share; "" for a subscription that is the session's alone
    share: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareDescription:
    """Sessions that share a subscription: each message goes to one of them."""

    name: str
    topic_filter: str
    members: tuple[str, ...]

"""What a client says of itself, and what operators see of its connection and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.descriptions import (
    ChannelDescription,
    ConnectionDescription,
    ConsumerDescription,
)
from trivium.messages.message import HeaderValue
from trivium.runtime.adapter import ManagedConnection, connection_name
from trivium_amqp import states
from trivium_amqp.codec.errors import CONNECTION_FORCED, ConnectionException
from trivium_amqp.codec.frames import OVERHEAD
from trivium_amqp.states import State

if TYPE_CHECKING:
    from trivium_amqp.channel import Channel
    from trivium_amqp.connection import AmqpConnection

PROTOCOL: Final = "AMQP 0-9-1"

#: What states of a connection are called; the others are those of the handshake.
_NAMES: Final[dict[State, str]] = {states.RUNNING: "running", states.CLOSING: "closing"}


class ClientProperties:
    """The client-properties of connection.start-ok, empty before, and how it authenticates."""

    def __init__(self) -> None:
        self.table: dict[str, HeaderValue] = {}
        self.mechanism = ""

    def said(self, table: dict[str, HeaderValue], mechanism: str) -> None:
        """The client has said them."""
        self.table = table
        self.mechanism = mechanism

    def has_capability(self, name: str) -> bool:
        """Whether the client has announced a capability."""
        found = self.table.get("capabilities")
        return isinstance(found, dict) and found.get(name) is True


class AmqpManaged(ManagedConnection):
    """One connection; ``is_blocked``: it publishes while publishers are paused."""

    def __init__(self, connection: AmqpConnection, is_blocked: bool) -> None:
        super().__init__(connection)
        self._connection = connection
        self._is_blocked = is_blocked

    def describe(self) -> ConnectionDescription:
        connection = self._connection
        state = _NAMES.get(connection.state, "starting")
        return ConnectionDescription(
            protocol=PROTOCOL,
            state="blocked" if self._is_blocked and state == "running" else state,
            client=connection.client.table,
            mechanism=connection.client.mechanism,
            channels=len(connection.channels),
            max_channels=connection.options.channel_max,
            max_frame=connection.frame_room + OVERHEAD,
            timeout=connection.liveness.heartbeat // 1000,
        )

    def channels(self) -> list[ChannelDescription]:
        return [_described(channel) for channel in self._connection.channels.values()]

    def consumers(self) -> list[ConsumerDescription]:
        channels = self._connection.channels.values()
        return [found.describe() for each in channels for found in each.consumers.values()]

    def close(self, reason: str) -> None:
        connection = self._connection
        if connection.state is states.GREETING:
            connection.close()
        elif connection.state is not states.CLOSING:
            connection.send_close(ConnectionException(CONNECTION_FORCED, reason), 0)


def _described(channel: Channel) -> ChannelDescription:
    publisher = channel.publisher
    transaction = publisher.transaction
    return ChannelDescription(
        number=channel.number,
        consumers=len(channel.consumers),
        unsettled=len(channel.unacked),
        unconfirmed=publisher.unconfirmed,
        uncommitted=0 if transaction is None else len(transaction.publishes),
        unsettled_uncommitted=0 if transaction is None else len(transaction.acknowledgements),
        consumer_limit=channel.prefetch,
        limit=channel.limit,
        confirms=publisher.confirms,
        transactional=transaction is not None,
        traffic=publisher.traffic,
    )


def tell_channel(channel: Channel, what: str) -> None:
    """A channel has come or gone."""
    connection = channel.connection
    name = connection_name(connection)
    channel.vhost.tell(
        f"channel.{what}",
        name=f"{name} ({channel.number})",
        number=channel.number,
        connection=name,
        user=connection.identity.name,
    )

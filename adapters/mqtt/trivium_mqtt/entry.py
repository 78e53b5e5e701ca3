"""Where a client goes that connects: which virtual host, and whether it may go there.

MQTT has no word for virtual hosts. The first of these counts: the listener's, the one that the user
name begins with, what the client came with says, the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trivium.errors import NotFound, TopologyError
from trivium.security.permissions import expand_pattern
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.codec.reasons import (
    BAD_CREDENTIALS,
    CLIENT_ID_NOT_VALID,
    NOT_AUTHORIZED,
    RemoteError,
)

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection
    from trivium_mqtt.sessions import Sessions


class Entry:
    """Of one connection, until it is in."""

    def __init__(
        self, connection: MqttConnection, sessions_of: Callable[[VirtualHost], Sessions]
    ) -> None:
        self._connection = connection
        self._sessions_of = sessions_of
        # The virtual host that the user name begins with; "" for none.
        self._named = ""

    def user_of(self, username: str | None) -> str | None:
        """The user of a name ``vhost:user``: what follows the last colon, as in RabbitMQ. A user
        who is called so as a whole goes before."""
        connection = self._connection
        if (
            username is None
            or ":" not in username
            or not connection.options.vhost_in_username
            or connection.broker.users.find(username) is not None
        ):
            return username
        self._named, _, user = username.rpartition(":")
        return user

    def likely_vhost(self, username: str) -> str:
        """Where the client will go, as far as is known before it has authenticated."""
        own = self._connection.peer.listener.config.virtual_host
        return own or self._named or self._connection.broker.users.virtual_host_of(username)

    def enter(self, client_id: bytes) -> None:
        """Give the connection the sessions of its virtual host, and what it may do there. Raises
        RemoteError where it may not enter."""
        connection = self._connection
        broker = connection.broker
        identity = connection.identity
        pattern = broker.config.auth.client_id_pattern
        if pattern and not identity.is_anonymous:
            allowed = expand_pattern(pattern, {"username": identity.name})
            if allowed is None or not allowed.matches(client_id.decode()):
                raise RemoteError(CLIENT_ID_NOT_VALID, "client identifier is not the user's")
        login = connection.login
        assert login is not None
        own = connection.peer.listener.config.virtual_host
        wanted = self._named or own or broker.authentication.virtual_host_of(login)
        try:
            sessions = self._sessions_of(broker.virtual_hosts.chosen(connection, wanted))
            connection.access = sessions.access_of(identity, client_id)
            connection.access.require_entry()
        except TopologyError as error:
            text = str(error)
            reason = NOT_AUTHORIZED
            if isinstance(error, NotFound):
                if self._named:
                    # The user name is wrong, as in RabbitMQ.
                    reason = BAD_CREDENTIALS
                else:
                    text += f": it is where user '{identity.name}' goes"
            raise RemoteError(reason, text) from None
        connection.sessions = sessions
        connection.encoder = sessions.encoders.of(connection.mount_point)

"""Enhanced authentication (MQTT 5, 4.12): a client comes in by a method that it names.

By that it may also renew what it came with, while its messages go on (4.12.1).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trivium.security.attempts import Attempt, Login
from trivium.security.exchanges import Exchange, Step
from trivium_mqtt.codec import packets
from trivium_mqtt.codec.packets import Auth
from trivium_mqtt.codec.reasons import (
    BAD_AUTHENTICATION_METHOD,
    CONTINUE_AUTHENTICATION,
    NOT_AUTHORIZED,
    REAUTHENTICATE,
    SERVER_BUSY,
    SUCCESS,
    ProtocolError,
    RemoteError,
)

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection

logger = logging.getLogger(__name__)


class Enhanced:
    """The authentication of one connection, by the method that its CONNECT names.

    Raises RemoteError where there is no such method for it.
    """

    def __init__(self, connection: MqttConnection, method: bytes, attempt: Attempt) -> None:
        self._connection = connection
        self._method = method
        # None once it is decided.
        self._exchange: Exchange | None = self._open(attempt)
        # A message of the client is looked at.
        self._is_busy = False
        #: properties of CONNACK, once the client is in
        self.answer = b""

    def _open(self, attempt: Attempt) -> Exchange:
        authenticator = self._connection.broker.authenticator
        exchange = authenticator.exchange(self._method.decode(), attempt)
        if exchange is None:
            text = "the authentication method is not supported (MQTT-4.12.0-1)"
            raise RemoteError(BAD_AUTHENTICATION_METHOD, text)
        return exchange

    @property
    def user(self) -> str:
        """Who the client says it is, as far as it has."""
        return "" if self._exchange is None else self._exchange.attempt.username or ""

    def take(self, packet: Auth, attempt: Attempt) -> None:
        """AUTH came; ``attempt`` is for one that begins anew. Raises RemoteError."""
        if packet.method != self._method:
            raise ProtocolError("another authentication method (MQTT-4.12.0-5, MQTT-4.12.1-1)")
        if packet.reason == REAUTHENTICATE:
            if self._exchange is not None:
                raise ProtocolError("re-authentication within an authentication (4.12.1)")
            self._exchange = self._open(attempt)
        elif self._exchange is None or self._is_busy:
            raise ProtocolError("AUTH that nothing has asked for (MQTT-4.12.0-3)")
        self.go_on(packet.data)

    def go_on(self, data: bytes) -> None:
        """Take a message of the exchange."""
        assert self._exchange is not None
        self._is_busy = True
        self._exchange.take(data, self._stepped)

    def _stepped(self, step: Step) -> None:
        self._is_busy = False
        connection = self._connection
        if connection.is_closed:
            return
        block = packets.authentication(self._method, step.data)
        if step.goes_on:
            packet = packets.auth(CONTINUE_AUTHENTICATION, block)
            if len(packet) <= connection.maximum_output:
                connection.challenged(packet)
            else:
                # It cannot be asked (MQTT-3.1.2-24).
                connection.close()
            return
        if connection.is_connected:
            self._renew(step.login, packets.auth(SUCCESS, block))
        else:
            self.answer = block
            connection.authenticated(step.login)
        self._exchange = None

    def _renew(self, login: Login | None, packet: bytes) -> None:
        """Re-authentication ends with ``packet``, or the connection does."""
        connection = self._connection
        if connection.is_put_off and login is None:
            connection.end(SERVER_BUSY)
            return
        if login is None:
            connection.metrics.authentication_failures += 1
            address = connection.peer.address
            logger.info("%s: re-authentication of user %r is refused", address, self.user)
            connection.end(NOT_AUTHORIZED)
            return
        connection.admit(login)
        if len(packet) <= connection.maximum_output and not connection.is_closed:
            # What it may do from now on is in the row of a kept session.
            write_batch = connection.sessions.write_batch_of(connection.attached())
            connection.answer(write_batch, packet, 0)

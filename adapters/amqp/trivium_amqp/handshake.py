"""The negotiation that opens a connection: start, authentication, tune, open (2.2.4)."""

from __future__ import annotations

import logging
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trivium import __version__
from trivium.errors import AccessRefused, NotFound, QuotaExceeded
from trivium.messages.message import HeaderValue
from trivium.runtime.adapter import PUT_OFF, enter_vhost, make_attempt
from trivium.runtime.cluster_name import cluster_name
from trivium.runtime.framed import FOR_PROTOCOL
from trivium.security.attempts import Attempt, Login
from trivium_amqp import states
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    RESOURCE_ERROR,
    ConnectionException,
    connection_refusal,
)
from trivium_amqp.codec.frames import (
    MIN_FRAME_MAX,
    OVERHEAD,
    PROTOCOL_HEADER,
    method_frame,
)
from trivium_amqp.codec.tables import decode_table

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost
    from trivium_amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)

#: Why input is held: what the client sent must be answered, or its answers read, before it goes on.
FOR_ANSWERS: Final = FOR_PROTOCOL

#: In RabbitMQ's order.
MECHANISMS: Final = b"PLAIN AMQPLAIN"
#: Where the client has shown a certificate, and where clients without credentials may come in.
EXTERNAL: Final = "EXTERNAL"
ANONYMOUS: Final = "ANONYMOUS"
LOCALES: Final = b"en_US"

#: What clients gate features on; each one is true.
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


#: The dialect that is spoken here, by the names that clients know it by: some choose by them what
#: they send (docs/decisions/0005-name-in-the-handshake.md).
PRODUCT: Final = "RabbitMQ"
DIALECT_VERSION: Final = "3.13.0"


def server_properties(cluster_name: str) -> dict[str, HeaderValue]:
    """The server-properties of connection.start, of the broker that people call ``cluster_name``.

    ``product`` and ``version`` name the dialect; who we are is in ``implementation``.
    """
    capabilities: dict[str, HeaderValue] = {}
    for name in CAPABILITIES:
        capabilities[name] = True
    return {
        "capabilities": capabilities,
        "cluster_name": cluster_name,
        "implementation": "Trivium",
        "implementation_version": __version__,
        "information": f"Trivium {__version__}; product and version name the dialect it speaks",
        "platform": f"Python {platform.python_version()}",
        "product": PRODUCT,
        "version": DIALECT_VERSION,
    }


class Handshake:
    """What the broker does in the states of the negotiation."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._mechanism = ""
        # The authenticator has not answered yet, and did not do so at once.
        self._is_waiting = False
        self._is_held = False
        # What the client has shown, until it opens a virtual host: only where that decides.
        self._shown: Attempt | None = None

    def greet(self, data: bytes) -> int:
        """Answer the protocol header with connection.start (4.2.2); how much ``data`` it took."""
        connection = self._connection
        size = min(len(data), len(PROTOCOL_HEADER))
        if data[:size] != PROTOCOL_HEADER[:size]:
            connection.metrics.protocol_errors += 1
            connection.close_with(PROTOCOL_HEADER)
            return len(data)
        if size < len(PROTOCOL_HEADER):
            connection.needed = len(PROTOCOL_HEADER)
            return 0
        self._start()
        return size

    def _start(self) -> None:
        connection = self._connection
        connection.state = states.STARTING
        properties = server_properties(cluster_name(connection.broker.storage))
        mechanisms = self._mechanisms()
        connection.send(
            method_frame(0, methods.CONNECTION_START, 0, 9, properties, mechanisms, LOCALES)
        )

    def _mechanisms(self) -> bytes:
        """Those that may be used by this client."""
        peer = self._connection.peer
        found = MECHANISMS
        shown = peer.certificate
        if shown is not None and (shown.user_name or shown.is_ambiguous):
            found += b" " + EXTERNAL.encode()
        authenticator = self._connection.broker.authenticator
        is_offered = self._connection.options.anonymous_mechanism
        if is_offered and authenticator.admits_anonymous(peer.listener.config):
            found += b" " + ANONYMOUS.encode()
        return found

    def take_method(self, method: int, arguments: list[Any]) -> None:
        """A method came that the state admits. Raises ConnectionException."""
        if method == methods.CONNECTION_START_OK:
            self._start_ok(arguments)
        elif method == methods.CONNECTION_TUNE_OK:
            self._tune_ok(arguments)
        else:
            self._open(arguments)

    def _start_ok(self, arguments: list[Any]) -> None:
        client_properties, mechanism, response, _locale = arguments
        connection = self._connection
        connection.client.said(client_properties, mechanism)
        self._mechanism = mechanism
        credentials = read_credentials(mechanism, response)
        is_spoken = mechanism != ANONYMOUS or connection.options.anonymous_mechanism
        if credentials is None or not is_spoken:
            self._authenticated(None)
            return
        username, password = credentials
        connection.user = username or ""
        attempt = make_attempt(connection, username, password)
        if mechanism == EXTERNAL:
            attempt = replace(attempt, only="certificate", admits_anonymous=False)
        elif mechanism == ANONYMOUS:
            attempt = replace(attempt, only="")
        self._shown = attempt
        self._is_waiting = True
        connection.broker.authenticator.authenticate(attempt, self._authenticated)
        self._wait()

    def _wait(self) -> None:
        """Take no input until the authenticator has answered, if it has not within the call."""
        if self._is_waiting:
            self._is_held = True
            self._connection.hold_input(FOR_ANSWERS)

    def _go_on(self) -> None:
        if self._is_held and not self._connection.is_closed:
            self._is_held = False
            self._connection.continue_input(FOR_ANSWERS)

    def _authenticated(self, login: Login | None) -> None:
        connection = self._connection
        shown, self._shown = self._shown, None
        if connection.is_closed or connection.state is not states.STARTING:
            return
        self._is_waiting = False
        if login is not None:
            if connection.broker.authenticator.decides_by_vhost(login):
                self._shown = shown
            connection.admit(login)
            connection.user = login.identity.name
            connection.state = states.TUNING
            offer = connection.options
            connection.send(
                method_frame(
                    0,
                    methods.CONNECTION_TUNE,
                    offer.channel_max,
                    offer.frame_max,
                    offer.heartbeat,
                )
            )
        else:
            self._refuse()
        self._go_on()

    def _refuse(self) -> None:
        """The client may not come in."""
        connection = self._connection
        if connection.is_put_off:
            logger.info("%s: %s", connection.peer.address, PUT_OFF)
            error = ConnectionException(RESOURCE_ERROR, PUT_OFF)
        else:
            connection.metrics.authentication_failures += 1
            logger.info("%s: user %r is refused", connection.peer.address, connection.user)
            text = (
                "Login was refused using authentication mechanism"
                f" {self._mechanism[:32]}. For details see the broker logfile."
            )
            error = ConnectionException(ACCESS_REFUSED, text)
        if connection.client.has_capability("authentication_failure_close"):
            connection.fail(error, 0)
        else:
            connection.close()

    def _tune_ok(self, arguments: list[Any]) -> None:
        channel_max, frame_max, heartbeat = arguments
        connection = self._connection
        most = connection.options
        if channel_max > most.channel_max:
            raise _refused("channel_max", channel_max, "higher than the maximum", most.channel_max)
        if frame_max > most.frame_max:
            raise _refused("frame_max", frame_max, "higher than the maximum", most.frame_max)
        if 0 < frame_max < MIN_FRAME_MAX:
            raise _refused("frame_max", frame_max, "lower than the minimum", MIN_FRAME_MAX)
        # Zero means "no limit of mine": then ours holds.
        frame_max = frame_max or most.frame_max
        connection.channel_max = channel_max or most.channel_max
        connection.frame_room = frame_max - OVERHEAD
        connection.repeats.largest_body = min(frame_max, most.max_message_bytes)
        connection.liveness.heartbeat = heartbeat * 1000
        connection.state = states.OPENING

    def _open(self, arguments: list[Any]) -> None:
        connection = self._connection
        wanted = arguments[0]
        vhost = self._chosen(wanted)
        shown, self._shown = self._shown, None
        login = connection.login
        if shown is None or login is None or shown.vhost == vhost.name:
            self._enter(vhost)
            return
        self._is_waiting = True
        connection.broker.authenticator.enter(
            login, replace(shown, vhost=vhost.name), lambda found: self._decided(wanted, found)
        )
        self._wait()

    def _decided(self, wanted: str, login: Login | None) -> None:
        """The authenticator was asked again, for the virtual host that the client opens."""
        connection = self._connection
        if connection.is_closed or connection.state is not states.OPENING:
            return
        self._is_waiting = False
        try:
            if login is not None:
                connection.admit(login)
            # Permissions and virtual hosts may be others by now.
            vhost = self._chosen(wanted)
            if login is None:
                error = connection.access.refused(f"access to vhost '{vhost.name}'")
                raise ConnectionException(NOT_ALLOWED, str(error))
            self._enter(vhost)
        except ConnectionException as refused:
            connection.fail(refused, methods.CONNECTION_OPEN)
        self._go_on()

    def _chosen(self, wanted: str) -> VirtualHost:
        """The virtual host that the client asks for. Raises ConnectionException where there is
        none, or it may not enter."""
        connection = self._connection
        broker = connection.broker
        try:
            vhost = broker.virtual_hosts.chosen(connection, wanted)
            connection.access = broker.permissions.access(connection.identity, vhost.name)
            connection.access.require_entry()
        except (NotFound, AccessRefused) as error:
            raise ConnectionException(NOT_ALLOWED, str(error)) from None
        return vhost

    def _enter(self, vhost: VirtualHost) -> None:
        """The client is in a virtual host. Raises ConnectionException where that is full."""
        connection = self._connection
        try:
            enter_vhost(connection, vhost.name)
        except QuotaExceeded as error:
            raise connection_refusal(error, connection.user, vhost.name) from None
        connection.opened(vhost)
        connection.send(method_frame(0, methods.CONNECTION_OPEN_OK))


def read_credentials(mechanism: str, response: bytes) -> tuple[str | None, bytes] | None:
    """User and password of a SASL response; None when it has none, or there is no such mechanism.

    EXTERNAL has a user or none (RFC 4422, A), ANONYMOUS says nothing that counts (RFC 4505).
    PLAIN is ``[identity] NUL user NUL password`` (RFC 4616); AMQPLAIN is a field table without its
    length, with LOGIN and PASSWORD.
    """
    if mechanism == "PLAIN":
        parts = response.split(b"\x00")
        if len(parts) != 3:
            return None
        try:
            return parts[1].decode(), parts[2]
        except UnicodeDecodeError:
            return None
    if mechanism == ANONYMOUS:
        return None, b""
    if mechanism == EXTERNAL:
        try:
            return response.decode() or None, b""
        except UnicodeDecodeError:
            return None
    if mechanism == "AMQPLAIN":
        table = decode_table(response, 0, len(response))
        login, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(password, str):
            password = password.encode()
        if isinstance(login, str) and isinstance(password, bytes):
            return login, password
    return None


class Renewal:
    """A client shows a new secret: connection.update-secret, an extension of RabbitMQ."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._is_waiting = True
        self._is_held = False

    def start(self, secret: bytes) -> None:
        """Check the secret, then answer; a refused one ends the connection, as in RabbitMQ."""
        connection = self._connection
        login = connection.login
        assert login is not None, "an open connection has authenticated"
        attempt = make_attempt(connection, login.identity.name, secret, vhost=connection.vhost.name)
        connection.broker.authenticator.renew(login, attempt, self._decided)
        if self._is_waiting:
            self._is_held = True
            connection.hold_input(FOR_ANSWERS)

    def _decided(self, login: Login | None) -> None:
        self._is_waiting = False
        connection = self._connection
        if connection.is_closed or connection.state is not states.RUNNING:
            return
        if login is None and connection.is_put_off:
            error = ConnectionException(RESOURCE_ERROR, PUT_OFF)
            connection.fail(error, methods.CONNECTION_UPDATE_SECRET)
            return
        if login is None:
            connection.metrics.authentication_failures += 1
            logger.info(
                "%s: a new secret of user %r is refused", connection.peer.address, connection.user
            )
            text = "New secret was refused by one of the backends"
            connection.fail(
                ConnectionException(NOT_ALLOWED, text), methods.CONNECTION_UPDATE_SECRET
            )
            return
        connection.admit(login)
        if connection.state is states.RUNNING:
            # By what it shows now it may be in no virtual host.
            connection.send(method_frame(0, methods.CONNECTION_UPDATE_SECRET_OK))
        if self._is_held:
            connection.continue_input(FOR_ANSWERS)


def _refused(name: str, value: int, relation: str, limit: int) -> ConnectionException:
    return ConnectionException(
        NOT_ALLOWED, f"negotiated {name} = {value} is {relation} allowed value ({limit})"
    )

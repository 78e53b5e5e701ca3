"""The beginning of a connection: HELLO, AUTH, and whether the client is let in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trivium
from trivium import errors as core
from trivium.runtime.adapter import PUT_OFF, enter_vhost, make_attempt
from trivium.runtime.framed import FOR_PROTOCOL
from trivium.security.attempts import Login
from trivium.security.authenticator import MAX_CREDENTIAL_BYTES
from trivium_native.server import states
from trivium_native.server.options import NativeOptions
from trivium_native.wire import frames
from trivium_native.wire.errors import (
    AccessRefused,
    AuthenticationFailed,
    Fenced,
    InvalidArgument,
    Malformed,
    NativeError,
    NotFound,
    PreconditionFailed,
    QuotaExceeded,
    ResourceLocked,
    StaleMember,
    TooManyRequests,
    UnsupportedVersion,
)
from trivium_native.wire.fields import Fields
from trivium_native.wire.frames import Frame, encode_frame, pack

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

logger = logging.getLogger(__name__)

#: the codecs that messages of PUBLISH may be compressed by
COMPRESSION: Final = ["lz4", "zstd"]

#: what came to version 1 that older brokers do not take
FEATURES: Final = [frames.FILTER]

#: Why input is held: a thread checks the password. Nothing is to pile up meanwhile.
UNDECIDED: Final = FOR_PROTOCOL
#: What the client has asked for is not done yet. It is not read, so that few such changes (of
#: policies, of passwords) can be under way.
BEHIND_REQUEST: Final = UNDECIDED << 1


class Handshake:
    """The handshake of one connection."""

    def __init__(self, connection: NativeConnection) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._heartbeat = 0

    def take_frame(self, frame: Frame) -> None:
        """Take a frame that the state admits. Raises the errors that close the connection."""
        if frame.kind == frames.CLOSE:
            self._connection.close()
        elif frame.kind == frames.HELLO:
            self._greet(frame)
        else:
            self._authenticate(frame)

    def _greet(self, frame: Frame) -> None:
        fields = Fields(frame.body)
        try:
            name = fields.text("protocol")
            version = fields.integer("version", 0, 0xFFFF)
            heartbeat = fields.integer("heartbeat", 0, self._connection.options.max_heartbeat, 0)
            fields.text("client", "")
            fields.finish()
        except InvalidArgument as error:
            raise Malformed(error.text) from None
        if name != frames.PROTOCOL_NAME or version != frames.VERSION:
            raise UnsupportedVersion(f"this broker speaks version {frames.VERSION}")
        self._heartbeat = heartbeat
        self._connection.state = states.AUTHENTICATION
        reply: dict[str, object] = {
            "version": frames.VERSION,
            "heartbeat": heartbeat,
            "max_frame": max_frame(self._connection.options),
            "broker": f"trivium {trivium.__version__}",
            "compression": COMPRESSION,
            "features": FEATURES,
        }
        self._connection.send(encode_frame(frames.HELLO, frame.correlation, pack(reply)))

    def _authenticate(self, frame: Frame) -> None:
        fields = Fields(frame.body)
        try:
            vhost = fields.text("vhost", "/")
            username = fields.optional_text("username")
            password = fields.data("password", b"", MAX_CREDENTIAL_BYTES)
            fields.finish()
        except InvalidArgument as error:
            raise Malformed(error.text) from None
        connection = self._connection
        correlation = frame.correlation
        is_decided = False
        is_later = False

        def done(login: Login | None) -> None:
            nonlocal is_decided
            is_decided = True
            if connection.is_closed:
                return
            if login is not None:
                connection.admit(login)
                self._open(correlation, vhost)
            elif connection.is_put_off:
                logger.info("%s: %s", connection.peer.address, PUT_OFF)
                connection.refuse(correlation, TooManyRequests(PUT_OFF))
            elif username is None:
                logger.info("%s: anonymous access is not allowed here", connection.peer.address)
                connection.refuse(correlation, AuthenticationFailed("credentials are needed"))
            else:
                logger.info("%s: user %r is refused", connection.peer.address, username)
                error = AuthenticationFailed("wrong username or password")
                connection.refuse(correlation, error)
            if is_later:
                connection.continue_input(UNDECIDED)

        attempt = make_attempt(connection, username, password, vhost=vhost)
        self._broker.authenticator.authenticate(attempt, done)
        if not is_decided:
            is_later = True
            connection.hold_input(UNDECIDED)

    def _open(self, correlation: int, wanted: str) -> None:
        connection = self._connection
        broker = self._broker
        try:
            vhost = broker.virtual_hosts.chosen(connection, wanted)
            connection.access = broker.permissions.access(connection.identity, vhost.name)
            connection.access.require_entry()
            enter_vhost(connection, vhost.name)
        except core.TopologyError as error:
            connection.refuse(correlation, of_topology(error))
            return
        connection.open(correlation, vhost, self._heartbeat)


def renew(connection: NativeConnection, correlation: int, fields: Fields) -> None:
    """AUTH of a client that is in: it shows a new credential of its user.

    One that is refused ends the connection, as with ``connection.update-secret`` on AMQP.
    """
    password = fields.data("password", None, MAX_CREDENTIAL_BYTES)
    fields.finish()
    login = connection.login
    assert login is not None, "an open connection has authenticated"

    def done(found: Login | None) -> None:
        if connection.is_closed:
            return
        if found is None and connection.is_put_off:
            connection.refuse(correlation, TooManyRequests(PUT_OFF))
            return
        if found is None:
            name = login.identity.name
            logger.info("%s: a renewal of user %r is refused", connection.peer.address, name)
            connection.refuse(correlation, AuthenticationFailed("the new credential is refused"))
            return
        connection.admit(found)
        if not connection.is_closed:
            connection.reply(correlation, {})
            connection.continue_input(BEHIND_REQUEST)

    connection.hold_input(BEHIND_REQUEST)
    attempt = make_attempt(connection, login.identity.name, password, vhost=connection.vhost.name)
    connection.broker.authenticator.renew(login, attempt, done)


def max_frame(options: NativeOptions) -> int:
    """The longest frame that is taken after authentication."""
    return options.max_message_bytes + frames.FRAME_OVERHEAD


def of_topology(error: core.TopologyError) -> NativeError:
    """The protocol's error for one of the core's."""
    text = str(error)
    if isinstance(error, core.NotFound):
        return NotFound(text)
    if isinstance(error, core.AccessRefused):
        return AccessRefused(text)
    if isinstance(error, core.ResourceLocked):
        return ResourceLocked(text)
    if isinstance(error, core.StaleMember):
        return StaleMember(text)
    if isinstance(error, core.Fenced):
        return Fenced(text)
    if isinstance(error, core.QuotaExceeded):
        return QuotaExceeded(text, {"limit": error.limit, "most": error.most})
    if isinstance(error, core.LimitExceeded):
        return TooManyRequests(text)
    return PreconditionFailed(text)

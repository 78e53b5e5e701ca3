"""What a protocol adapter implements, and what it gets from the driver.

An adapter makes one ``Connection`` per client. A connection is a plain object that is fed bytes and
time and leaves bytes in ``output``; the driver (``trivium.runtime.driver``) owns the socket and
writes the output once per turn of the loop. Adapters are found through the entry-point group
``trivium.adapters``: each entry names a callable that returns an ``Adapter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from librt.strings import BytesWriter
from mypy_extensions import mypyc_attr

from trivium.common.counters import Traffic
from trivium.common.descriptions import (
    ChannelDescription,
    ConnectionDescription,
    ConsumerDescription,
    SessionDescription,
    ShareDescription,
    SubscriptionDescription,
)
from trivium.common.pieces import Piece
from trivium.listen import ListenerConfig
from trivium.messages.large import Content
from trivium.observability.metrics import ProtocolMetrics
from trivium.routing.exchanges import Declarer
from trivium.runtime.usage import Usage
from trivium.security.attempts import Attempt, Login
from trivium.security.identity import NOBODY, Identity
from trivium.security.permissions import Access
from trivium.storage.base import DurabilityWaiter

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.runtime.pacing import Slowdown
    from trivium.vhost.virtual_host import VirtualHost

#: Output that a connection may hold before queues stop delivering to it (1 MiB): enough for one
#: turn at full speed, small enough for thousands of slow readers.
OUTPUT_HIGH_WATER: Final = 1 << 20

#: Output of this size and more is not copied before the driver has it (4 KiB).
LARGE_OUTPUT: Final = 4096
#: The room for output that a connection keeps while it has none: what a writer has by itself.
_KEPT_OUTPUT: Final = 256

#: Bytes that a client may yet send once its connection is over; they are read and dropped, so that
#: it gets the last answer (64 MiB). Some clients send what they had buffered behind their goodbye.
DISCARDED_BYTES: Final = 64 << 20


_numbers: Final[Iterator[int]] = count(1)


class Listener:
    """One of the configured listeners, as it runs."""

    def __init__(self, config: ListenerConfig) -> None:
        self.config = config
        self.name = config.name
        #: connections that it has now
        self.connections = 0


class ClientCertificate:
    """What the certificate says that a client has shown; TLS has verified it."""

    def __init__(
        self,
        common_name: str,
        dns_names: tuple[str, ...],
        email_addresses: tuple[str, ...],
        uris: tuple[str, ...],
        user_name: str,
        is_ambiguous: bool = False,
    ) -> None:
        #: of the subject, the last of several; "" for none
        self.common_name = common_name
        #: of the alternative names
        self.dns_names = dns_names
        self.email_addresses = email_addresses
        self.uris = uris
        #: whose it is, by the listener's `tls.user_from`; "" for nobody
        self.user_name = user_name
        #: whether that says several names, so that it is nobody
        self.is_ambiguous = is_ambiguous


class Peer:
    """Who is at the other end of a connection, as far as the network tells."""

    def __init__(
        self,
        address: str,
        is_loopback: bool,
        listener: Listener,
        certificate: ClientCertificate | None = None,
        came_at: int = 0,
        tls: object = None,
    ) -> None:
        #: ``host:port``, ``unix``, or ``inside``
        self.address = address
        #: whether the peer is on this machine
        self.is_loopback = is_loopback
        #: where it came in
        self.listener = listener
        self.certificate = certificate
        #: when it came, before any layer of the connection, as ``Broker.elapsed_ms``; 0: just now
        self.came_at = came_at
        #: its side of TLS (``ssl.SSLObject``); None without
        self.tls = tls


class Transport(Protocol):
    """The driver's side of a connection."""

    def pause_reading(self) -> None:
        """Stop feeding; what is in the socket stays there, so the peer is slowed down."""

    def resume_reading(self) -> None:
        """Feed again."""

    def close(self, waits: bool = True) -> None:
        """Write what is in ``output``, then close, so that the peer gets it. Nothing is fed any
        more; what the peer still sends is dropped until it closes too, or is too much.

        Without ``waits`` the peer is taken for dead: its socket is not kept for it.
        """

    def abort(self) -> None:
        """Close at once; unwritten output is lost."""

    def unsent(self) -> int:
        """Bytes that were written and that the peer has not taken yet, as far as is known here."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ManagedConnection:
    """What operators see of a connection, and do to it; made when they ask. Protocols have their
    own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def describe(self) -> ConnectionDescription:
        """The connection."""
        return ConnectionDescription(
            protocol=self.connection.peer.listener.config.protocol,
            state="closing" if self.connection.is_closed else "running",
        )

    def channels(self) -> list[ChannelDescription]:
        """Its channels, in protocols that have some."""
        return []

    def consumers(self) -> list[ConsumerDescription]:
        """Its consumers of queues and streams."""
        return []

    def close(self, reason: str) -> None:
        """Tell the client, in the protocol's terms, that an operator closes the connection."""
        self.connection.shutdown()


@mypyc_attr(allow_interpreted_subclasses=True)
class Managed(DurabilityWaiter):
    """Something that operators see."""

    def managed(self) -> ManagedConnection:
        """What they see of it, and do to it."""
        assert isinstance(self, Connection)
        return ManagedConnection(self)


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(Managed):
    """One client's connection. Subclasses implement ``feed``, ``lost`` and, as needed, the rest.

    Rules for subclasses:

    - Write with ``send``, or small parts of what is hot straight to ``output``.
    - Never raise out of ``feed``: answer a bad frame in the protocol's own terms and ``close``.
      What is raised all the same is a fault of ours: it ends in ``internal_error``, or ends the
      broker when the write batch may hold a part of what was fed.
    - To answer when the current write batch is durable, register with ``broker.storage.wait(self)``
      and answer in ``write_batch_durable``.
    """

    def __init__(self, broker: Broker, transport: Transport, peer: Peer) -> None:
        self.broker = broker
        self.transport = transport
        self.peer = peer
        #: tells it from all others of this process
        self.number = next(_numbers)
        #: when it came, in milliseconds since the epoch
        self.connected_ms = broker.now_ms
        #: who the client is, once it has authenticated
        self.identity: Identity = NOBODY
        #: what it calls itself, in protocols with client identifiers
        self.client_id = b""
        #: how it has authenticated; None: not yet
        self.login: Login | None = None
        #: whether it is refused because there is too much to do, whoever it is
        self.is_put_off = False
        #: what it may do in the virtual host that it has entered
        self.access: Access = broker.permissions.nobody
        #: number of the channel of which traces tell as that which is served; 0: there are none
        self.serving_channel = 0
        #: what it has counted
        self.traffic = Traffic()
        #: what it counts for its user, its virtual host and its listener
        self.usage = Usage(broker.quotas, peer.listener.name)
        #: the newest output; write small parts, count them in ``output_size`` and ``mark_dirty``
        self.output = BytesWriter()
        #: bytes of output that the driver has not taken
        self.output_size = 0
        # Output before that in ``output``.
        self._output_pieces: list[Piece] = []
        #: False while the socket's own buffer is full
        self.is_writable = True
        #: True once ``close`` was called or the connection is gone; ``feed`` is not called any more
        self.is_closed = False
        #: True once the socket is gone: what is left to take has no turn after this one
        self.is_cut_off = False
        #: bytes of output above which a live message asks ``admits_live``
        self.live_mark = broker.config.limits.live_output_bytes
        #: what it means for publishers that this subscriber is behind
        self.slowdown: Slowdown | None = None
        #: subscribers that this publisher waits for
        self.waits_for = 0
        self._is_dirty = False

    def admit(self, login: Login) -> None:
        """The client has authenticated, or what it may do has changed since."""
        former = self.identity
        self.login = login
        self.identity = login.identity
        self.broker.logins.came_in(self)
        expiring = self.broker.logins.expiring
        if login.expires_ms:
            expiring.add(self)
        else:
            expiring.discard(self)
        permissions = self.broker.permissions
        access = self.access
        if access is not permissions.nobody and not login.identity.has_scopes_of(former):
            # It has renewed what it came with, by what is for something else.
            self.access = permissions.access(login.identity, access.vhost, access.client_id)
            self.broker.vhost(access.vhost).topology_version += 1
            self.permissions_changed()

    def feed(self, data: bytes) -> None:
        """Bytes arrived."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection is gone, by either side; called exactly once, last. Release all."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Called about once a second with the monotonic clock in seconds: time-outs, heartbeats."""

    def write_batch_durable(self, write_batch: int) -> None:
        """Every write batch up to ``write_batch``, and it, is durable: answers may go."""

    def flushed(self) -> None:
        """Output was written and the socket takes more. Queues that were held may deliver again."""

    def resume_writing(self) -> None:
        """The socket takes output again; called by the driver."""
        self.is_writable = True
        if self.output_size:
            self.mark_dirty()
        self.end_slowdown()
        if not self.is_closed:
            self.flushed()

    @property
    def waits_for_turn(self) -> bool:
        """Whether there is input that is left for the next turn, so that others are served."""
        return False

    def next_turn(self) -> None:
        """Others were served: go on. The driver was asked for it (``Driver.next_turn``)."""

    def take_waiting(self) -> None:
        """Take input that was held back. The driver was asked for it (``Driver.go_on``)."""

    def admits_live(self) -> bool:
        """Whether a live message may be added although the output is above ``live_mark``."""
        return self.broker.pacing.admits(self)

    def end_slowdown(self) -> None:
        """Nobody waits for this subscriber any more: it has caught up, or is gone."""
        slowdown = self.slowdown
        if slowdown is not None:
            self.slowdown = None
            slowdown.release()

    def wait_for_subscribers(self) -> None:
        """Read nothing until ``subscribers_ready``: what came in reached live subscribers that are
        behind. Called at the end of a feed; the client need not be told."""

    def subscribers_ready(self) -> None:
        """Read again."""

    def blocked(self, reason: str) -> None:
        """Publishers must stop. Called for every connection.

        Memory or disk passed its limit, which ``reason`` says in words for the client. Without a
        reason the disk is behind: that lasts a moment, and clients need not be told.
        """

    def unblocked(self) -> None:
        """Publishers may go on."""

    def permissions_changed(self) -> None:
        """What the client may do has changed, and `access` maybe: stop what it may not do now."""

    def internal_error(self) -> None:
        """``feed`` has raised: say in the protocol's terms that it is our fault, and ``close``."""
        self.close()

    def shutdown(self, is_revoked: bool = False, deleted_vhost: str = "") -> None:
        """The broker stops, what the client came with does not hold any more, or the virtual host
        is deleted that it has entered: say so in the protocol's terms and ``close``.
        """
        self.close()

    @property
    def takes_output(self) -> bool:
        """Whether queues and subscriptions should deliver to this connection now."""
        return self.is_writable and self.output_size < OUTPUT_HIGH_WATER and not self.is_closed

    def send(self, data: bytes) -> None:
        """Append to the output of this turn."""
        size = len(data)
        if size < LARGE_OUTPUT:
            self.output.write(data)
        else:
            self.write_large(data)
        self.output_size += size
        if not self._is_dirty:
            self.mark_dirty()

    def send_parts(self, parts: list[Piece]) -> None:
        """Append bytes that follow each other; those of large payloads are not copied."""
        for part in parts:
            size = len(part)
            if size >= LARGE_OUTPUT:
                self.write_large(part)
            else:
                self.output.write(part if isinstance(part, bytes) else bytes(part))
            self.output_size += size
        self.mark_dirty()

    def send_content(self, content: Content) -> None:
        """Append a payload; a large one is not copied."""
        if isinstance(content, bytes):
            self.send(content)
        else:
            self.send_parts(content.parts)

    def write_large(self, data: Piece) -> None:
        """Put ``data`` behind the output, uncopied; ``output`` goes on behind it."""
        self._end_piece()
        self._output_pieces.append(data)

    def _end_piece(self) -> None:
        output = self.output
        size = len(output)
        if size:
            self._output_pieces.append(output.getvalue())
            if size <= _KEPT_OUTPUT:
                output.truncate(0)
            else:
                self.output = BytesWriter()

    def mark_dirty(self) -> None:
        """Have the output written at the end of this turn."""
        if not self._is_dirty:
            self._is_dirty = True
            self.broker.add_dirty(self)

    @property
    def keeps_output(self) -> bool:
        """Whether output stays here, where it is bounded, since the socket is full."""
        return not self.is_writable and not self.is_closed

    def take_output(self) -> list[Piece]:
        """The output of this turn, which the driver writes. Called by the broker only."""
        self._end_piece()
        pieces = self._output_pieces
        self._output_pieces = []
        self.output_size = 0
        self._is_dirty = False
        self.traffic.writes += 1
        return pieces

    def close(self, waits: bool = True) -> None:
        """Write the output, then close the connection. ``lost`` follows, later than this call.

        The driver calls it when the client sends no more, or nothing more of it is taken: what it
        is to be told of what it sent before may be waited for. Without ``waits`` the client is
        taken for dead, and not waited for.
        """
        if not self.is_closed:
            self.is_closed = True
            self.usage.leave()
            if self.output_size:
                self.mark_dirty()
            self.transport.close(waits)


class WebSocketTerms:
    """How a protocol is spoken over WebSocket."""

    def __init__(self, path: str, subprotocols: tuple[str, ...], must_offer: bool) -> None:
        #: where listeners serve it unless configured otherwise
        self.path = path
        #: by which it is asked for
        self.subprotocols = subprotocols
        #: whether a client that offers none is refused
        self.must_offer = must_offer


@mypyc_attr(allow_interpreted_subclasses=True)
class Adapter:
    """One protocol.

    Subclasses set ``name`` and ``metrics`` in ``__init__``: a compiled core reads them from the
    instance and would not see attributes of an interpreted class.
    """

    #: short name: key of the configuration section and of ``Broker.listeners``
    name: str

    #: what this adapter counts; one object for its whole life
    metrics: ProtocolMetrics

    #: None for a protocol that is not spoken over WebSocket
    websocket: WebSocketTerms | None = None

    def start(self, broker: Broker) -> None:
        """The broker has recovered: restore this protocol's own durable state."""
        raise NotImplementedError

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        """A client connected."""
        raise NotImplementedError

    def permissions_changed(self, name: str | None) -> None:
        """What the user ``name``, or with None what anybody may do, has changed.

        Connections are told next. This is for what outlives them.
        """

    def forget_vhost(self, vhost: VirtualHost) -> Iterable[int]:
        """A virtual host is deleted, and nobody is connected there: let go of what this protocol
        keeps of it, in memory and in the storage, a part for each 1. There may be the storage's
        alone, after a start."""
        return ()

    def forget_user(self, name: str) -> Iterable[int]:
        """A user is deleted, and its clients are sent away: let go of what this protocol keeps for
        it, in memory and in the storage, a part for each 1. Whoever is still connected in its name
        came with something else that holds."""
        return ()

    def user_added(self, name: str) -> None:
        """A user is made, whose name others may have come with before: let go of all that this
        protocol keeps for it, in memory and in the storage."""

    def describe_sessions(self, vhost: VirtualHost) -> Iterable[SessionDescription]:
        """What outlives the connections of clients in a virtual host, each made when it is
        taken."""
        return ()

    def describe_session(self, vhost: VirtualHost, client_id: str) -> SessionDescription | None:
        """That of a client; None where there is none."""
        return None

    def describe_subscriptions(
        self, vhost: VirtualHost, client_id: str = ""
    ) -> Iterable[SubscriptionDescription]:
        """What the sessions in a virtual host have subscribed to, or that of one client; each made
        when it is taken."""
        return ()

    def describe_shares(self, vhost: VirtualHost) -> Iterable[ShareDescription]:
        """What sessions share in a virtual host, each made when it is taken."""
        return ()

    def end_session(self, vhost: VirtualHost, client_id: str) -> None:
        """Forget what outlives a client's connections, and close one that there is."""

    def tick(self, now: float) -> None:
        """Called about once a second: expiry of what has no connection (sessions, wills)."""


#: What a client is told that is put off.
PUT_OFF: Final = "too many clients want to come in: try again later"


def connection_name(connection: Connection) -> str:
    """Both ends of it; one by a Unix socket, whose end has no name, has its number."""
    address = connection.peer.address
    if ":" not in address:
        address = f"{address}:{connection.number}"
    return f"{address} -> {connection.broker.listeners.get(connection.peer.listener.name, '')}"


def enter_vhost(connection: Connection, vhost: str) -> None:
    """The client is in a virtual host from now on. Raises QuotaExceeded: then it is not."""
    is_new = not connection.usage.served
    connection.usage.enter(connection.identity, vhost)
    if is_new:
        connection.broker.events.tell("connection.created", **told_of(connection))


def told_of(connection: Connection) -> dict[str, object]:
    """What events say of a connection."""
    listener = connection.peer.listener
    return {
        "name": connection_name(connection),
        "protocol": listener.config.protocol,
        "listener": listener.name,
        "user": connection.identity.name,
        "vhost": connection.access.vhost,
        "client_id": connection.client_id.decode(errors="replace"),
    }


def make_attempt(
    connection: Connection,
    username: str | None,
    password: bytes,
    client_id: str = "",
    vhost: str = "",
    ignores_unknown: bool = False,
) -> Attempt:
    """What the client shows of itself, for the authenticator."""
    peer = connection.peer
    listener = peer.listener.config
    connection.broker.logins.spoke(connection)
    connection.is_put_off = False

    def put_off() -> None:
        connection.is_put_off = True

    return Attempt(
        username=username,
        password=password,
        address=peer.address.rpartition(":")[0].strip("[]"),
        is_loopback=peer.is_loopback,
        methods=listener.methods,
        admits_anonymous=connection.broker.authenticator.admits_anonymous(listener),
        ignores_unknown=ignores_unknown,
        protocol=listener.protocol,
        listener=peer.listener.name,
        client_id=client_id,
        vhost=listener.virtual_host or vhost,
        certificate_user="" if peer.certificate is None else peer.certificate.user_name,
        is_certificate_ambiguous=peer.certificate is not None and peer.certificate.is_ambiguous,
        is_gone=lambda: connection.is_closed,
        is_put_off=put_off,
    )


def declarer_of(connection: Connection) -> Declarer:
    """By whose rights what the client of ``connection`` declares is in force."""
    access = connection.access
    return connection.broker.authentication.declarers.of(access.identity, access.vhost)

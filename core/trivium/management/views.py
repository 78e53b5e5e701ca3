"""What there is in a broker, described: plain functions of its objects, in its own words.

Every interface of operators shows these, under names of its own. Nothing here changes anything.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from trivium.common.counters import NOTHING_COUNTED
from trivium.common.descriptions import (
    ChannelDescription,
    ConnectionDescription,
    ConsumerDescription,
)
from trivium.errors import ConfigError
from trivium.queues.arguments import CLASSIC, QUEUE_TYPE, STREAM, queue_type
from trivium.queues.delivery_times import time_to_acknowledge
from trivium.queues.queue import Queue
from trivium.routing.exchanges import ExchangeDestination
from trivium.runtime.adapter import Connection, connection_name
from trivium.runtime.certificates import ends_at
from trivium.streams.stream import PARTITIONS, Stream
from trivium.vhost.policies import EXCHANGES, STREAMS, InForce, kind_of

if TYPE_CHECKING:
    from trivium.messages.message import HeaderValue
    from trivium.routing.exchanges import Binding, Exchange
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue or stream, as one that clients declare as a queue."""

    vhost: str
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    #: the connection whose alone it is
    owner: Connection | None
    arguments: Mapping[str, HeaderValue]
    #: the protocol whose private state it is; "" for a usual queue
    adapter: str
    ready: int
    unsettled: int
    #: bytes of payload that are ready
    ready_bytes: int
    consumers: int
    policies: InForce
    #: since when nobody has used one that never had messages, in milliseconds since the epoch; 0
    #: for others
    unused_ms: int = 0


def arguments_of(item: Queue | Stream) -> dict[str, HeaderValue]:
    """The arguments with which AMQP would declare it."""
    if isinstance(item, Queue):
        return item.arguments
    arguments = {QUEUE_TYPE: STREAM, **item.arguments}
    # To other protocols the argument is unknown: one of theirs says nothing.
    arguments.pop(PARTITIONS, None)
    if len(item.partitions) > 1:
        arguments[PARTITIONS] = len(item.partitions)
    return arguments


def view_queue(vhost: VirtualHost, item: Queue | Stream) -> QueueView:
    """One of a virtual host."""
    if isinstance(item, Stream):
        return QueueView(
            vhost=vhost.name,
            name=item.name,
            kind=STREAM,
            durable=True,
            auto_delete=False,
            owner=None,
            arguments=arguments_of(item),
            adapter="",
            ready=item.record_count,
            unsettled=0,
            ready_bytes=0,
            consumers=0,
            policies=vhost.policies.in_force(item.name, STREAMS),
        )
    return QueueView(
        vhost=vhost.name,
        name=item.name,
        kind=queue_type(item.arguments) or CLASSIC,
        durable=item.durable,
        auto_delete=item.auto_delete,
        owner=_owner(item),
        arguments=item.arguments,
        adapter=item.adapter,
        ready=len(item),
        unsettled=item.unsettled,
        ready_bytes=item.ready.bytes,
        consumers=item.consumers.present(),
        policies=vhost.policies.in_force(item.name, kind_of(item.arguments)),
        unused_ms=unused_ms(item),
    )


def unused_ms(queue: Queue) -> int:
    """``QueueView.unused_ms``."""
    if queue.counters is not NOTHING_COUNTED or len(queue) or queue.unsettled:
        return 0
    return queue.used_at + queue.vhost.broker.clock_offset


def _owner(queue: Queue) -> Connection | None:

    return queue.owner if isinstance(queue.owner, Connection) else None


@dataclass(frozen=True, slots=True)
class ExchangeView:
    """An exchange; the default one has an empty name."""

    vhost: str
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, HeaderValue]
    #: the name of the one that holds
    policy: str | None


def view_exchange(vhost: VirtualHost, exchange: Exchange) -> ExchangeView:
    """One of a virtual host."""
    return ExchangeView(
        vhost=vhost.name,
        name=exchange.name,
        kind=exchange.kind,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        arguments=exchange.arguments,
        policy=vhost.policies.in_force(exchange.name, EXCHANGES).name if exchange.name else None,
    )


@dataclass(frozen=True, slots=True)
class BindingView:
    """A binding between things that have names; live subscriptions have none."""

    vhost: str
    source: str
    destination: str
    #: ``exchange``, ``queue``, ``stream`` or ``session``
    kind: str
    #: binding key, or an MQTT topic filter where ``is_filter``
    key: bytes
    is_filter: bool
    arguments: Mapping[str, HeaderValue]

    @property
    def is_to_exchange(self) -> bool:
        """Whether it leads to an exchange."""
        return self.kind == "exchange"


def view_binding(vhost: VirtualHost, source: str, binding: Binding) -> BindingView | None:
    """One from the exchange ``source``; None for a live subscription."""
    target = binding.destination
    if not isinstance(target, Queue | Stream | ExchangeDestination):
        return None
    return BindingView(
        vhost=vhost.name,
        source=source,
        destination=target.name,
        kind=_kind(target),
        key=binding.pattern,
        is_filter=binding.is_filter,
        arguments=binding.arguments,
    )


def _kind(target: Queue | Stream | ExchangeDestination) -> str:
    if isinstance(target, ExchangeDestination):
        return "exchange"
    return "stream" if isinstance(target, Stream) else "queue"


def view_subscription(vhost: VirtualHost, source: str, binding: Binding) -> BindingView | None:
    """One to a session that has a queue; None for everything else."""
    target = binding.destination
    if isinstance(target, Queue | Stream | ExchangeDestination):
        return None
    # What it leads to is made of all its subscriptions to a topic.
    if target.combine([binding]).target_queue() is None:
        return None
    return BindingView(vhost.name, source, target.name, "session", binding.pattern, True, {})


def default_binding(vhost: VirtualHost, name: str) -> BindingView:
    """That of the default exchange to a queue or stream, which every one has."""
    kind = "stream" if name in vhost.streams else "queue"
    return BindingView(vhost.name, "", name, kind, name.encode(), False, {})


def queues_of(vhost: VirtualHost) -> Iterator[Queue | Stream]:
    """The queues and streams of a virtual host as they are now."""
    yield from list(vhost.queues.values())
    yield from list(vhost.streams.values())


def find_queue(vhost: VirtualHost, name: str) -> Queue | Stream | None:
    """The queue or stream of a name."""
    # A queue without messages is no true value.
    queue = vhost.queues.get(name)
    return vhost.streams.get(name) if queue is None else queue


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """A connection. ``name`` tells it from all others that there are."""

    name: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    listener: str
    vhost: str
    user: str
    has_tls: bool
    #: milliseconds since the epoch
    connected_ms: int
    about: ConnectionDescription


def view_connection(broker: Broker, connection: Connection) -> ConnectionView:
    """One connection."""
    peer_host, peer_port = _host_and_port(connection.peer.address)
    listener = connection.peer.listener
    host, port = _host_and_port(broker.listeners.get(listener.name, ""))
    return ConnectionView(
        name=connection_name(connection),
        peer_host=peer_host,
        peer_port=peer_port,
        host=host,
        port=port,
        listener=listener.name,
        vhost=connection.access.vhost,
        user=connection.identity.name,
        has_tls=listener.config.tls is not None,
        connected_ms=connection.connected_ms,
        about=connection.managed().describe(),
    )


@dataclass(frozen=True, slots=True)
class TlsView:
    """TLS of a connection, in the words that Erlang has for it."""

    #: such as ``tlsv1.3``, ``aes_256_gcm``, ``ecdhe_rsa`` or ``any``, ``sha384`` or ``aead``
    protocol: str
    cipher: str
    key_exchange: str
    digest: str
    #: of the client's certificate, distinguished names as of RFC 4514; None: it has shown none
    subject: str | None
    issuer: str | None
    #: its first and last moment
    validity: str | None


def view_tls(connection: Connection) -> TlsView | None:
    """TLS of a connection; None where it has none."""
    tls = connection.peer.tls
    if not isinstance(tls, ssl.SSLObject):
        return None
    known = tls.cipher()
    if known is None:
        return None
    cipher, key_exchange, digest = _suite(tls.context, known[0])
    certificate: Any = tls.getpeercert() or {}
    times = [
        datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate[name]), UTC)
        for name in ("notBefore", "notAfter")
        if name in certificate
    ]
    return TlsView(
        protocol=(tls.version() or "").lower(),
        cipher=cipher,
        key_exchange=key_exchange,
        digest=digest,
        subject=distinguished_name(certificate.get("subject")),
        issuer=distinguished_name(certificate.get("issuer")),
        validity=" - ".join(f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in times) or None,
    )


@lru_cache(maxsize=64)
def _suite(context: ssl.SSLContext, name: str) -> tuple[str, str, str]:
    """Cipher, key exchange and hash of a cipher suite."""
    for each in context.get_ciphers():
        found: Mapping[str, Any] = each
        if found["name"] == name:
            kinds = (found["kea"], found["auth"])
            parts = dict.fromkeys(str(kind).partition("-")[2] for kind in kinds)
            digest = "aead" if found["aead"] else str(found["digest"])
            return str(found["symmetric"]).replace("-", "_"), "_".join(parts), digest
    return name, "", ""


#: Attributes whose names are short (RFC 4514, 3), by OpenSSL's names.
_ATTRIBUTES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


def distinguished_name(name: Sequence[Sequence[tuple[str, str]]] | None) -> str | None:
    """A distinguished name as a text, the last part first (RFC 4514, 2.1)."""
    if name is None:
        return None
    return ",".join(
        "+".join(f"{_ATTRIBUTES.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in reversed(name)
    )


def _escaped(value: str) -> str:
    """A value in a distinguished name (RFC 4514, 2.4)."""
    text = re.sub(r'([\\",+;<>])', r"\\\1", value).replace("\0", "\\00")
    if text.startswith((" ", "#")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text


def find_connection(broker: Broker, name: str) -> Connection | None:
    """The connection of a name."""
    address = name.partition(" -> ")[0]
    for connection in broker.connections:
        peer = connection.peer.address
        if (peer == address or ":" not in peer) and connection_name(connection) == name:
            return connection
    return None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdecimal() else (address, 0)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel and its connection."""

    connection: ConnectionView
    #: the connection itself
    source: Connection
    about: ChannelDescription


def view_channels(broker: Broker, connection: Connection) -> list[ChannelView]:
    """Those of a connection."""
    channels = connection.managed().channels()
    if not channels:
        return []
    view = view_connection(broker, connection)
    return [ChannelView(view, connection, about) for about in channels]


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer and its connection."""

    connection: ConnectionView
    about: ConsumerDescription
    #: whether others of its queue get nothing
    exclusive: bool
    #: whether it may get something, and why: ``up``, ``single_active``, ``waiting``
    active: bool
    activity: str
    #: milliseconds in which it must settle what it gets; 0 for any time
    timeout_ms: int


def view_consumers(broker: Broker, connection: Connection) -> list[ConsumerView]:
    """Those of a connection."""
    consumers = connection.managed().consumers()
    if not consumers:
        return []
    view = view_connection(broker, connection)
    vhost = broker.vhosts.get(view.vhost)
    return [_consumer(broker, vhost, view, about) for about in consumers]


def _consumer(
    broker: Broker,
    vhost: VirtualHost | None,
    connection: ConnectionView,
    about: ConsumerDescription,
) -> ConsumerView:
    seconds = broker.config.limits.consumer_timeout_seconds
    usual = int(seconds * 1000)
    queue = None if vhost is None else vhost.queues.get(about.queue)
    if queue is None:
        return ConsumerView(connection, about, False, True, "up", usual)
    timeout = time_to_acknowledge(queue.settings, seconds)
    rotation = queue.consumers
    if not rotation.is_single:
        return ConsumerView(connection, about, rotation.is_exclusive, True, "up", timeout)
    first = rotation.first()
    active = first is not None and first.describe() == about
    activity = "single_active" if active else "waiting"
    return ConsumerView(connection, about, False, active, activity, timeout)


def view_consumers_of(broker: Broker, vhost: VirtualHost, queue: Queue) -> list[ConsumerView]:
    """Those of a queue, in the order in which they came."""

    found: list[ConsumerView] = []
    for consumer in queue.consumers.all():
        about = consumer.describe()
        if about is not None and isinstance(about.connection, Connection):
            view = view_connection(broker, about.connection)
            found.append(_consumer(broker, vhost, view, about))
    return found


def listener_addresses(broker: Broker) -> list[tuple[str, str, str, int]]:
    """Name, protocol, host and port of each listener; the port is 0 for a Unix socket."""
    found: list[tuple[str, str, str, int]] = []
    for config in broker.config.all_listeners():
        host, port = _host_and_port(broker.listeners.get(config.name, ""))
        found.append((config.name, config.protocol, host, port))
    return found


def certificate_ends(broker: Broker) -> list[tuple[str, int]]:
    """Until when the certificates of listeners are good, in milliseconds since the epoch, by the
    names of these. One that cannot be read is left out: the log says so."""
    found: list[tuple[str, int]] = []
    for config in broker.config.all_listeners():
        tls = config.tls
        if tls is None:
            continue
        for path in (tls.certificate, *(each.certificate for each in tls.certificates)):
            try:
                found.append((config.name, ends_at(path) * 1000))
            except ConfigError as error:
                logger.warning("%s: %s", config.name, error)
    return found

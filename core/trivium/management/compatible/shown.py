"""How things are shown under the names of RabbitMQ's management API."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote_plus

from trivium.common.values import pack
from trivium.host import NODE as NODE
from trivium.management import views
from trivium.management.figures import (
    Figures,
    of_connection,
    of_exchange,
    of_queue,
    of_stream,
    of_traffic,
)
from trivium.management.values import shown_table
from trivium.queues.arguments import CLASSIC
from trivium.queues.queue import Queue

if TYPE_CHECKING:
    from trivium.management.compatible.stats import Stats
    from trivium.management.views import (
        BindingView,
        ChannelView,
        ConnectionView,
        ConsumerView,
        ExchangeView,
        QueueView,
    )
    from trivium.routing.exchanges import Exchange
    from trivium.runtime.adapter import Connection
    from trivium.streams.stream import Stream
    from trivium.vhost.policies import InForce

View = TypeVar("View")
#: How each field is found.
Fields = Mapping[str, Callable[[View], object]]

#: Names of protocols here -> there.
PROTOCOLS: Final = {"amqp": "amqp091"}


def queue_basics(view: QueueView) -> dict[str, object]:
    """What is said of a queue without looking at what is in it."""
    return {
        "name": view.name,
        "vhost": view.vhost,
        "type": view.kind,
        "durable": view.durable,
        "auto_delete": view.auto_delete,
        "exclusive": view.owner is not None,
        "arguments": shown_table(view.arguments),
        "node": NODE,
        "state": "running",
    }


def queue(view: QueueView, item: Queue | Stream, stats: Stats) -> dict[str, object]:
    """A queue."""
    figures = figures_of(item)
    idle_ms = view.unused_ms or stats.idle_since(item)
    found = {
        **queue_basics(view),
        **_nodes(view),
        **stats.lengths(item, figures),
        **stats.message_stats(item, figures),
        "message_bytes_ready": view.ready_bytes,
        "consumers": view.consumers,
        **policies(view.policies),
    }
    if isinstance(item, Queue):
        found |= _tags(item)
    if idle_ms:
        found["idle_since"] = _time(idle_ms)
    if view.adapter:
        found["owner_protocol"] = view.adapter
    return found


def _nodes(view: QueueView) -> dict[str, object]:
    """Where a queue is that others would have on several nodes."""
    if view.kind == CLASSIC:
        return {}
    return {"leader": NODE, "members": [NODE], "online": [NODE]}


def _tags(queue: Queue) -> dict[str, object]:
    """The consumer that gets all there is, while there is such a one."""
    rotation = queue.consumers
    exclusive = single = None
    if rotation.is_exclusive or rotation.is_single:
        first = rotation.first()
        about = None if first is None else first.describe()
        tag = None if about is None else about.tag
        exclusive, single = (None, tag) if rotation.is_single else (tag, None)
    return {"exclusive_consumer_tag": exclusive, "single_active_consumer_tag": single}


def _time(milliseconds: int) -> str:
    """A time since the epoch, as it is written there (RFC 3339)."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def figures_of(item: Queue | Stream) -> Figures:
    """The figures of a queue or stream."""
    return of_queue(item) if isinstance(item, Queue) else of_stream(item)


def policies(found: InForce) -> dict[str, object]:
    """Which policies are in force, and what they come to."""
    return {
        "policy": found.name,
        "operator_policy": found.operator_name,
        "effective_policy_definition": shown_table(found.definition),
    }


def exchange(view: ExchangeView, found: Exchange, stats: Stats) -> dict[str, object]:
    """An exchange. As in RabbitMQ it has a policy or says nothing of one: for null, tables of
    `rabbitmqadmin` have no text."""
    policy = {} if view.policy is None else {"policy": view.policy}
    return {**exchange_basics(view), **stats.message_stats(found, of_exchange(found)), **policy}


def exchange_basics(view: ExchangeView) -> dict[str, object]:
    """What was declared of an exchange."""
    return {
        "name": view.name,
        "vhost": view.vhost,
        "type": view.kind,
        "durable": view.durable,
        "auto_delete": view.auto_delete,
        "internal": view.internal,
        "arguments": shown_table(view.arguments),
    }


def binding(view: BindingView) -> dict[str, object]:
    """A binding."""
    return {name: value(view) for name, value in BINDING.items()}


def properties_key(view: BindingView) -> str:
    """What tells the bindings of two things apart, fit for a path: the key, escaped as in a form,
    and what stands for the arguments."""
    key = quote_plus(view.key).replace("~", "%7E")
    if view.is_filter:
        # The key of another binding may read the same.
        key = f"~filter~{key}"
    if not view.arguments:
        return key or "~"
    digest = hashlib.sha256(pack(sorted(view.arguments.items()))).digest()
    return f"{key}~{base64.urlsafe_b64encode(digest[:9]).decode()}"


#: What is shown of a binding.
BINDING: Final[Fields[BindingView]] = {
    "source": attrgetter("source"),
    "vhost": attrgetter("vhost"),
    "destination": attrgetter("destination"),
    "destination_type": lambda view: "exchange" if view.is_to_exchange else "queue",
    "routing_key": lambda view: view.key.decode(errors="replace"),
    "arguments": lambda view: shown_table(view.arguments),
    "properties_key": properties_key,
}


def connection(view: ConnectionView, source: Connection, stats: Stats) -> dict[str, object]:
    """A connection."""
    about = view.about
    name = about.client.get("connection_name", about.client.get("client_id"))
    found = {
        "name": view.name,
        "node": NODE,
        "type": "network",
        "protocol": about.protocol,
        "vhost": view.vhost,
        "user": view.user,
        "user_who_performed_action": view.user,
        "state": about.state,
        "auth_mechanism": about.mechanism,
        "peer_host": view.peer_host,
        "peer_port": view.peer_port,
        "host": view.host,
        "port": view.port,
        "listener": view.listener,
        "ssl": view.has_tls,
        **_tls(source, about.mechanism != ""),
        "connected_at": view.connected_ms,
        "channels": about.channels,
        "channel_max": about.max_channels,
        "frame_max": about.max_frame,
        "timeout": about.timeout,
        "client_properties": shown_table(about.client),
        **stats.bytes(source, of_connection(source.traffic)),
        "recv_cnt": source.traffic.reads,
        "send_cnt": source.traffic.writes,
        "send_pend": source.transport.unsent(),
    }
    if isinstance(name, str):
        found["user_provided_name"] = name
    return found


def _tls(source: Connection, has_mechanism: bool) -> dict[str, object]:
    """TLS of a connection. Where it has none these are nulls for AMQP, which has mechanisms, and
    are not there for others, as in RabbitMQ: the tables of its tool in Python cannot show nulls."""
    found = views.view_tls(source)
    if found is None and not has_mechanism:
        return {}
    return {
        "ssl_protocol": found and found.protocol,
        "ssl_cipher": found and found.cipher,
        "ssl_key_exchange": found and found.key_exchange,
        "ssl_hash": found and found.digest,
        "peer_cert_subject": found and found.subject,
        "peer_cert_issuer": found and found.issuer,
        "peer_cert_validity": found and found.validity,
    }


def channel(view: ChannelView, stats: Stats) -> dict[str, object]:
    """A channel."""
    about = view.about
    thing = (view.source, about.number)
    idle_ms = stats.idle_since(thing)
    return {
        **stats.message_stats(thing, of_traffic(about.traffic)),
        **({"idle_since": _time(idle_ms)} if idle_ms else {}),
        **{name: value(view) for name, value in CHANNEL.items()},
    }


def connection_details(view: ConnectionView) -> dict[str, object]:
    """Which connection something belongs to."""
    return {"name": view.name, "peer_host": view.peer_host, "peer_port": view.peer_port}


#: What is shown of a channel, but for its figures.
CHANNEL: Final[Fields[ChannelView]] = {
    "name": lambda view: f"{view.connection.name} ({view.about.number})",
    "number": attrgetter("about.number"),
    "node": lambda _: NODE,
    "vhost": attrgetter("connection.vhost"),
    "user": attrgetter("connection.user"),
    "user_who_performed_action": attrgetter("connection.user"),
    "state": lambda _: "running",
    "connection_details": lambda view: connection_details(view.connection),
    "consumer_count": attrgetter("about.consumers"),
    "prefetch_count": attrgetter("about.consumer_limit"),
    "global_prefetch_count": attrgetter("about.limit"),
    "messages_unacknowledged": attrgetter("about.unsettled"),
    "messages_unconfirmed": attrgetter("about.unconfirmed"),
    "messages_uncommitted": attrgetter("about.uncommitted"),
    "acks_uncommitted": attrgetter("about.unsettled_uncommitted"),
    "confirm": attrgetter("about.confirms"),
    "transactional": attrgetter("about.transactional"),
}


def consumer(view: ConsumerView) -> dict[str, object]:
    """A consumer."""
    return {name: value(view) for name, value in CONSUMER.items()}


def _channel_details(view: ConsumerView) -> dict[str, object]:
    about = view.about
    connection = view.connection
    return {
        "name": f"{connection.name} ({about.channel})",
        "number": about.channel,
        "node": NODE,
        "user": connection.user,
        "connection_name": connection.name,
        "peer_host": connection.peer_host,
        "peer_port": connection.peer_port,
    }


#: What is shown of a consumer.
CONSUMER: Final[Fields[ConsumerView]] = {
    "consumer_tag": attrgetter("about.tag"),
    "queue": lambda view: {"name": view.about.queue, "vhost": view.connection.vhost},
    "ack_required": attrgetter("about.acknowledges"),
    "exclusive": attrgetter("exclusive"),
    "active": attrgetter("active"),
    "activity_status": attrgetter("activity"),
    "prefetch_count": attrgetter("about.limit"),
    "consumer_timeout": attrgetter("timeout_ms"),
    "arguments": lambda view: shown_table(view.about.arguments),
    "channel_details": _channel_details,
}

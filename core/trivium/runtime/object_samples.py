"""The metrics of each queue, exchange, stream, group, virtual host, listener, user, connection.

They come in families, of which a scrape names those that it wants. The names of the families are
those of RabbitMQ's `/metrics/detailed` where it has one that says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trivium.common.counters import Traffic
from trivium.common.quotas import CONNECTIONS, LISTENER, USER, VHOST, Account
from trivium.observability.metrics import ROWS_AT_ONCE, Metric, Row, label
from trivium.queues.dead_letters import DEAD_LETTER_REASONS
from trivium.queues.given_up import DROP_REASONS
from trivium.queues.waiting import count_waiting
from trivium.runtime.adapter import Connection, connection_name
from trivium.vhost.totals import Totals

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

#: What a family has of a broker, for these of its virtual hosts. Rows may be empty: others may be
#: served then.
Rows = Callable[["Broker", "list[VirtualHost]"], Iterator[Row]]


@dataclass(frozen=True)
class Family:
    """Metrics that are shown together."""

    metrics: tuple[Metric, ...]
    rows: Rows


def _counter(name: str, text: str) -> Metric:
    return Metric(f"{name}_total", "counter", text)


# Queues

_QUEUE_COARSE: Final = (
    Metric("queue_messages", "gauge", "Messages of a queue, by state"),
    Metric("queue_ready_bytes", "gauge", "Payload of the messages of a queue that are ready"),
)


def _queue_coarse(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for vhost in vhosts:
        for queue in list(vhost.queues.values()):
            labels = f"{label('vhost', vhost.name)},{label('queue', queue.name)}"
            yield [
                (0, f'{labels},state="ready"', len(queue)),
                (0, f'{labels},state="unsettled"', queue.unsettled),
                (0, f'{labels},state="waiting"', count_waiting(queue)),
                (1, labels, queue.ready.bytes),
            ]


_QUEUE_CONSUMERS: Final = (Metric("queue_consumers", "gauge", "Consumers of a queue"),)


def _queue_consumers(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for vhost in vhosts:
        for queue in list(vhost.queues.values()):
            labels = f"{label('vhost', vhost.name)},{label('queue', queue.name)}"
            yield [(0, labels, queue.consumers.present())]


def _totals_metrics(of: str) -> tuple[Metric, ...]:
    return (
        _counter(f"{of}_messages_published", "Messages that queues took"),
        _counter(f"{of}_messages_refused", "Messages that queues had no room for"),
        _counter(f"{of}_messages_delivered", "Messages handed to consumers"),
        _counter(f"{of}_messages_redelivered", "Messages handed to consumers again"),
        _counter(f"{of}_messages_got", "Messages taken without a consumer"),
        _counter(f"{of}_messages_acknowledged", "Messages that clients settled"),
        _counter(f"{of}_messages_expired", "Messages that expired"),
        _counter(f"{of}_messages_dead_lettered", "Messages given up, to a dead letter exchange"),
        _counter(f"{of}_messages_dropped", "Messages given up for good"),
    )


def _totals_row(
    totals: Totals, labels: str, dead: tuple[str, ...] = (), dropped: tuple[str, ...] = ()
) -> Row:
    """As ``_totals_metrics`` has them; with the reasons that there were, and these at 0: a rate
    needs to have seen a counter at 0."""
    row: Row = [
        (0, labels, totals.published),
        (1, labels, totals.refused),
        (2, f'{labels},ack="manual"', totals.delivered),
        (2, f'{labels},ack="auto"', totals.delivered_settled),
        (3, labels, totals.redelivered),
        (4, f'{labels},ack="manual"', totals.got),
        (4, f'{labels},ack="auto"', totals.got_settled),
        (5, labels, totals.acknowledged),
        (6, labels, totals.expired),
    ]
    for index, reasons, counts in (
        (7, dead, totals.dead_lettered),
        (8, dropped, totals.dropped),
    ):
        for reason, count in {**dict.fromkeys(reasons, 0), **counts}.items():
            row.append((index, f'{labels},reason="{reason}"', count))
    return row


def _queue_delivery(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for vhost in vhosts:
        for queue in list(vhost.queues.values()):
            labels = f"{label('vhost', vhost.name)},{label('queue', queue.name)}"
            totals = Totals()
            totals.add(queue)
            has_exchange = queue.settings.dead_letter_exchange is not None
            yield _totals_row(totals, labels, DEAD_LETTER_REASONS if has_exchange else ())


# Exchanges

_EXCHANGES: Final = (
    _counter("exchange_messages_published", "Messages addressed to an exchange"),
    _counter("exchange_messages_routed", "Messages that an exchange led on, for each destination"),
    _counter("exchange_messages_unroutable", "Messages to an exchange that no binding wanted"),
)


def _exchanges(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for vhost in vhosts:
        for exchange in list(vhost.exchanges.values()):
            labels = f"{label('vhost', vhost.name)},{label('exchange', exchange.name)}"
            counters = exchange.counters
            yield [
                (0, labels, int(counters.published)),
                (1, labels, int(counters.routed)),
                (2, labels, int(counters.unroutable)),
            ]


# Streams

_STREAMS: Final = (
    Metric("stream_partition_records", "gauge", "Records of a partition that can be read"),
    Metric("stream_partition_first_offset", "gauge", "Offset of the oldest record"),
    Metric("stream_partition_high_watermark", "gauge", "Offset behind the newest record"),
    _counter("stream_partition_records_appended", "Records appended to a partition"),
    _counter("stream_partition_records_read", "Records of a partition that clients were sent"),
)


def _streams(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for vhost in vhosts:
        for stream in list(vhost.streams.values()):
            of_stream = f"{label('vhost', vhost.name)},{label('stream', stream.name)}"
            for partition in list(stream.partitions):
                labels = f'{of_stream},partition="{partition.index}"'
                first, watermark = partition.first_offset, partition.high_watermark
                yield [
                    (0, labels, watermark - first),
                    (1, labels, first),
                    (2, labels, watermark),
                    (3, labels, int(partition.appended)),
                    (4, labels, int(partition.records_read)),
                ]


_GROUPS: Final = (
    Metric("group_lag_records", "gauge", "Records that a consumer group has still to read"),
    Metric("group_committed_offset", "gauge", "Next offset that a consumer group reads"),
)


def _groups(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for vhost in vhosts:
        for stream in list(vhost.streams.values()):
            for group in vhost.groups.of_stream(stream):
                of_group = (
                    f"{label('vhost', vhost.name)},{label('group', group)},"
                    f"{label('stream', stream.name)}"
                )
                for found in vhost.groups.lag(group, stream):
                    if found.committed >= 0:
                        labels = f'{of_group},partition="{found.partition}"'
                        yield [(0, labels, found.lag), (1, labels, found.committed)]


# Virtual hosts

_VHOSTS: Final = (
    *_totals_metrics("vhost"),
    Metric("vhost_queues", "gauge", "Queues of a virtual host"),
    Metric("vhost_streams", "gauge", "Streams of a virtual host"),
    Metric("vhost_exchanges", "gauge", "Exchanges of a virtual host"),
    Metric("vhost_connections", "gauge", "Connections to a virtual host"),
    Metric("vhost_messages", "gauge", "Messages in queues of a virtual host, by state"),
    Metric("vhost_queued_bytes", "gauge", "Payload of the messages that are ready"),
    Metric("vhost_retained_messages", "gauge", "Retained messages of a virtual host"),
    _counter("vhost_records_appended", "Records appended to streams"),
    _counter("vhost_records_read", "Records of streams that clients were sent"),
)
_FIRST: Final = len(_totals_metrics("vhost"))


def _vhosts(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for vhost in vhosts:
        labels = label("vhost", vhost.name)
        ready = unsettled = 0
        # Those that go meanwhile count as they were; none counts twice or not at all.
        totals = vhost.gone.copy()
        streams = list(vhost.streams.values())
        for count, queue in enumerate(list(vhost.queues.values())):
            totals.add(queue)
            ready += len(queue)
            unsettled += queue.unsettled
            if count % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                yield []
        for stream in streams:
            totals.add_stream(stream)
        counts = (
            (labels, len(vhost.queues)),
            (labels, len(vhost.streams)),
            (labels, len(vhost.exchanges)),
            (labels, vhost.account.used[CONNECTIONS]),
            (f'{labels},state="ready"', ready),
            (labels, vhost.queued_bytes),
            (labels, len(vhost.retained)),
            (labels, totals.appended),
            (labels, totals.records_read),
        )
        row = _totals_row(totals, labels, DEAD_LETTER_REASONS, DROP_REASONS)
        row += [(_FIRST + index, shown, value) for index, (shown, value) in enumerate(counts)]
        row.append((_FIRST + 4, f'{labels},state="unsettled"', unsettled))
        yield row


# Virtual hosts, listeners and users, as their clients see them


def _traffic_metrics(scope: str) -> tuple[Metric, ...]:
    return (
        _counter(f"{scope}_client_messages_published", "Messages that clients published"),
        _counter(f"{scope}_client_messages_confirmed", "Publishes that were confirmed"),
        _counter(f"{scope}_client_messages_unroutable", "Publishes that no binding wanted"),
        _counter(f"{scope}_client_messages_delivered", "Messages that were sent to clients"),
        _counter(f"{scope}_client_messages_redelivered", "Messages that were sent again"),
        _counter(f"{scope}_client_messages_acknowledged", "Deliveries that clients acknowledged"),
        _counter(f"{scope}_client_received_bytes", "Bytes read from clients"),
        _counter(f"{scope}_client_sent_bytes", "Bytes written to clients"),
        Metric(f"{scope}_client_connections", "gauge", "Connections"),
    )


def _traffic_of(scope: str) -> Rows:
    """The rows of all accounts of a kind: what is connected, and what was."""

    def rows(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
        wanted = {vhost.name for vhost in vhosts}
        sums: dict[Account, Traffic] = {}
        for account in broker.quotas.accounts():
            if account.scope == scope and (scope != VHOST or account.name in wanted):
                sums[account] = Traffic()
                sums[account].add(account.traffic)
        # Those that go meanwhile count as they were, and only here.
        for count, connection in enumerate(list(broker.connections)):
            for account in connection.usage.served:
                found = sums.get(account)
                if found is not None:
                    found.add(connection.traffic)
            if count % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                yield []
        for account, traffic in sums.items():
            labels = label(scope, account.name)
            values = (
                traffic.published,
                traffic.confirmed,
                traffic.returned + traffic.unroutable,
                traffic.delivered + traffic.delivered_settled + traffic.got + traffic.got_settled,
                traffic.redelivered,
                traffic.acknowledged,
                traffic.bytes_received,
                traffic.bytes_sent,
                account.used[CONNECTIONS],
            )
            yield [(index, labels, int(value)) for index, value in enumerate(values)]

    return rows


# Connections and channels

_CONNECTION_COARSE: Final = (
    _counter("connection_received_bytes", "Bytes read from a connection"),
    _counter("connection_sent_bytes", "Bytes written to a connection"),
)

_CONNECTIONS: Final = (
    _counter("connection_messages_published", "Messages that a connection published"),
    _counter("connection_messages_confirmed", "Publishes of a connection that were confirmed"),
    _counter("connection_messages_unroutable", "Publishes of a connection that nobody wanted"),
    _counter("connection_messages_delivered", "Messages that were sent to a connection"),
    _counter("connection_messages_redelivered", "Messages that were sent again"),
    _counter("connection_messages_acknowledged", "Deliveries that a connection acknowledged"),
    Metric("connection_channels", "gauge", "Channels of a connection"),
    Metric("connection_output_bytes", "gauge", "Output that a connection's socket has yet to take"),
)

_CHANNELS: Final = (
    Metric("channel_consumers", "gauge", "Consumers of a channel"),
    Metric("channel_messages_unsettled", "gauge", "Deliveries that a channel has to settle"),
    Metric("channel_messages_unconfirmed", "gauge", "Publishes that are yet to be confirmed"),
    Metric("channel_messages_uncommitted", "gauge", "Publishes in an open transaction"),
    Metric("channel_acks_uncommitted", "gauge", "Acknowledgements in an open transaction"),
    Metric("channel_prefetch", "gauge", "Unsettled deliveries that a channel may have, 0 for any"),
    _counter("channel_messages_published", "Messages that a channel published"),
    _counter("channel_messages_delivered", "Messages that were sent to a channel"),
    _counter("channel_messages_acknowledged", "Deliveries that a channel acknowledged"),
)


def _connections_in(
    broker: Broker, vhosts: list[VirtualHost]
) -> Iterator[tuple[Connection | None, str]]:
    """The connections in these virtual hosts, with their labels; None: others may be served."""
    wanted = {vhost.name for vhost in vhosts}
    for count, connection in enumerate(list(broker.connections)):
        vhost = connection.access.vhost
        if connection.login is not None and vhost in wanted and not connection.is_closed:
            yield (
                connection,
                (
                    f"{label('vhost', vhost)},{label('connection', connection_name(connection))},"
                    f"{label('protocol', connection.peer.listener.config.protocol)},"
                    f"{label('user', connection.identity.name)}"
                ),
            )
        if count % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            yield None, ""


def _connection_coarse(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for connection, labels in _connections_in(broker, vhosts):
        if connection is None:
            yield []
            continue
        traffic = connection.traffic
        yield [(0, labels, int(traffic.bytes_received)), (1, labels, int(traffic.bytes_sent))]


def _sent(traffic: Traffic) -> int:
    return int(traffic.delivered + traffic.delivered_settled + traffic.got + traffic.got_settled)


def _connections(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for connection, labels in _connections_in(broker, vhosts):
        if connection is None:
            yield []
            continue
        traffic = connection.traffic
        values = (
            traffic.published,
            traffic.confirmed,
            traffic.returned + traffic.unroutable,
            _sent(traffic),
            traffic.redelivered,
            traffic.acknowledged,
            connection.usage.channels,
            connection.output_size + connection.transport.unsent(),
        )
        yield [(index, labels, int(value)) for index, value in enumerate(values)]


def _channels(broker: Broker, vhosts: list[VirtualHost]) -> Iterator[Row]:
    for connection, labels in _connections_in(broker, vhosts):
        if connection is None:
            yield []
            continue
        for about in connection.managed().channels():
            of_channel = f'{labels},channel="{about.number}"'
            values = (
                about.consumers,
                about.unsettled,
                about.unconfirmed,
                about.uncommitted,
                about.unsettled_uncommitted,
                about.limit,
                about.traffic.published,
                _sent(about.traffic),
                about.traffic.acknowledged,
            )
            yield [(index, of_channel, int(value)) for index, value in enumerate(values)]


#: By the names that a scrape gives them.
FAMILIES: Final[dict[str, Family]] = {
    "queue_coarse_metrics": Family(_QUEUE_COARSE, _queue_coarse),
    "queue_consumer_count": Family(_QUEUE_CONSUMERS, _queue_consumers),
    "queue_delivery_metrics": Family(_totals_metrics("queue"), _queue_delivery),
    "exchange_metrics": Family(_EXCHANGES, _exchanges),
    "stream_metrics": Family(_STREAMS, _streams),
    "group_metrics": Family(_GROUPS, _groups),
    "vhost_metrics": Family(_VHOSTS, _vhosts),
    "vhost_client_metrics": Family(_traffic_metrics(VHOST), _traffic_of(VHOST)),
    "listener_client_metrics": Family(_traffic_metrics(LISTENER), _traffic_of(LISTENER)),
    "user_client_metrics": Family(_traffic_metrics(USER), _traffic_of(USER)),
    "connection_coarse_metrics": Family(_CONNECTION_COARSE, _connection_coarse),
    "connection_metrics": Family(_CONNECTIONS, _connections),
    "channel_metrics": Family(_CHANNELS, _channels),
}

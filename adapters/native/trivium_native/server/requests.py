"""Requests that are a map of fields: subscriptions, streams, groups and topology."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.common.quotas import SUBSCRIPTIONS
from trivium.messages.message import HeaderValue
from trivium.routing.exchanges import Binding, HeadersExchange, valid_headers_match
from trivium.runtime.adapter import declarer_of
from trivium.security.permissions import CONFIGURE, READ, WRITE
from trivium.streams.filtering import TopicFilter
from trivium.streams.stream import Partition
from trivium.vhost.extending import add_partitions
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.commits import stream_of
from trivium_native.server.deliveries import packable
from trivium_native.server.fetching import Fetch
from trivium_native.server.filtered_subscriptions import FilteredSubscription
from trivium_native.server.grouping import GROUP_REQUESTS, GroupRequests
from trivium_native.server.lists import reply_bounded
from trivium_native.server.parts import Parts
from trivium_native.server.permission_requests import PermissionRequests
from trivium_native.server.policy_requests import PolicyRequests
from trivium_native.server.subscribing import (
    declare_queue,
    pattern_of,
    poll,
    subscribe_to_queue,
)
from trivium_native.server.subscriptions import (
    LiveSubscription,
    LogSubscription,
    Subscription,
    add,
    forget,
)
from trivium_native.server.user_requests import UserRequests
from trivium_native.wire import frames
from trivium_native.wire.errors import (
    InvalidArgument,
    NotFound,
    OffsetOutOfRange,
    TooManyRequests,
)
from trivium_native.wire.fields import Fields
from trivium_native.wire.frames import MAX_STREAMS

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Partitions that are looked at for the reply to one METADATA.
MAX_DESCRIBED: Final = 131_072
_FEWER: Final = "too many partitions for one reply: name fewer streams"

#: Longest topic filter in bytes, as in MQTT.
_MAX_FILTER: Final = 0xFFFF

_MAX_U32: Final = 0xFFFF_FFFF
_MAX_OFFSET: Final = (1 << 63) - 1


class Requests:
    """Carries out the requests of one connection."""

    def __init__(self, connection: NativeConnection, vhost: VirtualHost, parts: Parts) -> None:
        self._connection = connection
        self._vhost = vhost
        self._parts = parts
        self._groups = GroupRequests(connection, vhost)
        self._policies = PolicyRequests(connection, vhost)

    def handle(self, kind: int, correlation: int, fields: Fields) -> None:
        """Carry out one request and answer it.

        Raises the errors that refuse the request.
        """
        if kind == frames.FETCH:
            self._fetch(correlation, fields)
        elif kind == frames.METADATA:
            self._metadata(correlation, fields)
        elif kind == frames.OFFSETS:
            self._offsets(correlation, fields)
        elif kind == frames.SUBSCRIBE:
            self._subscribe(correlation, fields)
        elif kind == frames.UNSUBSCRIBE:
            self._unsubscribe(correlation, fields)
        elif kind == frames.POLL:
            poll(self._connection, correlation, fields)
        elif kind == frames.PRODUCER:
            self._producer(correlation, fields)
        elif kind == frames.DECLARE:
            self._declare(correlation, fields)
        elif kind == frames.DELETE:
            self._delete(correlation, fields)
        elif kind == frames.BIND or kind == frames.UNBIND:
            self._bind(correlation, fields, kind == frames.BIND)
        elif kind == frames.PURGE:
            self._purge(correlation, fields)
        elif kind in GROUP_REQUESTS:
            self._groups.handle(kind, correlation, fields)
        elif kind == frames.MANAGE_USERS:
            UserRequests(self._connection).handle(correlation, fields)
        elif kind == frames.MANAGE_PERMISSIONS:
            PermissionRequests(self._connection).handle(correlation, fields)
        else:
            self._policies.handle(kind, correlation, fields)

    # Subscriptions

    def _subscribe(self, correlation: int, fields: Fields) -> None:
        connection = self._connection
        number = fields.integer("subscription", 0, _MAX_U32)
        mode = fields.choice("mode", ("pubsub", "queue", "poll", "log"))
        if number in connection.subscriptions:
            raise InvalidArgument(f"subscription {number} is in use")
        most = connection.options.max_subscriptions
        if len(connection.subscriptions) >= most:
            raise TooManyRequests(f"a connection has at most {most} subscriptions")
        connection.usage.require(SUBSCRIPTIONS)
        subscription: Subscription
        credit = 0
        reply: dict[str, object] = {}
        if mode == "pubsub":
            subscription = self._subscribe_live(number, fields)
        elif mode == "queue" or mode == "poll":
            subscribe_to_queue(connection, self._vhost, correlation, number, mode, fields)
            return
        else:
            partition = self._partition(fields)
            timestamp = fields.integer("timestamp", 0, _MAX_OFFSET, -1)
            if timestamp >= 0:
                self._subscribe_at(correlation, number, partition, timestamp, fields)
                return
            offset = self._offset(partition, fields.offset("offset"))
            credit = fields.integer("credit", 0, _MAX_OFFSET)
            log = self._log(number, partition, fields)
            log.start(offset)
            subscription = log
            reply["offset"] = offset
            reply["incarnation"] = partition.stream.incarnation
        add(subscription)
        # The answer first, then what it is about.
        connection.reply(correlation, reply)
        if credit:
            subscription.add_credit(credit)

    def _subscribe_live(self, number: int, fields: Fields) -> LiveSubscription:
        name = fields.text("exchange")
        self._connection.access.require_exchange(READ, name)
        exchange = self._vhost.exchange(name)
        pattern = pattern_of(fields)
        no_local = fields.boolean("no_local")
        fields.finish()
        self._connection.access.require_live(exchange, pattern)
        return LiveSubscription(self._connection, number, exchange, pattern, no_local)

    def _subscribe_at(
        self, correlation: int, number: int, partition: Partition, timestamp: int, fields: Fields
    ) -> None:
        """Mode ``log`` from a time on: the answer waits until its offset is found."""
        credit = fields.integer("credit", 0, _MAX_OFFSET)
        subscription = self._log(number, partition, fields)
        self._check_searches()
        subscription.asked_by = correlation
        add(subscription)
        self._search(partition, timestamp, lambda offset: subscription.found(offset, credit))

    def _log(self, number: int, partition: Partition, fields: Fields) -> LogSubscription:
        """Mode ``log``, with all fields read."""
        topic_filter = _topic_filter(fields)
        fields.finish()
        if topic_filter is None:
            return LogSubscription(self._connection, number, partition)
        return FilteredSubscription(self._connection, number, partition, topic_filter)

    def _unsubscribe(self, correlation: int, fields: Fields) -> None:
        number = fields.integer("subscription", 0, _MAX_U32)
        fields.finish()
        subscription = forget(self._connection, number)
        if subscription is None:
            raise NotFound(f"no subscription {number}")
        subscription.unsubscribed()
        self._connection.reply(correlation, {})

    # Streams

    def _partition(self, fields: Fields) -> Partition:
        stream = stream_of(self._vhost, fields, self._connection.access)
        index = fields.integer("partition", 0, _MAX_U32)
        partition = stream.partition(index)
        if partition is None:
            raise NotFound(f"stream '{stream.name}' has no partition {index}")
        return partition

    def _offset(self, partition: Partition, offset: int | str) -> int:
        if offset == "first":
            return partition.first_offset
        if offset == "last":
            return partition.last_offset
        if offset == "next":
            return partition.high_watermark
        assert isinstance(offset, int)
        if not partition.first_offset <= offset <= partition.high_watermark:
            raise OffsetOutOfRange.of(offset, partition.first_offset, partition.high_watermark)
        return offset

    def _fetch(self, correlation: int, fields: Fields) -> None:
        connection = self._connection
        options = connection.options
        partition = self._partition(fields)
        offset = self._offset(partition, fields.offset("offset"))
        max_bytes = fields.integer("max_bytes", 0, _MAX_OFFSET, options.max_fetch_bytes)
        min_bytes = fields.integer("min_bytes", 0, _MAX_OFFSET, 1)
        max_wait = fields.integer("max_wait_ms", 0, _MAX_OFFSET, 0)
        topic_filter = _topic_filter(fields)
        fields.finish()
        if len(connection.fetches) >= options.max_fetches:
            most = options.max_fetches
            raise TooManyRequests(f"a connection has at most {most} waiting fetches")
        max_bytes = min(max_bytes, options.max_fetch_bytes)
        fetch = Fetch(
            connection,
            correlation,
            partition,
            offset,
            min(min_bytes, max_bytes),
            max_bytes,
            connection.broker.elapsed_ms + min(max_wait, options.max_fetch_wait_ms),
            topic_filter,
        )
        if not fetch.step():
            connection.fetches.add(fetch)

    def _metadata(self, correlation: int, fields: Fields) -> None:
        names = fields.texts("streams", MAX_STREAMS)
        fields.finish()
        if names is None:
            streams = [one for one in self._vhost.streams.values() if self._may_use(one.name)]
        else:
            for name in names:
                if not self._may_use(name):
                    self._connection.access.require(READ, "stream", name)
            streams = [self._vhost.stream(name) for name in dict.fromkeys(names)]
        if sum(len(stream.partitions) for stream in streams) > MAX_DESCRIBED:
            raise InvalidArgument(_FEWER)
        described: list[object] = []
        for stream in streams:
            # Whoever may only write learns how many partitions there are, not what was written.
            is_readable = self._connection.access.may(READ, stream.name)
            partitions = [
                [partition.first_offset, partition.high_watermark, partition.next_offset]
                if is_readable
                else [0, 0, 0]
                for partition in stream.partitions
            ]
            described.append(
                {
                    "name": stream.name,
                    "incarnation": stream.incarnation,
                    "arguments": packable(stream.arguments),
                    "partitions": partitions,
                }
            )
        reply_bounded(self._connection, correlation, {"streams": described}, _FEWER)

    def _may_use(self, stream: str) -> bool:
        return self._connection.access.may(READ, stream) or self._connection.access.may(
            WRITE, stream
        )

    def _offsets(self, correlation: int, fields: Fields) -> None:
        partition = self._partition(fields)
        timestamp = fields.integer("timestamp", 0, _MAX_OFFSET)
        fields.finish()
        self._check_searches()
        connection = self._connection
        self._search(
            partition, timestamp, lambda offset: connection.reply(correlation, {"offset": offset})
        )

    def _check_searches(self) -> None:
        most = self._connection.options.max_fetches
        if self._connection.searches >= most:
            raise TooManyRequests(f"a connection has at most {most} searches under way")

    def _search(self, partition: Partition, timestamp: int, found: Callable[[int], None]) -> None:
        """Call ``found`` with the offset for a time, unless the client has left by then."""
        connection = self._connection
        connection.searches += 1

        def finished(offset: int) -> None:
            connection.searches -= 1
            if not connection.is_closed:
                found(offset)

        partition.offset_for_timestamp(timestamp, finished)

    def _producer(self, correlation: int, fields: Fields) -> None:
        name = fields.text("producer")
        producer = name.encode()
        is_transactional = fields.boolean("transactional")
        fields.finish()
        self._connection.access.require(WRITE, "producer", name)
        if not producer:
            raise InvalidArgument("a producer has a name")
        vhost = self._vhost
        producers = vhost.transactional if is_transactional else vhost.producers
        opened = producers.open(producer)
        if opened is None:
            raise TooManyRequests("this virtual host has too many producers")
        epoch, sequence = opened
        self._connection.reply_when_durable(correlation, {"epoch": epoch, "sequence": sequence})

    # Topology

    def _declare(self, correlation: int, fields: Fields) -> None:
        kind = fields.choice("kind", ("exchange", "queue", "stream"))
        name = fields.text("name", "")
        arguments = fields.arguments("arguments")
        reply: dict[str, object] = {"name": name}
        if kind == "stream":
            partitions = fields.integer("partitions", 1, _MAX_U32, 1)
            is_more = fields.boolean("extend")
            fields.finish()
            self._connection.access.require(CONFIGURE, "stream", name)
            if is_more:
                if arguments:
                    raise InvalidArgument("'extend' changes no 'arguments'")
                add_partitions(self._vhost, name, partitions)
                stream = self._vhost.stream(name)
            else:
                stream = self._vhost.declare_stream(name, partitions, arguments)
            reply["incarnation"] = stream.incarnation
        elif kind == "queue":
            reply = self._declare_queue(name, arguments, fields)
        else:
            type_ = fields.text("type", "topic")
            durable = fields.boolean("durable", True)
            auto_delete = fields.boolean("auto_delete")
            internal = fields.boolean("internal")
            fields.finish()
            if not name:
                raise InvalidArgument("an exchange has a name")
            is_new = name not in self._vhost.exchanges
            self._connection.access.require_declaration("exchange", name, is_new, arguments)
            self._vhost.declare_exchange(
                name,
                type_,
                durable,
                auto_delete,
                internal,
                arguments,
                declarer=declarer_of(self._connection),
            )
        self._connection.reply_when_durable(correlation, reply)

    def _declare_queue(
        self, name: str, arguments: dict[str, HeaderValue], fields: Fields
    ) -> dict[str, object]:
        durable = fields.boolean("durable", True)
        auto_delete = fields.boolean("auto_delete")
        exclusive = fields.boolean("exclusive")
        fields.finish()
        queue = declare_queue(
            self._connection, self._vhost, name, arguments, durable, auto_delete, exclusive
        )
        return {
            "name": queue.name,
            "messages": len(queue),
            "consumers": len(queue.consumers),
        }

    def _delete(self, correlation: int, fields: Fields) -> None:
        kind = fields.choice("kind", ("exchange", "queue", "stream", "group", "producer", "part"))
        name = fields.text("name")
        producer = fields.text("producer").encode() if kind == "part" else b""
        is_transactional = fields.boolean("transactional") if kind == "producer" else False
        if_unused = fields.boolean("if_unused") if kind in ("exchange", "queue") else False
        if_empty = fields.boolean("if_empty") if kind == "queue" else False
        fields.finish()
        reply: dict[str, object] = {}
        self._connection.access.require(CONFIGURE, kind, name)
        if kind == "part":
            self._connection.access.require(WRITE, "producer", producer.decode())
        if kind == "exchange":
            self._vhost.delete_exchange(name, if_unused)
        elif kind == "queue":
            queue = self._vhost.queue(name, self._connection)
            reply["messages"] = self._vhost.delete_queue(queue, if_unused, if_empty)
        elif kind == "stream":
            self._vhost.delete_stream(name)
        elif kind == "group":
            self._vhost.delete_group(name)
        elif kind == "part":
            self._parts.discard(producer, name)
        elif is_transactional:
            self._parts.forget(name.encode())
            self._vhost.transactional.delete(name.encode())
        else:
            self._vhost.producers.delete(name.encode())
        self._connection.reply_when_durable(correlation, reply)

    def _bind(self, correlation: int, fields: Fields, is_bind: bool) -> None:
        vhost = self._vhost
        access = self._connection.access
        source = fields.text("exchange")
        access.require_exchange(READ, source)
        exchange = vhost.exchange(source)
        kind = fields.choice("kind", ("exchange", "queue", "stream"))
        name = fields.text("name")
        pattern = pattern_of(fields)
        arguments = fields.arguments("arguments")
        fields.finish()
        access.require(WRITE, kind, name)
        if kind == "exchange" and is_bind:
            access.require_every_topic(name)
        access.require_source(exchange, pattern)
        if kind == "exchange":
            destination = vhost.destination(name, is_exchange=True)
        elif kind == "queue":
            destination = vhost.queue(name, self._connection)
        else:
            destination = vhost.stream(name)
        if isinstance(exchange, HeadersExchange) and not valid_headers_match(arguments):
            raise InvalidArgument("'x-match' is not all, any, all-with-x or any-with-x")
        binding = Binding(destination, pattern, arguments, guard=declarer_of(self._connection))
        if is_bind:
            vhost.bind(exchange, binding)
        else:
            vhost.unbind(exchange, binding)
        self._connection.reply_when_durable(correlation, {})

    def _purge(self, correlation: int, fields: Fields) -> None:
        name = fields.text("name")
        self._connection.access.require(READ, "queue", name)
        queue = self._vhost.queue(name, self._connection)
        fields.finish()
        self._connection.reply_when_durable(correlation, {"messages": queue.purge()})


def _topic_filter(fields: Fields) -> TopicFilter | None:
    text = fields.optional_text("filter", _MAX_FILTER)
    if text is None:
        return None
    try:
        return TopicFilter(text)
    except ValueError as error:
        raise InvalidArgument(f"'filter' is no topic filter: {error}") from None

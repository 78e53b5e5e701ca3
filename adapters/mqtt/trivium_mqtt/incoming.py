"""What one client publishes, the hottest path of the adapter.

``PublishDecoder`` says what a packet says, here it is carried out: route, publish, acknowledge. Of
packets that repeat an earlier one (``RepeatedPublish``) topic and route are known. At QoS 0 a run
of them is handed on as one slice of what was read, to each live subscriber of the same protocol
version: they get the publisher's own packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i16_be
from mypy_extensions import i64

from trivium.common.pieces import Pieces, split_parts
from trivium.errors import RouteTooCostly
from trivium.messages.large import LARGE_PAYLOAD, Content, LargePayload
from trivium.messages.message import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    PROTOCOL_MQTT,
    UNSAMPLED,
    Address,
    Message,
)
from trivium.messages.topics import DOLLAR
from trivium.messages.tracing import Tracer
from trivium.routing.exchanges import (
    ACCEPTED,
    REJECTED,
    UNROUTABLE,
    Destination,
    RefusedRoute,
    Route,
)
from trivium.runtime.framed import CLOCK_FRAMES, FRAME_DELIVERIES, run_length
from trivium_mqtt.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    acknowledgement,
    write_acknowledgement,
)
from trivium_mqtt.codec.properties import (
    MESSAGE_EXPIRY,
    RESPONSE_TOPIC,
    TOPIC_ALIAS,
    PacketProperties,
)
from trivium_mqtt.codec.publish import Publish, PublishDecoder, RepeatedPublish
from trivium_mqtt.codec.reasons import (
    IMPLEMENTATION_SPECIFIC,
    NO_MATCHING_SUBSCRIBERS,
    NOT_AUTHORIZED,
    PACKET_ID_NOT_FOUND,
    QUOTA_EXCEEDED,
    RECEIVE_MAXIMUM_EXCEEDED,
    TOPIC_ALIAS_INVALID,
    TOPIC_NAME_INVALID,
    ProtocolError,
    Refused,
    RemoteError,
)
from trivium_mqtt.codec.wire import read_fixed_header, read_varint, varint_size
from trivium_mqtt.mounting import mount_properties, mount_topic
from trivium_mqtt.session import CombinedSubscription

if TYPE_CHECKING:
    from trivium_mqtt.reader import Reader

#: Packets of one run at most, where it is forwarded as it is: any number.
LONGEST_RUN: Final = 1 << 20

#: Bytes of the topics that have an alias, for each alias that there may be.
MAX_ALIAS_BYTES: Final = 4096

_TOO_MANY: Final = "receive maximum exceeded (MQTT-3.3.4-9)"


def message_of(
    address: Address,
    content: Content,
    qos: int,
    retain: bool,
    properties: PacketProperties | None,
    now_ms: int,
    client_id: bytes,
) -> Message:
    """The message that a PUBLISH or a will with these properties makes."""
    message = Message(
        PROTOCOL_MQTT, address, b"", content, qos, qos > 0, now_ms, 0, retain, 0, client_id
    )
    if properties is not None:
        message.header = properties.raw
        seconds = properties.number(MESSAGE_EXPIRY, -1)
        if seconds >= 0:
            message.expires = now_ms + seconds * 1000
        if properties.delivery >= 0:
            message.mode = properties.delivery
            message.persistent = properties.delivery > 0
            message.insists = True
        if properties.delay:
            message.deliver_at = now_ms + properties.delay
    return message


class Incoming:
    """What one client publishes."""

    def __init__(self, connection: Reader) -> None:
        self._connection = connection
        self._sessions = connection.sessions
        self._vhost = connection.sessions.vhost
        self._topics = connection.sessions.topics_of(connection.access)
        self._disconnects = connection.broker.config.auth.refused_publish == "disconnect"
        self._metrics = connection.sessions.metrics
        self._traffic = connection.traffic
        self._is_v5 = connection.is_v5
        self._decoder = PublishDecoder(connection.is_v5)
        self._repeated = RepeatedPublish(connection.is_v5, connection.maximum_packet)
        self._limits_topics = connection.options.limits_topics
        # Packets of a run at QoS 0, at most.
        self._longest_run = LONGEST_RUN
        # Of the packets that ``_repeated`` recognises.
        self._topic = b""
        self._route = Route(Address("", b""), [], 0)
        self._aliases: dict[int, bytes] | None = None
        self._alias_bytes = 0

    def permissions_changed(self) -> None:
        """Find the routes anew, by what the client may publish now."""
        self._topics = self._sessions.topics_of(self._connection.access)

    def take_run(self, data: bytes, at: int, end: int) -> int:
        """Take the packets at ``at`` that repeat the last usual one; the offset behind them.

        ``at`` when there is no such packet, or not the whole of one.
        """
        repeated = self._repeated
        most = CLOCK_FRAMES
        route: Route | None = None
        if repeated.qos == 0 and len(self._topic):
            route = self._current_route()
            # What depends on each message may take long for each.
            most = 1 if route.depends_on_message else self._longest_run
        after, count = repeated.run(data, at, end, most)
        if count == 0:
            return at
        if repeated.qos == AT_LEAST_ONCE:
            return self._publish_run(data, at, after)
        if repeated.qos == EXACTLY_ONCE:
            return self._publish_run_once(data, at, after)
        assert route is not None
        self._forward(data, at, after, count, after - at - repeated.head_bytes, route)
        self._connection.count_frames(count)
        return after

    def take(self, data: bytes, start: int, body: int, end: int) -> None:
        """Take the packet ``data[start:end]``, whose body begins at ``body``."""
        publish = self._decoder.decode(data[start], data, body, end)
        topic = self._topic_of(publish)
        route = self._topics.route(topic)
        if topic[0] == DOLLAR:
            self._drop(publish, topic)
            return
        if self._repeated.remember(data, start, body, end, publish):
            self._topic = topic
            self._route = route
            if publish.qos == 0:
                self._forward(data, start, end, 1, end - publish.payload_at, route)
                return
        self._metrics.payload_bytes_received += end - publish.payload_at
        self._take_message(publish, route, data[publish.payload_at : end])

    def take_large(self, packet: Pieces) -> bool:
        """Take the PUBLISH that ``packet`` holds, uncopied; False when its payload is not large.

        Raises RemoteError.
        """
        payload_at = self._decoder.payload_at(packet)
        if payload_at == 0 or packet.size - payload_at < LARGE_PAYLOAD:
            return False
        head = packet.head(payload_at)
        body, _ = read_fixed_header(head, 0, payload_at)
        publish = self._decoder.decode(head[0], head, body, payload_at)
        topic = self._topic_of(publish)
        route = self._topics.route(topic)
        self._metrics.payload_bytes_received += packet.size - payload_at
        if topic[0] == DOLLAR:
            self._drop(publish, topic)
        else:
            _, parts = split_parts(packet.take_parts(), payload_at)
            self._take_message(publish, route, LargePayload(parts))
        return True

    def _drop(self, publish: Publish, topic: bytes) -> None:
        """Drop a packet and answer it: topics with a ``$`` are not for clients (4.7.2).

        MQTT 3 has no answer for it but success (MQTT-3.3.5-2).
        """
        self._connection.access.topic_refused(topic)
        self._count(1)
        self._metrics.messages_dropped += 1
        self._acknowledge(publish.qos, publish.packet_id, ACCEPTED, NOT_AUTHORIZED)

    def _take_message(self, publish: Publish, route: Route, content: Content) -> None:
        """Publish what a packet has brought, unless it came before."""
        self._count(1)
        if publish.qos > 0 and self._is_known(publish.qos, publish.packet_id):
            return
        message = message_of(
            route.address,
            content,
            publish.qos,
            publish.retain,
            publish.properties,
            self._sessions.broker.now_ms,
            self._connection.client_id,
        )
        self._carry_out(publish.qos, publish.packet_id, message, route)

    def _is_known(self, qos: int, packet_id: int) -> bool:
        """Whether a packet at QoS 1 or 2 repeats one that was routed when it came first (4.3.3):
        then it is answered. Raises RemoteError for one too many."""
        connection = self._connection
        if self._is_v5 and connection.room() <= 0:
            raise RemoteError(RECEIVE_MAXIMUM_EXCEEDED, _TOO_MANY)
        if qos != EXACTLY_ONCE:
            return False
        session = connection.attached()
        incoming = session.incoming
        if incoming is None or packet_id not in incoming:
            return False
        self._acknowledge(qos, packet_id, self._sessions.write_batch_of(session), 0)
        return True

    def _carry_out(self, qos: int, packet_id: int, message: Message, route: Route) -> None:
        """Publish what came with ``qos``, and answer it."""
        write_batch, reason = self._publish(message, route)
        if reason >= 0x80 and qos > 0 and self._ends_connection(reason):
            raise Refused(reason)
        if reason < 0x80 and qos == EXACTLY_ONCE:
            write_batch = self._keep_packet_id(packet_id, write_batch)
        self._acknowledge(qos, packet_id, write_batch, reason)

    def _topic_of(self, publish: Publish) -> bytes:
        """The topic name, after a topic alias is set or looked up (3.3.2.3.4)."""
        topic = publish.topic
        if self._limits_topics and not self._connection.options.admits_topic(topic):
            raise RemoteError(TOPIC_NAME_INVALID, "topic name is longer than is admitted here")
        properties = publish.properties
        alias = 0 if properties is None else properties.number(TOPIC_ALIAS, 0)
        if not alias:
            if not topic and self._is_v5:
                raise ProtocolError("no topic name and no topic alias (3.3.2.1)")
            return topic
        if alias > self._connection.options.topic_alias_maximum:
            raise RemoteError(TOPIC_ALIAS_INVALID, "topic alias above the maximum (MQTT-3.3.2-9)")
        aliases = self._aliases
        if topic:
            # What is no topic name sets nothing.
            self._topics.route(topic)
            if aliases is None:
                aliases = {}
                self._aliases = aliases
            self._alias_bytes += len(topic) - len(aliases.get(alias, b""))
            if self._alias_bytes > MAX_ALIAS_BYTES * self._connection.options.topic_alias_maximum:
                raise RemoteError(QUOTA_EXCEEDED, "topics that are too long have aliases")
            aliases[alias] = topic
            return topic
        known = None if aliases is None else aliases.get(alias)
        if known is None:
            raise ProtocolError("topic alias that was not set (3.3.2.3.4)")
        return known

    def _current_route(self) -> Route:
        """The route of the packets that ``_repeated`` recognises."""
        route = self._route
        if route.topology_version != self._vhost.topology_version:
            route = self._topics.renew(self._topic, route)
            self._route = route
        return route

    def _publish(self, message: Message, route: Route) -> tuple[int, int]:
        """Publish a message: the write batch to wait for with the answer, and its reason code."""
        if route.depends_on_message:
            if isinstance(route, RefusedRoute):
                self._connection.access.topic_refused(message.address.key)
                self._metrics.messages_dropped += 1
                return ACCEPTED, NOT_AUTHORIZED
            try:
                route = route.resolve(message)
            except RouteTooCostly:
                self._metrics.messages_dropped += 1
                return ACCEPTED, IMPLEMENTATION_SPECIFIC
        fans = len(route.destinations)
        if fans > FRAME_DELIVERIES:
            self._connection.count_frames(fans // FRAME_DELIVERIES)
        result = self._vhost.publish(message, route)
        if result == REJECTED:
            self._metrics.messages_dropped += 1
            return ACCEPTED, QUOTA_EXCEEDED
        if result == UNROUTABLE:
            self._count_unroutable(message.mode, 1)
            return ACCEPTED, NO_MATCHING_SUBSCRIBERS
        if not route.destinations and not message.deliver_at:
            # It is retained, for those to come.
            return result, NO_MATCHING_SUBSCRIBERS
        return result, 0

    def _ends_connection(self, reason: int) -> bool:
        """Whether a refusal costs the client the connection: MQTT 3 cannot be told of it, but may
        be told that all is well where it is for want of a permission (MQTT-3.3.5-2)."""
        return not self._is_v5 and (reason != NOT_AUTHORIZED or self._disconnects)

    def _forward(
        self, data: bytes, at: int, end: int, count: int, payload: i64, route: Route
    ) -> None:
        """Hand on ``count`` packets at QoS 0, ``data[at:end]``, which ``_repeated`` recognises:
        so many bytes of ``payload``."""
        self._count(count)
        self._metrics.payload_bytes_received += payload
        run = data if at == 0 and end == len(data) else data[at:end]
        if route.depends_on_message:
            self._publish_each(run, route, False)
            return
        tracer = self._vhost.tracer
        if tracer is None or tracer.passes(count):
            self._hand_on(run, count, route, payload)
        else:
            self._hand_on_some(run, count, route, tracer)

    def _hand_on_some(self, run: bytes, count: i64, route: Route, tracer: Tracer) -> None:
        """``_hand_on`` of a run of which messages are to be followed: these are published, and
        those between them go together."""
        payload_at: i64 = self._repeated.payload_at
        begin = at = 0
        end = len(run)
        while True:
            free: i64 = min(tracer.room(), count)
            payload: i64 = 0
            count -= free
            for _ in range(free):
                remaining = read_varint(run, at + 1, end)
                behind = at + 1 + varint_size(remaining) + remaining
                payload += behind - at - 1 - varint_size(remaining) - payload_at
                at = behind
            if free:
                tracer.passes(free)
                self._hand_on(run[begin:at], free, route, payload)
            if count == 0:
                return
            remaining = read_varint(run, at + 1, end)
            begin = at + 1 + varint_size(remaining) + remaining
            self._publish_each(run[at:begin], route, False)
            at = begin
            count -= 1

    def _hand_on(self, run: bytes, count: int, route: Route, payload: i64) -> None:
        """Hand on ``count`` packets at QoS 0 that nobody follows."""
        counters = route.counters
        counters.published += count
        if not route.destinations:
            counters.unroutable += count
            self._count_unroutable(0, count)
            return
        counters.routed += count * len(route.destinations)
        others: list[Destination] | None = None
        for destination in route.destinations:
            if isinstance(destination, CombinedSubscription) and destination.forward(
                run, count, self._is_v5, payload
            ):
                continue
            if others is None:
                others = []
            others.append(destination)
        self._longest_run = LONGEST_RUN
        if others is not None:
            self._publish_each(run, Route(route.address, others, route.topology_version), True)

    def _publish_each(self, run: bytes, route: Route, is_apart: bool) -> None:
        """Publish each packet of a run at QoS 0 by ``route``, which may be a part of theirs; with
        ``is_apart`` it is known that nobody follows them."""
        self._longest_run = run_length(len(route.destinations))
        payload_at = self._repeated.payload_at
        now_ms = self._sessions.broker.now_ms
        client_id = self._connection.client_id
        at = 0
        end = len(run)
        while at < end:
            remaining = read_varint(run, at + 1, end)
            body = at + 1 + varint_size(remaining)
            at = body + remaining
            payload = run[body + payload_at : at]
            message = message_of(route.address, payload, 0, False, None, now_ms, client_id)
            if is_apart:
                message.traced = UNSAMPLED
            self._publish(message, route)

    def _publish_run(self, data: bytes, at: int, end: int) -> int:
        """Publish and acknowledge the packets at QoS 1 that ``_repeated`` recognises; the offset
        behind those for which the turn had time."""
        connection = self._connection
        is_v5 = self._is_v5
        size = self._repeated.size
        last = ACCEPTED
        acknowledgements = BytesWriter()
        count = accepted = 0
        error: RemoteError | None = None
        begin = at
        route = self._current_route()
        most = (end - at) // size if route.takes_runs(AT_LEAST_ONCE) else 1
        while True:
            if is_v5:
                room = connection.room() - (count if last or connection.has_waiting else 0)
                if room <= 0:
                    self._count(1)
                    error = RemoteError(RECEIVE_MAXIMUM_EXCEEDED, _TOO_MANY)
                    break
                most = min(most, room)
            after = min(at + most * size, end)
            write_batch, reason = self._publish_together(data, at, after, route)
            taken = (after - at) // size
            if reason >= 0x80 and self._ends_connection(reason):
                at = after
                error = Refused(reason)
                break
            last = max(last, write_batch)
            count += taken
            if reason < 0x80:
                accepted += taken
            self._write_acknowledgements(acknowledgements, data, at, after, reason)
            at = after
            connection.count_frames(taken - 1)
            if at >= end or connection.stops_input():
                break
        taken = (at - begin) // size
        self._count(taken)
        self._metrics.payload_bytes_received += taken * (size - self._repeated.payload_at)
        if count:
            connection.answer(last, acknowledgements.getvalue(), count, accepted)
        if error is not None:
            raise error
        return at

    def _publish_together(self, data: bytes, at: int, end: int, route: Route) -> tuple[int, int]:
        """Publish the packets of a run at QoS 1 that lie in ``data[at:end]``: one, or as many as
        the route takes; the write batch to wait for, and the reason code of all."""
        size = self._repeated.size
        payload_at = self._repeated.payload_at
        now_ms = self._sessions.broker.now_ms
        client_id = self._connection.client_id
        messages: list[Message] = []
        while at < end:
            messages.append(
                Message(
                    PROTOCOL_MQTT,
                    route.address,
                    b"",
                    data[at + payload_at : at + size],
                    AT_LEAST_ONCE,
                    True,
                    now_ms,
                    0,
                    False,
                    0,
                    client_id,
                )
            )
            at += size
        if len(messages) == 1:
            return self._publish(messages[0], route)
        return self._vhost.publish_run(messages, route), 0

    def _write_acknowledgements(
        self, writer: BytesWriter, data: bytes, at: int, end: int, reason: int
    ) -> None:
        """PUBACK of the packets of a run that lie in ``data[at:end]``."""
        size = self._repeated.size
        payload_at = self._repeated.payload_at
        packet_id_at: i64 = at + (payload_at - 3 if self._is_v5 else payload_at - 2)
        shown: i64 = reason if self._is_v5 else 0
        while packet_id_at < end:
            write_acknowledgement(writer, PUBACK, read_i16_be(data, packet_id_at), shown)
            packet_id_at += size

    def _publish_run_once(self, data: bytes, at: int, end: int) -> int:
        """``_publish_run`` at QoS 2."""
        repeated = self._repeated
        now_ms = self._sessions.broker.now_ms
        client_id = self._connection.client_id
        payload_at = repeated.payload_at
        packet_id_at = payload_at - 3 if self._is_v5 else payload_at - 2
        route = self._current_route()
        while True:
            packet_id = data[at + packet_id_at] << 8 | data[at + packet_id_at + 1]
            payload = data[at + payload_at : at + repeated.size]
            at += repeated.size
            self._count(1)
            self._metrics.payload_bytes_received += len(payload)
            if not self._is_known(EXACTLY_ONCE, packet_id):
                message = message_of(
                    route.address, payload, EXACTLY_ONCE, False, None, now_ms, client_id
                )
                self._carry_out(EXACTLY_ONCE, packet_id, message, route)
            if at >= end or self._connection.stops_input():
                return at

    def _keep_packet_id(self, packet_id: int, write_batch: int) -> int:
        """Remember a QoS 2 message until it is released; what its answer waits for."""
        sessions = self._sessions
        session = self._connection.attached()
        if session.incoming is None:
            session.incoming = set()
        session.incoming.add(packet_id)
        if session.is_persistent and sessions.broker.storage.is_durable:
            sessions.store.put_incoming(session.client_id, packet_id)
            return sessions.broker.storage.write_batch
        return write_batch

    def _acknowledge(self, qos: int, packet_id: int, write_batch: int, reason: int) -> None:
        """Answer a packet at QoS 1 or 2 once ``write_batch`` is durable."""
        accepted = 1 if reason < 0x80 else 0
        if not self._is_v5:
            reason = 0
        if qos == 1:
            answer = acknowledgement(PUBACK, packet_id, reason)
            self._connection.answer(write_batch, answer, 1, accepted)
        elif qos == EXACTLY_ONCE:
            answer = acknowledgement(PUBREC, packet_id, reason)
            self._connection.answer(write_batch, answer, 0)

    def release(self, packet_id: int) -> None:
        """PUBREL came: the identifier is free for another message."""
        connection = self._connection
        session = connection.attached()
        incoming = session.incoming
        reason = 0
        accepted = 0
        if incoming is not None and packet_id in incoming:
            incoming.discard(packet_id)
            accepted = 1
            if session.is_stored:
                self._sessions.store.delete_incoming(session.client_id, packet_id)
        elif self._is_v5:
            reason = PACKET_ID_NOT_FOUND
        # Were the release not durable, a new message with this identifier could be taken for a
        # repetition after a crash.
        write_batch = self._sessions.write_batch_of(session)
        answer = acknowledgement(PUBCOMP, packet_id, reason)
        connection.answer(write_batch, answer, 0, accepted)

    def _count(self, count: int) -> None:
        """So many messages came."""
        self._metrics.messages_received += count
        self._traffic.published += count

    def _count_unroutable(self, qos: int, count: int) -> None:
        """So many led nowhere, which MQTT 5 says in its answer at QoS 1 and 2."""
        self._metrics.messages_unroutable += count
        if qos and self._is_v5:
            self._traffic.returned += count
        else:
            self._traffic.unroutable += count


class MountedIncoming(Incoming):
    """What a client behind a mount point publishes: with whole names, and never as it came."""

    def __init__(self, connection: Reader) -> None:
        super().__init__(connection)
        self._mount_point = connection.mount_point

    def _topic_of(self, publish: Publish) -> bytes:
        return mount_topic(self._mount_point, super()._topic_of(publish))

    def _take_message(self, publish: Publish, route: Route, content: Content) -> None:
        properties = publish.properties
        if properties is not None and RESPONSE_TOPIC in properties.texts:
            publish.properties = mount_properties(self._mount_point, properties)
        super()._take_message(publish, route, content)

    def _forward(
        self, data: bytes, at: int, end: int, count: int, payload: i64, route: Route
    ) -> None:
        self._count(count)
        self._metrics.payload_bytes_received += payload
        self._publish_each(data[at:end], route, False)

"""PUBLISH from one client: decoding and routing, the hottest path of the adapter.

A publisher mostly repeats itself, so the bytes of its last PUBLISH up to the end of the topic are
kept: a packet that starts with the same bytes has the same flags, size, topic and route, and is not
decoded again. At QoS 0 a run of packets to one topic is handed on as one slice of what was read, to
each live subscriber of the same protocol version: they get the publisher's own packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, PROTOCOL_MQTT, Address, Message
from trivium.messages.topics import RESERVED, is_reserved
from trivium.routing.exchanges import ACCEPTED, Destination, Route
from trivium_mqtt.codec.packets import PUBACK, PUBCOMP, PUBREC, acknowledgement
from trivium_mqtt.codec.properties import (
    IN_PUBLISH,
    MESSAGE_EXPIRY,
    TOPIC_ALIAS,
    PacketProperties,
    check_message_properties,
    read_properties,
)
from trivium_mqtt.codec.reasons import (
    NO_MATCHING_SUBSCRIBERS,
    NOT_AUTHORIZED,
    PACKET_ID_NOT_FOUND,
    QUOTA_EXCEEDED,
    RECEIVE_MAXIMUM_EXCEEDED,
    TOPIC_ALIAS_INVALID,
    MalformedPacket,
    ProtocolError,
    Refused,
    RemoteError,
)
from trivium_mqtt.codec.wire import read_varint, varint_size
from trivium_mqtt.session import Delivery

if TYPE_CHECKING:
    from trivium_mqtt.reader import Reader

# First bytes of PUBLISH without DUP and RETAIN
_QOS_0: Final = 0x30
_QOS_1: Final = 0x32

_PUBACK_HEAD: Final = b"\x40\x02"

#: Fixed header of the packets of a run: those with 16 KiB or more are rare and not worth it.
MAX_RUN_HEADER: Final = 3

_TOO_MANY: Final = "receive maximum exceeded (MQTT-3.3.4-9)"


class Incoming:
    """What one client publishes.

    The connection compares the next packet with ``prefix`` and ``live_part``.
    """

    def __init__(self, connection: Reader) -> None:
        #: the last usual packet up to the end of its topic; None while there was none
        self.prefix: bytes | None = None
        #: the same without its fixed header; None unless it was QoS 0
        self.live_part: bytes | None = None
        self._connection = connection
        self._sessions = connection.sessions
        self._topics = connection.sessions.topics
        self._metrics = connection.sessions.metrics
        self._is_v5 = connection.is_v5
        #: size of the remembered packet
        self.size = 0
        # Of the remembered packet: its size without the fixed header, its topic and route.
        self._remaining = 0
        self._topic = b""
        self._route = Route(Address("", b""), [], 0)
        self._aliases: dict[int, bytes] | None = None
        self._raw_properties = b""
        self._properties: PacketProperties | None = None

    def repeat(self, data: bytes, at: int, end: int) -> int:
        """Take the packets at ``at``, the first of which starts with ``prefix``.

        The offset behind them: ``at`` when not even the first is complete.
        """
        if at + self.size > end:
            return at
        if data[at] == _QOS_0:
            return self.repeat_live(data, at, end)
        return self._repeat_acknowledged(data, at, end)

    def _current_route(self) -> Route:
        route = self._route
        if route.topology_version != self._topics.vhost.topology_version:
            route = self._topics.renew(self._topic, route)
            self._route = route
        return route

    def repeat_live(self, data: bytes, start: int, end: int) -> int:
        """Take QoS 0 packets to the remembered topic, of whatever size.

        The first one is complete and starts with ``prefix``, or has a fixed header of at most
        MAX_RUN_HEADER bytes with ``live_part`` behind it.
        """
        route = self._current_route()
        at = start
        count = 0
        prefix = self.prefix
        size = self.size
        topic_part = self.live_part
        assert prefix is not None
        assert topic_part is not None
        while True:
            while at + size <= end and data.startswith(prefix, at):
                at += size
                count += 1
            # A packet of another size: its fixed header decides where the topic must stand.
            if at + 2 > end or data[at] != _QOS_0:
                break
            remaining = data[at + 1]
            body = at + 2
            if remaining >= 0x80:
                if body >= end or data[body] == 0 or data[body] >= 0x80:
                    break
                remaining = remaining & 0x7F | data[body] << 7
                body += 1
            if (
                remaining < len(topic_part)
                or body + remaining > end
                or body + remaining - at > self._connection.maximum_packet
                or not data.startswith(topic_part, body)
            ):
                break
            at = body + remaining
            count += 1
        metrics = self._metrics
        metrics.messages_received += count
        destinations = route.destinations
        if not destinations and not route.depends_on_message:
            metrics.messages_unroutable += count
            return at
        run = data if start == 0 and at == len(data) else data[start:at]
        others: list[Destination] | None = None
        if route.depends_on_message:
            self._publish_each(run, len(topic_part), route, None)
            return at
        for destination in destinations:
            if isinstance(destination, Delivery):
                connection = destination.session.connection
                if connection is None:
                    continue
                if (
                    connection.is_v5 == self._is_v5
                    and not destination.identifiers
                    and not destination.has_no_local
                    and connection.takes_runs(len(run))
                ):
                    connection.forward(run, count)
                    continue
            if others is None:
                others = [destination]
            else:
                others.append(destination)
        if others is not None:
            self._publish_each(run, len(topic_part), route, others)
        return at

    def _publish_each(
        self, run: bytes, skip: int, route: Route, destinations: list[Destination] | None
    ) -> None:
        """Give each packet of a run, as a message, to ``destinations``; None: the whole route.

        ``skip`` is the size of what stands between fixed header and payload.
        """
        address = route.address
        now_ms = self._sessions.broker.now_ms
        client_id = self._connection.client_id
        at = 0
        end = len(run)
        while at < end:
            remaining = read_varint(run, at + 1, end)
            body = at + 1 + varint_size(remaining)
            at = body + remaining
            message = Message(
                PROTOCOL_MQTT,
                address,
                b"",
                run[body + skip : at],
                AT_MOST_ONCE,
                False,
                now_ms,
                0,
                False,
                0,
                client_id,
            )
            if destinations is None:
                route.resolve(message).publish(message)
            else:
                for destination in destinations:
                    destination.accept(message)

    def _repeat_acknowledged(self, data: bytes, at: int, end: int) -> int:
        """QoS 1: a run of packets of one size to this topic."""
        route = self._current_route()
        connection = self._connection
        vhost = self._topics.vhost
        prefix = self.prefix
        assert prefix is not None
        size = self.size
        skip = len(prefix)
        address = route.address
        topology_version = route.topology_version
        now_ms = self._sessions.broker.now_ms
        client_id = connection.client_id
        is_v5 = self._is_v5
        payload_at = skip + 3 if is_v5 else skip + 2
        is_plain = not route.depends_on_message and len(route.destinations) > 0
        write_batch = ACCEPTED
        room = connection.room()
        acknowledgements: list[bytes] = []
        is_refused = False
        while True:
            after = at + size
            packet_id = data[at + skip : at + skip + 2]
            if not is_plain or packet_id == b"\x00\x00" or (is_v5 and data[at + skip + 2]):
                # Something is not as usual: the careful way, for this packet alone.
                if acknowledgements:
                    break
                return self.take(data, at, after - self._remaining, after)
            if is_v5 and room <= (len(acknowledgements) if write_batch else 0):
                raise RemoteError(RECEIVE_MAXIMUM_EXCEEDED, _TOO_MANY)
            message = Message(
                PROTOCOL_MQTT,
                address,
                b"",
                data[at + payload_at : after],
                1,
                True,
                now_ms,
                0,
                False,
                0,
                client_id,
            )
            result = ACCEPTED
            for destination in route.destinations:
                accepted = destination.accept(message)
                if accepted != ACCEPTED and result >= 0:
                    result = accepted
            at = after
            if result < 0:
                self._metrics.messages_dropped += 1
                if not is_v5:
                    is_refused = True
                    break
                acknowledgements.append(b"\x40\x03" + packet_id + bytes((QUOTA_EXCEEDED,)))
            else:
                if result > write_batch:
                    write_batch = result
                acknowledgements.append(_PUBACK_HEAD + packet_id)
            if (
                at + size > end
                or not data.startswith(prefix, at)
                or vhost.topology_version != topology_version
            ):
                break
        count = len(acknowledgements)
        self._metrics.messages_received += count
        if count:
            connection.answer(
                write_batch,
                acknowledgements[0] if count == 1 else b"".join(acknowledgements),
                count,
            )
        if is_refused:
            raise Refused
        return at

    def take(self, data: bytes, start: int, at: int, end: int) -> int:
        """Take the packet with its fixed header at ``start`` and its body at ``data[at:end]``.

        The offset behind it, and behind a run that it begins.
        """
        first = data[start]
        qos = first >> 1 & 3
        retain = first & 0x01 != 0
        if qos == 3:
            raise MalformedPacket("QoS 3 (MQTT-3.3.1-4)")
        if qos == 0 and first & 0x08:
            raise MalformedPacket("DUP with QoS 0 (MQTT-3.3.1-2)")
        if at + 2 > end:
            raise MalformedPacket("PUBLISH without a topic name")
        topic_end = at + 2 + (data[at] << 8 | data[at + 1])
        packet_id = 0
        after = topic_end
        if qos > 0:
            after += 2
            if after > end:
                raise MalformedPacket("PUBLISH ends within its variable header")
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if packet_id == 0:
                raise ProtocolError("packet identifier 0 (MQTT-2.2.1-3)")
        elif after > end:
            raise MalformedPacket("PUBLISH ends within its topic name")
        topic = data[at + 2 : topic_end]
        header = b""
        expires = 0
        now_ms = self._sessions.broker.now_ms
        has_properties = False
        mode = qos
        insists = False
        deliver_at = 0
        if self._is_v5:
            if after < end and data[after] == 0:
                after += 1
            else:
                found = self._read_properties(data, after, end)
                has_properties = True
                after = found.end
                header = found.raw
                seconds = found.number(MESSAGE_EXPIRY, -1)
                if seconds >= 0:
                    expires = now_ms + seconds * 1000
                if found.delivery >= 0:
                    mode = found.delivery
                    insists = True
                if found.delay:
                    deliver_at = now_ms + found.delay
                if TOPIC_ALIAS in found.numbers:
                    topic = self._alias(found.numbers[TOPIC_ALIAS], topic)
            if not topic:
                raise ProtocolError("no topic name and no topic alias (3.3.2.1)")
        route = self._topics.route(topic)
        if topic.startswith(RESERVED) and is_reserved(route.address.key):
            self._refuse(qos, packet_id)
            return end
        if first in (_QOS_0, _QOS_1) and not has_properties:
            # Remember it: up to the end of the topic, with QoS 0 up to the payload.
            stop = after if qos == 0 else topic_end
            self.prefix = data[start:stop]
            self.live_part = data[at:stop] if qos == 0 else None
            self.size = end - start
            self._remaining = end - at
            self._topic = topic
            self._route = route
            if qos == 0:
                return self.repeat_live(data, start, len(data))
        self._metrics.messages_received += 1
        connection = self._connection
        if qos > 0:
            if self._is_v5 and connection.room() <= 0:
                raise RemoteError(RECEIVE_MAXIMUM_EXCEEDED, _TOO_MANY)
            session = connection.attached()
            incoming = session.incoming
            if qos == EXACTLY_ONCE and incoming is not None and packet_id in incoming:
                # A repetition: it was routed when it came first (4.3.3).
                write_batch = self._sessions.write_batch_of(session)
                connection.answer(write_batch, acknowledgement(PUBREC, packet_id, 0), 0)
                return end
        message = Message(
            PROTOCOL_MQTT,
            route.address,
            header,
            data[after:end],
            mode,
            mode > 0,
            now_ms,
            expires,
            retain,
            0,
            connection.client_id,
            deliver_at,
            insists=insists,
        )
        self._publish(message, route, qos, packet_id)
        return end

    def _refuse(self, qos: int, packet_id: int) -> None:
        """Drop a message to a topic that is the broker's own.

        MQTT 3 has no answer for it but success (MQTT-3.3.5-2).
        """
        self._metrics.messages_received += 1
        self._metrics.messages_dropped += 1
        reason = NOT_AUTHORIZED if self._is_v5 else 0
        if qos == 1:
            self._connection.answer(ACCEPTED, acknowledgement(PUBACK, packet_id, reason), 1)
        elif qos == EXACTLY_ONCE:
            self._connection.answer(ACCEPTED, acknowledgement(PUBREC, packet_id, reason), 0)

    def _publish(self, message: Message, route: Route, qos: int, packet_id: int) -> None:
        """Route one message and acknowledge it."""
        sessions = self._sessions
        storage = sessions.broker.storage
        write_batch = ACCEPTED
        if message.deliver_at:
            result = sessions.vhost.delays.add(message, [])
        else:
            if message.retain:
                sessions.vhost.retained.keep(message)
                if storage.is_durable:
                    write_batch = storage.write_batch
            if route.depends_on_message:
                route = route.resolve(message)
            result = route.publish(message)
        reason = 0
        if result < 0:
            self._metrics.messages_dropped += 1
            if qos > 0 and not self._is_v5:
                raise Refused
            reason = QUOTA_EXCEEDED
        elif result > write_batch:
            write_batch = result
        if not route.destinations and not message.deliver_at:
            self._metrics.messages_unroutable += 1
            reason = NO_MATCHING_SUBSCRIBERS
        if not self._is_v5:
            reason = 0
        connection = self._connection
        if qos == 1:
            connection.answer(write_batch, acknowledgement(PUBACK, packet_id, reason), 1)
        elif qos == EXACTLY_ONCE:
            if reason < 0x80:
                session = connection.attached()
                if session.incoming is None:
                    session.incoming = set()
                session.incoming.add(packet_id)
                if session.is_kept and storage.is_durable:
                    sessions.store.put_incoming(session.client_id, packet_id)
                    write_batch = storage.write_batch
            connection.answer(write_batch, acknowledgement(PUBREC, packet_id, reason), 0)

    def release(self, packet_id: int) -> None:
        """PUBREL came: the identifier is free for another message."""
        connection = self._connection
        session = connection.attached()
        incoming = session.incoming
        reason = 0
        if incoming is not None and packet_id in incoming:
            incoming.discard(packet_id)
            if session.is_stored:
                self._sessions.store.delete_incoming(session.client_id, packet_id)
        elif self._is_v5:
            reason = PACKET_ID_NOT_FOUND
        # Were the release not durable, a new message with this identifier could be taken for a
        # repetition after a crash.
        write_batch = self._sessions.write_batch_of(session)
        connection.answer(write_batch, acknowledgement(PUBCOMP, packet_id, reason), 0)

    def _read_properties(self, data: bytes, at: int, end: int) -> PacketProperties:
        """The properties at ``at``; the same bytes as last time are not decoded again."""
        raw = self._raw_properties
        found = self._properties
        if found is not None and data.startswith(raw, at) and at + len(raw) <= end:
            found.end = at + len(raw)
            return found
        found = read_properties(data, at, end, IN_PUBLISH)
        check_message_properties(found)
        self._raw_properties = data[at : found.end]
        self._properties = found
        return found

    def _alias(self, alias: int, topic: bytes) -> bytes:
        """Set or look up a topic alias (3.3.2.3.4)."""
        if alias > self._sessions.options.topic_alias_maximum:
            raise RemoteError(TOPIC_ALIAS_INVALID, "topic alias above the maximum (MQTT-3.3.2-9)")
        aliases = self._aliases
        if topic:
            self._topics.route(topic)
            if aliases is None:
                self._aliases = {alias: topic}
            else:
                aliases[alias] = topic
            return topic
        known = None if aliases is None else aliases.get(alias)
        if known is None:
            raise ProtocolError("topic alias that was not set (3.3.2.3.4)")
        return known

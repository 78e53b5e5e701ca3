"""The cheapest stand-in for a broker: the rate against it is the load generator's ceiling.

``python -m bench.relay MQTT_PORT AMQP_PORT`` answers the handshakes with prepared bytes and then
forwards:

- MQTT: whatever a connection sends goes to the connections subscribed to its topic, and what those
  send goes back. The subscriber's own acknowledgements thus acknowledge to the publisher, at every
  QoS, and nothing is parsed.
- AMQP: numpy turns a chunk of publishes into deliveries and confirms them with one ``multiple``;
  acknowledgements are read and thrown away.

It keeps nothing and checks nothing: it is a measuring device, not a broker.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from typing import Final

import numpy as np

from bench import amqp_frames, mqtt_frames
from bench.amqp_clients import CHANNEL, FRAME_MAX
from bench.endpoints import Address, Endpoint, PeerError
from bench.frames import SEQUENCE, FrameBlock, Rows, layout

BUFFER_BYTES: Final = 256 * 1024
"""Above this much unsent data a receiver's sender is not read: the relay's only flow control."""


class RelayConnection(Endpoint):
    """A client of the relay, and the connections that what it sends goes to."""

    def __init__(
        self, connection: socket.socket, peers: dict[bytes, list[RelayConnection]]
    ) -> None:
        super().__init__(connection, BUFFER_BYTES)
        self.peers = peers
        self.targets: list[RelayConnection] = []
        self.sources: list[RelayConnection] = []

    @property
    def is_blocked(self) -> bool:
        """A connection that this one sends to has not taken everything."""
        return any(target.has_unsent for target in self.targets)

    def link(self, address: bytes) -> None:
        """Send to the connections that receive at ``address``."""
        self.targets = self.peers.get(address, [])
        for target in self.targets:
            target.sources.append(self)


class MqttRelayConnection(RelayConnection):
    """Forwards MQTT packets unread, after CONNECT, SUBSCRIBE and a look at the first topic."""

    def __init__(
        self, connection: socket.socket, peers: dict[bytes, list[RelayConnection]]
    ) -> None:
        super().__init__(connection, peers)
        self._is_connected = False

    def consume(self, filled: int) -> int:
        data = memoryview(self.buffer)[:filled]
        if not self.targets and not self.sources:
            if not self._is_connected:
                self._is_connected = True
                self.write(bytes((mqtt_frames.CONNACK, 2, 0, 0)))
                return filled
            header = 2 if data[1] < 0x80 else 3 if data[2] < 0x80 else 4
            if data[0] == 0x82:
                topic = bytes(data[header + 4 : filled - 1]).removesuffix(b"/+")
                self.peers.setdefault(topic, []).append(self)
                self.write(bytes((mqtt_frames.SUBACK, 3, 0, 1, data[filled - 1])))
                return filled
            (length,) = struct.unpack_from(">H", data, header)
            topic = bytes(data[header + 2 : header + 2 + length])
            self.link(topic if topic in self.peers else topic.rpartition(b"/")[0])
        for target in self.targets or self.sources:
            target.write(data)
        return filled


_AMQP_ANSWERS: Final = {
    amqp_frames.CONNECTION_START_OK: amqp_frames.method(
        0, amqp_frames.CONNECTION_TUNE, struct.pack(">HIH", CHANNEL, FRAME_MAX, 0)
    ),
    amqp_frames.CONNECTION_TUNE_OK: b"",
    amqp_frames.CONNECTION_OPEN: amqp_frames.method(0, amqp_frames.CONNECTION_OPEN_OK, b"\0"),
    amqp_frames.CONNECTION_CLOSE: amqp_frames.method(0, amqp_frames.CONNECTION_CLOSE_OK),
    amqp_frames.CHANNEL_OPEN: amqp_frames.method(
        CHANNEL, amqp_frames.CHANNEL_OPEN_OK, amqp_frames.EMPTY_TABLE
    ),
    amqp_frames.QUEUE_DECLARE: amqp_frames.method(
        CHANNEL, amqp_frames.QUEUE_DECLARE_OK, b"\0" + bytes(8)
    ),
    amqp_frames.QUEUE_DELETE: amqp_frames.method(CHANNEL, amqp_frames.QUEUE_DELETE_OK, bytes(4)),
    amqp_frames.BASIC_QOS: amqp_frames.method(CHANNEL, amqp_frames.BASIC_QOS_OK),
    amqp_frames.BASIC_CONSUME: amqp_frames.method(
        CHANNEL, amqp_frames.BASIC_CONSUME_OK, amqp_frames.short_string("bench")
    ),
    amqp_frames.CONFIRM_SELECT: amqp_frames.method(CHANNEL, amqp_frames.CONFIRM_SELECT_OK),
    amqp_frames.BASIC_ACK: b"",
}


class AmqpRelayConnection(RelayConnection):
    """Answers AMQP methods, turns publishes into deliveries."""

    def __init__(
        self, connection: socket.socket, peers: dict[bytes, list[RelayConnection]]
    ) -> None:
        super().__init__(connection, peers)
        self._is_consumer = False
        self._published = 0
        self._publish_layout: np.dtype[np.void] | None = None
        self._deliveries: FrameBlock

    def consume(self, filled: int) -> int:
        if self._is_consumer:
            return filled
        if self._publish_layout is not None:
            return self._forward(filled)
        if self.buffer.startswith(amqp_frames.PROTOCOL_HEADER):
            start = bytes((0, 9)) + amqp_frames.EMPTY_TABLE
            start += amqp_frames.long_string(b"PLAIN") + amqp_frames.long_string(b"en_US")
            self.write(amqp_frames.method(0, amqp_frames.CONNECTION_START, start))
            return 8
        position = 0
        while position + amqp_frames.FRAME_OVERHEAD <= filled:
            (size,) = struct.unpack_from(">I", self.buffer, position + 3)
            end = position + size + amqp_frames.FRAME_OVERHEAD
            if end > filled:
                break
            first, second = struct.unpack_from(">HH", self.buffer, position + 7)
            number = (first, second)
            if number == amqp_frames.BASIC_PUBLISH:
                self._learn(position, filled)
                return position
            if number == amqp_frames.BASIC_CONSUME:
                length = self.buffer[position + 13]
                self.peers[bytes(self.buffer[position + 14 : position + 14 + length])] = [self]
                self._is_consumer = True
            self.write(_AMQP_ANSWERS[number])
            position = end
        return position

    def _learn(self, position: int, filled: int) -> None:
        """Take the first publish as the form of all of them."""
        starts = []
        for _ in range(3):
            starts.append(position)
            (size,) = struct.unpack_from(">I", self.buffer, position + 3)
            position += size + amqp_frames.FRAME_OVERHEAD
            if position > filled:
                raise PeerError("the first publish came in pieces")
        queue_at = starts[0] + 15
        queue = bytes(self.buffer[queue_at : queue_at + self.buffer[queue_at - 1]])
        content = bytes(self.buffer[starts[1] : position])
        deliver = amqp_frames.method(
            CHANNEL,
            amqp_frames.BASIC_DELIVER,
            amqp_frames.short_string("bench")
            + bytes(9)
            + amqp_frames.short_string("")
            + amqp_frames.short_string(queue.decode()),
        )
        body_at = starts[2] + 7 - starts[1]
        body_size = len(content) - body_at - 1
        method_size = starts[1] - starts[0]
        self._publish_layout = layout(
            position - starts[0], {SEQUENCE: (f"V{body_size}", method_size + body_at)}
        )
        fields = {
            amqp_frames.DELIVERY_TAG: (amqp_frames.DELIVERY_TAG_FORMAT, 17),
            SEQUENCE: (f"V{body_size}", len(deliver) + body_at),
        }
        frame = deliver + content
        self._deliveries = FrameBlock(frame, fields, len(self.buffer) // len(frame) + 1)
        self.link(queue)

    def _forward(self, filled: int) -> int:
        assert self._publish_layout is not None
        size = self._publish_layout.itemsize
        count = min(filled // size, self._deliveries.rows)
        if not count:
            return 0
        rows: Rows = np.frombuffer(self.buffer, dtype=self._publish_layout, count=count)
        self._deliveries.column(SEQUENCE)[:count] = rows[SEQUENCE]
        tags = np.arange(self._published + 1, self._published + count + 1, dtype=np.uint64)
        self._deliveries.column(amqp_frames.DELIVERY_TAG)[:count] = tags
        self._published += count
        for target in self.targets:
            target.write(self._deliveries.take(count))
        self.write(amqp_frames.ack(CHANNEL, self._published, multiple=True))
        return count * size


class Relay:
    """The listeners and connections of a relay, on one epoll."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._listeners: dict[int, tuple[socket.socket, type[RelayConnection]]] = {}
        self._connections: dict[int, RelayConnection] = {}
        self._masks: dict[int, int] = {}
        self._peers: dict[bytes, list[RelayConnection]] = {}

    def listen(self, port: int, kind: type[RelayConnection]) -> Address:
        """Accept connections of one protocol on a loopback port, 0 for any; return the address."""
        listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listeners[listener.fileno()] = listener, kind
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        host, chosen = listener.getsockname()
        return Address(host, chosen)

    def turn(self, timeout: float | None = None) -> None:
        """Wait up to ``timeout`` seconds, or for as long as it takes, and relay what is there."""
        for descriptor, event in self._epoll.poll(timeout):
            if descriptor in self._listeners:
                self._accept(*self._listeners[descriptor])
            elif descriptor in self._connections:
                self._handle(self._connections[descriptor], event)

    def close(self) -> None:
        """Close every socket."""
        self._epoll.close()
        for listener, _ in self._listeners.values():
            listener.close()
        for connection in self._connections.values():
            connection.close()

    def _accept(self, listener: socket.socket, kind: type[RelayConnection]) -> None:
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[accepted.fileno()] = kind(accepted, self._peers)
        self._masks[accepted.fileno()] = select.EPOLLIN
        self._epoll.register(accepted.fileno(), select.EPOLLIN)

    def _handle(self, connection: RelayConnection, event: int) -> None:
        try:
            if event & select.EPOLLOUT:
                connection.writable()
            if event & ~select.EPOLLOUT and not connection.is_blocked:
                connection.readable()
        except PeerError:
            self._drop(connection)
            return
        for other in (connection, *connection.targets, *connection.sources):
            self._watch(other)

    def _watch(self, connection: RelayConnection) -> None:
        descriptor = connection.socket.fileno()
        if self._connections.get(descriptor) is not connection:
            return
        mask = 0 if connection.is_blocked else select.EPOLLIN
        if connection.has_unsent:
            mask |= select.EPOLLOUT
        if self._masks[descriptor] != mask:
            self._masks[descriptor] = mask
            self._epoll.modify(descriptor, mask)

    def _drop(self, connection: RelayConnection) -> None:
        descriptor = connection.socket.fileno()
        self._epoll.unregister(descriptor)
        del self._connections[descriptor], self._masks[descriptor]
        for target in connection.targets:
            target.sources.remove(connection)
        for source in list(connection.sources):
            source.targets.remove(connection)
        for receivers in self._peers.values():
            if connection in receivers:
                receivers.remove(connection)
        connection.close()


def main() -> None:
    """Serve on the two ports of the command line."""
    relay = Relay()
    mqtt_port, amqp_port = (int(argument) for argument in sys.argv[1:])
    relay.listen(mqtt_port, MqttRelayConnection)
    relay.listen(amqp_port, AmqpRelayConnection)
    while True:
        relay.turn()


if __name__ == "__main__":
    main()

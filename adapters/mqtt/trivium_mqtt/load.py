"""`mqtt://` for loads: MQTT 3.1.1 over the packets of this package, QoS 0, 1 and 2.

Section numbers are those of MQTT 3.1.1. A load that resumes has sessions that are kept by both
sides: at QoS 2 what was under way goes on in the next connection, as 4.4 asks for. At QoS 1 a
publisher sends nothing again, so that what comes was kept by the broker.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from trivium.cli.clients import ClientError, Server, UsageError
from trivium.cli.roads import Consumer, Plan, Publisher, Watcher, Wire
from trivium_mqtt.codec.packets import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    V311,
    acknowledgement,
)
from trivium_mqtt.codec.publish import PublishDecoder
from trivium_mqtt.codec.reasons import RemoteError
from trivium_mqtt.codec.wire import binary, read_fixed_header, two, varint

DEFAULT_PORT: Final = 1883
DEFAULT_TLS_PORT: Final = 8883
ALPN: Final = "mqtt"
PACKET_IDS: Final = 65_535
_DUP: Final = 0x08
_CLEAN: Final = 0x02
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80
#: what CONNACK says (3.2.2.3)
_REFUSALS: Final = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


def open_road(server: Server, plan: Plan) -> MqttRoad:
    """The road of a URL. Raises UsageError."""
    if server.path:
        raise UsageError("an mqtt:// URL ends after the port")
    if plan.is_transient:
        raise UsageError("mqtt:// has no --transient, but --qos 0")
    if plan.is_stream or plan.transaction:
        raise UsageError(f"mqtt:// has no {'--stream' if plan.is_stream else '--transaction'}")
    return MqttRoad(server, plan)


class MqttRoad:
    """A topic of which each consumer gets every message."""

    listener = "mqtt"
    lasting: tuple[int, ...] = (1, 2)
    lasting_streams: tuple[int, ...] = ()
    copies = True

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self._senders: dict[int, SenderState] = {}
        self._receivers: dict[int, set[int]] = {}

    async def prepare(self) -> None:
        """A topic needs nothing."""

    async def clean_up(self) -> None:
        """Sessions that are not kept go with their connections."""

    async def publisher(self, index: int, watcher: Watcher) -> Publisher:
        state = self._senders.setdefault(index, SenderState())
        topic = f"{self._plan.name}/{index}".encode()
        wire = MqttPublisher(watcher, topic, self._plan.qos, state)
        is_kept = self._plan.resumes and self._plan.qos == 2
        if not is_kept:
            state.clear()
        await self._connect(wire, f"{self._plan.name}-p{index}", is_kept)
        wire.resume()
        return wire

    async def consumer(self, index: int, watcher: Watcher) -> Consumer:
        wire = MqttConsumer(watcher, self._receivers.setdefault(index, set()))
        await self._connect(wire, f"{self._plan.name}-c{index}", self._plan.resumes)
        topic_filter = f"{self._plan.name}/#".encode()
        body = two(1) + binary(topic_filter) + bytes((self._plan.qos,))
        answer = await wire.ask(_packet(SUBSCRIBE, body))
        if answer[0] != SUBACK or answer[-1] > 2:
            wire.fail("refused")
            raise ClientError(f"the server refused the filter {topic_filter.decode()!r}")
        return wire

    async def _connect(self, wire: Wire, client_id: str, is_kept: bool) -> None:
        server = self._server
        port = DEFAULT_PORT if server.tls is None else DEFAULT_TLS_PORT
        await wire.open(server, port, ALPN)
        flags = 0 if is_kept else _CLEAN
        body = binary(client_id.encode())
        if server.username is not None:
            flags |= _USERNAME
            body += binary(server.username.encode())
        if server.password is not None:
            flags |= _PASSWORD
            body += binary(server.password.encode())
        head = binary(b"MQTT") + bytes((V311, flags)) + two(0)
        answer = await wire.greet(server, port, self._plan, _packet(CONNECT, head + body))
        if answer[0] != CONNACK or answer[-1]:
            wire.fail("refused")
            raise ClientError(f"connection refused: {_REFUSALS.get(answer[-1], answer.hex())}")


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body


class SenderState:
    """The packet identifiers of a publisher's session, and what of QoS 2 is under way."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A new session."""
        #: the number of each message that is not acknowledged
        self.numbers: dict[int, int] = {}
        #: the packets of QoS 2 that may have to be sent again; PUBREL from PUBREC on
        self.packets: dict[int, bytes] = {}
        self._last = 0

    def next_id(self) -> int:
        """A packet identifier that is free."""
        while True:
            self._last = self._last % PACKET_IDS + 1
            if self._last not in self.numbers:
                return self._last


class _MqttWire(Wire):
    """Cuts what comes into packets."""

    def consume(self, data: bytes) -> int:
        at, size = 0, len(data)
        try:
            while at < size:
                body, end = read_fixed_header(data, at, size)
                if end > size:
                    break
                self.packet(data[at], data, body, end, at)
                at = end
        except RemoteError as error:
            raise ClientError(f"not MQTT: {error}") from None
        return at

    def packet(self, first: int, data: bytes, body: int, end: int, start: int) -> None:
        """A packet has come, whose body is `data[body:end]`."""
        raise NotImplementedError

    async def close(self) -> None:
        await self.end(bytes((DISCONNECT, 0)))


class MqttPublisher(_MqttWire):
    """Publishes to one topic."""

    def __init__(self, watcher: Watcher, topic: bytes, qos: int, state: SenderState) -> None:
        super().__init__(watcher)
        self._topic = binary(topic)
        self._qos = qos
        self._state = state
        self._written: deque[int] = deque()

    def publish(self, number: int, payload: bytes) -> None:
        state = self._state
        if self._qos == 0:
            self.put(_packet(PUBLISH, self._topic + payload))
            self._written.append(number)
            return
        packet_id = state.next_id()
        state.numbers[packet_id] = number
        packet = _packet(PUBLISH | self._qos << 1, self._topic + two(packet_id) + payload)
        if self._qos == 2:
            state.packets[packet_id] = packet
        self.put(packet)

    def flush(self) -> None:
        super().flush()
        while self._written:
            self.watcher.acknowledged(self._written.popleft())

    def resume(self) -> None:
        """Send again what is under way, in its order (4.4)."""
        for packet in self._state.packets.values():
            is_publish = packet[0] & 0xF0 == PUBLISH
            self.put(bytes((packet[0] | _DUP,)) + packet[1:] if is_publish else packet)
        self.flush()

    def packet(self, first: int, data: bytes, body: int, end: int, start: int) -> None:
        state = self._state
        if first not in (PUBACK, PUBREC, PUBCOMP):
            self.answer(data[start:end])
            return
        packet_id = int.from_bytes(data[body : body + 2], "big")
        if packet_id not in state.numbers:
            raise ClientError(f"packet identifier {packet_id} is acknowledged, but not in use")
        if first == PUBREC:
            release = acknowledgement(PUBREL, packet_id, 0)
            # Behind those that have not come so far.
            state.packets.pop(packet_id, None)
            state.packets[packet_id] = release
            self.put(release)
            return
        state.packets.pop(packet_id, None)
        self.watcher.acknowledged(state.numbers.pop(packet_id))


class MqttConsumer(_MqttWire):
    """Receives; `held` has the packet identifiers of QoS 2 that wait for PUBREL (4.3.3)."""

    def __init__(self, watcher: Watcher, held: set[int]) -> None:
        super().__init__(watcher)
        self._held = held
        self._decoder = PublishDecoder(False)

    def packet(self, first: int, data: bytes, body: int, end: int, start: int) -> None:
        if first & 0xF0 == PUBLISH:
            publish = self._decoder.decode(first, data, body, end)
            is_new = publish.qos < 2 or publish.packet_id not in self._held
            if is_new:
                # At QoS 2 nothing that is handed over may be a copy, whatever DUP says.
                may_repeat = publish.qos == 1 and bool(first & _DUP)
                self.watcher.received(data[publish.payload_at : end], may_repeat)
            if publish.qos == 1:
                self.put(acknowledgement(PUBACK, publish.packet_id, 0))
            elif publish.qos == 2:
                self._held.add(publish.packet_id)
                self.put(acknowledgement(PUBREC, publish.packet_id, 0))
        elif first == PUBREL:
            packet_id = int.from_bytes(data[body : body + 2], "big")
            self._held.discard(packet_id)
            self.put(acknowledgement(PUBCOMP, packet_id, 0))
        else:
            self.answer(data[start:end])

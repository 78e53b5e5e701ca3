"""What a strict client makes of the packets that a server sends it (MQTT 3.1.1 and 5.0).

Written from the standard and sharing no code with the broker: whatever the standard calls malformed
or a protocol error, seen from the client, is an AssertionError.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Properties (MQTT5 table 2-4): their types, and the packets of a server that may carry them.
_TYPES = {
    0x01: "bit", 0x02: "four", 0x03: "text", 0x08: "text", 0x09: "binary", 0x0B: "varint",
    0x11: "four", 0x12: "text", 0x13: "two", 0x15: "text", 0x16: "binary", 0x1A: "text",
    0x1C: "text", 0x1F: "text", 0x21: "two", 0x22: "two", 0x23: "two", 0x24: "bit",
    0x25: "bit", 0x26: "pair", 0x27: "four", 0x28: "bit", 0x29: "bit", 0x2A: "bit",
}  # fmt: skip
_ANSWER = {0x1F, 0x26}
_ALLOWED = {
    2: {
        0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27,
        0x28, 0x29, 0x2A,
    },
    3: {0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26},
    4: _ANSWER, 5: _ANSWER, 6: _ANSWER, 7: _ANSWER, 9: _ANSWER, 11: _ANSWER,
    14: {0x1C, 0x1F, 0x26}, 15: {0x15, 0x16, 0x1F, 0x26},
}  # fmt: skip
_REPEATABLE = {0x0B, 0x26}

# Reason codes of each packet that a server may send (MQTT5 table 2-6).
_REASONS = {
    2: {
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95,
        0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    },
    4: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    5: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    6: {0x00, 0x92},
    7: {0x00, 0x92},
    9: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    11: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    14: {
        0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95,
        0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Received:
    """One packet as the client understands it. A topic alias is already resolved."""

    kind: int
    flags: int
    packet_id: int = 0
    reasons: tuple[int, ...] = ()
    topic: bytes = b""
    payload: bytes = b""
    properties: tuple[tuple[int, object], ...] = ()

    @property
    def qos(self) -> int:
        """Of a PUBLISH."""
        return self.flags >> 1 & 3


@dataclass
class _Body:
    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), "the packet ends within a field"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        value = 0
        for place in range(4):
            byte = self.number(1)
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                assert byte or not place, "a variable byte integer is longer than needed"
                return value
        raise AssertionError("a variable byte integer of more than four bytes")

    def text(self) -> bytes:
        value = self.take(self.number(2))
        assert 0 not in value, "U+0000 in a text"
        value.decode()
        return value

    def properties(self, kind: int) -> tuple[tuple[int, object], ...]:
        stop = self.varint() + self.at
        assert stop <= len(self.data), "properties reach beyond the packet"
        inner = _Body(self.data[:stop], self.at)
        found: list[tuple[int, object]] = []
        while inner.at < stop:
            identifier = inner.number(1)
            assert identifier in _ALLOWED[kind], f"property 0x{identifier:02x}"
            if identifier not in _REPEATABLE:
                assert identifier not in dict(found), f"property 0x{identifier:02x} twice"
            value: object
            match _TYPES[identifier]:
                case "bit":
                    value = inner.number(1)
                    assert value in (0, 1)
                case "two":
                    value = inner.number(2)
                case "four":
                    value = inner.number(4)
                case "varint":
                    value = inner.varint()
                case "binary":
                    value = inner.take(inner.number(2))
                case "text":
                    value = inner.text()
                case _:
                    value = (inner.text(), inner.text())
            assert identifier not in (0x0B, 0x21, 0x23, 0x27) or value != 0
            if identifier == 0x08:
                assert isinstance(value, bytes)
                assert not set(b"+#") & set(value), "wildcard (MQTT-3.3.2-14)"
            found.append((identifier, value))
        self.at = stop
        return tuple(found)

    def end(self) -> None:
        assert self.at == len(self.data), "the packet is longer than its fields"


@dataclass
class StrictClient:
    """Takes what one connection wrote. ``is_v5`` is what its CONNECT asked for."""

    is_v5: bool = False
    is_connected: bool = False
    is_told_to_go: bool = False
    #: the authentication method that the server has named
    method: object = None
    aliases: dict[int, bytes] = field(default_factory=dict)

    def take(self, data: bytes) -> list[Received]:
        """The packets in ``data``, which holds whole ones only."""
        found: list[Received] = []
        at = 0
        while at < len(data):
            header = _Body(data, at + 1)
            size = header.varint()
            found.append(self._packet(data[at], _Body(header.take(size))))
            at = header.at
        return found

    def _packet(self, first: int, body: _Body) -> Received:
        kind, flags = first >> 4, first & 0x0F
        assert not self.is_told_to_go, "a packet behind DISCONNECT"
        comes_first = self.is_connected == (kind != 2)
        assert kind == 15 or comes_first, "CONNACK comes first and once (MQTT-3.2.0-1)"
        if kind == 3:
            return self._publish(flags, body)
        assert flags == (2 if kind == 6 else 0), f"flags of 0x{first:02x}"
        if kind == 2:
            return self._connack(body)
        if kind in (4, 5, 6, 7):
            found = self._acknowledgement(kind, body)
        elif kind in (9, 11):
            found = self._suback(kind, body)
        elif kind == 13:
            found = Received(kind, 0)
        elif kind == 15:
            found = self._auth(body)
        else:
            assert kind == 14, f"no packet for a client: 0x{first:02x}"
            assert self.is_v5, "DISCONNECT to an MQTT 3 client"
            self.is_told_to_go = True
            reason = body.number(1) if body.data else 0
            assert reason in _REASONS[kind]
            if body.at < len(body.data):
                body.properties(kind)
            found = Received(kind, 0, reasons=(reason,))
        body.end()
        return found

    def _connack(self, body: _Body) -> Received:
        present = body.number(1)
        code = body.number(1)
        assert present in (0, 1)
        properties: tuple[tuple[int, object], ...] = ()
        # A client whose CONNECT could not be read gets the answer of any version.
        if self.is_v5 or (code and len(body.data) > 2):
            assert code in _REASONS[2]
            properties = body.properties(2)
        else:
            assert code <= 5, f"return code {code} (3.2.2.3)"
        if code:
            assert not present, "session present in a refusal (MQTT-3.2.2-6)"
        body.end()
        if not code:
            self._check_method(properties)
        self.is_connected = code == 0
        self.is_told_to_go = code != 0
        return Received(2, 0, reasons=(code,), properties=properties)

    def _auth(self, body: _Body) -> Received:
        assert self.is_v5, "AUTH to an MQTT 3 client"
        reason = body.number(1)
        # Reason code 0 answers re-authentication alone (3.15.2.1, 4.12.1).
        assert reason == 0x18 or (reason == 0 and self.is_connected)
        properties = body.properties(15)
        assert 0x15 in dict(properties), "AUTH without a method (3.15.2.2.2)"
        self._check_method(properties)
        return Received(15, 0, reasons=(reason,), properties=properties)

    def _check_method(self, properties: tuple[tuple[int, object], ...]) -> None:
        method = dict(properties).get(0x15)
        assert self.method in (None, method), "another method (MQTT-4.12.0-5)"
        self.method = method

    def _publish(self, flags: int, body: _Body) -> Received:
        qos = flags >> 1 & 3
        assert qos < 3, "QoS 3 (MQTT-3.3.1-4)"
        if flags & 8:
            assert qos, "DUP at QoS 0 (MQTT-3.3.1-2)"
        topic = body.text()
        assert not set(b"+#") & set(topic), "wildcard in a topic name (MQTT-3.3.2-2)"
        packet_id = 0
        if qos:
            packet_id = body.number(2)
            assert packet_id, "packet identifier 0 (MQTT-2.2.1-3)"
        properties: tuple[tuple[int, object], ...] = ()
        if self.is_v5:
            properties = body.properties(3)
            alias = dict(properties).get(0x23)
            if alias is not None:
                assert isinstance(alias, int)
                if topic:
                    self.aliases[alias] = topic
                topic = self.aliases[alias]
        assert topic, "no topic name (MQTT-4.7.3-1)"
        return Received(3, flags, packet_id, (), topic, body.data[body.at :], properties)

    def _acknowledgement(self, kind: int, body: _Body) -> Received:
        packet_id = body.number(2)
        assert packet_id, "packet identifier 0 (MQTT-2.2.1-3)"
        reason = 0
        if self.is_v5 and body.at < len(body.data):
            reason = body.number(1)
            assert reason in _REASONS[kind]
            if body.at < len(body.data):
                body.properties(kind)
        return Received(kind, 0, packet_id, (reason,))

    def _suback(self, kind: int, body: _Body) -> Received:
        packet_id = body.number(2)
        assert packet_id, "packet identifier 0 (MQTT-2.2.1-3)"
        if self.is_v5:
            body.properties(kind)
        codes = tuple(body.data[body.at :])
        body.at = len(body.data)
        allowed = _REASONS[kind] if self.is_v5 else {0, 1, 2, 0x80}
        assert codes or (kind == 11 and not self.is_v5)
        assert all(code in allowed for code in codes), codes
        assert kind == 9 or self.is_v5 or not codes
        return Received(kind, 0, packet_id, codes)

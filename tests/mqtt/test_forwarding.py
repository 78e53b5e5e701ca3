"""What one client publishes, as others get it: nothing malformed, and the same by every road.

The broker hands runs of packets on without decoding each. What that may do is said here by a
reference that decodes one packet after the other, as the standard has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.mqtt import Client, Server, packet, publish, text
from tests.support.mqtt_strict import Received, StrictClient
from trivium.config import LimitsConfig

MALFORMED = [
    b"\x30\x02\xff\xff",
    b"\x30\x01\xff",
    b"\x30\x03\xff\xff\xff",
    b"\x30\x02\x00\xff",
    b"\x30\x81\x00\xff",
    b"\x30\x05\x00\x04a/b",
    b"\x30\x04\x00\x02\xff\xff",
    b"\x30\x00",
]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("before", [b"", publish("t", b"x", 1), publish("t", b"x", 2)])
@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_publish_ends_its_sender_and_reaches_nobody(
    malformed: bytes, before: bytes, version: int
) -> None:
    server = Server()
    listeners = [server.open(f"listener {v}", v) for v in (3, 4, 5)]
    for listener in listeners:
        listener.subscribe("#", 0)
        listener.subscribe("t", 0)
    sender = server.open("sender", version)
    if before:
        qos = before[0] >> 1
        sender.feed(publish("t", b"x", qos & 3, 1, version))
    for listener in listeners:
        listener.take_bytes()
    sender.feed(malformed)
    assert sender.is_closed
    for listener in listeners:
        assert listener.take_bytes() == b""
        assert not listener.is_closed


@dataclass
class Reference:
    """Takes what a publisher sends, one packet after the other."""

    is_v5: bool
    published: list[Received] = field(default_factory=list)
    #: set by the first packet that is an error
    is_over: bool = False
    _reader: StrictClient = field(init=False)
    _unreleased: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._reader = StrictClient(self.is_v5, is_connected=True)

    def take(self, whole: bytes) -> None:
        """The next whole packet, a PUBLISH by its type."""
        try:
            found = self._reader.take(whole)[0]
            properties = dict(found.properties)
            assert 0x0B not in properties, "subscription identifier (MQTT-3.3.4-6)"
            assert properties.get(0x23, 1) in range(1, 65), "alias above the maximum"
            response = properties.get(0x08, b"r")
            assert isinstance(response, bytes)
            assert response
            assert not {b"+", b"#"} & {response[at : at + 1] for at in range(len(response))}
        except (AssertionError, KeyError, UnicodeDecodeError):
            self.is_over = True
            return
        if found.qos == 2:
            if found.packet_id in self._unreleased:
                return
            self._unreleased.add(found.packet_id)
        self.published.append(found)


#: Bytes of the largest packet that a server takes.
MOST = LimitsConfig().max_message_bytes


def first_packet(data: bytes) -> tuple[bytes | None, bool]:
    """The whole packet that ``data`` begins with, if it is there; whether its size is wrong."""
    size = 0
    for place in range(4):
        if len(data) < 2 + place:
            return None, False
        byte = data[1 + place]
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if byte == 0 and place:
                return None, True
            end = 2 + place + size
            if end > MOST:
                return None, True
            return (data[:end] if len(data) >= end else None), False
    return None, True


def refer(data: bytes, is_v5: bool) -> tuple[Reference, bytes]:
    """What ``data`` publishes, and the part of it that is about publishing."""
    reference = Reference(is_v5)
    at = 0
    while at < len(data) and not reference.is_over:
        if data[at] >> 4 != 3:
            return reference, data[:at]
        whole, is_malformed = first_packet(data[at:])
        if is_malformed:
            reference.is_over = True
        if whole is None:
            break
        reference.take(whole)
        at += len(whole)
    return reference, data


TOPICS = [b"a", b"ab", b"a/b", b"\xff\xff", b"", b"\x00", b"a/+", "\N{SNOWMAN}".encode()]


@st.composite
def publications(draw: st.DrawFn, is_v5: bool) -> bytes:
    """One PUBLISH, mostly valid and mostly like others, so that runs come about."""
    topic = draw(st.sampled_from([b"a", b"a", b"a", *TOPICS]))
    qos = draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3]))
    first = 0x30 | qos << 1 | draw(st.sampled_from([0, 0, 0, 0, 1, 8]))
    payload = draw(st.sampled_from([b"", b"x", b"x", b"\x00", b"\xff", b"y" * 130]))
    body = text(topic)
    if qos:
        body += bytes((0, draw(st.integers(0, 3))))
    if is_v5:
        properties = draw(
            st.sampled_from(
                [
                    b"",
                    b"",
                    b"",
                    b"\x23\x00\x01",
                    b"\x23\x00\xff",
                    b"\x26" + text("k") + text("v"),
                    b"\x0b\x01",
                    b"\x08" + text("a/#"),
                    b"\x01\x02",
                ]
            )
        )
        body += bytes((len(properties),)) + properties
    return packet(first, body + payload)


@st.composite
def publisher_streams(draw: st.DrawFn, is_v5: bool) -> bytes:
    """What a publisher sends: runs of packets, changed and cut ones, and plain noise."""
    parts = draw(
        st.lists(
            st.one_of(
                publications(is_v5),
                st.builds(lambda one, times: one * times, publications(is_v5), st.integers(2, 4)),
                st.builds(
                    lambda body: packet(0x30, body),
                    st.binary(max_size=6).map(lambda noise: noise.replace(b"\x01", b"\xff")),
                ),
            ),
            min_size=1,
            max_size=6,
        )
    )
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(
            st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 2, 0x30, 0x32, 0x80, 0xFF]))
        )
    return bytes(data)


class Listeners:
    """Subscribers of every kind that gets packets made in its own way."""

    def __init__(self, server: Server) -> None:
        self.clients: list[tuple[Client, StrictClient, int]] = []
        for name, version, qos, connect_properties, properties in (
            ("plain 3", 4, 0, b"", b""),
            ("plain 5", 5, 0, b"", b""),
            ("acknowledging 3", 4, 2, b"", b""),
            ("acknowledging 5", 5, 1, b"", b""),
            ("aliases", 5, 0, b"\x22\x00\x05", b""),
            ("identifiers", 5, 0, b"", b"\x0b\x07"),
        ):
            client = server.open(name, version, properties=connect_properties)
            client.subscribe("#", qos, properties=properties)
            strict = StrictClient(version == 5, is_connected=True)
            self.clients.append((client, strict, qos))

    def check(self, published: list[Received], is_sender_v5: bool) -> None:
        """Each got what was published, at the QoS that it asked for, as it came."""
        for client, strict, granted in self.clients:
            heard = strict.take(client.take_bytes())
            # QoS 0 is not ordered against QoS 1 and 2.
            for qos in (0, 1, 2):
                expected = [one for one in published if min(one.qos, granted) == qos]
                got = [one for one in heard if one.qos == qos]
                assert [(one.topic, one.payload) for one in got] == [
                    (one.topic, one.payload) for one in expected
                ]
                if strict.is_v5 and is_sender_v5:
                    assert list(map(message_properties, got)) == list(
                        map(message_properties, expected)
                    )
            assert all(one.flags & 9 == 0 for one in heard), "RETAIN or DUP of another hop"
            assert not client.is_closed


def message_properties(one: Received) -> list[tuple[int, object]]:
    """Less those that belong to one hop: the alias and subscription identifiers."""
    return [pair for pair in one.properties if pair[0] not in (0x23, 0x0B)]


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("version", [4, 5])
@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_subscribers_get_what_a_packet_by_packet_decoder_reads(
    version: int, data: st.DataObject
) -> None:
    is_v5 = version == 5
    reference, stream = refer(data.draw(publisher_streams(is_v5)), is_v5)
    size = data.draw(st.one_of(st.just(len(stream) or 1), st.integers(1, 40)))
    server = Server()
    listeners = Listeners(server)
    sender = server.open("sender", version)
    sender.feed(*pieces_of(stream, size))
    listeners.check(reference.published, is_v5)
    assert sender.is_closed == reference.is_over
    answers = StrictClient(is_v5, is_connected=True).take(sender.take_bytes())
    acknowledged = [one.packet_id for one in answers if one.kind in (4, 5)]
    repeated = [one.packet_id for one in reference.published if one.qos]
    assert set(repeated) == set(acknowledged)

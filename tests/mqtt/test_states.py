"""Which packets a client may send when: every packet type in every state."""

from __future__ import annotations

import pytest

from tests.support.mqtt import (
    Client,
    Server,
    connect,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    subscribe,
    unsubscribe,
)
from trivium.config import EVERYTHING, AuthConfig, Config, UserConfig
from trivium.security.passwords import hash_password

PINGRESP = b"\xd0\x00"

#: One well-formed packet of each type, for MQTT 3.1.1 and 5 alike but for what differs.
TYPES = [
    "reserved",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
]


def packet_of(name: str, version: int) -> bytes:
    end = b"\x00" if version == 5 else b""
    return {
        "reserved": b"\x00\x00",
        "CONNECT": connect("again", version),
        "CONNACK": b"\x20\x02\x00\x00" if version == 4 else b"\x20\x03\x00\x00\x00",
        "PUBLISH": publish("t", b"x", 1, 7, version),
        "PUBACK": puback(9),
        "PUBREC": pubrec(9),
        "PUBREL": pubrel(9),
        "PUBCOMP": pubcomp(9),
        "SUBSCRIBE": subscribe("t", 0, 3, version),
        "SUBACK": b"\x90" + bytes((3 + len(end),)) + b"\x00\x01" + end + b"\x00",
        "UNSUBSCRIBE": unsubscribe("t", 4, version),
        "UNSUBACK": b"\xb0" + bytes((2 + 2 * len(end),)) + b"\x00\x01" + end + end,
        "PINGREQ": b"\xc0\x00",
        "PINGRESP": PINGRESP,
        "DISCONNECT": b"\xe0\x00",
        "AUTH": b"\xf0\x00",
    }[name]


#: What a connected client is answered, in MQTT 3.1.1 and 5; None: the connection ends as an error.
ANSWERS: dict[str, tuple[bytes, bytes] | None] = {
    "reserved": None,
    "CONNECT": None,
    "CONNACK": None,
    "PUBLISH": (puback(7), b"\x40\x03\x00\x07\x10"),
    "PUBACK": (b"", b""),
    "PUBREC": (pubrel(9), b"\x62\x03\x00\x09\x92"),
    "PUBREL": (pubcomp(9), b"\x70\x03\x00\x09\x92"),
    "PUBCOMP": (b"", b""),
    "SUBSCRIBE": (b"\x90\x03\x00\x03\x00", b"\x90\x04\x00\x03\x00\x00"),
    "SUBACK": None,
    "UNSUBSCRIBE": (b"\xb0\x02\x00\x04", b"\xb0\x04\x00\x04\x00\x11"),
    "UNSUBACK": None,
    "PINGREQ": (PINGRESP, PINGRESP),
    "PINGRESP": None,
    "DISCONNECT": (b"", b""),
    "AUTH": None,
}

#: The reason codes of MQTT 5 where the connection ends: a protocol error, but for what is reserved.
REASONS = {"reserved": 0x81}


def expect_error(client: Client, name: str) -> None:
    """The connection has ended; MQTT 5 says why, and MQTT 3 has no packet for it."""
    reason = REASONS.get(name, 0x82)
    assert client.take_bytes() == (bytes((0xE0, 1, reason)) if client.version == 5 else b"")
    assert client.is_closed
    assert client.server.adapter.metrics.protocol_errors == 1


def test_every_type_is_here() -> None:
    assert [packet_of(name, 5)[0] >> 4 for name in TYPES] == list(range(16))
    assert list(ANSWERS) == TYPES


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("cut", [1, 100])
def test_mqtt_3_1_0_1_the_first_packet_is_connect(name: str, cut: int) -> None:
    server = Server()
    client = server.connect()
    data = packet_of(name, 4)
    client.feed(data[:cut])
    if name == "CONNECT":
        client.feed(data[cut:])
        assert client.take_bytes() == b"\x20\x02\x00\x00"
        assert not client.is_closed
        return
    # Its type is enough to know.
    assert client.take_bytes() == b""
    assert client.is_closed
    assert server.adapter.metrics.protocol_errors == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", TYPES)
def test_what_a_connected_client_may_send(name: str, version: int) -> None:
    client = Server().open("c", version)
    client.feed(packet_of(name, version))
    answers = ANSWERS[name]
    if answers is None:
        expect_error(client, name)
        return
    assert client.take_bytes() == answers[version == 5]
    assert client.is_closed == (name == "DISCONNECT")
    assert client.server.adapter.metrics.protocol_errors == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("is_behind", [False, True])
def test_what_a_client_may_send_while_publishers_are_paused(
    name: str, version: int, is_behind: bool
) -> None:
    """PUBLISH waits; PUBREL and DISCONNECT wait behind one; everything else goes on."""
    client = Server().open("c", version)
    client.connection.blocked("low on disk")
    before = publish("t", b"x", 1, 6, version) if is_behind else b""
    client.feed(before, packet_of(name, version))
    answers = ANSWERS[name]
    if answers is None:
        expect_error(client, name)
        return
    waiting = puback(6) if version == 4 else b"\x40\x03\x00\x06\x10"
    mine = answers[version == 5]
    waits = name == "PUBLISH" or (is_behind and name in ("PUBREL", "DISCONNECT"))
    assert client.take_bytes() == (b"" if waits else mine)
    assert client.is_closed == (name == "DISCONNECT" and not is_behind)
    if client.is_closed:
        return
    client.connection.unblocked()
    client.server.settle()
    later = waiting if is_behind else b""
    if name == "SUBSCRIBE" and is_behind:
        # What waited has a subscriber by now, who gets it at QoS 0.
        later = publish("t", b"x", version=version) + puback(6)
    assert client.take_bytes() == later + (mine if waits else b"")
    assert client.is_closed == (name == "DISCONNECT")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", TYPES)
def test_nothing_is_taken_while_the_client_is_authenticated(name: str, version: int) -> None:
    """It may send on without waiting for CONNACK (MQTT5 3.1.4)."""
    users = {"ann": UserConfig(password=hash_password(b"secret"), permissions=EVERYTHING)}
    server = Server(config=Config(auth=AuthConfig(anonymous="never"), users=users))
    server.driver.is_pool_busy = True
    client = server.connect()
    client.version = version
    client.feed(connect("c", version, username="ann", password=b"secret"))
    client.feed(packet_of(name, version))
    assert client.take_bytes() == b""
    assert not client.is_closed
    server.driver.blocking.pop()()
    server.settle()
    client.take_first()
    answers = ANSWERS[name]
    if answers is None:
        expect_error(client, name)
        return
    assert client.take_bytes() == answers[version == 5]
    assert client.is_closed == (name == "DISCONNECT")

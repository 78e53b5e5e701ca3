"""Rules of single packets: flags, reason codes, filters, and how large an answer may be."""

from __future__ import annotations

import pytest

from tests.support.mqtt import (
    KEPT,
    Client,
    Server,
    acknowledge,
    connect,
    packet,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    subscribe,
    text,
    unsubscribe,
)
from trivium_mqtt.options import MqttOptions

# Maximum packet size of the client (MQTT5 3.1.2.11.4)


def maximum(size: int) -> bytes:
    return b"\x27" + size.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("size", "answer"),
    [
        (16, "20 0e 00 00 0b 21 2000 27 01000000 22 0040"),
        (15, "20 0b 00 00 08 21 2000 27 01000000"),
        (12, "20 06 00 00 03 21 2000"),
        (8, "20 06 00 00 03 21 2000"),
        (7, "20 03 00 00 00"),
        (5, "20 03 00 00 00"),
        (4, ""),
        (1, ""),
    ],
)
def test_mqtt_3_1_2_24_connack_leaves_out_what_does_not_fit(size: int, answer: str) -> None:
    server = Server()
    client = server.connect()
    client.feed(connect("p", 5, clean=False, properties=maximum(size) + KEPT))
    assert client.take_bytes() == bytes.fromhex(answer)
    assert client.is_closed == (not answer)
    client.lose()
    assert server.open("p", 5, clean=False).connack[1][0] == bool(answer)


def test_mqtt_3_1_2_24_connack_that_must_say_more_than_fits_is_not_sent() -> None:
    server = Server(options=MqttOptions(server_keep_alive=9))
    client = server.connect()
    client.feed(connect("p", 5, properties=maximum(7)))
    assert (client.take_bytes(), client.is_closed) == (b"", True)
    client = server.connect()
    client.feed(connect("p", 5, properties=maximum(8)))
    assert client.take_bytes() == bytes.fromhex("20 06 00 00 03 13 0009")
    # The client identifier that it was given is the longest.
    client = server.connect()
    client.feed(connect("", 5, properties=maximum(30)))
    assert (client.take_bytes(), client.is_closed) == (b"", True)


@pytest.mark.parametrize("size", [4, 5])
def test_mqtt_3_1_2_24_a_refusal_that_does_not_fit_is_not_sent(size: int) -> None:
    client = Server().connect()
    method = b"\x15" + text("SCRAM")
    client.feed(connect("p", 5, properties=maximum(size) + method))
    assert client.is_closed
    assert client.take_bytes() == (b"\x20\x03\x00\x8c\x00" if size == 5 else b"")


def test_a_limit_that_the_client_was_not_told_is_the_standards() -> None:
    server = Server(options=MqttOptions(receive_maximum=2))
    data = b"".join(publish("t", b"x", 2, number, 5) for number in (1, 2, 3))
    client = server.open("p", 5, properties=maximum(8))
    client.feed(data)
    assert client.take()[-1][0] == 0xE0
    client = server.open("p", 5, properties=maximum(7))
    client.feed(data)
    assert [first for first, _ in client.take()] == [0x50] * 3


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_mqtt_3_1_2_24_suback_and_unsuback_that_do_not_fit_end_the_connection(kind: str) -> None:
    server = Server()
    for count, fits in ((5, True), (6, False)):
        client = server.open("p", 5, properties=maximum(10))
        if kind == "subscribe":
            body = b"".join(text(f"t{number}") + b"\x00" for number in range(count))
            client.feed(packet(0x82, b"\x00\x01\x00" + body))
        else:
            body = b"".join(text(f"t{number}") for number in range(count))
            client.feed(packet(0xA2, b"\x00\x01\x00" + body))
        if fits:
            assert len(client.take_bytes()) == 10
        else:
            assert client.take_bytes() == b"\xe0\x01\x95"
            assert client.is_closed


# UNSUBSCRIBE (3.10.3)

INVALID = ["", "ab/+e", "#/a", "a#", "+a", "a/#/b", "$share/g", "$share//a", "$share/g/a#"]


@pytest.mark.parametrize("topic_filter", INVALID)
@pytest.mark.parametrize("version", [3, 4])
def test_unsubscribe_from_what_is_no_filter_ends_a_connection_of_mqtt_3(
    topic_filter: str, version: int
) -> None:
    client = Server().open("c", version)
    client.feed(unsubscribe(topic_filter))
    assert client.is_closed
    assert client.take_bytes() == b""


@pytest.mark.parametrize("topic_filter", INVALID)
def test_mqtt_3_11_3_unsubscribe_from_what_is_no_filter_is_told(topic_filter: str) -> None:
    client = Server().open("c", 5)
    client.subscribe("t")
    body = b"\x00\x02\x00" + text("t") + text(topic_filter) + text("u")
    client.feed(packet(0xA2, body))
    assert client.take_bytes() == b"\xb0\x06\x00\x02\x00\x00\x8f\x11"


# Too many levels: valid, and more than is taken here


@pytest.mark.parametrize("prefix", ["", "$share/g/"])
@pytest.mark.parametrize(
    ("version", "suback", "unsuback"),
    [
        (3, b"\x90\x03\x00\x01\x80", b"\xb0\x02\x00\x01"),
        (4, b"\x90\x03\x00\x01\x80", b"\xb0\x02\x00\x01"),
        (5, b"\x90\x04\x00\x01\x00\x97", b"\xb0\x04\x00\x01\x00\x11"),
    ],
)
def test_a_filter_with_too_many_levels_fails_alone(
    version: int, suback: bytes, unsuback: bytes, prefix: str
) -> None:
    client = Server().open("c", version)
    topic_filter = prefix + "/".join(["a"] * 129)
    client.feed(subscribe(topic_filter, 0, 1, version))
    assert client.take_bytes() == suback
    client.feed(unsubscribe(topic_filter, 1, version))
    assert client.take_bytes() == unsuback
    assert not client.is_closed


# Flags in MQTT 3.1


@pytest.mark.parametrize("flags", range(16))
def test_mqtt_3_1_flags_of_packets_that_repeat_or_ignore_them_are_accepted(flags: int) -> None:
    server = Server()
    listener = server.open("l", 3)

    def with_flags(data: bytes) -> bytes:
        return bytes((data[0] & 0xF0 | flags,)) + data[1:]

    client = server.connect()
    client.version = 3
    # Bit 0 of CONNECT's flags, and the will's flags without a will, are unused.
    body = text("MQIsdp") + b"\x03\x3b\x00\x00" + text("c")
    client.feed(with_flags(packet(0x10, body)))
    assert client.take_bytes() == b"\x20\x02\x00\x00"
    client.feed(with_flags(subscribe("t", 2)) + with_flags(unsubscribe("u", 2)))
    assert client.take_bytes() == b"\x90\x03\x00\x01\x02" + b"\xb0\x02\x00\x02"
    client.feed(publish("t", b"x", 2, 7))
    assert client.take_bytes() == publish("t", b"x", 2, 1) + pubrec(7)
    client.feed(with_flags(pubrel(7)) + with_flags(pubrec(1)))
    assert client.take_bytes() == pubcomp(7) + pubrel(1)
    client.feed(with_flags(pubcomp(1)) + with_flags(b"\xc0\x00"))
    assert client.take_bytes() == b"\xd0\x00"
    listener.feed(publish("t", b"x", 1, 1))
    assert client.take_bytes() == publish("t", b"x", 1, 2)
    client.feed(with_flags(puback(2)) + b"\xc0\x00")
    assert client.take_bytes() == b"\xd0\x00"
    client.feed(with_flags(b"\xe0\x00"))
    assert client.transport.is_closed
    assert server.adapter.metrics.protocol_errors == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "data",
    [
        pubrel(1),
        subscribe("t"),
        unsubscribe("t"),
        puback(1),
        pubrec(1),
        pubcomp(1),
        b"\xc0\x00",
        b"\xe0\x00",
    ],
)
def test_mqtt_2_1_3_1_flags_are_reserved_from_3_1_1_on(data: bytes, version: int) -> None:
    for flag in (1, 8):
        client = Server().open("c", version)
        client.feed(bytes((data[0] ^ flag,)) + data[1:])
        assert client.is_closed


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_2_1_3_1_flags_of_connect_are_reserved_from_3_1_1_on(version: int) -> None:
    client = Server().connect()
    data = connect("c", version)
    client.feed(bytes((data[0] | 8,)) + data[1:])
    assert client.is_closed
    assert client.take_bytes() == (b"\x20\x03\x00\x81\x00" if version == 5 else b"")


# Reason codes (MQTT5 2.4)

ALLOWED = {
    0x40: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    0x50: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    0x62: {0x00, 0x92},
    0x70: {0x00, 0x92},
}


@pytest.mark.parametrize("properties", [b"", b"\x00"])
@pytest.mark.parametrize("first", ALLOWED)
def test_mqtt_3_4_2_1_reason_codes_without_a_meaning_are_protocol_errors(
    first: int, properties: bytes
) -> None:
    server = Server()
    for reason in range(256):
        client = server.open("c", 5)
        client.feed(packet(first, bytes((0, 1, reason)) + properties))
        assert client.is_closed == (reason not in ALLOWED[first])
        if client.is_closed:
            assert client.take_bytes() == b"\xe0\x01\x82"


def test_a_refused_puback_is_no_acknowledgement() -> None:
    server = Server()
    client = server.open("c", 5, clean=False, properties=b"\x11\x00\x00\x10\x00")
    client.subscribe("t", 1)
    server.open("s").feed(publish("t", b"x", 1))
    client.take_bytes()
    client.feed(acknowledge(0x40, 1, 0xFF))
    assert client.is_closed
    client = server.open("c", 5, clean=False, properties=b"\x11\x00\x00\x10\x00")
    assert client.take_bytes() == publish("t", b"x", 1, 1, 5, dup=True)


def test_mqtt_3_14_2_1_disconnect_takes_the_reason_codes_of_a_client() -> None:
    server = Server()
    allowed = {
        0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
    }  # fmt: skip
    for reason in range(256):
        client = server.open("c", 5)
        client.feed(packet(0xE0, bytes((reason,))))
        assert client.is_closed
        assert client.take_bytes() == (b"" if reason in allowed else b"\xe0\x01\x82")


# Acknowledgements of the wrong type for what was sent


def subscriber(version: int, qos: int) -> Client:
    """A client that was sent one message, and at QoS 2 has confirmed it where ``qos`` is 3."""
    server = Server()
    client = server.open("c", version)
    client.subscribe("t", min(qos, 2))
    server.open("s").feed(publish("t", b"x", 2, 1))
    client.take_bytes()
    if qos == 3:
        client.feed(pubrec(1))
        assert client.take_bytes() == pubrel(1)
    return client


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("qos", "answer"),
    [(1, pubrec), (1, pubcomp), (2, puback), (2, pubcomp), (3, puback)],
)
def test_mqtt_4_3_an_acknowledgement_of_the_wrong_type_ends_the_connection(
    qos: int, answer: object, version: int
) -> None:
    client = subscriber(version, qos)
    client.feed(answer(1))  # type: ignore[operator]
    assert client.is_closed
    assert client.take_bytes() == (b"\xe0\x01\x82" if version == 5 else b"")


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("answer", [puback, pubcomp])
def test_an_acknowledgement_of_what_is_not_known_is_ignored(answer: object, version: int) -> None:
    client = subscriber(version, 1)
    client.feed(answer(9) + b"\xc0\x00")  # type: ignore[operator]
    assert client.take_bytes() == b"\xd0\x00"

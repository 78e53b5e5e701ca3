"""The type of every field that the broker writes is RabbitMQ's: clients cast by it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pamqp.commands import Basic, Queue

from tests.support.amqp import PROTOCOL_HEADER, Client, Server
from trivium.messages.message import (
    AT_LEAST_ONCE,
    Address,
    Message,
    Properties,
    PropertyCodec,
    register_codec,
)

#: A protocol of this test's own.
PROTOCOL = 204


class TestCodec(PropertyCodec):
    __test__ = False

    def decode(self, header: bytes) -> Properties:
        return Properties(
            headers=[
                *(("small", 1), ("large", 2**40), ("flag", True)),
                *(("text", "å"), ("data", b"\xff")),
            ],
            reply_to_topic=b"a/b",
            correlation_id=b"\xff",
        )


register_codec(PROTOCOL, TestCodec())

_SIZES = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "T": 8, "d": 8, "V": 0}


def typed_table(data: bytes) -> dict[str, Any]:
    """The fields of a table without its length: (letter, value), where numbers stay bytes."""
    fields: dict[str, Any] = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]].decode()
        fields[name], at = typed_value(data, at + 1 + data[at])
    return fields


def typed_value(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
    letter = chr(data[at])
    at += 1
    if letter in _SIZES:
        end = at + _SIZES[letter]
        return (letter, data[at:end]), end
    end = at + 4 + struct.unpack_from(">I", data, at)[0]
    content = data[at + 4 : end]
    if letter == "F":
        return (letter, typed_table(content)), end
    if letter == "A":
        values = []
        at = 0
        while at < len(content):
            value, at = typed_value(content, at)
            values.append(value)
        return (letter, values), end
    assert letter in "Sx", letter
    return (letter, content), end


def headers_sent(client: Client) -> dict[str, Any]:
    """The headers of the first content header among the frames that the client was sent."""
    data = client.take_bytes()
    while data[0] != 2:
        data = data[8 + struct.unpack_from(">I", data, 3)[0] :]
    flags = struct.unpack_from(">H", data, 19)[0]
    assert flags & 0x2000
    at = 21
    for flag in (0x8000, 0x4000):
        if flags & flag:
            at += 1 + data[at]
    size = struct.unpack_from(">I", data, at)[0]
    return typed_table(data[at + 4 : at + 4 + size])


def got(client: Client, queue: str, no_ack: bool = True) -> dict[str, Any]:
    client.take_bytes()
    client.send(Basic.Get(queue=queue, no_ack=no_ack))
    return headers_sent(client)


def int64(value: int) -> tuple[str, bytes]:
    return "l", struct.pack(">q", value)


def dead_lettered(client: Client, **headers: Any) -> dict[str, Any]:
    client.declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("q", arguments=arguments)
    client.publish("q", expiration="60000", headers=headers)
    client.send(Basic.Get(queue="q", no_ack=False), Basic.Reject(1, requeue=False))
    return got(client, "dead")


def test_headers_of_a_dead_letter(client: Client) -> None:
    headers = dead_lettered(client, k=1)
    now = struct.pack(">Q", client.server.broker.now_ms // 1000)
    letter, deaths = headers.pop("x-death")
    assert letter == "A"
    assert deaths == [
        (
            "F",
            {
                "count": int64(1),
                "reason": ("S", b"rejected"),
                "queue": ("S", b"q"),
                "time": ("T", now),
                "exchange": ("S", b""),
                "routing-keys": ("A", [("S", b"q")]),
                "original-expiration": ("S", b"60000"),
            },
        )
    ]
    # The publisher's own stay as they were.
    assert headers.pop("k")[0] != "l"
    assert headers == {
        "x-first-death-reason": ("S", b"rejected"),
        "x-first-death-queue": ("S", b"q"),
        "x-first-death-exchange": ("S", b""),
        "x-last-death-reason": ("S", b"rejected"),
        "x-last-death-queue": ("S", b"q"),
        "x-last-death-exchange": ("S", b""),
    }


def test_counts_in_a_history_that_came_back_in_another_type(client: Client) -> None:
    """Clients that write small integers in fewer bytes publish what they received."""
    history = [
        {"queue": "q", "reason": "rejected", "count": 2, "exchange": "", "routing-keys": ["q"]},
        {"queue": "r", "reason": "expired", "count": 3, "exchange": "", "routing-keys": ["r"]},
    ]
    deaths = dead_lettered(client, **{"x-death": history})["x-death"][1]
    assert {death["queue"][1]: death["count"] for _, death in deaths} == {
        b"q": int64(3),
        b"r": int64(3),
    }


def test_count_of_deliveries_from_a_quorum_queue(client: Client) -> None:
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    client.publish("q")
    client.send(Basic.Get(queue="q"), Basic.Reject(1, requeue=True))
    assert got(client, "q") == {"x-delivery-count": int64(1)}


def test_offset_in_a_stream(client: Client) -> None:
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.publish("s")
    client.call(Basic.Qos(prefetch_count=1))
    client.send(Basic.Consume(queue="s", arguments={"x-stream-offset": "first"}))
    assert headers_sent(client) == {"x-stream-offset": int64(0)}


@pytest.mark.parametrize(
    ("delay", "field"),
    [
        (3_600_000, ("I", struct.pack(">i", -3_600_000))),
        (2**31, ("I", struct.pack(">i", -(2**31)))),
        (2**31 + 1, int64(-(2**31) - 1)),
    ],
)
def test_delay_is_a_signed_int_where_it_fits(
    client: Client, delay: int, field: tuple[str, bytes]
) -> None:
    """The type that RabbitMQ's plugin writes."""
    client.declare("q")
    client.publish("q", headers={"x-delay": delay})
    broker = client.server.broker
    broker.now_ms += delay
    client.server.settle()
    assert got(client, "q") == {"x-delay": field}


def test_integers_of_other_protocols_have_one_type_whatever_their_size(client: Client) -> None:
    client.declare("q")
    client.server.vhost.queue("q").accept(
        Message(
            PROTOCOL,
            Address("amq.topic", b"k" * 300),
            b"",
            b"",
            AT_LEAST_ONCE,
            True,
            0,
            retain=True,
        )
    )
    assert got(client, "q") == {
        "small": int64(1),
        "large": int64(2**40),
        "flag": ("t", b"\x01"),
        "text": ("S", "å".encode()),
        "data": ("x", b"\xff"),
        "x-reply-to-topic": ("S", b"a/b"),
        "x-correlation-id": ("x", b"\xff"),
        "x-retain": ("t", b"\x01"),
        "x-routing-key": ("S", b"k" * 300),
    }


def test_server_properties(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    data = client.take_bytes()
    size = struct.unpack_from(">I", data, 13)[0]
    fields = typed_table(data[17 : 17 + size])
    letter, capabilities = fields.pop("capabilities")
    assert letter == "F"
    assert set(capabilities.values()) == {("t", b"\x01")}
    assert {letter for letter, _ in fields.values()} == {"S"}


def test_a_deleted_queue_counts_in_32_bits(client: Client) -> None:
    client.declare("q")
    client.publish("q")
    client.send(Queue.Delete(queue="q"))
    assert client.take_bytes()[7:15] == bytes.fromhex("0032 0029 00000001")

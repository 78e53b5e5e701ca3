"""Frames, content and what is malformed (AMQP 0-9-1, 4.2)."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import body, commands, frame, header
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Connection, Queue

from tests.support.amqp import (
    PROTOCOL_HEADER,
    Client,
    Server,
    assert_channel_closed,
    bodies,
    names,
    publish_frames,
    start_ok,
)
from tests.support.hostile import amqp_session
from tests.support.steps import calls
from trivium.config import Config, LimitsConfig
from trivium_amqp.connection import AmqpConnection


def raw(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((end,))


def closed(client: Client) -> tuple[int, str]:
    received = client.take()[-1]
    assert isinstance(received, Connection.Close), received
    assert isinstance(received.reply_text, str)
    assert isinstance(received.reply_code, int)
    return received.reply_code, received.reply_text


def test_4_2_3_wrong_frame_end_is_501(client: Client) -> None:
    client.feed(raw(1, 1, bytes.fromhex("0014000a00"), end=0xCD))
    assert closed(client) == (501, "FRAME_ERROR - frame does not end with the octet 0xCE")


def test_4_2_3_wrong_frame_end_of_a_repeated_publish_is_501(client: Client) -> None:
    client.declare("q")
    one = publish_frames("q", b"12345678")
    client.feed(one * 3 + one[:-1] + b"\x00")
    assert closed(client)[0] == 501
    assert client.server.vhost.queue("q").counters.published == 3


def test_4_2_3_wrong_frame_end_of_a_repeated_ack_is_501(client: Client) -> None:
    client.declare("q")
    client.feed(publish_frames("q") * 3)
    client.consume("q")
    acks = b"".join(frame.marshal(Basic.Ack(tag), 1) for tag in (1, 2))
    client.feed(acks + frame.marshal(Basic.Ack(3), 1)[:-1] + b"\x00")
    assert closed(client)[0] == 501


@pytest.mark.parametrize("frame_max", [4096, 131_072])
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_payload_larger_than_frame_max_is_501_before_it_arrives(
    server: Server, frame_max: int, kind: int
) -> None:
    client = server.open(frame_max=frame_max)
    client.feed(struct.pack(">BHI", kind, 1, frame_max + 1) + b"\x00")
    assert closed(client) == (
        501,
        f"FRAME_ERROR - frame with a payload of {frame_max + 1} bytes"
        f" is larger than frame_max {frame_max}",
    )


@pytest.mark.parametrize("frame_max", [4096, 131_072])
@pytest.mark.parametrize("more", [-8, -7, 0])
def test_payload_of_up_to_frame_max_is_accepted(server: Server, frame_max: int, more: int) -> None:
    """As RabbitMQ does it: some clients take frame_max for the size of the payload alone."""
    client = server.open(frame_max=frame_max)
    client.declare("q")
    sent = [bytes((number,)) * (frame_max + more) for number in range(4)]
    client.feed(b"".join(publish_frames("q", payload, chunk=frame_max) for payload in sent[:3]))
    client.feed(publish_frames("q", sent[3], chunk=frame_max))
    assert [client.get("q") for _ in range(4)] == sent


def test_frames_that_are_sent_are_never_larger_than_frame_max(server: Server) -> None:
    client = server.open(frame_max=4096)
    client.declare("q")
    client.feed(publish_frames("q", b"z" * 4096, chunk=4096))
    client.send(Basic.Get(queue="q", no_ack=True))
    data = client.take_bytes()
    sizes = []
    while data:
        size = struct.unpack_from(">I", data, 3)[0] + 8
        sizes.append(size)
        data = data[size:]
    assert max(sizes) == 4096


@pytest.mark.parametrize(("size", "is_accepted"), [(8192, True), (8193, False)])
def test_frame_before_tune_is_limited(server: Server, size: int, is_accepted: bool) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER + struct.pack(">BHI", 1, 0, size) + b"\x00")
    if is_accepted:
        assert names(client.take()) == ["Connection.Start"]
    else:
        assert closed(client)[0] == 501


def test_unknown_frame_type_is_501(client: Client) -> None:
    client.feed(raw(4, 1, b""))
    assert closed(client) == (501, "FRAME_ERROR - unknown frame type 4")


@pytest.mark.parametrize("channel", [1, 7])
def test_4_2_7_heartbeat_on_a_channel_is_505(client: Client, channel: int) -> None:
    client.feed(raw(8, channel, b""))
    assert closed(client) == (505, "UNEXPECTED_FRAME - type 8, all octets = <<>>")


@pytest.mark.parametrize("channel", [0, 1])
def test_4_2_7_heartbeat_with_a_payload_is_501(client: Client, channel: int) -> None:
    client.feed(raw(8, channel, b"x"))
    assert closed(client)[0] == 501


def test_method_frame_without_a_method_is_501(client: Client) -> None:
    client.feed(raw(1, 1, b"\x00\x14"))
    assert closed(client)[0] == 501


@pytest.mark.parametrize("cut", range(1, 12))
def test_close_ok_after_a_frame_error_may_come_in_pieces(client: Client, cut: int) -> None:
    close_ok = frame.marshal(Connection.CloseOk(), 0)
    client.feed(b"\x09" + bytes(7))
    for piece in (b"whatever", close_ok[:cut], close_ok[cut:]):
        assert not client.transport.is_closed
        client.feed(piece)
    assert client.transport.is_closed


def test_after_a_frame_error_input_is_ignored_until_close_ok(client: Client) -> None:
    client.feed(raw(4, 1, b""))
    client.take()
    client.feed(frame.marshal(Queue.Declare(queue="q"), 1))
    client.feed(b"\x00" * 100)
    assert client.take() == []
    assert not client.transport.is_closed
    client.feed(b"\xff\xff" + frame.marshal(Connection.CloseOk(), 0))
    assert client.transport.is_closed


@pytest.mark.parametrize(
    "payload",
    [
        # queue.declare: no name, a name longer than the frame, text after the end
        bytes.fromhex("0032000a 0000"),
        bytes.fromhex("0032000a 0000 ff 41 00 00000000"),
        bytes.fromhex("0032000a 0000 01 41 00 00000000 00"),
        # a name that is not UTF-8
        bytes.fromhex("0032000a 0000 01 ff 00 00000000"),
        # tables: longer than the frame, unknown type, no value, shorter than its field
        bytes.fromhex("0032000a 0000 01 41 00 00000001"),
        bytes.fromhex("0032000a 0000 01 41 00 00000003 01 61 7a"),
        bytes.fromhex("0032000a 0000 01 41 00 00000002 01 61"),
        bytes.fromhex("0032000a 0000 01 41 00 00000006 01 61 49 00000001"),
        bytes.fromhex("0032000a 0000 01 41 00 00000007 01 61 53 000000ff"),
        bytes.fromhex("0032000a 0000 01 41 00 00000007 01 61 46 00000001"),
    ],
)
def test_malformed_arguments_are_502(client: Client, payload: bytes) -> None:
    client.feed(raw(1, 1, payload))
    code, text = closed(client)
    assert code == 502
    assert text.startswith("SYNTAX_ERROR - ")
    assert "A" not in client.server.vhost.queues


def test_table_nesting_is_limited(client: Client) -> None:
    def declare(depth: int) -> bytes:
        table = b""
        for _ in range(depth):
            table = b"\x01aF" + struct.pack(">I", len(table)) + table
        arguments = b"\x00\x00\x01q\x00" + struct.pack(">I", len(table)) + table
        return raw(1, 1, bytes.fromhex("0032000a") + arguments)

    client.feed(declare(63))
    assert names(client.take()) == ["Queue.DeclareOk"]
    client.feed(declare(10_000))
    assert closed(client) == (
        502,
        "SYNTAX_ERROR - field table is nested deeper than 64 levels",
    )


@pytest.mark.parametrize("method", ["003c00ff", "00630001"])
def test_unknown_class_or_method_is_540(client: Client, method: str) -> None:
    client.feed(raw(1, 1, bytes.fromhex(method)))
    assert closed(client)[0] == 540


def test_unknown_connection_method_is_540(client: Client) -> None:
    client.feed(raw(1, 0, bytes.fromhex("000a00ff")))
    assert closed(client)[0] == 540


@pytest.mark.parametrize("method", [Basic.CancelOk("c"), Queue.BindOk(), Basic.GetEmpty()])
def test_methods_that_only_a_server_sends_are_503(client: Client, method: Basic.CancelOk) -> None:
    client.send(method)
    assert closed(client)[0] == 503


@pytest.mark.parametrize("method", [Queue.Declare(queue="q"), Connection.Open("/")])
def test_method_that_channel_0_has_not_is_504(client: Client, method: Queue.Declare) -> None:
    client.send(method, channel=0)
    assert closed(client) == (504, "CHANNEL_ERROR - unexpected method in connection state running")


def test_connection_method_on_a_channel_is_refused(client: Client) -> None:
    client.send(Connection.Open("/"), channel=1)
    assert closed(client) == (503, "COMMAND_INVALID - unimplemented method")


def test_channel_that_is_not_open_is_504(client: Client) -> None:
    client.send(Queue.Declare(queue="q"), channel=2)
    received = client.take()[-1]
    assert received.reply_text == "CHANNEL_ERROR - expected 'channel.open'"
    assert (received.reply_code, received.class_id, received.method_id) == (504, 50, 10)


def test_content_on_a_channel_that_is_not_open_is_505(client: Client) -> None:
    client.feed(raw(3, 2, b"x"))
    received = client.take()[-1]
    assert (received.reply_code, received.class_id, received.method_id) == (505, 0, 0)


def test_second_channel_open_is_504(client: Client) -> None:
    client.send(Channel.Open())
    assert closed(client) == (504, "CHANNEL_ERROR - second 'channel.open' seen")


def test_channel_number_beyond_channel_max_is_530(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(), channel=0)
    client.send(Connection.TuneOk(5, 131_072, 0), Connection.Open("/"), channel=0)
    client.send(Channel.Open(), channel=5)
    assert names(client.take())[-1] == "Channel.OpenOk"
    client.send(Channel.Open(), channel=6)
    assert closed(client) == (
        530,
        "NOT_ALLOWED - channel number 6 exceeds the negotiated channel_max (5)",
    )


def test_closed_channel_can_be_opened_again(client: Client) -> None:
    assert client.ask(Channel.Close(200, "", 0, 0)).name == "Channel.CloseOk"
    client.open_channel(1)


def test_2_2_5_after_channel_close_only_close_ok_counts(client: Client) -> None:
    failed = Queue.Declare(queue="missing", passive=True)
    received = client.call(failed, Queue.Declare(queue="ignored"))
    assert names(received) == ["Channel.Close"]
    assert (received[0].class_id, received[0].method_id) == (50, 10)
    client.feed(publish_frames("ignored"))
    assert client.take() == []
    client.send(Channel.CloseOk())
    client.open_channel(1)
    assert "ignored" not in client.server.vhost.queues


def test_channel_close_from_both_sides_at_once(client: Client) -> None:
    client.call(Queue.Declare(queue="missing", passive=True))
    # Sent before the client saw ours.
    assert client.ask(Channel.Close(200, "", 0, 0)).name == "Channel.CloseOk"
    client.send(Channel.CloseOk())
    client.open_channel(1)


# Content


def parts(payload: bytes = b"abc") -> list[bytes]:
    return [
        frame.marshal(Basic.Publish(exchange="", routing_key="q"), 1),
        frame.marshal(header.ContentHeader(0, len(payload)), 1),
        frame.marshal(body.ContentBody(payload), 1),
    ]


EXPECTED = [
    "method frame, got non method",
    "content header for class 60, got non content header",
    "content body, got non content body",
]


@pytest.mark.parametrize(
    "order",
    [
        [1],
        [2],
        [0, 0],
        [0, 2],
        [0, 1, 1],
        [0, 1, 0],
    ],
)
def test_content_frames_out_of_order_are_505(client: Client, order: list[int]) -> None:
    client.declare("q")
    client.feed(b"".join(parts()[index] for index in order))
    code, text = closed(client)
    assert code == 505
    assert text == f"UNEXPECTED_FRAME - expected {EXPECTED[min(len(order) - 1, 2)]} frame instead"


def test_content_out_of_order_names_the_method_it_belongs_to(client: Client) -> None:
    client.feed(parts()[0])
    client.send(Queue.Declare(queue="q"))
    received = client.take()[-1]
    assert (received.reply_code, received.class_id, received.method_id) == (505, 60, 40)


def test_content_frame_on_channel_0_is_505(client: Client) -> None:
    client.feed(raw(3, 0, b"x"))
    assert closed(client)[0] == 505


def test_content_header_of_another_class_is_505(client: Client) -> None:
    client.feed(parts()[0] + raw(2, 1, struct.pack(">HHQH", 50, 0, 1, 0)))
    assert closed(client) == (
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
    )


def test_content_body_longer_than_announced_is_505(client: Client) -> None:
    client.feed(parts()[0] + parts()[1] + raw(3, 1, b"abcd"))
    assert closed(client)[0] == 505


@pytest.mark.parametrize(
    "properties",
    [
        "0001",
        "0002",
        "8000",
        "8000 05 61",
        "1000",
        "0040 00000000",
        "2000 00000005",
        "2000 00000003 01 61 7a",
        "0000 00",
    ],
)
def test_malformed_properties_are_502(client: Client, properties: str) -> None:
    content = struct.pack(">HHQ", 60, 0, 3) + bytes.fromhex(properties)
    client.feed(parts()[0] + raw(2, 1, content))
    assert closed(client)[0] == 502


def test_body_in_many_frames(client: Client) -> None:
    payload = bytes(range(256)) * 1000
    client.declare("q")
    client.publish("q", payload, chunk=1000)
    assert client.get("q") == payload


def test_empty_body_has_no_body_frame(client: Client) -> None:
    client.declare("q")
    client.publish("q", b"")
    received = client.call(Basic.Get(queue="q", no_ack=True))
    assert names(received) == ["Basic.GetOk", "ContentHeader"]
    assert received[1].body_size == 0


def test_empty_body_frames_are_skipped(client: Client) -> None:
    client.declare("q")
    client.feed(parts()[0] + parts()[1] + raw(3, 1, b"") * 3 + parts()[2])
    assert client.get("q") == b"abc"


def test_equal_publishes_with_bodies_of_any_size_in_one_read(server: Server) -> None:
    publisher, consumer = server.open(frame_max=4096), server.open(frame_max=4096)
    consumer.declare("q")
    consumer.consume("q", no_ack=True)
    sizes = [1, 1, 1, 2, 0, 3, 3, 4088, 4089, 4096, 4096, 4097, 10_000, 5, 1]
    payloads = [bytes((number,)) * size for number, size in enumerate(sizes)]
    # Some clients cut at frame_max, others leave room for what is around the payload.
    frames = [
        publish_frames("q", payload, chunk=chunk) for payload in payloads for chunk in (4088, 4096)
    ]
    publisher.feed(b"".join(frames))
    contents: list[bytes] = []
    for received in consumer.take():
        if isinstance(received, header.ContentHeader):
            contents.append(b"")
        elif isinstance(received, body.ContentBody):
            contents[-1] += received.value
    assert contents == [payload for payload in payloads for _ in range(2)]


def test_equal_publishes_cut_anywhere() -> None:
    frames = b"".join(publish_frames("q", b"z" * size) for size in (3, 3, 3, 5, 2))
    for cut in range(1, len(frames)):
        client = Server().open()
        client.declare("q")
        client.feed(frames[:cut])
        client.feed(frames[cut:])
        found = [client.get("q") for _ in range(6)]
        assert found == [b"zzz", b"zzz", b"zzz", b"zzzzz", b"zz", None]


def test_body_frame_that_contradicts_its_header_in_a_run_is_505(client: Client) -> None:
    client.declare("q")
    one = publish_frames("q", b"abc")
    client.feed(one * 3 + one[:-11] + raw(3, 1, b"abcd"))
    assert closed(client)[0] == 505
    assert client.server.vhost.queue("q").counters.published == 3


def test_channels_interleave_content(client: Client) -> None:
    client.declare("q")
    client.open_channel(2)
    one = publish_frames("q", b"one", chunk=2)
    two = publish_frames("q", b"two", chunk=2, channel=2)
    mixed = b""
    at = [0, 0]
    for _ in range(4):
        for index, data in enumerate((one, two)):
            size = frame.unmarshal(data[at[index] :])[0]
            mixed += data[at[index] : at[index] + size]
            at[index] += size
    client.feed(mixed)
    assert client.get("q") == b"one"
    assert client.get("q") == b"two"


def test_message_larger_than_the_limit_is_406() -> None:
    client = Server(config=Config(limits=LimitsConfig(max_message_bytes=100))).open()
    client.declare("q")
    client.publish("q", b"z" * 100)
    assert client.take() == []
    client.feed(publish_frames("q", b"z" * 101))
    assert_channel_closed(
        client.take()[0],
        406,
        "PRECONDITION_FAILED - message size 101 is larger than configured max size 100",
    )


def test_delivery_is_cut_to_the_consumers_frame_max(server: Server) -> None:
    publisher, consumer = server.open(), server.open(frame_max=4096)
    payload = bytes(range(256)) * 40
    consumer.declare("q")
    publisher.publish("q", payload)
    (_, _, *content) = consumer.consume("q")
    assert [len(part.value) for part in content] == [4088, 4088, 2064]
    assert b"".join(bodies(content)) == payload


def test_deliveries_with_other_properties_than_the_one_before(server: Server) -> None:
    publisher, consumer = server.open(), server.open(frame_max=4096)
    publisher.declare()
    consumer.consume("q", no_ack=True)
    names_of = {0: "", 1: "a", 2: "b", 3: "longer", 4: "x" * 255}
    # Each after each, with bodies of the same and of another size: of none, and of several frames.
    script = [
        (name, size)
        for first in names_of
        for second in names_of
        for sizes in ((3, 3), (3, 7), (0, 3), (3, 0), (9000, 3), (3, 9000))
        for name, size in zip((first, second), sizes, strict=True)
    ]
    for number, (name, size) in enumerate(script):
        properties = {"message_id": names_of[name]} if name else {}
        publisher.publish("q", bytes([number % 251]) * size, **properties)
        deliver, content, *parts = consumer.take()
        assert isinstance(deliver, Basic.Deliver)
        assert (deliver.delivery_tag, deliver.redelivered) == (number + 1, False)
        assert isinstance(content, header.ContentHeader)
        assert (content.properties.message_id or "", content.body_size) == (names_of[name], size)
        assert b"".join(bodies(parts)) == bytes([number % 251]) * size


def test_header_too_large_for_the_consumers_frame_leaves_without_headers(server: Server) -> None:
    publisher, consumer = server.open(), server.open(frame_max=4096)
    consumer.declare("q")
    publisher.publish("q", headers={"big": "z" * 5000}, content_type="text/plain", delivery_mode=2)
    content = consumer.consume("q")[1]
    assert content.properties.headers is None
    assert content.properties.content_type == "text/plain"
    assert content.properties.delivery_mode == 2
    assert server.adapter.metrics.properties_dropped == 1


# Streams of frames, however they are cut


SESSION = amqp_session()


def describe(received: object) -> object:
    if isinstance(received, body.ContentBody):
        return received.value
    if isinstance(received, header.ContentHeader):
        return received.body_size, dict(received.properties)
    assert isinstance(received, Frame)
    return dict(received)


def replay(pieces: list[bytes]) -> list[object]:
    """What a server answers to a session that arrives in these pieces, confirms merged."""
    client = Server().connect()
    for piece in pieces:
        client.feed(piece)
    answers: list[object] = []
    confirmed = 0
    for received in client.take():
        if isinstance(received, commands.Basic.Ack):
            assert received.delivery_tag is not None
            confirmed = max(confirmed, received.delivery_tag)
        else:
            answers.append((received.name, describe(received)))
    answers.append(confirmed)
    return answers


WHOLE = replay([SESSION])


def test_session_whole_is_answered() -> None:
    kinds = [answer[0] for answer in WHOLE[:-1] if isinstance(answer, tuple)]
    assert kinds.count("Basic.Deliver") == 7
    assert kinds[-2:] == ["Channel.CloseOk", "Connection.CloseOk"]
    assert WHOLE[-1] == 7


def test_session_byte_by_byte_is_the_same() -> None:
    pieces = [SESSION[at : at + 1] for at in range(len(SESSION))]
    assert sorted(map(repr, replay(pieces))) == sorted(map(repr, WHOLE))


@settings(max_examples=100)
@given(st.lists(st.integers(1, len(SESSION) - 1), max_size=20))
def test_session_cut_anywhere_is_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(set(cuts)), len(SESSION)]
    pieces = [SESSION[a:b] for a, b in itertools.pairwise(edges)]
    assert sorted(map(repr, replay(pieces))) == sorted(map(repr, WHOLE))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(0, len(SESSION) - 1), st.binary(min_size=1, max_size=6)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, len(SESSION)),
)
def test_mutated_session_closes_its_connection_at_most(
    changes: list[tuple[int, bytes]], step: int
) -> None:
    data = bytearray(SESSION)
    for at, change in changes:
        data[at : at + len(change)] = change
    server = Server()
    bystander = server.open()
    bystander.declare("bystander")
    client = server.connect()
    for at in range(0, len(data), step):
        client.feed(bytes(data[at : at + step]))
    client.lose()
    bystander.publish("bystander", b"alive")
    assert bystander.get("bystander") == b"alive"


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_garbage_in_an_open_connection_never_raises(data: bytes) -> None:
    server = Server()
    client = server.open()
    client.feed(data)
    client.take()
    client.lose()


@settings(max_examples=200)
@given(
    st.sampled_from([(50, 10), (50, 20), (40, 10), (60, 20), (60, 40), (60, 80)]),
    st.binary(max_size=60),
)
def test_garbage_arguments_never_raise(method: tuple[int, int], arguments: bytes) -> None:
    client = Server().open()
    client.feed(raw(1, 1, struct.pack(">HH", *method) + arguments))
    client.take()
    client.lose()


@pytest.mark.pure
@pytest.mark.parametrize("size", [1_000, 4_000, 16_000, 64_000])
@pytest.mark.parametrize("before", [0, 3])
def test_a_publish_in_small_pieces_is_put_together_once(size: int, before: int) -> None:
    """Also when it is recognised by how it begins."""
    client = Server().open()
    client.declare("q")
    data = publish_frames("q", bytes(size))
    for _ in range(before):
        client.feed(data)
    assert (client.connection.repeats.publish is not None) == (before > 0)
    pieces = [data[at : at + 100] for at in range(0, len(data), 100)]

    def feed() -> None:
        for piece in pieces:
            client.feed(piece)

    # For a head, and for what it announces, of each of its three frames.
    assert calls(AmqpConnection.take_frames, feed) <= 6
    assert [client.get("q") for _ in range(before + 1)] == [bytes(size)] * (before + 1)

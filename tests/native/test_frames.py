"""The codec against the documented bytes, against msgpack's own view, and against damage."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from tests.native import vectors
from tests.support.native import frame
from tests.support.steps import calls
from trivium.common.pieces import Pieces
from trivium.messages.message import Address, Message, Properties
from trivium.observability.metrics import ProtocolMetrics
from trivium_native.client import group_operations, operations
from trivium_native.client.operations import Operation
from trivium_native.client.protocol import decode_delivery
from trivium_native.errors import FrameTooLarge, Malformed, NativeError
from trivium_native.server.deliveries import write_delivery
from trivium_native.values import (
    AssignedPartition,
    Joined,
    Membership,
    OffsetCommit,
    Part,
    Producer,
    Publication,
    Settlement,
)
from trivium_native.wire import errors, frames
from trivium_native.wire.frames import (
    LARGE_FRAME,
    FrameReader,
    encode_frame,
    pack,
    unpack,
    write_head,
)
from trivium_native.wire.messages import (
    BATCH_HEAD,
    CREDIT,
    TX_SETTLE,
    decode_fetched,
    decode_message,
    encode_fetched,
    encode_message,
)
from trivium_native.wire.properties import NativeCodec, decode_properties, encode_properties

FRAMES = vectors.frames()


def delivery(
    subscription: int, flags: int, message: Message, requeues: int, tag: int, now_ms: int
) -> bytes:
    writer = BytesWriter()
    size = write_delivery(
        writer, ProtocolMetrics(), subscription, flags, message, requeues, tag, now_ms
    )
    assert size == len(writer)
    return writer.getvalue() + message.payload


def sent(operation: Operation[Any], correlation: int) -> bytes:
    return encode_frame(operation.kind, correlation, operation.body + operation.behind)


PUBLICATION = Publication(payload=b"hi", routing_key=b"a.b")
KEYED = Publication(payload=b"hi", routing_key=b"a.b", properties=Properties(key=b"k"))
DELIVERED = Message(
    1, Address("amq.topic", b"a.b"), b"", b"hi", 1, True, 1700000000123, 1700000000123 + 60_000
)
BATCH = vectors.record_batch()
MEMBER = Membership("g", "m", 1)
COMMIT = OffsetCommit("g", "s", {0: 44}, membership=MEMBER)

ENCODED = {
    "HELLO": encode_frame(
        frames.HELLO,
        1,
        pack({"protocol": "trivium", "version": 1, "heartbeat": 30, "client": "doc"}),
    ),
    "PUBLISH": sent(operations.publish([PUBLICATION]), 7),
    "PUBLISH-PRODUCER": sent(operations.publish([KEYED], Producer("p1", 2, 300)), 7),
    "CONFIRM": encode_frame(frames.CONFIRM, 7, (3).to_bytes(4, "little")),
    "DELIVER": delivery(1, 1, DELIVERED, 2, 5, 1700000000123),
    "ACK": sent(operations.settle(1, 1, 5), 0),
    "NACK": sent(operations.give_back(1, 6, 6, True), 0),
    "FETCH": sent(operations.fetch("s", 0, 42, max_wait=0.5), 9),
    "FETCHED": b"".join(encode_fetched(9, 0, 44, [(42, BATCH)], 42)),
    "BATCH": encode_frame(frames.BATCH, 0, BATCH_HEAD.pack(1, 0, 42) + BATCH),
    "CREDIT": encode_frame(frames.CREDIT, 0, CREDIT.pack(1, 1024)),
    "JOIN": sent(group_operations.join("g", "m", ["s"], session_timeout=30.0), 9),
    "JOINED": encode_frame(
        frames.OK,
        9,
        pack(
            {
                "member": "m",
                "generation": 1,
                "heartbeat_ms": 10_000,
                "members": ["m"],
                "assigned": [["s", "5f", [[0, 42], [1, None]]]],
                "streams": [["s", "5f", 2]],
            }
        ),
    ),
    "HEARTBEAT": sent(
        group_operations.heartbeat(MEMBER, [AssignedPartition("s", "5f", 0, 42)]), 10
    ),
    "REBALANCE": encode_frame(frames.REBALANCE, 0, pack({"group": "g", "member": "m"})),
    "COMMIT": sent(group_operations.commit_offsets(COMMIT), 11),
    "TX": sent(
        operations.transaction(
            [PUBLICATION.encode()],
            [Settlement(1, TX_SETTLE, 1, 5)],
            [COMMIT],
            Producer("p1", 2, 300),
        ),
        12,
    ),
    "STAGE": sent(operations.stage("p1", 301, "a", 0, [PUBLICATION]), 13),
    "TX-PARTS": sent(
        operations.transaction([], [], [], Producer("p1", 2, 301), [Part("a", 1)]), 14
    ),
    "TX-LEFT": encode_frame(frames.OK, 14, pack({"left": 1})),
    "ERROR": encode_frame(frames.ERROR, 9, pack([301, "no stream 's'"])),
}


@pytest.mark.parametrize("name", sorted(ENCODED))
def test_the_documented_frame_is_what_the_encoder_writes(name: str) -> None:
    assert ENCODED[name].hex(" ") == FRAMES[name].hex(" ")


def test_the_documented_frames_are_read() -> None:
    reader = FrameReader(1 << 20)
    reader.feed(b"".join(FRAMES.values()))
    found = [(frame.kind, frame.correlation) for frame in reader.frames()]
    assert found == [(data[4], int.from_bytes(data[5:13], "little")) for data in FRAMES.values()]


def test_the_documented_answer_about_parts_is_read() -> None:
    (frame,) = cut_one(FRAMES["TX-LEFT"])
    operation = operations.transaction([], [], [], Producer("p1", 2, 301), [Part("a", 1)])
    assert operation.result(frame) == 1


def test_the_documented_delivery_is_read() -> None:
    delivery = decode_delivery(FRAMES["DELIVER"][13:])
    assert (delivery.subscription, delivery.tag, delivery.returns) == (1, 5, 2)
    assert (delivery.is_redelivered, delivery.lifetime) == (True, 60_000)
    assert (delivery.exchange, delivery.routing_key) == ("amq.topic", b"a.b")
    assert (delivery.payload, delivery.mode, delivery.persistent) == (b"hi", 1, True)
    assert (delivery.protocol, delivery.timestamp) == (1, 1700000000123)


def test_the_documented_reply_to_join_is_read() -> None:
    (frame,) = cut_one(FRAMES["JOINED"])
    assert group_operations.join("g", "m", ["s"]).result(frame) == Joined(
        MEMBER,
        10.0,
        [AssignedPartition("s", "5f", 0, 42), AssignedPartition("s", "5f", 1, None)],
        ["m"],
        streams={("s", "5f"): 2},
    )


def cut_one(data: bytes) -> list[frames.Frame]:
    reader = FrameReader(1 << 20)
    reader.feed(data)
    return reader.frames()


def test_the_documented_properties_are_written_and_read() -> None:
    properties = Properties(content_type="text/plain", headers=[("n", 1)])
    assert encode_properties(properties) == vectors.properties()
    found = decode_properties(vectors.properties())
    assert (found.content_type, found.headers) == ("text/plain", [("n", 1)])


def test_frame_types_are_the_documented_ones() -> None:
    documented = vectors.frame_types()
    assert documented == {name: getattr(frames, name) for name in documented}
    assert len(documented) == 45


def test_error_codes_are_the_documented_ones() -> None:
    kinds = {
        kind.code: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, NativeError) and not kind.__subclasses__()
    }
    # What the other side is not told.
    del kinds[0]
    words = {
        code: re.sub(r"(?<!^)([A-Z])", r" \1", kind.__name__).lower()
        for code, kind in kinds.items()
    }
    assert words == vectors.error_codes()


def test_an_unknown_error_code_is_known_by_its_blame() -> None:
    bases = {
        199: errors.ProtocolError,
        299: errors.IdentityError,
        399: errors.RequestError,
        499: errors.TryLater,
        599: errors.BrokerError,
        7: errors.BrokerError,
    }
    for code, base in bases.items():
        assert type(errors.error_of(code, "x")) is base


@given(st.data())
def test_deliveries_have_the_documented_layout(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 2**32 - 1))
    flags = data.draw(st.integers(0, 1))
    requeues = data.draw(st.integers(0, 70_000))
    tag = data.draw(st.integers(0, 2**63 - 1))
    now_ms = data.draw(st.integers(0, 2**40))
    message = Message(
        data.draw(st.sampled_from((1, 3, 200))),
        Address(data.draw(st.text(max_size=5)), data.draw(st.binary(max_size=300))),
        b"",
        data.draw(st.binary(max_size=40)),
        data.draw(st.integers(0, 2)),
        data.draw(st.booleans()),
        data.draw(st.integers(0, 2**40)),
        data.draw(st.just(0) | st.integers(1, 2**41)),
        data.draw(st.booleans()),
        data.draw(st.integers(0, 255)),
    )
    exchange = message.address.exchange.encode()
    key = message.address.key
    body = struct.pack(
        "<IBBHQqqBBHHHII",
        *(number, flags, message.protocol, min(requeues, 0xFFFF), tag, message.timestamp),
        max(message.expires - now_ms, 1) if message.expires else 0,
        message.mode | 4 * message.persistent | 8 * message.retain,
        *(message.priority, len(exchange), len(key), 0, 0, len(message.payload)),
    )
    expected = frame(frames.DELIVER, 0, body + exchange + key + message.payload)
    assert delivery(number, flags, message, requeues, tag, now_ms) == expected


@given(st.integers(0, 255), st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 10))
def test_a_head_that_is_written_is_that_of_the_frame(
    kind: int, correlation: int, size: int
) -> None:
    writer = BytesWriter()
    write_head(writer, kind, correlation, size)
    assert writer.getvalue() == struct.pack("<IBQ", 9 + size, kind, correlation)


# Cutting


def cut(reader: FrameReader, pieces: list[bytes]) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    for piece in pieces:
        reader.feed(piece)
        found += [(f.kind, f.correlation, f.body) for f in reader.frames()]
    return found


some_frames = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=8
)


@given(some_frames, st.integers(1, 60))
def test_frames_are_the_same_however_they_arrive(
    sent_frames: list[tuple[int, int, bytes]], size: int
) -> None:
    data = b"".join(encode_frame(*frame) for frame in sent_frames)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert cut(FrameReader(1 << 10), pieces) == sent_frames
    assert cut(FrameReader(1 << 10), [data]) == sent_frames


BODIES = st.sampled_from([0, 3, LARGE_FRAME - 9, LARGE_FRAME - 10, LARGE_FRAME + 5000])


@given(
    st.lists(st.tuples(st.integers(0, 255), BODIES), max_size=5),
    st.lists(st.sampled_from([1, 12, 13, 4095, 4096, 30_000, 70_000]), min_size=1, max_size=4),
)
def test_large_frames_are_the_same_however_they_arrive(
    sent_frames: list[tuple[int, int]], sizes: list[int]
) -> None:
    expected = [(kind, kind << 40, bytes([kind]) * size) for kind, size in sent_frames]
    data = b"".join(encode_frame(*each) for each in expected)
    reader = FrameReader(1 << 20)
    found: list[tuple[int, int, bytes]] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)] if turn < 50 else 50_000
        reader.feed(data[at : at + size])
        at += size
        turn += 1
        while frames_found := reader.frames():
            found += [(each.kind, each.correlation, each.body) for each in frames_found]
    assert found == expected


def test_a_length_below_9_is_malformed() -> None:
    reader = FrameReader(100)
    reader.feed(b"\x08\x00\x00\x00" + bytes(9))
    with pytest.raises(Malformed):
        reader.frames()


def test_a_length_above_the_limit_is_refused_by_its_head_alone() -> None:
    reader = FrameReader(100)
    reader.feed(encode_frame(1, 1, bytes(91)))
    assert len(reader.frames()) == 1
    reader.feed(encode_frame(1, 1, bytes(92))[:13])
    with pytest.raises(FrameTooLarge):
        reader.frames()


def test_the_frames_before_a_bad_one_are_read() -> None:
    reader = FrameReader(100)
    reader.feed(encode_frame(1, 1) + encode_frame(2, 2) + bytes(13))
    assert [frame.kind for frame in reader.frames()] == [1, 2]
    for _ in range(2):
        with pytest.raises(Malformed):
            reader.frames()


# msgpack bodies


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x01\x02",
        b"\xa1\xff",
        b"\xd4\x01\x00",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 17 + b"\x90",
        b"\x91" * 100_000 + b"\x90",
        b"\x81\x90\x01",
        msgpack.packb(bytes(frames.MAX_FIELDS_BYTES)),
    ],
    ids=[
        "nothing",
        "never used",
        "cut",
        "trailing",
        "not utf-8",
        "extension",
        "timestamp",
        "huge array",
        "deep",
        "very deep",
        "array as key",
        "long",
    ],
)
def test_a_bad_msgpack_body_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(body)


def test_nesting_up_to_the_limit_is_read() -> None:
    assert msgpack.packb(unpack(b"\x91" * 16 + b"\x01")) == b"\x91" * 16 + b"\x01"


header_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
some_properties = st.builds(
    Properties,
    content_type=st.none() | st.text(max_size=9),
    content_encoding=st.none() | st.text(max_size=9),
    correlation_id=st.none() | st.binary(max_size=9),
    reply_to=st.none() | st.text(max_size=9),
    reply_to_topic=st.none() | st.binary(max_size=9),
    expiration=st.none() | st.integers(0, 1 << 53),
    message_id=st.none() | st.text(max_size=9),
    timestamp=st.none() | st.integers(0, (1 << 63) - 1),
    type_=st.none() | st.text(max_size=9),
    user_id=st.none() | st.text(max_size=9),
    app_id=st.none() | st.text(max_size=9),
    payload_is_text=st.booleans(),
    key=st.none() | st.binary(max_size=9),
    headers=st.lists(st.tuples(st.text(max_size=5), header_values), max_size=4),
)


def only_key(header: bytes) -> bytes | None:
    """The key of properties that hold nothing else."""
    at = NativeCodec().key_at(header)
    return header[at:] if at else None


@given(some_properties)
def test_properties_come_back_and_are_what_msgpack_says(properties: Properties) -> None:
    encoded = encode_properties(properties)
    assert vectors.fields_of(decode_properties(encoded)) == vectors.fields_of(properties)
    only = vectors.fields_of(properties) == vectors.fields_of(Properties(key=properties.key))
    assert only_key(encoded) == (properties.key if only else None)
    if encoded:
        fields = msgpack.unpackb(encoded, strict_map_key=False)
        assert fields.get(1) == properties.content_type
        assert fields.get(6) == properties.expiration
        assert fields.get(13) == properties.key
        assert [tuple(pair) for pair in fields.get(14, [])] == properties.headers
    else:
        assert vectors.fields_of(properties) == vectors.fields_of(Properties())


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {15: -1},
        {15: "1"},
        {15: (100 * 365 * 86_400_000) + 1},
        {16: -1},
        {16: 65_536},
        {17: 1},
        {"1": "x"},
        {True: "x"},
        {1: b"bytes"},
        {3: "text"},
        {6: -1},
        {6: (1 << 53) + 1},
        {6: True},
        {8: 1.5},
        {8: -1},
        {12: 1},
        {13: bytes(65_536)},
        {14: {}},
        {14: [["n"]]},
        {14: [["n", 1, 2]]},
        {14: [[1, 1]]},
        {14: [["n", {1: 2}]]},
        {14: [["n", 1]] * 1025},
    ],
)
def test_properties_that_break_a_rule_are_invalid(fields: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        decode_properties(msgpack.packb(fields))


# Damage: only the protocol's own errors may escape


READERS: dict[str, Callable[[bytes], object]] = {
    "DELIVER": decode_delivery,
    "FETCHED": decode_fetched,
    "ERROR": unpack,
    "HELLO": unpack,
    "PUBLISH": lambda body: decode_message(body, 8),
}


@given(st.sampled_from(sorted(READERS)), st.data())
def test_a_mutated_body_gives_only_errors_of_the_protocol(name: str, data: st.DataObject) -> None:
    body = bytearray(FRAMES[name][13:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    try:
        READERS[name](bytes(body))
    except (NativeError, UnicodeDecodeError):
        pass


def test_entries_have_16_bit_names() -> None:
    with pytest.raises(ValueError):
        encode_message(0, 0, b"", bytes(65_536), b"", b"")
    with pytest.raises(ValueError):
        encode_message(0, 0, bytes(65_536), b"", b"", b"")


@pytest.mark.pure
@pytest.mark.parametrize("size", [1_000, 16_000, 256_000])
def test_a_frame_in_small_pieces_is_put_together_once(size: int) -> None:
    reader = FrameReader(1 << 20)
    data = encode_frame(16, 1, bytes(size))
    pieces = [data[at : at + 100] for at in range(0, len(data), 100)]
    assert calls(Pieces.take, lambda: cut(reader, pieces)) <= 3


# The vectors as data


def test_the_vectors_as_data_are_those_of_the_text() -> None:
    told = vectors.told_frames()
    assert {name: data for name, data in FRAMES.items() if name in told} == told
    assert vectors.properties() == vectors.told_properties()
    assert vectors.record_batch() == vectors.told_record_batch()


@pytest.mark.parametrize(("name", "kind", "correlation", "body"), vectors.meanings())
def test_a_vector_says_what_its_frame_means(
    name: str, kind: int, correlation: int, body: object
) -> None:
    frame = struct.pack("<BQ", kind, correlation) + msgpack.packb(body, use_bin_type=True)
    assert vectors.frames()[name] == struct.pack("<I", len(frame)) + frame


@pytest.mark.parametrize("size", [0, 1, 11, 12, 255, 256, 65_535])
def test_a_key_alone_is_read_as_it_is_packed(size: int) -> None:
    key = b"k" * size
    packed = msgpack.packb({13: key})
    assert encode_properties(Properties(key=key)) == packed
    assert only_key(packed) == key == decode_properties(packed).key
    for other in (packed[:-1], packed + b"\0", b"\x82" + packed[1:], b"\x81\x0c" + packed[2:]):
        assert only_key(other) is None
    assert only_key(msgpack.packb({13: "k" * size})) is None

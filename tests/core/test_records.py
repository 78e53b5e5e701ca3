"""Record batches against the documented bytes, against Arrow, and damaged."""

from __future__ import annotations

import re
import struct
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.messages.large import LARGE_PAYLOAD, Content, LargePayload
from trivium.messages.message import (
    PROTOCOL_AMQP,
    PROTOCOL_MQTT,
    Address,
    Message,
    Properties,
    PropertyCodec,
    register_codec,
)
from trivium.streams.record_layout import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from trivium.streams.records import (
    CONSTANT,
    CONTENT_TYPE,
    EXCHANGE,
    EXPIRES,
    FLAGS,
    HEADERS,
    KEY,
    KEYED,
    NULLABLE,
    OFFSET_DELTA,
    PAYLOAD,
    PLAIN,
    PLAIN_MESSAGE,
    PRIORITY,
    PROTOCOL,
    ROUTING_KEY,
    SOURCE_HEADER,
    TIMESTAMP,
    BatchError,
    Column,
    Described,
    RecordBatch,
    batch_count,
    batch_span,
    describe,
    encode_batch,
    encode_unstamped,
    encode_unstamped_run,
    header_bytes,
    stamped,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "record-batch.md"


def documented_vector() -> bytes:
    block = DOCUMENT.read_text().split("```record-batch\n")[1].split("```")[0]
    vector = bytearray()
    for line in block.splitlines():
        found = re.match(r"((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})(?:   |$)", line)
        assert found is not None, line
        vector += bytes.fromhex(found[1])
    return bytes(vector)


def make(
    payload: Content = b"x",
    key: bytes = b"a.b",
    header: bytes = b"",
    timestamp: int = 1000,
    **changes: Any,
) -> Message:
    fields: dict[str, Any] = {"protocol": PROTOCOL_MQTT, "mode": 1, "persistent": True}
    fields |= changes
    return Message(
        address=Address("amq.topic", key),
        header=header,
        payload=payload,
        timestamp=timestamp,
        **fields,
    )


def test_the_documented_vector_is_what_the_encoder_writes() -> None:
    messages = [
        make(b"hi", b"a.b", timestamp=1700000000123),
        make(b"you", b"a", timestamp=1700000000124),
    ]
    batch = encode_batch(messages, [PLAIN_MESSAGE, Described(b"k", None, [], [])])
    assert batch == documented_vector()


def test_the_checksum_is_crc_32_of_header_and_body() -> None:
    vector = documented_vector()
    (checksum,) = struct.unpack_from("<I", vector, 44)
    assert checksum == zlib.crc32(vector[:44] + vector[48:])


def test_a_single_plain_message_needs_no_column_for_what_it_does_not_have() -> None:
    view = RecordBatch(encode_batch([make(mode=0, persistent=False, protocol=0)]))
    assert sorted(view.columns) == [TIMESTAMP, EXCHANGE, ROUTING_KEY, PAYLOAD]


def test_columns_are_aligned_to_8_bytes() -> None:
    described = [
        Described(None, b"text/plain", [b"n"], [b"value"]),
        Described(b"k", None, [], []),
        Described(b"", b"", [b"a", b"bb"], [b"", b"v"]),
    ]
    messages = [make(b"1" * n, b"k" * n, b"h" * n, n, expires=n) for n in range(3)]
    view = RecordBatch(encode_batch(messages, described))
    positions = []
    for column in view.columns.values():
        for part in (column, column.names, column.values):
            if part is not None:
                places = (part.validity_at, part.offsets_at, part.data_at, part.lists_at)
                positions += [at for at in places if at >= 0]
    assert len(positions) > 15
    assert [at for at in positions if at % 8] == []


def test_constant_columns_are_stored_once() -> None:
    header = b"same header"
    shown = Described(b"k", b"text/plain", [b"n"], [b"v"])
    messages = [make(b"%d" % n, header=header, timestamp=5, priority=3) for n in range(100)]
    view = RecordBatch(encode_batch(messages, [shown] * 100))
    kinds = {id_: column.kind for id_, column in view.columns.items()}
    assert kinds.pop(PAYLOAD) == PLAIN
    assert set(kinds.values()) == {CONSTANT}
    assert view.headers(99) == [(b"n", b"v")]
    assert view.binary(CONTENT_TYPE, 99) == b"text/plain"
    assert view.integer(PRIORITY, 99) == 3


@pytest.mark.parametrize("keys", [[b"a", b"b", b"a"], [b"", b""], [b"", None]])
def test_keys_are_as_they_were(keys: list[bytes | None]) -> None:
    described = [Described(key, None, [], []) for key in keys]
    view = RecordBatch(encode_batch([make() for _ in keys], described))
    assert [view.binary(KEY, row) for row in range(view.count)] == keys


class LastBytes(PropertyCodec):
    """A protocol whose headers are so many bytes, and a key."""

    def __init__(self, size: int) -> None:
        self.size = size

    def decode(self, header: bytes) -> Properties:
        return Properties(key=header[self.size :])

    def key_at(self, header: bytes) -> int:
        return self.size


@pytest.mark.parametrize(
    "headers",
    [
        [(90, b"1a"), (90, b"1bb"), (90, b"1")],
        [(90, b"1a")] * 3,
        [(90, b"1a"), (91, b"12bb"), (90, b"1a")],
        [(90, b"1a"), None, (91, b"12a")],
    ],
)
def test_keys_that_lie_in_headers_make_the_same_batch(
    headers: list[tuple[int, bytes] | None],
) -> None:
    register_codec(90, LastBytes(1))
    register_codec(91, LastBytes(2))
    messages = [make() if each is None else make(b"x", b"a", each[1]) for each in headers]
    for message, each in zip(messages, headers, strict=True):
        message.protocol = PROTOCOL_MQTT if each is None else each[0]
    taken_out = [
        Described(b"", b"t", [], []) if each is None else describe(message.properties())
        for message, each in zip(messages, headers, strict=True)
    ]
    left_in = [
        described if each is None else KEYED
        for described, each in zip(taken_out, headers, strict=True)
    ]
    assert encode_batch(messages, left_in) == encode_batch(messages, taken_out)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("é", "é".encode()),
        (b"\x00\xff", b"\x00\xff"),
        (None, b""),
        (True, b"true"),
        (False, b"false"),
        (-7, b"-7"),
        (1.5, b"1.5"),
        ([1, "a", None], b'[1,"a",null]'),
        ({"b": b"\xff"}, b'{"b":"/w=="}'),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), b"2026-01-02T03:04:05+00:00"),
        ([datetime(2026, 1, 2, tzinfo=UTC)], b'["2026-01-02T00:00:00+00:00"]'),
    ],
)
def test_header_values_as_bytes(value: object, expected: bytes) -> None:
    assert header_bytes(value) == expected


def test_the_key_is_the_property_else_the_x_key_header() -> None:
    headers: list[tuple[str, object]] = [("x-key", "from header")]
    assert describe(Properties(headers=headers)).key == b"from header"
    assert describe(Properties(key=b"own", headers=headers)).key == b"own"
    assert describe(Properties()).key is None


def test_a_batch_gives_the_messages_back() -> None:
    messages = [
        make(b"1", b"", b"", 1, mode=0, persistent=False),
        make(b"", b"\xff.y", b"\x01h", 2, protocol=PROTOCOL_AMQP, retain=True, priority=9),
        make(b"3" * 300, b"z", b"", 3, mode=2, expires=77),
    ]
    view = RecordBatch(encode_batch(messages, [PLAIN_MESSAGE] * 3))
    for row, message in enumerate(messages):
        assert view.message(row).record() == message.record()


# Against Arrow


def test_a_large_payload_is_not_copied_out_of_its_batch() -> None:
    payloads = [b"small", bytes(LARGE_PAYLOAD), b""]
    sent = [make(payload=payload) for payload in payloads]
    sent.append(make(payload=LargePayload([bytes(LARGE_PAYLOAD), b"end"])))
    view = RecordBatch(encode_batch(sent))
    got = [view.message(row) for row in range(view.count)]
    assert [message.payload for message in got] == [message.payload for message in sent]
    for message in (got[1], got[3]):
        assert isinstance(message.content, LargePayload)
        (part,) = message.content.parts
        assert isinstance(part, memoryview)
        assert part.obj is view.data


def test_a_batch_of_large_payloads_is_that_of_the_payloads_in_one() -> None:
    data = bytes(range(256)) * (LARGE_PAYLOAD // 256)
    whole = [make(payload=b"x"), make(payload=data)]
    parted = [make(payload=b"x"), make(payload=LargePayload([data[:1000], data[1000:]]))]
    for codec in (CODEC_NONE, CODEC_ZSTD):
        assert encode_batch(parted, codec=codec) == encode_batch(whole, codec=codec)


def arrow_column(view: RecordBatch, column: Column, kind: pa.DataType) -> pa.Array:
    buffer = pa.py_buffer(view.data)
    rows = column.rows
    validity = None
    if column.kind == NULLABLE:
        validity = buffer.slice(column.validity_at, (rows + 7) // 8)
    if column.offsets_at < 0:
        return pa.Array.from_buffers(
            kind, rows, [None, buffer.slice(column.data_at, column.data_size)]
        )
    return pa.Array.from_buffers(
        kind,
        rows,
        [
            validity,
            buffer.slice(column.offsets_at, 4 * (rows + 1)),
            buffer.slice(column.data_at, column.data_size),
        ],
        column.nulls,
    )


def arrow_values(view: RecordBatch, id_: int, kind: pa.DataType, default: object) -> list[object]:
    column = view.columns.get(id_)
    if column is None:
        return [default] * view.count
    array = arrow_column(view, column, kind)
    array.validate(full=True)
    values: list[object] = array.to_pylist()
    return values * view.count if column.kind == CONSTANT else values


def arrow_headers(view: RecordBatch) -> list[list[tuple[str, bytes]]]:
    column = view.columns.get(HEADERS)
    if column is None:
        return [[] for _ in range(view.count)]
    assert column.names is not None
    assert column.values is not None
    pairs = pa.StructArray.from_arrays(
        [
            arrow_column(view, column.names, pa.string()),
            arrow_column(view, column.values, pa.binary()),
        ],
        ["name", "value"],
    )
    lists = pa.Array.from_buffers(
        pa.list_(pairs.type),
        column.rows,
        [None, pa.py_buffer(view.data).slice(column.lists_at, 4 * (column.rows + 1))],
        children=[pairs],
    )
    lists.validate(full=True)
    rows = [[(pair["name"], pair["value"]) for pair in row] for row in lists.to_pylist()]
    return rows * view.count if column.kind == CONSTANT else rows


shown = st.builds(
    lambda key, content_type, pairs: Described(
        key, content_type, [name for name, _ in pairs], [value for _, value in pairs]
    ),
    st.none() | st.binary(max_size=9),
    st.none() | st.text(max_size=5).map(lambda text: text.encode("utf-8", "replace")),
    st.lists(
        st.tuples(st.sampled_from([b"n", b"name", "é".encode()]), st.binary(max_size=12)),
        max_size=3,
    ),
)
messages_and_columns = st.lists(
    st.tuples(
        st.builds(
            Message,
            st.integers(0, 255),
            st.builds(Address, st.sampled_from(["", "amq.topic", "é"]), st.binary(max_size=9)),
            st.binary(max_size=9),
            st.binary(max_size=20),
            st.integers(0, 2),
            st.booleans(),
            st.integers(0, 2**62),
            st.integers(0, 2**62),
            st.booleans(),
            st.integers(0, 255),
        ),
        shown,
    ),
    min_size=1,
    max_size=20,
)


@given(messages_and_columns)
def test_arrow_sees_what_the_messages_say(rows: list[tuple[Message, Described]]) -> None:
    messages = [message for message, _ in rows]
    described = [columns for _, columns in rows]
    view = RecordBatch(encode_batch(messages, described))
    assert view.count == len(rows)
    expected: list[tuple[int, pa.DataType, object, list[object]]] = [
        (TIMESTAMP, pa.int64(), 0, [m.timestamp for m in messages]),
        (KEY, pa.binary(), None, [d.key for d in described]),
        (EXCHANGE, pa.string(), "", [m.address.exchange for m in messages]),
        (ROUTING_KEY, pa.binary(), b"", [m.address.key for m in messages]),
        (PAYLOAD, pa.binary(), b"", [m.payload for m in messages]),
        (CONTENT_TYPE, pa.binary(), None, [d.content_type for d in described]),
        (SOURCE_HEADER, pa.binary(), b"", [m.header for m in messages]),
        (PROTOCOL, pa.uint8(), 0, [m.protocol for m in messages]),
        (
            FLAGS,
            pa.uint8(),
            0,
            [m.mode + 4 * m.persistent + 8 * m.retain for m in messages],
        ),
        (PRIORITY, pa.uint8(), 0, [m.priority for m in messages]),
        (EXPIRES, pa.int64(), 0, [m.expires for m in messages]),
    ]
    for id_, kind, default, values in expected:
        assert arrow_values(view, id_, kind, default) == values, id_
    pairs = [
        [(name.decode(), value) for name, value in zip(columns.names, columns.values, strict=True)]
        for columns in described
    ]
    assert arrow_headers(view) == pairs
    for row, (message, columns) in enumerate(rows):
        assert view.message(row).record() == message.record()
        assert view.binary(KEY, row) == columns.key
        assert view.headers(row) == list(zip(columns.names, columns.values, strict=True))


@given(messages_and_columns, st.sampled_from([CODEC_NONE, CODEC_LZ4, CODEC_ZSTD]), st.booleans())
def test_a_batch_that_is_stamped_later_is_that_of_messages_that_came_then(
    rows: list[tuple[Message, Described]], codec: int, is_long: bool
) -> None:
    messages = [message for message, _ in rows] * (100 if is_long else 1)
    described = [columns for _, columns in rows] * (100 if is_long else 1)
    batch = stamped(encode_unstamped(messages, described), 1234, codec)
    for message in messages:
        message.timestamp = 1234
    assert batch == encode_batch(messages, described, codec)


@given(messages_and_columns, st.lists(st.binary(max_size=9), min_size=1, max_size=20))
def test_a_run_makes_the_same_batch_as_its_messages(
    rows: list[tuple[Message, Described]], payloads: list[bytes]
) -> None:
    message, described = rows[0]
    run = [
        Message(
            message.protocol,
            message.address,
            message.header,
            payload,
            message.mode,
            message.persistent,
            message.timestamp,
            message.expires,
            message.retain,
            message.priority,
        )
        for payload in payloads
    ]
    assert encode_unstamped_run(run[0], described, payloads) == encode_unstamped(
        run, None if described is PLAIN_MESSAGE else [described] * len(run)
    )


def test_an_unstamped_batch_is_a_batch_but_for_its_checksum() -> None:
    batch = encode_unstamped([make(b"1"), make(b"2", timestamp=2000)], None)
    assert batch[44:48] == bytes(4)
    view = RecordBatch(batch, verify=False)
    assert (view.min_timestamp, view.max_timestamp) == (-1, -1)
    assert view.columns[TIMESTAMP].kind == CONSTANT
    # Also where it lies among other bytes.
    apart = memoryview(b"before" + batch)[6:]
    assert stamped(apart, 5, CODEC_NONE) == stamped(batch, 5, CODEC_NONE)


# Damage


@pytest.fixture(scope="module")
def batch() -> bytes:
    described = [Described(b"k", None, [b"n"], [b"v"]), PLAIN_MESSAGE]
    return encode_batch([make(b"1"), make(b"2", b"c")], described)


def test_a_cut_batch_is_refused(batch: bytes) -> None:
    for size in range(len(batch)):
        with pytest.raises(BatchError):
            RecordBatch(batch[:size])


def test_trailing_bytes_are_refused(batch: bytes) -> None:
    with pytest.raises(BatchError):
        RecordBatch(batch + b"\x00")


def test_every_flipped_bit_is_refused(batch: bytes) -> None:
    for bit in range(len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BatchError):
            RecordBatch(bytes(damaged))


@settings(max_examples=300)
@given(st.data())
def test_a_forged_batch_with_a_right_checksum_gives_only_batch_errors(data: st.DataObject) -> None:
    described = [Described(b"k", b"t", [b"n"], [b"v"]), PLAIN_MESSAGE]
    forged = bytearray(encode_batch([make(b"1"), make(b"2", b"c")], described))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(forged) - 1))
        forged[at] = data.draw(st.sampled_from([0, 1, 2, 7, 127, 128, 255]))
    struct.pack_into("<I", forged, 44, zlib.crc32(bytes(forged[:44] + forged[48:])))
    try:
        view = RecordBatch(bytes(forged))
    except BatchError:
        return
    for row in range(min(view.count, 3)):
        try:
            view.message(row)
            view.headers(row)
            view.binary(KEY, row)
        except BatchError:
            pass


@pytest.mark.parametrize("offset", [-1, 3, 0x7FFF_FFFF])
def test_a_value_outside_its_column_is_refused(offset: int) -> None:
    batch = bytearray(encode_batch([make(b"1"), make(b"2")]))
    payloads = RecordBatch(bytes(batch)).columns[PAYLOAD]
    struct.pack_into("<i", batch, payloads.offsets_at + 4, offset)
    view = RecordBatch(bytes(batch), False)
    for row in range(2):
        with pytest.raises(BatchError):
            view.binary(PAYLOAD, row)


# Sparse


def sparse(*deltas: int, span: int = 10, codec: int = 0) -> bytes:
    made = [make(b"%d" % delta) for delta in deltas]
    return encode_batch(made, None, codec, list(deltas), span)


@pytest.mark.parametrize("codec", [0, 1, 2])
def test_a_sparse_batch_says_which_offsets_it_has(codec: int) -> None:
    deltas = [0, 2, 3, 9] if codec == 0 else list(range(0, 400, 2))
    batch = sparse(*deltas, span=500, codec=codec)
    assert (batch[5], struct.unpack_from("<I", batch, 20)) == (codec, (1,))
    view = RecordBatch(batch)
    assert (view.count, view.span) == (len(deltas), 500)
    assert (batch_count(batch), batch_span(batch)) == (len(deltas), 500)
    assert [view.delta(row) for row in range(view.count)] == deltas
    for delta in range(-1, 12):
        row = view.row_from(delta)
        assert row == sum(1 for each in deltas if each < delta)


def test_a_batch_that_is_not_sparse_spans_its_records() -> None:
    batch = encode_batch([make(b"0"), make(b"1")])
    view = RecordBatch(batch)
    assert (view.span, batch_span(batch)) == (2, 2)
    assert [view.delta(0), view.delta(1)] == [0, 1]
    assert [view.row_from(delta) for delta in (-5, 0, 1, 2, 9)] == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("deltas", "span"), [((0, 0), 10), ((3, 2), 10), ((-1, 2), 10), ((0, 10), 10), ((0, 1), 1)]
)
def test_offsets_that_do_not_rise_within_the_span_are_refused(
    deltas: tuple[int, ...], span: int
) -> None:
    with pytest.raises(BatchError, match="offsets"):
        RecordBatch(sparse(*deltas, span=span))


def test_a_sparse_batch_without_its_column_is_refused() -> None:
    batch = bytearray(encode_batch([make(b"0"), make(b"1")]))
    struct.pack_into("<I", batch, 20, 1)
    struct.pack_into("<I", batch, 40, 10)
    struct.pack_into("<I", batch, 44, zlib.crc32(bytes(batch[:44] + batch[48:])))
    with pytest.raises(BatchError, match="offsets"):
        RecordBatch(bytes(batch))


def test_unknown_flags_are_refused() -> None:
    batch = bytearray(encode_batch([make(b"0")]))
    struct.pack_into("<I", batch, 20, 2)
    struct.pack_into("<I", batch, 44, zlib.crc32(bytes(batch[:44] + batch[48:])))
    with pytest.raises(BatchError, match="flags 2"):
        RecordBatch(bytes(batch))


@settings(max_examples=200)
@given(st.data())
def test_a_forged_sparse_batch_gives_only_batch_errors(data: st.DataObject) -> None:
    forged = bytearray(sparse(0, 2, 3, 9))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(forged) - 1))
        forged[at] = data.draw(st.sampled_from([0, 1, 2, 7, 127, 128, 255]))
    struct.pack_into("<I", forged, 44, zlib.crc32(bytes(forged[:44] + forged[48:])))
    try:
        view = RecordBatch(bytes(forged))
    except BatchError:
        return
    deltas = [view.delta(row) for row in range(min(view.count, 5))]
    assert deltas == sorted(set(deltas))


def test_the_offsets_are_an_arrow_array() -> None:
    batch = sparse(0, 2, 3, 9)
    column = RecordBatch(batch).columns[OFFSET_DELTA]
    buffers = [None, pa.py_buffer(batch).slice(column.data_at, column.data_size)]
    assert pa.Array.from_buffers(pa.int64(), 4, buffers).to_pylist() == [0, 2, 3, 9]


def test_the_documented_sparse_columns_are_what_is_written() -> None:
    block = DOCUMENT.read_text().split("```sparse-batch\n")[1].split("```")[0]
    batch = sparse(0, 2, 3, 9)
    for line in block.splitlines():
        position, data, *_ = line.split("  ", 2)
        expected = bytes.fromhex(data)
        assert batch[int(position) :].startswith(expected), line

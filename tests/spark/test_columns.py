"""Record batches as Arrow: the same values, by column, whatever form each column was stored in."""

import datetime
from collections.abc import Sequence
from itertools import pairwise
from struct import pack, pack_into
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from trivium.messages.message import (
    PROTOCOL_AMQP,
    PROTOCOL_MQTT,
    PROTOCOL_NATIVE,
    PROTOCOL_NEUTRAL,
    Address,
    Message,
    Properties,
)
from trivium.messages.neutral import encode_neutral
from trivium.streams.record_layout import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from trivium.streams.records import (
    KEY,
    PAYLOAD,
    Described,
    RecordBatch,
    encode_batch,
)
from trivium_native.arrow import COLUMNS, TYPES, BatchConverter, topic_text
from trivium_native.wire.properties import encode_properties
from trivium_spark.columns import arrow_schema
from trivium_spark.errors import OptionError

MORE_COLUMNS = [name for name in TYPES if name not in COLUMNS]
ALL = pa.schema([pa.field(name, TYPES[name]) for name in COLUMNS])
NOON = 1_700_000_000_123


def message(
    payload: bytes = b"x", key: bytes = b"a.b", protocol: int = 1, at: int = NOON
) -> Message:
    return Message(protocol, Address("amq.topic", key), b"", payload, 1, True, at)


def described(
    key: bytes | None = None, content_type: bytes | None = None, *headers: tuple[bytes, bytes]
) -> Described:
    return Described(key, content_type, [n for n, _ in headers], [v for _, v in headers])


def convert(
    messages: list[Message],
    shown: list[Described] | None = None,
    base: int = 0,
    start: int = 0,
    end: int = 1 << 60,
    schema: pa.Schema = ALL,
    codec: int = CODEC_NONE,
    cuts: Sequence[int] = (),
) -> list[dict[str, object]]:
    """The rows of messages that are in one batch, or in several that begin at ``cuts`` too."""
    places = sorted({0, len(messages), *(cut % len(messages) for cut in cuts)})
    batches = [
        (
            base + first,
            RecordBatch(
                encode_batch(
                    messages[first:after], None if shown is None else shown[first:after], codec
                )
            ),
        )
        for first, after in pairwise(places)
    ]
    made = BatchConverter("orders", 3, schema).convert(batches, start, end)
    made.validate(full=True)
    assert made.schema.equals(schema)
    rows: list[dict[str, object]] = made.to_pylist()
    return rows


@pytest.mark.parametrize("codec", [CODEC_LZ4, CODEC_ZSTD])
def test_a_compressed_batch_gives_the_same_rows(codec: int) -> None:
    messages = [message(b"%d" % n + bytes(100)) for n in range(50)]
    shown = [described(b"k", b"text/plain", (b"n", b"%d" % n)) for n in range(50)]
    assert convert(messages, shown, start=3, codec=codec) == convert(messages, shown, start=3)


def test_all_columns_of_one_record() -> None:
    rows = convert(
        [message(b"\x00\xffpay", protocol=2)],
        [described(b"k", b"text/plain", (b"n", b"1"), (b"n", b"2"))],
        base=42,
    )
    assert rows == [
        {
            "key": b"k",
            "value": b"\x00\xffpay",
            "topic": "a/b",
            "partition": 3,
            "offset": 42,
            "timestamp": datetime.datetime.fromtimestamp(NOON / 1000, datetime.UTC),
            "headers": [{"key": "n", "value": b"1"}, {"key": "n", "value": b"2"}],
            "stream": "orders",
            "protocol": "amqp",
            "content_type": "text/plain",
        }
    ]


MORE = pa.schema([pa.field(name, TYPES[name]) for name in MORE_COLUMNS[:6]])


@pytest.mark.parametrize("cuts", [(), (1, 2, 3)])
def test_more_columns_are_there_for_who_asks(cuts: tuple[int, ...]) -> None:
    messages = [
        Message(1, Address("amq.topic", b"a.b"), b"", b"", 0, False, NOON),
        Message(2, Address("", b"q"), b"", b"", 1, True, NOON, NOON + 500, False, 7),
        Message(3, Address("ü", b"\xff"), b"", b"", 2, True, NOON, 0, True, 255),
        Message(3, Address("ü", b""), b"", b"", 2, True, NOON + 1, NOON + 1, True, 255),
    ]
    rows = [tuple(row.values()) for row in convert(messages, schema=MORE, cuts=cuts)]
    assert rows == [
        ("amq.topic", b"a.b", "at-most-once", 0, None, False),
        ("", b"q", "at-least-once", 7, 500, False),
        ("ü", b"\xff", "exactly-once", 255, None, True),
        ("ü", b"", "exactly-once", 255, 0, True),
    ]


SAID = Properties(
    content_encoding="gzip",
    correlation_id=b"\x00c",
    reply_to="q",
    reply_to_topic=b"a.b",
    message_id="m",
    timestamp=1_700_000_000,
    type_="t",
    user_id="u",
    app_id="app",
)
PUBLISHER = pa.schema([pa.field(name, TYPES[name]) for name in MORE_COLUMNS[7:]])


@pytest.mark.parametrize("cuts", [(), (1, 2, 3, 4)])
def test_what_publishers_said_is_there_whatever_their_protocol(cuts: tuple[int, ...]) -> None:
    # MQTT-3.3.2.3.6 and MQTT-3.3.2.3.5; AMQP 0-9-1, 4.2.6.1
    mqtt = b"\x09\x00\x02\x00c" + b"\x08\x00\x03a/b"
    texts = [b"gzip", b"c", b"q", b"m"], [b"t", b"u", b"app"]
    before, after = (b"".join(bytes((len(text),)) + text for text in part) for part in texts)
    amqp = b"\x46\xf8" + before + pack(">q", 1_700_000_000) + after
    messages = [
        Message(0, Address("", b"s"), b"", b"", 1, True, NOON),
        Message(PROTOCOL_NATIVE, Address("", b"s"), encode_properties(SAID), b"", 1, True, NOON),
        Message(PROTOCOL_MQTT, Address("", b"s"), mqtt, b"", 1, True, NOON),
        Message(PROTOCOL_NEUTRAL, Address("", b"s"), encode_neutral(SAID), b"", 1, True, NOON),
        Message(PROTOCOL_AMQP, Address("", b"s"), amqp, b"", 1, True, NOON),
    ]
    at = datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    everything = ("gzip", b"\x00c", "q", "a/b", "m", at, "t", "u", "app")
    shown = [described()] * len(messages)
    rows = [tuple(row.values()) for row in convert(messages, shown, schema=PUBLISHER, cuts=cuts)]
    assert rows == [
        (None,) * 9,
        everything,
        (None, b"\x00c", None, "a/b", *(None,) * 5),
        everything,
        ("gzip", b"c", "q", None, "m", at, "t", "u", "app"),
    ]


def test_user_properties_are_headers_by_name() -> None:
    shown = [
        described(None, None, (b"a", b"1"), (b"b", b"2"), (b"a", b"3")),
        described(),
        described(None, None, (b"a", b"\xff")),
    ]
    schema = pa.schema([pa.field("user_properties", pa.map_(pa.string(), pa.string()))])
    for rows in (convert([message()] * 3, shown, schema=schema, cuts=(1,)),):
        assert [row["user_properties"] for row in rows] == [
            [("b", "2"), ("a", "3")],
            [],
            [("a", "\N{REPLACEMENT CHARACTER}")],
        ]
    assert convert([message()], schema=schema) == [{"user_properties": []}]


def test_more_columns_have_their_types() -> None:
    assert arrow_schema(from_arrow_schema(MORE)) == MORE


def test_absent_columns_are_null_or_empty() -> None:
    (row,) = convert([message(b"")])
    assert row["key"] is None
    assert row["content_type"] is None
    assert row["headers"] == []
    assert row["value"] == b""


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [
        (0, 1000, [100, 101, 102, 103, 104]),
        (100, 105, [100, 101, 102, 103, 104]),
        (102, 1000, [102, 103, 104]),
        (0, 103, [100, 101, 102]),
        (101, 104, [101, 102, 103]),
        (104, 105, [104]),
    ],
)
def test_batch_is_cut_to_the_range(start: int, end: int, offsets: list[int]) -> None:
    rows = convert(
        [message(b"%d" % n, at=NOON + n) for n in range(5)],
        [described(b"%d" % n, b"t", *[(b"h", b"%d" % n)] * n) for n in range(5)],
        base=100,
        start=start,
        end=end,
    )
    assert [row["offset"] for row in rows] == offsets
    assert [row["value"] for row in rows] == [b"%d" % (n - 100) for n in offsets]
    assert [row["key"] for row in rows] == [b"%d" % (n - 100) for n in offsets]
    assert [len(row["headers"]) for row in rows] == [n - 100 for n in offsets]  # type: ignore[arg-type]


_rows = st.lists(
    st.tuples(
        st.sampled_from([b"", b"a", b"a.b", b"a/c", b"\xff", "é.日".encode()]),
        st.binary(max_size=20),
        st.none() | st.binary(max_size=3),
        st.none() | st.sampled_from([b"", b"text/plain", b"application/json"]),
        st.lists(
            st.tuples(st.sampled_from([b"h", "ü".encode()]), st.binary(max_size=3)), max_size=2
        ),
        st.sampled_from([0, 1, 2, 3, 64, 255]),
        st.integers(0, 4_102_444_800_000),
    ),
    min_size=1,
    max_size=20,
)


@given(_rows, st.lists(st.integers(0, 19), max_size=5))
def test_every_form_of_every_column_gives_the_values_back(
    rows: list[
        tuple[bytes, bytes, bytes | None, bytes | None, list[tuple[bytes, bytes]], int, int]
    ],
    cuts: list[int],
) -> None:
    made = convert(
        [message(row[1], row[0], row[5], row[6]) for row in rows],
        [described(row[2], row[3], *row[4]) for row in rows],
        cuts=cuts,
    )
    names = {0: None, 1: "mqtt", 2: "amqp", 3: "native", 64: "64", 255: "255"}
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    for offset, (row, found) in enumerate(zip(rows, made, strict=True)):
        assert found == {
            "key": row[2],
            "value": row[1],
            "topic": topic_text(row[0]),
            "partition": 3,
            "offset": offset,
            "timestamp": epoch + datetime.timedelta(milliseconds=row[6]),
            "headers": [{"key": n.decode(), "value": v} for n, v in row[4]],
            "stream": "orders",
            "protocol": names[row[5]],
            "content_type": None if row[3] is None else row[3].decode(),
        }


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        (b"a.b", "a/b"),
        (b"a/b.c", "a.b/c"),
        ("é.日".encode(), "é/日"),
        (b"..", "//"),
        (b"a.#", "a/%23"),
        (b"", ""),
        (b"a.\xff", "a.\ufffd"),
    ],
)
def test_topic_is_the_mqtt_form_or_else_the_key(key: bytes, topic: str) -> None:
    assert topic_text(key) == topic


def test_text_that_is_not_utf8_is_replaced() -> None:
    (row,) = convert([message()], [described(None, b"\xff", (b"\xfe", b"\xfe"))])
    assert row["content_type"] == "\ufffd"
    assert row["headers"] == [{"key": "\ufffd", "value": b"\xfe"}]


def test_time_beyond_what_microseconds_express_is_no_error() -> None:
    rows = convert([message(at=1 << 62), message(b"y", at=NOON)])
    assert rows[1]["value"] == b"y"


@pytest.mark.parametrize("column", [KEY, PAYLOAD])
@pytest.mark.parametrize("offsets", [[-5], [1 << 30], [2_000_000_000, -2_000_000_000]])
@pytest.mark.parametrize("others", [0, 1])
def test_damaged_offsets_are_refused(column: int, offsets: list[int], others: int) -> None:
    """A batch whose checksum is right may still come from a publisher that made it by hand."""
    shown = [described(b"k%d" % n if n else None) for n in range(4)]
    data = bytearray(encode_batch([message(b"abc%d" % n) for n in range(4)], shown))
    good = RecordBatch(bytes(data))
    at = good.columns[column].offsets_at + 4
    pack_into(f"<{len(offsets)}i", data, at, *offsets)
    pack_into("<I", data, 44, crc32(data[48:], crc32(data[:44])))
    batches = [(0, good)] * others + [(4 * others, RecordBatch(bytes(data)))]
    with pytest.raises(pa.ArrowInvalid):
        BatchConverter("orders", 0, ALL).convert(batches, 0, 8)


def test_query_may_select_columns() -> None:
    schema = StructType().add("topic", "string").add("value", "binary")
    assert convert([message(b"v")], schema=arrow_schema(schema)) == [
        {"topic": "a/b", "value": b"v"}
    ]


@pytest.mark.parametrize(("name", "kind"), [("payload", "binary"), ("value", "string")])
def test_column_that_there_is_not(name: str, kind: str) -> None:
    with pytest.raises(OptionError, match=f"column {name} {kind} is not one of: key binary"):
        arrow_schema(StructType().add(name, kind))

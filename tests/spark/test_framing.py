"""Rows become the messages that the client would have made of them one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from trivium.messages.message import Properties
from trivium.messages.topics import key_of
from trivium_native.values import Publication
from trivium_native.wire.messages import FramedMessage, decode_message
from trivium_native.wire.properties import MAX_HEADERS, decode_properties
from trivium_spark import framing
from trivium_spark.errors import OptionError
from trivium_spark.framing import RowFramer
from trivium_spark.options import WriteOptions, parse_write_options

_PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

ARROW = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.string(),
    "exchange": pa.string(),
    "headers": _PAIRS,
    "content_type": pa.string(),
    "content_encoding": pa.string(),
    "correlation_id": pa.binary(),
    "reply_to": pa.string(),
    "reply_to_topic": pa.string(),
    "partition": pa.int32(),
    "publisher_timestamp": pa.timestamp("us", "UTC"),
    "expiration": pa.int64(),
    "message_id": pa.string(),
    "type": pa.string(),
    "app_id": pa.string(),
    "delivery_mode": pa.string(),
    "priority": pa.int32(),
    "retain": pa.bool_(),
}


def schema_of(batch: pa.RecordBatch) -> StructType:
    return from_arrow_schema(batch.schema)


def options(**given: str) -> WriteOptions:
    return parse_write_options({"url": "trivium://h", **given}, is_streaming=False)


def messages(*batches: pa.RecordBatch, **given: str) -> list[FramedMessage]:
    """What the rows became, request by request."""
    framer = RowFramer(options(**given), schema_of(batches[0]))
    found: list[FramedMessage] = []
    for request in framer.requests(iter(batches), lambda _: 4):
        data, at = bytes(request.data), 0
        for _ in range(request.count):
            message, at = decode_message(data, at)
            found.append(message)
        assert at == len(data)
    return found


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(each, ARROW[name]) for name, each in columns.items()})


FIELDS = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type_", "app_id", "key", "headers"),
    *("reply_to_topic", "partition", "timestamp"),
)


def shown(message: FramedMessage) -> tuple[Any, ...]:
    properties = decode_properties(message.properties)
    fields = [getattr(properties, name) for name in FIELDS]
    place = (message.exchange, message.key)
    return message.flags, message.priority, place, fields, message.payload


def texts(longest: int) -> st.SearchStrategy[str]:
    return st.text(max_size=longest) | st.sampled_from(["", "x" * 31, "x" * 32, "x" * 256])


ROWS = st.fixed_dictionaries(
    {
        "value": st.binary(max_size=50),
        "key": st.none() | st.binary(max_size=300),
        "topic": st.text(min_size=1, max_size=10),
        "exchange": st.none() | st.sampled_from(["amq.topic", "other", ""]),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": texts(20), "value": st.none() | st.binary(max_size=20)}),
            max_size=3,
        ),
        "content_type": st.none() | texts(20),
        "content_encoding": st.none() | texts(20),
        "correlation_id": st.none() | st.binary(max_size=20),
        "reply_to": st.none() | texts(20),
        "reply_to_topic": st.none() | texts(20),
        "partition": st.none() | st.integers(0, 65_535),
        "publisher_timestamp": st.none() | st.integers(0, 1 << 40),
        "expiration": st.none() | st.integers(0, 1 << 53),
        "message_id": st.none() | texts(20),
        "type": st.none() | texts(20),
        "app_id": st.none() | texts(20),
        "delivery_mode": st.none()
        | st.sampled_from(["at-most-once", "at-least-once", "exactly-once"]),
        "priority": st.none() | st.integers(0, 255),
        "retain": st.none() | st.booleans(),
    }
)


def publication(row: dict[str, Any]) -> Publication:
    """The same row by the client."""
    topic, seconds = row["reply_to_topic"], row["publisher_timestamp"]
    modes = {None: 1, "at-most-once": 0, "at-least-once": 1, "exactly-once": 2}
    properties = Properties(
        key=row["key"],
        headers=[(each["key"], each["value"]) for each in row["headers"] or ()],
        content_type=row["content_type"],
        content_encoding=row["content_encoding"],
        correlation_id=row["correlation_id"],
        reply_to=row["reply_to"],
        expiration=row["expiration"],
        message_id=row["message_id"],
        type_=row["type"],
        app_id=row["app_id"],
        partition=row["partition"],
        reply_to_topic=None if topic is None else key_of(topic.encode()),
        timestamp=None if seconds is None else seconds // 1_000_000,
    )
    return Publication(
        payload=row["value"],
        routing_key=key_of(row["topic"].encode()),
        exchange="amq.topic" if row["exchange"] is None else row["exchange"],
        properties=properties,
        mode=modes[row["delivery_mode"]],
        priority=row["priority"] or 0,
        retain=bool(row["retain"]),
    )


@given(st.lists(ROWS, min_size=1, max_size=5), st.integers(0, 4), st.data())
@settings(max_examples=60, deadline=None)
def test_rows_are_the_messages_that_the_client_makes(
    rows: list[dict[str, Any]], before: int, data: st.DataObject
) -> None:
    columns = {name: [row[name] for row in rows] for name in ARROW}
    whole = batch(**columns)
    # A slice has buffers that begin elsewhere.
    part = pa.concat_batches([whole.slice(0, min(before, 1)), whole]).slice(min(before, 1))
    for row, message in zip(rows, messages(part), strict=True):
        expected, _ = decode_message(publication(row).encode(), 0)
        assert shown(message) == shown(expected)


def test_requests_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "REQUEST_BYTES", 1000)
    monkeypatch.setattr(framing, "REQUEST_MESSAGES", 5)
    sizes = [100] * 12 + [3000] + [400] * 6
    framer = RowFramer(options(stream="s"), StructType().add("value", "binary"))
    rows = batch(value=[bytes(size) for size in sizes])
    requests = list(framer.requests(iter([rows]), lambda _: 4))
    assert [request.count for request in requests] == [5, 5, 2, 1, 2, 2, 2]
    assert sum(request.count for request in requests) == len(sizes)


def test_a_large_batch_is_framed_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_FRAMED_BYTES", 1000)
    rows = batch(value=[b"%0300d" % number for number in range(20)])
    assert [int(message.payload) for message in messages(rows, stream="s")] == list(range(20))


def test_rows_go_to_a_queue_or_stream_by_its_name() -> None:
    for place in ("queue", "stream"):
        (message,) = messages(batch(value=[b"x"]), **{place: "näme"})
        assert (message.exchange, message.key) == (b"", "näme".encode())
        # At-least-once, persistent, mandatory.
        assert message.flags == 1 | 4 | 16


def test_the_first_message_of_a_request_finds_out_that_the_place_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "REQUEST_MESSAGES", 2)
    found = messages(batch(value=[b"x"] * 5), queue="q")
    assert [message.flags & 16 for message in found] == [16, 0, 16, 0, 16]


def test_an_exchange_is_published_to_by_routing_key() -> None:
    rows = pa.record_batch({"value": ["x", "y"], "routing_key": ["a.b/c", None]})
    found = messages(rows, exchange="e", topic="d/e")
    assert [(each.exchange, each.key) for each in found] == [(b"e", b"a.b/c"), (b"e", b"d.e")]


def test_routing_keys_go_before_topics() -> None:
    rows = pa.record_batch({"value": ["x", "y"], "routing_key": ["k", None], "topic": ["t", "d/e"]})
    assert [each.key for each in messages(rows)] == [b"k", b"d.e"]


def test_a_partition_that_the_stream_does_not_have_is_named() -> None:
    with pytest.raises(OptionError, match="there is no s/4: stream 's' has 4 partitions"):
        messages(batch(value=[b"x", b"y"], partition=[None, 4]), stream="s")
    assert len(messages(batch(value=[b"x", b"y"], partition=[None, 3]), stream="s")) == 2


def test_user_properties_are_headers_where_there_are_no_others() -> None:
    kind = pa.map_(pa.string(), pa.string())
    columns = {"value": ["x"], "user_properties": pa.array([[("a", "1")]], kind)}
    (message,) = messages(pa.record_batch(columns), queue="q")
    assert decode_properties(message.properties).headers == [("a", "1")]
    headers = pa.array([[{"key": "b", "value": b"2"}]], _PAIRS)
    (message,) = messages(pa.record_batch(columns | {"headers": headers}), queue="q")
    assert decode_properties(message.properties).headers == [("b", b"2")]


def test_headers_are_a_map_too() -> None:
    kind = pa.map_(pa.string(), pa.string())
    headers = pa.array([[("a", "1"), ("ä", None)], None, [], [("b", "x" * 40)]], kind)
    rows = pa.record_batch({"value": ["x"] * 4, "headers": headers}).slice(1)
    shown_headers = [
        decode_properties(each.properties).headers for each in messages(rows, queue="q")
    ]
    assert shown_headers == [[], [], [("b", "x" * 40)]]
    rows = pa.record_batch({"value": ["x"], "headers": headers.slice(0, 1)})
    (message,) = messages(rows, queue="q")
    assert decode_properties(message.properties).headers == [("a", "1"), ("ä", None)]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"value": [None]}, "value is null"),
        ({"value": [b""], "topic": [None]}, "topic is null"),
        ({"value": [b""], "topic": ["x" * 65_536]}, "topic or routing key is longer"),
        ({"value": [b""], "key": [b"x" * 65_536]}, "key is longer"),
        ({"value": [b""], "priority": [256]}, "priority is not from 0 to 255"),
        ({"value": [b""], "priority": [-1]}, "priority is not from 0 to 255"),
        ({"value": [b""], "partition": [-1]}, "partition is not from 0"),
        ({"value": [b""], "partition": [65_536]}, "partition is not from 0"),
        (
            {"value": [b""], "publisher_timestamp": [-1_000_000]},
            "timestamp is not from 0",
        ),
        ({"value": [b""], "expiration": [-1]}, "expiration is not from 0"),
        ({"value": [b""], "expiration": [(1 << 53) + 1]}, "expiration is not from 0"),
        ({"value": [b""], "delivery_mode": ["sometimes"]}, "delivery_mode is not one of"),
        ({"value": [b""], "headers": [[{"key": None, "value": b""}]]}, "has no name"),
        ({"value": [b""], "headers": [[None]]}, "has no name"),
        (
            {"value": [b""], "headers": [[{"key": "a", "value": b""}] * (MAX_HEADERS + 1)]},
            "more than 1024 headers",
        ),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(columns: dict[str, list[Any]], named: str) -> None:
    given = {} if "topic" in columns else {"topic": "t"}
    with pytest.raises(OptionError, match=named):
        messages(batch(**columns), **given)


def test_nothing_is_made_of_no_rows() -> None:
    assert messages(batch(value=[]), queue="q") == []

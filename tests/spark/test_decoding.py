"""Payloads as columns: what is good, what is bad, and what becomes of either."""

from __future__ import annotations

import importlib
import io
import json
import pickle
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from trivium_spark.avro_payloads import spark_type
from trivium_spark.decoding import Decoder, decoded_schema
from trivium_spark.errors import OptionError, TriviumSparkError
from trivium_spark.options import Decoding, parse_read_options

CORRUPT = "_corrupt_record"
PLAIN = StructType().add("topic", StringType())


def decoding(form: str, schema: str | None = None, is_strict: bool = False) -> Decoding:
    return Decoding(form, schema, is_strict, CORRUPT)


def decoded(
    how: Decoding, kind: DataType, *payloads: bytes
) -> tuple[list[Any], list[tuple[int, bytes]]]:
    """What the payloads become, and the bad ones with their places."""
    schema = StructType().add("offset", LongType()).add("data", kind).add(CORRUPT, BinaryType())
    # As it travels to a task.
    decoder: Decoder = pickle.loads(pickle.dumps(Decoder(how, schema)))
    assert (decoder.plain.names, decoder.needed) == (["offset"], ["value", "offset"])
    offsets = pa.array(range(40, 40 + len(payloads)), pa.int64())
    rows = pa.record_batch({"value": pa.array(payloads, pa.binary()), "offset": offsets})
    found = decoder.columns(rows, "s/3 at offset")
    assert found.schema.names == ["offset", "data", CORRUPT]
    assert found.column("offset").to_pylist() == offsets.to_pylist()
    found.validate(full=True)
    corrupt = found.column(CORRUPT).to_pylist()
    return (
        found.column("data").to_pylist(),
        [(place, each) for place, each in enumerate(corrupt) if each is not None],
    )


def struct(**fields: DataType) -> StructType:
    kind = StructType()
    for name, type_ in fields.items():
        kind.add(name, type_)
    return kind


# Text


def test_text_is_utf_8() -> None:
    found = decoded(decoding("text"), StringType(), "é".encode(), b"", b"\xff", b"x")
    assert found == (["é", "", None, "x"], [(2, b"\xff")])
    assert decoded(decoding("text"), StringType(), b"a", b"b") == (["a", "b"], [])


# JSON


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (LongType(), "1", 1),
        (LongType(), str(2**63 - 1), 2**63 - 1),
        (DoubleType(), "1", 1.0),
        (DoubleType(), "1.5e3", 1500.0),
        (StringType(), '"\\u00e9\\n"', "é\n"),
        (StringType(), "null", None),
        (DateType(), '"2024-01-02"', date(2024, 1, 2)),
        (TimestampType(), '"2024-01-02T03:04:05+02:00"', datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)),
        (TimestampNTZType(), '"2024-01-02T03:04:05"', datetime(2024, 1, 2, 3, 4, 5)),
        (DecimalType(5, 2), "1.25", Decimal("1.25")),
        (ArrayType(IntegerType()), "[1, null]", [1, None]),
        (MapType(StringType(), LongType()), '{"k": 1}', [("k", 1)]),
        (struct(x=ByteType()), '{"x": 7, "y": []}', {"x": 7}),
        (BinaryType(), '"AAE="', b"\x00\x01"),
    ],
)
def test_json_has_these_types(kind: DataType, text: str, expected: object) -> None:
    payload = b' {"a": %s, "b": {}}\n' % text.encode()
    assert decoded(decoding("json"), struct(a=kind), payload) == ([{"a": expected}], [])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LongType(), "1.5"),
        (LongType(), '"1"'),
        (LongType(), "true"),
        (LongType(), str(2**63)),
        (ByteType(), "128"),
        (DoubleType(), "NaN"),
        (StringType(), "1"),
        (StringType(), '"a\nb"'),
        (StringType(), '"\\ud800"'),
        (DateType(), '"yesterday"'),
        (TimestampType(), '"2024-01-02T03:04:05"'),
        (DecimalType(5, 2), "1.255"),
        (DecimalType(5, 2), "12345"),
        (ArrayType(StringType()), '"ab"'),
        (struct(x=LongType()), "[1]"),
    ],
)
def test_json_of_another_type_is_bad_and_nothing_else_is(kind: DataType, text: str) -> None:
    payload = b'{"a": %s}' % text.encode()
    found = decoded(decoding("json"), struct(a=kind), b"{}", payload, b'{"a": null}')
    assert found == ([{"a": None}, None, {"a": None}], [(1, payload)])


@pytest.mark.parametrize(
    "payload", [b"{", b"{}{}", b"[{}]", b"1", b"null", b'{"a": 1}, "b": 2', b"[" * 100_000, b"\xff"]
)
def test_what_is_not_one_object_is_bad(payload: bytes) -> None:
    found = decoded(decoding("json"), struct(a=LongType()), payload, b'{"a": 1}')
    assert found == ([None, {"a": 1}], [(0, payload)])


def test_an_empty_payload_is_null_and_not_bad() -> None:
    assert decoded(decoding("json"), struct(a=LongType()), b"", b"{}") == ([None, {"a": None}], [])


def test_a_field_that_may_not_be_null_is_required() -> None:
    kind = StructType().add("a", LongType(), nullable=False)
    payloads = (b"{}", b'{"a": null}', b'{"a": 1}')
    (data, bad) = decoded(decoding("json"), kind, *payloads)
    assert (data, [place for place, _ in bad]) == ([None, None, {"a": 1}], [0, 1])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([b'{"a":"1.25"}', b'{"a":"1.255"}', b"x", b""]), max_size=20))
def test_whether_one_is_bad_does_not_depend_on_the_others(payloads: list[bytes]) -> None:
    kind = struct(a=DecimalType(5, 2))
    data, bad = decoded(decoding("json"), kind, *payloads)
    assert [place for place, _ in bad] == [
        place for place, each in enumerate(payloads) if each in (b'{"a":"1.255"}', b"x")
    ]
    assert [each is not None for each in data] == [each == b'{"a":"1.25"}' for each in payloads]


def test_in_mode_failfast_the_first_bad_one_is_named() -> None:
    schema = struct(data=struct(a=LongType()))
    decoder = Decoder(decoding("json", is_strict=True), schema)
    rows = pa.record_batch({"value": [b"{}", b"x", b"y"], "offset": [5, 6, 7]})
    with pytest.raises(
        TriviumSparkError, match=r"^s/3 at offset 6: the value is no JSON of this schema$"
    ):
        decoder.columns(rows, "s/3 at offset")


# Avro

PLACE = {
    "type": "record",
    "name": "place",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "int"]}],
}
AVRO = {
    "type": "record",
    "name": "reading",
    "namespace": "org.example",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "cost",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A", "B"]}},
        {"name": "places", "type": {"type": "array", "items": PLACE}},
        {"name": "last", "type": "place"},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {"name": "hash", "type": {"type": "fixed", "name": "two", "size": 2}},
    ],
}
READING = {
    "n": 7,
    "city": "Bern",
    "at": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    "on": date(2024, 1, 2),
    "id": "0b3b9b1e-0000-4000-8000-000000000000",
    "cost": Decimal("12.25"),
    "kind": "B",
    "places": [{"x": 1, "y": None}],
    "last": {"x": 2, "y": 3},
    "more": {"a": 1.5},
    "hash": b"ab",
}


def datum(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return data.getvalue()


def test_avro_has_the_types_that_spark_has_for_it() -> None:
    text = json.dumps(AVRO)
    kind = spark_type(text)
    assert kind.simpleString() == (
        "struct<n:bigint,city:string,at:timestamp,on:date,id:string,cost:decimal(6,2),kind:string,"
        "places:array<struct<x:int,y:int>>,last:struct<x:int,y:int>,more:map<string,double>,"
        "hash:binary>"
    )
    assert [field.name for field in kind.fields if field.nullable] == ["city"]
    found, bad = decoded(decoding("avro", text), kind, datum(AVRO, READING))
    assert (found, bad) == ([READING | {"more": [("a", 1.5)]}], [])


def test_what_is_no_datum_is_bad() -> None:
    whole = datum(AVRO, READING)
    broken = [whole[:-1], whole + b"\0", b"\xff" * 12, b"\0"]
    found, bad = decoded(decoding("avro", json.dumps(AVRO)), spark_type(json.dumps(AVRO)), *broken)
    assert (found, [each for _, each in bad]) == ([None] * 4, broken)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_mutated_datum_is_decoded_or_bad(data: st.DataObject) -> None:
    body = bytearray(datum(AVRO, READING))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decoded(decoding("avro", json.dumps(AVRO)), spark_type(json.dumps(AVRO)), bytes(body))


@pytest.mark.parametrize(
    ("field", "named"),
    [
        (["int", "string"], "unions"),
        ("null", "no type of Spark for null"),
        ({"type": "array", "items": "null"}, "no type of Spark for null"),
        (["null", "r"], "recursive"),
        ({"type": "fixed", "name": "f", "size": 0}, "without bytes"),
        ({"type": "record", "name": "e", "fields": []}, "without fields"),
        ("unknown", "no schema of Avro"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "38 digits"),
    ],
)
def test_a_schema_that_spark_has_no_type_for_is_named(field: object, named: str) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": field}]}
    with pytest.raises(OptionError, match=named):
        spark_type(json.dumps(schema))


@pytest.mark.parametrize("schema", ["", "{", '"int"', "[]", '{"type": "record"}', "a int"])
def test_a_schema_that_is_none_of_a_record_is_refused(schema: str) -> None:
    with pytest.raises(OptionError, match="option schema"):
        spark_type(schema)


# Schemas


def test_the_columns_of_a_read_have_the_decoded_ones_behind_them() -> None:
    assert decoded_schema(decoding("json", "a int, `b c` string"), PLAIN) == (
        f"topic string, data struct<a int, `b c` string>, `{CORRUPT}` binary"
    )
    kind = struct(a=LongType())
    found = decoded_schema(decoding("json", kind.json(), is_strict=True), PLAIN)
    assert isinstance(found, StructType)
    assert (found.names[-2:], found["data"].dataType) == (["topic", "data"], kind)
    text = decoded_schema(decoding("text"), PLAIN)
    assert isinstance(text, StructType)
    assert text[CORRUPT].dataType == BinaryType()


@pytest.mark.parametrize(
    ("how", "schema", "named"),
    [
        (decoding("json"), struct(data=StringType()), "a struct"),
        (decoding("json"), struct(data=struct(a=VariantType())), "not decoded to variant"),
        (decoding("text"), struct(data=LongType()), "is a string"),
        (decoding("avro", json.dumps(PLACE)), struct(data=struct(x=LongType())), "of Avro says"),
        (decoding("text"), struct(_corrupt_record=BinaryType()), "needs column data"),
        (
            decoding("text"),
            struct(data=StringType(), _corrupt_record=StringType()),
            "is binary",
        ),
    ],
)
def test_columns_that_decoding_does_not_make_are_refused(
    how: Decoding, schema: StructType, named: str
) -> None:
    with pytest.raises(OptionError, match=named):
        Decoder(how, schema)


def test_what_is_not_selected_is_not_decoded() -> None:
    decoder = Decoder(decoding("json"), struct(topic=StringType()))
    assert (decoder.plain.names, decoder.needed) == (["topic"], [])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"schema": "a int"}, "schema needs option decode"),
        ({"mode": "FAILFAST"}, "mode needs option decode"),
        ({"decode": "xml"}, "text, json or avro"),
        ({"decode": "avro"}, "option schema is required"),
        ({"decode": "text", "schema": "a int"}, "text has none"),
        ({"decode": "json", "mode": "DROPMALFORMED"}, "PERMISSIVE or FAILFAST"),
        ({"decode": "text", "columnNameOfCorruptRecord": "value"}, "value is another column"),
    ],
)
def test_options_that_do_not_go_together_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse_read_options({"url": "trivium://x", "stream": "s", **options}, is_streaming=True)


def test_json_without_a_schema_is_refused_where_spark_asks_for_the_columns() -> None:
    with pytest.raises(OptionError, match="needs option schema"):
        decoded_schema(decoding("json"), PLAIN)
    with pytest.raises(OptionError, match="no schema of Spark"):
        decoded_schema(decoding("json", '{"type": "x"}'), PLAIN)


@pytest.mark.parametrize(
    ("form", "library", "extra"), [("json", "msgspec", "spark"), ("avro", "fastavro", "avro")]
)
def test_a_library_that_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, form: str, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    module = f"trivium_spark.{form}_payloads"
    # That of the package is the one that was imported last.
    before = importlib.import_module(module)
    monkeypatch.setattr(sys.modules["trivium_spark"], f"{form}_payloads", before)
    monkeypatch.delitem(sys.modules, module)
    with pytest.raises(OptionError) as caught:
        importlib.import_module(module)
    assert str(caught.value).startswith(f"option decode = {form}: ")
    assert str(caught.value).endswith(f" (pip install 'trivium[{extra}]')")
    assert "\n" not in str(caught.value)

"""Decoding payloads (option ``decode``): text, JSON and Avro become the column ``data``.

A payload that cannot be decoded is bad: ``data`` is null then, and the payload stands in the column
of the corrupt ones (mode PERMISSIVE), or it ends the query with its place (FAILFAST). An empty
payload is none, as compacted streams have them, and ``data`` is null; only as text it is empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from trivium_spark.errors import OptionError, TriviumSparkError
from trivium_spark.options import Decoding

#: the column of what was decoded
DATA: Final = "data"

#: What Arrow raises for values that a column cannot have.
_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)

#: Decodes one payload. Raises whatever it does for one that is bad.
Decode = Callable[[bytes], Any]


def decoded_schema(decoding: Decoding, plain: StructType) -> str | StructType:
    """The columns of a read, and those of ``decoding``, for Spark. Raises OptionError."""
    corrupt = [] if decoding.is_strict else [(decoding.corrupt_column, BinaryType())]
    schema = decoding.schema
    kind: DataType = StringType()
    if decoding.form == "avro":
        from trivium_spark import avro_payloads

        assert schema is not None
        kind = avro_payloads.spark_type(schema)
    elif decoding.form == "json":
        # A library that is missing is better told before a query starts.
        from trivium_spark import json_payloads  # noqa: F401

        if schema is None:
            raise OptionError("option decode = json needs option schema")
        if not schema.lstrip().startswith("{"):
            # Spark itself reads DDL.
            given = [f"{each.name} {each.dataType.simpleString()}" for each in plain.fields]
            more = [f"`{name}` {kind.simpleString()}" for name, kind in corrupt]
            return ", ".join([*given, f"{DATA} struct<{schema}>", *more])
        try:
            kind = StructType.fromJson(json.loads(schema))
        except Exception as error:
            # Of whatever the text lacks.
            raise OptionError(f"option schema is no schema of Spark: {error!r}") from None
    fields = [StructField(name, kind) for name, kind in [(DATA, kind), *corrupt]]
    return StructType([*plain.fields, *fields])


class Decoder:
    """Makes the columns of decoded payloads. Picklable until it is used.

    Raises OptionError for a schema that ``decoding`` cannot fill.
    """

    def __init__(self, decoding: Decoding, schema: StructType) -> None:
        self._decoding = decoding
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._kind = schema[DATA].dataType if DATA in schema.names else None
        self._decode: Decode | None = None
        corrupt = decoding.corrupt_column
        if corrupt in schema.names:
            if self._kind is None:
                raise OptionError(f"column {corrupt} needs column {DATA}")
            if schema[corrupt].dataType != BinaryType():
                raise OptionError(f"column {corrupt} is binary: the value as it came")
        if self._kind is not None:
            # What is wrong with it is better told by the driver.
            self._made()
        #: the columns that are not decoded
        self.plain = StructType(
            [each for each in schema.fields if each.name not in (DATA, corrupt)]
        )

    @property
    def needed(self) -> list[str]:
        """The columns of records that decoding looks at."""
        return [] if self._kind is None else ["value", "offset"]

    def columns(self, rows: pa.RecordBatch, place: str) -> pa.RecordBatch:
        """The rows with all columns of the schema. ``place`` is where their offsets count.

        Raises TriviumSparkError for a bad payload, in mode FAILFAST.
        """
        found = {name: rows.column(name) for name in self.plain.names}
        if self._kind is not None:
            data, bad = self._decoded(rows.column("value"))
            if bad and self._decoding.is_strict:
                offset = rows.column("offset")[bad[0]].as_py()
                raise TriviumSparkError(f"{place} {offset}: the value is no {self._decoding.what}")
            found[DATA] = data
            if self._decoding.corrupt_column in self._schema.names:
                found[self._decoding.corrupt_column] = _only(rows.column("value"), bad)
        arrays = [found[name] for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _decoded(self, values: pa.Array) -> tuple[pa.Array, list[int]]:
        """The decoded payloads, and which are bad."""
        kind = self._schema.field(DATA).type
        if self._decoding.form == "text":
            return _as_text(values, kind)
        decode = self._decode
        if decode is None:
            decode = self._decode = self._made()
        decoded: list[Any] = []
        bad: list[int] = []
        for index, payload in enumerate(values.to_pylist()):
            try:
                decoded.append(decode(payload) if payload else None)
            except Exception:
                # Whatever a library raises for what others have published.
                decoded.append(None)
                bad.append(index)
        return _array(decoded, kind, bad)

    def _made(self) -> Decode:
        kind = self._kind
        assert kind is not None
        if self._decoding.form == "text":
            if kind != StringType():
                raise OptionError(f"column {DATA} is a string where decode is text")
            return bytes
        if self._decoding.form == "json":
            from trivium_spark import json_payloads

            return json_payloads.decoder(kind)
        from trivium_spark import avro_payloads

        assert self._decoding.schema is not None
        return avro_payloads.decoder(self._decoding.schema, kind)

    def __getstate__(self) -> dict[str, Any]:
        # What libraries have made of a schema does not travel.
        return self.__dict__ | {"_decode": None}


def _as_text(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    try:
        return values.cast(kind), []
    except pa.ArrowInvalid:
        found = [_text_of(each) for each in values.to_pylist()]
        return pa.array(found, kind), [index for index, each in enumerate(found) if each is None]


def _text_of(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _array(values: list[Any], kind: pa.DataType, bad: list[int]) -> tuple[pa.Array, list[int]]:
    """An array of values; those that it cannot have, such as a number too large, are bad too."""
    try:
        return pa.array(values, kind), bad
    except _UNFIT:
        unfit = set(bad)
        _find_unfit(values, kind, 0, len(values), unfit)
        fit = [None if index in unfit else value for index, value in enumerate(values)]
        return pa.array(fit, kind), sorted(unfit)


def _find_unfit(
    values: Sequence[Any], kind: pa.DataType, first: int, after: int, unfit: set[int]
) -> None:
    """Add the places of those values that an array cannot have, by halves."""
    try:
        pa.array(values[first:after], kind)
    except _UNFIT:
        if after - first == 1:
            unfit.add(first)
            return
        middle = (first + after) // 2
        _find_unfit(values, kind, first, middle, unfit)
        _find_unfit(values, kind, middle, after, unfit)


def _only(values: pa.Array, places: list[int]) -> pa.Array:
    """The values at some places, null elsewhere."""
    if not places:
        return pa.nulls(len(values), values.type)
    return pc.if_else(pc.is_in(pa.array(range(len(values))), pa.array(places)), values, None)

"""Avro payloads: one datum each in the binary encoding, without a header, read by fastavro.

The schema is that which the payloads were written with. It has types in Spark as in ``from_avro``;
a recursive one has none, and neither has a union of several types other than null.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from trivium_spark.errors import OptionError

try:
    import fastavro
except ImportError as error:
    raise OptionError(f"option decode = avro: {error} (pip install 'trivium[avro]')") from None

_PRIMITIVE: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_TIMES: Final[dict[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
}
#: A few bytes could stand for an array of millions of them.
_NO_BYTES: Final = "option schema: records without fields and fixed without bytes are not decoded"
#: most digits of a decimal in Spark
_MOST_DIGITS: Final = 38


def spark_type(schema: str) -> StructType:
    """The type of a schema, which is a record's. Raises OptionError."""
    return _Schema(schema).type


def decoder(schema: str, kind: DataType) -> Callable[[bytes], Any]:
    """What decodes payloads of a schema to ``kind``, which must be its type. Raises OptionError."""
    known = _Schema(schema)
    if kind != known.type:
        raise OptionError(
            f"column data {kind.simpleString()} is not what the schema of Avro says:"
            f" {known.type.simpleString()}"
        )
    parsed = known.parsed

    def decode(payload: bytes) -> Any:
        data = io.BytesIO(payload)
        found = fastavro.schemaless_reader(data, parsed, None)
        if data.tell() != len(payload):
            raise ValueError("there are bytes behind it")
        return found

    return decode


class _Schema:
    """A schema that is read once: its type in Spark, and what fastavro makes of it."""

    def __init__(self, text: str) -> None:
        self._named: dict[str, tuple[DataType, str]] = {}
        self._open: set[str] = set()
        try:
            given = json.loads(text)
            # It checks the schema.
            fastavro.parse_schema(given)
        except Exception as error:
            # Also KeyError, and those of its own.
            raise OptionError(f"option schema is no schema of Avro: {error!r}") from None
        kind, plain = self._read(given, "")
        if not isinstance(kind, StructType):
            raise OptionError("option schema: the schema of Avro is not that of a record")
        self.type: StructType = kind
        self.parsed = fastavro.parse_schema(plain)

    def _read(self, given: Any, namespace: str) -> tuple[DataType, Any]:
        """The type of a schema, and the same without those logical types that Spark has not."""
        if isinstance(given, list):
            return self._union(given, namespace)
        if isinstance(given, str):
            given = {"type": given}
        name = given["type"]
        if not isinstance(name, str):
            return self._read(name, namespace)
        if name == "record":
            return self._record(given, namespace)
        if name == "array":
            element, plain = self._read(given["items"], namespace)
            return ArrayType(element, _is_optional(given["items"])), {"type": name, "items": plain}
        if name == "map":
            value, plain = self._read(given["values"], namespace)
            found = MapType(StringType(), value, _is_optional(given["values"]))
            return found, {"type": name, "values": plain}
        if name in _PRIMITIVE:
            return self._simple(given, name, namespace)
        return self._reference(name, namespace)

    def _simple(self, given: dict[str, Any], name: str, namespace: str) -> tuple[DataType, Any]:
        kept = ("type", "name", "size", "symbols")
        plain: dict[str, Any] = {each: given[each] for each in kept if each in given}
        kind = _PRIMITIVE[name]
        if name == "fixed" and given["size"] < 1:
            raise OptionError(_NO_BYTES)
        logical = given.get("logicalType", "")
        if logical == "decimal" and name in ("bytes", "fixed"):
            precision, scale = given.get("precision", 0), given.get("scale", 0)
            if not 0 <= scale <= precision <= _MOST_DIGITS or not precision:
                raise OptionError(f"option schema: decimals have at most {_MOST_DIGITS} digits")
            kind = DecimalType(precision, scale)
            plain |= {"logicalType": logical, "precision": precision, "scale": scale}
        elif (name, logical) in _TIMES:
            kind = _TIMES[name, logical]
            plain["logicalType"] = logical
        if "name" in given:
            plain["name"] = self._name(given, namespace)
            self._named[plain["name"]] = kind, plain["name"]
        return kind, plain

    def _record(self, given: dict[str, Any], namespace: str) -> tuple[DataType, Any]:
        full = self._name(given, namespace)
        within = full.rpartition(".")[0]
        self._open.add(full)
        kind = StructType()
        fields: list[Any] = []
        for field in given["fields"]:
            type_, plain = self._read(field["type"], within)
            kind.add(field["name"], type_, _is_optional(field["type"]))
            fields.append({"name": field["name"], "type": plain})
        if not fields:
            raise OptionError(_NO_BYTES)
        self._open.remove(full)
        self._named[full] = kind, full
        return kind, {"type": "record", "name": full, "fields": fields}

    def _union(self, given: list[Any], namespace: str) -> tuple[DataType, Any]:
        others = [each for each in given if each != "null"]
        if len(others) != 1 or len(given) > 2:
            raise OptionError(
                "option schema: of unions there are only those of null and one other type in Spark"
            )
        kind, plain = self._read(others[0], namespace)
        return kind, [each if each == "null" else plain for each in given]

    def _reference(self, name: str, namespace: str) -> tuple[DataType, Any]:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in self._open or name in self._open:
            raise OptionError(f"option schema: {name} is recursive, which Spark has no type for")
        found = self._named.get(full, self._named.get(name))
        if found is None:
            raise OptionError(f"option schema: there is no type of Spark for {name}")
        return found

    def _name(self, given: dict[str, Any], namespace: str) -> str:
        name = str(given["name"])
        space = given.get("namespace", namespace)
        return name if "." in name or not space else f"{space}.{name}"


def _is_optional(given: Any) -> bool:
    return isinstance(given, list) and "null" in given

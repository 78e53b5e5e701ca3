"""JSON payloads: one object each (RFC 8259), by the types of a Spark schema, read by msgspec.

A field that is absent is null, one that the schema does not have is skipped, and one of another
type makes the payload bad: nothing is converted that JSON does not mean.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trivium_spark.errors import OptionError

try:
    import msgspec
except ImportError as error:
    raise OptionError(f"option decode = json: {error} (pip install 'trivium[spark]')") from None


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


_KINDS: Final[dict[type[DataType], Any]] = {
    BooleanType: bool,
    ByteType: _whole(8),
    ShortType: _whole(16),
    IntegerType: _whole(32),
    LongType: _whole(64),
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    StringType: str,
    # In base64.
    BinaryType: bytes,
    DateType: date,
    TimestampType: Annotated[datetime, msgspec.Meta(tz=True)],
    TimestampNTZType: Annotated[datetime, msgspec.Meta(tz=False)],
}


#: the same as ever, of types that are made while the program runs
_LIST: Final[Any] = list
_MAP: Final[Any] = dict
_RECORD: Final[Any] = TypedDict


def decoder(kind: DataType) -> Callable[[bytes], Any]:
    """What decodes payloads of a type, a struct. Raises OptionError for one that JSON has not."""
    if not isinstance(kind, StructType):
        raise OptionError("a schema of JSON is that of an object: a struct")
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(_struct(kind)).decode
    return decode


def _struct(kind: StructType) -> Any:
    fields: dict[str, Any] = {}
    for field in kind.fields:
        type_ = _type(field.dataType)
        fields[field.name] = NotRequired[type_ | None] if field.nullable else Required[type_]
    return _RECORD("Payload", fields)


def _type(kind: DataType) -> Any:
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        element = _type(kind.elementType)
        return _LIST[element | None if kind.containsNull else element]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        value = _type(kind.valueType)
        return _MAP[str, value | None if kind.valueContainsNull else value]
    found = _KINDS.get(type(kind))
    if found is None:
        raise OptionError(f"JSON is not decoded to {kind.simpleString()}")
    return found

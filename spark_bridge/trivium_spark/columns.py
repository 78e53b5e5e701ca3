"""The columns of a read, as Spark has them; ``trivium_native.arrow`` makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from trivium_native import arrow
from trivium_spark.errors import OptionError

_KINDS: Final = {
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.timestamp("us", tz="UTC"): "timestamp",
    arrow.TYPES["headers"]: "array<struct<key:string,value:binary>>",
    arrow.TYPES["user_properties"]: "map<string,string>",
}

#: the types of the columns of a queue's messages
QUEUE_TYPES: Final = {
    **{
        name: kind
        for name, kind in arrow.TYPES.items()
        if name not in ("partition", "offset", "stream")
    },
    "queue": pa.string(),
    "redelivered": pa.bool_(),
}
#: those that are read unless others are named
QUEUE_COLUMNS: Final = (
    *(name for name in arrow.COLUMNS if name in QUEUE_TYPES),
    *("queue", "redelivered"),
)


def default_schema(names: Sequence[str], types: Mapping[str, pa.DataType]) -> StructType:
    """These columns as Spark has them."""
    return from_arrow_schema(pa.schema([(name, types[name]) for name in names]))


def arrow_schema(schema: StructType, types: Mapping[str, pa.DataType] = arrow.TYPES) -> pa.Schema:
    """The Arrow schema for a query's schema: the columns that it selects by name.

    Raises OptionError for a column that there is not, or that has another type.
    """
    kinds = {name: _KINDS[kind] for name, kind in types.items()}
    fields: list[pa.Field] = []
    for field in schema.fields:
        if field.dataType.simpleString() != kinds.get(field.name):
            raise OptionError(
                f"column {field.name} {field.dataType.simpleString()} is not one of:"
                f" {', '.join(f'{name} {kind}' for name, kind in kinds.items())}"
            )
        fields.append(pa.field(field.name, types[field.name], field.nullable))
    return pa.schema(fields)

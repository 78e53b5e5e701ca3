"""The columns of a read, as Spark has them; ``trivium_native.arrow`` makes them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
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

#: name and Spark type of all columns of a read, in order
COLUMNS: Final = tuple((name, _KINDS[arrow.TYPES[name]]) for name in arrow.COLUMNS)

#: the same as Spark reads it (DDL)
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)

#: columns that there are for a query that asks for them
MORE_COLUMNS: Final = tuple(
    (name, _KINDS[kind]) for name, kind in arrow.TYPES.items() if name not in arrow.COLUMNS
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema for a query's schema: the columns that it selects by name.

    Raises OptionError for a column that there is not, or that has another type.
    """
    kinds = dict(COLUMNS + MORE_COLUMNS)
    fields: list[pa.Field] = []
    for field in schema.fields:
        if field.dataType.simpleString() != kinds.get(field.name):
            raise OptionError(
                f"column {field.name} {field.dataType.simpleString()} is not one of:"
                f" {', '.join(f'{name} {kind}' for name, kind in kinds.items())}"
            )
        fields.append(pa.field(field.name, arrow.TYPES[field.name], field.nullable))
    return pa.schema(fields)

"""The layout of record batches in numbers: sizes, column ids, kinds. See docs/record-batch.md."""

from __future__ import annotations

from struct import Struct
from typing import Final

MAGIC: Final = b"TRVB"
VERSION: Final = 1

#: codec of the body
CODEC_NONE: Final = 0
CODEC_LZ4: Final = 1
CODEC_ZSTD: Final = 2

HEADER_SIZE: Final = 48
#: magic, version, codec, columns, records, body size, stored size, flags, min and max timestamp,
#: span
HEADER: Final = Struct("<4sBBHIIIIqqI")
CHECKSUM: Final = Struct("<I")
CHECKSUM_AT: Final = 44
#: column id, kind, reserved, position in the body, size, nulls
ENTRY: Final = Struct("<BBHIII")
#: a timestamp
LONG: Final = Struct("<q")

COUNT_AT: Final = 8
FLAGS_AT: Final = 20
MAX_TIMESTAMP_AT: Final = 32
SPAN_AT: Final = 40

#: flag of a batch that lacks some of the offsets it spans: column OFFSET_DELTA says which it has
SPARSE: Final = 1
MAX_SPAN: Final = 0xFFFF_FFFF

# Column ids.
TIMESTAMP: Final = 1
KEY: Final = 2
EXCHANGE: Final = 3
ROUTING_KEY: Final = 4
PAYLOAD: Final = 5
CONTENT_TYPE: Final = 6
HEADERS: Final = 7
SOURCE_HEADER: Final = 8
PROTOCOL: Final = 9
FLAGS: Final = 10
PRIORITY: Final = 11
EXPIRES: Final = 12
OFFSET_DELTA: Final = 13

# Column kinds. A column that is not in the batch has its default in every row.
CONSTANT: Final = 1
PLAIN: Final = 2
NULLABLE: Final = 3

# Bits of the FLAGS column.
MODE_MASK: Final = 3
PERSISTENT: Final = 4
RETAIN: Final = 8

#: bytes per row of the fixed-width columns, by column id
WIDTHS: Final = {TIMESTAMP: 8, PROTOCOL: 1, FLAGS: 1, PRIORITY: 1, EXPIRES: 8, OFFSET_DELTA: 8}

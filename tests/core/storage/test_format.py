"""Segments and catalog are, byte by byte, what docs/storage-format.md says."""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any

import pytest

from tests.support.simulated import Host, SimulatedDisk

SEGMENT = "data/segments/0000000000000001.segment"


@pytest.fixture(scope="module")
def disk() -> SimulatedDisk:
    """The example of the document, section "Segments"."""
    host = Host()
    dense = host.storage.log("q")
    dense.append(b"hello", 1, b"n")
    dense.append(b"hi")
    sparse = host.storage.log("s")
    sparse.append(b"abc", 3)
    sparse.skip(1)
    sparse.append(b"")
    host.storage.table("t").put(b"k", b"vv")
    host.checkpoint()
    dense.remove(1, 1)
    host.checkpoint()
    return host.disk.copy()


def with_checksum(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(4, "little")


def test_segment_file(disk: SimulatedDisk) -> None:
    dense = (
        # name, record sizes, note sizes, records, notes
        bytes.fromhex("0100 71 05000000 02000000 01000000 00000000") + b"hello" + b"hi" + b"n"
    )
    sparse = (
        bytes.fromhex(
            # name, record sizes, first offsets, ends
            "0100 73 03000000 00000000"
            "0000000000000000 0400000000000000 0300000000000000 0500000000000000"
        )
        + b"abc"
    )
    header = with_checksum(
        b"TRIVSEGM" + bytes.fromhex("01000000 00000000 0100000000000000 00000000")
    )
    dense_head = (
        # log 1, offsets 0 to 2, 2 records, with name and notes, length of the body
        b"BLCK"
        + bytes.fromhex("01000000 0000000000000000 0200000000000000 02000000 12000000")
        + len(dense).to_bytes(8, "little")
        + zlib.crc32(dense).to_bytes(4, "little")
    )
    sparse_head = (
        b"BLCK"
        + bytes.fromhex("02000000 0000000000000000 0500000000000000 02000000 11000000")
        + len(sparse).to_bytes(8, "little")
        + zlib.crc32(sparse).to_bytes(4, "little")
    )
    blocks = [with_checksum(dense_head) + dense, with_checksum(sparse_head) + sparse]
    # In either order: which log comes first is not said.
    assert bytes(disk.content(SEGMENT)) in (
        header + b"".join(blocks),
        header + b"".join(blocks[::-1]),
    )


def rows(disk: SimulatedDisk, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(bytes(disk.content("data/catalog.sqlite")))
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def row_checksum(*values: int | str | bytes) -> int:
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    return zlib.crc32(b"".join(text + b"\0" for text in texts))


def test_catalog_version(disk: SimulatedDisk) -> None:
    assert rows(disk, "PRAGMA user_version") == [(1,)]


def test_catalog_positions(disk: SimulatedDisk) -> None:
    found = rows(disk, "SELECT * FROM position")
    assert {row[:2] for row in found} == {
        ("checkpoint_batch", 2),
        ("needed_batch", 2),
        ("first_file", 1),
        ("next_log", 3),
        ("next_segment", 2),
        ("table t", 1),
    }
    assert all(checksum == row_checksum(name, value) for name, value, checksum in found)


def test_catalog_logs(disk: SimulatedDisk) -> None:
    assert rows(disk, "SELECT * FROM log ORDER BY number") == [
        (1, "q", 2, row_checksum(1, "q", 2)),
        (2, "s", 5, row_checksum(2, "s", 5)),
    ]


def test_catalog_chunks(disk: SimulatedDisk) -> None:
    data = bytes(disk.content(SEGMENT))
    dense_at = data.index(b"BLCK\x01")
    sparse_at = data.index(b"BLCK\x02")
    dense = (1, 0, 2, 2, 7, 1, dense_at, 48 + 27, b"\x02", b"", b"")
    offsets = bytes.fromhex("0000000000000000 0400000000000000")
    ends = bytes.fromhex("0300000000000000 0500000000000000")
    sparse = (2, 0, 5, 2, 3, 1, sparse_at, 48 + 46, b"", offsets, ends)
    assert rows(disk, "SELECT * FROM chunk ORDER BY log") == [
        (*dense, row_checksum(*dense)),
        (*sparse, row_checksum(*sparse)),
    ]


def test_catalog_tables(disk: SimulatedDisk) -> None:
    assert rows(disk, "SELECT * FROM key_table") == [(1, "t", row_checksum(1, "t"))]
    assert rows(disk, "SELECT * FROM key_value") == [
        (1, b"k", b"vv", zlib.crc32(b"vv", zlib.crc32(b"k", 1)))
    ]


def test_catalog_columns(disk: SimulatedDisk) -> None:
    tables = ("position", "log", "chunk", "key_table", "key_value")
    columns = {
        table: [row[1] for row in rows(disk, f"PRAGMA table_info({table})")] for table in tables
    }
    assert columns == {
        "position": ["name", "value", "checksum"],
        "log": ["number", "name", "next_offset", "checksum"],
        "chunk": [
            *("log", "first", "end", "slots", "size", "segment", "position", "length", "removed"),
            *("offsets", "ends", "checksum"),
        ],
        "key_table": ["number", "name", "checksum"],
        "key_value": ["key_table", "key", "value", "checksum"],
    }


def test_names(disk: SimulatedDisk) -> None:
    assert bytes(disk.content("data/format")) == b"trivium storage 2\n"
    assert {path.split("/")[1] for path in disk.files} == {
        "format",
        "journal",
        "segments",
        "catalog.sqlite",
        "catalog-copy.sqlite",
    }


def test_the_copy_of_the_catalog_has_the_same_rows(disk: SimulatedDisk) -> None:
    dumps = []
    for name in ("catalog", "catalog-copy"):
        connection = sqlite3.connect(":memory:")
        connection.deserialize(bytes(disk.content(f"data/{name}.sqlite")))
        dumps.append(list(connection.iterdump()))
        connection.close()
    assert dumps[0] == dumps[1]
    assert len(dumps[0]) > 10

"""Segments compressed with zstd: smaller, the same content, beside those that are not."""

from __future__ import annotations

import random
import zlib

import pytest
import zstandard

from tests.support.simulated import Host, SimulatedDisk
from trivium.storage.errors import StorageDamaged
from trivium.storage.repair.inspection import Inspection
from trivium.storage.segments.blocks import BLOCK_HEADER_SIZE
from trivium.storage.segments.segment_files import FILE_HEADER_SIZE

SEGMENT = "data/segments/0000000000000001.segment"


def host_of(disk: SimulatedDisk | None = None, compression: str = "zstd", seed: int = 0) -> Host:
    return Host(disk, seed=seed, memory_size=0, compression=compression)


def filled(compression: str, record: bytes = b"the same again and again " * 10) -> Host:
    host = host_of(compression=compression)
    for number in range(40):
        host.storage.log("l").append(record + b"%d" % number, 1 + number % 2, b"n" * (number % 3))
    host.commit()
    host.checkpoint()
    return host


def test_a_compressed_block_is_what_the_document_says() -> None:
    plain = bytes(filled("none").disk.content(SEGMENT))
    data = bytes(filled("zstd").disk.content(SEGMENT))
    start = FILE_HEADER_SIZE + BLOCK_HEADER_SIZE
    assert data[:FILE_HEADER_SIZE] == plain[:FILE_HEADER_SIZE]
    # Log, offsets and number of records; sparse, notes, compressed, name; length and checksum.
    assert data[FILE_HEADER_SIZE : FILE_HEADER_SIZE + 28] == plain[FILE_HEADER_SIZE:][:28]
    body = data[start:]
    assert data[FILE_HEADER_SIZE + 28 : start - 4] == (
        bytes([23, 0, 0, 0])
        + len(body).to_bytes(8, "little")
        + zlib.crc32(body).to_bytes(4, "little")
    )
    assert body[:8] == (len(plain) - start).to_bytes(8, "little")
    assert zstandard.ZstdDecompressor().decompress(body[8:]) == plain[start:]
    assert len(data) < len(plain) / 5


def test_compressed_segments_are_read_back_and_by_whatever_setting() -> None:
    expected = filled("none").contents("l")
    for written in ("none", "zstd"):
        disk = filled(written).disk
        for setting in ("none", "zstd"):
            assert host_of(disk.copy(), setting, 1).contents("l") == expected


def test_what_does_not_shrink_is_stored_as_it_is() -> None:
    contents: list[bytes] = []
    for compression in ("none", "zstd"):
        host = host_of(compression=compression)
        host.storage.log("l").append(random.Random(0).randbytes(20_000))
        host.commit()
        host.checkpoint()
        contents.append(bytes(host.disk.content(SEGMENT)))
    assert contents[0] == contents[1]


def test_any_damaged_bit_of_a_compressed_block_is_found() -> None:
    whole = filled("zstd").disk
    for position in range(FILE_HEADER_SIZE, len(whole.content(SEGMENT))):
        disk = whole.copy()
        disk.content(SEGMENT)[position] ^= 1 << position % 8
        (damage,) = Inspection(disk, "data", lambda log, record, count: "").damages
        assert (damage.file, damage.offset) == (SEGMENT, FILE_HEADER_SIZE)


@pytest.mark.parametrize("size", [0, 10, 1 << 62])
def test_a_size_that_is_not_that_of_the_content_is_damage(size: int) -> None:
    """With right checksums: written by a fault, or by somebody."""
    disk = filled("zstd").disk.copy()
    content = disk.content(SEGMENT)
    start = FILE_HEADER_SIZE + BLOCK_HEADER_SIZE
    content[start : start + 8] = size.to_bytes(8, "little")
    content[start - 8 : start - 4] = zlib.crc32(content[start:]).to_bytes(4, "little")
    head = content[FILE_HEADER_SIZE : start - 4]
    content[start - 4 : start] = zlib.crc32(head).to_bytes(4, "little")
    host = host_of(disk, seed=1)
    host.storage.log("l").load(0, 1, lambda: None)
    host.step()
    (error,) = host.errors
    assert isinstance(error, StorageDamaged)


def test_chunks_of_compressed_segments_are_found_without_the_catalog() -> None:
    disk = filled("zstd").disk
    disk.files.pop("data/catalog.sqlite")
    disk.files.pop("data/catalog-copy.sqlite")
    for path in [path for path in disk.files if path.startswith("data/journal")]:
        disk.files.pop(path)
    loss = Inspection(disk, "data", lambda log, record, count: "").losses[0]
    assert (loss.number, loss.first, loss.last, loss.records) == (1, 0, 59, 40)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ValueError, match="compression must be none or zstd"):
        host_of(compression="lzma")

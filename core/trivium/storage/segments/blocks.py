"""Blocks: chunks as they lie in segment files, byte by byte as in docs/storage-format.md."""

from __future__ import annotations

import struct
import zlib
from array import array
from struct import Struct
from typing import Final

import zstandard

from trivium.storage.errors import StorageDamaged
from trivium.storage.files.encryption import TAG_SIZE, FileCipher
from trivium.storage.files.executor import TimeSlice
from trivium.storage.journal.journal import checksum_of_parts
from trivium.storage.segments.chunks import Chunk, NumberedLog, list_made

_BLOCK_MAGIC: Final = b"BLCK"
#: magic, log, first offset, end offset, records, flags, body length, checksum of the body
_BLOCK_HEADER: Final = Struct("<4sIQQIIQI")
_CHECKSUM: Final = Struct("<I")
BLOCK_HEADER_SIZE: Final[int] = _BLOCK_HEADER.size + 4

#: flags of a block
SPARSE: Final = 1
_ANNOTATIONS: Final = 2
_COMPRESSED: Final = 4
_ENCRYPTED: Final = 8
_NAMED: Final = 16
#: of the log's name
_NAME_SIZE: Final = Struct("<H")
#: of a body before it was compressed
_SIZE: Final = Struct("<Q")
#: So many parts of a body are written as they are; the records of longer lists are small.
_FEW_PARTS: Final = 128
#: zstd's quickest level but for the negative ones
_ZSTD_LEVEL: Final = 1
#: A body that shrinks less is stored as it is, and costs no time when it is read.
_WORTHWHILE: Final = 0.9


class ChunkImage:
    """A chunk as it was when the checkpoint passed it, safe to be read by another thread."""

    def __init__(
        self,
        log: NumberedLog,
        chunk: Chunk,
        records: list[bytes],
        annotations: dict[int, bytes] | None,
    ) -> None:
        self.log = log
        self.chunk = chunk
        self.records = records
        self.annotations = annotations
        #: set once it is written
        self.segment = 0
        self.position = 0
        self.length = 0

    def encoded(
        self, compresses: bool, cipher: FileCipher | None, slice_: TimeSlice
    ) -> list[bytes]:
        """The block, in parts, for the position that was noted."""
        chunk = self.chunk
        records = self.records
        count = len(records)
        # The catalog has the name too; this is for whoever has lost it.
        flags = _NAMED
        name = self.log.name.encode()
        parts = [_NAME_SIZE.pack(len(name)), name, struct.pack(f"<{count}I", *map(len, records))]
        if chunk.offsets is not None and chunk.ends is not None:
            flags |= SPARSE
            parts.append(struct.pack(f"<{count}q", *chunk.offsets))
            parts.append(struct.pack(f"<{count}q", *chunk.ends))
        annotations: list[bytes] = []
        if self.annotations is not None:
            flags |= _ANNOTATIONS
            annotations = [self.annotations.get(slot, b"") for slot in range(count)]
            parts.append(struct.pack(f"<{count}I", *map(len, annotations)))
        body = [*parts, *records, *annotations]
        if compresses or cipher is not None or len(body) > _FEW_PARTS:
            body = [b"".join(body)]
        if compresses:
            packed = _compressed(body[0])
            if len(packed) < len(body[0]) * _WORTHWHILE:
                body = [packed]
                flags |= _COMPRESSED
        number = self.log.number
        if cipher is not None:
            flags |= _ENCRYPTED
            size = len(body[0]) + TAG_SIZE
            context = _context(number, chunk.first, chunk.end, count, flags, size)
            body = [cipher.seal(self.position, body[0], context)]
        head = _BLOCK_HEADER.pack(
            _BLOCK_MAGIC,
            number,
            chunk.first,
            chunk.end,
            count,
            flags,
            sum(map(len, body)),
            checksum_of_parts(body, slice_),
        )
        return [head, _CHECKSUM.pack(zlib.crc32(head)), *body]


def image_of(log: NumberedLog, chunk: Chunk) -> ChunkImage:
    """The image of a chunk that lies in no segment yet."""
    records = [record for record in chunk.records or () if record is not None]
    assert len(records) == chunk.slots
    list_made(len(records))
    return ChunkImage(
        log, chunk, records, None if not chunk.annotations else dict(chunk.annotations)
    )


def _context(log: int, first: int, end: int, count: int, flags: int, size: int) -> bytes:
    """What an encrypted block is tied to, beside its file and its position there."""
    return _BLOCK_HEADER.pack(_BLOCK_MAGIC, log, first, end, count, flags, size, 0)


def block_header(data: bytes) -> tuple[int, int, int, int, int, int, int] | None:
    """What the header of a block states, None when it is wrong.

    Log, first offset, end offset, records, flags, length of the body, checksum of the body.
    """
    if len(data) < BLOCK_HEADER_SIZE:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _BLOCK_HEADER.size)
    if checksum != zlib.crc32(memoryview(data)[: _BLOCK_HEADER.size]):
        return None
    magic, log, first, end, count, flags, length, checksum = _BLOCK_HEADER.unpack_from(data)
    if magic != _BLOCK_MAGIC:
        return None
    return log, first, end, count, flags, length, checksum


class Place:
    """Where the block of a chunk lies and what it holds, as it is known in this turn."""

    def __init__(self, log: NumberedLog, chunk: Chunk) -> None:
        self.log = log
        self.chunk = chunk
        self.first = chunk.first
        self.end = chunk.end
        self.slots = chunk.slots
        self.removed = chunk.removed
        self.segment = chunk.segment
        self.position = chunk.position
        self.length = chunk.length

    def is_left(self) -> bool:
        """Whether the chunk lies elsewhere meanwhile."""
        chunk = self.chunk
        return (chunk.segment, chunk.position) != (self.segment, self.position)


def decode_block(
    data: bytes, path: str, place: Place, cipher: FileCipher | None
) -> tuple[list[bytes | None], dict[int, bytes] | None]:
    """Records and annotations of a chunk from the block that was read. Raises StorageDamaged."""
    position = place.position
    if len(data) < max(place.length, BLOCK_HEADER_SIZE):
        raise StorageDamaged(path, position + len(data), "the file is too short")
    header = block_header(data)
    if header is None:
        raise StorageDamaged(path, position, "the header of a block is wrong")
    number, first, end, count, flags, size, _ = header
    wanted = (place.log.number, place.first, place.end, place.slots)
    if (number, first, end, count) != wanted or size != place.length - BLOCK_HEADER_SIZE:
        raise StorageDamaged(path, position, "the block of another chunk")
    body = block_body(data, header, position, cipher)
    if body is None:
        raise StorageDamaged(path, position, "the content of a block is wrong")
    return _decode_body(body, count, flags)


def block_body(
    data: bytes,
    header: tuple[int, int, int, int, int, int, int],
    position: int,
    cipher: FileCipher | None,
) -> bytes | None:
    """The body of a whole block as it was before anything was done to it; None when it is wrong."""
    log, first, end, count, flags, length, checksum = header
    stored = data[BLOCK_HEADER_SIZE : BLOCK_HEADER_SIZE + length]
    if checksum != zlib.crc32(stored):
        return None
    if flags & _ENCRYPTED:
        if cipher is None:
            return None
        context = _context(log, first, end, count, flags, length)
        plain = cipher.unseal(position, stored, context)
        if plain is None:
            return None
        stored = plain
    return _decompressed(stored) if flags & _COMPRESSED else stored


def _compressed(body: bytes) -> bytes:
    packed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return _SIZE.pack(len(body)) + packed


def _decompressed(stored: bytes) -> bytes | None:
    """None when it is not what ``_compressed`` makes; allocates no more than a frame says."""
    try:
        (size,) = _SIZE.unpack_from(stored)
        packed = memoryview(stored)[_SIZE.size :]
        if zstandard.get_frame_parameters(packed).content_size != size:
            return None
        return zstandard.ZstdDecompressor().decompress(packed)
    except (struct.error, zstandard.ZstdError, MemoryError):
        return None


def block_name(body: bytes, flags: int) -> tuple[str, int]:
    """The name of the log in a block's body, and where what follows begins."""
    if not flags & _NAMED:
        return "", 0
    (size,) = _NAME_SIZE.unpack_from(body)
    end = _NAME_SIZE.size + size
    return body[_NAME_SIZE.size : end].decode(), end


def _decode_body(
    data: bytes, count: int, flags: int
) -> tuple[list[bytes | None], dict[int, bytes] | None]:
    _, at = block_name(data, flags)
    sizes = struct.unpack_from(f"<{count}I", data, at)
    at += 4 * count
    if flags & SPARSE:
        at += 16 * count
    annotation_sizes: tuple[int, ...] = ()
    if flags & _ANNOTATIONS:
        annotation_sizes = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
    records: list[bytes | None] = []
    for size in sizes:
        records.append(data[at : at + size])
        at += size
    annotations: dict[int, bytes] | None = None
    if annotation_sizes:
        annotations = {}
        for slot, size in enumerate(annotation_sizes):
            if size:
                annotations[slot] = data[at : at + size]
                at += size
    return records, annotations


def offsets_from_bytes(data: bytes) -> array[int]:
    """The offsets or ends of a chunk as catalog and blocks keep them."""
    return array("q", struct.unpack(f"<{len(data) // 8}q", data))


def offsets_to_bytes(offsets: array[int]) -> bytes:
    """The offsets or ends of a chunk as the catalog keeps them."""
    return struct.pack(f"<{len(offsets)}q", *offsets)

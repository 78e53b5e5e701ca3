"""Blocks of equal frames that differ only in a few fixed-width fields.

Everything the load generator sends at speed is such a block: the frame is encoded once, repeated,
and each batch only rewrites the columns that change (packet identifier, sequence number, time
stamp) with numpy. What it receives is read through the same kind of view, so neither direction
costs a Python object per message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]
"""A structured array, one row per frame."""
Fields = dict[str, tuple[Any, int]]
"""The fields of a frame: a numpy format, and an offset in bytes, by name."""

SEQUENCE: Final = "sequence"
STAMP: Final = "stamp"
SEQUENCE_FORMAT: Final = "<u8"
"""The first 8 bytes of each payload: the message's number on its lane, from 0."""
STAMP_FORMAT: Final = "<u8"
"""The next 8 bytes: when the message was due to be sent, in ns of the monotonic clock."""
MINIMUM_PAYLOAD: Final = 16

BATCH_BYTES: Final = 256 * 1024
"""Length of a batch at most: hides the cost of a system call, stays in the cache."""


def payload(size: int) -> bytes:
    """Return a payload of ``size`` bytes with room for the sequence number and the time stamp.

    Raises:
        ValueError: ``size`` is below :data:`MINIMUM_PAYLOAD`.
    """
    if size < MINIMUM_PAYLOAD:
        raise ValueError(f"a payload needs at least {MINIMUM_PAYLOAD} bytes, not {size}")
    return bytes(MINIMUM_PAYLOAD) + b"x" * (size - MINIMUM_PAYLOAD)


def layout(size: int, fields: Mapping[str, tuple[Any, int]]) -> np.dtype[np.void]:
    """Return the type of a frame of ``size`` bytes with ``fields`` of (format, offset in bytes)."""
    return np.dtype(
        {
            "names": list(fields),
            "formats": [field_format for field_format, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


def payload_fields(offset: int) -> Fields:
    """Return the fields of a payload that starts ``offset`` bytes into its frame."""
    return {SEQUENCE: (SEQUENCE_FORMAT, offset), STAMP: (STAMP_FORMAT, offset + 8)}


class FrameBlock:
    """A frame repeated ``rows`` times in one buffer, with its changing fields as columns.

    The bytes that :meth:`take` returns are valid until the columns are next written.
    """

    def __init__(self, frame: bytes, fields: Mapping[str, tuple[Any, int]], rows: int) -> None:
        self.frame_size = len(frame)
        self.rows = rows
        backing = bytearray(frame * rows)
        table: Rows = np.frombuffer(backing, dtype=layout(len(frame), fields))
        self._bytes = memoryview(backing)
        self._columns: dict[str, Rows] = {name: table[name] for name in fields}

    def column(self, name: str) -> Rows:
        """Return one field of every row, writable."""
        return self._columns[name]

    def take(self, count: int) -> memoryview:
        """Return the bytes of the first ``count`` frames."""
        return self._bytes[: count * self.frame_size]


def rows_per_batch(frame_size: int, most: int) -> int:
    """Return how many frames of ``frame_size`` bytes make a batch: from 1 to ``most``."""
    return max(1, min(most, BATCH_BYTES // frame_size))

"""Records of several batches that become one: those in between are left out."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from trivium.messages.message import Message
from trivium.streams.record_encoder import PLAIN_MESSAGE, Described, encode_batch
from trivium.streams.record_layout import CODEC_NONE, MAX_SPAN

#: How much one holds before it is full.
MOST_BYTES: Final = 256 * 1024
MOST_RECORDS: Final = 2048


class Collected:
    """The records of a batch that begins at offset ``base``."""

    def __init__(self, base: int, codec: int = CODEC_NONE) -> None:
        #: the offset of the batch
        self.base = base
        self._codec = codec
        self._messages: list[Message] = []
        self._described: list[Described] = []
        self._deltas: list[int] = []
        #: their bytes, about
        self.size: i64 = 0

    def __len__(self) -> int:
        return len(self._messages)

    def has_room(self, offset: int) -> bool:
        """Whether the record with this offset, behind all others, may be added."""
        if offset - self.base >= MAX_SPAN:
            return False
        return self.size < MOST_BYTES and len(self._messages) < MOST_RECORDS

    def add(self, offset: int, message: Message, described: Described) -> None:
        """Another record."""
        self._messages.append(message)
        self._described.append(described)
        self._deltas.append(offset - self.base)
        self.size += message.size + len(message.header)

    def take(self, end: int) -> tuple[bytes, int]:
        """The batch, which spans the offsets up to ``end`` where that is possible, and its span.

        What is added from now on is of the batch that begins at ``end``. There must be a record.
        """
        messages, described = self._messages, self._described
        span = min(end - self.base, MAX_SPAN)
        batch = encode_batch(
            messages,
            None if described.count(PLAIN_MESSAGE) == len(described) else described,
            self._codec,
            None if span == len(messages) else self._deltas,
            span,
        )
        self.begin(end)
        return batch, span

    def begin(self, base: int) -> None:
        """Forget what was added, and go on with a batch that begins at ``base``."""
        self.base = base
        self._messages = []
        self._described = []
        self._deltas = []
        self.size = 0

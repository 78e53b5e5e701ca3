"""Consumer groups: named readers of streams, and the offsets that they have committed.

A committed offset is the next one that the group wants to read, per stream incarnation and
partition. It is a row of a table, so it is durable with the write batch of its commit. Who commits
may have a text kept with it, such as a state of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trivium.errors import LimitExceeded, NotFound, PreconditionFailed
from trivium.storage.base import Table
from trivium.streams.stream import Stream

#: longest group name in bytes, as for all names on the wire
MAX_NAME_BYTES: Final = 255
#: bytes of the text that is kept with a committed offset, as much as in Kafka
MAX_METADATA_BYTES: Final = 4096
#: groups with committed offsets, these offsets, and bytes of what is kept with them, all of a
#: virtual host: they are in memory
MAX_GROUPS: Final = 65_536
MAX_OFFSETS: Final = 1 << 20
MAX_ALL_METADATA_BYTES: Final = 16 * 1024 * 1024

#: bytes of an offset in a row; the text follows
_OFFSET_BYTES: Final = 8
_KEY_SEPARATOR: Final = b"/"


class PartitionLag:
    """How far a group is in one partition. ``committed`` is -1 when it never committed there.

    ``lag`` counts the records from the committed offset (or the oldest kept one) up to the high
    watermark. ``metadata`` was committed with the offset.
    """

    def __init__(self, partition: int, committed: int, lag: int, metadata: str) -> None:
        self.partition = partition
        self.committed = committed
        self.lag = lag
        self.metadata = metadata


class Groups:
    """The consumer groups of one virtual host. ``table`` may already hold rows."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # Stream incarnation -> group name -> partition -> committed offset. None of them is empty.
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}
        # Group name -> the stream incarnations that it has offsets of.
        self._groups: dict[str, dict[str, None]] = {}
        # What is kept with offsets, by the keys of their rows, and how much that is.
        self._metadata: dict[bytes, bytes] = {}
        self._metadata_bytes = 0
        self._count = 0
        for key, value in table.items():
            incarnation, partition, name = key.split(_KEY_SEPARATOR, 2)
            offsets = self._of(name.decode(), incarnation.decode())
            offsets[int(partition)] = int.from_bytes(value[:_OFFSET_BYTES], "little")
            self._count += 1
            self._keep(key, value[_OFFSET_BYTES:])

    def _keep(self, key: bytes, metadata: bytes) -> None:
        """Keep this with the offset of a row, in place of what was."""
        if key in self._metadata:
            self._metadata_bytes -= len(self._metadata.pop(key))
        if len(metadata):
            self._metadata[key] = metadata
            self._metadata_bytes += len(metadata)

    def _of(self, group: str, incarnation: str) -> dict[int, int]:
        """Where the offsets of a group in a stream go: at least one must follow."""
        self._groups.setdefault(group, {})[incarnation] = None
        return self._offsets.setdefault(incarnation, {}).setdefault(group, {})

    def names(self) -> list[str]:
        """The groups that have committed an offset, in no order."""
        return list(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def streams(self, group: str, known: Mapping[str, Stream]) -> list[Stream]:
        """Those of ``known`` that the group has committed an offset of."""
        incarnations = self._groups.get(group, {})
        return [stream for stream in known.values() if stream.incarnation in incarnations]

    def of_stream(self, stream: Stream) -> list[str]:
        """The groups that have committed an offset of the stream."""
        return list(self._offsets.get(stream.incarnation, {}))

    def has(self, group: str) -> bool:
        """Whether the group has committed an offset."""
        return group in self._groups

    def check(
        self,
        group: str,
        stream: Stream,
        offsets: list[tuple[int, int]],
        metadata: dict[int, str] | None = None,
    ) -> None:
        """Whether these pairs of (partition, next offset to read) can be committed, and what is to
        be kept with them, by partition.

        Raises PreconditionFailed for a bad name, NotFound for a partition that there is not,
        PreconditionFailed for an offset beyond the high watermark or too long a text, LimitExceeded
        where the virtual host has too many of them.
        """
        check_group_name(group)
        if group not in self._groups and len(self._groups) >= MAX_GROUPS:
            raise LimitExceeded(f"a virtual host has at most {MAX_GROUPS} groups with offsets")
        if self._count + len(offsets) > MAX_OFFSETS:
            known = self._offsets.get(stream.incarnation, {}).get(group, {})
            if self._count + len({index for index, _ in offsets} - known.keys()) > MAX_OFFSETS:
                raise LimitExceeded(f"a virtual host has at most {MAX_OFFSETS} committed offsets")
        size = self._metadata_bytes
        for text in ({} if metadata is None else metadata).values():
            size += len(text.encode())
            if len(text.encode()) > MAX_METADATA_BYTES:
                raise PreconditionFailed(
                    f"what is kept with an offset has at most {MAX_METADATA_BYTES} bytes"
                )
        if metadata and size > MAX_ALL_METADATA_BYTES:
            for index in metadata:
                size -= len(self._metadata.get(_key(stream.incarnation, index, group), b""))
            if size > MAX_ALL_METADATA_BYTES:
                raise LimitExceeded(
                    f"a virtual host keeps at most {MAX_ALL_METADATA_BYTES} bytes with offsets"
                )
        for index, offset in offsets:
            partition = stream.partition(index)
            if partition is None:
                raise NotFound(f"stream '{stream.name}' has no partition {index}")
            if not 0 <= offset <= partition.high_watermark:
                raise PreconditionFailed(
                    f"offset {offset} is outside of partition {index} of stream '{stream.name}',"
                    f" which ends at {partition.high_watermark}"
                )

    def commit(
        self,
        group: str,
        stream: Stream,
        offsets: list[tuple[int, int]],
        metadata: dict[int, str] | None = None,
    ) -> None:
        """Commit pairs of (partition, next offset to read) in the current write batch: all or none.

        ``metadata`` is kept with them by partition, in place of what was. Going back is allowed: it
        is how a group reads again. Raises as ``check`` does. Whether the committer may do this at
        all is for ``Memberships.check_commit`` to say.
        """
        self.check(group, stream, offsets, metadata)
        if not offsets:
            return
        committed = self._of(group, stream.incarnation)
        before = len(committed)
        for index, offset in offsets:
            committed[index] = offset
            key = _key(stream.incarnation, index, group)
            text = b"" if metadata is None else metadata.get(index, "").encode()
            self._keep(key, text)
            self._table.put(key, offset.to_bytes(_OFFSET_BYTES, "little") + text)
        self._count += len(committed) - before

    def committed(self, group: str, stream: Stream) -> dict[int, int]:
        """The committed offsets by partition; partitions without one are left out."""
        groups = self._offsets.get(stream.incarnation)
        return {} if groups is None else dict(groups.get(group, {}))

    def lag(self, group: str, stream: Stream) -> list[PartitionLag]:
        """How far the group is in each partition of the stream, in order."""
        committed = self.committed(group, stream)
        found: list[PartitionLag] = []
        for partition in stream.partitions:
            offset = committed.get(partition.index, -1)
            start = max(offset, partition.first_offset)
            lag = max(partition.high_watermark - start, 0)
            metadata = b""
            if offset >= 0 and self._metadata:
                key = _key(stream.incarnation, partition.index, group)
                metadata = self._metadata.get(key, b"")
            text = metadata.decode(errors="replace")
            found.append(PartitionLag(partition.index, offset, lag, text))
        return found

    def delete(self, group: str) -> None:
        """Forget a group. Raises NotFound."""
        incarnations = self._groups.pop(group, None)
        if incarnations is None:
            raise NotFound(f"no group '{group}'")
        for incarnation in incarnations:
            groups = self._offsets[incarnation]
            self._delete_rows(incarnation, group, groups.pop(group))
            if not groups:
                del self._offsets[incarnation]

    def forget(self, stream: Stream) -> None:
        """The stream was deleted: forget what was committed for it."""
        incarnation = stream.incarnation
        for group, offsets in self._offsets.pop(incarnation, {}).items():
            self._delete_rows(incarnation, group, offsets)
            incarnations = self._groups[group]
            del incarnations[incarnation]
            if not incarnations:
                del self._groups[group]

    def _delete_rows(self, incarnation: str, group: str, offsets: dict[int, int]) -> None:
        for partition in offsets:
            key = _key(incarnation, partition, group)
            self._table.delete(key)
            self._keep(key, b"")
        self._count -= len(offsets)


def check_group_name(group: str) -> None:
    """Raises PreconditionFailed for a name that a group cannot have."""
    if not 0 < len(group.encode()) <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"a group name has 1 to {MAX_NAME_BYTES} bytes")


def _key(incarnation: str, partition: int, group: str) -> bytes:
    # The group's name is last: it may contain the separator, the others cannot.
    return f"{incarnation}/{partition}/{group}".encode()

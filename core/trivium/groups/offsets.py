"""Consumer groups: named readers of streams, and the offsets that they have committed.

A committed offset is the next one that the group wants to read, per stream incarnation and
partition. It is a row of a table, so it is durable with the write batch of its commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trivium.errors import NotFound, PreconditionFailed
from trivium.storage.base import Table
from trivium.streams.stream import Stream

#: longest group name in bytes, as for all names on the wire
MAX_NAME_BYTES: Final = 255

_KEY_SEPARATOR: Final = b"/"


class PartitionLag:
    """How far a group is in one partition. ``committed`` is -1 when it never committed there.

    ``lag`` counts the records from the committed offset (or the oldest kept one) up to the high
    watermark.
    """

    def __init__(self, partition: int, committed: int, lag: int) -> None:
        self.partition = partition
        self.committed = committed
        self.lag = lag


class Groups:
    """The consumer groups of one virtual host. ``table`` may already hold rows."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # Stream incarnation -> group name -> partition -> committed offset. None of them is empty.
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}
        # Group name -> the stream incarnations that it has offsets of.
        self._groups: dict[str, dict[str, None]] = {}
        for key, value in table.items():
            incarnation, partition, name = key.split(_KEY_SEPARATOR, 2)
            offsets = self._of(name.decode(), incarnation.decode())
            offsets[int(partition)] = int.from_bytes(value, "little")

    def _of(self, group: str, incarnation: str) -> dict[int, int]:
        """Where the offsets of a group in a stream go: at least one must follow."""
        self._groups.setdefault(group, {})[incarnation] = None
        return self._offsets.setdefault(incarnation, {}).setdefault(group, {})

    def names(self) -> list[str]:
        """The groups that have committed an offset, in order of their names."""
        return sorted(self._groups)

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

    def check(self, group: str, stream: Stream, offsets: list[tuple[int, int]]) -> None:
        """Whether these pairs of (partition, next offset to read) can be committed.

        Raises PreconditionFailed for a bad name, NotFound for a partition that there is not,
        PreconditionFailed for an offset beyond the high watermark.
        """
        check_group_name(group)
        for index, offset in offsets:
            partition = stream.partition(index)
            if partition is None:
                raise NotFound(f"stream '{stream.name}' has no partition {index}")
            if not 0 <= offset <= partition.high_watermark:
                raise PreconditionFailed(
                    f"offset {offset} is outside of partition {index} of stream '{stream.name}',"
                    f" which ends at {partition.high_watermark}"
                )

    def commit(self, group: str, stream: Stream, offsets: list[tuple[int, int]]) -> None:
        """Commit pairs of (partition, next offset to read) in the current write batch: all or none.

        Going back is allowed: it is how a group reads again. Raises as ``check`` does. Whether the
        committer may do this at all is for ``Memberships.check_commit`` to say.
        """
        self.check(group, stream, offsets)
        if not offsets:
            return
        committed = self._of(group, stream.incarnation)
        for index, offset in offsets:
            committed[index] = offset
            self._table.put(_key(stream.incarnation, index, group), offset.to_bytes(8, "little"))

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
            found.append(PartitionLag(partition.index, offset, lag))
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
            self._table.delete(_key(incarnation, partition, group))


def check_group_name(group: str) -> None:
    """Raises PreconditionFailed for a name that a group cannot have."""
    if not 0 < len(group.encode()) <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"a group name has 1 to {MAX_NAME_BYTES} bytes")


def _key(incarnation: str, partition: int, group: str) -> bytes:
    # The group's name is last: it may contain the separator, the others cannot.
    return f"{incarnation}/{partition}/{group}".encode()

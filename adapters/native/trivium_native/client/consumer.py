"""A member of a consumer group: reads the partitions that the broker assigns to it.

One task sends heartbeats and carries out what their answers say. A partition that is assigned no
more is let go once the batch that was handed out last is done with, which is when the next one is
asked for; meanwhile heartbeats go on and the partition stays this member's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from trivium_native.client import group_operations, operations
from trivium_native.client.connection import ClientConnection
from trivium_native.client.receiving import check_credit
from trivium_native.client.values import (
    AssignedPartition,
    Joined,
    LogStart,
    Membership,
    OffsetCommit,
    Record,
    StoredBatch,
)
from trivium_native.wire.errors import (
    AccessRefused,
    Fenced,
    Interrupted,
    NativeError,
    NotFound,
    OffsetOutOfRange,
    StaleMember,
    StreamChanged,
)

#: Called with partitions, before they are read or when they are let go.
Callback = Callable[[list[AssignedPartition]], Awaitable[None]]
#: Of a partition: stream, incarnation, number.
_Key = tuple[str, str, int]

#: Whether it is a callback of a consumer that asks, also where it has come by another thread.
_IN_CALLBACK: Final = ContextVar("trivium_in_callback", default=False)


async def _tell(callback: Callback, partitions: list[AssignedPartition]) -> None:
    before = _IN_CALLBACK.set(True)
    try:
        await callback(partitions)
    finally:
        _IN_CALLBACK.reset(before)


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Records of one partition, from offset ``start`` on."""

    stream: str
    partition: int
    start: int
    batch: StoredBatch

    def records(self) -> Iterator[Record]:
        """The records. Raises trivium.streams.records.BatchError."""
        return self.batch.records(self.start)

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.batch.base_offset + self.batch.view().span


class _Reader:
    """The subscription to one partition."""

    def __init__(self, consumer: GroupConsumer, number: int, assigned: AssignedPartition) -> None:
        self.number = number
        self.assigned = assigned
        self.key = _key(assigned)
        #: the next offset to hand out, and what the group has committed
        self.position = 0
        self.committed = -1
        self.is_revoked = False
        #: whether the group does not know where it begins, and so whoever goes on with it
        self.is_new = False
        #: whether its subscription ended with a connection
        self.is_cut = False
        #: whether it is not to be read for now
        self.is_paused = False
        self._consumer = consumer
        # What came before it was known where it begins.
        self._early: list[StoredBatch] | None = []

    @property
    def is_behind(self) -> bool:
        """Whether some of it was handed out and is not committed."""
        return 0 <= self.committed != self.position

    def passed(self, offset: int) -> None:
        """A filter has passed what lies before this offset."""
        if not self.is_behind:
            # It is committed with what is handed out next, and nobody misses it until then.
            self.committed = offset
            self.is_new = True
        self.position = offset

    def begin(self, offset: int) -> None:
        """The broker begins at this offset."""
        self.position = self.committed = offset
        self.go_on()

    def go_on(self) -> None:
        """It is known where it begins."""
        early, self._early = self._early, None
        for item in early or ():
            self._consumer.arrived(self, item)

    def request(self, offset: int | str, credit: int) -> operations.Operation[LogStart]:
        """The request to read it from an offset on."""
        assigned = self.assigned
        return operations.subscribe_log(
            self.number,
            assigned.stream,
            assigned.partition,
            offset,
            None,
            credit,
            assigned.incarnation,
            self._consumer.topic_filter,
        )

    def unsubscribe(self, connection: ClientConnection) -> None:
        """End its subscription, if there is one."""
        if connection.sinks.pop(self.number, None) is not None and connection.error is None:
            connection.send(operations.unsubscribe(self.number), False)

    def cut(self) -> None:
        """Its subscription ends: what it has not handed out comes again."""
        self.is_cut = True
        self._early = []

    def interrupted(self) -> None:
        """The consumer is told, and cuts it."""

    async def resume(self) -> None:
        """The consumer does that, once it is known to be a member."""

    def put(self, item: StoredBatch) -> None:
        if self._early is None:
            self._consumer.arrived(self, item)
        else:
            self._early.append(item)

    def end(self, error: NativeError) -> None:
        self._consumer.ended(error)


class GroupConsumer:
    """An async iterator over the batches of all assigned partitions; see ``Client.join``.

    It ends with the error that ended it: of the connection, of a callback, or Fenced.
    """

    def __init__(
        self,
        connection: ClientConnection,
        group: str,
        member: str,
        streams: Sequence[str],
        *,
        strategy: str | None,
        start: str,
        session_timeout: float,
        rebalance_timeout: float,
        credit: int,
        topic_filter: str | None,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        on_lost: Callback | None = None,
    ) -> None:
        check_credit(credit)
        self.membership = Membership(group, member, 0)
        #: names of the group's members when this one joined last
        self.members: Sequence[str] = ()
        self._connection = connection
        self._join = group_operations.join(
            group,
            member,
            streams,
            strategy=strategy,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
        )
        self._start = start
        # How many partitions there were when it joined first; what came later has no past that it
        # did not want.
        self._sizes: Mapping[tuple[str, str], int] | None = None
        self._credit = credit
        self.topic_filter = topic_filter
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._interval = session_timeout
        self._readers: dict[_Key, _Reader] = {}
        self._items: deque[tuple[_Reader, StoredBatch]] = deque()
        # The reader whose batch is being worked on.
        self._current: _Reader | None = None
        self._wakeup = asyncio.Event()
        self._is_called = asyncio.Event()
        self._error: Exception | None = None
        # What was handed out and is others' now, until ``commit`` or ``offsets`` says so; and what
        # was let go before it was committed, which ``offsets`` alone minds.
        self._lost: StaleMember | None = None
        self._passed_on: StaleMember | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def assigned(self) -> list[AssignedPartition]:
        """The partitions that this member reads."""
        return [each.assigned for each in self._readers.values() if not each.is_revoked]

    # Reading

    def __aiter__(self) -> GroupConsumer:
        return self

    async def __anext__(self) -> GroupBatch:
        if self._current is not None:
            if self._current.is_revoked:
                self._is_called.set()
            self._current = None
        while True:
            while not self._items:
                if self._error is not None:
                    raise self._error
                self._wakeup.clear()
                await self._wakeup.wait()
            reader, batch = self._items.popleft()
            self._connection.add_credit(reader.number, batch.credit)
            if batch.data:
                break
            reader.passed(batch.base_offset)
        self._current = reader
        assigned = reader.assigned
        found = GroupBatch(assigned.stream, assigned.partition, reader.position, batch)
        reader.position = found.next_offset
        return found

    # Where it reads

    async def seek(self, stream: str, partition: int, offset: int | str) -> None:
        """Go on reading an assigned partition from an offset, or ``first``, ``last``, ``next``.

        ``commit`` commits from there on. Raises NotFound for a partition that is not assigned,
        OffsetOutOfRange, after which it goes on where it was.
        """
        reader = _find(self._readers.values(), stream, partition)
        self._stop_reading(reader)
        reader.is_cut = False
        reader.number = self._connection.next_number()
        self._connection.sinks[reader.number] = reader
        request = reader.request(offset, self._credit)
        try:
            reader.position = (await self._connection.run(request)).offset
        except NativeError:
            self._connection.sinks.pop(reader.number, None)
            reader.is_cut = True
            self._is_called.set()
            raise
        if reader.is_paused:
            self._stop_reading(reader)
        else:
            reader.go_on()

    def pause(self, stream: str, partition: int) -> None:
        """Read no more of an assigned partition, which stays this member's. Raises NotFound."""
        reader = _find(self._readers.values(), stream, partition)
        reader.is_paused = True
        self._stop_reading(reader)

    def resume(self, stream: str, partition: int) -> None:
        """Go on with a partition that is paused, where it was. Raises NotFound."""
        reader = _find(self._readers.values(), stream, partition)
        reader.is_paused = False
        self._is_called.set()

    async def lag(self) -> dict[tuple[str, int], int]:
        """How many offsets are ahead of what was handed out, by stream and assigned partition."""
        readers = [each for each in self._readers.values() if not each.is_revoked]
        streams = sorted({each.assigned.stream for each in readers})
        found = await self._connection.run(operations.metadata(streams)) if streams else []
        ends = {
            (info.name, number): partition.high_watermark
            for info in found
            for number, partition in enumerate(info.partitions)
        }
        places = {(each.assigned.stream, each.assigned.partition): each for each in readers}
        return {place: max(0, ends[place] - each.position) for place, each in places.items()}

    def _stop_reading(self, reader: _Reader) -> None:
        """End the subscription of a partition that is kept; what was not handed out is dropped."""
        reader.unsubscribe(self._connection)
        self._items = deque(item for item in self._items if item[0] is not reader)
        reader.cut()

    def arrived(self, reader: _Reader, batch: StoredBatch) -> None:
        """A batch of a partition came."""
        self._items.append((reader, batch))
        self._wakeup.set()

    def ended(self, error: NativeError) -> None:
        """A subscription, or the connection, is over."""
        if self._connection.error is not None or isinstance(error, AccessRefused):
            self._fail(error)
        else:
            # The stream was deleted: the next answer says what to read instead.
            self._is_called.set()

    def called(self) -> None:
        """The broker wants a heartbeat."""
        self._is_called.set()

    def interrupted(self) -> None:
        """The connection is lost; the next heartbeat tells what to read on the new one."""
        self._items.clear()
        for reader in self._readers.values():
            self._connection.sinks.pop(reader.number, None)
            reader.cut()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        if isinstance(error, Fenced):
            # Someone else reads what is left.
            self._items.clear()
        self._wakeup.set()

    # Committing

    def offsets(self) -> list[OffsetCommit]:
        """What was handed out and is not committed, for a transaction. Then call ``committed``.

        A callback is not told of the batch that is being worked on meanwhile.

        Raises StaleMember when some of it was handed out before this member lost it or let it go.
        Then nothing of it may be published: what is not committed comes again, here or elsewhere.
        """
        lost = self._lost or self._passed_on
        if lost is not None and not _IN_CALLBACK.get():
            self.refused()
            raise lost
        return _uncommitted(self.membership, self._readers, self._current)

    def refused(self) -> None:
        """A commit was refused, or not even tried: what is not committed comes again.

        In a callback, all but the batch that is being worked on meanwhile.
        """
        if not _IN_CALLBACK.get():
            self._lost = self._passed_on = self._current = None
        for reader in self._readers.values():
            if reader.is_behind and reader is not self._current:
                self._stop_reading(reader)
                reader.position = reader.committed
        self._is_called.set()

    def committed(self, commits: Sequence[OffsetCommit]) -> None:
        """These were committed by a transaction."""
        for commit in commits:
            assert commit.incarnation is not None
            for partition, offset in commit.offsets.items():
                reader = self._readers.get((commit.stream, commit.incarnation, partition))
                if reader is not None:
                    reader.committed = offset
                    reader.is_new = False

    async def commit(self, metadata: str | None = None) -> None:
        """Commit everything that was handed out; returns once it is durable.

        ``metadata`` is kept with each offset. In a callback, all but the batch that is being worked
        on meanwhile.

        Raises StaleMember when some of it was handed out before this member lost it: what is not
        committed comes again, here or to another member. Raises Fenced when someone has taken its
        place.
        """
        if isinstance(self._error, Fenced):
            raise self._error
        lost, in_callback = self._lost, _IN_CALLBACK.get()
        if lost is not None and not in_callback:
            self.refused()
            raise lost
        for commit in _uncommitted(self.membership, self._readers, self._current):
            try:
                if metadata is not None:
                    commit = replace(commit, metadata=dict.fromkeys(commit.offsets, metadata))
                await self._connection.run(group_operations.commit_offsets(commit))
            except StaleMember:
                self.refused()
                raise
            self.committed([commit])
        if not in_callback:
            self._passed_on = None

    # Membership

    async def start(self) -> None:
        """Join, and read what is assigned."""
        place = (self.membership.group, self.membership.member)
        self._connection.members[place] = self
        await self._assign(await self._joined())
        self._task = asyncio.create_task(self._beat())

    async def _joined(self) -> list[AssignedPartition]:
        joining = asyncio.ensure_future(self._connection.run(self._join))
        try:
            joined = await asyncio.shield(joining)
        except asyncio.CancelledError:
            # It may become a member all the same, who would keep what it is assigned.
            joining.add_done_callback(partial(_give_up, self._connection))
            raise
        self.membership = joined.membership
        self.members = joined.members
        if self._sizes is None:
            self._sizes = joined.streams
        self._interval = joined.heartbeat
        return joined.assigned

    async def stop(self) -> None:
        """Stop reading and leave, without waiting for the broker."""
        membership = self.membership
        place = (membership.group, membership.member)
        if self._connection.members.get(place) is self:
            del self._connection.members[place]
        for reader in self._readers.values():
            reader.unsubscribe(self._connection)
        self._readers.clear()
        _leave(self._connection, membership)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _beat(self) -> None:
        try:
            while True:
                # Until one is due, or the broker or a reader asks for it.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval):
                        await self._is_called.wait()
                self._is_called.clear()
                await self._assign(await self._heartbeat())
        except Exception as error:  # of the connection, or of a callback
            self._fail(error)

    async def _heartbeat(self) -> list[AssignedPartition]:
        await self._let_go()
        owned = [reader.assigned for reader in self._readers.values()]
        try:
            request = group_operations.heartbeat(self.membership, owned)
            self.membership, assigned = await self._connection.run(request)
        except StaleMember as error:
            await self._lose_everything(error)
            assigned = await self._joined()
        return assigned

    async def _lose_everything(self, error: StaleMember) -> None:
        """This member was taken for gone: what it read is others' by now."""
        if any(reader.is_behind for reader in self._readers.values()):
            self._lost = error
        self._current = None
        for reader in self._readers.values():
            self._revoke(reader)
        lost = [reader.assigned for reader in self._readers.values()]
        self._readers.clear()
        tell = self._on_lost or self._on_revoked
        if lost and tell is not None:
            with suppress(StaleMember):
                await _tell(tell, lost)

    async def _assign(self, assigned: list[AssignedPartition]) -> None:
        """Begin with what is new; see to it that what is assigned no more is let go."""
        wanted = {_key(each): each for each in assigned}
        for key, reader in self._readers.items():
            if key not in wanted and not reader.is_revoked:
                self._revoke(reader)
                self._is_called.set()
        new = [
            each
            for key, each in wanted.items()
            # What is still being let go may be assigned again meanwhile: then once it is gone.
            if key not in self._readers
        ]
        if new and self._on_assigned is not None:
            await _tell(self._on_assigned, new)
        for reader in list(self._readers.values()):
            if reader.is_cut and not reader.is_revoked and not reader.is_paused:
                await self._read_again(reader)
        for each in new:
            await self._subscribe(each)

    def _revoke(self, reader: _Reader) -> None:
        if not reader.is_revoked:
            reader.is_revoked = True
            reader.unsubscribe(self._connection)
            self._items = deque(item for item in self._items if item[0] is not reader)

    async def _let_go(self) -> None:
        """Forget the revoked partitions that nobody works on any more."""
        gone = [
            reader
            for reader in self._readers.values()
            if reader.is_revoked and reader is not self._current
        ]
        if gone and self._on_revoked is not None:
            await _tell(self._on_revoked, [reader.assigned for reader in gone])
        for reader in gone:
            if reader.is_behind:
                self._passed_on = StaleMember("it was let go before it was committed")
            del self._readers[reader.key]

    async def _subscribe(self, assigned: AssignedPartition) -> None:
        reader = _Reader(self, self._connection.next_number(), assigned)
        self._readers[reader.key] = reader
        is_new = assigned.committed is None and _is_new(assigned, self._sizes)
        offset: int | str = self._start if assigned.committed is None else assigned.committed
        found = await self._started(reader, "first" if is_new else offset)
        if found is not None:
            reader.begin(found)
            if is_new:
                reader.is_new = True
        elif self._readers.get(reader.key) is reader:
            del self._readers[reader.key]

    async def _read_again(self, reader: _Reader) -> None:
        """Go on with a partition whose subscription ended with the connection."""
        reader.is_cut = False
        number = reader.number = self._connection.next_number()
        found = await self._started(reader, reader.position)
        if reader.is_cut or reader.number != number:
            # It is to go on somewhere else by now.
            return
        if found is not None:
            reader.position = found
            reader.go_on()
        else:
            reader.is_cut = True

    async def _started(self, reader: _Reader, offset: int | str) -> int | None:
        """Subscribe; where it starts, None when that is for the next heartbeat to say."""
        self._connection.sinks[reader.number] = reader
        try:
            try:
                return (await self._connection.run(reader.request(offset, self._credit))).offset
            except OffsetOutOfRange:
                # Retention has removed what was committed.
                again = reader.request(self._start, self._credit)
                return (await self._connection.run(again)).offset
        except (NotFound, StreamChanged, Interrupted):
            # Deleted since, or the connection was lost.
            self._connection.sinks.pop(reader.number, None)
            self._is_called.set()
            return None


def _leave(connection: ClientConnection, membership: Membership) -> None:
    if connection.error is None and membership.generation:
        connection.send(group_operations.leave(membership), False)


def _give_up(connection: ClientConnection, joining: asyncio.Task[Joined]) -> None:
    """Nobody waited for the answer to JOIN."""
    if not joining.cancelled() and joining.exception() is None:
        _leave(connection, joining.result().membership)


def _is_new(assigned: AssignedPartition, sizes: Mapping[tuple[str, str], int] | None) -> bool:
    """Whether a partition is none of those that streams of these sizes have."""
    if sizes is None:
        return False
    return assigned.partition >= sizes.get((assigned.stream, assigned.incarnation), 0)


def _key(assigned: AssignedPartition) -> _Key:
    return assigned.stream, assigned.incarnation, assigned.partition


def _uncommitted(
    membership: Membership, readers: Mapping[_Key, _Reader], current: _Reader | None
) -> list[OffsetCommit]:
    """What was handed out and is not committed; in a callback without ``current``."""
    by_stream: dict[tuple[str, str], dict[int, int]] = {}
    worked_on = current if _IN_CALLBACK.get() else None
    for (stream, incarnation, partition), reader in readers.items():
        if (reader.is_behind or reader.is_new) and reader is not worked_on:
            by_stream.setdefault((stream, incarnation), {})[partition] = reader.position
    return [
        OffsetCommit(membership.group, stream, offsets, incarnation, membership)
        for (stream, incarnation), offsets in by_stream.items()
    ]


def _find(readers: Iterable[_Reader], stream: str, partition: int) -> _Reader:
    """That of an assigned partition. Raises NotFound."""
    for reader in readers:
        assigned = reader.assigned
        is_it = (assigned.stream, assigned.partition) == (stream, partition)
        if is_it and not reader.is_revoked:
            return reader
    raise NotFound(f"partition {partition} of stream {stream!r} is not assigned")

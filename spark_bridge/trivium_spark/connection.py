"""Talking to the broker: a connection of the native client that comes back after a failure.

Every call is repeated while the broker is away, for ``retryTimeout`` at most. That is safe for what
only reads, for commits and for transactions; a publish that is repeated may publish twice.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from trivium.common.secrets import read_secret
from trivium.streams.records import BatchError, RecordBatch
from trivium_native.errors import (
    AuthenticationFailed,
    Blocked,
    ClosedByOperator,
    ConnectionFailed,
    Fenced,
    NativeError,
    NotFound,
    NotVerified,
    OffsetOutOfRange,
    RequestError,
    ShuttingDown,
    StaleMember,
    StreamChanged,
    TimedOut,
    TooManyRequests,
    Unroutable,
)
from trivium_native.requests import (
    FILTER,
    MAX_STREAMS,
    Operation,
    committed,
    fetch,
    finish,
    metadata,
    offset_for_timestamp,
    publish,
    stage,
    start,
)
from trivium_native.sync import SyncClient, connect
from trivium_native.transaction import Transaction
from trivium_native.values import (
    Fetched,
    FramedMessages,
    Membership,
    Part,
    StoredBatch,
    StreamInfo,
)
from trivium_spark.ending import end_put_off
from trivium_spark.errors import (
    BrokerUnavailable,
    GroupTakenOver,
    OptionError,
    TriviumSparkError,
)
from trivium_spark.offsets import (
    Bounds,
    OffsetRange,
    Offsets,
    Snapshot,
    StreamState,
    check_complete,
    check_partitions,
    partitions_of,
)
from trivium_spark.options import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Access,
    Position,
    Selection,
    StreamPartition,
    format_partition,
)

logger = logging.getLogger("trivium_spark")

T = TypeVar("T")

#: Bytes of one fetch: a task holds a few times this much. With more, memory goes back to the system
#: after each one, and to take it again costs half as much as all else.
FETCH_BYTES: Final = 2 << 20

#: Requests with messages that are under way at a time.
_UNDER_WAY: Final = 4

#: Seconds before the first and, doubled each time, between the last repetitions.
_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 2.0

#: The same between two questions whether the broker has published what was committed.
_FIRST_PAUSE: Final = 0.002
_LAST_PAUSE: Final = 0.02

#: the broker is away, starting, stopping or out of room: all of that passes
TRANSIENT: Final = (ConnectionFailed, TimedOut, Blocked, ShuttingDown, ClosedByOperator)


class StreamGone(Exception):
    """The stream that a range belongs to was deleted. The text says what is there instead."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one fetch has of a range: record batches with their first offsets.

    It has all that is wanted from offset ``start`` up to before ``after``. The first batch may
    begin before ``start``, and the last end after the range.
    """

    start: int
    after: int
    batches: list[tuple[int, RecordBatch]]


class ReconnectingConnection:
    """A connection, made when needed. Methods raise BrokerUnavailable and TriviumSparkError."""

    def __init__(self, access: Access, retry_timeout: float) -> None:
        #: how to come in
        self.access = access
        self._retry_timeout = retry_timeout
        self._client: SyncClient | None = None
        # The fetch that is under way: its place, its number and itself.
        self._ahead: tuple[tuple[OffsetRange, int], int, Operation[Fetched]] | None = None
        # The group that this connection holds.
        self._held: Membership | None = None

    def __enter__(self) -> ReconnectingConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._ahead = None

    def snapshot(self, selection: Selection) -> Snapshot:
        """The state of the streams at this moment. Raises OptionError when there is no such one."""
        pattern = selection.pattern
        names = selection.streams
        questions = (
            metadata(names[first : first + MAX_STREAMS])
            for first in range(0, len(names), MAX_STREAMS)
        )
        try:
            answers = self._repeat_each(questions if pattern is None else iter([metadata()]))
            described = [stream for answer in answers for stream in answer]
        except NotFound as error:
            found = error.text.replace("no stream", "stream", 1)
            raise OptionError(f"{found} does not exist") from None
        except NativeError as error:
            raise TriviumSparkError(error.text) from None
        return {
            stream.name: StreamState(stream.incarnation, _bounds(stream, selection))
            for stream in described
            if pattern is None or pattern.fullmatch(stream.name)
        }

    def partitions(self, stream: str) -> int:
        """How many partitions a stream has. Raises OptionError when there is no such stream."""
        return len(self.snapshot(Selection((stream,)))[stream].partitions)

    def located(self, position: Position, group: str | None, snapshot: Snapshot) -> Position:
        """The same position without times, and without what is up to a group.

        Raises OptionError where nothing arrived at a time or later, if that is an error, and where
        partitions are left out.
        """
        check_partitions([*position.offsets, *position.times], snapshot)
        check_complete(position, snapshot)
        wanted = dict(position.times)
        bounds = dict(partitions_of(snapshot))
        if position.time is not None:
            wanted = dict.fromkeys(bounds, position.time)
        offsets = dict(position.offsets)
        try:
            found = self._repeat_each(
                offset_for_timestamp(stream, number, time, incarnation=snapshot[stream].incarnation)
                for (stream, number), time in wanted.items()
            )
            for key, offset in zip(wanted, found, strict=True):
                is_there = offset < bounds[key].latest
                if not is_there and position.is_strict:
                    raise OptionError(
                        f"{format_partition(key)} has no record of the time {wanted[key]} or later"
                        " (option startingOffsetsByTimestampStrategy: latest begins at the end)"
                    )
                offsets[key] = offset if is_there else LATEST
            if position.otherwise == COMMITTED:
                assert group is not None
                return Position(EARLIEST, {**self._committed(group, snapshot), **offsets})
        except NativeError as error:
            raise TriviumSparkError(error.text) from None
        return Position(position.otherwise, offsets)

    def _committed(self, group: str, snapshot: Snapshot) -> dict[StreamPartition, int]:
        """Where a group has got to in these streams."""
        read = dict(partitions_of(snapshot))
        found: dict[StreamPartition, int] = {}
        requests = (
            committed(group, name, incarnation=state.incarnation)
            for name, state in snapshot.items()
        )
        for name, partitions in zip(snapshot, self._repeat_each(requests), strict=True):
            for each in partitions:
                if each.committed is not None and (name, each.partition) in read:
                    found[name, each.partition] = each.committed
        return found

    def record_sizes(
        self, places: Mapping[StreamPartition, int], snapshot: Snapshot
    ) -> dict[StreamPartition, float]:
        """The bytes of a record in these partitions, about, by what lies at an offset."""
        sizes: dict[StreamPartition, float] = {}
        for (stream, number), offset in places.items():
            wanted = OffsetRange(stream, number, snapshot[stream].incarnation, offset, offset + 1)
            try:
                batches = self.fetch(wanted, offset, max_bytes=1).batches
            except StreamGone:
                continue
            for _, batch in batches:
                sizes[stream, number] = len(batch.data) / batch.count
        return sizes

    @property
    def can_filter(self) -> bool:
        """Whether the broker can hand over the records of some topics alone."""
        return self._repeat(lambda client: FILTER in client.features)

    def fetch(
        self,
        wanted: OffsetRange,
        position: int,
        max_bytes: int = FETCH_BYTES,
        topic_filter: str | None = None,
    ) -> Piece:
        """Record batches of a range, from the one with ``position`` on.

        Without a filter at least one, and otherwise at most about ``max_bytes``. Where that offset
        does not exist any more the part starts at the first that does. It ends where it starts when
        nothing of the range exists from ``position`` on. Raises StreamGone.
        """
        start = position
        try:
            try:
                fetched = self._fetched(wanted, position, max_bytes, topic_filter)
            except OffsetOutOfRange as error:
                first = error.detail.get("first_offset")
                if not isinstance(first, int) or not position < first < wanted.end:
                    return Piece(position, position, [])
                start = first
                fetched = self._fetched(wanted, first, max_bytes, topic_filter)
        except (NotFound, StreamChanged) as error:
            raise StreamGone(error.text) from error
        except NativeError as error:
            raise TriviumSparkError(error.text) from None
        batches = [
            (stored.base_offset, _view(stored, wanted))
            for stored in fetched.batches
            if stored.base_offset < wanted.end
        ]
        after = fetched.next_offset
        if after is None:
            after = batches[-1][0] + batches[-1][1].span if batches else start
            start = max(start, batches[0][0]) if batches else start
        return Piece(start, after, batches)

    def fetch_ahead(
        self,
        wanted: OffsetRange,
        position: int,
        max_bytes: int,
        topic_filter: str | None = None,
    ) -> None:
        """Ask for what ``fetch`` with the same arguments, the next call, will want."""
        assert self._ahead is None
        request = _fetch(wanted, position, max_bytes, topic_filter)
        # What is wrong with the connection is seen when the answer is wanted.
        with suppress(NativeError):
            self._ahead = (wanted, position), start(self._connected(), request), request

    def _fetched(
        self, wanted: OffsetRange, position: int, max_bytes: int, topic_filter: str | None
    ) -> Fetched:
        def call(client: SyncClient) -> Fetched:
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                place, number, request = ahead
                fetched = finish(client, number, request)
                if place == (wanted, position):
                    return fetched
            return client.run(_fetch(wanted, position, max_bytes, topic_filter))

        return self._repeat(call)

    @property
    def is_holding(self) -> bool:
        """Whether this connection has taken a group over."""
        return self._held is not None

    def hold(self, group: str) -> None:
        """Take a group over, or see to it that it is still this connection's.

        Raises GroupTakenOver when someone else has taken it over since.
        """
        held = self._held
        try:
            if held is None:
                self._join(group, f"spark-{secrets.token_hex(8)}")
            else:
                self._repeat(lambda client: client.check_membership(held))
        except (Fenced, StaleMember) as error:
            raise _taken_over(group, error) from error
        except NativeError as error:
            raise TriviumSparkError(f"group {group}: {error.text}") from error

    def _join(self, group: str, name: str) -> None:
        def join(client: SyncClient) -> None:
            with end_put_off():
                self._held = client.join_exclusively(group, name)

        self._repeat(join)

    def release(self) -> None:
        """Leave the group that is held, if that is possible."""
        held, self._held = self._held, None
        if held is not None:
            # The process may be ended within a call, whose answer would come first.
            self.close()
            try:
                self._connected().leave(held)
            except (NativeError, TriviumSparkError) as error:
                logger.info("group %s: not left: %s", held.group, error)

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit a group's offsets. It is a hint for others: a failure is logged, not raised.

        Raises GroupTakenOver when the group was held and is not any more.
        """
        by_stream: dict[str, dict[int, int]] = {stream: {} for stream in offsets.incarnations}
        for (stream, partition), offset in offsets.offsets.items():
            by_stream[stream][partition] = offset
        try:
            client = self._connected()
            for stream, committed in by_stream.items():
                client.commit(
                    group,
                    stream,
                    committed,
                    incarnation=offsets.incarnations[stream],
                    membership=self._held,
                )
        except (Fenced, StaleMember) as error:
            raise _taken_over(group, error) from error
        except (*TRANSIENT, TooManyRequests, RequestError) as error:
            self.close()
            logger.warning("group %s: offsets not committed: %s", group, error)
        except NativeError as error:
            raise TriviumSparkError(error.text) from error

    def publish(self, requests: Iterable[FramedMessages], target: str = "") -> int:
        """Publish request after request; how many messages that were, once all are acknowledged.

        ``target`` is what they all go to, such as ``queue 'q'``, if that is no exchange. Raises
        OptionError where there is no such thing.
        """
        count = 0

        def operations() -> Iterator[Operation[None]]:
            nonlocal count
            for request in requests:
                count += request.count
                yield publish(request)

        try:
            deque(self._repeat_each(operations()), maxlen=0)
        except NativeError as error:
            raise _not_taken("published", target, error) from error
        return count

    def stage(
        self,
        producer: str,
        number: int,
        part: str,
        requests: Iterable[FramedMessages],
        target: str = "",
    ) -> int | None:
        """Stage a part; how many requests it has. None when the number was committed already.

        ``target`` and what is raised are as with ``publish``.
        """
        operations = (
            stage(producer, number, part, index, request) for index, request in enumerate(requests)
        )
        count = 0
        try:
            for is_kept in self._repeat_each(operations):
                if not is_kept:
                    # What is under way is answered the same.
                    self.close()
                    return None
                count += 1
        except NativeError as error:
            raise _not_taken("staged", target, error) from error
        return count

    def commit_parts(
        self, producer: str, number: int, parts: Sequence[Part], target: str = ""
    ) -> None:
        """Commit the parts of a transaction, unless one of that number was committed before.

        Returns when the broker has published all of it. Whoever had the producer open is fenced.
        ``target`` and what is raised are as with ``publish``: the parts stay committed then.
        """
        try:
            opened = self._repeat(lambda client: client.open_producer(producer, transactional=True))
            transaction = Transaction(replace(opened, sequence=number))
            if opened.sequence <= number:
                transaction.commit_parts(parts)
            pause = _FIRST_PAUSE
            while self._repeat(lambda client: client.commit_transaction(transaction)):
                time.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
        except Fenced as error:
            raise TriviumSparkError(
                "another run of this query has taken over, this one must not write"
            ) from error
        except NativeError as error:
            raise _not_taken("published", target, error) from error

    def discard_parts(self, producer: str, parts: Sequence[Part]) -> None:
        """Forget parts, if that is possible: the broker forgets by itself what is left."""
        try:
            client = self._connected()
            for part in parts:
                client.discard_part(producer, part.name)
        except NativeError as error:
            logger.info("parts of %s: not discarded: %s", producer, error)

    def delete_producer(self, producer: str) -> None:
        """Forget a transactional producer, with its number and its parts."""
        try:
            self._repeat(lambda client: client.delete_producer(producer, transactional=True))
        except NativeError as error:
            raise TriviumSparkError(f"producer {producer}: {error.text}") from error

    def _connected(self) -> SyncClient:
        if self._client is None:
            self._client = connect_to(self.access)
        return self._client

    def _repeat(self, call: Callable[[SyncClient], T]) -> T:
        """The result of ``call``, repeated on a new connection while the broker is away."""
        patience = Patience(self._retry_timeout)
        while True:
            try:
                return call(self._connected())
            except TRANSIENT as error:
                self.close()
                patience.pause(error)

    def _repeat_each(self, operations: Iterator[Operation[T]]) -> Iterator[T]:
        """The results of requests, in order, of which some are under way at a time.

        Those without an answer are repeated, in order, on a new connection while the broker is
        away.
        """
        under_way: deque[Operation[T]] = deque()
        sent: deque[int] = deque()
        patience = Patience(self._retry_timeout)
        is_more = True
        while is_more or under_way:
            if is_more and len(under_way) < _UNDER_WAY:
                operation = next(operations, None)
                if operation is None:
                    is_more = False
                    continue
                under_way.append(operation)
            try:
                client = self._connected()
                while len(sent) < len(under_way):
                    sent.append(start(client, under_way[len(sent)]))
                if is_more and len(under_way) < _UNDER_WAY:
                    continue
                result = finish(client, sent[0], under_way[0])
            except TRANSIENT as error:
                self.close()
                sent.clear()
                patience.pause(error)
                continue
            except BaseException:
                # The answers to the others would be taken for those to later requests.
                self.close()
                raise
            sent.popleft()
            under_way.popleft()
            patience = Patience(self._retry_timeout)
            yield result


class Patience:
    """How long a call is repeated, and how long after each failure."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._delay = _FIRST_DELAY

    def pause(self, error: NativeError) -> None:
        """Wait after a failure. Raises BrokerUnavailable once there were failures for too long."""
        # Spread, so that the tasks of many executors do not come back at the same moment.
        pause = self._delay * random.uniform(0.5, 1.0)
        if time.monotonic() + pause > self._deadline:
            raise BrokerUnavailable(
                f"the broker did not answer for {self._seconds:g} seconds"
                f" (option retryTimeout): {error}"
            ) from error
        time.sleep(pause)
        self._delay = min(2 * self._delay, _LAST_DELAY)


def _view(stored: StoredBatch, wanted: OffsetRange) -> RecordBatch:
    """The columns of a batch of ``wanted``. Raises TriviumSparkError when it is damaged."""
    try:
        return stored.view()
    except BatchError as error:
        name = format_partition((wanted.stream, wanted.partition))
        raise TriviumSparkError(f"{name} at offset {stored.base_offset}: {error}") from error


def _fetch(
    wanted: OffsetRange, position: int, max_bytes: int, topic_filter: str | None
) -> Operation[Fetched]:
    return fetch(
        wanted.stream,
        wanted.partition,
        position,
        incarnation=wanted.incarnation,
        max_bytes=max_bytes,
        topic_filter=topic_filter,
    )


def connect_to(access: Access) -> SyncClient:
    """A new connection, with what the file with the password says now. Raises NativeError."""
    password = access.password
    if access.password_file is not None:
        try:
            password = read_secret(access.password_file)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OptionError(f"option passwordFile: {reason}") from None
    try:
        return connect(
            access.url,
            tls=access.tls,
            username=access.username,
            password=password,
            name="spark",
            reconnect=False,
        )
    except AuthenticationFailed as error:
        parts = urlsplit(access.url)
        user = access.username or unquote(parts.username or "")
        place = parts.netloc.rpartition("@")[2]
        if not user:
            raise TriviumSparkError(f"not let in at {place}: {error.text}") from None
        raise TriviumSparkError(
            f"wrong password for user {user} at {place}, or no such user: {error.text}"
        ) from None
    except NotVerified as error:
        # It will not get better by itself.
        raise OptionError(f"option url: {error}") from None
    except (ValueError, NotFound) as error:
        raise OptionError(f"option url: {error}") from error


def _bounds(stream: StreamInfo, selection: Selection) -> tuple[Bounds | None, ...]:
    """The bounds of a stream's partitions. Raises OptionError where one is not there."""
    bounds = [Bounds(part.first_offset, part.high_watermark) for part in stream.partitions]
    if selection.partitions is None:
        return tuple(bounds)
    wanted = selection.partitions[stream.name]
    if max(wanted) >= len(bounds):
        raise OptionError(
            f"option assign: there is no {format_partition((stream.name, max(wanted)))}: stream"
            f" {stream.name!r} has {len(bounds)} partitions"
        )
    return tuple(each if number in wanted else None for number, each in enumerate(bounds))


def _not_taken(what: str, target: str, error: NativeError) -> TriviumSparkError:
    """Why messages were not published or staged."""
    if isinstance(error, Unroutable) and target:
        return OptionError(f"{target} does not exist")
    if isinstance(error, NotFound):
        return OptionError(f"{error.text.removeprefix('no ')} does not exist")
    return TriviumSparkError(f"messages were not {what}: {error.text}")


def _taken_over(group: str, error: NativeError) -> GroupTakenOver:
    return GroupTakenOver(
        f"{error.text}. A group belongs to one query: give each query a group of its own"
        " (option group)"
    )

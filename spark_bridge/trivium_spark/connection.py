"""Talking to the broker: a connection of the native client that comes back after a failure.

Every call is repeated while the broker is away, for ``retryTimeout`` at most. That is safe for what
only reads, for commits and for transactions; a publish that is repeated may publish twice.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, TypeVar

from trivium.common.secrets import read_secret
from trivium.streams.records import BatchError, RecordBatch
from trivium_native.errors import (
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
)
from trivium_native.sync import SyncClient, connect
from trivium_native.transaction import Transaction
from trivium_native.values import Membership, Part, Publication
from trivium_spark.errors import (
    BrokerUnavailable,
    GroupTakenOver,
    OptionError,
    TriviumSparkError,
)
from trivium_spark.offsets import Bounds, OffsetRange, Offsets, Snapshot, StreamState
from trivium_spark.options import Access, format_partition

logger = logging.getLogger("trivium_spark")

T = TypeVar("T")

#: Bytes of one fetch: a task holds a few times this much.
FETCH_BYTES: Final = 4 << 20

#: A request of a publish: enough messages to share one fsync, far below the longest frame.
REQUEST_MESSAGES: Final = 1024
REQUEST_BYTES: Final = 256 << 10

#: Seconds before the first and, doubled each time, between the last repetitions.
_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 2.0

#: The same between two questions whether the broker has published what was committed.
_FIRST_PAUSE: Final = 0.002
_LAST_PAUSE: Final = 0.25

#: The broker is away, starting, stopping or out of room: all of that passes.
_TRANSIENT: Final = (ConnectionFailed, TimedOut, Blocked, ShuttingDown, ClosedByOperator)


class StreamGone(Exception):
    """The stream that a range belongs to was deleted. The text says what is there instead."""


class ReconnectingConnection:
    """A connection, made when needed. Methods raise BrokerUnavailable and TriviumSparkError."""

    def __init__(self, access: Access, retry_timeout: float) -> None:
        #: how to come in
        self.access = access
        self._retry_timeout = retry_timeout
        self._client: SyncClient | None = None
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

    def snapshot(self, streams: Sequence[str]) -> Snapshot:
        """The state of the streams at this moment. Raises OptionError when there is no such one."""
        try:
            described = self._repeat(lambda client: client.metadata(streams))
        except NotFound as error:
            raise OptionError(f"option stream: {error.text}") from error
        except NativeError as error:
            raise TriviumSparkError(error.text) from error
        return {
            stream.name: StreamState(
                stream.incarnation,
                tuple(Bounds(part.first_offset, part.high_watermark) for part in stream.partitions),
            )
            for stream in described
        }

    def fetch(self, wanted: OffsetRange, position: int) -> list[tuple[int, RecordBatch]]:
        """Record batches with their first offsets, from the one with ``position`` on.

        Where that offset does not exist any more the result begins at the first that does. It is
        empty when nothing of the range exists from ``position`` on. Raises StreamGone.
        """
        try:
            try:
                return self._fetch(wanted, position)
            except OffsetOutOfRange as error:
                first = error.detail.get("first_offset")
                if not isinstance(first, int) or not position < first < wanted.end:
                    return []
                return self._fetch(wanted, first)
        except (NotFound, StreamChanged) as error:
            raise StreamGone(error.text) from error
        except NativeError as error:
            raise TriviumSparkError(error.text) from error
        except BatchError as error:
            name = format_partition((wanted.stream, wanted.partition))
            raise TriviumSparkError(f"{name} at offset {position}: {error}") from error

    def _fetch(self, wanted: OffsetRange, position: int) -> list[tuple[int, RecordBatch]]:
        fetched = self._repeat(
            lambda client: client.fetch(
                wanted.stream,
                wanted.partition,
                position,
                incarnation=wanted.incarnation,
                max_bytes=FETCH_BYTES,
            )
        )
        return [(batch.base_offset, batch.view()) for batch in fetched.batches]

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
                name = f"spark-{secrets.token_hex(8)}"
                self._held = self._repeat(lambda client: client.join_exclusively(group, name))
            else:
                self._repeat(lambda client: client.check_membership(held))
        except (Fenced, StaleMember) as error:
            raise _taken_over(group, error) from error
        except NativeError as error:
            raise TriviumSparkError(f"group {group}: {error.text}") from error

    def release(self) -> None:
        """Leave the group that is held, if that is possible."""
        held, self._held = self._held, None
        if held is not None:
            try:
                self._connected().leave(held)
            except NativeError as error:
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
        except (*_TRANSIENT, TooManyRequests, RequestError) as error:
            self.close()
            logger.warning("group %s: offsets not committed: %s", group, error)
        except NativeError as error:
            raise TriviumSparkError(error.text) from error

    def publish(self, messages: Sequence[Publication]) -> None:
        """Publish messages, in order; returns once the broker has acknowledged all of them."""
        try:
            self._repeat(lambda client: client.publish_many(_requests(messages)))
        except NativeError as error:
            raise TriviumSparkError(f"messages were not published: {error.text}") from error

    def stage(
        self, producer: str, number: int, part: str, index: int, entries: list[bytes]
    ) -> bool:
        """Stage a request of a part; False when the number was committed already."""
        try:
            return self._repeat(lambda client: client.stage(producer, number, part, index, entries))
        except NativeError as error:
            raise TriviumSparkError(f"messages were not staged: {error.text}") from error

    def commit_parts(self, producer: str, number: int, parts: Sequence[Part]) -> None:
        """Commit the parts of a transaction, unless one of that number was committed before.

        Returns when the broker has published all of it. Whoever had the producer open is fenced.
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
            raise TriviumSparkError(f"messages were not published: {error.text}") from error

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
            self._client = _connect(self.access)
        return self._client

    def _repeat(self, call: Callable[[SyncClient], T]) -> T:
        """The result of ``call``, repeated on a new connection while the broker is away."""
        deadline = time.monotonic() + self._retry_timeout
        delay = _FIRST_DELAY
        while True:
            try:
                return call(self._connected())
            except _TRANSIENT as error:
                self.close()
                # Spread, so that the tasks of many executors do not come back at the same moment.
                pause = delay * random.uniform(0.5, 1.0)
                if time.monotonic() + pause > deadline:
                    raise BrokerUnavailable(
                        f"the broker did not answer for {self._retry_timeout:g} seconds"
                        f" (option retryTimeout): {error}"
                    ) from error
                time.sleep(pause)
                delay = min(2 * delay, _LAST_DELAY)


def _connect(access: Access) -> SyncClient:
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
            access.url, tls=access.tls, username=access.username, password=password, name="spark"
        )
    except NotVerified as error:
        # It will not get better by itself.
        raise OptionError(f"option url: {error}") from None
    except (ValueError, NotFound) as error:
        raise OptionError(f"option url: {error}") from error


def _taken_over(group: str, error: NativeError) -> GroupTakenOver:
    return GroupTakenOver(
        f"{error.text}. A group belongs to one query: give each query a group of its own"
        " (option group)"
    )


def _requests(messages: Sequence[Publication]) -> Iterator[list[Publication]]:
    """The messages in requests of a moderate size."""
    request: list[Publication] = []
    size = 0
    for message in messages:
        request.append(message)
        size += len(message.payload)
        if len(request) >= REQUEST_MESSAGES or size >= REQUEST_BYTES:
            yield request
            request = []
            size = 0
    if request:
        yield request

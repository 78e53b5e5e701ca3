"""The blocking client: one thread, one socket, no event loop.

For code that has neither, such as a task in a Spark executor::

    with connect("trivium://localhost") as client:
        (info,) = client.metadata(["readings"])
        fetched = client.fetch("readings", 0, info.partitions[0].first_offset)

It makes requests and waits for their answers; it does not subscribe. Not safe for use by several
threads at a time. After ConnectionFailed or RemoteProtocolError only ``close`` makes sense.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, TypeVar

from trivium_native.client import group_operations, operations
from trivium_native.client.operations import Operation
from trivium_native.client.protocol import ClientProtocol, Closed, Reply
from trivium_native.client.transaction import Transaction
from trivium_native.client.url import Target, parse_url
from trivium_native.client.values import (
    Fetched,
    GroupOffset,
    Membership,
    OffsetCommit,
    Producer,
    Publication,
    QueueInfo,
    StreamInfo,
)
from trivium_native.wire.errors import ConnectionFailed, NativeError

T = TypeVar("T")

#: Seconds without any answer after which the broker counts as gone.
DEFAULT_TIMEOUT: Final = 30.0
_READ_SIZE: Final = 1 << 20
#: Publish requests that ``publish_many`` keeps unanswered.
_WINDOW: Final = 16


def connect(url: str | Target, *, timeout: float = DEFAULT_TIMEOUT, name: str = "") -> SyncClient:
    """Connect and authenticate.

    Raises ValueError for a bad URL, ConnectionFailed, AuthenticationFailed, NotFound (vhost).
    """
    return SyncClient(parse_url(url) if isinstance(url, str) else url, timeout, name)


class SyncClient:
    """A connected client that blocks.

    Every method raises the errors of ``trivium_native.wire.errors``.
    """

    def __init__(self, target: Target, timeout: float, name: str) -> None:
        self._protocol = ClientProtocol(target, name=name)
        self._timeout = timeout
        self._replies: dict[int, Reply] = {}
        self._error: NativeError | None = None
        where = f"{target.host}:{target.port}"
        try:
            self._socket = socket.create_connection((target.host, target.port), timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise ConnectionFailed(f"cannot connect to {where}: {error}") from None
        try:
            self._protocol.start()
            self._send()
            while not self._protocol.is_ready:
                self._receive(timeout)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye and close; nothing happens when it is closed already."""
        if self._error is None:
            self._error = ConnectionFailed("the client is closed")
            try:
                self._protocol.close()
                self._send()
            except (OSError, ConnectionFailed):
                pass
        self._socket.close()

    @property
    def max_request(self) -> int:
        """Bytes of the longest request that the broker takes."""
        return self._protocol.max_frame

    # Streams

    def metadata(self, streams: Sequence[str] | None = None) -> list[StreamInfo]:
        """The named streams, or all. Raises NotFound."""
        return self._run(operations.metadata(streams))

    def fetch(
        self,
        stream: str,
        partition: int,
        offset: int | str,
        *,
        incarnation: str | None = None,
        max_bytes: int | None = None,
        min_bytes: int = 1,
        max_wait: float = 0.0,
    ) -> Fetched:
        """Whole record batches from the one that holds ``offset`` on.

        The offset may also be ``first``, ``last`` (the newest record) or ``next``. Waits up to
        ``max_wait`` seconds for ``min_bytes``; the result may be empty. Raises NotFound,
        OffsetOutOfRange, StreamChanged.
        """
        operation = operations.fetch(
            stream,
            partition,
            offset,
            incarnation=incarnation,
            max_bytes=max_bytes,
            min_bytes=min_bytes,
            max_wait=max_wait,
        )
        return self._run(operation, max_wait)

    def offset_for_timestamp(
        self, stream: str, partition: int, timestamp: int, *, incarnation: str | None = None
    ) -> int:
        """The first record that arrived at or after a time in milliseconds since the epoch."""
        return self._run(operations.offset_for_timestamp(stream, partition, timestamp, incarnation))

    def commit(
        self,
        group: str,
        stream: str,
        offsets: Mapping[int, int],
        *,
        incarnation: str | None = None,
        membership: Membership | None = None,
    ) -> None:
        """Commit a group's next offsets by partition; returns once they are durable.

        While the group has members or a holder only they commit, by their ``membership``. Raises
        NotFound, StreamChanged, PreconditionFailed, StaleMember, Fenced.
        """
        self._run(
            group_operations.commit(OffsetCommit(group, stream, offsets, incarnation, membership))
        )

    def committed(
        self, group: str, stream: str, *, incarnation: str | None = None
    ) -> list[GroupOffset]:
        """How far a group is, for all partitions in order."""
        return self._run(group_operations.committed(group, stream, incarnation))

    # Publishing

    def publish(
        self, publications: Sequence[Publication], producer: Producer | None = None
    ) -> None:
        """Publish in one request; returns once what must survive is durable.

        Nothing is sent where there is nothing to publish. With a ``producer`` (see
        ``open_producer``) messages that the broker has already, by their numbers, are not published
        again. Raises Rejected, Unroutable, Fenced, OutOfSequence.
        """
        if publications:
            self._run(operations.publish(publications, producer))

    def publish_many(self, requests: Iterable[Sequence[Publication]]) -> None:
        """Publish request after request without waiting for each; returns once all are durable.

        Raises the first error that a request met, after all that were sent are answered.
        """
        waiting: deque[tuple[int, Operation[None]]] = deque()
        failure: NativeError | None = None
        for publications in requests:
            if not publications:
                continue
            operation = operations.publish(publications)
            waiting.append((self._start(operation), operation))
            if len(waiting) >= _WINDOW:
                failure = self._answered(waiting)
            if failure is not None:
                break
        while waiting:
            failure = self._answered(waiting) or failure
        if failure is not None:
            raise failure

    def _answered(self, waiting: deque[tuple[int, Operation[None]]]) -> NativeError | None:
        correlation, operation = waiting.popleft()
        try:
            self._finish(correlation, operation, self._timeout)
        except NativeError as error:
            return error
        return None

    def open_producer(self, name: str, *, transactional: bool = False) -> Producer:
        """Start a new epoch of an idempotent producer; whoever published in an older one is fenced.

        The result says at which number it goes on: of its messages, or of its transactions.
        """
        return self._run(operations.open_producer(name, transactional))

    # Groups held exclusively, and transactions

    def join_exclusively(self, group: str, member: str) -> Membership:
        """Hold a group, as long as nobody holds it after: its members and former holder are fenced.

        The holder commits with the result, checks with ``check_membership`` that it still is the
        holder, and leaves with ``leave``; there is no time-out.
        """
        return self._run(group_operations.join_exclusively(group, member))

    def check_membership(self, membership: Membership) -> None:
        """Whether this still is the holder of the group. Raises Fenced, StaleMember."""
        self._run(group_operations.heartbeat(membership))

    def leave(self, membership: Membership) -> None:
        """Leave a group. Raises Fenced, StaleMember."""
        self._run(group_operations.leave(membership))

    def stage(
        self, producer: str, sequence: int, part: str, index: int, entries: Sequence[bytes]
    ) -> bool:
        """Stage request ``index`` of a part for a transaction that somebody else will commit.

        ``entries`` are messages as ``Publication.encode`` makes them. Returns once they are
        durable; nobody gets them before that transaction is committed. A request may be repeated.
        False means that it was committed already, and that nothing more can belong to it. Raises
        what publishing raises, PreconditionFailed, OutOfSequence.
        """
        return self._run(operations.stage(producer, sequence, part, index, entries))

    def discard_part(self, producer: str, part: str) -> None:
        """Forget a part, if there is one of that name. Raises PreconditionFailed once committed."""
        self._run(operations.discard_part(producer, part))

    def delete_producer(self, name: str, *, transactional: bool = False) -> None:
        """Forget a producer, its numbers and its parts; one that is opened anew begins at 0.

        Raises PreconditionFailed while parts that it has committed are not published.
        """
        self._run(operations.delete_producer(name, transactional))

    def commit_transaction(self, transaction: Transaction) -> int:
        """Commit a transaction; returns once it is durable.

        The result is how many requests of its parts are still to be published, which the broker
        does by itself: 0 without parts, and once it has published all. Commit again to ask. Then
        an error of publishing means that the broker cannot go on for now, and will try again.

        With a transactional producer (``open_producer(name, transactional=True)``) it may be
        repeated after ConnectionFailed, on any connection. Every other error means that nothing of
        it was done. Raises what publishing and committing offsets raise.
        """
        return self._run(transaction.operation())

    # Topology

    def declare_stream(
        self, name: str, partitions: int = 1, arguments: Mapping[str, object] | None = None
    ) -> str:
        """A stream with this many partitions, made when it is new; its incarnation."""
        return self._run(operations.declare_stream(name, partitions, arguments))

    def declare_queue(
        self, name: str = "", *, durable: bool = True, auto_delete: bool = False
    ) -> QueueInfo:
        """A queue with these properties, made when it is new."""
        return self._run(operations.declare_queue(name, durable=durable, auto_delete=auto_delete))

    def bind_queue(self, queue: str, exchange: str, pattern: bytes | str) -> None:
        """Bind a queue to an exchange."""
        self._run(operations.bind("queue", queue, exchange, _bytes(pattern)))

    def bind_stream(self, stream: str, exchange: str, pattern: bytes | str) -> None:
        """Bind a stream to an exchange."""
        self._run(operations.bind("stream", stream, exchange, _bytes(pattern)))

    def delete_stream(self, name: str) -> None:
        """Delete a stream with its records."""
        self._run(operations.delete("stream", name))

    # I/O

    def _run(self, operation: Operation[T], extra_wait: float = 0.0) -> T:
        return self._finish(self._start(operation), operation, self._timeout + extra_wait)

    def _start(self, operation: Operation[T]) -> int:
        if self._error is not None:
            raise self._error
        correlation = self._protocol.send(operation)
        self._send()
        return correlation

    def _finish(self, correlation: int, operation: Operation[T], timeout: float) -> T:
        while correlation not in self._replies:
            if self._error is not None:
                raise self._error
            self._receive(timeout)
        reply = self._replies.pop(correlation)
        if reply.error is not None:
            raise reply.error
        assert reply.frame is not None
        return operation.result(reply.frame)

    def _send(self) -> None:
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(self._protocol.take_output())
        except OSError as error:
            raise self._fail(ConnectionFailed(f"the connection was lost: {error}")) from None

    def _receive(self, timeout: float) -> None:
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(_READ_SIZE)
        except OSError as error:
            raise self._fail(ConnectionFailed(f"the connection was lost: {error}")) from None
        if not data:
            raise self._fail(ConnectionFailed("the broker closed the connection"))
        try:
            events = self._protocol.receive(data)
        except NativeError as error:
            raise self._fail(error) from None
        for event in events:
            if isinstance(event, Reply):
                self._replies[event.correlation] = event
            elif isinstance(event, Closed):
                raise self._fail(event.error)

    def _fail(self, error: NativeError) -> NativeError:
        self._error = error
        self._socket.close()
        return error


def _bytes(pattern: bytes | str) -> bytes:
    return pattern.encode() if isinstance(pattern, str) else pattern

"""The blocking client: one thread, one socket, no event loop.

For code that has neither, such as a task in a Spark executor::

    with connect("trivium://localhost") as client:
        (info,) = client.metadata(["readings"])
        fetched = client.fetch("readings", 0, info.partitions[0].first_offset)

It makes requests and waits for their answers. Not safe for use by several threads at a time. A
connection that is lost is made again by the next request, which asks again what the broker does
once all the same (``Operation.repeats``).

What lives on a connection, such as a subscription, needs somebody who listens: from the first one
on, there is a second connection with a thread of its own (``background``), which all requests take
that may have to do with it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from trivium.common.client_tls import ClientTls, tls_reason
from trivium.common.pieces import Piece
from trivium.messages.message import AT_LEAST_ONCE, Properties
from trivium_native.client import operations
from trivium_native.client.defaults import (
    CLOSE_TIMEOUT,
    DEFAULT_HEARTBEAT,
    DEFAULT_IN_FLIGHT,
    DEFAULT_TIMEOUT,
    check_window,
)
from trivium_native.client.methods import SyncWithin
from trivium_native.client.operations import Operation
from trivium_native.client.protocol import ClientProtocol, Closed, Reply
from trivium_native.client.reconnecting import Persistence, Reconnect, may_pass, shares
from trivium_native.client.streaming import Streaming
from trivium_native.client.url import ALPN, Target, cannot_connect, make_target
from trivium_native.client.values import (
    FramedMessages,
    Producer,
    Publication,
)
from trivium_native.wire.errors import ConnectionFailed, Interrupted, NativeError, TimedOut

if TYPE_CHECKING:
    from trivium_native.client.background import Background

T = TypeVar("T")

_READ_SIZE: Final = 1 << 20
#: Seconds: a socket with no time left would not block at all.
_SHORTEST: Final = 0.001
#: Pieces of one call; Linux takes 1,024.
_PIECES: Final = 512
#: Most publish requests that ``publish_many`` keeps unanswered.
_MAX_IN_FLIGHT: Final = 16


def connect(
    url: str | Target,
    *,
    tls: ClientTls | None = None,
    username: str | None = None,
    password: str | None = None,
    name: str = "",
    heartbeat: int = DEFAULT_HEARTBEAT,
    window: int = DEFAULT_IN_FLIGHT,
    timeout: float = DEFAULT_TIMEOUT,
    retry: float = 0.0,
    reconnect: Reconnect | bool = True,
    on_connected: Callable[[Target], None] | None = None,
    on_disconnected: Callable[[NativeError], None] | None = None,
) -> SyncClient:
    """Connect and authenticate, with TLS, credentials and reconnecting as the client for asyncio.

    ``timeout`` is in seconds: for connecting, for each answer, and for connecting again. The first
    connection is tried again for ``retry`` seconds where no broker answers. ``heartbeat``, in
    seconds, is for the connection of subscriptions. ``window`` is how many publish requests may be
    in flight: of ``publish_many``, which has at most 16.

    Raises ValueError for a bad URL, a ``window`` below 1, or files of ``tls`` that cannot be used,
    ConnectionFailed, AuthenticationFailed, NotFound (vhost), TimedOut.
    """
    check_window(window)
    persistence = Persistence.of(reconnect, on_connected, on_disconnected, retry)
    target = make_target(url, tls, username, password)
    return SyncClient(target, timeout, name, heartbeat, window, persistence)


def _open_socket(target: Target, timeout: float) -> socket.socket:
    """A connected socket, by TLS where the target says so."""
    context = None if target.tls is None else target.tls.context(ALPN)
    opened: socket.socket | None = None
    try:
        opened = socket.create_connection((target.host, target.port), timeout)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            opened = context.wrap_socket(opened, server_hostname=target.host)
        return opened
    except OSError as error:
        if opened is not None:
            opened.close()
        raise cannot_connect(target, error) from None


def _send_all(connected: socket.socket, pieces: list[Piece]) -> None:
    """Send pieces uncopied, in one call where that can be."""
    sent = 0
    if len(pieces) > 1 and not isinstance(connected, ssl.SSLSocket):
        sent = connected.sendmsg(pieces[:_PIECES])
    for piece in pieces:
        if sent < len(piece):
            connected.sendall(memoryview(piece)[sent:])
        sent = max(0, sent - len(piece))


def _late(place: Target) -> TimedOut:
    return TimedOut(f"no answer from {place.host}:{place.port} in time")


def _lost(error: OSError) -> ConnectionFailed:
    return ConnectionFailed(f"the connection was lost: {tls_reason(error)}")


class SyncClient(Streaming):
    """A connected client that blocks. The methods that make one request are in ``methods``.

    Every method raises the errors of ``trivium_native.wire.errors``.
    """

    def __init__(
        self,
        target: Target,
        timeout: float,
        name: str,
        heartbeat: int,
        window: int,
        persistence: Persistence,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._name = name
        self._heartbeat = heartbeat
        self._window = window
        self._persistence = persistence
        self._background: Background | None = None
        self._replies: dict[int, Reply] = {}
        self._error: NativeError | None = None
        self._is_closed = False
        # When the request under way is given up, and those that were.
        self._end: float | None = None
        self._given_up: set[int] = set()
        # The number of this connection's first request.
        self._first = 1
        self._protocol: ClientProtocol
        self._socket: socket.socket
        self._connect_first()

    def _connect_first(self) -> None:
        end = time.monotonic() + self._persistence.retry
        for wait in self._persistence.first_waits():
            try:
                self._connect(self._timeout)
                return
            except NativeError as error:
                left = end - time.monotonic()
                if left <= 0 or not may_pass(error):
                    raise
            time.sleep(min(wait, left))

    def _connect(self, limit: float) -> None:
        """Connect to the first of the places where a broker answers. Raises as the last one.

        A place that does not answer leaves the others their share of the ``limit`` in seconds.
        """
        end = time.monotonic() + limit
        failure: NativeError | None = None
        for place, share in shares(self._target.places):
            try:
                self._connect_to(place, max((end - time.monotonic()) * share, _SHORTEST))
            except NativeError as error:
                if not may_pass(error):
                    raise
                failure = error
            else:
                self._persistence.connected(place)
                return
        assert failure is not None
        raise failure

    def _connect_to(self, place: Target, limit: float) -> None:
        end = time.monotonic() + limit
        if self._error is not None:
            # No request of this connection has the number of an earlier one.
            self._first = self._protocol.next_correlation
        self._error = None
        self._replies.clear()
        self._given_up.clear()
        self._protocol = ClientProtocol(place, name=self._name, first=self._first)
        self._socket = _open_socket(place, limit)
        try:
            self._protocol.start()
            self._send()
            while not self._protocol.is_ready:
                left = end - time.monotonic()
                if left <= 0:
                    # It says something, but never what is waited for.
                    raise self._fail(_late(place))
                self._receive(left)
        except BaseException:
            self._socket.close()
            raise

    def _connect_again(self) -> None:
        """Make a lost connection again. Raises why it cannot, or not within the time-out."""
        policy = self._persistence.policy
        error = self._error
        assert error is not None
        if policy is None or self._is_closed or not may_pass(error):
            raise error
        limit = self._timeout if policy.limit is None else min(policy.limit, self._timeout)
        end = time.monotonic() + limit
        if self._end is not None:
            end = min(end, self._end)
        for wait in policy.waits():
            time.sleep(min(wait, max(0.0, end - time.monotonic())))
            try:
                self._connect(max(end - time.monotonic(), _SHORTEST))
                return
            except NativeError as failure:
                self._error = failure
                if not may_pass(failure) or time.monotonic() >= end:
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
        if self._background is not None:
            self._background.close()
        if self._error is None:
            try:
                self._protocol.close()
                self._timeout = min(self._timeout, CLOSE_TIMEOUT)
                self._send()
            except (OSError, ConnectionFailed):
                pass
        self._is_closed = True
        self._error = ConnectionFailed("the client is closed")
        self._socket.close()

    @property
    def features(self) -> frozenset[str]:
        """What this broker takes that not all do, such as ``filter`` in a fetch."""
        return self._protocol.features

    @property
    def max_request(self) -> int:
        """Bytes of the longest request that the broker takes."""
        return self._protocol.max_frame

    def within(self, timeout: float) -> SyncWithin:
        """The requests of this client, each given up after so many seconds.

        They raise TimedOut then, and what was asked may still be done; the client goes on.
        """
        return SyncWithin(self._run_within, timeout)

    def _run_within(self, operation: Operation[T], timeout: float) -> T:
        before, self._end = self._end, time.monotonic() + timeout
        try:
            return self.run(operation)
        except TimedOut:
            raise TimedOut(f"no answer within {timeout} s") from None
        finally:
            self._end = before

    def _in_background(self) -> Background:
        """What works while the program does something else. Raises ConnectionFailed."""
        if self._is_closed:
            raise ConnectionFailed("the client is closed")
        if self._background is None:
            from trivium_native.client.background import Background

            self._background = Background(
                self._target,
                self._name,
                self._heartbeat,
                self._timeout,
                self._persistence,
            )
        return self._background

    # Publishing

    def publish(
        self,
        payload: bytes,
        *,
        routing_key: bytes | str = b"",
        exchange: str = "amq.topic",
        properties: Properties | None = None,
        mode: int = AT_LEAST_ONCE,
        persistent: bool | None = None,
        retain: bool = False,
        mandatory: bool = False,
        priority: int = 0,
        key: bytes | None = None,
    ) -> None:
        """Publish one message; see ``publish_batch``, and ``Publication`` for the rest."""
        publication = Publication(
            payload=payload,
            routing_key=routing_key,
            exchange=exchange,
            properties=properties,
            mode=mode,
            persistent=persistent,
            retain=retain,
            mandatory=mandatory,
            priority=priority,
            key=key,
        )
        self.publish_batch([publication])

    def publish_batch(
        self,
        publications: Sequence[Publication] | FramedMessages,
        producer: Producer | None = None,
        *,
        compression: str = "none",
    ) -> None:
        """Publish in one request; returns once what must survive is durable.

        With ``compression``, ``lz4`` or ``zstd``, the request is sent compressed.

        Nothing is sent where there is nothing to publish. With a ``producer`` (see
        ``open_producer``) messages that the broker has already, by their numbers, are not published
        again. Raises Rejected, Unroutable, Fenced, OutOfSequence.
        """
        if publications:
            codec = operations.codec(compression, self._protocol.codecs)
            self.run(operations.publish(publications, producer, codec))

    def publish_many(
        self,
        requests: Iterable[Sequence[Publication] | FramedMessages],
        producer: Producer | None = None,
        *,
        compression: str = "none",
    ) -> None:
        """Publish request after request without waiting for each; returns once all are durable.

        With a ``producer`` the messages have its numbers, one after the other. Raises the first
        error that a request met, after all that were sent are answered.
        """
        waiting: deque[tuple[int, Operation[None]]] = deque()
        failure: NativeError | None = None
        most = min(self._window, _MAX_IN_FLIGHT)
        for publications in requests:
            if not publications:
                continue
            codec = operations.codec(compression, self._protocol.codecs)
            operation = operations.publish(publications, producer, codec)
            if producer is not None:
                producer = replace(producer, sequence=producer.sequence + len(publications))
            waiting.append((self._start(operation), operation))
            if len(waiting) >= most:
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
            self._finish(correlation, operation)
        except NativeError as error:
            return error
        return None

    # I/O

    def run(self, operation: Operation[T]) -> T:
        if operation.belongs:
            self._in_background()
        if self._background is not None:
            timeout = self._timeout + operation.wait
            if self._end is not None:
                timeout = max(0.0, min(timeout, self._end - time.monotonic()))
            found = self._background.run(operation, timeout)
            if operation.secret is None:
                return found
        return self._run_here(operation)

    def _run_here(self, operation: Operation[T]) -> T:
        while True:
            try:
                found = self._finish(self._start(operation), operation)
            except Interrupted:
                if not operation.repeats:
                    raise
            else:
                if operation.secret is not None:
                    # What it came with counts no more.
                    self._target = replace(self._target, password=operation.secret.decode())
                return found

    def _start(self, operation: Operation[T]) -> int:
        """Send a request, and wait for nothing; its number, by which ``_finish`` knows it."""
        if self._error is not None:
            self._connect_again()
        correlation = self._protocol.send(operation)
        try:
            self._send()
        except NativeError as error:
            raise self._interruption(error) from None
        return correlation

    def _finish(self, correlation: int, operation: Operation[T]) -> T:
        """Wait for the answer to a request that was sent."""
        while correlation not in self._replies:
            if correlation < self._first:
                raise Interrupted("the connection that it was sent by is lost")
            if self._error is not None:
                raise self._interruption(self._error)
            if self._end is not None and time.monotonic() >= self._end:
                self._given_up.add(correlation)
                raise TimedOut("no answer in time")
            try:
                self._receive(self._timeout + operation.wait)
            except NativeError as error:
                raise self._interruption(error) from None
        reply = self._replies.pop(correlation)
        if reply.error is not None:
            raise reply.error
        assert reply.frame is not None
        return operation.result(reply.frame)

    def _interruption(self, error: NativeError) -> NativeError:
        """What it means for a request that the connection is lost."""
        if self._persistence.policy is None or self._is_closed or not may_pass(error):
            return error
        return Interrupted(f"{error.text}; the answer had not come")

    def _send(self) -> None:
        try:
            left = self._timeout if self._end is None else self._end - time.monotonic()
            self._socket.settimeout(max(min(self._timeout, left), _SHORTEST))
            _send_all(self._socket, self._protocol.take_output())
        except OSError as error:
            raise self._fail(_lost(error)) from None

    def _receive(self, timeout: float) -> None:
        left = timeout if self._end is None else self._end - time.monotonic()
        try:
            self._socket.settimeout(max(min(timeout, left), _SHORTEST))
            data = self._socket.recv(_READ_SIZE)
        except OSError as error:
            if isinstance(error, TimeoutError) and left < timeout:
                return
            raise self._fail(_lost(error)) from None
        if not data:
            raise self._fail(self._protocol.ended())
        try:
            events = self._protocol.receive(data)
        except NativeError as error:
            raise self._fail(error) from None
        for event in events:
            if isinstance(event, Reply):
                if event.correlation in self._given_up:
                    self._given_up.discard(event.correlation)
                    continue
                self._replies[event.correlation] = event
            elif isinstance(event, Closed):
                raise self._fail(event.error)

    def _fail(self, error: NativeError) -> NativeError:
        if self._error is None and self._protocol.is_ready:
            self._persistence.disconnected(error)
        self._error = error
        self._socket.close()
        return error


# For what works beside a client


def start(client: SyncClient, operation: Operation[T]) -> int:
    """Send a request, and wait for nothing; its number, by which ``finish`` knows it."""
    return client._start(operation)


def finish(client: SyncClient, number: int, operation: Operation[T]) -> T:
    """Wait for the answer to a request that was sent, and say what it is. Raises NativeError."""
    return client._finish(number, operation)


def socket_of(client: SyncClient) -> socket.socket:
    """What it speaks through, if not in the background."""
    return client._socket


def background_of(client: SyncClient) -> Background:
    """What works while the program does something else. Raises ConnectionFailed."""
    return client._in_background()

"""Native publisher, consumer of a queue, and reader of a stream, of the load generator."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench import native_frames
from bench.endpoints import (
    Address,
    PeerError,
    Publisher,
    Receiver,
    closed_on_error,
    connect,
    receive_exactly,
)
from bench.frames import SEQUENCE, STAMP, FrameBlock, Rows, layout, payload_fields, rows_per_batch
from bench.native_frames import CONFIRM_LAYOUT, HEAD, MESSAGES

_SUBSCRIPTION: Final = 1
_FETCH_BYTES: Final = 64 * 1024
"""Asked for at a time; one record batch comes however large it is."""
_FETCH_WAIT_MS: Final = 60_000
"""Longer than a broker is silent in a run."""


def _unexpected(kind: int, body: bytes, wanted: str) -> PeerError:
    """Return the error for a frame that is not what was ``wanted``."""
    if kind == native_frames.ERROR:
        code, text, *_ = native_frames.unpack(body)
        return PeerError(f"refused: {code} {text}")
    return PeerError(f"frame of type {kind:#04x} where {wanted} was expected")


def _unexpected_at(buffer: bytearray, at: int, filled: int, wanted: str) -> PeerError:
    length, kind, _ = HEAD.unpack(buffer[at : min(at + HEAD.size, filled)].ljust(HEAD.size, b"\0"))
    body = bytes(buffer[at + HEAD.size : min(at + 4 + length, filled)])
    return _unexpected(kind, body, wanted)


class NativeSetup:
    """A connection that is let in, driven by blocking calls."""

    def __init__(self, address: Address) -> None:
        self.socket = connect(address)
        with closed_on_error(self.socket):
            self.socket.sendall(
                native_frames.request(native_frames.HELLO, 1, protocol="trivium", version=1)
                + native_frames.request(native_frames.AUTH, 2)
            )
            self._expect(native_frames.HELLO)
            self._expect(native_frames.OK)

    def call(self, kind: int, /, **fields: object) -> Any:
        """Send a request and return the map of its reply.

        Raises:
            PeerError: the broker refused it.
        """
        self.socket.sendall(native_frames.request(kind, 1, **fields))
        return self._expect(native_frames.OK)

    def _expect(self, reply: int) -> Any:
        length, kind, _ = HEAD.unpack(receive_exactly(self.socket, HEAD.size))
        body = receive_exactly(self.socket, length - HEAD.size + 4)
        if kind != reply:
            raise _unexpected(kind, body, f"type {reply:#04x}")
        return native_frames.unpack(body)

    def declare(self, kind: str, name: str) -> None:
        """Declare a durable ``queue`` or a ``stream`` of one partition."""
        self.call(native_frames.DECLARE, kind=kind, name=name)

    def delete(self, kind: str, name: str) -> None:
        """Delete a ``queue``, a ``stream`` or a ``producer``."""
        self.call(native_frames.DELETE, kind=kind, name=name)

    def open_producer(self, name: str) -> tuple[int, int]:
        """Open an idempotent producer; return its epoch and its next number."""
        reply = self.call(native_frames.PRODUCER, producer=name)
        return reply["epoch"], reply["sequence"]

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class NativePublisher(Publisher):
    """Publishes persistent messages to a queue or a stream, so many to a request.

    What is left for less than a whole request, and what is due in a paced run, goes in requests of
    one message.
    """

    def __init__(
        self,
        address: Address,
        name: str,
        payload: bytes,
        batch: int,
        per_request: int = 1,
        *,
        is_idempotent: bool = False,
    ) -> None:
        setup = NativeSetup(address)
        producer, epoch, self._first_number = b"", 0, 0
        if is_idempotent:
            producer = name.encode()
            with closed_on_error(setup.socket):
                epoch, self._first_number = setup.open_producer(name)
        self._blocks: dict[int, FrameBlock] = {}
        for count in (1, per_request):
            frame, fields = native_frames.publish(name, payload, count, producer, epoch)
            rows = rows_per_batch(len(frame), max(1, batch // count))
            self._blocks[count] = FrameBlock(frame, fields, rows)
        super().__init__(setup.socket, self._blocks[1])
        self._per_request = per_request
        self._is_idempotent = is_idempotent
        self._next_request = 1
        self._next_confirmed = 1
        self._unconfirmed: deque[list[int]] = deque()
        """Of requests that follow each other and have equally many messages: how many requests are
        not confirmed, messages of each."""

    def publish(self, most: int) -> int:
        count = self._per_request if most >= self._per_request else 1
        block = self._blocks[count]
        requests = min(most // count, block.rows)
        block.column(MESSAGES)[STAMP][:requests] = time.monotonic_ns()
        self._send_requests(block, count, requests)
        return requests * count

    def publish_due(self, due: npt.NDArray[np.uint64]) -> None:
        block = self._blocks[1]
        for start in range(0, len(due), block.rows):
            stamps = due[start : start + block.rows]
            block.column(MESSAGES)[STAMP][: len(stamps), 0] = stamps
            self._send_requests(block, 1, len(stamps))

    def _send_requests(self, block: FrameBlock, count: int, requests: int) -> None:
        numbers = np.arange(self.sent, self.sent + requests * count, dtype=np.uint64)
        block.column(MESSAGES)[SEQUENCE][:requests] = numbers.reshape(requests, count)
        first = self._next_request
        block.column(native_frames.CORRELATION)[:requests] = np.arange(first, first + requests)
        if self._is_idempotent:
            block.column(native_frames.NUMBER)[:requests] = numbers[::count] + self._first_number
        self._next_request += requests
        self._unconfirmed.append([requests, count])
        self.write(block.take(requests))
        self.sent += requests * count

    def consume(self, filled: int) -> int:
        whole = filled // CONFIRM_LAYOUT.size * CONFIRM_LAYOUT.size
        for index, frame in enumerate(CONFIRM_LAYOUT.iter_unpack(self.buffer[:whole])):
            length, kind, first, requests = frame
            if kind != native_frames.CONFIRM or length != CONFIRM_LAYOUT.size - 4:
                raise _unexpected_at(self.buffer, index * CONFIRM_LAYOUT.size, filled, "CONFIRM")
            self._confirm(first, requests)
        return whole

    def _confirm(self, first: int, requests: int) -> None:
        if first != self._next_confirmed:
            raise PeerError(f"request {first} confirmed where {self._next_confirmed} is next")
        self._next_confirmed += requests
        while requests and self._unconfirmed:
            run = self._unconfirmed[0]
            confirmed = min(requests, run[0])
            self.settled += confirmed * run[1]
            requests -= confirmed
            run[0] -= confirmed
            if not run[0]:
                self._unconfirmed.popleft()
        if requests:
            raise PeerError(f"{requests} requests confirmed that were never sent")


class NativeConsumer(Receiver):
    """Consumes one queue and settles every ``acknowledge_every`` messages with one range."""

    def __init__(
        self,
        setup: NativeSetup,
        queue: str,
        payload: bytes,
        credit: int,
        acknowledge_every: int,
        receive_bytes: int,
    ) -> None:
        with closed_on_error(setup.socket):
            setup.call(
                native_frames.SUBSCRIBE,
                subscription=_SUBSCRIPTION,
                mode="queue",
                queue=queue,
                credit=credit,
            )
        self._head, self._size, fields = native_frames.delivery(_SUBSCRIPTION, queue, payload)
        super().__init__(setup.socket, max(receive_bytes, 2 * self._size))
        self._layout = layout(self._size, fields)
        self._every = acknowledge_every
        self._acknowledged = 0
        ack, ack_fields = native_frames.ack(_SUBSCRIPTION)
        self._acks = FrameBlock(ack, ack_fields, len(self.buffer) // self._size + 1)

    def consume(self, filled: int) -> int:
        count = filled // self._size
        used = count * self._size
        for position in (0, max(0, used - self._size), used):
            found = self.buffer[position : min(position + len(self._head), filled)]
            if not self._head.startswith(found):
                raise _unexpected_at(self.buffer, position, filled, "a delivery")
        if count:
            rows: Rows = np.frombuffer(self.buffer, dtype=self._layout, count=count)
            self.observe(rows)
            self._acknowledge(int(rows[native_frames.TAG][-1]))
        return used

    def _acknowledge(self, tag: int) -> None:
        last = np.arange(self._acknowledged + self._every, tag + 1, self._every, dtype=np.uint64)
        if len(last):
            self._acks.column(native_frames.FIRST_TAG)[: len(last)] = last - (self._every - 1)
            self._acks.column(native_frames.LAST_TAG)[: len(last)] = last
            self.write(self._acks.take(len(last)))
            self._acknowledged = int(last[-1])

    def finish(self) -> None:
        if self._acknowledged < self.check.received:
            self._acks.column(native_frames.FIRST_TAG)[0] = self._acknowledged + 1
            self._acks.column(native_frames.LAST_TAG)[0] = self.check.received
            self.write(self._acks.take(1))
            self._acknowledged = self.check.received


class NativeReader(Receiver):
    """Reads a stream from its begin, a FETCH at a time."""

    def __init__(self, setup: NativeSetup, stream: str, payload: bytes, receive_bytes: int) -> None:
        super().__init__(setup.socket, max(receive_bytes, 2 * len(payload) + _FETCH_BYTES))
        self._stream = stream
        self._size = len(payload)
        self._layout = layout(len(payload), payload_fields(0))
        self._offset = 0
        self._fetch()

    def _fetch(self) -> None:
        self.write(native_frames.fetch(1, self._stream, self._offset, _FETCH_BYTES, _FETCH_WAIT_MS))

    def consume(self, filled: int) -> int:
        if filled < HEAD.size:
            return 0
        length, kind, _ = HEAD.unpack_from(self.buffer)
        used: int = length + 4
        if filled < used:
            return 0
        if kind != native_frames.FETCHED:
            raise _unexpected_at(self.buffer, 0, filled, "FETCHED")
        self._take(HEAD.size)
        self._fetch()
        return used

    def _take(self, at: int) -> None:
        """Take the record batches of a reply whose body begins at ``at``."""
        *_, batches, _ = native_frames.FETCHED_HEAD.unpack_from(self.buffer, at)
        at += native_frames.FETCHED_HEAD.size
        for _ in range(batches):
            base, size, _ = native_frames.FETCHED_BATCH.unpack_from(self.buffer, at)
            at += native_frames.FETCHED_BATCH.size
            try:
                count, payloads_at = native_frames.payloads(self.buffer, at, self._size)
            except ValueError as error:
                raise PeerError(str(error)) from error
            rows: Rows = np.frombuffer(self.buffer, self._layout, count, payloads_at)
            # The first may begin before the offset that was asked for.
            self.observe(rows[self._offset - base :])
            self._offset = base + count
            at += (size + 7) // 8 * 8

"""PUBLISH of one client: carried out, confirmed or refused; one of very many messages takes turns.

Between two turns others are served. Meanwhile nothing else of the client is taken, so what it sends
behind stays behind. What such a request costs in memory, opened and read, is far more than what it
came as, so it begins only once that of nobody else is under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i64_le
from mypy_extensions import i64

from trivium import errors as core
from trivium.runtime.framed import Work
from trivium_native.server.answers import Answers, error_frame
from trivium_native.server.batches import STEP
from trivium_native.server.handshake import BEHIND_REQUEST
from trivium_native.server.publishing import UNFINISHED, Publisher
from trivium_native.wire.errors import NativeError, Rejected, Unroutable
from trivium_native.wire.messages import PUBLISH_HEAD_SIZE

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Why input is held: the disk is behind with what the client has published.
BEHIND_DISK: Final = BEHIND_REQUEST << 1


class LongRequests:
    """Which of all long requests is under way. One for a broker."""

    def __init__(self) -> None:
        self._holder: LongRequest | None = None

    def admits(self, request: LongRequest) -> bool:
        """Whether it may begin or go on; from now on no other does until it is left."""
        holder = self._holder
        if holder is not None and holder is not request:
            return False
        self._holder = request
        return True

    def left(self, request: LongRequest) -> None:
        """It is over."""
        if self._holder is request:
            self._holder = None


class PublishRequests:
    """Carries out the PUBLISH requests of one connection."""

    def __init__(
        self,
        connection: NativeConnection,
        publisher: Publisher,
        answers: Answers,
        long_requests: LongRequests,
    ) -> None:
        self.connection = connection
        self.publisher = publisher
        self.long_requests = long_requests
        self._answers = answers

    def take(self, correlation: int, data: bytes, at: i64, end: i64) -> None:
        """Publish the messages of the request ``data[at:end]``.

        Raises what refuses it before anything was published.
        """
        count: i64 = 0
        if end - at >= PUBLISH_HEAD_SIZE:
            count = read_i64_le(data, at) & 0xFFFF_FFFF
            if count > STEP and self.publisher.payloads is None:
                request = LongRequest(self, correlation, data, at, end, count)
                if not request.go_on():
                    self.connection.take_turns(request)
                return
        try:
            write_batch = self.publisher.publish(data, at, end)
        except (Rejected, Unroutable) as error:
            self.refuse_some(correlation, error)
            return
        if correlation:
            self.confirm(correlation, write_batch, count)

    def confirm(self, correlation: int, write_batch: int, count: i64) -> None:
        """So many messages are published, and durable with ``write_batch``."""
        answers = self._answers
        connection = self.connection
        storage = connection.broker.storage
        if write_batch > storage.durable:
            answers.confirm_after(write_batch, correlation, count)
            if answers.is_new(write_batch):
                storage.wait(connection)
            if answers.unconfirmed > answers.most:
                connection.hold_input(BEHIND_DISK)
        else:
            answers.confirm(correlation, count)

    def refuse_some(self, correlation: int, error: NativeError) -> None:
        """Name the messages that are refused."""
        if correlation:
            # The others were published: the answer is true of them only once they are durable.
            self.connection.send_when_durable(error_frame(correlation, error))

    def count_opened(self) -> None:
        """Messages came compressed, and are more bytes than came."""
        publisher = self.publisher
        size = publisher.unpacked
        if size:
            publisher.unpacked = 0
            self.connection.count_opened(size)


class LongRequest(Work):
    """One PUBLISH of more than ``STEP`` messages."""

    def __init__(
        self,
        requests: PublishRequests,
        correlation: int,
        data: bytes,
        at: i64,
        end: i64,
        count: i64,
    ) -> None:
        self._requests = requests
        self._correlation = correlation
        self._data = data
        self._at: i64 = at
        self._end: i64 = end
        self._count: i64 = count
        self._has_begun = False

    def go_on(self) -> bool:
        if not self._requests.long_requests.admits(self):
            return False
        is_done = True
        try:
            is_done = self._step()
        finally:
            if is_done:
                self.give_up()
        return is_done

    def give_up(self) -> None:
        self._requests.publisher.give_up()
        self._requests.long_requests.left(self)

    def _step(self) -> bool:
        """Publish what fits in the turn, and answer once that is all; whether it is."""
        requests = self._requests
        publisher = requests.publisher
        correlation = self._correlation
        try:
            if self._has_begun:
                write_batch = publisher.go_on()
            else:
                self._has_begun = True
                data = self._data
                self._data = b""
                write_batch = publisher.publish(data, self._at, self._end)
            if write_batch == UNFINISHED:
                return False
            if correlation:
                requests.confirm(correlation, write_batch, self._count)
        except (Rejected, Unroutable) as error:
            requests.refuse_some(correlation, error)
        except (NativeError, core.TopologyError) as error:
            requests.connection.refuse_request(correlation, error)
        finally:
            requests.count_opened()
        return True

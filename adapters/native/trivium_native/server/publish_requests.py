"""PUBLISH of one client: carried out, confirmed or refused; one of very many messages or deliveries
takes turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i64_le
from mypy_extensions import i64

from trivium import errors as core
from trivium.messages.large import LargePayload
from trivium.runtime.long_requests import STEP, LongFrame
from trivium_native.server.answers import Answers, error_frame
from trivium_native.server.handshake import BEHIND_REQUEST
from trivium_native.server.publishing import UNFINISHED, Publisher
from trivium_native.wire.errors import NativeError, Rejected, Unroutable
from trivium_native.wire.messages import MAX_MESSAGES, PUBLISH_HEAD_SIZE

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Why input is held: the disk is behind with what the client has published.
BEHIND_DISK: Final = BEHIND_REQUEST << 1


class PublishRequests:
    """Carries out the PUBLISH requests of one connection."""

    def __init__(
        self,
        connection: NativeConnection,
        publisher: Publisher,
        answers: Answers,
    ) -> None:
        self.connection = connection
        self.publisher = publisher
        self._answers = answers

    def take(self, correlation: int, data: bytes, at: i64, end: i64) -> None:
        """Publish the messages of the request ``data[at:end]``.

        Raises what refuses it before anything was published.
        """
        publisher = self.publisher
        count: i64 = 0
        if end - at >= PUBLISH_HEAD_SIZE:
            count = read_i64_le(data, at) & 0xFFFF_FFFF
            if STEP < count <= MAX_MESSAGES:
                request = LongPublish(self, correlation, count, True)
                request.data = data
                request.at = at
                request.end = end
                request.payloads = publisher.payloads
                self.connection.broker.long_requests.enter(request)
                return
        try:
            write_batch = publisher.publish(data, at, end)
        except (Rejected, Unroutable) as error:
            self.refuse_some(correlation, error)
            return
        if write_batch == UNFINISHED:
            request = LongPublish(self, correlation, count, False)
            self.connection.broker.long_requests.enter(request)
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


class LongPublish(LongFrame):
    """One PUBLISH that takes turns."""

    def __init__(
        self, requests: PublishRequests, correlation: int, count: i64, needs_place: bool
    ) -> None:
        super().__init__(requests.connection, needs_place)
        self._requests = requests
        self._correlation = correlation
        self._count: i64 = count
        #: what has yet to be read, where it has not begun
        self.data = b""
        self.at: i64 = 0
        self.end: i64 = 0
        self.payloads: list[LargePayload] | None = None

    def release(self) -> None:
        self._requests.publisher.give_up()

    def step(self) -> bool:
        requests = self._requests
        publisher = requests.publisher
        correlation = self._correlation
        data = self.data
        try:
            if data:
                self.data = b""
                publisher.payloads = self.payloads
                self.payloads = None
                write_batch = publisher.publish(data, self.at, self.end)
            else:
                write_batch = publisher.go_on()
            if write_batch == UNFINISHED:
                return False
            if correlation:
                requests.confirm(correlation, write_batch, self._count)
        except (Rejected, Unroutable) as error:
            requests.refuse_some(correlation, error)
        except (NativeError, core.TopologyError) as error:
            requests.connection.refuse_request(correlation, error)
        finally:
            publisher.payloads = None
            requests.count_opened()
        return True

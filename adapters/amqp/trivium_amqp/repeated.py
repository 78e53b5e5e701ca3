"""The fast road: frames that are recognised by comparing them with what came before, unread.

A publish whose frames up to the body are those of the publish before it means the same. An
acknowledgement differs from the last one on its channel in its tag and its bits alone. What is
recognised here is what reading it in full would have admitted, and the same functions then carry it
out (``Publisher.publish``, ``Channel.acknowledge``). tests/amqp/test_repeated.py holds both roads
against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from trivium.common.native import lies_at
from trivium_amqp.codec import methods
from trivium_amqp.codec.frames import (
    BODY,
    CONFIRM_SIZE,
    CONTENT_HEADER,
    CONTENT_HEADER_SIZE,
    END,
    HEAD,
    HEADER,
    METHOD,
    U32,
    U64,
)

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost
    from trivium_amqp.channel import Channel
    from trivium_amqp.content import ContentHeader, Target
    from trivium_amqp.publisher import Publisher

_PUBLISH_ID: Final = U32.pack(methods.BASIC_PUBLISH)
_ACK_ID: Final = U32.pack(methods.BASIC_ACK)


class RepeatedPublish:
    """A publish that is expected to come again with another body."""

    def __init__(
        self,
        publisher: Publisher,
        target: Target,
        header: ContentHeader,
        arguments: bytes,
        size: int,
        largest_body: int,
    ) -> None:
        self.publisher = publisher
        self.target = target
        self.header = header
        number = publisher.number
        # Its frames up to the size of the body in the content header.
        self._head = b"".join(
            (
                HEAD.pack(METHOD, number, 4 + len(arguments)),
                _PUBLISH_ID,
                arguments,
                END,
                HEAD.pack(HEADER, number, CONTENT_HEADER_SIZE + len(header.received)),
                CONTENT_HEADER,
            )
        )
        # From behind that size up to the size of the body frame, and where that begins.
        self._middle = header.received + END + HEAD.pack(BODY, number, 0)[:3]
        self._middle_at = len(self._head) + 8
        # Bytes of body, and all of the frames up to such a body.
        self._size = size
        self._prefix = b"".join((self._head, U64.pack(size), self._middle, U32.pack(size)))
        #: where the body begins
        self.body_at = len(self._prefix)
        self._largest_body = largest_body

    def is_valid(self, vhost: VirtualHost) -> bool:
        """Whether it still leads where it led."""
        return self.target.route.topology_version == vhost.topology_version

    def may_begin(self, data: bytes, at: i64) -> bool:
        """Whether what begins at ``at`` is as far the same."""
        return lies_at(data, at, self._head)

    def body_size(self, data: bytes, at: i64) -> int:
        """Bytes of body, all in one frame, of the publish at ``at``; 0 when it must be read.

        Some of the body may not be there yet.
        """
        if lies_at(data, at, self._prefix):
            return self._size
        middle_at: i64 = at + self._middle_at
        body_at: i64 = at + self.body_at
        if (
            body_at > len(data)
            or not lies_at(data, middle_at, self._middle)
            or not self.may_begin(data, at)
        ):
            return 0
        size = i64(read_i32_be(data, body_at - 4))
        if not 0 <= size <= self._largest_body or read_i64_be(data, middle_at - 8) != size:
            return 0
        return size


class Repeats:
    """What a connection recognises at the moment."""

    def __init__(self) -> None:
        #: largest body that may come in one frame; while it is 0 nothing is recognised
        self.largest_body = 0
        self.publish: RepeatedPublish | None = None
        #: the channel whose acknowledgements are recognised, and how they begin
        self.ack_channel: Channel | None = None
        self.ack_prefix = b""

    def expect_publish(
        self,
        publisher: Publisher,
        target: Target,
        header: ContentHeader,
        arguments: bytes,
        size: int,
    ) -> None:
        """Recognise publishes that begin like one with a body of ``size`` bytes."""
        if 0 < size <= self.largest_body:
            self.publish = RepeatedPublish(
                publisher, target, header, arguments, size, self.largest_body
            )

    def expect_acknowledgements(self, channel: Channel) -> None:
        """Recognise basic.ack on ``channel``."""
        if self.largest_body:
            self.ack_channel = channel
            self.ack_prefix = HEAD.pack(METHOD, channel.number, CONFIRM_SIZE) + _ACK_ID

    def is_acknowledgement(self, data: bytes, at: i64) -> bool:
        """Whether basic.ack on ``ack_channel`` begins at ``at``."""
        return lies_at(data, at, self.ack_prefix)

    def forget(self) -> None:
        """Read the next frames in full: what they mean may have changed."""
        self.publish = None
        self.ack_channel = None

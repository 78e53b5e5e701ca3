"""What a channel in transaction mode holds back until tx.commit (AMQP 0-9-1, 1.9).

Commit applies everything within one turn, which is one write batch of the storage: all of it is
durable, or nothing is.
"""

from __future__ import annotations

from typing import Final

from trivium.messages.large import Content, content_size
from trivium.queues.queue import QueueEntry
from trivium_amqp.codec.errors import PRECONDITION_FAILED, ChannelException
from trivium_amqp.content import ContentHeader, Target

#: What each publish counts beside its bytes, so that empty messages are bounded too.
_PUBLISH_BYTES: Final = 256

#: What an acknowledgement does with an entry.
SETTLE: Final = 0
REQUEUE: Final = 1
REJECT: Final = 2


class Transaction:
    """Publishes and acknowledgements since tx.select or the last commit or rollback."""

    def __init__(self, most: int) -> None:
        """``most``: bytes of bodies and properties that it may hold in memory."""
        self.publishes: list[tuple[Target, ContentHeader, Content]] = []
        #: the delivery, and SETTLE, REQUEUE or REJECT
        self.acknowledgements: list[tuple[QueueEntry, int]] = []
        self._size = 0
        self._most = most

    def publish(self, target: Target, header: ContentHeader, body: Content) -> None:
        """Hold a publish back. Raises ChannelException (406) when the transaction is too large."""
        self._size += content_size(body) + len(header.header) + _PUBLISH_BYTES
        if self._size > self._most:
            raise ChannelException(
                PRECONDITION_FAILED, f"transaction is larger than {self._most} bytes"
            )
        self.publishes.append((target, header, body))

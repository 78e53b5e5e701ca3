"""The messages of one request with several, while they are read and published."""

from __future__ import annotations

from mypy_extensions import i64

from trivium.messages.large import LargePayload
from trivium.messages.message import Message
from trivium.routing.exchanges import Route


def is_plain(message: Message) -> bool:
    """Whether nothing sets a message apart from others of its address, mode and publisher."""
    return not (message.expires or message.deliver_at or message.retain or message.insists)


class Batch:
    """How far one request is."""

    def __init__(
        self,
        data: bytes,
        at: i64,
        end: i64,
        count: i64,
        payloads: list[LargePayload] | None,
        topology_version: int,
    ) -> None:
        self.data = data
        #: where what is not read begins, and where it ends
        self.at: i64 = at
        self.end: i64 = end
        self.count: i64 = count
        #: the large payloads, where they do not lie in the data
        self.payloads = payloads
        #: the virtual host's, as of the first route
        self.topology_version = topology_version
        #: what is read; indexes of the mandatory messages
        self.routes: list[Route] = []
        self.messages: list[Message] = []
        self.mandatory: set[int] = set()
        #: how many of the first are published, or need not be
        self.published: i64 = 0
        #: of an idempotent request: who numbers the messages, and the number of the first
        self.is_idempotent = False
        self.producer = b""
        self.epoch = 0
        self.sequence = 0
        #: the write batch to wait for, or 0; indexes of what was refused
        self.wait = 0
        self.rejected: list[int] = []
        self.unroutable: list[int] = []
        #: whether nothing more is published: an idempotent request stops at the first refusal
        self.has_stopped = False

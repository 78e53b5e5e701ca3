"""Streams: append-only logs in partitions, read by offset. (Contract; being written.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.exchanges import Destination
from trivium.message import HeaderValue, Message

if TYPE_CHECKING:
    from trivium.vhost import VirtualHost


class Stream(Destination):
    def __init__(
        self,
        vhost: VirtualHost,
        name: str,
        partitions: int,
        incarnation: str,
        arguments: dict[str, HeaderValue],
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.incarnation = incarnation
        self.arguments = arguments
        self.partitions: list[object] = [None] * partitions

    def accept(self, message: Message) -> int:
        raise NotImplementedError

    def deleted(self) -> None:
        raise NotImplementedError

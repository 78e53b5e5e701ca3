"""Which publishers of a connection have something to confirm, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium_amqp.publisher import Publisher


class Confirms:
    """The publishers of one connection that owe their client a confirm."""

    def __init__(self) -> None:
        #: those with something that waits for nothing: it is confirmed at the end of this feed
        self.at_end: list[Publisher] = []
        #: those with something that waits for a write batch, by channel number
        self.awaiting: dict[int, Publisher] = {}

    def flush(self) -> None:
        """Confirm what waits for nothing."""
        if self.at_end:
            for publisher in self.at_end:
                publisher.flush_confirms()
            self.at_end.clear()

    def write_batch_durable(self, write_batch: int) -> None:
        """Confirm what waited for ``write_batch`` or an earlier one."""
        if self.awaiting:
            for number, publisher in list(self.awaiting.items()):
                if not publisher.write_batch_durable(write_batch):
                    del self.awaiting[number]

    def line_up(self) -> None:
        """Confirm what waits for nothing, and have what waits for the disk confirmed before the
        close of the connection."""
        self.flush()
        for publisher in self.awaiting.values():
            publisher.line_up_confirms()

    def clear(self) -> None:
        """Nothing is confirmed any more."""
        self.at_end.clear()
        self.awaiting.clear()

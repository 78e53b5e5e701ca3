"""Readers with a filter take turns: however many there are, they have a part of each turn alone.

What comes into a partition is looked at once for each of them. So a partition that is written to
much, and read by many, would keep everybody else waiting.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mypy_extensions import i64, mypyc_attr

from trivium.common.timers import Timed
from trivium.host import Host
from trivium.streams.filtering import PAGE_COST
from trivium.streams.stream import StreamReader

#: What readers may cost together in a turn that is long already: about a millisecond.
SHARE: Final = PAGE_COST // 4
#: What a look costs beside that at records.
_LOOK_COST: Final = 8
#: Milliseconds until the readers whose turn has not come go on: others are served between.
_PAUSE_MS: Final = 1


@mypyc_attr(allow_interpreted_subclasses=True)
class FilteredReader(StreamReader):
    """Someone who looks for records."""

    def look(self) -> int:
        """It is the reader's turn: look at a page at most; what that cost (``FilteredPage``)."""
        raise NotImplementedError


class FilteredReads(Timed):
    """The readers that have something to look at, in the order in which they came."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._readers: OrderedDict[FilteredReader, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, reader: FilteredReader) -> None:
        """Have ``reader`` look, once, in this turn or a later one."""
        if not self._readers:
            self._host.timeouts.call_at(self._host.elapsed_ms, self)
            # At the end of a turn, when records come, those who are due were called already.
            self._host.request_turn()
        self._readers[reader] = None

    def remove(self, reader: FilteredReader) -> None:
        """Take back ``add``; nothing happens when it is not to look."""
        self._readers.pop(reader, None)

    def due(self) -> None:
        host, readers = self._host, self._readers
        cost: i64 = 0
        # Who has more to look at comes again behind the others.
        while readers:
            reader, _ = readers.popitem(last=False)
            cost += _LOOK_COST + reader.look()
            if cost >= SHARE and host.is_turn_long:
                break
        if readers:
            host.timeouts.call_at(host.elapsed_ms + _PAUSE_MS, self)

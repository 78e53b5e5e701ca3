"""What components get from their broker: the clocks, who is called when, and the storage."""

from __future__ import annotations

import time

from mypy_extensions import mypyc_attr

from trivium.common.events import Events
from trivium.common.quotas import Quotas
from trivium.common.timers import Timed, Timers
from trivium.common.turns import EndOfTurn
from trivium.storage.base import Storage


@mypyc_attr(allow_interpreted_subclasses=True)
class Host:
    """What a component is given of its broker; ``trivium.runtime.broker`` implements it."""

    def __init__(self, storage: Storage) -> None:
        #: milliseconds since the epoch, as of the start of this turn
        self.now_ms = time.time_ns() // 1_000_000
        #: how far it is ahead of the clock that nobody can set
        self.clock_offset = 0
        self.storage = storage
        self.events = Events()
        #: what waits for some time (times are ``elapsed_ms``), and what for a time (``now_ms``)
        self.timeouts = Timers()
        self.dates = Timers()
        #: how much users, virtual hosts and listeners may have, and have
        self.quotas = Quotas(lambda: self.elapsed_ms)
        #: entries that queues may yet give up, or make ready, in this turn
        self.may_give_up = 0
        #: how often something was collected for the end of a turn, which writes it
        self.collected = 0
        #: the stream partition that is being compacted; one at a time bounds the memory for keys
        self.compacting: Timed | None = None

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds, as of the start of this turn, on a clock that is never set.

        It counts what must take a certain time whatever happens to the wall clock. Only what is
        stored as a time, or said by a client, is ``now_ms``.
        """
        return self.now_ms - self.clock_offset

    @property
    def is_behind(self) -> bool:
        """Whether more waits for the disk than should, also by what this turn has done so far."""
        raise NotImplementedError

    def request_turn(self) -> None:
        """Have this turn ended soon, once however often this is asked."""
        raise NotImplementedError

    def add_unflushed(self, item: EndOfTurn) -> None:
        """``item`` has changes to write at the end of this turn.

        What it collects beyond the first of them is counted in ``collected`` by who collects it.
        """
        raise NotImplementedError

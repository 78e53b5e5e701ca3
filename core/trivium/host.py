"""What components get from their broker: the clocks, who is called when, and the storage."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from trivium.common.events import Events
from trivium.common.histograms import MILLISECONDS, SECONDS, Histogram
from trivium.common.quotas import Quotas
from trivium.common.timers import Timed, Timers
from trivium.common.turns import EndOfTurn
from trivium.storage.base import DurabilityWaiter, Storage

#: The name of the one node, to tools that ask for one.
NODE: Final = "trivium@localhost"


class Timings(DurabilityWaiter):
    """How long turns take, how long publishers wait for the disk, and messages for consumers."""

    def __init__(self) -> None:
        #: from the first thing of a turn to the last one
        self.turns = Histogram(SECONDS)
        #: from the begin of a turn in which messages came that the disk must have, until they could
        #: be acknowledged
        self.acknowledgements = Histogram(SECONDS)
        #: when this turn began, by ``time.monotonic``
        self.began_at = 0.0
        #: from publish to delivery, of some deliveries of each queue
        self.deliveries = Histogram(MILLISECONDS)
        # Write batches that such turns were in, with their begin.
        self._waiting: deque[tuple[int, float]] = deque()
        self._received = 0

    def end_turn(self, storage: Storage, received: int) -> None:
        """What this turn has done is about to be committed; ``received`` messages came so far."""
        if received != self._received:
            self._received = received
            if self.began_at and storage.is_durable and storage.changes:
                batch = storage.wait(self)
                waiting = self._waiting
                if not waiting or waiting[-1][0] != batch:
                    waiting.append((batch, self.began_at))

    def write_batch_durable(self, write_batch: int) -> None:
        waiting = self._waiting
        now = time.monotonic()
        while waiting and waiting[0][0] <= write_batch:
            self.acknowledgements.observe(now - waiting.popleft()[1])


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
        #: how often somebody declared a queue or stream that there was, or was made
        self.queues_declared = 0
        #: how much users, virtual hosts and listeners may have, and have
        self.quotas = Quotas(lambda: self.elapsed_ms)
        self.timings = Timings()
        #: entries that queues may yet give up, or make ready, in this turn
        self.may_give_up = 0
        #: how often something was collected for the end of a turn, which writes it
        self.collected = 0
        #: what was done out of proportion to the frames that asked for it, since the start:
        #: bindings looked at, messages purged (``count_work``)
        self.work = 0
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

    @property
    def is_turn_long(self) -> bool:
        """Whether this turn has lasted for as long as it should."""
        return False

    def count_work(self, visits: int) -> None:
        """So much was just done for who is served (``work``)."""
        self.work += visits

    def request_turn(self) -> None:
        """Have this turn ended soon, once however often this is asked."""
        raise NotImplementedError

    def add_unflushed(self, item: EndOfTurn) -> None:
        """``item`` has changes to write at the end of this turn.

        What it collects beyond the first of them is counted in ``collected`` by who collects it.
        """
        raise NotImplementedError

"""A load: publishers and consumers of one road, what they measure, and what became of each message.

A publisher either goes as fast as acknowledgements and deliveries allow, or at a rate. At a rate
each message has a time at which it is due, and its delays count from then on: a broker that stalls
is charged for every message that had to wait, not only for the one that it kept waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from trivium.cli.clients import ClientError
from trivium.cli.measuring import Histogram, Ledger, Numbers
from trivium.cli.roads import Consumer, Plan, Publisher, Road

#: What each payload begins with: the load, the publisher, the message's number and when it was due.
HEAD: Final = Struct(">8sIQQ")
#: Messages of a publisher that wait for consumers where no rate is given.
BACKLOG: Final = 10_000
#: Messages that are written together.
BATCH: Final = 64
#: Seconds between two looks at what nobody tells.
LOOK_SECONDS: Final = 0.05
#: Seconds below which a publisher that is to be on time does not leave it to the loop's timers.
SPIN_SECONDS: Final = 0.002
#: Seconds between two attempts to connect again.
AGAIN_SECONDS: Final = 0.05
#: Runs of missing numbers that a report names.
NAMED_GAPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a load is published. `seconds` and `count`, of each publisher, end it."""

    publishers: int
    size: int
    #: messages of a publisher that wait for their acknowledgement
    window: int
    #: of all publishers together, a second; 0 is as fast as possible
    rate: float = 0.0
    seconds: float | None = None
    count: int | None = None
    #: seconds at first whose messages and delays are not in the figures, but are verified
    warm_up: float = 0.0
    #: Seconds without any message or acknowledgement after which the rest counts as lost.
    patience: float = 10.0


class Load:
    """One run. `start`, `finish_publishing`, `drain`, `close` in this order."""

    def __init__(self, road: Road, plan: Plan, pace: Pace) -> None:
        self.road = road
        self.plan = plan
        self.pace = pace
        self.run = secrets.token_bytes(8)
        self.lanes = [Lane(self, index) for index in range(pace.publishers)]
        self.readers = [Reader(self, index) for index in range(plan.consumers)]
        self.to_acknowledge = Histogram()
        self.to_deliver = Histogram()
        self.delivered = 0
        self.redelivered = 0
        #: messages that no publisher of this load has sent
        self.unknown = 0
        #: what has broken a connection, where it must not
        self.failure: str | None = None
        self.last_sign = time.monotonic()
        self.is_stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._began = 0.0
        self.seconds = 0.0
        self._counted = (0, 0, 0)
        #: the same figures when the warm-up was over; None until then
        self._uncounted: tuple[int, int, int] | None = None if pace.warm_up else (0, 0, 0)

    @property
    def sent(self) -> int:
        """Messages that were published."""
        return sum(lane.sent for lane in self.lanes)

    @property
    def acknowledged(self) -> int:
        """Messages that the broker has acknowledged."""
        return sum(len(lane.acknowledged_numbers) for lane in self.lanes)

    async def start(self) -> None:
        """Connect all, and begin to publish. Raises ClientError, UsageError."""
        await self.road.prepare()
        for reader in self.readers:
            await reader.connect()
        for lane in self.lanes:
            await lane.connect()
        self._began = self.last_sign = time.monotonic()
        self._tasks = [asyncio.create_task(lane.publish_all()) for lane in self.lanes]

    async def finish_publishing(self) -> None:
        """Wait until all is published, or the load is stopped, or nothing goes on any more."""
        try:
            while any(not task.done() for task in self._tasks) and not self.is_stopping.is_set():
                await asyncio.wait([*self._tasks], timeout=LOOK_SECONDS)
                if self._is_over(time.monotonic()):
                    break
        finally:
            self._take_rates(time.monotonic())
            self.is_stopping.set()
            for lane in self.lanes:
                lane.woken.set()
            await asyncio.gather(*self._tasks)

    def _is_over(self, now: float) -> bool:
        """Whether it has lasted long enough, from the end of the warm-up on."""
        seconds = self.pace.seconds
        if self._uncounted is None:
            if now >= self._began + self.pace.warm_up:
                self._uncounted = self._totals()
                self._began = now
                self.to_acknowledge, self.to_deliver = Histogram(), Histogram()
        elif seconds is not None and now >= self._began + seconds:
            return True
        return self.is_idle

    def _totals(self) -> tuple[int, int, int]:
        return self.sent, self.acknowledged, self.delivered

    def _take_rates(self, now: float) -> None:
        self.seconds = now - self._began
        self._counted = self._totals()

    @property
    def is_idle(self) -> bool:
        """Nothing has come for as long as is waited, or nothing can come any more."""
        is_over = time.monotonic() > self.last_sign + self.pace.patience
        return is_over or (self.failure is not None and not self.plan.resumes)

    @property
    def is_complete(self) -> bool:
        """All is acknowledged, and what is acknowledged has come."""
        return all(not lane.unsettled and not lane.undelivered for lane in self.lanes)

    async def drain(self, give_up: asyncio.Event) -> None:
        """Wait for what is under way."""
        self.last_sign = max(self.last_sign, self._began + self.seconds)
        while not self.is_complete and not self.is_idle and not give_up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await give_up.wait()
        if self.pace.count is not None:
            # So many messages have taken until the last of them was there.
            self._take_rates(self.last_sign)

    async def close(self) -> None:
        """Close all connections, and remove what was made."""
        self.is_stopping.set()
        for end in (*self.lanes, *self.readers):
            await end.close()
        with contextlib.suppress(ClientError):
            await self.road.clean_up()

    def report(self) -> dict[str, Any]:
        """The figures."""
        before = self._uncounted or (0, 0, 0)
        sent, acknowledged, delivered = (
            after - earlier for after, earlier in zip(self._counted, before, strict=True)
        )
        seconds = max(self.seconds, 1e-9)
        ledgers = [ledger for lane in self.lanes for ledger in lane.ledgers.values()]
        lost = [lane.missing() for lane in self.lanes]
        gaps = {
            f"publisher {lane.index}": missing.first_ranges(NAMED_GAPS)
            for lane, missings in zip(self.lanes, lost, strict=True)
            for missing in missings
            if len(missing)
        }
        return {
            "seconds": round(self.seconds, 3),
            "published": self.sent,
            "acknowledged": self.acknowledged,
            "refused": sum(lane.refused_count for lane in self.lanes),
            "unanswered": sum(lane.unsettled for lane in self.lanes),
            "uncertain": sum(lane.uncertain for lane in self.lanes),
            "delivered": self.delivered,
            "published_per_second": round(sent / seconds, 1),
            "acknowledged_per_second": round(acknowledged / seconds, 1),
            "delivered_per_second": round(delivered / seconds, 1),
            "lost": sum(len(missing) for missings in lost for missing in missings),
            "duplicates": sum(ledger.unflagged for ledger in ledgers),
            "flagged_duplicates": sum(ledger.flagged for ledger in ledgers),
            "redelivered": self.redelivered,
            "out_of_order": sum(reader.out_of_order for reader in self.readers),
            "unknown": self.unknown,
            "gaps": gaps,
            "publish_to_acknowledge_ms": self.to_acknowledge.report(),
            "publish_to_deliver_ms": self.to_deliver.report(),
        }


class End:
    """One connection of a load, which is made again where the load goes on in another one."""

    def __init__(self, load: Load, index: int) -> None:
        self.load = load
        self.index = index
        self.is_connected = False
        self._again: asyncio.Task[None] | None = None
        self._is_closed = False

    async def connect(self) -> None:
        """Raises ClientError, UsageError."""
        raise NotImplementedError

    async def close(self) -> None:
        """For good."""
        self._is_closed = True
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)

    def acknowledged(self, number: int) -> None:
        """Of publishers."""

    def refused(self, number: int) -> None:
        """Of publishers."""

    def received(self, payload: bytes, is_redelivered: bool) -> None:
        """Of consumers."""

    def can_go_on(self) -> None:
        """Of publishers."""

    def lost(self, reason: str) -> None:
        if self._is_closed:
            return
        self.is_connected = False
        if not self.load.plan.resumes:
            self.load.failure = self.load.failure or reason
        elif self._again is None or self._again.done():
            self._again = asyncio.create_task(self._connect_again())

    async def _connect_again(self) -> None:
        while not self.is_connected:
            try:
                await self.connect()
            except ClientError:
                await asyncio.sleep(AGAIN_SECONDS)


class Lane(End):
    """A publisher, and what became of its messages."""

    def __init__(self, load: Load, index: int) -> None:
        super().__init__(load, index)
        self.sent = 0
        self.refused_count = 0
        #: sent and lost with the connection: they may come, and need not
        self.uncertain = 0
        self.acknowledged_numbers = Numbers()
        #: when each message was due that is not acknowledged
        self.due: dict[int, int] = {}
        #: by consumer where each gets all, else one
        places = load.plan.consumers if load.road.copies else min(load.plan.consumers, 1)
        self.ledgers = {place: Ledger() for place in range(places)}
        self.woken = asyncio.Event()
        self._publisher: Publisher | None = None
        self._filler = b"x" * (load.pace.size - HEAD.size)
        #: what is sent again by the road itself when it connects again
        self._is_repeated = load.plan.resumes and load.plan.qos == 2

    @property
    def unsettled(self) -> int:
        """Messages that wait for their acknowledgement."""
        return len(self.due)

    @property
    def undelivered(self) -> int:
        """Acknowledged messages that have not come to the place that has the fewest."""
        if not self.ledgers:
            return 0
        fewest = min(len(ledger.seen) for ledger in self.ledgers.values())
        if not self.uncertain:
            return max(len(self.acknowledged_numbers) - fewest, 0)
        return max(len(ledger.lost(self.acknowledged_numbers)) for ledger in self.ledgers.values())

    def missing(self) -> list[Numbers]:
        """What was acknowledged and has not come, by place."""
        return [ledger.lost(self.acknowledged_numbers) for ledger in self.ledgers.values()]

    async def connect(self) -> None:
        self._publisher = await self.load.road.publisher(self.index, self)
        self.is_connected = True
        self.woken.set()

    async def close(self) -> None:
        await super().close()
        if self._publisher is not None:
            await self._publisher.close()

    async def publish_all(self) -> None:
        """Publish until the load stops, or the count is reached."""
        load, pace = self.load, self.load.pace
        interval = round(1e9 * pace.publishers / pace.rate) if pace.rate else 0
        # Publishers take turns, so that what they send does not come all at once.
        begin = time.monotonic_ns() + interval * self.index // pace.publishers
        while not load.is_stopping.is_set() and (pace.count is None or self.sent < pace.count):
            publisher = self._publisher
            allowed = self._allowed(begin, interval)
            if allowed > 0 and publisher is not None and self.is_connected:
                now = time.monotonic_ns()
                for number in range(self.sent, self.sent + allowed):
                    self._publish(publisher, number, begin + number * interval if interval else now)
                publisher.flush()
                await asyncio.sleep(0)
            else:
                await self._wait(begin + self.sent * interval if interval else 0)

    def _allowed(self, begin: int, interval: int) -> int:
        """How many messages may be published now."""
        pace = self.load.pace
        if self._publisher is None or not self._publisher.is_writable:
            return 0
        allowed = min(BATCH, pace.window - len(self.due))
        if pace.count is not None:
            allowed = min(allowed, pace.count - self.sent)
        if interval:
            return min(allowed, (time.monotonic_ns() - begin) // interval + 1 - self.sent)
        if self.load.plan.qos and self.ledgers:
            # Else the consumers of a load that goes on would fall behind more and more.
            allowed = min(allowed, BACKLOG - self.undelivered)
        return allowed

    async def _wait(self, due: int) -> None:
        """Wait for something to happen, or for the next message to be due."""
        seconds = (due - time.monotonic_ns()) / 1e9 if due else LOOK_SECONDS
        if 0 < seconds < SPIN_SECONDS and not self.load.plan.resumes:
            # The loop's timers are later than that.
            await asyncio.sleep(0)
            return
        self.woken.clear()
        with contextlib.suppress(TimeoutError):
            least = seconds - SPIN_SECONDS if seconds > 0 else LOOK_SECONDS
            async with asyncio.timeout(min(max(least, 0.001), LOOK_SECONDS)):
                await self.woken.wait()

    def _publish(self, publisher: Publisher, number: int, due: int) -> None:
        self.due[number] = due
        self.sent = number + 1
        head = HEAD.pack(self.load.run, self.index, number, due)
        publisher.publish(number, head + self._filler)

    def acknowledged(self, number: int) -> None:
        due = self.due.pop(number, None)
        if due is None:
            return
        load = self.load
        load.to_acknowledge.add(time.monotonic_ns() - due)
        load.last_sign = time.monotonic()
        self.acknowledged_numbers.add(number)
        self.woken.set()

    def refused(self, number: int) -> None:
        if self.due.pop(number, None) is not None:
            self.refused_count += 1
            self.woken.set()

    def can_go_on(self) -> None:
        self.woken.set()

    def lost(self, reason: str) -> None:
        if not self._is_repeated:
            self.uncertain += len(self.due)
            self.due.clear()
        self.woken.set()
        super().lost(reason)


class Reader(End):
    """A consumer, which checks what comes."""

    def __init__(self, load: Load, index: int) -> None:
        super().__init__(load, index)
        self._consumer: Consumer | None = None
        self._place = index if load.road.copies else 0
        #: came after one of the same publisher with a higher number, and are no redeliveries
        self.out_of_order = 0
        self._highest: dict[int, int] = {}

    async def connect(self) -> None:
        self._consumer = await self.load.road.consumer(self.index, self)
        self.is_connected = True

    async def close(self) -> None:
        await super().close()
        if self._consumer is not None:
            await self._consumer.close()

    def received(self, payload: bytes, is_redelivered: bool) -> None:
        load = self.load
        load.last_sign = time.monotonic()
        load.delivered += 1
        load.redelivered += is_redelivered
        if len(payload) != load.pace.size:
            load.unknown += 1
            return
        run, index, number, due = HEAD.unpack_from(payload)
        if run != load.run or index >= len(load.lanes) or number >= load.lanes[index].sent:
            load.unknown += 1
            return
        lane = load.lanes[index]
        load.to_deliver.add(time.monotonic_ns() - due)
        lane.ledgers[self._place].add(number, is_redelivered)
        highest = self._highest.get(index, -1)
        if number > highest:
            self._highest[index] = number
        elif number < highest and not is_redelivered:
            self.out_of_order += 1
        # A publisher may wait for consumers to be less far behind.
        lane.woken.set()

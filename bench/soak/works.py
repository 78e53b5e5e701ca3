"""Kinds of use that a soak is made of, and those that the loads of `trivium bench` carry."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import aiohttp
from aiormq.exceptions import AMQPError, ChannelInvalidStateError

from bench.soak.accounts import Account
from bench.soak.judges import Verdict, judge_promises
from bench.soak.site import Site, until
from trivium.cli.bench import roads
from trivium.cli.clients import ClientError
from trivium.cli.loads import Load, Pace
from trivium.cli.roads import Plan
from trivium_native.errors import NativeError

#: What a client gets whose connection is reset, by whichever library; it comes again.
GONE: Final = (
    *(OSError, ClientError, NativeError, aiohttp.ClientError),
    *(AMQPError, ChannelInvalidStateError),
)
#: Seconds in which all must have come that is under way.
SETTLE_SECONDS: Final = 60.0
#: Seconds between two attempts.
AGAIN_SECONDS: Final = 0.1
SIZE: Final = 200
WINDOW: Final = 200


async def pause(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until something is to stop, and whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


class Work:
    """One kind of use: ``prepare``, ``run`` until it is to stop, ``settle``, ``close``."""

    def __init__(self, site: Site, draw: random.Random, rate: float) -> None:
        self.site = site
        self.draw = draw
        #: messages a second
        self.rate = rate
        self.accounts: list[Account] = []
        self._background: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """What a failure of it is told by."""
        return type(self).__name__

    async def prepare(self) -> None:
        """Make what it needs, and connect, before anything is disturbed."""

    async def run(self, stop: asyncio.Event) -> None:
        """Use the broker until it is to stop."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Wait for what is under way; nothing is disturbed any more."""
        await until(lambda: all(one.is_complete for one in self.accounts), SETTLE_SECONDS)

    async def close(self) -> None:
        """Disconnect, and remove what was made."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def keep(self, once: Callable[[], Awaitable[None]]) -> None:
        """Do something in the background, again and again until the work is closed."""
        self._background.append(asyncio.create_task(self.repeat(asyncio.Event(), once)))

    @property
    def failures(self) -> list[str]:
        """What nobody has expected."""
        ended = [task for task in self._background if task.done() and not task.cancelled()]
        return [repr(task.exception()) for task in ended]

    def verdicts(self) -> Iterator[Verdict]:
        """What was promised, and whether it was kept."""
        for account in self.accounts:
            yield judge_promises(account.name, account.report())

    async def repeat(self, stop: asyncio.Event, once: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again, also after its connection is lost."""
        while not stop.is_set():
            try:
                await once()
            except GONE:
                await pause(stop, AGAIN_SECONDS)


class RoadWork(Work):
    """A load of `trivium bench`, whose connections are made again when they are lost."""

    def __init__(
        self,
        site: Site,
        rate: float,
        scheme: str,
        door: str,
        *,
        name: str = "",
        qos: int = 1,
        consumers: int = 1,
        is_stream: bool = False,
        transaction: int = 0,
    ) -> None:
        super().__init__(site, random.Random(), rate)
        kind = "-stream" if is_stream else "-transactions" if transaction else ""
        plan = Plan(
            name=name or f"soak-{scheme}-{qos}{kind}",
            qos=qos,
            consumers=consumers,
            resumes=True,
            is_stream=is_stream,
            transaction=transaction,
        )
        pace = Pace(publishers=1, size=SIZE, window=WINDOW, rate=rate, patience=SETTLE_SECONDS)
        self._load = Load(roads()[scheme](site.server(door), plan), plan, pace)

    @property
    def name(self) -> str:
        return self._load.plan.name

    async def prepare(self) -> None:
        await self._load.start()

    async def run(self, stop: asyncio.Event) -> None:
        publishing = asyncio.create_task(self._load.finish_publishing())
        await stop.wait()
        self._load.is_stopping.set()
        await publishing

    async def settle(self) -> None:
        await self._load.drain(asyncio.Event())

    async def close(self) -> None:
        await self._load.close()

    def verdicts(self) -> Iterator[Verdict]:
        plan = self._load.plan
        yield judge_promises(plan.name, self._load.report(), is_lossy=plan.qos == 0)


def road_works(site: Site, rate: float) -> Iterator[Work]:
    """All roads, through all doors of theirs."""
    yield RoadWork(site, rate, "mqtt", "mqtt", qos=0)
    yield RoadWork(site, rate, "mqtt", "mqtts", qos=1, consumers=2)
    yield RoadWork(site, rate, "mqtt", "mqtt", qos=2)
    yield RoadWork(site, rate, "amqp", "amqp", qos=0)
    yield RoadWork(site, rate, "amqp", "amqps", consumers=2)
    yield RoadWork(site, rate, "amqp", "amqp", transaction=8)
    yield RoadWork(site, rate, "trivium", "native", consumers=2)
    yield RoadWork(site, rate, "trivium", "natives", qos=2)
    yield RoadWork(site, rate, "trivium", "native", qos=2, consumers=2, is_stream=True)
    # Nobody consumes it: a policy keeps it at one length.
    yield RoadWork(site, rate, "trivium", "native", name="soak-depth", consumers=0)

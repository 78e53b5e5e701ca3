"""A client that has left leaves nothing in memory, and no work for the collector of cycles.

A collection walks all that there is, with millions of messages for seconds, and nobody is served
meanwhile: so the broker makes none.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.leaving_clients import VISITS
from trivium.config import Config, Listen, StorageConfig
from trivium.runtime.broker import Broker
from trivium.runtime.sockets import SocketDriver

ROOT = Path(__file__).parent.parent


@pytest.fixture
def no_collection() -> Iterator[None]:
    # What other tests have left is not walked: that takes seconds each time.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def visit(protocol: str, name: str, address: str) -> None:
    command = [sys.executable, "-m", "tests.support.leaving_clients", protocol, name, address]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)


def ours(objects: list[object]) -> Counter[str]:
    names = [f"{type(each).__module__}.{type(each).__qualname__}" for each in objects]
    return Counter(name for name in names if name.startswith("trivium"))


class Sockets(set[SocketDriver]):
    """Those of a broker; tells when there are none."""

    def __init__(self) -> None:
        self.none_left = asyncio.Event()

    def discard(self, driver: object) -> None:
        super().discard(driver)
        if not self:
            self.none_left.set()


async def comes_and_goes(broker: Broker, protocol: str, name: str) -> None:
    server = broker.server
    assert server is not None
    server.sockets = sockets = Sockets()
    await asyncio.to_thread(visit, protocol, name, broker.listeners[protocol])
    if protocol != "http":
        async with asyncio.timeout(60):
            await sockets.none_left.wait()


@pytest.mark.parametrize(
    ("protocol", "name"),
    [(protocol, visit.__name__) for protocol, visits in VISITS.items() for visit in visits],
)
@pytest.mark.usefixtures("no_collection")
async def test_nothing_is_left_of_a_client(protocol: str, name: str, tmp_path: Path) -> None:
    config = Config(listen={protocol: Listen(0)}, storage=StorageConfig(mode="disk", data=tmp_path))
    async with Broker(config) as broker:
        # What the first one makes for all of them stays.
        await comes_and_goes(broker, protocol, name)
        gc.collect()
        before = ours(gc.get_objects())
        await comes_and_goes(broker, protocol, name)
        there = ours(gc.get_objects())
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert ours(gc.garbage) == Counter()
        # What generators have is not saved: they are closed before, and let go of it.
        assert there - ours(gc.get_objects()) == Counter()
        gc.set_debug(0)
        left = ours(gc.get_objects()) - before
        assert {name for name in left if "onnection" in name or "river" in name} == set()


class Marker:
    """Something that is known to the work alone."""


@pytest.mark.usefixtures("no_collection")
async def test_nothing_is_left_of_work_in_a_thread() -> None:
    config = Config(storage=StorageConfig(mode="memory"), listen={})
    async with Broker(config) as broker:
        assert broker.server is not None
        known = Marker()
        gone = weakref.ref(known)
        results: asyncio.Queue[bool] = asyncio.Queue()
        broker.server.driver.run_blocking(partial(isinstance, known, Marker), results.put_nowait)
        del known
        assert await results.get()
        # The callback that has told it is over by then.
        await asyncio.sleep(0)
        assert gone() is None

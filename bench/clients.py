"""How fast the native clients are: ``python -m bench.clients``.

A broker of its own, in another process, with its data on the disk; 100 B messages, one stream of
one partition per row. Each row is the median of ``ROUNDS`` runs. Client and broker have a core each
at best, so whichever takes more bounds the rate on a machine that does nothing else.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from bench.runner import make_server, working_directory
from bench.servers import Server
from trivium_native import connect
from trivium_native.client import Client
from trivium_native.sync import SyncClient
from trivium_native.sync import connect as connect_sync
from trivium_native.values import FramedMessages, Publication

ROUNDS = 3
PAYLOAD = bytes(range(100))
#: messages of a run, and of one request
COUNT = 200_000
LIKE = Publication(payload=b"", exchange="", routing_key="s")
REQUEST = 2_000
#: requests that are under way at a time
WINDOW = 16
SINGLES = 300


class Meter:
    """Times runs, and says what they took of the two processes."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def begin(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self._server.cpu_seconds()

    def taken(self, begun: tuple[float, float, float]) -> list[float]:
        return [after - before for before, after in zip(begun, self.begin(), strict=True)]


def show(name: str, runs: list[list[float]]) -> None:
    """The median of runs: thousands per second, microseconds of client and broker for each."""
    wall, client, broker = (statistics.median(each) / COUNT for each in zip(*runs, strict=True))
    print(
        f"{name:40} {0.001 / wall:8.0f} k/s, {1e6 * client:6.2f} us of the client,"
        f" {1e6 * broker:6.2f} us of the broker",
        flush=True,
    )


def requests(*, keyed: bool, count: int = COUNT) -> Iterator[list[Publication]]:
    for first in range(0, count, REQUEST):
        yield [
            Publication(
                payload=PAYLOAD,
                exchange="",
                routing_key="s",
                key=b"key-%d" % number if keyed else None,
            )
            for number in range(first, first + REQUEST)
        ]


async def run(
    work: Callable[[Client], Awaitable[None]], client: Client, meter: Meter
) -> list[float]:
    await client.declare_stream("s")
    begun = meter.begin()
    await work(client)
    taken = meter.taken(begun)
    assert (await client.metadata(["s"]))[0].partitions[0].high_watermark == COUNT
    await client.delete_stream("s")
    return taken


def run_blocking(
    work: Callable[[SyncClient], None], client: SyncClient, meter: Meter
) -> list[float]:
    client.declare_stream("s")
    begun = meter.begin()
    work(client)
    taken = meter.taken(begun)
    assert client.metadata(["s"])[0].partitions[0].high_watermark == COUNT
    client.delete_stream("s")
    return taken


def batches(keyed: bool) -> Callable[[Client], Awaitable[None]]:
    async def work(client: Client) -> None:
        waiting: set[asyncio.Task[None]] = set()
        for publications in requests(keyed=keyed):
            if len(waiting) >= WINDOW:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting.add(asyncio.create_task(client.publish_batch(publications)))
        await asyncio.gather(*waiting)

    return work


def columns(keyed: bool) -> Callable[[Client], Awaitable[None]]:
    async def work(client: Client) -> None:
        waiting: set[asyncio.Task[None]] = set()
        for first in range(0, COUNT, REQUEST):
            keys = [b"key-%d" % number for number in range(first, first + REQUEST)]
            framed = FramedMessages.from_payloads(
                [PAYLOAD] * REQUEST, LIKE, keys if keyed else None
            )
            if len(waiting) >= WINDOW:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting.add(asyncio.create_task(client.publish_batch(framed)))
        await asyncio.gather(*waiting)

    return work


async def gathered(client: Client) -> None:
    async with client.publisher() as publisher:
        for _ in range(COUNT):
            await publisher.publish(PAYLOAD, exchange="", routing_key="s")


def blocking_gathered(client: SyncClient) -> None:
    with client.publisher() as publisher:
        for _ in range(COUNT):
            publisher.publish(PAYLOAD, exchange="", routing_key="s")


def blocking_columns(keyed: bool) -> Callable[[SyncClient], None]:
    def made() -> Iterator[FramedMessages]:
        for first in range(0, COUNT, REQUEST):
            keys = [b"key-%d" % number for number in range(first, first + REQUEST)]
            yield FramedMessages.from_payloads([PAYLOAD] * REQUEST, LIKE, keys if keyed else None)

    def work(client: SyncClient) -> None:
        client.publish_many(made())

    return work


def blocking_objects(keyed: bool) -> Callable[[SyncClient], None]:
    def work(client: SyncClient) -> None:
        client.publish_many(requests(keyed=keyed))

    return work


def read_records(client: SyncClient) -> None:
    offset = 0
    while offset < COUNT:
        for batch in client.fetch("r", 0, offset).batches:
            for record in batch.records(offset):
                offset = record.offset + 1


def read_arrow(client: SyncClient) -> None:
    offset = 0
    while offset < COUNT:
        offset += client.fetch_arrow("r", 0, offset).num_rows


def run_reading(
    work: Callable[[SyncClient], None], client: SyncClient, meter: Meter
) -> list[float]:
    begun = meter.begin()
    work(client)
    return meter.taken(begun)


async def measure(url: str, meter: Meter) -> None:
    async with connect(url) as client:
        for what, make in (("objects", batches), ("payloads", columns)):
            for keyed in (False, True):
                runs = [await run(make(keyed), client, meter) for _ in range(ROUNDS)]
                show(f"asyncio, requests of {what}{', keyed' * keyed}", runs)
        show("asyncio, gathered", [await run(gathered, client, meter) for _ in range(ROUNDS)])
        await client.declare_stream("s")
        times = []
        for _ in range(SINGLES):
            start = time.perf_counter()
            await client.publish(PAYLOAD, exchange="", routing_key="s")
            times.append(1000 * (time.perf_counter() - start))
        print(f"{'asyncio, one after the other, p50':40} {statistics.median(times):8.2f} ms")
        await client.delete_stream("s")


def measure_blocking(url: str, meter: Meter) -> None:
    with connect_sync(url) as client:
        for what, make in (("objects", blocking_objects), ("payloads", blocking_columns)):
            for keyed in (False, True):
                runs = [run_blocking(make(keyed), client, meter) for _ in range(ROUNDS)]
                show(f"blocking, requests of {what}{', keyed' * keyed}", runs)
        client.declare_stream("r")
        like = replace(LIKE, routing_key="r")
        for first in range(0, COUNT, REQUEST):
            keys = [b"key-%d" % number for number in range(first, first + REQUEST)]
            client.publish_batch(FramedMessages.from_payloads([PAYLOAD] * REQUEST, like, keys))
        for name, read in (("records", read_records), ("Arrow", read_arrow)):
            runs = [run_reading(read, client, meter) for _ in range(ROUNDS)]
            show(f"blocking, fetched to {name}", runs)
        client.delete_stream("r")
        runs = [run_blocking(blocking_gathered, client, meter) for _ in range(ROUNDS)]
        show("blocking, gathered", runs)


def main() -> None:
    with working_directory() as directory:
        server = make_server("trivium", directory, None, on_disk=True)
        server.start()
        try:
            host, port, _ = server.addresses["native"]
            url = f"trivium://{host}:{port}"
            meter = Meter(server)
            asyncio.run(measure(url, meter))
            measure_blocking(url, meter)
        finally:
            server.stop()


if __name__ == "__main__":
    main()

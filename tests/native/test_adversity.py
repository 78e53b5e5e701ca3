"""Clients on a network that fails: nothing hangs, nothing is left, and they go on afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from tests.support.interference import Interference
from tests.support.live import TIMEOUT, FakeBroker, running
from trivium_native import connect, errors
from trivium_native.client import Client, connection, lasting, sync
from trivium_native.client.client import connection_of
from trivium_native.client.reconnecting import shares
from trivium_native.client.sync import socket_of
from trivium_native.client.url import Target, make_target
from trivium_native.sync import connect as connect_sync
from trivium_native.transaction import Transaction
from trivium_native.values import Publication, Reconnect

AT_ONCE = Reconnect(first=0.001, longest=0.01)
#: seconds that a test waits for what is never to come
SHORT = 0.05


@pytest.fixture
async def network() -> AsyncIterator[Interference]:
    async with running() as url, asyncio.timeout(TIMEOUT), Interference(url) as found:
        yield found


@pytest.fixture
async def client(network: Interference) -> AsyncIterator[Client]:
    """With a queue and a stream; nothing of it is left afterwards."""
    before = asyncio.all_tasks()
    found = await connect(network.url, reconnect=AT_ONCE)
    await found.declare_queue("q")
    await found.declare_stream("s", 2)
    yield found
    await found.close()
    assert {task for task in asyncio.all_tasks() - before if _is_of_client(task)} == set()


def _is_of_client(task: asyncio.Task[Any]) -> bool:
    return "trivium_native" in repr(task.get_coro())


# Connecting


def test_places_have_equal_shares_of_the_time_limit() -> None:
    target = make_target("trivium://a,b,c")
    left = 30.0
    found = []
    for place, share in shares(target.places):
        found.append((place.host, left * share))
        left -= left * share
    assert found == [("a", 10.0), ("b", 10.0), ("c", 10.0)]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first place has next to no time, the others all of it."""

    def hurried(places: Sequence[Target]) -> list[tuple[Target, float]]:
        return [(place, 1.0 if index else SHORT / TIMEOUT) for index, place in enumerate(places)]

    monkeypatch.setattr(lasting, "shares", hurried)
    monkeypatch.setattr(sync, "shares", hurried)


@pytest.mark.usefixtures("hurry")
async def test_a_place_that_never_answers_leaves_time_for_the_next(network: Interference) -> None:
    async with FakeBroker(b"") as silent:
        url = f"{silent.url},{network.place}"
        async with connect(url, timeout=TIMEOUT) as client:
            await client.metadata()

        def work() -> None:
            with connect_sync(url, timeout=TIMEOUT) as client:
                client.metadata()

        await asyncio.to_thread(work)


@pytest.mark.usefixtures("hurry")
async def test_a_client_connects_again_past_a_place_that_never_answers(
    network: Interference,
) -> None:
    async with FakeBroker(b"") as silent:
        client = await connect(network.url, timeout=TIMEOUT, reconnect=AT_ONCE)
        lasts = connection_of(client)
        assert isinstance(lasts, lasting.LastingConnection)
        lasts.target = make_target(f"{silent.url},{network.place}")
        network.cut()
        await client.metadata()
        await client.close()


async def test_all_places_together_have_one_time_limit() -> None:
    async with FakeBroker(b"") as one, FakeBroker(b"") as other, asyncio.timeout(TIMEOUT):
        url = f"{one.url},{other.url.removeprefix('trivium://')}"
        with pytest.raises(errors.TimedOut, match="no answer from 127"):
            await connect(url, timeout=SHORT)
        with pytest.raises(errors.NativeError):
            await asyncio.to_thread(connect_sync, url, timeout=SHORT)


async def test_a_broker_that_says_something_but_never_what_is_waited_for() -> None:
    """Each byte would be a new time limit."""
    over = asyncio.Event()
    tasks: set[asyncio.Task[None] | None] = set()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with suppress(ConnectionError):
            while not over.is_set():
                # A frame that never ends.
                writer.write(b"\x01")
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SHORT / 10):
                        await over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"trivium://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(errors.TimedOut):
            await connect(url, timeout=SHORT)
        with pytest.raises(errors.NativeError, match=r"in time|timed out"):
            await asyncio.to_thread(connect_sync, url, timeout=SHORT)
    over.set()
    server.close()
    await asyncio.gather(*(task for task in tasks if task is not None))


# Time limits


async def test_a_time_limit_holds_while_there_is_no_broker(
    network: Interference, client: Client
) -> None:
    network.mute()
    network.cut()
    for _ in range(2):
        with pytest.raises(errors.TimedOut):
            await client.within(SHORT).metadata()
    network.unmute()
    assert await client.metadata(["s"])


async def test_a_time_limit_of_the_blocking_client_holds_while_there_is_no_broker(
    network: Interference,
) -> None:
    loop = asyncio.get_running_loop()

    def work() -> None:
        with connect_sync(network.url, reconnect=AT_ONCE) as client:
            client.declare_stream("t")
            loop.call_soon_threadsafe(network.mute)
            loop.call_soon_threadsafe(network.cut)
            start = time.monotonic()
            for _ in range(2):
                with pytest.raises(errors.NativeError):
                    client.within(SHORT).metadata()
            # It is half a minute unless said otherwise.
            assert time.monotonic() - start < TIMEOUT
            loop.call_soon_threadsafe(network.unmute)
            assert client.metadata(["t"])

    await asyncio.to_thread(work)


async def test_blocks_of_the_blocking_client_have_its_time_limit(network: Interference) -> None:
    loop = asyncio.get_running_loop()

    def work() -> None:
        with connect_sync(network.url, reconnect=AT_ONCE, timeout=1.0) as client:
            client.declare_queue("q")
            client.declare_stream("s")
            client.publish(b"1", exchange="", routing_key="q")
            with client.consume("q") as deliveries, client.join("g", ["s"]) as consumer:
                first = next(deliveries)
                loop.call_soon_threadsafe(network.mute)
                loop.call_soon_threadsafe(network.cut)
                calls: list[Callable[[], object]] = [
                    consumer.lag,
                    lambda: client.consume("q").__enter__(),
                    lambda: deliveries.ack(first, wait=True),
                ]
                for call in calls:
                    with pytest.raises(errors.NativeError):
                        call()
            start = time.monotonic()
        assert time.monotonic() - start < TIMEOUT

    await asyncio.to_thread(work)
    names = [thread.name for thread in threading.enumerate()]
    assert "trivium-client" not in names


# Closing


async def test_closing_waits_for_no_broker_that_reads_no_more(
    network: Interference, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", SHORT)
    network.mute()
    big = [Publication(payload=bytes(8 << 20), exchange="", routing_key="q")]
    publishing = [asyncio.create_task(client.publish_batch(big)) for _ in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    transport = connection_of(client).transport
    assert transport is not None
    await client.close()
    assert transport.is_closing()
    await connection_of(client).is_gone.wait()
    for task in publishing:
        with pytest.raises(errors.ConnectionFailed):
            await task


async def test_the_blocking_client_closes_in_time_too(
    network: Interference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "CLOSE_TIMEOUT", SHORT)
    loop = asyncio.get_running_loop()

    def work() -> float:
        client = connect_sync(network.url, timeout=TIMEOUT)
        is_muted = threading.Event()
        loop.call_soon_threadsafe(network.mute)
        loop.call_soon_threadsafe(is_muted.set)
        is_muted.wait(TIMEOUT)
        socket_of(client).settimeout(0)
        with suppress(BlockingIOError):
            while True:
                socket_of(client).send(bytes(1 << 20))
        start = time.monotonic()
        client.close()
        return time.monotonic() - start

    assert await asyncio.to_thread(work) < TIMEOUT / 2


async def test_a_publisher_leaves_its_block_while_there_is_no_broker(
    network: Interference, client: Client
) -> None:
    with suppress(RuntimeError):
        async with client.publisher() as publisher:
            network.mute()
            network.cut()
            raise RuntimeError("of the program")
    with pytest.raises(errors.ConnectionFailed, match="closed"):
        await publisher.publish(b"1")
    network.unmute()


# What the program has called


async def test_faults_of_callbacks_end_nothing(
    network: Interference, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("of the program")

    def also_fails(_: int, __: int) -> None:
        raise RuntimeError("of the publisher's program")

    async with connect(
        network.url, reconnect=AT_ONCE, on_connected=fails, on_disconnected=fails
    ) as client:
        network.cut()
        await client.declare_stream("s")
        async with client.publisher(on_progress=also_fails) as publisher:
            for _ in range(3):
                await publisher.publish(b"1", exchange="", routing_key="s")
                await publisher.flush()
        assert publisher.confirmed == 3
    assert "of the program" in caplog.text
    assert "of the publisher's program" in caplog.text


# Calls that are given up


async def _consume(client: Client) -> None:
    async with client.consume("q"):
        await asyncio.Event().wait()


async def _join(client: Client) -> None:
    async with client.join("g", ["s"]) as consumer:
        await anext(consumer)


async def _transact(client: Client) -> None:
    transaction = Transaction()
    transaction.publish(Publication(payload=b"1", exchange="", routing_key="q"))
    await client.commit_transaction(transaction)


async def _gather(client: Client) -> None:
    async with client.publisher() as publisher:
        await publisher.publish(b"1", exchange="", routing_key="q")
        await publisher.flush()
        await asyncio.Event().wait()


async def _poll(client: Client) -> None:
    async with client.poller("q", credit=10) as polled:
        await polled.poll(5, max_wait=TIMEOUT)


CALLS: list[Callable[[Client], Awaitable[object]]] = [
    lambda client: client.publish(b"1", exchange="", routing_key="q"),
    lambda client: client.fetch("s", 0, 0, max_wait=TIMEOUT),
    lambda client: client.declare_queue("new"),
    lambda client: client.open_producer("p"),
    _consume,
    _join,
    _transact,
    _gather,
    _poll,
]


@pytest.mark.parametrize("state", ["connected", "away"])
@pytest.mark.parametrize("turns", [1, 3, 30])
async def test_a_call_that_is_given_up_leaves_the_client_usable(
    network: Interference, client: Client, state: str, turns: int
) -> None:
    if state == "away":
        network.mute()
        network.cut()
    calls = [asyncio.ensure_future(call(client)) for call in CALLS]
    for _ in range(turns):
        await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    network.unmute()
    assert await client.metadata(["s"])
    # Nobody is left who would keep what others want.
    async with client.join("g", ["s"]) as consumer:
        for partition in range(2):
            await client.publish(b"x", exchange="", routing_key="s", key=b"%d" % partition)
        await asyncio.wait_for(anext(consumer), TIMEOUT)
    assert connection_of(client).requests == {}


async def test_a_poll_that_is_given_up_leaves_what_it_gets_to_the_next(client: Client) -> None:
    async with client.poller("q") as polled:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await polled.poll(5, max_wait=TIMEOUT)
        for number in range(3):
            await client.publish(b"%d" % number, exchange="", routing_key="q")
        found = [each for _ in range(3) for each in await polled.poll(1, max_wait=TIMEOUT)]
        assert [each.payload for each in found] == [b"0", b"1", b"2"]
        await polled.ack(found[-1], multiple=True, wait=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await anext(polled)


async def test_polling_in_vain_with_the_blocking_client(network: Interference) -> None:
    def work() -> None:
        with connect_sync(network.url) as client:
            client.declare_queue("q")
            with client.poller("q") as polled:
                assert [polled.get(timeout=0.01) for _ in range(3)] == [None] * 3
                client.publish(b"1", exchange="", routing_key="q")
                found = polled.get(timeout=TIMEOUT)
                assert found is not None
                assert found.payload == b"1"

    await asyncio.to_thread(work)


async def test_a_join_that_is_given_up_leaves_no_member(client: Client) -> None:
    async with AsyncExitStack() as stack:
        joining = asyncio.ensure_future(stack.enter_async_context(client.join("g", ["s"])))
        for _ in range(5):
            await asyncio.sleep(0)
        assert connection_of(client).requests
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
    # One answer behind that to JOIN, one behind LEAVE.
    await client.metadata()
    await client.metadata()
    assert await client.groups() == ([], None)

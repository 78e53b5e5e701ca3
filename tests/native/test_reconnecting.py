"""Clients whose connection is lost and made again, against a broker on loopback."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.support.live import TIMEOUT, FakeBroker, running
from trivium.config import Config, Listen, StorageConfig
from trivium.runtime.broker import Broker
from trivium.streams.joining import SMALL_RECORDS
from trivium_native import connect, errors
from trivium_native.client import Client, operations
from trivium_native.client.client import connection_of
from trivium_native.client.lasting import LastingConnection
from trivium_native.client.sync import background_of, socket_of
from trivium_native.client.url import Target
from trivium_native.requests import finish, start
from trivium_native.sync import SyncClient
from trivium_native.sync import connect as connect_sync
from trivium_native.values import Publication, Reconnect

#: It waits no longer than it must.
AT_ONCE = Reconnect(first=0.001, longest=0.01)


@pytest.fixture(params=["memory", "disk"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    data = tmp_path / "data" if request.param == "disk" else None
    async with running(data) as found, asyncio.timeout(TIMEOUT):
        yield found


def lose(client: Client) -> None:
    """End the connection, as the network would."""
    connection = connection_of(client)
    assert isinstance(connection, LastingConnection)
    assert connection.road is not None
    connection.road.connection_lost(None)


async def until_sent(client: Client, count: int) -> None:
    """Let tasks run until so many requests are sent; none is answered before the next turn."""
    for _ in range(5):
        if len(connection_of(client).requests) < count:
            await asyncio.sleep(0)
    assert len(connection_of(client).requests) == count


class Events:
    """What a client was told."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.lost: list[str] = []
        self.changed = asyncio.Event()

    def connected(self, place: Target) -> None:
        self.places.append(place.port)
        self.changed.set()

    def disconnected(self, error: errors.NativeError) -> None:
        self.lost.append(error.text)

    async def until_connected(self, times: int) -> None:
        while len(self.places) < times:
            self.changed.clear()
            await self.changed.wait()


async def test_a_lost_connection_is_made_again_and_told_of(url: str) -> None:
    events = Events()
    async with connect(
        url,
        reconnect=AT_ONCE,
        on_connected=events.connected,
        on_disconnected=events.disconnected,
    ) as client:
        lose(client)
        await client.metadata()
    assert len(events.places) == 2
    assert events.lost == ["the broker closed the connection"]


async def test_without_reconnecting_a_client_ends_with_its_connection(url: str) -> None:
    async with connect(url, reconnect=False) as client:
        lose(client)
        with pytest.raises(errors.ConnectionFailed):
            await client.metadata()


async def test_a_client_is_awaited_and_closed(url: str) -> None:
    client = await connect(url)
    await client.metadata()
    await client.close()
    await client.close()
    with pytest.raises(errors.ConnectionFailed, match="closed"):
        await client.metadata()


async def test_requests_that_may_be_repeated_are_and_others_are_interrupted(url: str) -> None:
    async with connect(url, reconnect=AT_ONCE) as client:
        await client.declare_stream("s")
        await client.bind("stream", "s", pattern="#")
        waiting = asyncio.create_task(client.fetch("s", 0, 0, max_wait=TIMEOUT))
        publishing = asyncio.create_task(client.publish(b"perhaps"))
        await until_sent(client, 2)
        lose(client)
        with pytest.raises(errors.Interrupted):
            await publishing
        await client.publish(b"surely")
        payloads = [r.payload for batch in (await waiting).batches for r in batch.records()]
        assert payloads[-1] in (b"perhaps", b"surely")


async def test_numbered_publishes_under_way_are_repeated_in_their_order(url: str) -> None:
    count = 200
    events = Events()
    async with connect(url, reconnect=AT_ONCE, on_connected=events.connected) as client:
        await client.declare_stream("s")
        await client.bind("stream", "s", pattern="#")
        producer = await client.open_producer("p")
        tasks = []
        for number in range(count):
            numbered = replace(producer, sequence=number)
            batch = [Publication(payload=b"%d" % number)]
            tasks.append(asyncio.create_task(client.publish_batch(batch, numbered)))
            if number % 50 == 25:
                await asyncio.sleep(0)
                assert connection_of(client).requests
                lose(client)
            elif number % 50 == 45:
                await events.until_connected(number // 50 + 2)
        await asyncio.gather(*tasks)
        fetched = await client.fetch("s", 0, 0)
        found = [int(r.payload) for batch in fetched.batches for r in batch.records()]
    assert found == list(range(count))


async def test_subscriptions_go_on(url: str) -> None:
    events = Events()
    async with (
        connect(url, reconnect=AT_ONCE, on_connected=events.connected) as client,
        connect(url) as other,
        client.subscribe("live.#") as live,
    ):
        await other.declare_queue("q")
        await other.declare_stream("s")
        await other.bind("stream", "s", pattern="log.#")

        async def put(number: int) -> None:
            body = b"%d" % number
            await other.publish(body, exchange="", routing_key="q")
            await other.publish(body, routing_key="log.a")

        await put(0)
        await put(1)
        async with client.consume("q", credit=2) as queue, client.read("s", 0, "first") as log:
            first = await anext(queue)
            batch = await anext(log)
            read = [int(record.payload) for record in batch.records()]
            for times in (2, 3):
                lose(client)
                await events.until_connected(times)
            # What was not settled comes again, and not what was: nothing settles it by its old tag.
            await queue.ack(first)
            with pytest.raises(errors.UnknownDelivery):
                await queue.ack(first, wait=True)
            again = [await anext(queue) for _ in range(2)]
            assert [each.payload for each in again] == [b"0", b"1"]
            assert all(each.is_redelivered for each in again)
            for each in again:
                await queue.ack(each, wait=True)
            await put(2)
            await queue.ack(await anext(queue), wait=True)
            while read[-1] < 2:
                batch = await anext(log)
                read += [int(record.payload) for record in batch.records()]
            assert read == [0, 1, 2]
            await other.publish(b"l", routing_key="live.a")
            assert (await anext(live)).payload == b"l"
        assert (await other.declare_queue("q")).messages == 0


async def joined_meanwhile(other: Client, expected: int) -> None:
    """The small batches of ``s`` become one: a large one behind them ends their row."""
    await other.publish_batch([Publication(payload=b"", routing_key="log")] * SMALL_RECORDS)
    assert (await other.fetch("s", 0, 0)).batches[0].next_offset == expected


async def small_batches(other: Client, count: int) -> None:
    """A stream ``s`` with so many."""
    await other.declare_stream("s")
    await other.bind("stream", "s", pattern="log.#")
    for _ in range(count):
        await other.publish(b"", routing_key="log")


async def test_no_record_comes_twice_where_batches_were_joined_meanwhile(url: str) -> None:
    events = Events()
    async with (
        connect(url, reconnect=AT_ONCE, on_connected=events.connected) as client,
        connect(url) as other,
    ):
        await small_batches(other, 20)
        # One batch at a time.
        async with client.read("s", 0, 2, credit=1) as batches:
            read = [each.offset for each in (await anext(batches)).records()]
            await joined_meanwhile(other, 20)
            lose(client)
            await events.until_connected(2)
            while len(read) < 18 + SMALL_RECORDS:
                batch = await anext(batches)
                read += [each.offset for each in batch.records(batches.offset)]
            assert read == list(range(2, 20 + SMALL_RECORDS))
            assert batch.next_offset == 20 + SMALL_RECORDS


async def test_a_member_gets_no_record_twice_where_batches_were_joined_meanwhile(url: str) -> None:
    async with connect(url, reconnect=AT_ONCE) as client, connect(url) as other:
        await small_batches(other, 20)
        async with client.join("g", ["s"], credit=1) as consumer:
            read = [each.offset for each in (await anext(consumer)).records()]
            await joined_meanwhile(other, 20)
            lose(client)
            while len(read) < 20 + SMALL_RECORDS:
                read += [each.offset for each in (await anext(consumer)).records()]
        assert read == list(range(20 + SMALL_RECORDS))


async def test_the_blocking_client_gets_no_record_twice(url: str) -> None:
    def work() -> list[int]:
        with connect_sync(url, reconnect=AT_ONCE) as client, client.read("s", credit=1) as batches:
            read = [each.offset for each in next(batches).records()]
            asyncio.run_coroutine_threadsafe(joined_meanwhile(other, 20), loop).result()
            background = background_of(client)
            background.ask(lambda: lose(background.client))
            while len(read) < 20 + SMALL_RECORDS:
                read += [each.offset for each in next(batches).records()]
            return read

    loop = asyncio.get_running_loop()
    async with connect(url) as other:
        await small_batches(other, 20)
        assert await asyncio.to_thread(work) == list(range(20 + SMALL_RECORDS))


async def test_a_fetch_gives_records_from_its_offset_on(url: str) -> None:
    async with connect(url) as client:
        await small_batches(client, 20)
        await joined_meanwhile(client, 20)
        fetched = await client.fetch("s", 0, 7)
        offsets = [each.offset for stored in fetched.batches for each in stored.records()]
        assert fetched.batches[0].base_offset == 0
        assert offsets == list(range(7, 20 + SMALL_RECORDS))


async def test_a_poll_whose_connection_is_lost_is_made_again(url: str) -> None:
    async with connect(url, reconnect=AT_ONCE) as client, connect(url) as other:
        await other.declare_queue("q")
        async with client.poller("q") as poller:
            asked = asyncio.create_task(poller.poll(max_wait=TIMEOUT))
            await until_sent(client, 1)
            lose(client)
            # Both were asked under the number of the connection that is lost.
            await other.publish(b"0", exchange="", routing_key="q")
            assert [each.payload for each in await asked] == [b"0"]
            lose(client)
            (again,) = await poller.poll(max_wait=TIMEOUT)
            assert (again.payload, again.is_redelivered) == (b"0", True)
            lose(client)
            await other.delete("queue", "q")
            with pytest.raises(errors.NotFound, match="'q'"):
                await poller.poll(max_wait=TIMEOUT)


async def test_a_subscription_whose_source_is_gone_ends(url: str) -> None:
    events = Events()
    async with (
        connect(url, reconnect=AT_ONCE, on_connected=events.connected) as client,
        connect(url) as other,
    ):
        await client.declare_queue("q", exclusive=True)
        await other.declare_stream("s")
        async with client.consume("q") as queue, client.read("s") as log:
            connection = connection_of(client)
            assert isinstance(connection, LastingConnection)
            lose(client)
            await other.delete("stream", "s")
            await other.declare_stream("s")
            await events.until_connected(2)
            with pytest.raises(errors.NotFound):
                await anext(queue)
            with pytest.raises(errors.StreamChanged):
                await anext(log)


async def test_a_member_goes_on_with_what_it_has(url: str) -> None:
    async with connect(url, reconnect=AT_ONCE) as client, connect(url) as other:
        await other.declare_stream("s", 2)
        await other.bind("stream", "s", pattern="#")
        for number in range(20):
            await other.publish(b"%d" % number, routing_key=f"k{number}")
        read: list[int] = []
        async with client.join("g", ["s"]) as consumer:
            generation = consumer.membership.generation
            while len(read) < 20:
                batch = await anext(consumer)
                read += [int(record.payload) for record in batch.records()]
                lose(client)
                await consumer.commit()
            assert consumer.membership.generation == generation
            for number in range(20, 40):
                await other.publish(b"%d" % number, routing_key=f"k{number}")
            while len(read) < 40:
                batch = await anext(consumer)
                read += [int(record.payload) for record in batch.records()]
            await consumer.commit()
        assert sorted(read) == list(range(40))
        assert sum(each.lag for each in await other.committed("g", "s")) == 0


async def test_a_transaction_with_a_producer_is_committed_once(url: str) -> None:
    async with connect(url, reconnect=AT_ONCE) as client:
        await client.declare_queue("q")
        producer = await client.open_producer("p", transactional=True)

        async def commit() -> None:
            async with client.transaction(producer) as transaction:
                transaction.publish(Publication(payload=b"x", exchange="", routing_key="q"))

        committing = asyncio.create_task(commit())
        await until_sent(client, 1)
        lose(client)
        await committing
        assert (await client.declare_queue("q")).messages == 1


async def test_a_client_goes_to_the_first_place_that_answers(
    url: str, unused_tcp_port: int
) -> None:
    events = Events()
    place = url.removeprefix("trivium://")
    several = f"trivium://127.0.0.1:{unused_tcp_port},{place}/"
    async with connect(several, on_connected=events.connected) as client:
        await client.metadata()
    assert events.places == [int(place.rpartition(":")[2])]

    def work() -> None:
        with connect_sync(several) as client:
            client.metadata()

    await asyncio.to_thread(work)


async def test_a_client_gives_up_after_the_limit() -> None:
    async with asyncio.timeout(TIMEOUT):
        async with running() as url:
            client = await connect(url, reconnect=Reconnect(0.001, 0.01, limit=0.05))
        with pytest.raises(errors.NativeError, match="given up after"):
            await client.metadata()
        await client.close()


async def test_a_client_that_may_not_come_in_again_ends(tmp_path: Path) -> None:
    async with asyncio.timeout(TIMEOUT), running(users=True) as url:
        place = url.removeprefix("trivium://")
        client = await connect(f"trivium://u:p@{place}", reconnect=AT_ONCE)
        connection = connection_of(client)
        assert isinstance(connection, LastingConnection)
        connection.target = Target("127.0.0.1", int(place.rpartition(":")[2]), "/", "u", "wrong")
        lose(client)
        with pytest.raises(errors.AuthenticationFailed):
            await client.metadata()
        await client.close()


async def test_closing_ends_the_attempts() -> None:
    async with asyncio.timeout(TIMEOUT):
        async with running() as url:
            client = await connect(url)
        waiting = asyncio.create_task(client.metadata())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(errors.ConnectionFailed, match="closed"):
            await waiting


def test_waits_grow_to_the_longest_and_are_drawn() -> None:
    policy = Reconnect(first=1.0, longest=4.0)
    draws = [list(islice(policy.waits(), 5)) for _ in range(200)]
    largest = [max(column) for column in zip(*draws, strict=True)]
    for found, bound in zip(largest, [1, 2, 4, 4, 4], strict=True):
        assert bound / 2 < found <= bound
    for wrong in ({"first": 0.0}, {"first": 2.0, "longest": 1.0}, {"limit": -1.0}):
        with pytest.raises(ValueError, match="out of range"):
            Reconnect(**wrong)


def test_waits_leave_the_generator_of_the_program_alone() -> None:
    before = random.getstate()
    assert len(list(islice(Reconnect().waits(), 5))) == 5
    assert random.getstate() == before


# The blocking client


async def in_thread(url: str, work: Callable[[SyncClient], None]) -> list[str]:
    lost: list[str] = []

    def run() -> None:
        with connect_sync(
            url, reconnect=AT_ONCE, on_disconnected=lambda error: lost.append(error.text)
        ) as client:
            work(client)

    await asyncio.to_thread(run)
    return lost


async def test_the_blocking_client_repeats_what_it_may(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_stream("s")
        client.bind_stream("s", "amq.topic", "#")
        socket_of(client).close()
        producer = client.open_producer("p")
        socket_of(client).close()
        client.publish_batch([Publication(payload=b"1")], producer)
        socket_of(client).close()
        with pytest.raises(errors.Interrupted):
            client.publish_batch([Publication(payload=b"2")])
        client.publish_batch([Publication(payload=b"3")])
        fetched = client.fetch("s", 0, 0)
        found = [r.payload for batch in fetched.batches for r in batch.records()]
        assert found == [b"1", b"3"]

    assert len(await in_thread(url, work)) == 3


async def test_an_answer_of_the_new_connection_is_none_to_a_request_of_the_old(url: str) -> None:
    def work(client: SyncClient) -> None:
        old = operations.metadata(["s"])
        number = start(client, old)
        socket_of(client).close()
        client.metadata()
        for _ in range(5):
            client.declare_stream("s")
        with pytest.raises(errors.Interrupted):
            finish(client, number, old)

    await in_thread(url, work)


async def test_the_blocking_client_gives_up_after_its_time_out() -> None:
    is_connected, is_gone = threading.Event(), threading.Event()

    def work(url: str) -> None:
        with connect_sync(url, timeout=0.2, reconnect=AT_ONCE) as client:
            is_connected.set()
            is_gone.wait(TIMEOUT)
            with pytest.raises(errors.NativeError):
                client.metadata()

    async with asyncio.timeout(TIMEOUT):
        async with running() as url:
            working = asyncio.create_task(asyncio.to_thread(work, url))
            await asyncio.to_thread(is_connected.wait, TIMEOUT)
        is_gone.set()
        await working


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_the_first_connection_is_tried_again_for_a_while(is_blocking: bool) -> None:
    attempts = asyncio.Semaphore(0)

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.release()
        writer.close()

    async def work(url: str) -> None:
        async with connect(url, retry=math.inf, reconnect=AT_ONCE) as client:
            await client.metadata()

    def work_blocking(url: str) -> None:
        with connect_sync(url, retry=math.inf, reconnect=AT_ONCE) as client:
            client.metadata()

    async with asyncio.timeout(TIMEOUT):
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"trivium://127.0.0.1:{port}"
            done = asyncio.to_thread(work_blocking, url) if is_blocking else work(url)
            working = asyncio.create_task(done)
            for _ in range(2):
                await attempts.acquire()
        config = Config(listen={"native": Listen(port)}, storage=StorageConfig(mode="memory"))
        async with Broker(config):
            await working


async def test_without_an_answer_the_first_connection_is_given_up(unused_tcp_port: int) -> None:
    url = f"trivium://127.0.0.1:{unused_tcp_port}"
    for retry in (0.0, 0.02):
        with pytest.raises(errors.ConnectionFailed):
            await connect(url, retry=retry, reconnect=AT_ONCE)
        with pytest.raises(errors.ConnectionFailed):
            await asyncio.to_thread(connect_sync, url, retry=retry, reconnect=AT_ONCE)


async def test_what_cannot_pass_is_not_tried_again(url: str) -> None:
    with pytest.raises(errors.NotFound):
        await connect(url + "/none", retry=math.inf)
    with pytest.raises(errors.NotFound):
        await asyncio.to_thread(connect_sync, url + "/none", retry=math.inf)


async def test_a_broker_that_talks_nonsense_is_not_asked_again() -> None:
    async with FakeBroker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as fake:
        with pytest.raises(errors.RemoteProtocolError):
            await connect(fake.url, reconnect=AT_ONCE)


def test_what_does_not_say_how_to_connect_again_is_refused() -> None:
    for make in (connect, connect_sync):
        with pytest.raises(ValueError, match="reconnect"):
            make("trivium://localhost", reconnect=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="retry"):
            make("trivium://localhost", retry=math.nan)

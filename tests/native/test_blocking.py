"""Subscriptions, members and publishers of the blocking client, from threads as its users are."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

import pytest

from tests.support.live import TIMEOUT, running
from trivium_native import errors
from trivium_native.client import Client
from trivium_native.client.client import connection_of
from trivium_native.client.lasting import LastingConnection
from trivium_native.client.sync import background_of
from trivium_native.sync import SyncClient, connect
from trivium_native.transaction import Transaction
from trivium_native.values import AssignedPartition, Publication, Reconnect

T = TypeVar("T")
PARTITIONS = 4


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with running() as found, asyncio.timeout(TIMEOUT):
        yield found


async def in_thread(url: str, work: Callable[[SyncClient], T]) -> T:
    def run() -> T:
        with connect(url, timeout=TIMEOUT) as client:
            return work(client)

    return await asyncio.to_thread(run)


def make_stream(client: SyncClient, count: int) -> None:
    client.declare_stream("s", PARTITIONS)
    client.bind_stream("s", "amq.topic", "#")
    put(client, range(count))


def put(client: SyncClient, numbers: range) -> None:
    for number in numbers:
        client.publish(b"%d" % number, routing_key=f"k{number}")


async def test_a_queue_is_consumed_and_settled(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        for payload in (b"a", b"b", b"c"):
            client.publish(payload, routing_key="q", exchange="")
        with client.consume("q", credit=2) as deliveries:
            first = next(deliveries)
            assert (first.payload, first.is_redelivered) == (b"a", False)
            deliveries.nack(first)
            found = []
            for delivery in deliveries:
                found.append((delivery.payload, delivery.is_redelivered))
                deliveries.ack(delivery, wait=delivery.payload == b"c")
                if len(found) == 3:
                    break
            assert sorted(found) == [(b"a", True), (b"b", False), (b"c", False)]
            assert deliveries.get(timeout=0.01) is None
            with pytest.raises(errors.UnknownDelivery):
                deliveries.ack(first, wait=True)
        assert client.declare_queue("q").messages == 0

    await in_thread(url, work)


async def test_what_is_not_settled_goes_back_at_the_end_of_the_block(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        client.publish(b"a", routing_key="q", exchange="")
        with client.consume("q") as deliveries:
            next(deliveries)
        with client.consume("q", no_ack=True) as deliveries:
            assert next(deliveries).is_redelivered
        assert client.declare_queue("q").messages == 0

    await in_thread(url, work)


async def test_an_exclusive_queue_is_this_clients(url: str) -> None:
    def work(client: SyncClient) -> None:
        name = client.declare_queue(exclusive=True).name
        client.publish(b"a", routing_key=name, exchange="")
        with client.consume(name, exclusive=True) as deliveries:
            assert next(deliveries).payload == b"a"
        with connect(url) as other, pytest.raises(errors.ResourceLocked):
            other.purge(name)

    await in_thread(url, work)


async def test_live_messages_come(url: str) -> None:
    def work(client: SyncClient) -> None:
        with client.subscribe("sensors.#") as messages:
            assert messages.get(timeout=0.01) is None
            client.publish(b"1", routing_key="sensors.a")
            client.publish(b"2", routing_key="other")
            client.publish(b"3", routing_key="sensors.b")
            assert [next(messages).payload, next(messages).payload] == [b"1", b"3"]
            assert messages.dropped == 0
        with pytest.raises(errors.NotFound), client.subscribe("#", exchange="none"):
            pass

    await in_thread(url, work)


async def test_a_partition_is_read_from_an_offset_on(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_stream("s")
        client.bind_stream("s", "amq.topic", "#")
        put(client, range(10))
        with client.read("s", 0, 4) as batches:
            assert batches.offset == 4
            found: list[bytes] = []
            for batch in batches:
                found += [record.payload for record in batch.records(batches.offset)]
                if len(found) == 6:
                    break
        assert found == [b"%d" % number for number in range(4, 10)]

    await in_thread(url, work)


async def test_a_transaction_settles_what_was_consumed(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("in")
        client.declare_queue("out")
        client.publish(b"a", routing_key="in", exchange="")
        with client.consume("in") as deliveries:
            delivery = next(deliveries)
            with client.transaction() as transaction:
                transaction.ack(delivery)
                transaction.publish(Publication(payload=b"A", routing_key="out", exchange=""))
            with pytest.raises(errors.UnknownDelivery), client.transaction() as transaction:
                transaction.ack(delivery)
        assert client.declare_queue("in").messages == 0
        assert client.declare_queue("out").messages == 1

    await in_thread(url, work)


async def test_a_transaction_is_given_up_when_the_block_raises(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("out")
        with suppress(ZeroDivisionError), client.transaction() as transaction:
            transaction.publish(Publication(payload=b"A", routing_key="out", exchange=""))
            raise ZeroDivisionError
        assert client.declare_queue("out").messages == 0

    await in_thread(url, work)


async def test_a_member_reads_commits_and_moves(url: str) -> None:
    def work(client: SyncClient) -> None:
        make_stream(client, 40)
        assigned: list[AssignedPartition] = []
        with client.join("g", ["s"], member="m", on_assigned=assigned.extend) as consumer:
            assert [each.partition for each in assigned] == list(range(PARTITIONS))
            assert [each.partition for each in consumer.assigned] == list(range(PARTITIONS))
            assert (consumer.membership.member, consumer.members) == ("m", ["m"])
            found: list[int] = []
            while len(found) < 40:
                batch = next(consumer)
                found += [int(record.payload) for record in batch.records()]
                consumer.commit()
            assert sorted(found) == list(range(40))
            assert set(consumer.lag().values()) == {0}
            assert sum(each.lag for each in client.committed("g", "s")) == 0
            consumer.pause("s", 0)
            consumer.seek("s", 1, "first")
            batch = next(consumer)
            assert (batch.partition, batch.start) == (1, 0)
            (commit,) = consumer.offsets()
            client.commit_transaction(_committing(commit))
            consumer.committed([commit])
            assert consumer.offsets() == []
            consumer.resume("s", 0)
            with pytest.raises(errors.NotFound):
                consumer.pause("s", PARTITIONS)

    await in_thread(url, work)


def _committing(commit: object) -> Transaction:
    transaction = Transaction()
    transaction.commit_offsets([commit])  # type: ignore[list-item]
    return transaction


async def test_a_callback_commits_before_partitions_go_to_another_member(url: str) -> None:
    def work(client: SyncClient) -> None:
        make_stream(client, 40)
        revoked: list[int] = []

        def on_revoked(partitions: list[AssignedPartition]) -> None:
            consumer.commit()
            revoked.extend(each.partition for each in partitions)

        is_over = threading.Event()
        with client.join("g", ["s"], on_revoked=on_revoked) as consumer:
            found: list[bytes] = []
            while len(found) < 40:
                found += [record.payload for record in next(consumer).records()]
            joining: Future[list[int | None]] = Future()
            thread = threading.Thread(target=_be_another, args=(url, joining, is_over))
            thread.start()
            while not joining.done():
                # Asking for the next one lets go.
                assert consumer.get(timeout=0.01) is None
            is_over.set()
            thread.join()
            committed = {each.partition: each.committed for each in client.committed("g", "s")}
            assert len(revoked) == PARTITIONS // 2
            assert sorted(joining.result()) == sorted(committed[each] for each in revoked)  # type: ignore[type-var]
            assert sum(committed[each] or 0 for each in revoked)

    await in_thread(url, work)


def _be_another(url: str, joining: Future[list[int | None]], is_over: threading.Event) -> None:
    """A second member, until it is over: what it was assigned begins where that was committed."""
    enough = threading.Event()
    given: list[int | None] = []

    def on_assigned(partitions: list[AssignedPartition]) -> None:
        given.extend(each.committed for each in partitions)
        if len(given) == PARTITIONS // 2:
            enough.set()

    with connect(url) as other, other.join("g", ["s"], on_assigned=on_assigned):
        enough.wait(TIMEOUT)
        joining.set_result(given)
        is_over.wait(TIMEOUT)


async def test_a_publisher_gathers_in_order(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_stream("s")
        client.bind_stream("s", "amq.topic", "#")
        told: list[tuple[int, int]] = []
        with client.publisher(on_progress=lambda *told_of: told.append(told_of)) as publisher:
            futures = [publisher.publish(b"%d" % n, routing_key="k") for n in range(3000)]
            publisher.flush()
            assert all(future.done() and future.exception() is None for future in futures)
            assert publisher.confirmed == 3000
            publisher.publish(b"3000", routing_key="k")
        assert told[-1] == (3001, 0)
        fetched = client.fetch("s", 0, 0)
        found = [record.payload for batch in fetched.batches for record in batch.records()]
        assert found == [b"%d" % n for n in range(3001)]

    await in_thread(url, work)


async def test_a_message_that_is_refused_stops_no_other_one(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        with client.publisher() as publisher:
            one = publisher.publish(b"a", routing_key="q", exchange="")
            other = publisher.publish(b"b", exchange="none")
            last = publisher.publish(b"c", routing_key="q", exchange="")
            with pytest.raises(errors.NotFound):
                publisher.flush()
            assert one.exception() is None
            assert isinstance(other.exception(), errors.NotFound)
            assert last.exception() is None
        assert client.declare_queue("q").messages == 2

    await in_thread(url, work)


async def test_who_publishes_too_fast_waits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium_native.client.blocking.BUFFER_BYTES", 10_000)
    monkeypatch.setattr("trivium_native.client.publisher.BUFFER_BYTES", 10_000)
    monkeypatch.setattr("trivium_native.client.blocking.HANDED_OVER", 5_000)

    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        with client.publisher() as publisher:
            for _ in range(200):
                publisher.publish(bytes(1000), routing_key="q", exchange="")
                # What has been taken is confirmed before more is.
                assert publisher.waiting_bytes < 20_000
        assert client.declare_queue("q").messages == 200

    await in_thread(url, work)


async def test_a_subscription_outlives_its_connection(url: str) -> None:
    back = threading.Event()

    def work() -> None:
        times: list[object] = []

        def on_connected(place: object) -> None:
            times.append(place)
            # The first two are those of requests and of subscriptions.
            if len(times) == 3:
                back.set()

        reconnect = Reconnect(first=0.001, longest=0.01)
        with (
            connect(url, timeout=TIMEOUT, on_connected=on_connected, reconnect=reconnect) as client,
            client.subscribe("#") as messages,
        ):
            background = background_of(client)
            background.ask(lambda: _lose(background.client))
            assert back.wait(TIMEOUT)
            client.publish(b"a")
            assert next(messages).payload == b"a"

    await asyncio.to_thread(work)


def _lose(client: Client) -> None:
    """End the connection, as the network would."""
    connection = connection_of(client)
    assert isinstance(connection, LastingConnection)
    assert connection.road is not None
    connection.road.connection_lost(None)


async def test_a_closed_client_says_so(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        with client.consume("q") as deliveries:
            client.close()
            with pytest.raises(errors.ConnectionFailed, match="closed"):
                next(deliveries)
            with pytest.raises(errors.ConnectionFailed, match="closed"):
                client.purge("q")
        with pytest.raises(errors.ConnectionFailed, match="closed"), client.consume("q"):
            pass

    await in_thread(url, work)


async def test_a_time_limit_holds_beside_a_subscription(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_stream("s")
        with client.subscribe("#"):
            with pytest.raises(errors.TimedOut, match=r"no answer within 0\.01 s$"):
                client.within(0.01).fetch("s", 0, 0, max_wait=TIMEOUT)
            assert client.fetch("s", 0, 0).batches == []

    await in_thread(url, work)


async def test_a_numbered_producer_goes_on(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        for count in (3, 4):
            with client.publisher("p") as publisher:
                for _ in range(count):
                    publisher.publish(b"a", routing_key="q", exchange="")
        assert client.open_producer("p").sequence == 7
        producer = dataclasses.replace(client.open_producer("p"), sequence=6)
        client.publish_batch([Publication(payload=b"a", routing_key="q", exchange="")], producer)
        assert client.declare_queue("q").messages == 7

    await in_thread(url, work)


async def test_a_confirmation_is_waited_for_like_a_future(url: str) -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        told: list[bool] = []
        called = threading.Event()
        # Nothing is sent before it is asked for.
        with client.publisher(linger=TIMEOUT) as publisher:
            good = publisher.publish(b"a", routing_key="q", exchange="")
            bad = publisher.publish(b"b", exchange="none")
            with pytest.raises(TimeoutError):
                good.result(timeout=0.01)
            assert not good.done()
            good.add_done_callback(lambda done: told.append(done.done()))
            good.add_done_callback(lambda done: 1 / 0)
            bad.add_done_callback(lambda done: called.set())
            with pytest.raises(errors.NotFound):
                publisher.flush()
            good.result()
            with pytest.raises(errors.NotFound):
                bad.result(TIMEOUT)
            assert called.wait(TIMEOUT)
            assert told == [True]
            good.add_done_callback(lambda done: told.append(done.done()))
            assert told == [True, True]

    await in_thread(url, work)

"""Members of a group and transactions with the asyncio client, against a broker on loopback."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.live import TIMEOUT, running
from trivium_native import connect, errors
from trivium_native.client import Client
from trivium_native.client.client import connection_of
from trivium_native.client.consumer import Callback, GroupBatch, GroupConsumer
from trivium_native.transaction import Transaction
from trivium_native.values import AssignedPartition, Producer, Publication

PARTITIONS = 4


@pytest.fixture(params=["memory", "disk"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    data = tmp_path / "data" if request.param == "disk" else None
    async with running(data) as found, asyncio.timeout(TIMEOUT):
        yield found


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    """With stream ``s``, to which every key goes."""
    async with connect(url) as found:
        await found.declare_stream("s", PARTITIONS)
        await found.bind("stream", "s", pattern="#")
        yield found


async def put(client: Client, numbers: range) -> None:
    """Messages spread over the partitions, each with a request of its own."""
    for number in numbers:
        await client.publish(b"%d" % number, routing_key=f"k{number}")


class Log:
    """What a member was told, and what it read."""

    def __init__(self) -> None:
        self.assigned: list[int] = []
        self.revoked: list[int] = []
        self.read: list[int] = []
        self.changed = asyncio.Event()

    async def on_assigned(self, partitions: list[AssignedPartition]) -> None:
        self.assigned += [each.partition for each in partitions]
        self.changed.set()

    async def on_revoked(self, partitions: list[AssignedPartition]) -> None:
        self.revoked += [each.partition for each in partitions]
        self.changed.set()

    async def until_assigned(self, count: int) -> None:
        while len(self.assigned) < count:
            self.changed.clear()
            await self.changed.wait()

    async def until_revoked(self, count: int) -> None:
        while len(self.revoked) < count:
            self.changed.clear()
            await self.changed.wait()


async def read(consumer: GroupConsumer, log: Log, count: int) -> None:
    """Read so many records, and commit after each batch."""
    wanted = len(log.read) + count
    while len(log.read) < wanted:
        batch = await anext(consumer)
        records = list(batch.records())
        assert records[0].offset == batch.start
        log.read += [int(record.payload) for record in records]
        await consumer.commit()


async def test_a_member_reads_all_partitions_and_goes_on_where_it_committed(
    client: Client,
) -> None:
    await put(client, range(40))
    log = Log()
    async with client.join("g", ["s"], on_assigned=log.on_assigned) as consumer:
        assert log.assigned == [0, 1, 2, 3]
        await read(consumer, log, 40)
        assert {each.partition for each in consumer.assigned} == {0, 1, 2, 3}
    assert sorted(log.read) == list(range(40))
    assert sum(each.lag for each in await client.committed("g", "s")) == 0
    await put(client, range(40, 50))
    async with client.join("g", ["s"]) as consumer:
        await read(consumer, log, 10)
    assert sorted(log.read) == list(range(50))


async def test_two_members_share_and_nothing_is_read_twice(url: str, client: Client) -> None:
    first, second = Log(), Log()
    await put(client, range(20))
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(
            client.join("g", ["s"], on_assigned=first.on_assigned, on_revoked=first.on_revoked)
        )
        await read(a, first, 20)
        other = await stack.enter_async_context(connect(url))
        b = await stack.enter_async_context(other.join("g", ["s"], on_assigned=second.on_assigned))
        await _asks(a, first)
        await second.until_assigned(2)
        assert sorted(first.revoked) == sorted(second.assigned)
        await put(client, range(20, 60))
        async with asyncio.TaskGroup() as group:
            shares = [0, 0]
            for row in await client.committed("g", "s"):
                shares[row.partition in second.assigned] += row.lag
            group.create_task(read(a, first, shares[0]))
            group.create_task(read(b, second, shares[1]))
    assert all(shares)
    assert sorted(first.read + second.read) == list(range(60))


async def _asks(consumer: GroupConsumer, log: Log) -> None:
    """Ask for the next batch, of which there is none: what was handed out is done with."""
    asking = asyncio.create_task(anext(consumer))
    await log.until_revoked(2)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_partition_stays_while_its_batch_is_worked_on(url: str, client: Client) -> None:
    await put(client, range(40))
    first, second = Log(), Log()
    async with connect(url) as other, AsyncExitStack() as stack:
        a = await stack.enter_async_context(
            client.join("g", ["s"], strategy="range", member="b", on_revoked=first.on_revoked)
        )
        batch = await anext(a)
        while batch.partition > 1:  # "a" will get partitions 0 and 1
            batch = await anext(a)
        await stack.enter_async_context(
            other.join("g", ["s"], strategy="range", member="a", on_assigned=second.on_assigned)
        )
        # The other one is let go at once, this one when the next batch is asked for.
        await second.until_assigned(1)
        assert second.assigned == [1 - batch.partition]
        await a.commit()
        await anext(a)
        await second.until_assigned(2)
        assert sorted(first.revoked) == [0, 1]
        committed = (await client.committed("g", "s"))[batch.partition].committed
        assert committed == batch.next_offset


async def test_offsets_are_committed_when_partitions_are_let_go(url: str, client: Client) -> None:
    await put(client, range(40))
    log = Log()

    async def on_revoked(partitions: list[AssignedPartition]) -> None:
        await a.commit()
        await log.on_revoked(partitions)

    async with connect(url) as other, client.join("g", ["s"], on_revoked=on_revoked) as a:
        seen: list[int] = []
        while len(seen) < 40:
            seen += [int(record.payload) for record in (await anext(a)).records()]
        async with other.join("g", ["s"]):
            await _asks(a, log)
            rows = await client.committed("g", "s")
            assert sum(rows[partition].lag for partition in log.revoked) == 0


async def test_a_member_that_was_taken_for_gone_joins_again(url: str, client: Client) -> None:
    await put(client, range(20))
    log = Log()
    async with (
        connect(url) as other,
        client.join(
            "g",
            ["s"],
            member="m",
            session_timeout=0.3,
            on_assigned=log.on_assigned,
            on_revoked=log.on_revoked,
        ) as consumer,
    ):
        await anext(consumer)
        # For the broker that is what a time-out is.
        await other.leave(consumer.membership)
        await log.until_assigned(2 * PARTITIONS)
        assert log.revoked == [0, 1, 2, 3]
        with pytest.raises(errors.StaleMember):
            await consumer.commit()
        await read(consumer, log, 20)
    assert sorted(log.read) == list(range(20))


async def test_who_joins_under_the_name_of_a_living_member_ends_that_one_for_good(
    url: str, client: Client
) -> None:
    await put(client, range(20))
    log = Log()
    async with (
        connect(url) as other,
        client.join("g", ["s"], member="m") as old,
        other.join("g", ["s"], member="m") as new,
    ):
        # It is told at once, and hands out nothing more of what it has.
        with pytest.raises(errors.Fenced, match="joined again as 'm'"):
            async for _ in old:
                pass
        for call in (lambda: anext(old), old.commit):
            with pytest.raises(errors.Fenced):
                await call()
        await read(new, log, 20)
    assert sorted(log.read) == list(range(20))


async def test_the_same_on_one_connection(client: Client) -> None:
    log = Log()
    async with AsyncExitStack() as stack:
        async with client.join("g", ["s"], member="m", session_timeout=0.3) as old:
            new = await stack.enter_async_context(client.join("g", ["s"], member="m"))
            with pytest.raises(errors.Fenced):
                await anext(old)
        # The end of the old one takes nothing from the new one.
        assert connection_of(client).members["g", "m"] is new
        await put(client, range(10))
        await read(new, log, 10)
    assert sorted(log.read) == list(range(10))


async def test_a_deleted_stream_is_let_go_and_its_successor_is_read(client: Client) -> None:
    log = Log()
    async with client.join("g", ["s"], on_assigned=log.on_assigned) as consumer:
        await client.delete("stream", "s")
        await client.declare_stream("s", 1)
        await log.until_assigned(PARTITIONS + 1)
        await client.bind("stream", "s", pattern="#")
        await put(client, range(3))
        await read(consumer, log, 3)
    assert log.read == [0, 1, 2]


async def test_a_member_starts_where_it_is_told_to(client: Client) -> None:
    await put(client, range(10))
    log = Log()
    async with client.join("g", ["s"], start="next") as consumer:
        await put(client, range(10, 20))
        await read(consumer, log, 10)
    assert sorted(log.read) == list(range(10, 20))


async def test_a_callback_that_fails_ends_the_member(url: str, client: Client) -> None:
    async def on_revoked(partitions: list[AssignedPartition]) -> None:
        raise RuntimeError("no")

    async with (
        connect(url) as other,
        client.join("g", ["s"], on_revoked=on_revoked) as consumer,
        other.join("g", ["s"]),
    ):
        with pytest.raises(RuntimeError, match="no"):
            await anext(consumer)


async def test_a_lost_connection_ends_an_iterator_that_is_not_to_last_and_the_member_comes_back(
    url: str, client: Client
) -> None:
    await put(client, range(20))
    log = Log()
    async with (
        connect(url, reconnect=False) as first,
        first.join("g", ["s"], member="m") as consumer,
    ):
        await read(consumer, log, 20)
        transport = connection_of(first).transport
        assert transport is not None
        transport.abort()
        with pytest.raises(errors.ConnectionFailed):
            await anext(consumer)
    async with connect(url) as second, second.join("g", ["s"], member="m") as consumer:
        assert len(consumer.assigned) == PARTITIONS
        await put(client, range(20, 30))
        await read(consumer, log, 10)
    assert sorted(log.read) == list(range(30))


async def test_who_leaves_the_block_leaves_the_group(client: Client) -> None:
    async with client.join("g", ["s"]):
        with pytest.raises(errors.PreconditionFailed):
            await client.commit("g", "s", {0: 0})
    await client.commit("g", "s", {0: 0})


async def test_an_exclusive_holder_is_fenced_by_the_next(url: str, client: Client) -> None:
    async with connect(url) as other:
        one = await client.join_exclusively("g", "one")
        await client.check_membership(one)
        await client.commit("g", "s", {0: 0}, membership=one)
        two = await other.join_exclusively("g", "two")
        with pytest.raises(errors.Fenced):
            await client.commit("g", "s", {0: 0}, membership=one)
        with pytest.raises(errors.Fenced):
            await client.check_membership(one)
        with pytest.raises(errors.ResourceLocked):
            async with client.join("g", ["s"]):
                pass
        await other.leave(two)


async def test_an_exclusive_join_ends_the_members_before(url: str, client: Client) -> None:
    async with connect(url) as other, client.join("g", ["s"]) as consumer:
        await other.join_exclusively("g", "one")
        with pytest.raises(errors.Fenced):
            await anext(consumer)


# Transactions


async def test_a_transaction_moves_messages(client: Client) -> None:
    await client.declare_queue("in")
    await client.publish(b"1", routing_key="in", exchange="")
    async with client.consume("in") as deliveries:
        delivery = await anext(deliveries)
        async with client.transaction() as transaction:
            transaction.publish(Publication(payload=delivery.payload, routing_key="a.b"))
            transaction.ack(delivery)
    assert await client.purge("in") == 0
    (info,) = await client.metadata(["s"])
    assert sum(partition.high_watermark for partition in info.partitions) == 1


async def test_a_transaction_that_raises_is_given_up(client: Client) -> None:
    async def fail() -> None:
        async with client.transaction() as transaction:
            transaction.publish(Publication(payload=b"x", routing_key="a.b"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    (info,) = await client.metadata(["s"])
    assert sum(partition.next_offset for partition in info.partitions) == 0


async def test_a_member_commits_its_offsets_with_what_it_publishes(client: Client) -> None:
    await client.declare_queue("out")
    await put(client, range(10))
    producer = await client.open_producer("etl", transactional=True)
    count = 0
    async with client.join("g", ["s"]) as consumer:
        while count < 10:
            batch = await anext(consumer)
            transaction = Transaction(producer)
            for record in batch.records():
                transaction.publish(
                    Publication(payload=record.payload, routing_key="out", exchange="")
                )
                count += 1
            commits = consumer.offsets()
            transaction.commit_offsets(commits)
            # Twice, as after a lost answer.
            await client.commit_transaction(transaction)
            await client.commit_transaction(transaction)
            consumer.committed(commits)
            producer = dataclasses.replace(producer, sequence=producer.sequence + 1)
        assert consumer.offsets() == []
    assert await client.purge("out") == 10
    assert sum(each.lag for each in await client.committed("g", "s")) == 0
    again = await client.open_producer("etl", transactional=True)
    assert again.sequence == producer.sequence


class Mover:
    """A member that moves records to the queue ``out`` in transactions, each once."""

    def __init__(self, client: Client, consumer: GroupConsumer, producer: Producer) -> None:
        self._client = client
        self._consumer = consumer
        self._producer = producer
        self.moved: list[int] = []
        #: transactions that were given up
        self.given_up = 0

    async def move(self, *batches: GroupBatch) -> None:
        """One transaction. What it raises StaleMember for was not done, and comes again."""
        transaction = Transaction(self._producer)
        numbers = [int(record.payload) for batch in batches for record in batch.records()]
        for number in numbers:
            transaction.publish(Publication(payload=b"%d" % number, exchange="", routing_key="out"))
        try:
            commits = self._consumer.offsets()
            transaction.commit_offsets(commits)
            await self._client.commit_transaction(transaction)
        except errors.StaleMember:
            self.given_up += 1
            return
        self._consumer.committed(commits)
        self._producer = dataclasses.replace(self._producer, sequence=self._producer.sequence + 1)
        self.moved += numbers

    async def move_rest(self, count: int) -> None:
        """Until so many are moved: a batch at a time, each of which is there once."""
        while len(self.moved) < count:
            await self.move(await anext(self._consumer))
        assert sorted(self.moved) == list(range(count))
        assert await self._client.purge("out") == count
        assert sum(each.lag for each in await self._client.committed("g", "s")) == 0


@asynccontextmanager
async def moving(
    client: Client, log: Log, on_revoked: Callback | None = None
) -> AsyncIterator[tuple[GroupConsumer, Mover]]:
    """A member ``m`` of group ``g``, and what moves its records."""
    await client.declare_queue("out")
    producer = await client.open_producer("etl", transactional=True)
    joining = client.join(
        "g", ["s"], member="m", on_assigned=log.on_assigned, on_revoked=on_revoked
    )
    async with joining as consumer:
        yield consumer, Mover(client, consumer, producer)


async def test_a_transaction_is_given_up_whose_records_were_lost_meanwhile(
    url: str, client: Client
) -> None:
    """Without that its messages would be published, and its records come again."""
    await put(client, range(40))
    log = Log()
    callbacks = []

    async def on_revoked(partitions: list[AssignedPartition]) -> None:
        callbacks.append(len(partitions))
        await consumer.commit()

    async with connect(url) as other, moving(client, log, on_revoked) as (consumer, mover):
        batch = await anext(consumer)
        # For the broker that is what a time-out is; the member learns it while it works.
        await other.leave(consumer.membership)
        await log.until_assigned(2 * PARTITIONS)
        await mover.move(batch)
        assert mover.given_up == 1
        assert callbacks == [PARTITIONS]
        await mover.move_rest(40)


async def test_what_a_refused_transaction_has_read_comes_again(url: str, client: Client) -> None:
    """Of all partitions, so that none of it is passed over by the next transaction."""
    await put(client, range(40))
    async with connect(url) as other, moving(client, Log()) as (consumer, mover):
        batches = [await anext(consumer)]
        while len({batch.partition for batch in batches}) < PARTITIONS:
            batches.append(await anext(consumer))
        await other.leave(consumer.membership)
        # The member does not know yet.
        await mover.move(*batches)
        assert mover.given_up == 1
        await mover.move_rest(40)


async def test_a_transaction_is_given_up_when_one_of_its_partitions_was_let_go(
    url: str, client: Client
) -> None:
    await put(client, range(40))
    log = Log()
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(connect(url))
        consumer, mover = await stack.enter_async_context(moving(client, log, log.on_revoked))
        batches = [await anext(consumer)]
        while len({batch.partition for batch in batches}) < PARTITIONS:
            batches.append(await anext(consumer))
        second = await stack.enter_async_context(other.join("g", ["s"], member="n"))
        # Of those that are to go, one may be worked on.
        await log.until_revoked(1)
        await mover.move(*batches)
        assert mover.given_up == 1
        await other.leave(second.membership)
        await second.stop()
        await log.until_assigned(PARTITIONS + len(log.revoked))
        await mover.move_rest(40)


async def test_a_partition_that_is_about_to_be_read_has_no_offset_to_commit(
    url: str, client: Client
) -> None:
    await put(client, range(40))
    log = Log()
    async with connect(url) as other, moving(client, log) as (consumer, mover):
        await mover.move_rest(40)
        await other.leave(consumer.membership)
        while len(log.assigned) < 2 * PARTITIONS or await consumer.lag() != dict.fromkeys(
            [("s", number) for number in range(PARTITIONS)], 0
        ):
            assert consumer.offsets() == []
            await asyncio.sleep(0)


# Where it reads


async def test_a_member_seeks_and_commits_from_there(client: Client) -> None:
    await client.declare_stream("one")
    for number in range(10):
        await client.publish(b"%d" % number, exchange="", routing_key="one")
    async with client.join("g", ["one"]) as consumer:
        log = Log()
        await read(consumer, log, 10)
        await consumer.seek("one", 0, 7)
        assert await consumer.lag() == {("one", 0): 3}
        await read(consumer, log, 3)
        assert log.read == [*range(10), 7, 8, 9]
        await consumer.seek("one", 0, "first")
        await consumer.commit()
        assert [each.committed for each in await client.committed("g", "one")] == [0]
        with pytest.raises(errors.OffsetOutOfRange):
            await consumer.seek("one", 0, 99)
        # It goes on where it was.
        await read(consumer, log, 10)
        assert log.read[-10:] == list(range(10))
        with pytest.raises(errors.NotFound):
            await consumer.seek("one", 1, 0)


async def test_a_paused_partition_is_kept_and_not_read(client: Client) -> None:
    await put(client, range(40))
    total = {row.partition: row.lag for row in await client.committed("g", "s")}
    async with client.join("g", ["s"]) as consumer:
        consumer.pause("s", 1)
        log = Log()
        await read(consumer, log, 40 - total[1])
        assert {each.partition for each in consumer.assigned} == {0, 1, 2, 3}
        assert await consumer.lag() == {("s", n): total[1] if n == 1 else 0 for n in range(4)}
        consumer.resume("s", 1)
        await read(consumer, log, total[1])
        assert sorted(log.read) == list(range(40))


async def test_a_member_knows_who_else_there_is(url: str, client: Client) -> None:
    async with client.join("g", ["s"], member="a") as first, connect(url) as other:
        assert first.members == ["a"]
        async with other.join("g", ["s"], member="b") as second:
            assert second.members == ["a", "b"]


async def test_what_is_worked_on_is_not_committed_by_a_callback(url: str, client: Client) -> None:
    await put(client, range(40))
    worked_on = -1
    told = asyncio.Event()

    async def on_revoked(partitions: list[AssignedPartition]) -> None:
        await a.commit()
        told.set()

    async with connect(url) as other, AsyncExitStack() as stack:
        a = await stack.enter_async_context(client.join("g", ["s"], on_revoked=on_revoked))
        begun = set[int]()
        while len(begun) < PARTITIONS:
            batch = await anext(a)
            begun.add(batch.partition)
        worked_on = batch.partition
        await stack.enter_async_context(other.join("g", ["s"]))
        # Of those that are to go, the ones that nobody works on go at once.
        await told.wait()
        committed = {each.partition: each.committed for each in await client.committed("g", "s")}
        assert committed.pop(worked_on) is None
        assert None not in committed.values()
        # Who works on it commits it.
        await a.commit()
        (row,) = (each for each in await client.committed("g", "s") if each.partition == worked_on)
        assert row.committed == batch.next_offset

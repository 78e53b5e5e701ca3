"""The asyncio client against a broker on loopback."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.native.vectors import fields_of
from tests.support.live import TIMEOUT, FakeBroker, running, running_broker, running_inside
from trivium.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, Properties
from trivium.security.permissions import grants_of
from trivium_native import connect, errors
from trivium_native.client import Client, receiving
from trivium_native.client.client import connection_of
from trivium_native.client.protocol import Cancelled, ClientProtocol
from trivium_native.client.url import parse_url
from trivium_native.transaction import Transaction
from trivium_native.values import Part, PolicyInfo, Producer, Publication, Record
from trivium_native.wire import frames
from trivium_native.wire.frames import encode_frame, pack
from trivium_native.wire.messages import MAX_MESSAGES


@pytest.fixture(params=["memory", "disk", "inside"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    if request.param == "inside":
        async with running_inside() as broker, asyncio.timeout(TIMEOUT), broker.client() as found:
            yield found
        return
    data = tmp_path / "data" if request.param == "disk" else None
    async with running(data) as url, asyncio.timeout(TIMEOUT), connect(url) as found:
        yield found


async def make_stream(client: Client, partitions: int = 1) -> None:
    await client.declare_stream("s", partitions)
    await client.bind("stream", "s", pattern="#")


async def all_records(client: Client, partition: int = 0) -> list[Record]:
    fetched = await client.fetch("s", partition, 0)
    return [record for batch in fetched.batches for record in batch.records()]


# Publishing and receiving


async def test_publish_to_a_live_subscription(client: Client) -> None:
    properties = Properties(content_type="text/plain", headers=[("n", 1), ("n", [None, b"\xff"])])
    async with client.subscribe("a.*") as messages:
        await client.publish(
            b"payload", routing_key="a.b", properties=properties, mode=EXACTLY_ONCE, priority=3
        )
        message = await anext(messages)
    assert (message.payload, message.routing_key, message.exchange) == (
        b"payload",
        b"a.b",
        "amq.topic",
    )
    assert fields_of(message.properties) == fields_of(properties)
    assert (message.mode, message.persistent, message.priority) == (EXACTLY_ONCE, True, 3)


async def test_a_queue_is_consumed_and_acknowledged(client: Client) -> None:
    queue = await client.declare_queue("q")
    assert (queue.name, queue.messages) == ("q", 0)
    for n in range(5):
        await client.publish(b"%d" % n, exchange="", routing_key="q")
    async with client.consume("q", credit=2) as deliveries:
        for n in range(4):
            delivery = await anext(deliveries)
            assert delivery.payload == b"%d" % n
            await deliveries.ack(delivery, wait=n == 3)
    assert (await client.declare_queue("q")).messages == 1


async def test_ack_multiple_and_nack(client: Client) -> None:
    await client.declare_queue("q")
    await client.publish_batch(
        [Publication(payload=b"%d" % n, exchange="", routing_key="q") for n in range(4)]
    )
    async with client.consume("q") as deliveries:
        found = [await anext(deliveries) for _ in range(4)]
        await deliveries.ack(found[1], multiple=True)
        await deliveries.nack(found[2])
        again = await anext(deliveries)
        assert (again.payload, again.is_redelivered, again.returns) == (b"2", True, 1)
        await deliveries.nack(found[3], requeue=False)
        await deliveries.ack(again, wait=True)
        with pytest.raises(errors.UnknownDelivery):
            await deliveries.ack(found[0], wait=True)
    assert (await client.declare_queue("q")).messages == 0


async def test_a_transaction_of_another_connection_settles_nothing_here() -> None:
    """Deliveries here have the same tags, as those of the first connection had."""
    async with running(None) as url, asyncio.timeout(TIMEOUT):
        async with connect(url) as first:
            await first.declare_queue("q")
            await first.publish_batch(
                [Publication(payload=b"%d" % n, exchange="", routing_key="q") for n in range(4)]
            )
            transaction = Transaction(await first.open_producer("p", transactional=True))
            async with first.consume("q") as deliveries:
                await deliveries.ack(await anext(deliveries), wait=True)
                transaction.ack(await anext(deliveries))
        async with connect(url) as second, second.consume("q") as deliveries:
            found = [(await anext(deliveries)).payload for _ in range(3)]
            with pytest.raises(errors.UnknownDelivery):
                await second.commit_transaction(transaction)
        assert found == [b"1", b"2", b"3"]
        async with connect(url) as third:
            assert (await third.declare_queue("q")).messages == 3


async def test_no_ack_goes_on_as_messages_are_taken(client: Client) -> None:
    await client.declare_queue("q")
    for n in range(20):
        await client.publish(b"%d" % n, exchange="", routing_key="q")
    async with client.consume("q", credit=4, no_ack=True) as deliveries:
        payloads = [(await anext(deliveries)).payload for _ in range(20)]
    assert payloads == [b"%d" % n for n in range(20)]


async def test_leaving_a_block_gives_messages_back(client: Client) -> None:
    await client.declare_queue("q")
    await client.publish(b"1", exchange="", routing_key="q")
    async with client.consume("q") as deliveries:
        await anext(deliveries)
    async with client.consume("q") as deliveries:
        assert (await anext(deliveries)).is_redelivered


async def test_at_most_once_is_sent_without_waiting(client: Client) -> None:
    async with client.subscribe("#") as messages:
        for n in range(3):
            await client.publish(b"%d" % n, mode=AT_MOST_ONCE, routing_key="k")
        assert not connection_of(client).requests
        assert [(await anext(messages)).payload for _ in range(3)] == [b"0", b"1", b"2"]


async def test_many_publishes_at_a_time(client: Client) -> None:
    await client.declare_queue("q")
    await asyncio.gather(
        *[client.publish(b"%d" % n, exchange="", routing_key="q") for n in range(3000)]
    )
    assert await client.purge("q") == 3000


@pytest.mark.parametrize("pause", ["the socket is full", "the broker takes none"])
async def test_publishes_leave_in_the_order_of_the_calls(client: Client, pause: str) -> None:
    await client.declare_queue("q")
    connection = connection_of(client)
    is_full = pause == "the socket is full"
    gate = connection.can_write if is_full else connection.can_publish
    gate.close()
    waiting = []
    for n in range(3):
        publish = client.publish(b"%d" % n, exchange="", routing_key="q")
        waiting.append(asyncio.create_task(publish))
    await asyncio.sleep(0)
    gate.open()
    # Before any of those who waited has had its turn.
    await client.publish(b"3", exchange="", routing_key="q")
    await asyncio.gather(*waiting)
    async with client.consume("q") as deliveries:
        assert [(await anext(deliveries)).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]


async def test_what_is_under_way_when_an_alarm_begins_is_published_when_it_is_over() -> None:
    async with running_broker() as (broker, url), asyncio.timeout(TIMEOUT), connect(url) as client:
        await client.declare_queue("q")
        producer = await client.open_producer("p")
        transaction = Transaction()
        to_queue = [Publication(payload=b"%d" % n, exchange="", routing_key="q") for n in range(4)]
        transaction.publish(to_queue[2])
        calls = [
            asyncio.create_task(client.publish_batch(to_queue[:1])),
            asyncio.create_task(client.publish_batch(to_queue[1:2], producer)),
            asyncio.create_task(client.commit_transaction(transaction)),
        ]
        # They are sent in this turn of the loop, and read by the broker in a later one.
        await asyncio.sleep(0)
        broker.alarms.memory_high = 1
        broker.check_alarms()
        # Answered after those were refused.
        assert (await client.declare_queue("q")).messages == 0
        calls.append(asyncio.create_task(client.publish_batch(to_queue[3:])))
        await client.commit_transaction(Transaction())
        assert not any(call.done() for call in calls)
        broker.alarms.memory_high = 0
        broker.alarms.is_memory_short = False
        broker.check_alarms()
        await asyncio.gather(*calls)
        async with client.consume("q") as deliveries:
            assert [(await anext(deliveries)).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]


async def test_who_waits_for_the_end_of_an_alarm_is_told_when_the_broker_stops() -> None:
    async with (
        running_broker() as (broker, url),
        asyncio.timeout(TIMEOUT),
        connect(url, reconnect=False) as client,
    ):
        under_way = asyncio.create_task(client.publish(b""))
        await asyncio.sleep(0)
        broker.alarms.memory_high = 1
        broker.check_alarms()
        await client.metadata()
        waiting = asyncio.create_task(client.publish(b""))
        await client.metadata()
        await broker.__aexit__(None, None, None)
        for call in (under_way, waiting):
            with pytest.raises(errors.ShuttingDown):
                await call


async def test_policies(client: Client) -> None:
    policy = PolicyInfo(name="p", pattern="^q", definition={"max-length": 1}, priority=3)
    await client.set_policy(policy)
    assert await client.policies() == [policy]
    await client.delete_policy("p")
    assert await client.policies() == []


async def test_a_live_backlog_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "LIVE_BACKLOG", 3)
    async with client.subscribe("#") as messages:
        for n in range(5):
            await client.publish(b"%d" % n, routing_key="k")
        assert [(await anext(messages)).payload for _ in range(3)] == [b"0", b"1", b"2"]
        assert messages.dropped == 2


# Streams


async def test_a_stream_is_read_by_fetch_and_by_push(client: Client) -> None:
    await make_stream(client)
    properties = Properties(content_type="t", key=b"k", headers=[("h", 1)])
    for n in range(3):
        await client.publish(b"%d" % n, routing_key="a", properties=properties)
    found = await all_records(client)
    assert [(r.offset, r.payload) for r in found] == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert (found[0].key, found[0].content_type) == (b"k", "t")
    assert (found[0].headers, found[0].protocol) == ([("h", b"1")], 3)
    async with client.read("s", 0, 1) as batches:
        assert batches.offset == 1
        pushed: list[Record] = []
        async for batch in batches:
            pushed += batch.records(batches.offset)
            if len(pushed) == 2:
                break
        await client.publish(b"3", routing_key="a")
        pushed += (await anext(batches)).records()
    assert [(r.offset, r.payload) for r in pushed] == [(1, b"1"), (2, b"2"), (3, b"3")]


async def test_a_reader_with_little_credit_gets_everything(client: Client) -> None:
    await make_stream(client)
    for n in range(30):
        await client.publish(b"%d" % n, routing_key="a")
    payloads: list[bytes] = []
    async with client.read("s", credit=1) as batches:
        while len(payloads) < 30:
            payloads += [record.payload for record in (await anext(batches)).records()]
    assert payloads == [b"%d" % n for n in range(30)]


async def test_a_fetch_waits_for_records(client: Client) -> None:
    await make_stream(client)
    waiting = asyncio.create_task(client.fetch("s", 0, 0, max_wait=TIMEOUT))
    # Its answer shows that the fetch is with the broker.
    await client.metadata()
    await client.publish(b"late", routing_key="a")
    (batch,) = (await waiting).batches
    assert [record.payload for record in batch.records()] == [b"late"]


async def test_a_fetch_ends_when_its_time_has_passed(client: Client) -> None:
    await make_stream(client)
    fetched = await client.fetch("s", 0, 0, max_wait=0.05)
    assert (fetched.first_offset, fetched.high_watermark, fetched.batches) == (0, 0, [])


async def test_commit_and_lag(client: Client) -> None:
    await make_stream(client, 2)
    for n in range(10):
        await client.publish(b"", routing_key=f"k{n}")
    (info,) = await client.metadata(["s"])
    marks = [partition.high_watermark for partition in info.partitions]
    assert sum(marks) == 10
    await client.commit("g", "s", {0: marks[0] - 1}, incarnation=info.incarnation)
    first, second = await client.committed("g", "s")
    assert (first.committed, first.lag) == (marks[0] - 1, 1)
    assert (second.committed, second.lag) == (None, marks[1])


async def test_offset_for_timestamp(client: Client) -> None:
    await make_stream(client)
    await client.publish(b"", routing_key="a")
    (record,) = await all_records(client)
    assert await client.offset_for_timestamp("s", 0, record.timestamp) == 0
    assert await client.offset_for_timestamp("s", 0, record.timestamp + 1) == 1


async def test_an_idempotent_producer(client: Client) -> None:
    await make_stream(client)
    producer = await client.open_producer("p")
    batch = [Publication(payload=b"1", routing_key="a"), Publication(payload=b"2", routing_key="a")]
    for _ in range(3):
        await client.publish_batch(batch, producer)
    assert [record.payload for record in await all_records(client)] == [b"1", b"2"]
    newer = await client.open_producer("p")
    assert (newer.epoch, newer.sequence) == (producer.epoch + 1, 2)
    with pytest.raises(errors.Fenced):
        await client.publish_batch(batch, producer)


# Errors


async def test_errors_are_typed(client: Client) -> None:
    await make_stream(client)
    with pytest.raises(errors.NotFound, match="none"):
        await client.metadata(["none"])
    with pytest.raises(errors.NotFound):
        await client.publish(b"", exchange="none")
    with pytest.raises(errors.OffsetOutOfRange) as caught:
        await client.fetch("s", 0, 9)
    assert caught.value.detail == {"first_offset": 0, "high_watermark": 0}
    with pytest.raises(errors.StreamChanged):
        await client.fetch("s", 0, 0, incarnation="0" * 16)
    with pytest.raises(errors.PreconditionFailed):
        await client.declare_stream("s", 2)
    with pytest.raises(errors.AccessRefused):
        await client.declare_queue("amq.q")
    with pytest.raises(errors.InvalidArgument):
        await client.declare_stream("t", 0)
    await client.delete("stream", "s")
    with pytest.raises(errors.Unroutable) as missed:
        await client.publish(b"", routing_key="nowhere", mandatory=True)
    assert missed.value.detail == {"indexes": [0]}


async def test_a_request_beyond_the_brokers_limit_is_not_sent(client: Client) -> None:
    with pytest.raises(errors.InvalidArgument):
        await client.publish(bytes(connection_of(client).protocol.max_frame))
    await client.metadata()


async def test_a_request_that_would_cost_the_connection_is_not_sent(client: Client) -> None:
    waiting = asyncio.create_task(client.metadata())
    much = [Publication(payload=b"")] * (MAX_MESSAGES + 1)
    with pytest.raises(errors.InvalidArgument, match="1 to 65536 messages, not 65537"):
        await client.publish_batch(much)
    with pytest.raises(errors.InvalidArgument, match="0 to 65536 messages"):
        async with client.transaction() as transaction:
            transaction.publish(*much)
    with pytest.raises(errors.InvalidArgument):
        await client.stage("p", 0, "a", 0, [])
    with pytest.raises(errors.InvalidArgument, match="a producer's name"):
        await client.publish_batch(much[:1], Producer("p" * 256, 0, 0))
    with pytest.raises(errors.InvalidArgument, match="not msgpack"):
        await client.metadata(["s"] * (MAX_MESSAGES + 1))
    with pytest.raises(errors.InvalidArgument, match="above 1048576"):
        await client.declare_queue("q", arguments={"x": "y" * (1 << 20)})
    with pytest.raises(errors.InvalidArgument, match="nested deeper"):
        await client.declare_queue("q", arguments={"x": nested(17)})
    await client.publish_batch(much[:-1])
    await waiting


def nested(depth: int) -> list[object]:
    return [nested(depth - 1)] if depth else []


async def test_what_is_staged_is_published_with_its_transaction(client: Client) -> None:
    await make_stream(client)
    producer = await client.open_producer("p", transactional=True)
    for index in range(3):
        entries = [Publication(payload=b"%d" % index, routing_key="a")]
        assert await client.stage("p", 0, "a", index, entries)
    assert await client.stage("p", 0, "b", 0, entries)
    await client.discard_part("p", "b")
    assert await all_records(client) == []
    transaction = Transaction(producer)
    transaction.commit_parts([Part("a", 3)])
    while await client.commit_transaction(transaction):
        pass
    assert [record.payload for record in await all_records(client)] == [b"0", b"1", b"2"]
    assert not await client.stage("p", 0, "c", 0, entries)
    await client.delete_producer("p", transactional=True)
    assert (await client.open_producer("p", transactional=True)).sequence == 0


async def test_a_subscription_ends_with_its_queue(client: Client) -> None:
    await client.declare_queue("q")
    async with client.consume("q") as deliveries:
        await client.delete("queue", "q")
        with pytest.raises(errors.NotFound):
            await anext(deliveries)


async def test_what_may_not_be_read_any_more_ends_with_that_error() -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        running_broker(users=True) as (broker, url),
        connect(url.replace("//", "//u:p@")) as client,
    ):
        await make_stream(client)
        await client.declare_queue("q")
        async with (
            client.consume("q") as deliveries,
            client.subscribe("a") as messages,
            client.read("s", 0) as batches,
            client.join("g", ["s"]) as member,
        ):
            await client.publish(b"0", routing_key="k")
            await anext(batches)
            await anext(member)
            group_alone = {"configure": ".*", "write": ".*", "read": "^g$"}
            broker.permissions.set_user("u", grants_of({"/": group_alone}, {}, [], []))
            broker.logins.permissions_changed("u")
            for source in (deliveries, messages, batches, member):
                with pytest.raises(errors.AccessRefused):
                    await anext(source)


@pytest.mark.parametrize(
    ("more", "kind"), [({}, errors.NotFound), ({"code": 201}, errors.AccessRefused)]
)
def test_brokers_that_do_not_say_why_a_subscription_ends_have_lost_its_source(
    more: dict[str, int], kind: type[errors.NativeError]
) -> None:
    protocol = ClientProtocol(parse_url("trivium://localhost"))
    body = pack({"subscription": 1, "reason": "why", **more})
    (event,) = protocol.receive(encode_frame(frames.CANCELLED, 0, body))
    assert isinstance(event, Cancelled)
    assert (type(event.error), event.error.text) == (kind, "why")


async def test_a_cancelled_call_leaves_the_connection_usable(client: Client) -> None:
    await make_stream(client)
    await client.declare_queue("q")
    waiting = asyncio.create_task(client.fetch("s", 0, 0, max_wait=TIMEOUT))
    await client.metadata()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    async def consume() -> None:
        async with client.consume("q") as deliveries:
            started.set()
            await anext(deliveries)

    started = asyncio.Event()
    consuming = asyncio.create_task(consume())
    await started.wait()
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    await client.publish(b"1", exchange="", routing_key="q")
    assert (await client.declare_queue("q")).messages == 1
    assert not connection_of(client).requests
    assert not connection_of(client).sinks


async def test_everyone_who_waits_is_told_when_the_broker_stops() -> None:
    async with asyncio.timeout(TIMEOUT), running() as url:
        broker = running()
        other = await broker.__aenter__()
        async with connect(other, reconnect=False) as client:
            await make_stream(client)
            async with client.subscribe("#") as messages:
                waiting = asyncio.create_task(client.fetch("s", 0, 0, max_wait=TIMEOUT))
                await client.metadata()
                await broker.__aexit__(None, None, None)
                with pytest.raises(errors.ShuttingDown):
                    await waiting
                with pytest.raises(errors.ShuttingDown):
                    await anext(messages)
                with pytest.raises(errors.ShuttingDown):
                    await client.publish(b"")
        async with connect(url) as client:
            await client.metadata()


async def test_after_the_block_the_client_is_closed() -> None:
    async with asyncio.timeout(TIMEOUT), running() as url:
        async with connect(url) as client:
            pass
        with pytest.raises(errors.ConnectionFailed):
            await client.metadata()


async def test_a_request_is_given_up_after_its_time(client: Client) -> None:
    await make_stream(client)
    with pytest.raises(errors.TimedOut, match=r"no answer within 0\.01 s$"):
        await client.within(0.01).fetch("s", 0, 0, max_wait=TIMEOUT)
    assert (await client.within(TIMEOUT).metadata(["s"]))[0].name == "s"
    assert not connection_of(client).requests


# Connecting


async def test_credentials() -> None:
    async with asyncio.timeout(TIMEOUT), running(users=True) as url:
        host = url.removeprefix("trivium://")
        async with connect(f"trivium://u:p@{host}") as client:
            await client.metadata()
        with pytest.raises(errors.AuthenticationFailed):
            async with connect(f"trivium://u:wrong@{host}"):
                pass
        with pytest.raises(errors.AuthenticationFailed):
            async with connect(url):
                pass
        with pytest.raises(errors.NotFound):
            async with connect(f"trivium://u:p@{host}/none"):
                pass


async def test_nobody_listens(unused_tcp_port: int) -> None:
    with pytest.raises(errors.ConnectionFailed):
        async with connect(f"trivium://127.0.0.1:{unused_tcp_port}"):
            pass


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack("<IBQ", 9, 0xEE, 0),
        struct.pack("<IBQ", 10, frames.HELLO, 1) + b"\x90",
        struct.pack("<IBQ", 13, frames.CONFIRM, 1) + b"\xff\xff\xff\xff",
        struct.pack("<IBQ", 10, frames.DELIVER, 0) + b"\x00",
        struct.pack("<IBQ", 10, frames.BATCH, 0) + b"\x00",
        struct.pack("<IBQ", 10, frames.CONFIRM, 1) + b"\x00",
        struct.pack("<IBQ", 10, frames.PONG, 1) + b"\x00",
        struct.pack("<IBQ", 10, frames.UNBLOCKED, 1) + b"\x00",
        struct.pack("<I", 0),
        struct.pack("<IBQ", 10, frames.ERROR, 0) + b"\x80",
    ],
)
async def test_a_broker_that_talks_nonsense(answer: bytes) -> None:
    async with asyncio.timeout(TIMEOUT), FakeBroker(answer) as fake:
        with pytest.raises(errors.RemoteProtocolError):
            async with connect(fake.url):
                pass


async def test_a_silent_broker_times_out() -> None:
    async with asyncio.timeout(TIMEOUT), FakeBroker(b"") as fake:
        with pytest.raises(errors.TimedOut):
            async with connect(fake.url, timeout=0.05):
                pass


async def test_a_quiet_client_shows_life(monkeypatch: pytest.MonkeyPatch) -> None:
    pings: asyncio.Queue[None] = asyncio.Queue()
    ping = ClientProtocol.ping

    def counted(protocol: ClientProtocol) -> None:
        ping(protocol)
        pings.put_nowait(None)

    monkeypatch.setattr(ClientProtocol, "ping", counted)
    async with asyncio.timeout(TIMEOUT), running() as url, connect(url, heartbeat=1) as client:
        await pings.get()
        await pings.get()
        await client.metadata()


async def test_a_broker_without_a_sign_of_life_is_given_up() -> None:
    hello = pack({"version": 1, "heartbeat": 1, "max_frame": 1000, "broker": "b"})
    answer = encode_frame(frames.HELLO, 1, hello) + encode_frame(frames.OK, 2, pack({}))
    async with (
        asyncio.timeout(TIMEOUT),
        FakeBroker(answer) as fake,
        connect(fake.url, heartbeat=1, reconnect=False) as client,
    ):
        with pytest.raises(errors.ConnectionFailed, match="sign of life"):
            await client.metadata()


# Restart


async def test_everything_durable_is_there_after_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with asyncio.timeout(TIMEOUT):
        async with running(data) as url, connect(url) as client:
            await make_stream(client, 2)
            await client.declare_queue("q")
            await client.bind("queue", "q", pattern="a.#")
            producer = await client.open_producer("p")
            batch = [Publication(payload=b"%d" % n, routing_key=f"a.{n}") for n in range(50)]
            await client.publish_batch(batch, producer)
            (before,) = await client.metadata()
            await client.commit("g", "s", {0: 1, 1: 2})
        async with running(data) as url, connect(url) as client:
            assert await client.metadata() == [before]
            payloads = [record.payload for n in (0, 1) for record in await all_records(client, n)]
            assert sorted(payloads, key=int) == [b"%d" % n for n in range(50)]
            assert [o.committed for o in await client.committed("g", "s")] == [1, 2]
            # Sent again because the answer was lost: nothing is stored twice.
            again = await client.open_producer("p")
            assert again.sequence == 50
            with pytest.raises(errors.Fenced):
                await client.publish_batch(batch, producer)
            assert (await client.declare_queue("q")).messages == 50


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_a_compressed_stream_reads_like_any_other(client: Client, codec: str) -> None:
    await client.declare_stream("s", 1, arguments={"x-compression": codec})
    await client.bind("stream", "s", pattern="#")
    published = [Publication(payload=b"%d" % n + bytes(100), routing_key="a") for n in range(100)]
    await client.publish_batch(published)
    expected = [each.payload for each in published]
    assert [record.payload for record in await all_records(client)] == expected
    fetched = await client.fetch("s", 0, 0)
    assert len(fetched.batches[0].data) < 5000
    async with client.read("s", 0, "first") as batches:
        batch = await anext(batches)
    assert [record.payload for record in batch.records()] == expected


async def test_a_stream_is_read_from_its_last_record_or_a_time(client: Client) -> None:
    await make_stream(client)
    for n in range(3):
        await client.publish(b"%d" % n, routing_key="a")
    async with client.read("s", 0, "last") as batches:
        assert batches.offset == 2
        assert [record.payload for record in (await anext(batches)).records(2)] == [b"2"]
    (first, *_) = await all_records(client)
    async with client.read("s", 0, timestamp=first.timestamp) as batches:
        assert batches.offset == 0
    async with client.read("s", 0, timestamp=1 << 60) as batches:
        assert batches.offset == 3
    fetched = await client.fetch("s", 0, "last")
    assert [batch.base_offset for batch in fetched.batches] == [2]

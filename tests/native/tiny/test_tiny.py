"""A broker against a client that knows no more than the document says."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.native.tiny.client import TIMEOUT, Client, Ended, Failed, Refused
from tests.native.tiny.wire import (
    MANDATORY,
    Fetched,
    Kind,
    Message,
    Producer,
    Publish,
    frame,
    pack,
)
from tests.support.live import running


class Address(NamedTuple):
    """Where a broker listens, and what stops it."""

    host: str
    port: int
    stop: Callable[[], object]


@contextmanager
def serving(*, users: bool) -> Iterator[Address]:
    """A broker in a thread of its own, since the client blocks."""
    started: SimpleQueue[Address] = SimpleQueue()

    async def serve() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with running(users=users) as url:
            parts = urlsplit(url)
            assert parts.hostname is not None
            assert parts.port is not None
            stop = partial(loop.call_soon_threadsafe, stopping.set)
            started.put(Address(parts.hostname, parts.port, stop))
            await stopping.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    address = started.get(timeout=TIMEOUT)
    try:
        yield address
    finally:
        # Its loop is closed where the test has stopped it.
        with suppress(RuntimeError):
            address.stop()
        thread.join(TIMEOUT)


@pytest.fixture(scope="module")
def open_broker() -> Iterator[Address]:
    """One that lets anonymous clients in."""
    with serving(users=False) as address:
        yield address


@pytest.fixture(scope="module")
def guarded_broker() -> Iterator[Address]:
    """One that has the user ``u`` with the password ``p``."""
    with serving(users=True) as address:
        yield address


def connect(address: Address) -> Client:
    return Client(address.host, address.port)


def enter(address: Address) -> Client:
    client = connect(address)
    client.hello()
    client.request(Kind.AUTH)
    return client


@pytest.fixture
def client(open_broker: Address) -> Iterator[Client]:
    with enter(open_broker) as client:
        yield client


@pytest.fixture
def other(open_broker: Address) -> Iterator[Client]:
    with enter(open_broker) as client:
        yield client


@contextmanager
def refuses(code: int) -> Iterator[pytest.ExceptionInfo[Refused]]:
    with pytest.raises(Refused) as caught:
        yield caught
    assert caught.value.code == code


# Session


def test_the_broker_says_who_it_is_and_takes_the_right_password(guarded_broker: Address) -> None:
    with connect(guarded_broker) as client:
        hello = client.hello(heartbeat=0, client="tiny")
        assert hello["version"] == 1
        assert hello["heartbeat"] == 0
        assert hello["max_frame"] > 16 * 1024
        assert client.request(Kind.AUTH, username="u", password=b"p") == {}
        # Nothing expires: nothing is checked.
        assert client.request(Kind.AUTH, password=b"another") == {}
        client.close()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"username": "u", "password": b"wrong"}, 200),
        ({}, 200),
        ({"username": "u", "password": b"p", "vhost": "nowhere"}, 301),
        ({"username": "u", "password": "text"}, 100),
        ({"unknown": 1}, 100),
    ],
    ids=str,
)
def test_who_is_not_let_in_is_told_why(
    guarded_broker: Address, fields: dict[str, Any], code: int
) -> None:
    with connect(guarded_broker) as client:
        client.hello()
        with pytest.raises(Failed) as caught:
            client.request(Kind.AUTH, **fields)
        assert caught.value.code == code
        # What is wrong with the credentials answers AUTH, what is wrong with the frame nothing.
        assert isinstance(caught.value, Refused) == (code >= 200)
        assert_closed(client)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"version": 2}, 102), ({"protocol": "other"}, 102), ({"heartbeat": 3601}, 100)],
    ids=str,
)
def test_another_version_is_refused(
    open_broker: Address, fields: dict[str, Any], code: int
) -> None:
    with connect(open_broker) as client:
        with pytest.raises(Ended) as caught:
            client.hello(**fields)
        assert caught.value.code == code
        assert_closed(client)


def test_hello_and_auth_may_be_sent_at_once(open_broker: Address) -> None:
    with connect(open_broker) as client:
        hello = client.send(Kind.HELLO, {"protocol": "trivium", "version": 1})
        auth = client.send(Kind.AUTH)
        assert client.answer(auth) == {}
        assert client.answer(hello)["version"] == 1


def test_before_authentication_a_frame_is_short(open_broker: Address) -> None:
    with connect(open_broker) as client:
        client.hello()
        client.send_bytes(struct.pack("<I", 16 * 1024 + 1))
        assert_ends(client, 101, 0)


def test_nothing_else_comes_before_authentication(open_broker: Address) -> None:
    with connect(open_broker) as client:
        client.hello()
        client.send(Kind.PING)
        assert_ends(client, 103, 0)


def test_a_ping_is_answered_also_without_an_id(client: Client) -> None:
    client.ping()
    client.send(Kind.PING, quiet=True)
    assert client.pushed(Kind.PONG) == {}


def test_nothing_answers_a_close(client: Client) -> None:
    client.send(Kind.CLOSE, [0, "done"], quiet=True)
    assert_closed(client)


def test_a_broker_that_stops_says_so() -> None:
    with serving(users=False) as address, enter(address) as client:
        address.stop()
        with pytest.raises(Ended) as caught:
            client.pushed(Kind.PONG)
        assert caught.value.code == 402
        assert_closed(client)


# Errors


def assert_closed(client: Client) -> None:
    with pytest.raises(EOFError):
        client.receive()


def assert_ends(client: Client, code: int, correlation: int) -> None:
    """The broker sends an ERROR with this code and id, and closes the connection."""
    got = client.receive()
    assert (got.kind, got.correlation, got.body[0]) == (Kind.ERROR, correlation, code)
    assert_closed(client)


@pytest.mark.parametrize(
    ("data", "code", "correlation"),
    [
        pytest.param(struct.pack("<I", 8), 100, 0, id="a frame too short"),
        pytest.param(struct.pack("<I", 2**31), 101, 0, id="a frame too large"),
        pytest.param(frame(0x77, 7, b"\xc1"), 103, 7, id="an unknown type"),
        pytest.param(frame(Kind.OK, 7, pack({})), 103, 7, id="a type of the broker"),
        pytest.param(frame(Kind.HELLO, 7, pack({})), 103, 7, id="a second HELLO"),
        pytest.param(frame(Kind.METADATA, 7, b"\xc1"), 100, 7, id="not msgpack"),
        pytest.param(frame(Kind.METADATA, 7, pack([])), 100, 7, id="not a map"),
        pytest.param(frame(Kind.METADATA, 0, b"\xc1"), 100, 0, id="without an id"),
        pytest.param(frame(Kind.PING, 7, b"x"), 100, 7, id="PING with a body"),
        pytest.param(frame(Kind.ACK, 7, b"short"), 100, 7, id="ACK too short"),
        pytest.param(frame(Kind.ACK, 7, struct.pack("<IIQQ", 1, 0, 2, 1)), 100, 7, id="no range"),
        pytest.param(frame(Kind.PUBLISH, 7, Publish([]).encode()), 100, 7, id="no message"),
        pytest.param(
            frame(Kind.PUBLISH, 7, Publish([Message(b"x", flags=32)]).encode()),
            *(100, 7),
            id="an unknown flag",
        ),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(
    client: Client, data: bytes, code: int, correlation: int
) -> None:
    client.send_bytes(data)
    assert_ends(client, code, correlation)


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        (Kind.METADATA, {"unknown": 1}, 300),
        (Kind.METADATA, {"streams": "text"}, 300),
        (Kind.METADATA, {"streams": ["nowhere"]}, 301),
        (Kind.FETCH, {"stream": "nowhere", "partition": 0, "offset": "first"}, 301),
        (Kind.COMMITTED, {"group": "g", "stream": "nowhere"}, 301),
        (Kind.JOIN, {"group": "g", "streams": ["nowhere"]}, 301),
        (Kind.BIND, {"exchange": "x", "kind": "queue", "name": "nowhere", "pattern": b"a"}, 301),
        (Kind.PURGE, {"name": "nowhere"}, 301),
        (Kind.PURGE, {"name": "n" * 256}, 300),
        (Kind.SUBSCRIBE, {"subscription": 1, "mode": "queue", "queue": "no", "credit": 1}, 301),
        (Kind.UNSUBSCRIBE, {"subscription": 1}, 301),
        (Kind.POLL, {"subscription": 1}, 301),
        (Kind.DESCRIBE_GROUP, {"group": "nobody"}, 301),
        (Kind.DECLARE, {"kind": "queue", "name": "amq.mine"}, 201),
        (Kind.MANAGE_USERS, {"action": "list"}, 201),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_done_leaves_the_connection(
    client: Client, kind: Kind, fields: dict[str, Any], code: int
) -> None:
    with refuses(code):
        client.request(kind, **fields)
    client.send(kind, fields, quiet=True)
    client.ping()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Message(b"x", exchange="nowhere"), 301),
        (Message(b"x", properties=b"\xc1"), 300),
        (Message(b"x", properties=pack({99: 1})), 300),
        (Message(b"x", b"nowhere", flags=MANDATORY), 306),
        (Message(bytes(16 * 2**20 + 1), b"nowhere"), 307),
    ],
    ids=["exchange", "not msgpack", "property", "mandatory", "large"],
)
def test_a_message_that_cannot_be_published_leaves_the_connection(
    client: Client, message: Message, code: int
) -> None:
    with refuses(code):
        client.publish([message])
    client.ping()


# Publishing, streams


def declare_stream(client: Client, name: str, partitions: int = 1) -> str:
    reply = client.request(Kind.DECLARE, kind="stream", name=name, partitions=partitions)
    assert reply["name"] == name
    return str(reply["incarnation"])


def declare_queue(client: Client, name: str, **arguments: Any) -> None:
    reply = client.request(Kind.DECLARE, kind="queue", name=name, arguments=arguments)
    assert reply == {"name": name, "messages": 0, "consumers": 0}


def end_of(client: Client, stream: str) -> int:
    (found,) = client.request(Kind.METADATA, streams=[stream])["streams"]
    (partition,) = found["partitions"]
    return int(partition[2])


def test_publishes_are_confirmed_by_their_ids(client: Client) -> None:
    declare_stream(client, "plain")
    client.publish([Message(b"one", b"plain")])
    client.publish([Message(b"two", b"plain"), Message(b"three", b"plain")])
    numbers = [client.send(Kind.PUBLISH, Publish([Message(b"m", b"plain")])) for _ in range(9)]
    for number in numbers:
        client.answer(number)
    assert end_of(client, "plain") == 12


def test_a_sequence_that_is_repeated_is_not_doubled(client: Client, other: Client) -> None:
    declare_stream(client, "once")
    opened = client.request(Kind.PRODUCER, producer="p")
    assert opened == {"epoch": 0, "sequence": 0}
    producer = Producer("p", opened["epoch"], opened["sequence"])
    messages = [Message(b"0", b"once"), Message(b"1", b"once")]
    client.publish(messages, producer)
    client.publish(messages, producer)
    client.publish([Message(b"1", b"once"), Message(b"2", b"once")], replace(producer, sequence=1))
    assert end_of(client, "once") == 3
    with refuses(310) as caught:
        client.publish(messages, replace(producer, sequence=9))
    assert caught.value.detail == {"expected": 3}
    again = other.request(Kind.PRODUCER, producer="p")
    assert again == {"epoch": producer.epoch + 1, "sequence": 3}
    with refuses(309):
        client.publish(messages, replace(producer, sequence=3))
    with refuses(309):
        client.publish(messages, Producer("nobody", 0, 0))


def test_the_messages_that_were_refused_are_named(client: Client) -> None:
    declare_queue(client, "small", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    with refuses(400) as caught:
        client.publish([Message(b"m", b"small")] * 3)
    assert caught.value.detail == {"indexes": [1, 2]}
    with refuses(306) as caught:
        client.publish([Message(b"m", b"nowhere"), Message(b"m", b"nowhere", flags=MANDATORY)])
    assert caught.value.detail == {"indexes": [1]}


def test_records_are_fetched_from_offsets(client: Client) -> None:
    incarnation = declare_stream(client, "log")
    where = {"stream": "log", "partition": 0}
    assert client.request(Kind.FETCH, **where, offset="first") == Fetched(0, 0, [])
    for payload in (b"first record", b"second record"):
        client.publish([Message(payload, b"log")])
    for offset, base, payload in ((0, 0, b"first record"), (1, 1, b"second record")):
        got = client.request(Kind.FETCH, **where, offset=offset, max_bytes=1)
        assert (got.first_offset, got.high_watermark) == (0, 2)
        (stored,) = got.batches
        assert stored.base_offset == base
        assert payload in stored.batch
    whole = client.request(Kind.FETCH, **where, offset="first", incarnation=incarnation)
    assert [stored.base_offset for stored in whole.batches] == [0, 1]
    assert client.request(Kind.FETCH, **where, offset="last").batches == whole.batches[1:]
    assert client.request(Kind.FETCH, **where, offset="next").batches == []
    assert client.request(Kind.OFFSETS, **where, timestamp=0) == {"offset": 0}
    assert client.request(Kind.OFFSETS, **where, timestamp=2**45) == {"offset": 2}
    with refuses(304) as caught:
        client.request(Kind.FETCH, **where, offset=3)
    assert caught.value.detail == {"first_offset": 0, "high_watermark": 2}
    with refuses(305) as caught:
        client.request(Kind.FETCH, **where, offset=0, incarnation="another")
    assert caught.value.detail == {"incarnation": incarnation}


def test_a_message_names_its_partition_before_its_key(client: Client) -> None:
    declare_stream(client, "three", 3)
    for partition in (2, 2, 0):
        client.publish([Message(b"m", b"three", properties=pack({13: b"k", 16: partition}))])
    (found,) = client.request(Kind.METADATA, streams=["three"])["streams"]
    assert found["partitions"] == [[0, 1, 1], [0, 0, 0], [0, 2, 2]]


def test_a_fetch_waits_for_what_is_published(client: Client, other: Client) -> None:
    declare_stream(client, "late")
    fields = {"stream": "late", "partition": 0, "offset": "next", "max_wait_ms": 60_000}
    waiting = client.send(Kind.FETCH, fields)
    # Answered while that one waits.
    client.ping()
    other.publish([Message(b"at last", b"late")])
    (stored,) = client.answer(waiting).batches
    assert b"at last" in stored.batch


def test_offsets_are_committed_with_a_text(client: Client) -> None:
    incarnation = declare_stream(client, "read", 2)
    group = {"group": "readers", "stream": "read"}
    client.request(Kind.COMMIT, **group, offsets=[[0, 0, "so far"]])
    reply = client.request(Kind.COMMITTED, **group)
    assert reply == {
        "incarnation": incarnation,
        "partitions": [[0, 0, 0, "so far"], [1, None, 0, None]],
    }
    client.request(Kind.COMMIT, **group, offsets=[[0, 0], [1, 0, "t" * 4096]])
    assert client.request(Kind.COMMITTED, **group)["partitions"] == [
        [0, 0, 0, None],
        [1, 0, 0, "t" * 4096],
    ]
    with refuses(302):
        client.request(Kind.COMMIT, **group, offsets=[[0, 1]])
    with refuses(301):
        client.request(Kind.COMMIT, **group, offsets=[[2, 0]])


# Subscriptions


def test_a_queue_is_consumed(client: Client) -> None:
    declare_queue(client, "work")
    client.request(Kind.BIND, exchange="amq.topic", kind="queue", name="work", pattern=b"work.#")
    client.request(Kind.SUBSCRIBE, subscription=1, mode="queue", queue="work", credit=2)
    properties = pack({1: "text/plain", 14: [["n", 1], ["n", 2]]})
    for payload in (b"a", b"b", b"c"):
        client.publish([Message(payload, b"work.1", "amq.topic", properties=properties)])
    first, second = client.pushed(Kind.DELIVER), client.pushed(Kind.DELIVER)
    assert (first.tag, first.flags, first.protocol, first.returns, first.lifetime) == (
        1,
        0,
        3,
        0,
        0,
    )
    assert first.message == Message(b"a", b"work.1", "amq.topic", properties=properties)
    assert (second.tag, second.message.payload) == (2, b"b")
    client.settle(Kind.NACK, 1, 1, 1, flags=1)
    again = client.pushed(Kind.DELIVER)
    assert (again.tag, again.flags, again.returns, again.message) == (3, 1, 1, first.message)
    client.settle(Kind.NACK, 1, 3, 3)
    third = client.pushed(Kind.DELIVER)
    assert (third.tag, third.message.payload) == (4, b"c")
    client.settle(Kind.ACK, 1, 1, 4)
    with refuses(308):
        client.settle(Kind.ACK, 1, 1, 4)
    client.request(Kind.UNSUBSCRIBE, subscription=1)
    with refuses(308):
        client.settle(Kind.ACK, 1, 1, 4)
    assert client.request(Kind.PURGE, name="work") == {"messages": 0}


def test_credit_raises_the_limit_of_a_subscription(client: Client) -> None:
    declare_queue(client, "credit")
    client.publish([Message(b"a", b"credit"), Message(b"b", b"credit")])
    client.request(Kind.SUBSCRIBE, subscription=1, mode="queue", queue="credit", credit=1)
    with refuses(300):
        client.request(Kind.SUBSCRIBE, subscription=1, mode="queue", queue="credit", credit=1)
    assert client.pushed(Kind.DELIVER).tag == 1
    client.send(Kind.CREDIT, {"subscription": 1, "amount": 1}, quiet=True)
    assert client.pushed(Kind.DELIVER).tag == 2
    client.request(Kind.UNSUBSCRIBE, subscription=1)
    assert client.request(Kind.DELETE, kind="queue", name="credit") == {"messages": 2}


def test_a_subscription_is_cancelled_with_its_queue(client: Client, other: Client) -> None:
    declare_queue(client, "short")
    client.request(Kind.SUBSCRIBE, subscription=1, mode="queue", queue="short", credit=1)
    with refuses(302):
        other.request(Kind.DELETE, kind="queue", name="short", if_unused=True)
    other.request(Kind.DELETE, kind="queue", name="short")
    cancelled = client.pushed(Kind.CANCELLED)
    assert (cancelled["subscription"], cancelled["code"]) == (1, 301)


def test_other_modes_push_what_is_published(client: Client) -> None:
    incarnation = declare_stream(client, "pushed")
    own = {"queue": "own", "exchange": "amq.topic", "pattern": b"own.*", "credit": 1}
    log = {"stream": "pushed", "partition": 0, "offset": "next", "credit": 1}
    own |= {"delivery": "at-least-once", "expires_ms": 60_000}
    topic = {"exchange": "amq.topic", "pattern": b"own.#"}
    client.request(Kind.SUBSCRIBE, subscription=1, mode="pubsub", **topic)
    assert client.request(Kind.SUBSCRIBE, subscription=2, mode="queue", **own) == {"queue": "own"}
    started = client.request(Kind.SUBSCRIBE, subscription=3, mode="log", **log)
    assert started == {"offset": 0, "incarnation": incarnation}
    client.publish([Message(b"topic", b"own.1", "amq.topic"), Message(b"record", b"pushed")])
    deliveries = [client.pushed(Kind.DELIVER) for _ in range(2)]
    assert sorted(delivery.subscription for delivery in deliveries) == [1, 2]
    batch = client.pushed(Kind.BATCH)
    assert (batch.subscription, batch.base_offset) == (3, 0)
    assert b"record" in batch.batch
    with refuses(302):
        client.request(
            Kind.SUBSCRIBE, subscription=4, mode="queue", **own | {"delivery": "exactly-once"}
        )


def test_a_poll_takes_what_is_there_or_waits(client: Client, other: Client) -> None:
    declare_queue(client, "polled")
    client.request(Kind.SUBSCRIBE, subscription=1, mode="poll", queue="polled", credit=3)
    assert client.request(Kind.POLL, subscription=1) == {"messages": 0}
    other.publish([Message(b"%d" % number, b"polled") for number in range(4)])
    assert client.request(Kind.POLL, subscription=1, max_messages=2) == {"messages": 2}
    assert client.request(Kind.POLL, subscription=1) == {"messages": 1}
    with refuses(403):
        client.request(Kind.POLL, subscription=1)
    tags = [client.pushed(Kind.DELIVER).tag for _ in range(3)]
    assert tags == [1, 2, 3]
    client.settle(Kind.ACK, 1, 1, 3)
    assert client.request(Kind.POLL, subscription=1, max_bytes=1) == {"messages": 1}
    client.settle(Kind.ACK, 1, 4, 4)
    waiting = client.send(Kind.POLL, {"subscription": 1, "max_wait_ms": 60_000})
    with refuses(302):
        client.request(Kind.POLL, subscription=1)
    other.publish([Message(b"late", b"polled")])
    assert client.answer(waiting) == {"messages": 1}
    client.settle(Kind.ACK, 1, 5, 5)
    waiting = client.send(Kind.POLL, {"subscription": 1, "max_wait_ms": 60_000})
    client.ping()
    other.request(Kind.DELETE, kind="queue", name="polled")
    assert client.pushed(Kind.CANCELLED)["code"] == 301
    with refuses(301):
        client.answer(waiting)


# Groups


def test_members_share_partitions(client: Client, other: Client) -> None:
    incarnation = declare_stream(client, "shared", 2)
    one = {"group": "pair", "member": "one"}
    two = {"group": "pair", "member": "two"}
    joined = client.request(Kind.JOIN, **one, streams=["shared"])
    assert joined["assigned"] == [["shared", incarnation, [[0, None], [1, None]]]]
    generation = joined["generation"]
    second = other.request(Kind.JOIN, **two, streams=["shared"])
    assert second["assigned"] == []
    assert second["members"] == ["one", "two"]
    assert client.pushed(Kind.REBALANCE) == one
    groups = client.request(Kind.LIST_GROUPS)["groups"]
    assert next(group["state"] for group in groups if group["name"] == "pair") == "rebalancing"
    both = [["shared", incarnation, [0, 1]]]
    reply = client.request(Kind.HEARTBEAT, **one, generation=generation, owned=both)
    assert reply["assigned"] == [["shared", incarnation, [[0, None]]]]
    kept = [["shared", incarnation, [0]]]
    client.request(Kind.HEARTBEAT, **one, generation=reply["generation"], owned=kept)
    assert other.pushed(Kind.REBALANCE) == two
    given = other.request(Kind.HEARTBEAT, **two, generation=second["generation"])
    assert given["assigned"] == [["shared", incarnation, [[1, None]]]]
    commit = {"group": "pair", "stream": "shared"}
    other.request(
        Kind.COMMIT,
        **(commit | two),
        generation=given["generation"],
        offsets=[[1, 0, "here"]],
    )
    with refuses(302):
        client.request(Kind.COMMIT, **commit, offsets=[[0, 0]])
    with refuses(312):
        client.request(Kind.COMMIT, **(commit | one), generation=generation, offsets=[[1, 0]])
    described = client.request(Kind.DESCRIBE_GROUP, group="pair")
    assert described["state"] == "stable"
    assert [(row["member"], row["owned"]) for row in described["members"]] == [
        ("one", kept),
        ("two", [["shared", incarnation, [1]]]),
    ]
    partitions = [[0, None, 0, 0, None], [1, 0, 0, 0, "here"]]
    assert described["offsets"] == [["shared", incarnation, partitions]]
    with refuses(302):
        client.request(Kind.DELETE, kind="group", name="pair")
    other.request(Kind.LEAVE, **two, generation=given["generation"])
    with refuses(312):
        other.request(Kind.HEARTBEAT, **two, generation=given["generation"])
    client.request(Kind.LEAVE, **one, generation=generation)
    client.request(Kind.DELETE, kind="group", name="pair")
    with refuses(301):
        client.request(Kind.DESCRIBE_GROUP, group="pair")


def test_a_holder_fences_members(client: Client, other: Client) -> None:
    declare_stream(client, "held")
    joined = client.request(Kind.JOIN, group="held", member="m", streams=["held"])
    held = other.request(Kind.JOIN, group="held", member="h", exclusive=True)
    assert held["generation"] > joined["generation"]
    with refuses(309):
        client.request(Kind.HEARTBEAT, group="held", member="m", generation=joined["generation"])
    with refuses(303):
        client.request(Kind.JOIN, group="held", member="m", streams=["held"])
    groups = client.request(Kind.LIST_GROUPS)["groups"]
    assert [group["holder"] for group in groups if group["name"] == "held"] == ["h"]
    other.request(Kind.LEAVE, group="held", member="h", generation=held["generation"])
    client.request(Kind.JOIN, group="held", member="m", streams=["held"])


def test_a_group_that_is_deleted_has_no_holder(client: Client, other: Client) -> None:
    held = other.request(Kind.JOIN, group="gone", member="h", exclusive=True)
    client.request(Kind.DELETE, kind="group", name="gone")
    with refuses(312):
        other.request(Kind.HEARTBEAT, group="gone", member="h", generation=held["generation"])


def test_a_page_of_groups_says_where_the_next_begins(client: Client) -> None:
    declare_stream(client, "pages")
    for group in ("page-1", "page-2"):
        client.request(Kind.COMMIT, group=group, stream="pages", offsets=[[0, 0]])
    names = []
    page = client.request(Kind.LIST_GROUPS, after="page", limit=1)
    names += [group["name"] for group in page["groups"]]
    page = client.request(Kind.LIST_GROUPS, after=page["next"], limit=1)
    names += [group["name"] for group in page["groups"]]
    assert names == ["page-1", "page-2"]


# Transactions


def test_a_transaction_is_done_once_and_whole(client: Client) -> None:
    declare_queue(client, "in")
    declare_stream(client, "out")
    client.publish([Message(b"%d" % number, b"in") for number in range(3)])
    client.request(Kind.SUBSCRIBE, subscription=1, mode="queue", queue="in", credit=9)
    for _ in range(3):
        client.pushed(Kind.DELIVER)
    opened = client.request(Kind.PRODUCER, producer="t", transactional=True)
    commit = {"group": "through", "stream": "out", "offsets": [[0, 0, "moved"]]}
    fields = opened | {"producer": "t", "settle": [[1, 0, 1, 2]], "commits": [commit]}
    result = Message(b"result", b"out")
    with refuses(301):
        client.work(Kind.TX, fields, result, Message(b"x", exchange="nowhere"))
    assert end_of(client, "out") == 0
    for _ in range(2):
        assert client.work(Kind.TX, fields, result) == {}
    assert end_of(client, "out") == 1
    committed = client.request(Kind.COMMITTED, group="through", stream="out")
    assert committed["partitions"] == [[0, 0, 1, "moved"]]
    with refuses(308):
        client.work(Kind.TX, {"settle": [[1, 0, 1, 2]]})
    client.settle(Kind.ACK, 1, 3, 3)
    again = client.request(Kind.PRODUCER, producer="t", transactional=True)
    assert again["sequence"] == opened["sequence"] + 1
    with refuses(309):
        client.work(Kind.TX, fields | {"sequence": 9}, result)


def test_parts_are_committed_together(client: Client, other: Client) -> None:
    declare_stream(client, "parts")
    opened = client.request(Kind.PRODUCER, producer="c", transactional=True)
    number = opened["sequence"]
    part = {"producer": "c", "sequence": number, "part": "a", "index": 0}
    for _ in range(2):
        assert other.work(Kind.STAGE, part, Message(b"staged", b"parts")) == {}
    with refuses(310) as caught:
        other.work(Kind.STAGE, part | {"index": 2}, Message(b"staged", b"parts"))
    assert caught.value.detail == {"expected": 1}
    assert end_of(client, "parts") == 0
    decision = opened | {"producer": "c"}
    with refuses(302):
        client.work(Kind.TX, decision | {"parts": [["a", 2]]})
    with refuses(301):
        client.work(Kind.TX, decision | {"parts": [["b", 1]]})
    client.work(Kind.TX, decision | {"parts": [["a", 1]]})
    assert end_of(client, "parts") == 1
    late = other.work(Kind.STAGE, part | {"part": "b"}, Message(b"late", b"parts"))
    assert late == {"committed": True}


def test_policies_are_kept(client: Client) -> None:
    client.request(Kind.SET_POLICY, name="p", pattern="^none$", definition={"max-length": 1})
    (policy,) = client.request(Kind.LIST_POLICIES)["policies"]
    assert (policy["name"], policy["apply_to"], policy["priority"]) == ("p", "all", 0)
    client.request(Kind.DELETE_POLICY, name="p")
    with refuses(301):
        client.request(Kind.DELETE_POLICY, name="p")

"""SUBSCRIBE that makes a queue, POLL, and deliveries that are not settled in time."""

from __future__ import annotations

import logging
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native import (
    Client,
    Received,
    Server,
    deliveries,
    entry,
    into,
    payloads,
    publish,
    settle,
    tx,
)
from tests.support.storages import HeldStorage
from trivium.config import Config, LimitsConfig, Listen
from trivium.queues.polling import MAX_TAKEN_BYTES
from trivium.security.permissions import grants_of
from trivium.vhost.policies import Policy
from trivium_native.server.queue_subscriptions import MAX_POLLS
from trivium_native.wire import frames

CONFIG = Config(listen={"native": Listen(0)})
OWN: dict[str, Any] = {"exchange": "amq.topic", "pattern": b"a.#"}


@pytest.fixture
def server() -> Server:
    return Server(None, CONFIG)


@pytest.fixture
def client(server: Server) -> Client:
    return server.open()


def put(server: Server, *messages: bytes, queue: bytes = b"q") -> None:
    server.open().send(frames.PUBLISH, 0, publish(*[into(queue, each) for each in messages]))


def subscribe(client: Client, mode: str = "poll", number: int = 1, **fields: Any) -> dict[str, Any]:
    """Subscribe to queue q, which is there; the reply."""
    if mode == "queue":
        fields = {"credit": 100} | fields
    return client.ask(frames.SUBSCRIBE, subscription=number, mode=mode, **({"queue": "q"} | fields))


def poll(client: Client, number: int = 1, **fields: Any) -> list[Received]:
    return client.send(frames.POLL, 8, {"subscription": number} | fields)


def polled(received: list[Received]) -> list[bytes]:
    """What a poll has brought: the answer is behind it, and says how many."""
    *found, (kind, correlation, body) = received
    assert (kind, correlation) == (frames.OK, 8)
    assert msgpack.unpackb(body) == {"messages": len(found)}
    return payloads(found)


def refused(received: list[Received]) -> int:
    ((kind, correlation, body),) = received
    assert (kind, correlation) == (frames.ERROR, 8)
    code: int = msgpack.unpackb(body)[0]
    return code


# A queue of one's own


@pytest.mark.parametrize("mode", ["queue", "poll"])
def test_a_subscription_makes_a_durable_queue_of_its_own(
    server: Server, client: Client, mode: str
) -> None:
    fields = OWN | {"expires_ms": 60_000, "delivery": "at-least-once"}
    assert subscribe(client, mode, queue="mine", **fields) == {"queue": "mine"}
    queue = server.vhost.queue("mine")
    assert queue.durable
    assert not queue.auto_delete
    assert queue.arguments == {"x-expires": 60_000, "x-delivery": "at-least-once"}
    # It gets what comes while its client is away, and the same request goes on with it.
    client.lose()
    messages = [entry(b"1", b"a.b"), entry(b"2", b"b"), entry(b"3", b"a")]
    server.open().send(frames.PUBLISH, 0, publish(*messages))
    again = server.open()
    reply = again.send(
        frames.SUBSCRIBE,
        7,
        {"subscription": 2, "mode": mode, "queue": "mine", "credit": 9} | fields,
    )
    assert reply[0] == (frames.OK, 7, msgpack.packb({"queue": "mine"}))
    found = payloads(reply[1:]) if mode == "queue" else polled(poll(again, 2))
    assert found == [b"1", b"3"]


def test_a_queue_of_its_own_may_be_named_by_the_broker(server: Server, client: Client) -> None:
    reply = client.ask(frames.SUBSCRIBE, subscription=1, mode="poll", **OWN)
    assert reply["queue"].startswith("amq.gen-")
    assert reply["queue"] in server.vhost.queues


def test_a_queue_of_its_own_goes_when_nobody_has_used_it_for_its_time(
    server: Server, client: Client
) -> None:
    subscribe(client, "queue", queue="mine", expires_ms=5000, **OWN)
    server.advance(20)
    assert "mine" in server.vhost.queues
    client.lose()
    server.advance(4)
    assert "mine" in server.vhost.queues
    server.advance(2)
    assert "mine" not in server.vhost.queues


def test_a_queue_of_its_own_with_other_properties_is_refused(
    server: Server, client: Client
) -> None:
    subscribe(client, queue="mine", **OWN)
    fields = {"subscription": 2, "mode": "poll", "queue": "mine"}
    assert client.refused(frames.SUBSCRIBE, expires_ms=1, **fields, **OWN) == 302
    # Another pattern is one more.
    client.ask(frames.SUBSCRIBE, **fields, exchange="amq.topic", pattern=b"other")
    server.open().send(frames.PUBLISH, 0, publish(entry(b"1", b"a"), entry(b"2", b"other")))
    assert polled(poll(client)) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"exchange": "none"}, 301),
        ({"exchange": ""}, 201),
        ({"delivery": "twice"}, 300),
        ({"expires_ms": 0}, 300),
        ({"expires_ms": 1 << 63}, 300),
        ({"pattern": b"." * 128}, 300),
        ({"pattern": "a"}, 300),
        ({"arguments": {}}, 300),
        ({"queue": "amq.mine"}, 201),
        ({"queue": "x" * 256}, 300),
        ({"credit": 0}, 300),
        ({"credit": 65_537}, 300),
        ({"priority": 1}, 300),
        ({"no_ack": True}, 300),
        ({"exclusive": True}, 300),
        ({"ack_timeout_ms": 999}, 300),
        ({"ack_timeout_ms": 3_600_001}, 300),
    ],
)
def test_a_refused_subscription_has_made_nothing(
    server: Server, client: Client, fields: dict[str, Any], code: int
) -> None:
    before = set(server.vhost.queues)
    fields = {"subscription": 1, "mode": "poll", "queue": "mine"} | OWN | fields
    assert client.refused(frames.SUBSCRIBE, **fields) == code
    assert set(server.vhost.queues) == before
    assert refused(poll(client)) == 301


def test_fields_of_a_queue_of_its_own_need_an_exchange(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    fields = {"subscription": 1, "mode": "poll", "queue": "q"}
    for more in ({"pattern": b"a"}, {"expires_ms": 1}, {"delivery": "at-least-once"}):
        assert client.refused(frames.SUBSCRIBE, **fields, **more) == 300
    assert client.refused(frames.SUBSCRIBE, subscription=1, mode="poll") == 300


def test_a_queue_of_its_own_is_told_once_it_is_durable_and_delivers_behind_that() -> None:
    server = Server(HeldStorage(), CONFIG)
    client = server.open()
    fields = {"mode": "queue", "queue": "mine", "credit": 5} | OWN
    assert client.send(frames.SUBSCRIBE, 4, {"subscription": 1} | fields) == []
    server.open().send(frames.PUBLISH, 0, publish(entry(b"1", b"a", flags=0)))
    assert client.take() == []
    server.sync()
    (kind, correlation, _), delivered = client.take()
    assert (kind, correlation) == (frames.OK, 4)
    assert payloads([delivered]) == [b"1"]


@pytest.mark.parametrize("ends", ["unsubscribe", "delete"])
def test_who_ends_it_before_it_is_durable_is_answered_once(ends: str) -> None:
    server = Server(HeldStorage(), CONFIG)
    client = server.open()
    fields = {"subscription": 1, "mode": "queue", "queue": "mine", "credit": 5} | OWN
    client.send(frames.SUBSCRIBE, 4, fields)
    if ends == "unsubscribe":
        found = client.send(frames.UNSUBSCRIBE, 5, {"subscription": 1})
        assert [each[:2] for each in found] == [(frames.ERROR, 4), (frames.OK, 5)]
    else:
        server.vhost.delete_queue(server.vhost.queue("mine"))
        server.settle()
        ((kind, correlation, body),) = client.take()
        assert (kind, correlation, msgpack.unpackb(body)[0]) == (frames.ERROR, 4, 301)
    server.sync()
    assert client.take() == []


# POLL


def test_a_poll_takes_what_is_there_up_to_its_bounds(server: Server, client: Client) -> None:
    queue = server.vhost.declare_queue("q")
    assert subscribe(client) == {}
    assert polled(poll(client)) == []
    put(server, *[b"%d" % number for number in range(5)])
    assert client.take() == []
    assert polled(poll(client, max_messages=2)) == [b"0", b"1"]
    # The last one may exceed the bytes.
    assert polled(poll(client, max_bytes=1)) == [b"2"]
    assert polled(poll(client)) == [b"3", b"4"]
    assert (len(queue), queue.unsettled, len(queue.consumers)) == (0, 5, 0)


def test_what_was_polled_is_settled_given_back_and_comes_again(
    server: Server, client: Client
) -> None:
    queue = server.vhost.declare_queue("q")
    put(server, b"0", b"1", b"2")
    subscribe(client)
    assert [each.tag for each in deliveries(poll(client))] == [1, 2, 3]
    client.send(frames.NACK, 0, settle(1, 2, 2, 1))
    assert client.take() == []
    (again,) = deliveries(poll(client))
    assert (again.tag, again.payload, again.flags, again.returns) == (4, b"1", 1, 1)
    client.send(frames.ACK, 0, settle(1, 1, 1))
    body = tx(settle=[[1, 0, 3, 4]])
    assert client.send(frames.TX, 6, body) == [(frames.OK, 6, b"\x80")]
    assert (len(queue), queue.unsettled) == (0, 0)


def test_a_poll_waits_for_the_first_message_and_takes_those_of_its_turn(
    server: Server, client: Client
) -> None:
    queue = server.vhost.declare_queue("q")
    subscribe(client)
    assert poll(client, max_wait_ms=10_000) == []
    assert len(queue.consumers) == 1
    server.advance(5)
    put(server, b"0", b"1")
    assert polled(client.take()) == [b"0", b"1"]
    assert len(queue.consumers) == 0
    put(server, b"2")
    server.advance(60)
    assert client.take() == []


def test_a_poll_that_has_waited_in_vain_is_empty(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    subscribe(client)
    # No longer than the broker lets anybody wait.
    for wait, most in ((2000, 2), (1 << 62, 60)):
        assert poll(client, max_wait_ms=wait) == []
        server.advance(most - 0.5)
        assert client.take() == []
        server.advance(1)
        assert polled(client.take()) == []


def test_a_subscription_polls_one_at_a_time(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    subscribe(client)
    poll(client, max_wait_ms=1000)
    assert client.refused(frames.POLL, subscription=1) == 302
    server.advance(2)
    assert polled(client.take()) == []


def test_polls_under_way_are_bounded(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    for number in range(1, MAX_POLLS + 2):
        subscribe(client, number=number)
    for number in range(1, MAX_POLLS + 1):
        assert poll(client, number, max_wait_ms=1000) == []
    assert refused(poll(client, MAX_POLLS + 1)) == 403
    server.advance(2)
    client.take()
    assert polled(poll(client, MAX_POLLS + 1)) == []


def test_what_is_not_settled_is_bounded(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    put(server, b"0", b"1", b"2", b"3")
    subscribe(client, credit=3)
    assert polled(poll(client, max_messages=2)) == [b"0", b"1"]
    assert polled(poll(client)) == [b"2"]
    assert refused(poll(client)) == 403
    client.send(frames.ACK, 0, settle(1, 1, 1))
    assert polled(poll(client)) == [b"3"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"subscription": 9}, 301),
        ({"max_messages": 0}, 300),
        ({"max_messages": 1001}, 300),
        ({"max_bytes": 0}, 300),
        ({"max_bytes": MAX_TAKEN_BYTES + 1}, 300),
        ({"max_wait_ms": -1}, 300),
        ({"queue": "q"}, 300),
    ],
)
def test_a_wrong_poll_is_refused(
    server: Server, client: Client, fields: dict[str, Any], code: int
) -> None:
    server.vhost.declare_queue("q")
    subscribe(client)
    assert refused(poll(client, **fields)) == code
    assert polled(poll(client)) == []


def test_only_a_subscription_that_polls_is_polled(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    subscribe(client, "queue")
    assert refused(poll(client)) == 301


def test_a_poll_of_a_queue_that_is_gone_ends_the_subscription(
    server: Server, client: Client
) -> None:
    for wait in (0, 1000):
        queue = server.vhost.declare_queue("q")
        subscribe(client)
        if wait:
            assert poll(client, max_wait_ms=wait) == []
            server.vhost.delete_queue(queue)
            server.settle()
            found = client.take()
        else:
            server.vhost.delete_queue(queue)
            found = poll(client)
        told, answer = found
        assert told[:2] == (frames.CANCELLED, 0)
        assert refused([answer]) == 301
    assert client.connection.polls == 0


def test_unsubscribing_ends_a_poll(server: Server, client: Client) -> None:
    queue = server.vhost.declare_queue("q")
    subscribe(client)
    poll(client, max_wait_ms=1000)
    refusal, answer = client.send(frames.UNSUBSCRIBE, 5, {"subscription": 1})
    assert refused([refusal]) == 301
    assert answer == (frames.OK, 5, b"\x80")
    assert (len(queue.consumers), client.connection.polls) == (0, 0)


def test_a_lost_connection_gives_back_what_was_polled_and_waits_no_more(
    server: Server, client: Client
) -> None:
    queue = server.vhost.declare_queue("q")
    put(server, b"0")
    subscribe(client)
    assert polled(poll(client)) == [b"0"]
    poll(client, max_wait_ms=1000)
    client.lose()
    server.settle()
    assert (len(queue), queue.unsettled, len(queue.consumers)) == (1, 0, 0)


def test_a_poll_ends_when_the_queue_may_not_be_read_any_more(server: Server) -> None:
    root, client = server.open(), server.greet()
    root.ask(frames.MANAGE_USERS, action="add", name="ann", password=b"p")
    server.vhost.declare_queue("q")
    names = {"configure": "", "write": "", "read": "q"}
    server.broker.permissions.set_user("ann", grants_of({"/": names}, {}, [], []))
    client.send(frames.AUTH, 2, {"username": "ann", "password": b"p"})
    subscribe(client)
    poll(client, max_wait_ms=1000)
    nothing = {"/": names | {"read": "other"}}
    server.broker.permissions.set_user("ann", grants_of(nothing, {}, [], []))
    server.broker.logins.permissions_changed("ann")
    server.settle()
    told, answer = client.take()
    assert (told[:2], refused([answer])) == ((frames.CANCELLED, 0), 201)


def test_a_poll_waits_while_its_client_does_not_read(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    subscribe(client)
    poll(client, max_wait_ms=60_000)
    client.connection.is_writable = False
    put(server, b"0")
    assert client.take() == []
    assert len(server.vhost.queue("q")) == 1
    client.connection.resume_writing()
    server.settle()
    assert polled(client.take()) == [b"0"]


def test_a_message_at_most_once_is_settled_by_being_polled(server: Server, client: Client) -> None:
    queue = server.vhost.declare_queue("q", arguments={"x-delivery": "at-most-once"})
    put(server, b"0")
    subscribe(client)
    assert polled(poll(client)) == [b"0"]
    assert queue.unsettled == 0


# Time


@pytest.mark.parametrize("mode", ["queue", "poll"])
def test_what_is_not_settled_in_time_comes_back(
    server: Server, client: Client, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    queue = server.vhost.declare_queue("q")
    subscribe(client, mode, ack_timeout_ms=10_000, credit=2)
    put(server, b"0", b"1", b"2")
    first = client.take() if mode == "queue" else poll(client, max_messages=2)
    assert payloads(first) == [b"0", b"1"]
    client.send(frames.ACK, 0, settle(1, 2, 2))
    client.take()
    server.advance(9.9)
    assert queue.unsettled == (2 if mode == "queue" else 1)
    server.advance(2)
    again = client.take() if mode == "queue" else poll(client, max_messages=1)
    (delivered, *_) = deliveries(again)
    assert (delivered.payload, delivered.flags, delivered.returns) == (b"0", 1, 1)
    ((kind, _, body),) = client.send(frames.ACK, 7, settle(1, 1, 1))
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 308)
    assert not client.is_closed
    server.advance(60)
    assert len([each for each in caplog.records if "did not settle" in each.message]) == 1


def test_the_time_of_the_queue_its_policy_or_the_broker_holds(server: Server) -> None:
    config = Config(listen={"native": Listen(0)}, limits=LimitsConfig(consumer_timeout_seconds=20))
    server = Server(None, config)
    client = server.open()
    server.vhost.declare_queue("q")
    server.vhost.declare_queue("own", arguments={"x-consumer-timeout": 10_000})
    server.vhost.declare_queue("none", arguments={"x-consumer-timeout": 0})
    names = ("q", "own", "none")
    for number, name in enumerate(names, 1):
        subscribe(client, number=number, queue=name)
        put(server, b"m", queue=name.encode())
        poll(client, number)

    def held() -> list[int]:
        return [server.vhost.queue(name).unsettled for name in names]

    server.advance(12)
    assert held() == [1, 0, 1]
    server.advance(12)
    assert held() == [0, 0, 1]
    # By the next look, which is due within a minute.
    server.vhost.set_policy(Policy("p", "none", {"consumer-timeout": 5000}))
    server.advance(70)
    assert held() == [0, 0, 0]


def test_what_is_settled_is_not_looked_after(server: Server, client: Client) -> None:
    server.vhost.declare_queue("q")
    subscribe(client, "queue", ack_timeout_ms=1000)
    before = len(server.broker.timeouts)
    for _ in range(100):
        put(server, b"0")
        tag = deliveries(client.take())[0].tag
        client.send(frames.ACK, 0, settle(1, tag, tag))
        server.advance(0.1)
    assert len(server.broker.timeouts) - before <= 1
    server.advance(2)
    assert len(server.broker.timeouts) == before


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "poll", "ack", "nack", "advance", "reject", "again"]),
            st.integers(0, 6),
        ),
        max_size=30,
    )
)
def test_whatever_happens_no_message_is_lost_or_there_twice(steps: list[tuple[str, int]]) -> None:
    server = Server(None, CONFIG)
    client = server.open()
    queue = server.vhost.declare_queue("q")
    subscribe(client, ack_timeout_ms=2000)
    there: set[bytes] = set()
    held: dict[int, bytes] = {}
    for number, (what, at) in enumerate(steps):
        if what == "put":
            put(server, b"%d" % number)
            there.add(b"%d" % number)
        elif what == "poll":
            for each in deliveries(poll(client, max_messages=at + 1)):
                held[each.tag] = each.payload
        elif what == "advance":
            server.advance(at)
        elif what == "again":
            client.send(frames.UNSUBSCRIBE, 0, {"subscription": 1})
            subscribe(client, ack_timeout_ms=2000)
            held.clear()
        elif held:
            tag = sorted(held)[at % len(held)]
            kind = frames.ACK if what == "ack" else frames.NACK
            found = client.send(kind, 9, settle(1, tag, tag, int(what == "nack")))
            payload = held.pop(tag)
            if what != "nack" and found == [(frames.OK, 9, b"\x80")]:
                there.discard(payload)
        assert len(queue) + queue.unsettled == len(there)
    client.lose()
    server.settle()
    other = server.open()
    subscribe(other)
    assert sorted(polled(poll(other))) == sorted(there)

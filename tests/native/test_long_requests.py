"""Requests with very many messages or deliveries take several turns: others are served."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from tests.support.costly import LONG_KEY, REFUSED_KEY, bind_many, bind_too_many
from tests.support.native import (
    Client,
    Received,
    Server,
    entry,
    frame,
    into,
    ok,
    packed,
    payloads,
    publish,
    tx,
)
from tests.support.server import ShortTurns
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.config import Config, LimitsConfig, Listen
from trivium.queues.queue import Queue
from trivium.routing.exchanges import MAX_DELIVERIES, Binding
from trivium.runtime.long_requests import STEP
from trivium.security.identity import Identity
from trivium_native.wire import frames

COUNT = 4 * STEP - 7
#: turns in which it is read, and published
TURNS = 4 + 4
CONFIRMED = [(frames.CONFIRM, 9, struct.pack("<I", 1))]
NUMBERS = [b"%d" % number for number in range(COUNT)]


class Long:
    """A broker whose turns are long from their begin on, and a client that publishes very much."""

    def __init__(
        self,
        is_disk: bool = False,
        arguments: dict[str, Any] | None = None,
        host: Host | None = None,
    ) -> None:
        config = Config(
            listen={"native": Listen(0)}, limits=LimitsConfig(max_message_bytes=1 << 20)
        )
        self.server = Server(HeldStorage() if is_disk else None, config, host=host)
        vhost = self.server.vhost
        self.queue = vhost.declare_queue("q", durable=True, arguments=arguments)
        vhost.declare_exchange("e", "topic", durable=True)
        vhost.bind(vhost.exchange("e"), Binding(self.queue, b"#"))
        self.server.sync()
        self.other = self.server.open()
        self.client = self.server.open()
        self.client.send(frames.PRODUCER, 1, {"producer": "p"})
        self.server.sync()
        self.client.take()
        self.driver = ShortTurns()
        self.server.broker.driver = self.driver

    def send(self, body: bytes) -> None:
        """The first turn reads what fits."""
        self.client.feed(frame(frames.PUBLISH, 9, body))
        self.turn()

    def turn(self, count: int = 1) -> None:
        """So many further turns."""
        for _ in range(count):
            going_on, self.driver.next = self.driver.next, []
            assert going_on
            for connection in going_on:
                connection.next_turn()
            self.server.settle()

    def asks(self, clients: list[Client]) -> int:
        """Which of the clients, it alone, goes on in the next turn."""
        (connection,) = self.driver.next
        return next(n for n, client in enumerate(clients) if client.connection is connection)

    def finish(self) -> list[Received]:
        """The turns that there are still; what the client gets."""
        while self.driver.next:
            self.turn()
        return self.client.take()

    def queued(self) -> list[bytes]:
        return taken_from(self.queue)


def taken_from(queue: Queue) -> list[bytes]:
    """The payloads of all that a queue has."""
    found = [queue.get() for _ in range(len(queue))]
    return [each.message.payload for each in found if each is not None]


def body(flags: int = 5, producer: tuple[bytes, int, int] | None = None) -> bytes:
    entries = [entry(number, exchange=b"e", flags=flags) for number in NUMBERS]
    return publish(*entries, producer=producer)


def error(received: list[Received]) -> tuple[int, list[object]]:
    ((kind, correlation, reply),) = received
    assert kind == frames.ERROR
    return correlation, msgpack.unpackb(reply)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("producer", [None, (b"p", 0, 0)])
def test_others_are_served_in_between(
    is_packed: bool, producer: tuple[bytes, int, int] | None
) -> None:
    long = Long()
    request = body(producer=producer)
    long.send(packed(request, "zstd") if is_packed else request)
    lengths = []
    while long.driver.next:
        lengths.append(len(long.queue))
        assert long.other.send(frames.PING, 1, b"") == [(frames.PONG, 1, b"")]
        assert long.client.take() == []
        long.turn()
    assert lengths == [0, 0, 0, 0, STEP, 2 * STEP, 3 * STEP]
    assert long.client.take() == CONFIRMED
    assert long.queued() == NUMBERS


def test_what_is_sent_behind_waits() -> None:
    long = Long()
    long.send(body())
    long.client.feed(frame(frames.PING, 10, b"") + frame(frames.PUBLISH, 11, publish(entry(b"z"))))
    assert [found[:2] for found in long.finish()] == [
        (frames.CONFIRM, 9),
        (frames.PONG, 10),
        (frames.CONFIRM, 11),
    ]


def test_the_confirm_waits_for_the_last_write_batch() -> None:
    long = Long(is_disk=True)
    long.send(body())
    long.turn(TURNS - 2)
    long.server.sync()
    assert long.client.take() == []
    assert long.finish() == []
    long.server.sync()
    assert long.client.take() == CONFIRMED
    assert long.queued() == NUMBERS


def test_one_that_is_refused_for_its_form_has_published_nothing() -> None:
    for last, code in ((entry(b"x", exchange=b"none"), 301), (entry(b"x", flags=3), 100)):
        long = Long()
        long.send(publish(*(entry(number, exchange=b"e") for number in NUMBERS), last))
        assert error(long.finish())[1][0] == code
        assert long.queued() == []


def test_whose_connection_ends_is_sent_again_and_nothing_is_twice() -> None:
    long = Long()
    long.send(body(producer=(b"p", 0, 0)))
    long.turn(5)
    assert len(long.queue) == 2 * STEP
    long.client.lose()
    long.driver.next.clear()
    long.client = long.other
    long.send(body(producer=(b"p", 0, 0)))
    assert long.finish() == CONFIRMED
    assert long.queued() == NUMBERS


def test_two_who_send_the_same_publish_it_once() -> None:
    long = Long()
    request = frame(frames.PUBLISH, 9, body(producer=(b"p", 0, 0)))
    for client in (long.client, long.other):
        client.feed(request)
    assert long.finish() == CONFIRMED
    assert long.other.take() == CONFIRMED
    assert long.queued() == NUMBERS


def test_of_one_user_one_that_is_long_is_under_way() -> None:
    long = Long()
    for client in (long.client, long.other):
        client.feed(frame(frames.PUBLISH, 9, packed(body(), "zstd")))
    # Who waits asks for no turns.
    assert long.driver.next == [long.client.connection]
    long.turn(TURNS)
    assert long.client.take() == CONFIRMED
    assert long.driver.next == [long.other.connection]
    assert long.queued() == NUMBERS
    assert long.finish() == []
    assert long.other.take() == CONFIRMED
    assert long.queued() == NUMBERS


def test_users_take_turns() -> None:
    long = Long()
    clients = [long.client, long.other, long.server.open()]
    # Two of them are one user.
    long.other.connection.identity = Identity("bob")
    for client in clients:
        client.feed(frame(frames.PUBLISH, 9, body()))
    order = []
    while long.driver.next:
        order.append(long.asks(clients))
        long.turn()
    assert order == [0, 1] * TURNS + [2] * TURNS
    assert [client.take() for client in clients] == [CONFIRMED] * 3


def test_clients_without_credentials_take_turns_by_their_addresses() -> None:
    long = Long()
    clients = [long.client, long.other, long.server.open()]
    for client, address in zip(clients, ["[::1]:1", "10.0.0.7:1", "[::1]:2"], strict=True):
        client.connection.identity = Identity("", is_anonymous=True)
        client.connection.peer.address = address
        client.feed(frame(frames.PUBLISH, 9, body()))
    order = []
    while long.driver.next:
        order.append(long.asks(clients))
        long.turn()
    assert order == [0, 1] * TURNS + [2] * TURNS


@pytest.mark.parametrize("producer", [None, (b"p", 0, 0)])
def test_few_messages_with_very_many_deliveries_take_turns(
    producer: tuple[bytes, int, int] | None,
) -> None:
    long = Long()
    vhost = long.server.vhost
    queues = [vhost.declare_queue(f"q{number}", durable=True) for number in range(STEP // 4)]
    vhost.declare_exchange("fan", "fanout", durable=True)
    for queue in queues:
        vhost.bind(vhost.exchange("fan"), Binding(queue, b""))
    entries = [entry(number, exchange=b"fan") for number in NUMBERS[:10]]
    long.client.feed(frame(frames.PUBLISH, 9, publish(*entries, producer=producer)))
    lengths = [len(queues[-1])]
    while long.driver.next:
        assert long.other.send(frames.PING, 1, b"") == [(frames.PONG, 1, b"")]
        assert long.client.take() == []
        long.turn()
        lengths.append(len(queues[-1]))
    assert lengths == [4, 8, 10]
    assert long.client.take() == CONFIRMED
    assert [taken_from(queue) for queue in queues] == [NUMBERS[:10]] * len(queues)


def test_short_requests_of_one_user_take_turns_with_its_long_one() -> None:
    long = Long()
    vhost = long.server.vhost
    vhost.declare_exchange("fan", "fanout", durable=True)
    for number in range(STEP):
        queue = vhost.declare_queue(f"q{number}", durable=True)
        vhost.bind(vhost.exchange("fan"), Binding(queue, b""))
    entries = [entry(number, exchange=b"fan") for number in NUMBERS[:3]]
    long.client.feed(frame(frames.PUBLISH, 9, body()))
    long.other.feed(frame(frames.PUBLISH, 9, publish(*entries)))
    order = []
    while long.driver.next:
        order.append(long.driver.next[0] is long.client.connection)
        long.turn()
    assert order[:4] == [True, False, True, False]
    assert long.other.take() == long.client.take() == CONFIRMED


@pytest.mark.parametrize("turns", [2, 5])
@pytest.mark.parametrize("is_next", [False, True])
def test_who_goes_lets_the_next_begin(turns: int, is_next: bool) -> None:
    long = Long()
    for client in (long.other, long.client):
        client.feed(frame(frames.PUBLISH, 9, body()))
    long.turn(turns)
    if not is_next:
        long.client.lose()
        long.client = long.other
        assert long.finish() == CONFIRMED
        assert long.queued() == NUMBERS
        return
    before = len(long.queue)
    long.other.lose()
    assert long.finish() == CONFIRMED
    assert long.queued() == NUMBERS[:before] + NUMBERS


def test_who_is_refused_lets_the_next_begin() -> None:
    long = Long()
    long.client.feed(frame(frames.PUBLISH, 9, body() + b"x"))
    long.other.feed(frame(frames.PUBLISH, 9, body()))
    assert error(long.finish())[1][0] == 100
    assert long.other.take() == CONFIRMED
    assert long.queued() == NUMBERS


def test_a_crash_in_between_leaves_a_beginning_that_is_not_published_again() -> None:
    long = Long(host=Host())
    long.send(body(producer=(b"p", 0, 0)))
    long.turn(5)
    long.server.sync()
    assert long.client.take() == []
    after = long.server.crash()
    queue = after.vhost.queue("q")
    assert len(queue) == 2 * STEP
    client = after.open()
    client.feed(frame(frames.PUBLISH, 9, body(producer=(b"p", 0, 0))))
    assert client.take() == []
    after.sync()
    assert client.take() == CONFIRMED
    assert taken_from(queue) == NUMBERS


def test_a_producer_that_is_opened_again_meanwhile_fences_the_rest() -> None:
    long = Long()
    long.send(body(producer=(b"p", 0, 0)))
    long.turn(5)
    assert long.other.ask(frames.PRODUCER, producer="p") == {"epoch": 1, "sequence": 2 * STEP}
    assert error(long.finish())[1][0] == 309
    assert long.queued() == NUMBERS[: 2 * STEP]
    assert long.other.ask(frames.PRODUCER, producer="p") == {"epoch": 2, "sequence": 2 * STEP}


def test_the_rest_follows_the_topology() -> None:
    long = Long()
    vhost = long.server.vhost
    further = vhost.declare_queue("further", durable=True)
    long.send(body())
    long.turn(5)
    vhost.bind(vhost.exchange("e"), Binding(further, b"#"))
    assert long.finish() == CONFIRMED
    assert long.queued() == NUMBERS
    assert len(further) == COUNT - 2 * STEP


def test_an_exchange_that_is_deleted_meanwhile_refuses_the_rest() -> None:
    long = Long()
    long.send(body(producer=(b"p", 0, 0)))
    long.turn(5)
    long.server.vhost.delete_exchange("e")
    assert error(long.finish())[1][0] == 301
    assert long.queued() == NUMBERS[: 2 * STEP]
    assert long.client.ask(frames.PRODUCER, producer="p") == {"epoch": 1, "sequence": 2 * STEP}


def test_what_is_refused_is_named_over_all_turns() -> None:
    long = Long(arguments={"x-max-length": COUNT - 5, "x-overflow": "reject-publish"})
    long.send(body())
    assert error(long.finish())[1][2] == {"indexes": list(range(COUNT - 5, COUNT))}
    long = Long(arguments={"x-max-length": COUNT - 5, "x-overflow": "reject-publish"})
    long.send(body(producer=(b"p", 0, 0)))
    assert error(long.finish())[1][2] == {"indexes": [COUNT - 5]}
    assert long.client.ask(frames.PRODUCER, producer="p")["sequence"] == COUNT - 5


def test_what_no_binding_wants_is_named_beside_what_is_refused() -> None:
    long = Long(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    fits = entry(exchange=b"e")
    long.client.feed(frame(frames.PUBLISH, 9, publish(fits, entry(flags=5 | 16), fits)))
    reply = error(long.finish())[1]
    assert (reply[0], reply[2]) == (400, {"indexes": [1, 2]})


def test_mandatory_messages_are_named_over_all_turns() -> None:
    long = Long()
    long.server.vhost.delete_queue(long.queue)
    long.send(body(flags=5 | 16))
    reply = error(long.finish())[1]
    assert reply[0] == 306
    assert reply[2] == {"indexes": list(range(COUNT))}
    assert long.server.adapter.metrics.messages_received == COUNT


def test_of_a_client_that_is_cut_off_the_rest_and_what_is_behind_are_given_up() -> None:
    long = Long()
    long.client.feed(frame(frames.PUBLISH, 9, body()) + frame(frames.PUBLISH, 10, publish(entry())))
    long.turn(6)
    long.client.connection.is_cut_off = True
    long.turn()
    assert long.driver.next == []
    assert not long.client.connection.waits_for_turn
    assert len(long.queue) == 2 * STEP


def test_subscribers_get_all_in_order() -> None:
    long = Long()
    fields = {"subscription": 1, "mode": "queue", "queue": "q", "credit": 2 * COUNT}
    long.other.ask(frames.SUBSCRIBE, **fields)
    long.send(body())
    assert long.finish() == CONFIRMED
    assert payloads(long.other.take()) == NUMBERS


# Transactions


def transaction(**fields: Any) -> bytes:
    return tx(*(entry(number, exchange=b"e") for number in NUMBERS), **fields)


def test_a_transaction_is_read_in_turns_and_published_in_one() -> None:
    long = Long()
    long.client.feed(frame(frames.TX, 5, transaction()))
    while long.driver.next:
        assert len(long.queue) == 0
        assert long.other.send(frames.PING, 1, b"") == [(frames.PONG, 1, b"")]
        assert long.client.take() == []
        long.turn()
    assert ok(long.client.take())
    assert long.queued() == NUMBERS


@pytest.mark.parametrize("turns", [1, 4])
def test_what_happens_while_a_transaction_is_read_counts_for_it(turns: int) -> None:
    long = Long()
    vhost = long.server.vhost
    further = vhost.declare_queue("further", durable=True)
    request = frame(frames.TX, 9, transaction())
    long.client.feed(request)
    long.turn(turns)
    vhost.bind(vhost.exchange("e"), Binding(further, b"#"))
    assert ok(long.finish(), 9)
    assert taken_from(further) == NUMBERS
    long.client.feed(request)
    long.turn(turns)
    vhost.delete_exchange("e")
    assert error(long.finish())[1][0] == 301
    assert len(further) == 0


def test_a_transaction_that_is_read_in_turns_is_committed_once() -> None:
    long = Long()
    long.client.ask(frames.PRODUCER, producer="t", transactional=True)
    request = frame(frames.TX, 5, transaction(producer="t", epoch=0, sequence=0))
    for client in (long.client, long.other):
        client.feed(request)
    assert ok(long.finish())
    assert ok(long.other.take())
    assert long.queued() == NUMBERS


def test_a_transaction_with_very_many_deliveries_has_a_turn_for_itself() -> None:
    long = Long()
    vhost = long.server.vhost
    vhost.declare_exchange("fan", "fanout", durable=True)
    queues = [vhost.declare_queue(f"q{number}", durable=True) for number in range(64)]
    for queue in queues:
        vhost.bind(vhost.exchange("fan"), Binding(queue, b""))
    entries = [entry(b"x", exchange=b"fan")] * (STEP // 64 + 1)
    clients = [long.client, long.other, long.server.open()]
    for client in clients:
        client.feed(frame(frames.TX, 5, tx(*entries)))
    assert len(queues[0]) == 0
    for count in (1, 2, 3):
        assert [ok(clients[n].take()) for n in range(3)] == [False] * 3
        long.asks(clients)
        long.turn()
        assert len(queues[0]) == count * len(entries)
        assert ok(clients[count - 1].take())
    assert long.driver.next == []


def test_a_transaction_that_was_committed_is_known_whatever_has_become_of_its_exchange() -> None:
    long = Long()
    long.client.ask(frames.PRODUCER, producer="t", transactional=True)
    request = frame(frames.TX, 5, transaction(producer="t", epoch=0, sequence=0))
    long.client.feed(request)
    long.other.feed(request)
    long.turn(TURNS // 2 + 1)
    assert ok(long.client.take())
    long.server.vhost.delete_exchange("e")
    assert long.finish() == []
    assert ok(long.other.take())
    long.client.feed(request)
    assert ok(long.client.take())
    assert long.queued() == NUMBERS


def test_who_goes_while_its_transaction_is_read_has_published_nothing() -> None:
    long = Long()
    for client in (long.client, long.other):
        client.feed(frame(frames.TX, 5, transaction()))
    long.turn(2)
    long.client.lose()
    assert long.finish() == []
    assert ok(long.other.take())
    assert long.queued() == NUMBERS


def test_a_transaction_has_so_many_deliveries_at_most() -> None:
    server = Server()
    vhost = server.vhost
    vhost.declare_exchange("fan", "fanout")
    for number in range(64):
        vhost.bind(vhost.exchange("fan"), Binding(vhost.declare_queue(f"q{number}"), b""))
    client = server.open()
    most = [entry(b"", exchange=b"fan")] * (MAX_DELIVERIES // 64)
    reply = error(client.send(frames.TX, 9, tx(*most, into(b"q0", b"one more"))))[1]
    assert reply[0] == 300
    assert len(vhost.queue("q0")) == 0
    assert ok(client.send(frames.TX, 5, tx(*most)))
    assert len(vhost.queue("q63")) == len(most)


# What is much work to find


def test_messages_with_costly_keys_are_read_in_turns() -> None:
    long = Long()
    bind_many(long.server.vhost, long.queue)
    keys = [f"{LONG_KEY}.{number}".encode() for number in range(30)]
    entries = [entry(b"x", exchange=b"amq.topic", key=key) for key in keys]
    before = long.server.broker.work
    long.client.feed(frame(frames.PUBLISH, 9, publish(*entries)))
    # The step is some eight thousand visits.
    assert 8192 <= long.server.broker.work - before < 12_000
    turns = 0
    while long.driver.next:
        long.turn()
        turns += 1
    assert turns >= 3
    assert long.client.take() == [(frames.CONFIRM, 9, CONFIRMED[0][2])]


def test_costly_messages_are_published_in_turns() -> None:
    long = Long()
    headers = long.server.vhost.exchange("amq.headers")
    for number in range(100):
        arguments = {f"{number}.{name}": 1 for name in range(10)}
        long.server.vhost.bind(headers, Binding(long.queue, b"", arguments | {"x-match": "any"}))
    long.server.vhost.bind(headers, Binding(long.queue, b""))
    entries = [entry(b"x", exchange=b"amq.headers")] * 30
    long.client.feed(frame(frames.PUBLISH, 9, publish(*entries)))
    lengths = [len(long.queue)]
    while long.driver.next:
        long.turn()
        lengths.append(len(long.queue))
    assert len(lengths) >= 4
    assert lengths[-1] == 30
    assert long.client.take() == CONFIRMED


@pytest.mark.parametrize("count", [1, 3])
def test_a_key_that_is_too_costly_refuses_the_request(count: int) -> None:
    long = Long()
    long.server.vhost.declare_exchange("c", "topic")
    bind_too_many(long.server.vhost, long.queue, "c")
    entries = [entry(b"x", exchange=b"e")] * (count - 1)
    entries.append(entry(b"x", exchange=b"c", key=REFUSED_KEY.encode()))
    long.client.feed(frame(frames.PUBLISH, 9, publish(*entries)))
    correlation, (_, text, *_) = error(long.finish())
    assert correlation == 9
    assert "too many bindings" in str(text)
    assert len(long.queue) == 0


def test_a_message_that_is_too_costly_is_named_and_the_others_are_published() -> None:
    long = Long()
    headers = long.server.vhost.exchange("amq.headers")
    names = [f"n{number}" for number in range(2500)]
    for number in range(101):
        long.server.vhost.bind(headers, Binding(long.queue, b"", dict.fromkeys(names, number)))
    entries = [
        entry(b"1", exchange=b"e"),
        entry(b"x", exchange=b"amq.headers"),
        entry(b"2", exchange=b"e"),
    ]
    long.client.feed(frame(frames.PUBLISH, 9, publish(*entries)))
    correlation, found = error(long.finish())
    assert correlation == 9
    assert found[-1] == {"indexes": [1]}
    assert long.queued() == [b"1", b"2"]


def test_a_transaction_that_is_too_costly_publishes_nothing() -> None:
    long = Long()
    long.server.vhost.declare_exchange("c", "topic")
    bind_too_many(long.server.vhost, long.queue, "c")
    entries = [entry(b"x", exchange=b"e"), entry(b"x", exchange=b"c", key=REFUSED_KEY.encode())]
    long.client.feed(frame(frames.TX, 5, tx(*entries)))
    error(long.finish())
    assert len(long.queue) == 0

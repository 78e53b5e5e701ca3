"""Deduplication by message id: what counts as a repetition, for how long, and after a crash."""

from __future__ import annotations

from struct import pack

import pytest

import trivium.messages.message
from tests.support.core import broker_of, drain, message, open_vhost
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.errors import PreconditionFailed
from trivium.idempotence.deduplication import (
    DEFAULT_SIZE,
    FORGET_AT_ONCE,
    REQUEST,
    Deduplication,
    Settings,
)
from trivium.messages.message import HeaderValue, Message, Properties, PropertyCodec
from trivium.queues.queue import Queue
from trivium.routing.exchanges import ACCEPTED, REJECTED, Binding, Exchange
from trivium.storage.memory import MemoryStorage
from trivium.vhost.policies import Policy
from trivium.vhost.virtual_host import VirtualHost

START = 1_700_000_000_000
PROTOCOL = 99


class Headers(PropertyCodec):
    """Headers as ``name=value`` in the property bytes."""

    def decode(self, header: bytes) -> Properties:
        name, _, value = header.decode().partition("=")
        return Properties(headers=[(name, value)] if name else [])


@pytest.fixture(autouse=True)
def codec() -> None:
    trivium.messages.message.register_codec(PROTOCOL, Headers())


def sent(
    identity: str | None,
    payload: bytes = b"m",
    header: str = "x-deduplication-header",
    mode: int = 1,
) -> Message:
    made = message(payload, b"k", mode=mode, persistent=mode > 0)
    made.protocol = PROTOCOL
    made.header = b"" if identity is None else f"{header}={identity}".encode()
    return made


def declare(vhost: VirtualHost, name: str = "q", **arguments: HeaderValue) -> Queue:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return vhost.declare_queue(name, durable=True, arguments=named)


def exchange_of(vhost: VirtualHost, kind: str = "direct", **arguments: HeaderValue) -> Exchange:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return vhost.declare_exchange("x", kind, durable=True, arguments=named)


def publish(vhost: VirtualHost, message: Message, exchange: str = "x") -> int:
    return vhost.route(vhost.exchange(exchange), b"k").resolve(message).publish(message)


def pass_time(vhost: VirtualHost, milliseconds: int) -> None:
    broker_of(vhost).now_ms += milliseconds
    broker_of(vhost).end_turn()


@pytest.fixture
def vhost() -> VirtualHost:
    found = open_vhost()
    broker_of(found).now_ms = START
    return found


# Queues


def test_a_queue_takes_an_id_once(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=True)
    for identity in ("a", "b", "a", None, None):
        assert queue.put(sent(identity, str(identity).encode()), b"") == ACCEPTED
    assert drain(queue) == [b"a", b"b", b"None", b"None"]
    # An id is remembered also when its message is gone.
    queue.put(sent("a"), b"")
    assert drain(queue) == []
    assert vhost.deduplication.duplicates == 2


def test_a_note_of_an_id_is_known_with_it_also_after_a_restart() -> None:
    table = MemoryStorage().table("d")
    # As versions before have left them, which noted nothing.
    for identity in (b"old", b"new"):
        table.put(b"\x0b\0\0\0request/ann" + identity, pack("<qq", 1, 0))
    broker = broker_of(open_vhost())
    window = Deduplication(broker, table).window(REQUEST, "ann")
    assert (window.answer(b"old"), window.note_of(b"old")) == (ACCEPTED, b"")
    broker.storage.is_durable = True
    window.add(b"new", Settings(True, "", 10, 0), True, b"\0\1")
    broker.storage.is_durable = False
    again = Deduplication(broker, table).window(REQUEST, "ann")
    for each in (window, again):
        assert (each.note_of(b"new"), each.note_of(b"old")) == (b"\0\1", b"")


def test_queues_do_not_share_their_ids(vhost: VirtualHost) -> None:
    for name in ("one", "two"):
        queue = declare(vhost, name, message_deduplication=True)
        queue.put(sent("a"), b"")
        assert len(queue) == 1


def test_without_the_argument_nothing_is_deduplicated(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=False)
    queue.put(sent("a"), b"")
    queue.put(sent("a"), b"")
    assert len(queue) == 2


def test_an_exactly_once_queue_deduplicates_what_has_an_id() -> None:
    queue = declare(open_vhost(HeldStorage()), delivery="exactly-once")
    queue.put(sent("a"), b"")
    queue.put(sent("a"), b"")
    assert len(queue) == 1


def test_a_message_that_insists_on_exactly_once_is_deduplicated_in_any_queue(
    vhost: VirtualHost,
) -> None:
    queue = declare(vhost)
    for _ in range(2):
        made = sent("a", mode=2)
        made.insists = True
        queue.put(made, b"")
    assert len(queue) == 1


def test_by_policy(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    vhost.set_policy(Policy("p", "q", {"message-deduplication": True, "cache-size": 1}))
    for identity in ("a", "a", "b", "a"):
        queue.put(sent(identity), b"")
    assert len(queue) == 3


def test_the_header_can_have_another_name(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=True, deduplication_header="my-id")
    for _ in range(2):
        queue.put(sent("a", header="my-id"), b"")
        queue.put(sent("a"), b"")
    assert len(queue) == 3


@pytest.mark.parametrize("size", [128, 129, 100_000])
def test_ids_may_be_long(vhost: VirtualHost, size: int) -> None:
    queue = declare(vhost, message_deduplication=True)
    for end in ("1", "2", "1"):
        queue.put(sent("x" * (size - 1) + end), b"")
    assert len(queue) == 2


# The window


def test_an_id_is_forgotten_when_its_time_is_over(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=True, cache_ttl=100)
    queue.put(sent("a"), b"")
    pass_time(vhost, 99)
    queue.put(sent("a"), b"")
    assert len(queue) == 1
    pass_time(vhost, 1)
    assert len(vhost.deduplication.window("queue", "q")) == 0
    queue.put(sent("a"), b"")
    assert len(queue) == 2


def test_a_repetition_does_not_prolong_the_time_of_an_id(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=True, cache_ttl=100)
    queue.put(sent("a"), b"")
    for _ in range(3):
        broker_of(vhost).now_ms += 40
        queue.put(sent("a"), b"")
    assert len(queue) == 2


def test_a_window_holds_the_latest_ids(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=True, cache_size=2)
    for identity in ("a", "b", "c", "b", "c", "a"):
        queue.put(sent(identity, identity.encode()), b"")
    assert drain(queue) == [b"a", b"b", b"c", b"a"]
    assert len(vhost.deduplication.window("queue", "q")) == 2


def test_a_refused_message_may_come_again(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=True, max_length=1, overflow="reject-publish")
    assert queue.put(sent("a"), b"") == ACCEPTED
    assert queue.put(sent("b"), b"") == REJECTED
    # A repetition of what is there is no new message, so it is not refused.
    assert queue.put(sent("a"), b"") == ACCEPTED
    drain(queue)
    assert queue.put(sent("b"), b"") == ACCEPTED
    assert len(queue) == 1


def test_a_dead_letter_that_comes_back_is_no_repetition(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_deduplication=True, dead_letter_exchange="")
    made = sent("a")
    made.address = trivium.messages.message.Address("", b"q")
    queue.put(made, b"")
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)
    broker_of(vhost).end_turn()
    assert drain(queue) == [b"m"]


# Exchanges


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_an_exchange_takes_an_id_once(vhost: VirtualHost, kind: str) -> None:
    exchange = exchange_of(vhost, kind, message_deduplication=True)
    queues = [declare(vhost, name) for name in ("one", "two")]
    for queue in queues:
        vhost.bind(exchange, Binding(queue, b"k"))
    for identity in ("a", "a", "b", None, None):
        assert publish(vhost, sent(identity)) == ACCEPTED
    assert [len(queue) for queue in queues] == [4, 4]


def test_a_stream_behind_an_exchange_that_deduplicates_takes_an_id_once(
    vhost: VirtualHost,
) -> None:
    exchange = exchange_of(vhost, message_deduplication=True)
    stream = vhost.declare_stream("s", 2)
    vhost.bind(exchange, Binding(stream, b"#"))
    vhost.bind(exchange, Binding(stream, b"k"))
    for identity in ("a", "b", "a"):
        publish(vhost, sent(identity, mode=2))
    assert stream.published == 2


def test_a_stream_itself_does_not_deduplicate(vhost: VirtualHost) -> None:
    stream = vhost.declare_stream("s")
    made = sent("a", mode=2)
    made.insists = True
    for _ in range(2):
        vhost.route(vhost.exchange(""), b"s").publish(made)
    assert stream.published == 2
    with pytest.raises(PreconditionFailed, match="x-message-deduplication"):
        vhost.declare_stream("t", 1, {"x-message-deduplication": True})


def test_an_exchange_forgets_as_queues_do(vhost: VirtualHost) -> None:
    exchange = exchange_of(vhost, message_deduplication=True, cache_ttl=100, cache_size=2)
    queue = declare(vhost)
    vhost.bind(exchange, Binding(queue, b"k"))
    for identity in ("a", "b", "c", "a"):
        publish(vhost, sent(identity))
    assert len(queue) == 4
    pass_time(vhost, 100)
    publish(vhost, sent("a"))
    assert len(queue) == 5


def test_what_nobody_got_may_come_again(vhost: VirtualHost) -> None:
    exchange = exchange_of(vhost, message_deduplication=True)
    publish(vhost, sent("a"))
    queue = declare(vhost)
    vhost.bind(exchange, Binding(queue, b"k"))
    publish(vhost, sent("a"))
    assert len(queue) == 1


def test_what_a_queue_refused_may_come_again(vhost: VirtualHost) -> None:
    exchange = exchange_of(vhost, message_deduplication=True)
    queue = declare(vhost, max_length=0, overflow="reject-publish")
    vhost.bind(exchange, Binding(queue, b"k"))
    assert publish(vhost, sent("a")) == REJECTED
    vhost.delete_queue(queue)
    queue = declare(vhost)
    vhost.bind(exchange, Binding(queue, b"k"))
    assert publish(vhost, sent("a")) == ACCEPTED
    assert len(queue) == 1


def test_further_routing_keys_are_part_of_the_same_message(vhost: VirtualHost) -> None:
    exchange = exchange_of(vhost, message_deduplication=True)
    one, two = declare(vhost, "one"), declare(vhost, "two")
    vhost.bind(exchange, Binding(one, b"k"))
    vhost.bind(exchange, Binding(two, b"copy"))
    for _ in range(2):
        made = sent("a")
        vhost.route_all(exchange, [b"k", b"copy"], made).publish(made)
    assert (len(one), len(two)) == (1, 1)


def test_repetitions_of_delayed_messages_are_dropped_when_they_are_routed(
    vhost: VirtualHost,
) -> None:
    exchange = exchange_of(vhost, message_deduplication=True)
    queue = declare(vhost)
    vhost.bind(exchange, Binding(queue, b"k"))
    for _ in range(2):
        made = sent("a")
        made.address = trivium.messages.message.Address("x", b"k")
        made.deliver_at = START + 50
        vhost.delays.add(made, [])
    pass_time(vhost, 50)
    assert (len(queue), len(vhost.delays)) == (1, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-deduplication": 1},
        {"x-cache-size": 0},
        {"x-cache-size": 1 << 21},
        {"x-cache-size": "5"},
        {"x-cache-ttl": 0},
        {"x-cache-ttl": True},
        {"x-deduplication-header": 5},
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, HeaderValue]) -> None:
    vhost = open_vhost()
    with pytest.raises(PreconditionFailed):
        vhost.declare_exchange("x", "direct", arguments=arguments)
    with pytest.raises(PreconditionFailed):
        vhost.declare_queue("q", arguments=arguments)


# Durability


def test_a_repetition_waits_for_the_write_batch_of_the_first() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, message_deduplication=True)
    assert queue.put(sent("a"), b"") == storage.write_batch
    broker_of(vhost).end_turn()
    assert queue.put(sent("a"), b"") == storage.write_batch, "the first is not durable yet"
    broker_of(vhost).end_turn()
    storage.complete()
    assert queue.put(sent("a"), b"") == ACCEPTED


def test_what_is_not_stored_has_no_row() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, message_deduplication=True)
    exchange = exchange_of(vhost, message_deduplication=True)
    vhost.bind(exchange, Binding(queue, b"k"))
    assert publish(vhost, sent("a", mode=0)) == ACCEPTED
    assert publish(vhost, sent("a", mode=0)) == ACCEPTED
    assert len(queue) == 1
    assert len(storage.table("deduplication//")) == 0


@pytest.mark.parametrize("level", ["queue", "exchange"])
def test_ids_survive_a_crash_with_their_messages(level: str) -> None:
    host = Host()
    vhost = setup(host, level)
    start, done = host.disk.copy(), len(host.disk.operations)
    assert publish(vhost, sent("a")) == host.storage.write_batch
    broker_of(vhost).end_turn()
    host.commit()
    seen: set[int] = set()
    for count in range(len(host.disk.operations) - done + 1):
        disk = start.after(host.disk.operations[done : done + count]).power_cut(None)
        again = open_vhost(Host(disk).storage)
        seen.add(len(again.queues["q"]))
        publish(again, sent("a"))
        broker_of(again).end_turn()
        assert len(again.queues["q"]) == 1, count
    assert seen == {0, 1}, "the crash must fall before and behind the batch"


def setup(host: Host, level: str) -> VirtualHost:
    vhost = open_vhost(host.storage)
    exchange = exchange_of(vhost, message_deduplication=level == "exchange")
    queue = declare(vhost, message_deduplication=level == "queue", cache_ttl=10_000_000)
    vhost.bind(exchange, Binding(queue, b"k"))
    broker_of(vhost).end_turn()
    host.commit()
    return vhost


def test_a_window_goes_on_after_a_restart_as_it_was() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, message_deduplication=True, cache_size=2, cache_ttl=1000)
    start = broker_of(vhost).now_ms
    for identity in ("b", "a"):
        queue.put(sent(identity), b"")
        pass_time(vhost, 10)
    again = open_vhost(storage)
    broker_of(again).now_ms = start + 20
    queue = again.queues["q"]
    queue.put(sent("c"), b"")
    # The oldest had to make room.
    queue.put(sent("a"), b"")
    assert len(queue) == 3
    queue.put(sent("b"), b"")
    assert len(queue) == 4
    pass_time(again, 1000)
    assert len(storage.table("deduplication//")) == 0


def test_a_window_that_a_policy_makes_smaller_forgets_the_oldest_ids() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, message_deduplication=True)
    identities = [str(n) for n in range(2 * FORGET_AT_ONCE + 10)]
    for identity in identities:
        queue.put(sent(identity), b"")
    vhost.set_policy(Policy("p", "q", {"cache-size": 10}))
    pass_time(vhost, 0)
    window = vhost.deduplication.window("queue", "q")
    # Not all in one turn.
    assert len(window) == FORGET_AT_ONCE + 10
    pass_time(vhost, 1)
    assert len(window) == len(storage.table("deduplication//")) == 10
    assert [queue.put(sent(identity), b"") > 0 for identity in identities[-10:]] == [True] * 10
    assert len(queue) == len(identities)
    # So it does after a start, and no more than the policy says.
    vhost.set_policy(Policy("p", "q", {"cache-size": 9}))
    again = open_vhost(storage)
    assert len(again.deduplication.window("queue", "q")) == 9


def test_a_window_that_a_policy_made_larger_is_not_cut_by_a_start() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    vhost.set_policy(Policy("p", "q", {"cache-size": DEFAULT_SIZE + 5}))
    declare(vhost, message_deduplication=True)
    window = vhost.deduplication.window("queue", "q")
    for n in range(DEFAULT_SIZE + 5):
        window.add(str(n).encode(), vhost.queues["q"].settings.deduplication, True)
    again = open_vhost(storage)
    pass_time(again, 1)
    assert len(again.deduplication.window("queue", "q")) == DEFAULT_SIZE + 5


@pytest.mark.parametrize("storage", [HeldStorage(), MemoryStorage()], ids=["disk", "memory"])
def test_ids_go_with_their_queue_and_their_exchange(storage: MemoryStorage) -> None:
    vhost = open_vhost(storage)
    exchange = exchange_of(vhost, message_deduplication=True)
    queue = declare(vhost, message_deduplication=True)
    vhost.bind(exchange, Binding(queue, b"k"))
    publish(vhost, sent("a"))
    assert len(storage.table("deduplication//")) == (2 if storage.is_durable else 0)
    vhost.delete_queue(queue)
    vhost.delete_exchange("x")
    assert len(storage.table("deduplication//")) == 0
    queue = declare(vhost, message_deduplication=True)
    queue.put(sent("a"), b"")
    assert len(queue) == 1


def test_ids_of_what_did_not_come_back_are_forgotten() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    exchange = vhost.declare_exchange("x", "direct", arguments={"x-message-deduplication": True})
    vhost.bind(exchange, Binding(declare(vhost), b"k"))
    publish(vhost, sent("a"))
    assert len(storage.table("deduplication//")) == 1
    open_vhost(storage)
    assert len(storage.table("deduplication//")) == 0

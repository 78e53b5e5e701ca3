"""Delayed messages: kept out of reach, routed when their time has come, as if published then."""

from __future__ import annotations

import pytest

import trivium.vhost.delays
from tests.support.core import broker_of, drain, message, open_vhost
from tests.support.costly import LONG_KEY, REFUSED_KEY, bind_many, bind_too_many
from tests.support.server import RecordingDriver
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.errors import PreconditionFailed
from trivium.messages.message import Address, HeaderValue, Message
from trivium.queues.queue import Queue
from trivium.routing.exchanges import ACCEPTED, Binding, Destination
from trivium.runtime.broker import Broker
from trivium.vhost.policies import Policy
from trivium.vhost.virtual_host import VirtualHost

START = 1_700_000_000_000
HOUR = 3_600_000


@pytest.fixture
def vhost() -> VirtualHost:
    found = open_vhost()
    broker_of(found).now_ms = START
    broker_of(found).end_turn()
    return found


def bound(
    vhost: VirtualHost, name: str = "q", key: bytes = b"k", **arguments: HeaderValue
) -> Queue:
    named = {f"x-{argument.replace('_', '-')}": value for argument, value in arguments.items()}
    queue = vhost.declare_queue(name, durable=True, arguments=named)
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, key))
    return queue


def delayed(
    vhost: VirtualHost,
    payload: bytes = b"m",
    delay: int = 100,
    key: bytes = b"k",
    exchange: str = "amq.topic",
    lifetime: int = 0,
    mode: int = 1,
) -> Message:
    now = broker_of(vhost).now_ms
    sent = message(payload, key, mode=mode, persistent=mode > 0)
    sent.address = Address(exchange, key)
    sent.timestamp = now
    sent.deliver_at = now + delay
    sent.expires = now + lifetime if lifetime else 0
    return sent


def pass_time(vhost: VirtualHost, milliseconds: int) -> None:
    broker_of(vhost).now_ms += milliseconds
    broker_of(vhost).end_turn()


class Live(Destination):
    """A live subscription."""

    def __init__(self) -> None:
        self.name = "live"
        self.got: list[Message] = []

    def accept(self, message: Message) -> int:
        self.got.append(message)
        return ACCEPTED


def test_messages_come_at_their_times_and_not_before(vhost: VirtualHost) -> None:
    queue = bound(vhost)
    vhost.delays.add(delayed(vhost, b"later", 100), [])
    vhost.delays.add(delayed(vhost, b"sooner", 50), [])
    pass_time(vhost, 49)
    assert (len(queue), len(vhost.delays)) == (0, 2)
    pass_time(vhost, 1)
    assert drain(queue) == [b"sooner"]
    pass_time(vhost, 50)
    assert drain(queue) == [b"later"]
    assert len(vhost.delays) == 0


def test_the_driver_is_asked_to_wake_the_broker_in_time() -> None:
    driver = RecordingDriver()
    broker = Broker()
    broker.open(HeldStorage(), driver, [])
    vhost = broker.vhosts["/"]
    broker.end_turn()
    vhost.delays.add(delayed(vhost, delay=HOUR), [])
    broker.end_turn()
    # What is set while dead letters are published counts as well.
    vhost.declare_queue("retry", arguments={"x-message-ttl": 50})
    give_up = vhost.declare_queue(
        "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}
    )
    broker.end_turn()
    assert driver.wakes[-1] == broker.now_ms + HOUR
    give_up.put(message(b"m"), b"")
    entry = give_up.get()
    assert entry is not None
    give_up.reject(entry)
    broker.end_turn()
    assert driver.wakes[-1] == broker.now_ms + 50


def test_it_is_routed_by_the_bindings_of_its_time(vhost: VirtualHost) -> None:
    before = bound(vhost, "before")
    vhost.delays.add(delayed(vhost), [])
    vhost.delete_queue(before)
    after = bound(vhost, "after")
    pass_time(vhost, 100)
    assert drain(after) == [b"m"]


def test_live_subscriptions_streams_and_retained_messages_get_it_then(vhost: VirtualHost) -> None:
    live = Live()
    vhost.bind(vhost.exchange("amq.topic"), Binding(live, b"k"))
    stream = vhost.declare_stream("s")
    vhost.bind(vhost.exchange("amq.topic"), Binding(stream, b"k"))
    sent = delayed(vhost)
    sent.retain = True
    vhost.delays.add(sent, [])
    broker_of(vhost).end_turn()
    assert (live.got, stream.published, vhost.retained.get(b"k")) == ([], 0, None)
    pass_time(vhost, 100)
    assert [got.timestamp for got in live.got] == [START + 100]
    assert stream.published == 1
    kept = vhost.retained.get(b"k")
    assert kept is not None
    assert kept.record() == live.got[0].record()


def test_its_life_begins_when_it_is_routed(vhost: VirtualHost) -> None:
    queue = bound(vhost, message_ttl=80)
    vhost.delays.add(delayed(vhost, b"own", 100, lifetime=60), [])
    vhost.delays.add(delayed(vhost, b"queue", 100), [])
    pass_time(vhost, 100)
    assert len(queue) == 2
    pass_time(vhost, 59)
    assert len(queue) == 2
    pass_time(vhost, 1)
    assert (len(queue), queue.given_up.expired) == (1, 1)
    pass_time(vhost, 20)
    assert (len(queue), queue.given_up.expired) == (0, 2)


def test_further_routing_keys_count_and_each_queue_gets_it_once(vhost: VirtualHost) -> None:
    both, other = bound(vhost, "both", b"#"), bound(vhost, "other", b"copy")
    vhost.delays.add(delayed(vhost), [b"copy"])
    pass_time(vhost, 100)
    assert (drain(both), drain(other)) == ([b"m"], [b"m"])


def test_without_its_exchange_it_is_dropped(vhost: VirtualHost) -> None:
    vhost.declare_exchange("x", "fanout")
    vhost.delays.add(delayed(vhost, exchange="x"), [])
    vhost.delete_exchange("x")
    pass_time(vhost, 100)
    assert len(vhost.delays) == 0


def test_a_full_queue_gets_it_later_and_the_others_get_it_once(vhost: VirtualHost) -> None:
    free = bound(vhost, "free")
    full = bound(vhost, "full", max_length=0, overflow="reject-publish")
    vhost.delays.add(delayed(vhost), [])
    pass_time(vhost, 100)
    assert (drain(free), drain(full)) == ([b"m"], [])
    assert len(vhost.delays) == 1
    pass_time(vhost, trivium.vhost.delays.FULL_DELAY)
    vhost.set_policy(Policy("p", "full", {"max-length": 1}))
    vhost.delete_queue(full)
    wide = bound(vhost, "full", max_length=5, overflow="reject-publish")
    assert drain(free) == []
    pass_time(vhost, trivium.vhost.delays.FULL_DELAY)
    # The one that was full is gone; another of its name is none of those that are left.
    assert (drain(free), drain(wide), len(vhost.delays)) == ([], [], 0)


def test_a_queue_that_has_room_again_gets_what_it_refused(vhost: VirtualHost) -> None:
    full = bound(vhost, "full", max_length=1, overflow="reject-publish")
    full.put(message(b"first"), b"")
    vhost.delays.add(delayed(vhost), [])
    pass_time(vhost, 100)
    assert drain(full) == [b"first"]
    pass_time(vhost, trivium.vhost.delays.FULL_DELAY)
    assert drain(full) == [b"m"]
    assert len(vhost.delays) == 0


def test_many_of_one_time_do_not_come_in_one_turn(vhost: VirtualHost) -> None:
    queue = bound(vhost)
    for number in range(trivium.vhost.delays.BURST + 3):
        vhost.delays.add(delayed(vhost, b"%d" % number), [])
    pass_time(vhost, 100)
    assert len(queue) == trivium.vhost.delays.BURST
    pass_time(vhost, 1)
    assert drain(queue) == [b"%d" % number for number in range(trivium.vhost.delays.BURST + 3)]


def test_many_deliveries_of_few_messages_do_not_come_in_one_turn(vhost: VirtualHost) -> None:
    queues = [bound(vhost, f"q{number}") for number in range(trivium.vhost.delays.BURST // 4)]
    for _ in range(10):
        vhost.delays.add(delayed(vhost), [])
    lengths = []
    for _ in range(3):
        pass_time(vhost, 100)
        lengths.append({len(queue) for queue in queues})
    assert lengths == [{4}, {8}, {10}]


def test_many_costly_routes_are_not_found_in_one_turn(vhost: VirtualHost) -> None:
    queue = bound(vhost)
    bind_many(vhost, queue)
    for number in range(20):
        vhost.delays.add(delayed(vhost, key=f"{LONG_KEY}.{number}".encode()), [])
    pass_time(vhost, 100)
    assert 0 < len(vhost.delays) < 20


def test_what_too_many_bindings_match_by_then_is_lost_with_a_line(
    vhost: VirtualHost, caplog: pytest.LogCaptureFixture
) -> None:
    queue = bound(vhost, key=b"#")
    for _ in range(3):
        vhost.delays.add(delayed(vhost, key=REFUSED_KEY.encode()), [])
    bind_too_many(vhost, queue, "amq.topic")
    pass_time(vhost, 100)
    pass_time(vhost, 100)
    pass_time(vhost, 100)
    assert (len(queue), len(vhost.delays)) == (0, 0)
    (line,) = caplog.messages
    assert line.startswith("a delayed message of exchange 'amq.topic' is lost: too many bindings")


def test_it_is_durable_with_its_write_batch_and_survives_a_crash_once() -> None:
    host = Host()
    vhost = open_vhost(host.storage)
    bound(vhost)
    assert vhost.delays.add(delayed(vhost, b"kept", HOUR), []) == host.storage.write_batch
    assert vhost.delays.add(delayed(vhost, b"gone", HOUR, mode=0), []) == ACCEPTED
    broker_of(vhost).end_turn()
    host.commit()

    host = Host(host.disk.power_cut(None))
    vhost = open_vhost(host.storage)
    assert len(vhost.delays) == 1
    broker_of(vhost).now_ms += HOUR - 1000
    broker_of(vhost).end_turn()
    assert len(vhost.queues["q"]) == 0
    pass_time(vhost, 2000)
    assert len(vhost.queues["q"]) == 1
    host.commit()

    vhost = open_vhost(Host(host.disk.power_cut(None)).storage)
    pass_time(vhost, 2 * HOUR)
    assert drain(vhost.queues["q"]) == [b"kept"]
    assert len(vhost.delays) == 0


def test_a_clean_stop_does_not_route_half_of_it() -> None:
    host = Host(checkpoint_size=1, memory_size=0)
    vhost = open_vhost(host.storage)
    bound(vhost)
    vhost.delays.add(delayed(vhost, b"1"), [])
    for _ in range(3):
        broker_of(vhost).end_turn()
        host.commit()
    host = Host(host.disk.copy(), seed=1)
    again = open_vhost(host.storage)
    broker_of(again).now_ms = broker_of(vhost).now_ms
    pass_time(again, 100)
    # It is due and being read back, and no turn follows.
    host.storage.close()
    host = Host(host.disk.copy(), seed=2)
    vhost = open_vhost(host.storage)
    found: list[bytes] = []
    for _ in range(9):
        pass_time(vhost, HOUR)
        host.step()
        found += drain(vhost.queues["q"])
    assert found == [b"1"]


def test_one_behind_others_that_are_read_back_comes_once() -> None:
    host = Host(checkpoint_size=1, memory_size=0)
    vhost = open_vhost(host.storage)
    bound(vhost)
    vhost.delays.add(delayed(vhost, b"1"), [])
    for _ in range(3):
        broker_of(vhost).end_turn()
        host.commit()
    host = Host(host.disk.copy(), seed=1)
    again = open_vhost(host.storage)
    broker_of(again).now_ms = broker_of(vhost).now_ms
    # The first one is not in memory yet.
    again.delays.add(delayed(again, b"2"), [])
    for _ in range(5):
        broker_of(again).end_turn()
        host.step()
    assert drain(again.queues["q"]) == []
    pass_time(again, 100)
    assert drain(again.queues["q"]) == [b"1", b"2"]
    assert len(again.delays) == 0


def test_it_is_in_its_queue_or_still_delayed_whenever_the_power_fails() -> None:
    host = Host()
    vhost = open_vhost(host.storage)
    bound(vhost)
    vhost.delays.add(delayed(vhost, b"m", HOUR), [])
    broker_of(vhost).end_turn()
    host.commit()
    at = broker_of(vhost).now_ms + HOUR
    start, done = host.disk.copy(), len(host.disk.operations)
    broker_of(vhost).now_ms = at
    broker_of(vhost).end_turn()
    host.commit()
    for count in range(len(host.disk.operations) - done + 1):
        disk = start.after(host.disk.operations[done : done + count])
        again = open_vhost(Host(disk.power_cut(None)).storage)
        broker_of(again).now_ms = at
        broker_of(again).end_turn()
        assert drain(again.queues["q"]) == [b"m"], count


# The exchange type of RabbitMQ's plugin


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_a_delayed_exchange_routes_like_the_type_that_it_names(kind: str) -> None:
    vhost = open_vhost()
    arguments: dict[str, HeaderValue] = {"x-delayed-type": kind}
    exchange = vhost.declare_exchange("x", "x-delayed-message", True, arguments=arguments)
    queue = vhost.declare_queue("q")
    vhost.bind(exchange, Binding(queue, b"#" if kind == "topic" else b"k"))
    sent = delayed(vhost)
    found = vhost.route(exchange, b"k").resolve(sent).destinations
    assert found == [queue]
    assert vhost.declare_exchange("x", "x-delayed-message", True, arguments=arguments) is exchange
    assert exchange.routes_by_key == (kind != "headers")


def test_a_delayed_exchange_comes_back() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    vhost.declare_exchange("x", "x-delayed-message", True, arguments={"x-delayed-type": "topic"})
    again = open_vhost(storage).exchange("x")
    assert (again.kind, again.arguments) == ("x-delayed-message", {"x-delayed-type": "topic"})


@pytest.mark.parametrize("kind", [None, "", "cats", 1, "x-delayed-message"])
def test_a_delayed_exchange_of_no_type_is_refused(kind: HeaderValue) -> None:
    with pytest.raises(PreconditionFailed, match="x-delayed-type"):
        open_vhost().declare_exchange("x", "x-delayed-message", arguments={"x-delayed-type": kind})


def test_what_a_full_queue_passes_on_is_not_offered_again(vhost: VirtualHost) -> None:
    vhost.declare_queue("dead")
    bound(
        vhost,
        max_length=0,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    vhost.delays.add(delayed(vhost, b"m"), [])
    pass_time(vhost, 100)
    for _ in range(3):
        pass_time(vhost, trivium.vhost.delays.FULL_DELAY)
    assert drain(vhost.queues["dead"]) == [b"m"]
    assert len(vhost.delays) == 0

"""The way of dead letters: where it ends, how much of it a turn does, what a crash leaves."""

from __future__ import annotations

from typing import Any, Final

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core import RecordingConsumer, broker_of, drain, open_vhost
from tests.support.simulated import Host
from tests.support.storages import BehindStorage
from trivium.errors import PreconditionFailed
from trivium.messages.message import (
    AT_LEAST_ONCE,
    Address,
    HeaderValue,
    Message,
    Properties,
    PropertyCodec,
    decode_record,
    register_codec,
)
from trivium.queues.dead_letters import (
    BEHIND_DELAY,
    COUNTED_BYTES,
    MAX_DEATHS,
    MAX_PER_TURN,
    RETRY_DELAY,
)
from trivium.queues.given_up import MAX_LEAVING
from trivium.queues.namespace import QueueNamespace
from trivium.queues.queue import Queue
from trivium.routing.exchanges import REJECTED, Binding
from trivium.storage.base import Storage
from trivium.vhost.policies import Policy
from trivium.vhost.virtual_host import VirtualHost

#: A protocol whose properties are a packed map of headers.
HEADERS: Final = 205
#: Turns after which a chain of dead letters must have ended in these tests.
MANY: Final = 1000


class _Headers(PropertyCodec):
    def decode(self, header: bytes) -> Properties:
        return Properties(headers=list(msgpack.unpackb(header).items()) if header else [])


register_codec(HEADERS, _Headers())


def message(vhost: QueueNamespace, payload: bytes = b"m", **headers: HeaderValue) -> Message:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Message(
        HEADERS,
        Address("", b"key"),
        msgpack.packb(named) if named else b"",
        payload,
        AT_LEAST_ONCE,
        True,
        broker_of(vhost).now_ms,
    )


def open_at(storage: Storage | None = None) -> VirtualHost:
    vhost = open_vhost(storage)
    broker_of(vhost).end_turn()
    return vhost


def declare(vhost: VirtualHost, name: str, to: str | None = None, **more: HeaderValue) -> Queue:
    """A queue whose dead letters go to the queue ``to``."""
    arguments: dict[str, HeaderValue] = {f"x-{k.replace('_', '-')}": v for k, v in more.items()}
    if to is not None:
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
    return vhost.declare_queue(name, durable=True, arguments=arguments)


def steps(vhost: VirtualHost) -> int:
    """Messages that queues have taken, in all."""
    return sum(queue.counters.published for queue in vhost.queues.values())


def is_busy(vhost: VirtualHost) -> bool:
    at = broker_of(vhost).next_at()
    return 0 < at <= broker_of(vhost).elapsed_ms


def finish(vhost: VirtualHost) -> int:
    """End turns until nothing is left to do now; how many."""
    for turns in range(1, MANY):
        broker_of(vhost).end_turn()
        if not is_busy(vhost):
            return turns
    raise AssertionError("it goes round for ever")


def give(queue: Queue, count: int, **headers: HeaderValue) -> None:
    for number in range(count):
        queue.put(message(queue.vhost, b"%d" % number, **headers), b"")


def reject_all(queue: Queue) -> int:
    count = 0
    while (entry := queue.get()) is not None:
        queue.reject(entry)
        count += 1
    return count


def cycles(vhost: VirtualHost) -> int:
    return broker_of(vhost).dead_letters.lost.counts["cycle"]


# Cycles


FORGED: Final[list[Any]] = [
    [],
    [{"reason": "rejected"}],
    [{"reason": "rejected", "queue": "a"}],
    [{"reason": "maxlen", "queue": "a", "count": 7}, {"reason": "rejected", "queue": "b"}],
    [{"reason": "rejected", "queue": name, "count": -1} for name in "ab"] * 40,
    ["junk", 7, None, {}],
    "junk",
]


@pytest.mark.parametrize("deaths", FORGED)
def test_overflow_into_the_queue_itself_ends_whatever_the_publisher_wrote(deaths: object) -> None:
    vhost = open_at()
    queue = declare(vhost, "a", "a", max_length=1)
    give(queue, 2, x_death=deaths)
    finish(vhost)
    assert (len(queue), queue.counters.published, cycles(vhost)) == (1, 2, 1)


@pytest.mark.parametrize("deaths", FORGED)
def test_two_full_queues_that_point_at_each_other_end(deaths: object) -> None:
    vhost = open_at()
    one = declare(vhost, "a", "b", max_length=1)
    two = declare(vhost, "b", "a", max_length=1)
    give(one, 3, x_death=deaths)
    finish(vhost)
    assert (len(one), len(two)) == (1, 1)
    assert cycles(vhost) == 1


def test_overflow_behind_a_rejection_ends() -> None:
    vhost = open_at()
    queue = declare(vhost, "a", "a", max_length=1)
    held = []
    for _ in range(2):
        give(queue, 1)
        held.append(queue.get())
    for entry in held:
        assert entry is not None
        queue.reject(entry)
    finish(vhost)
    assert (len(queue), cycles(vhost)) == (1, 1)


def test_consumers_that_reject_again_and_again_go_on() -> None:
    vhost = open_at()
    queue = declare(vhost, "a", "b")
    other = declare(vhost, "b", "a", message_ttl=0)
    give(queue, 1)
    for count in range(1, 10):
        assert reject_all(queue) == 1
        finish(vhost)
        assert len(queue) == 1
        assert (other.counters.published, cycles(vhost)) == (count, 0)


def test_a_queue_that_it_only_passed_before_a_client_had_it_is_no_cycle() -> None:
    vhost = open_at()
    declare(vhost, "waits", "work", message_ttl=0)
    work = declare(vhost, "work", "late", message_ttl=1000)
    # It expired in "work" once, and somebody sends it round again.
    deaths = [{"queue": "work", "reason": "expired", "count": 1}]
    give(vhost.queues["waits"], 1, x_death=deaths)
    finish(vhost)
    assert (len(work), cycles(vhost)) == (1, 0)


def test_only_the_queue_that_it_left_is_spared_others_get_it() -> None:
    vhost = open_at()
    arguments: dict[str, HeaderValue] = {"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 0}
    queue = vhost.declare_queue("a", arguments=arguments)
    other = declare(vhost, "b")
    for one in (queue, other):
        vhost.bind(vhost.exchanges["amq.fanout"], Binding(one, b""))
    give(queue, 1)
    finish(vhost)
    assert (len(queue), len(other), cycles(vhost)) == (0, 1, 1)


def test_a_loop_of_more_queues_than_the_history_has_entries_ends() -> None:
    vhost = open_at()
    count = MAX_DEATHS + 6
    for number in range(count):
        declare(vhost, f"q{number}", f"q{(number + 1) % count}", message_ttl=0)
    give(vhost.queues["q0"], 1)
    finish(vhost)
    assert (steps(vhost), cycles(vhost)) == (MAX_DEATHS, 1)


def test_a_published_history_of_any_length_does_not_end_the_way() -> None:
    vhost = open_at()
    deaths = [{"queue": f"q{n}", "reason": "expired", "count": 1} for n in range(3 * MAX_DEATHS)]
    declare(vhost, "a", "b", message_ttl=0)
    declare(vhost, "b", "c", message_ttl=0)
    last = declare(vhost, "c")
    give(vhost.queues["a"], 1, x_death=deaths)
    finish(vhost)
    assert (len(last), cycles(vhost)) == (1, 0)


def test_the_way_since_a_client_had_it_survives_a_restart() -> None:
    vhost = open_at()
    sent = message(vhost)
    sent.hops = 3
    assert decode_record(sent.record()).hops == 3


_DEATH: Final = st.one_of(
    st.sampled_from(["junk", 1, None]),
    st.fixed_dictionaries(
        {},
        optional={
            "queue": st.sampled_from(["q0", "q1", "q2", "q3", "else", 5]),
            "reason": st.sampled_from(["rejected", "expired", "maxlen", "delivery_limit", 5]),
            "count": st.sampled_from([1, -1, "1", 1 << 62]),
        },
    ),
)
_QUEUE: Final = st.fixed_dictionaries(
    {"to": st.sampled_from(["q0", "q1", "q2", "q3", "nowhere", "*"])},
    optional={
        "max_length": st.integers(0, 2),
        "message_ttl": st.just(0),
        "max_priority": st.just(2),
        "overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
    },
)


@settings(max_examples=300)
@given(
    queues=st.lists(_QUEUE, min_size=4, max_size=4),
    publishes=st.lists(
        st.tuples(st.integers(0, 3), st.lists(_DEATH, max_size=3)), min_size=1, max_size=12
    ),
)
def test_any_topology_and_history_ends_in_as_many_steps_as_there_are_ways(
    queues: list[dict[str, Any]], publishes: list[tuple[int, list[Any]]]
) -> None:
    vhost = open_at()
    fanout = vhost.exchanges["amq.fanout"]
    for number, wanted in enumerate(queues):
        arguments: dict[str, HeaderValue] = {
            f"x-{key.replace('_', '-')}": value for key, value in wanted.items() if key != "to"
        }
        if wanted["to"] == "*":
            arguments["x-dead-letter-exchange"] = "amq.fanout"
        else:
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wanted["to"]}
        queue = vhost.declare_queue(f"q{number}", durable=True, arguments=arguments)
        vhost.bind(fanout, Binding(queue, b""))
    refused = 0
    for at, deaths in publishes:
        sent = message(vhost, x_death=deaths)
        refused += vhost.queues[f"q{at}"].put(sent, b"") == REJECTED
        broker_of(vhost).end_turn()
    finish(vhost)
    # The ways through four queues that come through none twice: 1 + 3 + 3 * 2 + 3 * 2 * 1.
    assert steps(vhost) <= 16 * len(publishes)
    for queue in vhost.queues.values():
        limit = queue.settings.max_length
        assert limit < 0 or len(queue) <= limit
        assert queue.unsettled == 0
    assert len(publishes) - refused >= 0


# Turns


def test_a_turn_publishes_so_many_and_the_others_wait_in_their_queue() -> None:
    vhost = open_at()
    queue = declare(vhost, "a", "b")
    other = declare(vhost, "b")
    give(queue, 3 * MAX_PER_TURN)
    assert reject_all(queue) == MAX_LEAVING
    # No more is handed out while so many are on their way, which they soon have been.
    assert (queue.get(), queue.ready.is_loading) == (None, True)
    assert queue.unsettled == MAX_LEAVING
    broker_of(vhost).end_turn()
    assert len(other) <= MAX_PER_TURN
    finish(vhost)
    assert (len(other), queue.unsettled) == (MAX_LEAVING, 0)
    assert queue.get() is not None


def test_a_turn_does_a_bounded_part_of_a_long_chain() -> None:
    vhost = open_at()
    first = declare(vhost, "a", "b", message_ttl=10)
    declare(vhost, "b", "c", max_length=0)
    declare(vhost, "c", "d", max_length=0)
    last = declare(vhost, "d")
    give(first, 2 * MAX_PER_TURN)
    broker_of(vhost).now_ms += 10
    turns = 0
    while len(last) < 2 * MAX_PER_TURN:
        before = steps(vhost)
        broker_of(vhost).end_turn()
        assert steps(vhost) - before <= MAX_PER_TURN
        turns += 1
    assert turns >= 6
    assert drain(last) == [b"%d" % number for number in range(2 * MAX_PER_TURN)]
    assert [len(queue) for queue in vhost.queues.values()] == [0, 0, 0, 0]


def fan_out(vhost: VirtualHost, names: str) -> None:
    """Durable queues for one message each, which give what is too much to all of them."""
    for name in names:
        arguments: dict[str, HeaderValue] = {
            "x-dead-letter-exchange": "amq.fanout",
            "x-max-length": 1,
        }
        queue = vhost.declare_queue(name, durable=True, arguments=arguments)
        vhost.bind(vhost.exchanges["amq.fanout"], Binding(queue, b""))


def test_large_messages_count_for_many_in_a_turn() -> None:
    vhost = open_at()
    queue = declare(vhost, "a", "b")
    other = declare(vhost, "b")
    for _ in range(100):
        queue.put(message(vhost, bytes(100 * COUNTED_BYTES)), b"")
    reject_all(queue)
    broker_of(vhost).end_turn()
    assert 0 < len(other) <= MAX_PER_TURN // 100 + 1
    finish(vhost)
    assert len(other) == 100


def test_destinations_that_do_not_get_it_count_too() -> None:
    vhost = open_at()
    fan_out(vhost, "abcdef")
    for queue in vhost.queues.values():
        give(queue, 2)
    turns = 0
    while not turns or is_busy(vhost):
        before = steps(vhost) + cycles(vhost)
        broker_of(vhost).end_turn()
        assert steps(vhost) + cycles(vhost) - before <= MAX_PER_TURN + 6
        turns += 1
    assert turns > 2


def test_no_more_is_published_while_too_much_waits_for_the_disk() -> None:
    storage = BehindStorage()
    vhost = open_at(storage)
    fan_out(vhost, "abcdef")
    give(vhost.queues["a"], 1)
    broker_of(vhost).end_turn()
    storage.is_behind = True
    give(vhost.queues["a"], 1)
    taken = steps(vhost)
    for _ in range(5):
        broker_of(vhost).end_turn()
        # It looks again in a moment, not at once.
        assert not is_busy(vhost)
        broker_of(vhost).now_ms += BEHIND_DELAY
    assert steps(vhost) == taken
    assert vhost.queues["a"].unsettled == 1
    storage.is_behind = False
    finish(vhost)
    broker_of(vhost).now_ms += BEHIND_DELAY
    finish(vhost)
    assert steps(vhost) > taken
    assert [queue.unsettled for queue in vhost.queues.values()] == [0] * 6


def test_forks_go_one_way_after_the_other_so_that_few_wait() -> None:
    vhost = open_at()
    names = [f"q{number}" for number in range(7)]
    fanout = vhost.exchanges["amq.fanout"]
    for name in names:
        arguments: dict[str, HeaderValue] = {
            "x-dead-letter-exchange": "amq.fanout",
            "x-max-length": 1,
        }
        queue = vhost.declare_queue(name, arguments=arguments)
        vhost.bind(fanout, Binding(queue, b""))
    for name in names:
        give(vhost.queues[name], 2)
    most = 0
    while not most or is_busy(vhost):
        broker_of(vhost).end_turn()
        most = max(most, sum(queue.unsettled for queue in vhost.queues.values()))
    # Beside one path of 7 queues, each of which has at most 6 others.
    assert most <= 7 + 7 * 6
    assert [len(queue) for queue in vhost.queues.values()] == [1] * 7


# Crashes


def everything(vhost: VirtualHost) -> list[bytes]:
    finish(vhost)
    return sorted(p for queue in vhost.queues.values() for p in drain(queue))


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 5, 8])
def test_what_waits_for_a_later_turn_is_in_one_queue_after_a_crash(turns: int) -> None:
    host = Host()
    vhost = open_at(host.storage)
    queue = declare(vhost, "a", "b", message_ttl=1000)
    declare(vhost, "b", "c", max_length=0)
    declare(vhost, "c")
    give(queue, 2 * MAX_PER_TURN)
    broker_of(vhost).end_turn()
    host.commit()
    broker_of(vhost).now_ms += 2000
    for _ in range(turns):
        broker_of(vhost).end_turn()
        host.commit()
    host = Host(host.disk.power_cut(None))
    vhost = open_vhost(host.storage)
    broker_of(vhost).now_ms += 3000
    expected = sorted(b"%d" % number for number in range(2 * MAX_PER_TURN))
    assert everything(vhost) == expected


def test_what_was_rejected_comes_to_no_consumer_after_a_crash_though_it_has_not_left() -> None:
    host = Host()
    vhost = open_at(host.storage)
    queue = declare(vhost, "a", "b")
    declare(vhost, "b")
    count = MAX_PER_TURN + 500
    give(queue, count)
    entries = [queue.get() for _ in range(count)]
    for entry in entries:
        assert entry is not None
        queue.reject(entry)
    broker_of(vhost).end_turn()
    host.commit()
    assert len(vhost.queues["b"]) == MAX_PER_TURN
    host = Host(host.disk.power_cut(None))
    vhost = open_vhost(host.storage)
    queue = vhost.queues["a"]
    finish(vhost)
    assert (len(queue), queue.unsettled) == (0, 0)
    assert len(drain(vhost.queues["b"])) == count
    assert len(host.storage.table("returns//")) == 0


# At least once


def keeper(vhost: VirtualHost, to: str = "b", **more: HeaderValue) -> Queue:
    return declare(
        vhost, "a", to, queue_type="quorum", dead_letter_strategy="at-least-once", **more
    )


def pass_time(vhost: VirtualHost, milliseconds: int = RETRY_DELAY) -> None:
    broker_of(vhost).now_ms += milliseconds
    broker_of(vhost).end_turn()


def lost(vhost: VirtualHost) -> int:
    return sum(broker_of(vhost).dead_letters.lost.counts.values())


def test_at_least_once_waits_for_a_full_queue() -> None:
    vhost = open_at()
    queue = keeper(vhost)
    full = declare(vhost, "b", max_length=1, overflow="reject-publish")
    give(queue, 3)
    reject_all(queue)
    for count in range(3):
        for _ in range(3):
            pass_time(vhost)
        assert (queue.unsettled, len(full)) == (2 - count, 1)
        assert drain(full) == [b"%d" % count]
    assert lost(vhost) == 0


@pytest.mark.parametrize("why", ["exchange", "queue", "cycle"])
def test_at_least_once_waits_for_an_exchange_a_binding_and_the_end_of_a_cycle(why: str) -> None:
    vhost = open_at()
    arguments: dict[str, HeaderValue] = {
        "x-dead-letter-exchange": "x" if why == "exchange" else "amq.fanout",
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-message-ttl": 0,
    }
    queue = vhost.declare_queue("a", durable=True, arguments=arguments)
    other = declare(vhost, "b")
    if why == "cycle":
        vhost.bind(vhost.exchanges["amq.fanout"], Binding(queue, b""))
    give(queue, 1)
    for _ in range(3):
        pass_time(vhost)
    assert (queue.unsettled, lost(vhost)) == (1, 0)
    exchange = vhost.exchanges["amq.fanout"]
    if why == "exchange":
        exchange = vhost.declare_exchange("x", "fanout")
    vhost.bind(exchange, Binding(other, b""))
    pass_time(vhost)
    assert (queue.unsettled, len(queue), drain(other)) == (0, 0, [b"0"])


def test_at_least_once_gives_nobody_a_second_one_while_others_are_full() -> None:
    vhost = open_at()
    arguments: dict[str, HeaderValue] = {
        "x-dead-letter-exchange": "amq.fanout",
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-message-ttl": 0,
    }
    queue = vhost.declare_queue("a", durable=True, arguments=arguments)
    other = declare(vhost, "b")
    full = declare(vhost, "c", max_length=1, overflow="reject-publish")
    for one in (other, full):
        vhost.bind(vhost.exchanges["amq.fanout"], Binding(one, b""))
    give(full, 1)
    give(queue, 1)
    for _ in range(3):
        pass_time(vhost)
    assert (queue.unsettled, len(other)) == (1, 1)
    drain(full)
    pass_time(vhost)
    assert (queue.unsettled, len(other), len(full)) == (0, 1, 1)


@pytest.mark.parametrize("gone", ["exchange", "binding"])
def test_at_least_once_waits_for_nobody_who_is_not_bound_any_more(gone: str) -> None:
    vhost = open_at()
    exchange = vhost.declare_exchange("x", "fanout")
    arguments: dict[str, HeaderValue] = {
        "x-dead-letter-exchange": "x",
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-message-ttl": 0,
    }
    queue = vhost.declare_queue("a", durable=True, arguments=arguments)
    other = declare(vhost, "b")
    full = declare(vhost, "c", max_length=0, overflow="reject-publish")
    for one in (other, full):
        vhost.bind(exchange, Binding(one, b""))
    give(queue, 1)
    pass_time(vhost)
    assert (queue.unsettled, len(other)) == (1, 1)
    if gone == "exchange":
        vhost.delete_exchange("x")
    else:
        vhost.unbind(exchange, Binding(full, b""))
    pass_time(vhost)
    assert (queue.unsettled, len(other), lost(vhost)) == (0, 1, 0)


def test_at_least_once_is_content_with_what_a_full_queue_passes_on_to_somebody() -> None:
    vhost = open_at()
    queue = keeper(vhost, message_ttl=0)
    declare(vhost, "b", "c", max_length=0, overflow="reject-publish-dlx")
    give(queue, 1)
    for _ in range(3):
        pass_time(vhost)
    assert (queue.unsettled, lost(vhost)) == (1, 0)
    last = declare(vhost, "c")
    for _ in range(3):
        pass_time(vhost)
    assert (queue.unsettled, drain(last)) == (0, [b"0"])


def test_at_least_once_keeps_so_many_and_then_stops_its_queue() -> None:
    vhost = open_at()
    queue = keeper(vhost)
    give(queue, MAX_LEAVING + 5)
    assert reject_all(queue) == MAX_LEAVING
    for _ in range(3):
        pass_time(vhost)
    assert (queue.get(), queue.unsettled) == (None, MAX_LEAVING)
    # That may last, so nobody is to wait for it.
    assert not queue.ready.is_loading
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    assert consumer.payloads == []
    other = declare(vhost, "b")
    pass_time(vhost)
    finish(vhost)
    assert len(other) == MAX_LEAVING
    assert len(consumer.payloads) == 5


@pytest.mark.parametrize("reason", ["rejected", "expired", "delivery_limit"])
def test_at_least_once_survives_crashes_until_somebody_has_it(reason: str) -> None:
    host = Host()
    vhost = open_at(host.storage)
    start = broker_of(vhost).now_ms
    ttl: dict[str, HeaderValue] = {"message_ttl": 10} if reason == "expired" else {}
    queue = keeper(vhost, "b", delivery_limit=0, **ttl)
    give(queue, 3)
    if reason != "expired":
        for entry in [queue.get() for _ in range(3)]:
            assert entry is not None
            if reason == "rejected":
                queue.reject(entry)
            else:
                queue.requeue(entry)
    for round_ in range(3):
        pass_time(vhost)
        host.commit()
        host = Host(host.disk.power_cut(None), seed=round_)
        vhost = open_vhost(host.storage)
        broker_of(vhost).now_ms = start + 10 * RETRY_DELAY * (round_ + 1)
        finish(vhost)
        queue = vhost.queues["a"]
        assert (queue.get(), queue.unsettled) == (None, 3)
    other = declare(vhost, "b")
    pass_time(vhost)
    host.commit()
    assert (len(other), queue.unsettled) == (3, 0)
    vhost = open_vhost(Host(host.disk.power_cut(None)).storage)
    assert (len(vhost.queues["a"]), len(vhost.queues["b"])) == (0, 3)


def test_what_was_given_up_before_a_crash_leaves_nothing_where_its_exchange_is_gone() -> None:
    host = Host()
    vhost = open_at(host.storage)
    queue = declare(vhost, "a", queue_type="quorum")
    definition = {"dead-letter-exchange": "nowhere", "dead-letter-strategy": "at-least-once"}
    vhost.set_policy(Policy("p", ".*", definition))
    give(queue, 1)
    reject_all(queue)
    broker_of(vhost).end_turn()
    vhost.delete_policy("p")
    host.commit()
    assert len(host.storage.table("returns//")) == 1
    again = Host(host.disk.power_cut(None))
    queue = open_at(again.storage).queues["a"]
    assert (len(queue), queue.unsettled) == (0, 0)
    assert len(again.storage.table("returns//")) == 0


def test_a_queue_with_dead_letters_that_wait_is_not_empty() -> None:
    vhost = open_at()
    queue = keeper(vhost)
    give(queue, 1)
    reject_all(queue)
    pass_time(vhost)
    with pytest.raises(PreconditionFailed, match="not empty"):
        vhost.delete_queue(queue, if_empty=True)
    vhost.delete_queue(queue)
    # They are gone with it.
    other = declare(vhost, "b")
    pass_time(vhost)
    assert (is_busy(vhost), len(other), lost(vhost)) == (False, 0, 0)


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish-dlx"])
def test_at_least_once_is_refused_with_an_overflow_that_gives_up(overflow: str) -> None:
    vhost = open_at()
    with pytest.raises(PreconditionFailed, match="x-dead-letter-strategy"):
        keeper(vhost, overflow=overflow)
    with pytest.raises(PreconditionFailed, match="x-dead-letter-strategy"):
        declare(vhost, "a", "b", queue_type="quorum", dead_letter_strategy="sometimes")
    definition = {"dead-letter-strategy": "at-least-once", "overflow": overflow}
    with pytest.raises(PreconditionFailed, match="dead-letter-strategy"):
        Policy("p", ".*", definition)
    # The argument alone, then the policy: the strategy holds.
    queue = declare(vhost, "a", "b", max_length=1, overflow=overflow)
    vhost.set_policy(Policy("p", ".*", {"dead-letter-strategy": "at-least-once"}))
    give(queue, 1)
    assert queue.put(message(vhost), b"") == REJECTED
    assert drain(queue) == [b"0"]

"""What ends a message's stay in a queue other than a consumer, and where it goes then."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import trivium.queues.sub_queues
from tests.support.core import RecordingConsumer, broker_of, drain, message, open_vhost
from tests.support.metrics import metrics_text
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.errors import PreconditionFailed
from trivium.messages.message import EXACTLY_ONCE, HeaderValue, Message, decode_record
from trivium.queues.queue import Queue
from trivium.queues.ready import LoadWaiter
from trivium.queues.waiting import count_waiting
from trivium.routing.exchanges import ACCEPTED, REJECTED
from trivium.runtime.broker import MAX_GIVEN_UP
from trivium.vhost.policies import Policy
from trivium.vhost.queue_logs import queue_log_name
from trivium.vhost.virtual_host import VirtualHost

START = 1_700_000_000_000


@pytest.fixture
def vhost() -> VirtualHost:
    found = open_vhost()
    broker_of(found).now_ms = START
    broker_of(found).end_turn()
    return found


def declare(vhost: VirtualHost, name: str = "q", **arguments: HeaderValue) -> Queue:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return vhost.declare_queue(name, durable=True, arguments=named)


def put(queue: Queue, payload: bytes, **kwargs: int) -> int:
    sent = message(payload, b"key", mode=kwargs.pop("mode", 1), expires=kwargs.pop("expires", 0))
    sent.priority = kwargs.pop("priority", 0)
    sent.deliver_at = kwargs.pop("deliver_at", 0)
    sent.timestamp = broker_of(queue.vhost).now_ms
    return queue.put_special(sent, b"") if sent.deliver_at else queue.put(sent, b"")


def pass_time(vhost: VirtualHost, milliseconds: int) -> None:
    broker_of(vhost).now_ms += milliseconds
    broker_of(vhost).end_turn()


def dead(vhost: VirtualHost, name: str = "dead") -> list[Message]:
    found: list[Message] = []
    queue = vhost.queues[name]
    while (entry := queue.get()) is not None:
        found.append(entry.message)
        queue.settle(entry)
    return found


def deaths(sent: Message) -> list[tuple[object, object, object]]:
    found = sent.properties().header("x-death")
    assert isinstance(found, list)
    return [(death["queue"], death["reason"], death["count"]) for death in found]


# Time to live


def test_what_comes_back_when_its_time_is_up_expires(vhost: VirtualHost) -> None:
    vhost.declare_queue("dead")
    queue = declare(vhost, message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="dead")
    put(queue, b"1")
    entry = queue.get()
    assert entry is not None
    pass_time(vhost, 200)
    queue.requeue(entry)
    queue.dispatch()
    pass_time(vhost, 0)
    assert len(queue) == 0
    assert [deaths(sent) for sent in dead(vhost)] == [[("q", "expired", 1)]]


def test_what_comes_back_into_a_full_queue_is_dropped_from_its_head(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=2)
    held = []
    for number in range(4):
        put(queue, b"%d" % number)
        held.append(queue.get())
    for entry in held:
        assert entry is not None
        queue.requeue(entry)
    queue.dispatch()
    pass_time(vhost, 0)
    assert drain(queue) == [b"2", b"3"]


def test_limits_count_as_soon_as_what_came_back_is_there(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=1)
    put(queue, b"1")
    held = queue.get()
    assert held is not None
    put(queue, b"2")
    queue.requeue(held)
    queue.dispatch()
    assert drain(queue) == [b"2"]


def test_limits_count_for_what_was_held_when_it_is_released() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, max_length=2)
    consumer = RecordingConsumer(credit=1)
    queue.add_consumer(consumer)
    for number in range(10):
        put(queue, b"%d" % number, mode=EXACTLY_ONCE)
    broker_of(vhost).end_turn()
    assert len(queue) == 10
    storage.complete()
    # The consumer first, then the limit.
    assert (consumer.payloads, len(queue)) == ([b"0"], 2)
    assert drain(queue) == [b"8", b"9"]


def test_held_low_priorities_are_given_up_before_higher_ones() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, max_length=1, max_priority=1)
    put(queue, b"low", mode=EXACTLY_ONCE)
    put(queue, b"high", priority=1)
    broker_of(vhost).end_turn()
    storage.complete()
    assert drain(queue) == [b"high"]


def test_what_was_held_beyond_its_time_expires_when_it_is_released() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, message_ttl=10)
    put(queue, b"m", mode=EXACTLY_ONCE)
    pass_time(vhost, 10)
    assert len(queue) == 1
    storage.complete()
    assert (len(queue), queue.given_up.expired) == (0, 1)


def test_a_consumer_gets_what_comes_back_before_limits_do(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=1)
    consumer = RecordingConsumer()
    held = []
    for number in range(3):
        put(queue, b"%d" % number)
        held.append(queue.get())
    queue.add_consumer(consumer)
    for entry in held:
        assert entry is not None
        queue.requeue(entry)
    queue.dispatch()
    pass_time(vhost, 0)
    assert consumer.payloads == [b"0", b"1", b"2"]


def test_a_queue_with_messages_that_wait_is_not_empty(vhost: VirtualHost) -> None:
    queue = declare(vhost, retry_delay=1000)
    put(queue, b"1")
    entry = queue.get()
    assert entry is not None
    queue.requeue(entry)
    assert len(queue) == 0
    with pytest.raises(PreconditionFailed):
        vhost.delete_queue(queue, if_empty=True)
    pass_time(vhost, 1000)
    assert len(queue) == 1


def test_queue_ttl_expires_messages_when_their_time_has_come(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_ttl=100)
    put(queue, b"1")
    pass_time(vhost, 50)
    put(queue, b"2")
    pass_time(vhost, 49)
    assert len(queue) == 2
    pass_time(vhost, 1)
    assert (len(queue), queue.given_up.expired) == (1, 1)
    assert drain(queue) == [b"2"]


def test_the_shorter_of_message_and_queue_ttl_counts(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_ttl=100)
    put(queue, b"own", expires=START + 10)
    pass_time(vhost, 10)
    assert queue.given_up.expired == 1
    put(queue, b"queue", expires=START + 1000)
    pass_time(vhost, 100)
    assert queue.given_up.expired == 2


def test_ttl_zero_reaches_a_waiting_consumer_or_nobody(vhost: VirtualHost) -> None:
    queue = declare(vhost, message_ttl=0)
    put(queue, b"lost")
    broker_of(vhost).end_turn()
    assert queue.given_up.expired == 1
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    put(queue, b"seen")
    assert consumer.payloads == [b"seen"]


def test_an_unused_queue_expires(vhost: VirtualHost) -> None:
    queue = declare(vhost, expires=100)
    consumer = RecordingConsumer()
    pass_time(vhost, 60)
    queue.add_consumer(consumer)
    pass_time(vhost, 500)
    assert "q" in vhost.queues
    queue.remove_consumer(consumer)
    pass_time(vhost, 99)
    queue.get()
    pass_time(vhost, 99)
    assert "q" in vhost.queues
    pass_time(vhost, 1)
    assert "q" not in vhost.queues


# Length


def test_drop_head_gives_up_the_oldest(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=2)
    for number in range(4):
        assert put(queue, b"%d" % number) == ACCEPTED
    assert drain(queue) == [b"2", b"3"]


def test_length_counts_what_is_ready_only(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=1)
    put(queue, b"held")
    held = queue.get()
    assert held is not None
    put(queue, b"ready")
    assert len(queue) == 1
    queue.requeue(held)
    assert len(queue) == 2


def test_max_length_bytes_counts_payloads(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length_bytes=10)
    for body in (b"aaaa", b"bbbb", b"cccc"):
        put(queue, body)
    assert drain(queue) == [b"bbbb", b"cccc"]
    assert queue.ready.bytes == 0
    put(queue, b"x" * 11)
    assert drain(queue) == []


def test_reject_publish_refuses_the_newest(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=1, overflow="reject-publish")
    assert put(queue, b"1") == ACCEPTED
    assert put(queue, b"2") == REJECTED
    assert drain(queue) == [b"1"]


def test_reject_publish_dlx_also_dead_letters_it(vhost: VirtualHost) -> None:
    declare(vhost, "dead")
    queue = declare(
        vhost,
        max_length=1,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    put(queue, b"1")
    assert put(queue, b"2") == REJECTED
    broker_of(vhost).end_turn()
    assert [m.payload for m in dead(vhost)] == [b"2"]


# Priority


def test_higher_priorities_come_first_and_keep_their_order(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_priority=5)
    for body, priority in ((b"a0", 0), (b"b5", 5), (b"c9", 9), (b"d1", 1), (b"e0", 0)):
        put(queue, body, priority=priority)
    assert len(queue) == 5
    assert drain(queue) == [b"b5", b"c9", b"d1", b"a0", b"e0"]


def test_priorities_survive_a_restart() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage), max_priority=2)
    for priority in (0, 2, 1):
        put(queue, b"%d" % priority, priority=priority)
    assert drain(open_vhost(storage).queues["q"]) == [b"2", b"1", b"0"]


def on_disk_only(*priorities: int, **arguments: HeaderValue) -> tuple[Host, Queue]:
    """A queue whose messages so far are in segments and not in memory."""
    host = Host(checkpoint_size=1, memory_size=0)
    vhost = open_vhost(host.storage)
    for priority in priorities:
        put(declare(vhost, "q", **arguments), b"%d" % priority, priority=priority)
        broker_of(vhost).end_turn()
        host.commit()
    host = Host(host.disk.copy(), seed=1)
    return host, open_vhost(host.storage).queues["q"]


def load(host: Host) -> None:
    for _ in range(5):
        host.step()


def test_priorities_on_disk_are_not_overtaken() -> None:
    host, queue = on_disk_only(1, max_priority=1)
    put(queue, b"0", priority=0)
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    assert consumer.payloads == []
    load(host)
    assert consumer.payloads == [b"1", b"0"]


def test_drop_head_on_disk_spares_higher_priorities() -> None:
    host, queue = on_disk_only(0, max_priority=1, max_length=1)
    put(queue, b"1", priority=1)
    load(host)
    assert drain(queue) == [b"1"]


# Dead letters


def test_rejected_messages_go_to_the_dead_letter_exchange(vhost: VirtualHost) -> None:
    declare(vhost, "dead")
    queue = declare(vhost, dead_letter_exchange="", dead_letter_routing_key="dead")
    put(queue, b"m")
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)
    queue.reject(entry)
    broker_of(vhost).end_turn()
    (letter,) = dead(vhost)
    assert letter.payload == b"m"
    properties = letter.properties()
    assert properties.header("x-death") == [
        {
            "count": 1,
            "reason": "rejected",
            "queue": "q",
            "time": datetime.fromtimestamp(START // 1000, UTC),
            "exchange": "",
            "routing-keys": ["key"],
        }
    ]
    assert properties.header("x-first-death-reason") == "rejected"
    assert properties.header("x-last-death-queue") == "q"
    assert queue.unsettled == 0


def test_without_a_routing_key_the_message_keeps_its_own(vhost: VirtualHost) -> None:
    declare(vhost, "key")
    queue = declare(vhost, message_ttl=1, dead_letter_exchange="")
    put(queue, b"m")
    pass_time(vhost, 1)
    (letter,) = dead(vhost, "key")
    assert letter.address.key == b"key"
    assert deaths(letter) == [("q", "expired", 1)]


def test_a_dead_letter_does_not_expire_again_by_its_own_expiry(vhost: VirtualHost) -> None:
    declare(vhost, "dead")
    queue = declare(vhost, dead_letter_exchange="", dead_letter_routing_key="dead")
    put(queue, b"m", expires=START + 5)
    pass_time(vhost, 5)
    pass_time(vhost, 10_000)
    (letter,) = dead(vhost)
    assert (letter.expires, letter.properties().expiration) == (0, None)


def test_latest_death_comes_first_and_repeats_are_counted(vhost: VirtualHost) -> None:
    declare(vhost, "one", dead_letter_exchange="", dead_letter_routing_key="two")
    declare(vhost, "two", dead_letter_exchange="", dead_letter_routing_key="one")
    put(vhost.queues["one"], b"m")
    for name in ("one", "two", "one"):
        entry = vhost.queues[name].get()
        assert entry is not None
        vhost.queues[name].reject(entry)
        broker_of(vhost).end_turn()
    (letter,) = dead(vhost, "two")
    assert deaths(letter) == [("one", "rejected", 2), ("two", "rejected", 1)]


def test_a_cycle_without_rejection_is_cut(vhost: VirtualHost) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        declare(
            vhost,
            name,
            message_ttl=10,
            dead_letter_exchange="",
            dead_letter_routing_key=other,
        )
    put(vhost.queues["one"], b"m")
    for _ in range(3):
        pass_time(vhost, 10)
    assert (len(vhost.queues["one"]), len(vhost.queues["two"])) == (0, 0)
    assert broker_of(vhost).dead_letters.lost.counts["cycle"] == 1


def test_overflow_into_the_queue_itself_ends(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=1, dead_letter_exchange="", dead_letter_routing_key="q")
    put(queue, b"1")
    put(queue, b"2")
    broker_of(vhost).end_turn()
    assert len(queue) == 1


@pytest.mark.parametrize(
    ("exchange", "why"),
    [("", "refused"), ("amq.fanout", "unroutable"), ("nowhere", "no_exchange")],
)
def test_dead_letters_that_nobody_gets_are_counted_and_told_once_a_minute(
    vhost: VirtualHost, caplog: pytest.LogCaptureFixture, exchange: str, why: str
) -> None:
    full = declare(vhost, "full", max_length=1, overflow="reject-publish")
    assert put(full, b"0") == ACCEPTED
    queue = declare(
        vhost, message_ttl=0, dead_letter_exchange=exchange, dead_letter_routing_key="full"
    )
    for count in (1, 2):
        put(queue, b"1")
        broker_of(vhost).end_turn()
        assert f'dead_letters_lost_total{{reason="{why}"}} {count}\n' in metrics_text(
            broker_of(vhost)
        )
        assert [record.message for record in caplog.records] == [
            f"a dead letter is lost ({why}, queue '{'full' if why == 'refused' else 'q'}'); "
            "1 since the start"
        ]
    pass_time(vhost, 60_000)
    put(queue, b"1")
    broker_of(vhost).end_turn()
    assert len(caplog.records) == 2
    assert drain(full) == [b"0"]


def test_a_dead_letter_that_a_full_queue_passes_on_is_not_lost(vhost: VirtualHost) -> None:
    arguments = {"max_length": 0, "overflow": "reject-publish-dlx"}
    declare(vhost, "last")
    declare(vhost, "full", dead_letter_exchange="", dead_letter_routing_key="last", **arguments)
    queue = declare(vhost, message_ttl=0, dead_letter_exchange="", dead_letter_routing_key="full")
    put(queue, b"1")
    broker_of(vhost).end_turn()
    assert [letter.payload for letter in dead(vhost, "last")] == [b"1"]
    assert not any(broker_of(vhost).dead_letters.lost.counts.values())


def test_a_dead_letter_moves_in_one_write_batch() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    declare(vhost, "dead")
    queue = declare(vhost, dead_letter_exchange="", dead_letter_routing_key="dead")
    put(queue, b"m")
    broker_of(vhost).end_turn()
    entry = queue.get()
    assert entry is not None
    write_batch = storage.write_batch
    queue.reject(entry)
    assert len(storage.log(queue_log_name("/", "dead"))) == 0
    broker_of(vhost).end_turn()
    assert storage.write_batch == write_batch + 1
    assert (
        len(storage.log(queue_log_name("/", "q"))),
        len(storage.log(queue_log_name("/", "dead"))),
    ) == (0, 1)
    again = open_vhost(storage)
    (letter,) = dead(again)
    assert deaths(letter) == [("q", "rejected", 1)]


# Retry


def test_delivery_limit_counts_requeues(vhost: VirtualHost) -> None:
    declare(vhost, "dead")
    queue = declare(
        vhost, delivery_limit=2, dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    put(queue, b"m")
    for _ in range(3):
        entry = queue.get()
        assert entry is not None
        queue.requeue(entry)
    assert queue.get() is None
    broker_of(vhost).end_turn()
    (letter,) = dead(vhost)
    assert deaths(letter) == [("q", "delivery_limit", 1)]


def test_retry_waits_twice_as_long_each_time(vhost: VirtualHost) -> None:
    queue = declare(vhost, retry_delay=100, retry_delay_max=300)
    put(queue, b"m")
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    for delay in (100, 200, 300, 300):
        queue.requeue(consumer.entries.pop())
        queue.dispatch()
        assert count_waiting(queue) == 1
        pass_time(vhost, delay - 1)
        assert consumer.entries == []
        pass_time(vhost, 1)
        assert consumer.payloads == [b"m"]
    assert queue.unsettled == 1


# Delay


def test_a_delayed_message_comes_at_its_time(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    put(queue, b"later", deliver_at=START + 100)
    put(queue, b"sooner", deliver_at=START + 50)
    put(queue, b"now")
    assert drain(queue) == [b"now"]
    pass_time(vhost, 50)
    assert drain(queue) == [b"sooner"]
    pass_time(vhost, 50)
    assert drain(queue) == [b"later"]


def test_a_delayed_message_survives_a_restart_and_is_not_early() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    at = broker_of(vhost).now_ms + 3_600_000
    put(declare(vhost), b"later", deliver_at=at)
    again = open_vhost(storage)
    queue = again.queues["q"]
    assert queue.get() is None
    broker_of(again).now_ms = at
    broker_of(again).end_turn()
    assert drain(queue) == [b"later"]


def test_messages_behind_many_delayed_ones_are_found_after_a_restart() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost)
    for _ in range(3 * trivium.queues.sub_queues.REFILL):
        put(queue, b"later", deliver_at=broker_of(vhost).now_ms + 3_600_000)
    put(queue, b"now")
    again = open_vhost(storage)
    consumer = RecordingConsumer()
    again.queues["q"].add_consumer(consumer)
    assert consumer.payloads == [b"now"]


def test_bytes_of_recovered_messages_count_before_they_are_read() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage), max_length_bytes=10)
    put(queue, b"12345")
    vhost = open_vhost(storage)
    again = vhost.queues["q"]
    assert again.ready.bytes == vhost.queued_bytes == 5
    held = again.get()
    assert held is not None
    assert again.ready.bytes == vhost.queued_bytes == 0
    again.requeue(held)
    put(again, b"123456")
    assert drain(again) == [b"123456"]
    assert again.ready.bytes == vhost.queued_bytes == 0


def test_recovered_messages_beyond_the_limit_of_bytes_go_before_any_is_read() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage), max_length_bytes=10)
    put(queue, b"12345")
    put(queue, b"6789")
    again = open_vhost(storage).queues["q"]
    put(again, b"ab")
    assert drain(again) == [b"6789", b"ab"]


def test_bytes_of_recovered_messages_that_wait_do_not_count() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost)
    put(queue, b"later", deliver_at=broker_of(vhost).now_ms + 3_600_000)
    put(queue, b"now")
    again = open_vhost(storage)
    queue = again.queues["q"]
    assert queue.ready.bytes == 3
    assert drain(queue) == [b"now"]
    assert queue.ready.bytes == again.queued_bytes == 0


def test_purge_of_recovered_messages_leaves_no_bytes() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage), max_priority=2)
    put(queue, b"12345")
    put(queue, b"678", priority=2)
    vhost = open_vhost(storage)
    again = vhost.queues["q"]
    assert again.ready.bytes == vhost.queued_bytes == 8
    again.purge()
    assert again.ready.bytes == vhost.queued_bytes == 0
    assert drain(again) == []


def test_purge_takes_delayed_messages_too(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    put(queue, b"later", deliver_at=START + 100)
    assert queue.purge() == 1
    pass_time(vhost, 100)
    assert queue.get() is None
    assert queue.unsettled == 0


# Consumers and modes


def test_single_active_consumer_gets_everything_until_it_leaves(vhost: VirtualHost) -> None:
    queue = declare(vhost, single_active_consumer=True)
    first, second = RecordingConsumer(), RecordingConsumer()
    queue.add_consumer(first)
    queue.add_consumer(second)
    put(queue, b"1")
    put(queue, b"2")
    assert (first.payloads, second.payloads) == ([b"1", b"2"], [])
    queue.remove_consumer(first)
    put(queue, b"3")
    assert second.payloads == [b"3"]


def test_the_next_consumer_begins_with_what_comes_back_in_the_turn(vhost: VirtualHost) -> None:
    queue = declare(vhost, single_active_consumer=True)
    first, second = RecordingConsumer(credit=2), RecordingConsumer()
    queue.add_consumer(first)
    queue.add_consumer(second)
    for number in range(4):
        put(queue, b"%d" % number)
    queue.remove_consumer(first)
    for entry in first.entries:
        queue.requeue(entry)
    broker_of(vhost).end_turn()
    assert second.payloads == [b"0", b"1", b"2", b"3"]


def test_single_active_consumer_without_credit_blocks_the_others(vhost: VirtualHost) -> None:
    queue = declare(vhost, single_active_consumer=True)
    first, second = RecordingConsumer(credit=1), RecordingConsumer()
    queue.add_consumer(first)
    queue.add_consumer(second)
    put(queue, b"1")
    put(queue, b"2")
    assert (first.payloads, second.payloads) == ([b"1"], [])


def test_at_most_once_keeps_nothing_and_settles_on_delivery() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage), delivery="at-most-once")
    assert put(queue, b"m") == ACCEPTED
    assert len(storage.log(queue_log_name("/", "q"))) == 0
    entry = queue.get()
    assert entry is not None
    assert queue.unsettled == 0
    queue.requeue(entry)
    assert queue.get() is None


def test_exactly_once_holds_delivery_whatever_the_message_says() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, delivery="exactly-once")
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    put(queue, b"m")
    broker_of(vhost).end_turn()
    assert consumer.payloads == []
    storage.complete()
    assert consumer.payloads == [b"m"]


def test_record_keeps_delay_and_annotations() -> None:
    sent = message(b"payload", mode=EXACTLY_ONCE)
    sent.deliver_at = START
    sent.annotations = {"x-death": [{"time": datetime.fromtimestamp(0, UTC), "count": 1}]}
    got = decode_record(sent.record())
    assert (got.deliver_at, got.payload) == (START, b"payload")
    assert got.annotations == sent.annotations


def test_a_turn_gives_up_a_bounded_number_of_expired_messages() -> None:
    """However many expire at once, in however many queues."""
    vhost = open_vhost()
    broker = broker_of(vhost)
    queues = [vhost.declare_queue(f"q{number}") for number in range(3)]
    for queue in queues:
        for number in range(MAX_GIVEN_UP):
            queue.put(message(b"%d" % number, expires=broker.now_ms + 1000), b"")
    broker.now_ms += 1000
    for turn in range(1, 4):
        broker.end_turn()
        assert sum(queue.given_up.expired for queue in queues) == turn * MAX_GIVEN_UP
        assert turn == 3 or 0 < broker.next_at() <= broker.elapsed_ms
    assert [len(queue) for queue in queues] == [0, 0, 0]


def test_a_turn_drops_a_bounded_number_of_messages_for_a_new_limit() -> None:
    vhost = open_vhost()
    queue = vhost.declare_queue("q")
    for number in range(3 * MAX_GIVEN_UP):
        queue.put(message(b"%d" % number), b"")
    vhost.set_policy(Policy("short", "q", {"max-length": 5}))
    broker_of(vhost).end_turn()
    assert 2 * MAX_GIVEN_UP - 5 < len(queue) < 3 * MAX_GIVEN_UP
    # What comes meanwhile makes it no longer.
    before = len(queue)
    broker_of(vhost).may_give_up = 0
    for _ in range(100):
        queue.put(message(b"new"), b"")
    assert len(queue) == before
    for _ in range(3):
        broker_of(vhost).end_turn()
    assert drain(queue) == [b"new"] * 5


def test_getting_from_behind_many_expired_messages_takes_several_turns() -> None:
    class Waiter(LoadWaiter):
        calls = 0

        def loaded(self) -> None:
            self.calls += 1

    vhost = open_vhost()
    broker = broker_of(vhost)
    queue = vhost.declare_queue("q")
    for _ in range(2 * MAX_GIVEN_UP):
        queue.put(message(expires=broker.now_ms + 1000), b"")
    queue.put(message(b"last"), b"")
    broker.now_ms += 1000
    assert queue.get() is None
    assert queue.ready.is_loading
    waiter = Waiter()
    queue.ready.await_load(waiter)
    broker.end_turn()
    broker.end_turn()
    assert waiter.calls == 1
    found = queue.get()
    assert found is not None
    assert found.message.payload == b"last"
    assert queue.given_up.expired == 2 * MAX_GIVEN_UP


def test_a_consumer_gets_what_is_behind_many_expired_messages() -> None:
    vhost = open_vhost()
    broker = broker_of(vhost)
    queue = vhost.declare_queue("q")
    for _ in range(2 * MAX_GIVEN_UP):
        queue.put(message(expires=broker.now_ms + 1000), b"")
    queue.put(message(b"last"), b"")
    broker.now_ms += 1000
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    assert consumer.payloads == []
    for _ in range(3):
        broker.end_turn()
    assert consumer.payloads == [b"last"]


def test_messages_whose_time_comes_at_once_become_ready_a_part_in_each_turn() -> None:
    vhost = open_vhost()
    broker = broker_of(vhost)
    queue = vhost.declare_queue("q", arguments={"x-retry-delay": 1000})
    for number in range(2 * MAX_GIVEN_UP):
        queue.put(message(b"%d" % number), b"")
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    for entry in consumer.entries:
        queue.requeue(entry)
    queue.remove_consumer(consumer)
    broker.now_ms += 1000
    broker.end_turn()
    assert len(queue) == MAX_GIVEN_UP
    broker.end_turn()
    assert drain(queue) == [b"%d" % number for number in range(2 * MAX_GIVEN_UP)]

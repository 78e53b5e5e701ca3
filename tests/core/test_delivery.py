"""Which delivery mode is in force for a message in a queue, and what the mode makes of it."""

from __future__ import annotations

import pytest

from tests.support.core import RecordingConsumer, broker_of, message
from tests.support.server import RecordingDriver
from tests.support.storages import HeldStorage
from trivium.config import Config, DeliveryConfig
from trivium.messages.delivery import DELIVERY_MODES, delivery_mode
from trivium.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    Message,
    decode_record,
)
from trivium.queues.queue import Queue
from trivium.routing.exchanges import ACCEPTED
from trivium.runtime.broker import Broker
from trivium.storage.memory import MemoryStorage
from trivium.vhost.policies import Policy
from trivium.vhost.queue_logs import queue_log_name
from trivium.vhost.virtual_host import VirtualHost

WORDS = {number: word for word, number in DELIVERY_MODES.items()}


def open_vhost(storage: MemoryStorage, default: str = "as-published") -> VirtualHost:
    config = Config(delivery=DeliveryConfig(mode=default))  # type: ignore[arg-type]
    broker = Broker(config)
    broker.open(storage, RecordingDriver(), [])
    return broker.vhosts["/"]


def sent(mode: int, insists: bool = False) -> Message:
    made = message(b"m", mode=mode, persistent=mode != AT_MOST_ONCE)
    made.insists = insists
    return made


def in_force(
    stated: int,
    broker: int | None = None,
    policy: int | None = None,
    queue: int | None = None,
    insists: bool = False,
) -> int:
    """The mode of a message that states one, with the modes that the levels above it set."""
    vhost = open_vhost(MemoryStorage(), "as-published" if broker is None else WORDS[broker])
    if policy is not None:
        vhost.set_policy(Policy("p", "q", {"delivery": WORDS[policy]}))
    arguments: dict[str, object] = {} if queue is None else {"x-delivery": WORDS[queue]}
    made = vhost.declare_queue("q", durable=True, arguments=arguments)
    return made.settings.mode_of(sent(stated, insists))


@pytest.mark.parametrize("stated", [AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE])
def test_without_more_the_mode_is_the_one_that_the_protocol_states(stated: int) -> None:
    assert in_force(stated) == stated


def test_the_broker_s_default_precedes_the_protocol() -> None:
    assert in_force(AT_LEAST_ONCE, broker=EXACTLY_ONCE) == EXACTLY_ONCE
    assert in_force(AT_LEAST_ONCE, broker=AT_MOST_ONCE) == AT_MOST_ONCE


def test_a_policy_precedes_the_broker_s_default() -> None:
    assert in_force(AT_LEAST_ONCE, broker=AT_MOST_ONCE, policy=EXACTLY_ONCE) == EXACTLY_ONCE


def test_the_queue_s_argument_precedes_a_policy() -> None:
    found = in_force(AT_LEAST_ONCE, broker=AT_MOST_ONCE, policy=AT_MOST_ONCE, queue=EXACTLY_ONCE)
    assert found == EXACTLY_ONCE


def test_what_the_publisher_insists_on_precedes_everything() -> None:
    found = in_force(
        AT_MOST_ONCE,
        broker=EXACTLY_ONCE,
        policy=EXACTLY_ONCE,
        queue=AT_LEAST_ONCE,
        insists=True,
    )
    assert found == AT_MOST_ONCE


def test_a_policy_changes_the_mode_of_what_comes_later() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = vhost.declare_queue("q", durable=True)
    vhost.set_policy(Policy("p", "q", {"delivery": "at-most-once"}))
    assert queue.put(sent(AT_LEAST_ONCE), b"") == ACCEPTED
    vhost.delete_policy("p")
    assert queue.put(sent(AT_LEAST_ONCE), b"") == storage.write_batch


def test_the_private_queue_of_a_session_is_not_changed() -> None:
    vhost = open_vhost(MemoryStorage(), "at-most-once")
    queue = vhost.declare_queue("amq.mqtt-session.c", durable=True, adapter="mqtt")
    assert queue.settings.mode_of(sent(EXACTLY_ONCE)) == EXACTLY_ONCE


# The rows of the table, for a message that insists on its mode in a queue that says nothing


def stored(storage: HeldStorage) -> int:
    return len(storage.log(queue_log_name("/", "q")))


def plain_queue(storage: HeldStorage) -> Queue:
    return open_vhost(storage).declare_queue("q", durable=True)


def test_at_most_once_is_accepted_at_once_kept_in_memory_and_settled_on_delivery() -> None:
    storage = HeldStorage()
    queue = plain_queue(storage)
    assert queue.put(sent(AT_MOST_ONCE, insists=True), b"") == ACCEPTED
    assert stored(storage) == 0
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    assert consumer.payloads == [b"m"]
    assert queue.unsettled == 0


def test_a_transient_message_that_does_not_insist_waits_for_its_acknowledgement() -> None:
    queue = plain_queue(HeldStorage())
    queue.put(sent(AT_MOST_ONCE), b"")
    assert queue.get() is not None
    assert queue.unsettled == 1


def test_at_least_once_waits_for_its_write_batch_is_stored_and_settled_by_the_consumer() -> None:
    storage = HeldStorage()
    queue = plain_queue(storage)
    assert queue.put(sent(AT_LEAST_ONCE, insists=True), b"") == storage.write_batch
    assert stored(storage) == 1
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    assert consumer.payloads == [b"m"]
    assert queue.unsettled == 1
    queue.settle(consumer.entries[0])
    broker_of(queue.vhost).end_turn()
    assert stored(storage) == 0


def test_exactly_once_is_not_delivered_before_its_write_batch_is_durable() -> None:
    storage = HeldStorage()
    queue = plain_queue(storage)
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    assert queue.put(sent(EXACTLY_ONCE, insists=True), b"") == storage.write_batch
    assert stored(storage) == 1
    broker_of(queue.vhost).end_turn()
    assert consumer.payloads == []
    storage.complete()
    assert consumer.payloads == [b"m"]


def test_a_message_that_insists_does_so_after_a_restart_too() -> None:
    kept = decode_record(sent(EXACTLY_ONCE, insists=True).record())
    assert (kept.mode, kept.insists) == (EXACTLY_ONCE, True)
    assert not decode_record(sent(EXACTLY_ONCE).record()).insists


@pytest.mark.parametrize("value", ["", "often", 1, None, b"at-most-once", ["at-most-once"]])
def test_only_the_three_words_are_modes(value: object) -> None:
    assert delivery_mode(value) == -1

"""Policies: which one holds, in force at once, kept over a restart."""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path

import pytest

from tests.support.core import broker_of, drain, message, open_vhost
from tests.support.server import RecordingDriver
from tests.support.steps import calls
from tests.support.storages import HeldStorage
from trivium.config import Config, PolicyConfig
from trivium.errors import ConfigError, NotFound, PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.arguments import QUEUE_RULES
from trivium.queues.settings import POLICY_KEYS
from trivium.runtime.broker import Broker
from trivium.storage.memory import MemoryStorage
from trivium.streams.settings import STREAM_RULES
from trivium.vhost.policies import EXCHANGE_KEYS, MAX_POLICIES, QUEUES, STREAMS, Policy
from trivium.vhost.policy_walk import MAX_PER_TURN, PolicyWaiter, PolicyWalk
from trivium.vhost.virtual_host import VirtualHost


def test_the_highest_priority_holds_alone() -> None:
    vhost = open_vhost()
    vhost.set_policy(Policy("low", "^q", {"max-length": 1, "message-ttl": 5}, priority=1))
    vhost.set_policy(Policy("high", "^q", {"max-length": 3}, priority=2))
    settings = vhost.declare_queue("q").settings
    assert (settings.max_length, settings.message_ttl) == (3, -1)
    assert vhost.declare_queue("other").settings.max_length == -1


def test_a_policy_applies_to_what_exists_and_stops_applying() -> None:
    vhost = open_vhost()
    queue = vhost.declare_queue("q")
    for number in range(3):
        queue.put(message(b"%d" % number), b"")
    vhost.set_policy(Policy("short", "q", {"max-length": 1}))
    broker_of(vhost).end_turn()
    assert len(queue) == 1
    vhost.delete_policy("short")
    queue.put(message(b"3"), b"")
    assert drain(queue) == [b"2", b"3"]


def test_an_alternate_exchange_by_policy() -> None:
    vhost = open_vhost()
    vhost.declare_exchange("x", "direct")
    vhost.declare_exchange("lost", "fanout")
    queue = vhost.declare_queue("q")
    from trivium.routing.exchanges import Binding

    vhost.bind(vhost.exchange("lost"), Binding(queue, b""))
    assert vhost.route(vhost.exchange("x"), b"k").destinations == []
    vhost.set_policy(Policy("alt", "^x$", {"alternate-exchange": "lost"}, "exchanges"))
    assert vhost.route(vhost.exchange("x"), b"k").destinations == [queue]


def test_policies_come_back() -> None:
    storage = MemoryStorage()
    vhost = open_vhost(storage)
    vhost.declare_queue("q", durable=True)
    vhost.set_policy(Policy("p", "q", {"dead-letter-exchange": "dlx"}, "queues", 7))
    again = open_vhost(storage)
    assert again.queues["q"].settings.dead_letter_exchange == "dlx"
    (policy,) = again.policies.all()
    assert (policy.name, policy.pattern, policy.apply_to, policy.priority) == (
        "p",
        "q",
        "queues",
        7,
    )
    again.delete_policy("p")
    assert len(open_vhost(storage).policies) == 0


def test_deleting_a_missing_policy_is_not_found() -> None:
    with pytest.raises(NotFound):
        open_vhost().delete_policy("p")


@pytest.mark.parametrize(
    ("pattern", "definition", "apply_to"),
    [
        ("(", {"max-length": 1}, "all"),
        ("q", {}, "all"),
        ("q", {"max-length": "1"}, "all"),
        ("q", {"no-such-key": 1}, "all"),
        ("q", {"max-length": 1}, "cats"),
        ("q", {"alternate-exchange": 5}, "all"),
        ("q" * 2000, {"max-length": 1}, "all"),
        ("q", {"dead-letter-exchange": "x" * 256}, "all"),
    ],
)
def test_wrong_policies_are_refused(
    pattern: str, definition: dict[str, HeaderValue], apply_to: str
) -> None:
    with pytest.raises(PreconditionFailed):
        Policy("p", pattern, definition, apply_to)


def test_a_policy_has_a_name() -> None:
    for name in ("", "n" * 256):
        with pytest.raises(PreconditionFailed):
            Policy(name, "q", {"max-length": 1})


def test_of_the_same_priority_the_first_by_name_holds() -> None:
    vhost = open_vhost()
    vhost.set_policy(Policy("b", "q", {"max-length": 2}))
    vhost.set_policy(Policy("a", "q", {"max-length": 1}))
    vhost.set_policy(Policy("s", "q", {"max-length": 3}, "streams", priority=9))
    assert vhost.declare_queue("q").settings.max_length == 1


@pytest.mark.parametrize("apply_to", ["all", "queues"])
@pytest.mark.parametrize(
    ("definition", "of_queue", "of_stream"),
    [
        ({"max-length-bytes": 9}, True, True),
        ({"max-length-bytes": 9, "max-length": 1}, True, False),
        ({"max-length-bytes": 9, "message-ttl": 1}, True, False),
        ({"max-length-bytes": 9, "max-age": "1h"}, False, True),
        ({"max-length-bytes": 9, "compression": "lz4"}, False, True),
        ({"max-length-bytes": 9, "max-age": "1h", "overflow": "drop-head"}, False, False),
    ],
)
def test_a_policy_for_queues_and_streams_is_one_for_those_that_have_all_its_keys(
    apply_to: str, definition: dict[str, HeaderValue], of_queue: bool, of_stream: bool
) -> None:
    """As in RabbitMQ: of those that are left, the one with the highest priority holds."""
    vhost = open_vhost()
    vhost.set_policy(Policy("high", "", definition, apply_to, priority=1))
    vhost.set_policy(Policy("low", "", {"max-length-bytes": 99}, apply_to))
    queue = vhost.declare_queue("q")
    of = vhost.policies.in_force("s", STREAMS).definition
    assert queue.settings.max_length_bytes == (9 if of_queue else 99)
    assert of["max-length-bytes"] == (9 if of_stream else 99)


@pytest.mark.parametrize(
    ("apply_to", "limits"),
    [
        ("all", (1, 1, -1)),
        ("queues", (1, 1, -1)),
        ("classic_queues", (1, -1, -1)),
        ("quorum_queues", (-1, 1, -1)),
        ("streams", (-1, -1, 1)),
        ("exchanges", (-1, -1, -1)),
    ],
)
def test_a_policy_applies_to_queues_of_its_type(
    apply_to: str, limits: tuple[int, int, int]
) -> None:
    vhost = open_vhost()
    vhost.set_policy(Policy("p", "", {"max-length": 1}, apply_to))
    classic = vhost.declare_queue("c")
    quorum = vhost.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum"})
    stream = vhost.policies.in_force("s", STREAMS).definition
    assert (
        classic.settings.max_length,
        quorum.settings.max_length,
        stream.get("max-length", -1),
    ) == limits


# Those of operators


@pytest.mark.parametrize(
    ("definition", "bounds", "effective"),
    [
        ({}, {"max-length": 5}, {"max-length": 5}),
        (
            {"max-length": 9, "expires": 7},
            {"max-length": 5},
            {"max-length": 5, "expires": 7},
        ),
        ({"max-length": 3}, {"max-length": 5}, {"max-length": 3}),
        ({"overflow": "drop-head"}, {"overflow": "reject-publish"}, {"overflow": "reject-publish"}),
        ({"delivery-limit": -1}, {"delivery-limit": 4}, {"delivery-limit": 4}),
    ],
)
def test_a_policy_of_operators_bounds_the_other(
    definition: dict[str, HeaderValue],
    bounds: dict[str, HeaderValue],
    effective: dict[str, HeaderValue],
) -> None:
    vhost = open_vhost()
    if definition:
        vhost.set_policy(Policy("p", "", definition))
    vhost.set_policy(Policy("o", "", bounds), is_of_operators=True)
    found = vhost.policies.in_force("q", QUEUES)
    assert found.definition == effective
    assert (found.name, found.operator_name) == ("p" if definition else None, "o")


def test_a_policy_of_operators_bounds_what_a_queue_was_declared_with() -> None:
    vhost = open_vhost()
    queue = vhost.declare_queue("q", arguments={"x-max-length": 9, "x-delivery-limit": -1})
    bounds: dict[str, HeaderValue] = {"max-length": 5, "delivery-limit": 3}
    vhost.set_policy(Policy("o", "q", bounds), is_of_operators=True)
    assert (queue.settings.max_length, queue.settings.delivery_limit) == (5, 3)
    vhost.delete_policy("o", is_of_operators=True)
    assert (queue.settings.max_length, queue.settings.delivery_limit) == (9, -1)


def test_policies_of_operators_come_back_and_are_apart_from_others() -> None:
    storage = MemoryStorage()
    vhost = open_vhost(storage)
    vhost.declare_queue("q", durable=True)
    vhost.set_policy(Policy("p", "q", {"max-length": 9}))
    vhost.set_policy(Policy("p", "q", {"max-length": 5}), is_of_operators=True)
    again = open_vhost(storage)
    assert again.queues["q"].settings.max_length == 5
    again.delete_policy("p")
    assert again.queues["q"].settings.max_length == 5
    with pytest.raises(NotFound):
        again.delete_policy("p")
    again.delete_policy("p", is_of_operators=True)
    assert open_vhost(storage).queues["q"].settings.max_length == -1


@pytest.mark.parametrize("key", ["dead-letter-exchange", "alternate-exchange"])
def test_operators_bound_and_pass_nothing_on(key: str) -> None:
    with pytest.raises(PreconditionFailed):
        open_vhost().set_policy(Policy("o", "q", {key: "x"}), is_of_operators=True)


def test_the_number_of_policies_is_bounded() -> None:
    vhost = open_vhost()
    for number in range(MAX_POLICIES):
        vhost.policies.set(Policy(str(number), "q", {"max-length": 1}))
    with pytest.raises(PreconditionFailed):
        vhost.set_policy(Policy("more", "q", {"max-length": 1}))
    vhost.set_policy(Policy("0", "q", {"max-length": 2}))


def configured(storage: HeldStorage, **policies: PolicyConfig) -> Broker:
    broker = Broker(Config(policies=policies))
    broker.open(storage, RecordingDriver(), [])
    return broker


def test_policies_of_the_configuration_are_set_at_the_start() -> None:
    storage = HeldStorage()
    given = PolicyConfig(pattern="^q", definition={"max-length": 3}, priority=2)
    vhost = configured(storage, p=given).vhosts["/"]
    assert vhost.declare_queue("q", durable=True).settings.max_length == 3
    vhost.set_policy(Policy("other", "^q", {"max-length": 9}, priority=1))
    vhost.delete_policy("p")
    again = configured(storage, p=given).vhosts["/"]
    assert again.queues["q"].settings.max_length == 3
    assert [policy.name for policy in again.policies.all()] == ["other", "p"]


def test_policies_of_the_configuration_have_a_virtual_host() -> None:
    given = PolicyConfig(pattern="q", definition={"max-length": 3}, vhost="tenant")
    broker = configured(HeldStorage(), p=given)
    assert broker.vhost("tenant").declare_queue("q").settings.max_length == 3
    assert broker.vhost("/").declare_queue("q").settings.max_length == -1


def test_a_policy_that_is_set_already_is_not_written_again() -> None:
    storage = HeldStorage()
    given = PolicyConfig(pattern="q", definition={"max-length": 3})
    configured(storage, p=given)
    table = storage.table("policies//")
    row = table.get(b"p")
    configured(storage, p=given)
    assert table.get(b"p") is row


def test_a_wrong_policy_of_the_configuration_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"^\[policies\.p\]: .*'max-lenght'"):
        Config(policies={"p": PolicyConfig(pattern="q", definition={"max-lenght": 3})})


def documented(document: str, item: str, prefix: str = "") -> set[str]:
    """What stands in backquotes, after ``prefix``, in the item of a list that begins so."""
    text = Path(__file__).parents[2].joinpath("docs", document).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^- \*\*{item}\*\*: (.*(?:\n  .*)*)", text, flags=re.MULTILINE)
    return set(re.findall(rf"`{prefix}([a-z-]+)`", found))


@pytest.mark.parametrize(
    ("row", "keys"),
    [("queues", POLICY_KEYS), ("exchanges", EXCHANGE_KEYS), ("streams", STREAM_RULES.keys())],
)
def test_the_reference_of_policies_has_every_key(row: str, keys: Set[str]) -> None:
    assert documented("delivery.md", row) == keys


def test_the_reference_of_queue_arguments_has_every_argument() -> None:
    known = documented("amqp.md", "queue arguments", prefix="x-")
    assert known | documented("amqp.md", "of this broker", prefix="x-") == QUEUE_RULES.keys()


def test_the_reference_of_stream_arguments_has_every_argument() -> None:
    text = Path(__file__).parents[2].joinpath("docs/streams.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`x-[^|]*)\|", text, flags=re.MULTILINE)
    assert set(re.findall(r"`x-([a-z-]+)`", "".join(cells))) >= STREAM_RULES.keys() | {"queue-type"}


def limits(vhost: VirtualHost) -> list[int]:
    return [queue.settings.max_length for queue in vhost.queues.values()]


def many_queues(count: int = 5 * MAX_PER_TURN) -> VirtualHost:
    vhost = open_vhost()
    for number in range(count):
        vhost.declare_queue(f"q{number}")
    return vhost


def test_a_policy_for_many_queues_is_put_in_force_a_part_in_each_turn() -> None:
    vhost = many_queues()
    vhost.set_policy(Policy("p", "^q", {"max-length": 7}))
    for turn in range(1, 5):
        assert limits(vhost).count(7) == turn * MAX_PER_TURN
        assert not vhost.policy_walk.is_done
        broker_of(vhost).end_turn()
        assert broker_of(vhost).next_at() <= broker_of(vhost).elapsed_ms
    assert vhost.policy_walk.is_done
    assert set(limits(vhost)) == {7}


def test_a_later_change_of_policies_holds_everywhere_however_far_the_former_one_got() -> None:
    vhost = many_queues()
    vhost.set_policy(Policy("p", "^q", {"max-length": 7}))
    broker_of(vhost).end_turn()
    # Made meanwhile: it has the policy of its time, and gets the later one.
    assert vhost.declare_queue("q-new").settings.max_length == 7
    vhost.delete_queue(vhost.queue("q3"))
    vhost.set_policy(Policy("p", "^q", {"max-length": 9}))
    broker_of(vhost).end_turn()
    vhost.delete_policy("p")
    assert vhost.declare_queue("q-newer").settings.max_length == -1
    vhost.set_policy(Policy("p", "^q", {"max-length": 11}))
    vhost.declare_queue("q-newest")
    while not vhost.policy_walk.is_done:
        broker_of(vhost).end_turn()
    assert set(limits(vhost)) == {11}


class CountingWaiter(PolicyWaiter):
    def __init__(self) -> None:
        self.calls = 0

    def in_force(self) -> None:
        self.calls += 1


def test_who_waits_for_policies_is_told_once() -> None:
    vhost = many_queues()
    waiter = CountingWaiter()
    for times in range(2):
        vhost.set_policy(Policy("p", "^q", {"max-length": 7 + times}))
        if not times:
            vhost.policy_walk.wait(waiter)
        while not vhost.policy_walk.is_done:
            assert waiter.calls == times
            broker_of(vhost).end_turn()
    assert waiter.calls == 1


def test_policies_that_change_in_each_turn_reach_every_queue() -> None:
    vhost = many_queues()
    for turn in range(10):
        vhost.set_policy(Policy("p", "^q", {"max-length": 7 + turn}))
        broker_of(vhost).end_turn()
    assert min(limits(vhost)) >= 7


@pytest.mark.pure
def test_many_changes_in_one_turn_reach_no_more_than_one_does() -> None:
    vhost = many_queues(MAX_PER_TURN // 2)

    def change() -> None:
        for turn in range(20):
            vhost.set_policy(Policy("p", "^q", {"max-length": 7 + turn}))

    assert calls(PolicyWalk.apply_to_queue, change) <= MAX_PER_TURN
    while not vhost.policy_walk.is_done:
        assert calls(PolicyWalk.apply_to_queue, broker_of(vhost).end_turn) <= MAX_PER_TURN
    assert set(limits(vhost)) == {26}


def test_a_crash_while_a_policy_is_put_in_force_leaves_it_in_force_or_unknown() -> None:
    storage = MemoryStorage()
    vhost = open_vhost(storage)
    for number in range(3 * MAX_PER_TURN):
        vhost.declare_queue(f"q{number}", durable=True)
    vhost.set_policy(Policy("p", "^q", {"max-length": 7}))
    assert len(set(limits(vhost))) == 2
    assert set(limits(open_vhost(storage))) == {7}


def test_policies_of_the_configuration_are_in_force_at_the_start() -> None:
    storage = MemoryStorage()
    vhost = open_vhost(storage)
    for number in range(3 * MAX_PER_TURN):
        vhost.declare_queue(f"q{number}", durable=True)
    broker = Broker(
        Config(policies={"p": PolicyConfig(pattern="^q", definition={"max-length": 7})})
    )
    broker.open(storage, RecordingDriver(), [])
    assert set(limits(broker.vhosts["/"])) == {7}

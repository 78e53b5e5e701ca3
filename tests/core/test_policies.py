"""Policies: which one holds, in force at once, kept over a restart."""

from __future__ import annotations

import pytest

from tests.core.harness import drain, message, open_vhost
from trivium.errors import NotFound, PreconditionFailed
from trivium.message import HeaderValue
from trivium.policies import Policy
from trivium.storage.memory import MemoryStorage


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
    vhost.broker.end_turn()
    assert len(queue) == 1
    vhost.delete_policy("short")
    queue.put(message(b"3"), b"")
    assert drain(queue) == [b"2", b"3"]


def test_an_alternate_exchange_by_policy() -> None:
    vhost = open_vhost()
    vhost.declare_exchange("x", "direct")
    vhost.declare_exchange("lost", "fanout")
    queue = vhost.declare_queue("q")
    from trivium.exchanges import Binding

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
    ],
)
def test_wrong_policies_are_refused(
    pattern: str, definition: dict[str, HeaderValue], apply_to: str
) -> None:
    with pytest.raises(PreconditionFailed):
        Policy("p", pattern, definition, apply_to)

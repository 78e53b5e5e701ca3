"""Passwords wait to be hashed in a queue for each address, and so many of them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tests.support import mqtt
from tests.support.authentication import MOSQUITTO_7, Pool
from tests.support.steps import living
from trivium.common.events import Events
from trivium.config import Config
from trivium.runtime.authentication import Authentication
from trivium.security import hash_queue as module
from trivium.security.attempts import Attempt, Login
from trivium.security.clock import Clock
from trivium.security.hash_queue import HashQueue
from trivium.storage.memory import MemoryStorage


class Stopped(Clock):
    """One that the test sets."""

    def __init__(self) -> None:
        self.at = 0

    def now(self) -> int:
        return self.at


class Queue:
    """A queue, and what became of the attempts by their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_once: int = 2) -> None:
        monkeypatch.setattr(module, "AT_ONCE", at_once)
        self.pool = Pool()
        self.clock = Stopped()
        self.events = Events()
        self.queue = HashQueue(self.pool, self.clock, self.events, 10_000)
        #: the names that were hashed, in order
        self.hashed: list[str] = []
        self.answers: dict[str, bool | None] = {}

    def put(
        self, name: str, address: str = "10.0.0.1", is_gone: Callable[[], bool] = lambda: False
    ) -> None:
        def work() -> bool:
            self.hashed.append(name)
            return True

        def answered(result: bool | None) -> None:
            assert name not in self.answers
            self.answers[name] = result

        self.queue.run(Attempt(username=name, address=address, is_gone=is_gone), work, answered)


def test_so_many_hashes_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    for number in range(20):
        queue.put(f"u{number}", f"10.0.0.{number}")
        assert len(queue.pool.waiting) <= 2
    assert (len(queue.pool.waiting), len(queue.queue)) == (2, 18)
    queue.pool.run()
    assert queue.hashed == [f"u{number}" for number in range(20)]
    assert set(queue.answers.values()) == {True}
    assert len(queue.queue) == 0


def test_an_attempt_that_is_over_is_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No collection is needed, nor made: it would walk all messages."""
    queue = Queue(monkeypatch)
    gc.collect()
    gc.disable()
    try:
        before = living(Attempt)
        for number in range(4):
            queue.put(f"u{number}", is_gone=lambda: True)
            queue.put(f"v{number}", "10.0.0.2")
        queue.pool.run()
        assert len(queue.answers) == 8
        assert living(Attempt) == before
    finally:
        gc.enable()


def test_addresses_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, at_once=1)
    for number in range(5):
        queue.put(f"a{number}", "10.0.0.1")
    queue.put("b0", "10.0.0.2")
    queue.put("c0", "10.0.0.3")
    queue.put("b1", "10.0.0.2")
    queue.pool.run()
    assert queue.hashed == ["a0", "a1", "b0", "c0", "a2", "b1", "a3", "a4"]


def test_a_network_of_ipv6_has_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, at_once=1)
    for number in range(4):
        queue.put(f"a{number}", f"2001:db8::{number}")
    queue.put("b0", "10.0.0.2")
    queue.pool.run()
    assert queue.hashed == ["a0", "a1", "b0", "a2", "a3"]


def test_so_many_of_an_address_wait_and_further_ones_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PER_ADDRESS", 3)
    queue = Queue(monkeypatch, at_once=1)
    for number in range(5):
        queue.put(f"a{number}")
    assert queue.answers == {"a4": None}
    queue.put("b0", "10.0.0.2")
    queue.pool.run()
    assert sorted(queue.hashed) == ["a0", "a1", "a2", "a3", "b0"]


def test_when_all_places_are_taken_the_address_with_most_gives_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    queue = Queue(monkeypatch, at_once=1)
    for number in range(5):
        queue.put(f"a{number}")
    queue.put("b0", "10.0.0.2")
    assert queue.answers == {"a4": None}, "the last that came of that address"
    queue.put("c0", "10.0.0.3")
    assert queue.answers == {"a4": None, "a3": None}
    queue.put("c1", "10.0.0.3")
    assert queue.answers == {"a4": None, "a3": None, "c1": None}, "nobody has more"
    assert len(queue.queue) == 4
    queue.pool.run()
    assert sorted(queue.hashed) == ["a0", "a1", "a2", "b0", "c0"]


def test_who_has_waited_too_long_or_left_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, at_once=1)
    queue.put("first")
    queue.put("late")
    queue.clock.at = 1
    queue.put("gone", is_gone=lambda: True)
    queue.put("last")
    queue.clock.at = 10_001
    queue.pool.run()
    assert queue.hashed == ["first", "last"]
    assert queue.answers == {"first": True, "late": None, "gone": None, "last": True}


def test_who_has_left_takes_no_place_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PER_ADDRESS", 2)
    queue = Queue(monkeypatch, at_once=1)
    has_left = False
    for name in ("a", "b", "c"):
        queue.put(name, is_gone=lambda: has_left)
    has_left = True
    queue.put("d")
    assert queue.answers == {"b": None, "c": None}
    queue.pool.run()
    assert queue.answers["d"] is True


def test_what_waited_goes_on_in_the_name_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, at_once=1)
    events = queue.events
    seen: list[object] = []
    for serving in ("first", "second"):
        events.serving = serving
        queue.queue.run(
            Attempt(username="ann"), lambda: True, lambda _: seen.append(events.serving)
        )
    queue.pool.run()
    assert seen == ["first", "second"]


def test_what_an_answer_raises_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(monkeypatch, at_once=1)

    def fail(_: bool | None) -> None:
        raise RuntimeError("of a client")

    queue.queue.run(Attempt(username="ann"), lambda: True, fail)
    queue.put("b")
    with pytest.raises(RuntimeError):
        queue.pool.run()
    queue.pool.run()
    assert queue.answers == {"b": True}


def flood(found: Authentication, answers: list[Login | None], count: int) -> None:
    for number in range(count):
        attempt = Attempt(username=f"user{number}", password=b"wrong", address="10.6.6.6")
        found.authenticator.authenticate(attempt, answers.append)


def test_a_flood_from_one_address_keeps_nobody_elsewhere_waiting() -> None:
    pool = Pool()
    found = Authentication(Config(), pool)
    found.open(MemoryStorage())
    found.users.add("ann", MOSQUITTO_7)
    flood(found, [], 500)
    answers: list[Login | None] = []
    attempt = Attempt(username="ann", password=b"right", address="10.0.0.1")
    found.authenticator.authenticate(attempt, answers.append)
    assert len(pool.waiting) == module.AT_ONCE
    for _ in range(module.AT_ONCE + 2):
        work, done = pool.waiting.pop(0)
        done(work())
    assert [login and login.identity.name for login in answers] == ["ann"]


def test_an_attempt_that_is_not_looked_at_is_refused_without_a_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PER_ADDRESS", 1)
    pool = Pool()
    found = Authentication(Config(), pool)
    found.open(MemoryStorage())
    found.users.add("ann", MOSQUITTO_7)
    answers: list[Login | None] = []
    flood(found, answers, module.AT_ONCE + 1)
    attempt = Attempt(username="ann", password=b"right", address="10.6.6.6")
    for _ in range(100):
        found.authenticator.authenticate(attempt, answers.append)
    assert answers == [None] * 100
    pool.run()
    assert pool.done == module.AT_ONCE + 1


def test_a_client_that_has_left_is_not_hashed() -> None:
    server = mqtt.Server()
    server.driver.is_pool_busy = True
    clients = [server.connect() for _ in range(module.AT_ONCE + 2)]
    for number, client in enumerate(clients):
        server.broker.users.add(f"user{number}", MOSQUITTO_7)
        client.feed(mqtt.connect("c", 5, username=f"user{number}", password=b"wrong"))
    clients[-2].lose()
    for _ in range(module.AT_ONCE):
        server.driver.blocking.pop(0)()
    server.end_turn()
    assert len(server.driver.blocking) == 1, "the last one's, not that of the one before"

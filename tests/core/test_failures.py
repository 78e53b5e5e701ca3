"""Failed logins slow down who fails, and nobody else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from tests.support import amqp, mqtt, native
from tests.support.authentication import MOSQUITTO_7, Pool
from trivium.common.events import Events
from trivium.config import Config
from trivium.runtime.authentication import Authentication
from trivium.security import failures as module
from trivium.security.attempts import Attempt, Login
from trivium.security.clock import Clock
from trivium.security.failures import Counts, Failures
from trivium.storage.memory import MemoryStorage


def shown(address: str = "10.0.0.1", user: str = "ann", password: bytes = b"wrong") -> Attempt:
    return Attempt(username=user, password=password, address=address)


def wait(failures: Failures, attempt: Attempt, now: int) -> int:
    return max(failures.wait_of_both(attempt, now), failures.wait_of_each(attempt, now))


def test_the_wait_doubles_and_is_bounded() -> None:
    failures = Failures()
    waits: list[int] = []
    for _ in range(12):
        waits.append(wait(failures, shown(), 0))
        failures.failed(shown(), 0)
    assert waits == [0, 0, 0, 250, 500, 1000, 2000, 4000, 8000, 8000, 8000, 8000]
    for _ in range(10_000):
        failures.failed(shown(), 0)
    assert wait(failures, shown(), 0) == 8000


def test_failures_are_forgotten_after_a_time_and_by_success() -> None:
    failures = Failures()
    for _ in range(5):
        failures.failed(shown(), 0)
    assert wait(failures, shown(), 59_999) == 1000
    assert wait(failures, shown(), 60_000) == 0
    failures.failed(shown(), 60_000)
    assert wait(failures, shown(), 60_000) == 0, "counted anew"
    for _ in range(5):
        failures.failed(shown(), 60_000)
    failures.succeeded(shown())
    assert wait(failures, shown(), 60_000) == 0


def test_others_at_the_address_and_the_user_elsewhere_do_not_wait() -> None:
    failures = Failures()
    for _ in range(15):
        failures.failed(shown(), 0)
    assert wait(failures, shown(), 0) == 8000
    assert wait(failures, shown(user="bob"), 0) == 0
    assert wait(failures, shown(address="10.0.0.2"), 0) == 0


def test_many_names_of_one_address_wait_shortly() -> None:
    failures = Failures()
    for number in range(100):
        failures.failed(shown(user=f"user{number}"), 0)
    assert wait(failures, shown(user="another"), 0) == 1000
    assert wait(failures, shown("10.0.0.2", "another"), 0) == 0


def test_that_a_user_or_an_address_is_slowed_down_is_told_once() -> None:
    failures = Failures()
    told = [failures.failed(shown(f"10.0.0.{number}"), 0) for number in range(30)]
    assert told == [[]] * 19 + [[("user", "ann")]] + [[]] * 10
    told = [failures.failed(shown("::1", f"user{number}"), 0) for number in range(60)]
    assert told == [[]] * 49 + [[("address", "::/64")]] + [[]] * 10
    # It is told again once it was forgotten.
    told = [failures.failed(shown(f"10.0.0.{number}"), 60_000) for number in range(20)]
    assert told[-1] == [("user", "ann")]


def test_a_user_that_is_slowed_down_has_a_line_in_both_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[tuple[str, dict[str, object]]] = []
    events = Events()
    events.listen(lambda event, about: heard.append((event, about)))
    found = Authentication(Config(), Pool(), clock=Moved(), events=events)
    for number in range(20):
        found.authenticator.authenticate(shown(f"10.0.0.{number}", "gone"), lambda _: None)
    assert heard[-1][0] == "user.authentication.failure"
    assert heard[-2] == ("user.authentication.slowed", {"by": "user", "user": "gone"})
    assert "logins of user 'gone' fail again and again" in caplog.text


def test_addresses_of_one_network_of_ipv6_count_as_one() -> None:
    failures = Failures()
    for number in range(4):
        failures.failed(shown(f"2001:db8::{number}"), 0)
        failures.failed(shown(f"::ffff:10.0.0.{number}", "bob"), 0)
    assert wait(failures, shown("2001:db8::5:6"), 0) == 500
    assert wait(failures, shown("2001:db8:0:1::1"), 0) == 0
    assert wait(failures, shown("10.0.0.1", "bob"), 0) == 0, "IPv4 in the form of IPv6"


def test_one_name_from_many_addresses_waits_shortly() -> None:
    failures = Failures()
    for number in range(100):
        failures.failed(shown(f"10.0.1.{number}"), 0)
    assert wait(failures, shown("10.0.0.2"), 0) == 1000
    assert wait(failures, shown("10.0.0.2", "bob"), 0) == 0


def test_so_many_counts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTS", 2)
    counts = Counts(1, 1000)
    for name in ("a", "b", "a", "c"):
        counts.failed(name, 0)
    assert len(counts) == 2
    assert counts.wait("a", 0) == 500
    assert counts.wait("b", 0) == 0


class Moved(Clock):
    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[], None]]] = []

    def call_later(self, milliseconds: int, work: Callable[[], None]) -> None:
        self.waiting.append((milliseconds, work))


def test_an_attempt_that_waits_is_not_looked_at_and_others_are() -> None:
    pool, clock = Pool(), Moved()
    found = Authentication(Config(), pool, clock=clock)
    found.open(MemoryStorage())
    found.users.add("ann", MOSQUITTO_7)
    answers: list[Login | None] = []
    for _ in range(3):
        found.authenticator.authenticate(shown(), answers.append)
        pool.run()
    assert answers == [None] * 3
    found.authenticator.authenticate(shown(password=b"right"), answers.append)
    assert (len(pool.waiting), len(answers)) == (0, 3)
    found.authenticator.authenticate(shown("10.0.0.2", password=b"right"), answers.append)
    pool.run()
    assert answers[3] is not None
    ((milliseconds, work),) = clock.waiting
    assert milliseconds == 250
    work()
    pool.run()
    assert answers[4] is not None


def test_a_client_without_credentials_never_waits() -> None:
    clock = Moved()
    found = Authentication(Config(), Pool(), clock=clock)
    answers: list[Login | None] = []
    for _ in range(200):
        attempt = Attempt(username=None, address="10.0.0.1")
        found.authenticator.authenticate(attempt, answers.append)
    assert answers == [None] * 200
    assert not clock.waiting


def test_a_client_waits_for_its_answer() -> None:
    """Four wrong passwords: the fourth is answered a quarter of a second later."""
    server = amqp.Server()
    for _ in range(3):
        client = server.connect()
        client.feed(amqp.PROTOCOL_HEADER)
        client.send(amqp.start_ok(b"guest", b"wrong"), channel=0)
        assert amqp.names(client.take())[-1] == "Connection.Close"
    client = server.connect()
    client.feed(amqp.PROTOCOL_HEADER)
    client.send(amqp.start_ok(b"guest", b"guest"), channel=0)
    assert amqp.names(client.take()) == ["Connection.Start"]
    server.advance(0.25)
    assert amqp.names(client.take()) == ["Connection.Tune"]


def test_a_client_that_leaves_while_it_waits_leaves_nothing() -> None:
    server = mqtt.Server()
    data = mqtt.connect("c", 5, username="guest", password=b"wrong")
    for _ in range(3):
        server.connect().feed(data)
    client = server.connect()
    client.feed(data)
    client.lose()
    server.advance(1)
    assert client.take_bytes() == b""
    assert native.Server().open()


def test_long_names_take_no_more_memory_than_short_ones() -> None:
    failures = Failures()
    tracemalloc.start()
    for number in range(200):
        failures.failed(Attempt(username=f"{number}" + "x" * 65_000), 0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1_000_000


def test_who_was_right_may_fail_as_often_again() -> None:
    pool, clock = Pool(), Moved()
    found = Authentication(Config(), pool, clock=clock)
    found.open(MemoryStorage())
    found.users.add("ann", MOSQUITTO_7)
    answers: list[Login | None] = []
    for password in (b"wrong", b"wrong", b"right", b"wrong", b"wrong", b"right"):
        found.authenticator.authenticate(shown(password=password), answers.append)
        pool.run()
    assert [answer is not None for answer in answers] == [False, False, True] * 2
    assert not clock.waiting

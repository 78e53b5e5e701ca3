"""What the log says of turns that take long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.permitted import make_server
from trivium import Broker, Config
from trivium.common.timers import Timed
from trivium.config import Listen, LogConfig, StorageConfig
from trivium.errors import ConfigError
from trivium.listen import ListenerConfig
from trivium.management.management import Management
from trivium.observability.api import ApiRequest
from trivium.runtime import slow_turns
from trivium.runtime.slow_turns import INTERVAL, SlowTurns, described
from trivium.security.identity import NOBODY
from trivium.storage.files.executor import Completions


def request_for(method: str, *path: str) -> ApiRequest:
    return ApiRequest(
        method=method,
        path=path,
        query={"password": "sesame"},
        body={"password": "sesame"},
        identity=NOBODY,
        address="192.0.2.1",
        listener=ListenerConfig(protocol="http", address="127.0.0.1:0", name="http"),
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves."""
    now = [100.0]
    monkeypatch.setattr("trivium.runtime.slow_turns.time.monotonic", lambda: now[0])
    return now


@pytest.mark.pure
def test_a_line_names_the_longest_step_and_counts_messages(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    turns = SlowTurns(server.broker, 0.1)
    client = server.mqtt("root", "device")
    other = server.amqp("root")
    turns.end()
    turns.begin(clock[0])
    other.publish("k", exchange="x")
    # As whoever publishes over HTTP does.
    server.broker.http.messages_received += 2
    clock[0] += 0.01
    turns.did(other.connection)
    clock[0] += 0.12
    turns.did(client.connection)
    turns.end()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == (
        "a turn took 130 ms: 3 messages came, 0 left, in 2 steps; the longest, 120 ms, was for"
        " 127.0.0.1:1 (mqtt, user 'root', client 'device')"
    )


@pytest.mark.pure
def test_lines_are_far_apart(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    turns = SlowTurns(make_server().broker, 0.1)
    for _ in range(5):
        turns.begin(clock[0])
        clock[0] += 0.2
        turns.did(slow_turns.END)
        turns.end()
    clock[0] += INTERVAL
    turns.begin(clock[0])
    clock[0] += 0.2
    turns.did(slow_turns.END)
    turns.end()
    first, second = (record.message for record in caplog.records)
    assert first.endswith("was the end of the turn")
    assert second.endswith("was the end of the turn; 4 more since the last line")


@pytest.mark.pure
def test_a_short_turn_is_not_told_of(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    turns = SlowTurns(make_server().broker, 0.1)
    turns.begin(clock[0])
    clock[0] += 0.099
    turns.did("x")
    turns.end()
    assert caplog.records == []


@pytest.mark.pure
def test_a_broker_that_stops_tells_of_none(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    turns = SlowTurns(server.broker, 0.1)
    server.broker.is_stopping = True
    clock[0] += 9
    turns.did("x")
    turns.end()
    assert caplog.records == []


def test_a_request_is_named_without_its_query_and_body() -> None:
    assert (
        described(request_for("PUT", "users", "ann")) == "PUT 'users/ann' for 192.0.2.1 (user '')"
    )


def test_a_callback_has_a_kind_and_its_name() -> None:
    assert described(make_server) == "something (tests.support.permitted.make_server)"
    completions = Completions(lambda work: None, lambda error: None)
    name = "trivium.storage.files.executor.Completions.run"
    for work in (completions.run, partial(completions.run)):
        assert described(work) == f"what the storage has done ({name})"


def test_a_callback_without_a_name_is_called_for_where_it_was_made() -> None:
    def made() -> Callable[[], None]:
        return lambda: None

    name = "test_a_callback_without_a_name_is_called_for_where_it_was_made"
    assert described(made()) == f"something ({__name__}.{name})"


@pytest.mark.pure
def test_a_callback_of_a_connection_is_told_as_that() -> None:
    connection = make_server().mqtt("root", "device").connection
    assert described(connection.resume_writing) == described(connection)


@pytest.mark.pure
def test_a_timer_is_a_step_and_says_what_it_was_for(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    broker = server.broker
    turns = SlowTurns(broker, 0.1)
    broker.timeouts.called = turns.did

    class Slow(Timed):
        def due(self) -> None:
            clock[0] += 0.2

    slow = Slow()
    turns.begin(clock[0])
    broker.timeouts.call_at(broker.elapsed_ms, slow)
    broker.timeouts.run(broker.elapsed_ms)
    turns.did(slow_turns.END)
    turns.end()
    (record,) = caplog.records
    assert "in 2 steps; the longest, 200 ms, was a timer for clients" in record.message
    assert record.message.endswith(".Slow)")


def every_timer() -> set[type[Timed]]:
    """The classes of all timers of the broker."""
    found: set[type[Timed]] = set()
    waiting = [Timed]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            found.add(kind)
            waiting.append(kind)
    return {kind for kind in found if kind.__module__.startswith("trivium")}


@pytest.mark.pure
def test_each_timer_of_the_core_has_words_for_what_it_is_for() -> None:
    make_server()
    kinds = every_timer()
    assert len(kinds) > 20
    for kind in kinds:
        text = described(kind.__new__(kind))
        assert text.startswith("a timer for ")
        assert "the broker's own" not in text, kind
        assert ("clients" in text) is (not kind.__module__.startswith("trivium.")), kind


@pytest.mark.pure
def test_a_timer_of_a_connection_names_it() -> None:
    connection = make_server().amqp("root").connection

    class OfConnection(Timed):
        def __init__(self) -> None:
            self.connection = connection

    assert described(OfConnection()).endswith(f" {described(connection)}")


async def test_a_running_broker_tells_of_its_turns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = Config(
        storage=StorageConfig(mode="memory"),
        listen={"native": Listen(0)},
        log=LogConfig(slow_turn_ms=0.0001),
    )
    async with Broker(config) as broker:
        assert broker.server is not None
        broker.server.driver.call_soon(lambda: None)
        await asyncio.sleep(0)
    assert any("a turn took" in record.message for record in caplog.records)


@pytest.mark.pure
def test_a_request_over_http_is_told_as_that(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    turns = SlowTurns(server.broker, 0.1)

    def call(work: Callable[[], None]) -> None:
        turns.begin(clock[0])
        work()
        clock[0] += 0.2
        turns.did_work(work)
        turns.end()

    Management(server.broker, call).ask(request_for("GET", "api-of-nobody"), lambda answer: None)
    (record,) = caplog.records
    assert record.message.endswith("was GET 'api-of-nobody' for 192.0.2.1 (user '')")


def test_the_limit_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="slow_turn_ms"):
        LogConfig(slow_turn_ms=-1.0)

"""A delivery that is not acknowledged in time ends its channel (x-consumer-timeout)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Channel, Queue, Tx

from tests.support.amqp import Client, Received, Server, bodies, names, publish_frames
from trivium.config import Config, LimitsConfig
from trivium.queues.delivery_times import TIMEOUT_MARKS, DeliveryTimes
from trivium.vhost.policies import Policy
from trivium_amqp.handshake import FOR_ANSWERS

HALF_AN_HOUR = 1800


class Patient:
    """A client whose connection is told the time, second by second."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = server.open()
        self.now = 1000.0

    def wait(self, seconds: int) -> list[Received]:
        """What the client is sent while so many seconds pass."""
        for _ in range(seconds):
            self.now += 1
            self.client.connection.tick(self.now)
        self.server.settle()
        return self.client.take()

    def fill(self, count: int = 1, queue: str = "q") -> None:
        self.client.feed(publish_frames(queue) * count)


def start(arguments: dict[str, Any] | None = None, seconds: float = HALF_AN_HOUR) -> Patient:
    config = Config(limits=LimitsConfig(consumer_timeout_seconds=seconds))
    patient = Patient(Server(config=config))
    patient.client.declare("q", arguments=arguments)
    patient.fill(2)
    return patient


def late(timeout: float) -> int:
    """Seconds by which a delivery has timed out for certain: its mark and the age are each told by
    a tick."""
    return int(timeout + timeout / TIMEOUT_MARKS) + 3


def timed_out(received: list[Received]) -> int:
    """The milliseconds of the exception that the client was sent."""
    (close,) = received
    assert isinstance(close, Channel.Close)
    assert close.reply_code == 406
    assert (close.class_id, close.method_id) == (0, 0)
    before, _, rest = (close.reply_text or "").partition("Timeout value used: ")
    assert before == "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
    value, _, rest = rest.partition(" ms. ")
    assert rest == "This timeout value can be configured, see consumers doc guide to learn more"
    return int(value)


def test_the_broker_waits_half_an_hour_by_default(caplog: pytest.LogCaptureFixture) -> None:
    patient = Patient(Server())
    patient.client.declare("q")
    patient.fill(2)
    patient.client.consume("q", "slow")
    assert patient.wait(HALF_AN_HOUR) == []
    with caplog.at_level(logging.WARNING):
        assert timed_out(patient.wait(late(HALF_AN_HOUR) - HALF_AN_HOUR)) == 1_800_000
    (record,) = caplog.records
    assert "'slow'" in record.message
    assert "'q'" in record.message


def test_deliveries_come_back_and_the_connection_lives_on() -> None:
    patient = start(seconds=10)
    client = patient.client
    client.open_channel(2)
    client.consume("q", "slow")
    patient.wait(late(10))
    client.send(Channel.CloseOk())
    client.open_channel(1)
    assert client.counts("q") == (2, 0)
    received = client.call(Basic.Get(queue="q"))
    assert received[0].redelivered
    assert client.ask(Queue.Declare(queue="q", passive=True), channel=2).name == "Queue.DeclareOk"


def test_the_next_consumer_gets_what_the_slow_one_held() -> None:
    patient = start(seconds=10)
    patient.client.consume("q", "slow")
    other = patient.server.open()
    other.consume("q", "quick")
    patient.wait(late(10))
    assert bodies(other.take()) == [b"x", b"x"]


def test_acknowledgements_in_time_go_on_for_ever() -> None:
    patient = start(seconds=10)
    client = patient.client
    client.call(Basic.Qos(prefetch_count=2))
    client.consume("q", "c")
    for tag in range(1, 200):
        patient.fill()
        assert names(patient.wait(5)) in ([], ["Basic.Deliver", "ContentHeader", "ContentBody"])
        client.send(Basic.Ack(tag))
        client.take()


@pytest.mark.parametrize("milliseconds", [5_000, 40_000])
def test_a_queue_has_its_own_time(milliseconds: int) -> None:
    patient = start({"x-consumer-timeout": milliseconds}, seconds=20)
    patient.client.consume("q", "c")
    assert patient.wait(milliseconds // 1000) == []
    assert timed_out(patient.wait(late(milliseconds / 1000))) == milliseconds


def test_a_policy_holds_at_once_and_the_shorter_of_it_and_the_argument() -> None:
    patient = start({"x-consumer-timeout": 40_000})
    patient.client.consume("q", "c")
    assert patient.wait(30) == []
    patient.server.vhost.set_policy(Policy("p", "^q$", {"consumer-timeout": 20_000}))
    patient.server.settle()
    assert timed_out(patient.wait(1)) == 20_000


@pytest.mark.parametrize(
    ("arguments", "seconds"), [({"x-consumer-timeout": 0}, 10), (None, 0)], ids=["queue", "broker"]
)
def test_zero_is_no_limit(arguments: dict[str, Any] | None, seconds: int) -> None:
    patient = start(arguments, seconds)
    patient.client.consume("q", "c")
    assert patient.wait(5000) == []


@pytest.mark.parametrize("value", [-1, "5000", True, 1.5])
def test_what_is_no_number_of_milliseconds_is_406(client: Client, value: object) -> None:
    arguments: dict[str, Any] = {"x-consumer-timeout": value}
    close = client.ask(Queue.Declare(queue="q", arguments=arguments))
    assert isinstance(close, Channel.Close)
    assert close.reply_code == 406


def test_what_basic_get_took_counts() -> None:
    patient = start(seconds=10)
    patient.client.get("q", no_ack=False)
    assert patient.wait(10) == []
    assert timed_out(patient.wait(late(10))) == 10_000


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_makes_no_difference_to_the_time_for_acknowledgements(
    step: int,
) -> None:
    server = Server(config=Config(limits=LimitsConfig(consumer_timeout_seconds=10)))
    client = server.open(heartbeat=0)
    client.declare("q")
    client.feed(publish_frames("q"))
    client.consume("q", "c")
    client.take()
    server.advance(5)
    server.step_clock(step)
    server.advance(4)
    assert client.take() == []
    server.step_clock(step)
    server.advance(late(10) - 9)
    assert timed_out(client.take()) == 10_000


def test_what_needs_no_acknowledgement_does_not_count() -> None:
    patient = start(seconds=10)
    patient.client.consume("q", "c", no_ack=True)
    assert patient.wait(100) == []


def test_what_awaits_the_commit_of_its_acknowledgement_does_not_count() -> None:
    patient = start(seconds=10)
    patient.client.call(Tx.Select())
    patient.client.get("q", no_ack=False)
    patient.client.call(Basic.Ack(1))
    assert patient.wait(100) == []
    patient.client.call(Tx.Rollback())
    assert timed_out(patient.wait(late(10))) == 10_000


def test_the_oldest_delivery_counts_though_a_rollback_has_put_it_behind_later_ones() -> None:
    patient = start({"x-consumer-timeout": 10_000}, seconds=0)
    client = patient.client
    client.declare("patient")
    patient.fill(queue="patient")
    client.call(Tx.Select())
    client.get("q", no_ack=False)
    client.get("patient", no_ack=False)
    client.call(Basic.Ack(1))
    client.call(Tx.Rollback())
    assert timed_out(patient.wait(late(10))) == 10_000


def test_the_oldest_delivery_has_time_though_a_later_one_has_not() -> None:
    """As RabbitMQ does it: those behind the oldest one are not looked at."""
    patient = start({"x-consumer-timeout": 10_000}, seconds=0)
    client = patient.client
    client.declare("patient")
    patient.fill(queue="patient")
    client.call(Tx.Select())
    client.get("patient", no_ack=False)
    client.get("q", no_ack=False)
    client.call(Basic.Ack(1))
    client.call(Tx.Rollback())
    assert patient.wait(late(10)) == []
    client.call(Basic.Ack(1))
    client.call(Tx.Commit())
    assert timed_out(patient.wait(late(10))) == 10_000


def test_what_waits_for_its_channel_to_be_read_is_not_late() -> None:
    """Acknowledgements may lie in the input that is held back."""
    patient = start(seconds=10)
    client = patient.client
    client.call(Basic.Qos(prefetch_count=1))
    client.consume("q", "c")
    client.connection.hold_input(FOR_ANSWERS)
    client.send(Basic.Ack(1))
    assert patient.wait(100) == []
    client.connection.continue_input(FOR_ANSWERS)
    patient.server.settle()
    assert names(client.take()) == ["Basic.Deliver", "ContentHeader", "ContentBody"]
    assert patient.wait(10) == []
    assert timed_out(patient.wait(late(10))) == 10_000


def test_a_channel_is_not_asked_for_the_deliveries_of_another() -> None:
    patient = start(seconds=10)
    patient.client.open_channel(2)
    patient.client.call(Basic.Get(queue="q", no_ack=False), channel=2)
    patient.client.consume("q", "c")
    patient.client.call(Basic.Ack(1))
    for _ in range(late(10)):
        patient.now += 1
        patient.client.connection.tick(patient.now)
    patient.server.settle()
    closed = [
        channel
        for channel, received in patient.client.take_with_channels()
        if isinstance(received, Channel.Close)
    ]
    assert closed == [2]


def test_the_marks_of_a_channel_are_bounded() -> None:
    times = DeliveryTimes()
    most = 0
    for second in range(HALF_AN_HOUR):
        times.age(float(second), 1, second + 1, HALF_AN_HOUR / TIMEOUT_MARKS)
        most = max(most, len(times))
    assert most <= TIMEOUT_MARKS + 1
    times.age(float(HALF_AN_HOUR), HALF_AN_HOUR + 1, HALF_AN_HOUR + 1, 1)
    assert len(times) == 1


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=3)), max_size=60))
def test_an_age_is_never_more_than_it_is_and_less_by_two_marks_at_most(
    seconds: list[tuple[int, list[int]]],
) -> None:
    """In each second so many are delivered, and those at these places are acknowledged."""
    times = DeliveryTimes()
    delivered: dict[int, float] = {}
    newest, now = 0, 0.0
    for count, acknowledged in seconds:
        for _ in range(count):
            newest += 1
            delivered[newest] = now
        for place in acknowledged:
            if place < len(delivered):
                del delivered[list(delivered)[place]]
        now += 1
        if not delivered:
            times.clear()
            continue
        oldest = min(delivered)
        age = times.age(now, oldest, newest, 4.0)
        assert 0 <= age <= now - delivered[oldest] <= age + 4.0 + 1.0

"""Whole runs against the relay, faithful and faulty."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from bench import load
from bench.endpoints import Address, PeerError
from bench.load import Lane, Limits, RunResult, run_closed, run_count, run_paced
from bench.relay import AmqpRelayConnection, MqttRelayConnection, Relay, RelayConnection
from bench.scenarios import SCENARIOS, Scenario, open_lanes
from bench.servers import Relay as RelayServer
from bench.verify import Tally

RELAYED = [
    scenario
    for scenario in SCENARIOS.values()
    if scenario.source == scenario.target
    and scenario.source in RelayServer.protocols
    and scenario.lanes <= 4
]


class FramingConnection(MqttRelayConnection):
    """Forwards a publisher's packets whole, so that a fault hits messages and not bytes."""

    def consume(self, filled: int) -> int:
        if self.buffer[0] & 0xF0 == 0x30:
            size = self.buffer[1] + 2
            filled -= filled % size
        return super().consume(filled)


class LosingConnection(FramingConnection):
    """Forgets the second chunk that a publisher sends."""

    chunks = 0

    def consume(self, filled: int) -> int:
        if self.targets:
            self.chunks += 1
            if self.chunks == 1:
                return filled - filled % (self.buffer[1] + 2)
        return super().consume(filled)


class RepeatingConnection(FramingConnection):
    """Forwards everything twice."""

    def write(self, data: bytes | memoryview) -> None:
        super().write(data)
        if self.sources:
            super().write(data)


class ClosingConnection(MqttRelayConnection):
    """Closes on the first PUBLISH."""

    def consume(self, filled: int) -> int:
        if self.buffer[0] & 0xF0 == 0x30:
            raise PeerError("not today")
        return super().consume(filled)


class BabblingConnection(MqttRelayConnection):
    """Sends a subscriber a packet nobody asked for: PINGRESP."""

    def write(self, data: bytes | memoryview) -> None:
        super().write(b"\xd0\0" + data if self.sources else data)


@contextmanager
def relay_with(
    mqtt: type[RelayConnection] = MqttRelayConnection,
) -> Iterator[Mapping[str, Address]]:
    """Run a relay in a thread; yield its addresses."""
    relay = Relay()
    addresses = {"mqtt": relay.listen(0, mqtt), "amqp": relay.listen(0, AmqpRelayConnection)}
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            relay.turn(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield addresses
    finally:
        stopping.set()
        thread.join()
        relay.close()


def closed_run(scenario: Scenario, addresses: Mapping[str, Address]) -> RunResult:
    with open_lanes(scenario, addresses) as lanes:
        return run_closed(lanes, scenario.limits, 0.02, 0.05, lambda: 0.0)


@pytest.mark.parametrize("scenario", RELAYED, ids=lambda scenario: scenario.name)
def test_every_message_of_a_closed_run_is_accounted_for(scenario: Scenario) -> None:
    with relay_with() as addresses:
        result = closed_run(scenario, addresses)
    assert result.tally == Tally(0, 0, 0)
    assert result.unconfirmed == result.refused == 0
    assert result.total_sent > 0
    assert result.total_delivered == result.total_sent * scenario.receivers
    assert 0 <= result.delivered <= result.total_delivered
    assert result.rate == pytest.approx(result.delivered / result.seconds)


@pytest.mark.parametrize("name", ["mqtt-qos0-fanout-1to10", "mqtt-qos2-1to1", "amqp-confirmed-4q"])
def test_a_paced_run_times_each_delivery(name: str) -> None:
    scenario = SCENARIOS[name]
    with relay_with() as addresses, open_lanes(scenario, addresses) as lanes:
        result = run_paced(lanes, 1000, 0.0, 0.1, lambda: 0.0)
    assert result.total_sent > 0
    assert result.tally == Tally(0, 0, 0)
    assert len(result.delays) == result.total_sent * scenario.receivers
    assert (result.delays >= 0).all()
    assert (result.delays < 60).all()


def test_a_counted_run_sends_exactly_so_many() -> None:
    scenario = SCENARIOS["amqp-confirmed-4q"]
    with relay_with() as addresses, open_lanes(scenario, addresses) as lanes:
        result = run_count(lanes, scenario.limits, 2500, lambda: 0.0)
    assert result.total_sent == result.total_delivered == 10_000
    assert result.tally == Tally(0, 0, 0)


def test_a_wave_begins_when_all_lanes_are_done_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = replace(SCENARIOS["mqtt-qos1-1to1"], lanes=4)
    sent: list[int] = []
    refill = Lane.refill

    def watched(lane: Lane, limits: Limits) -> None:
        sent.append(lane.publisher.sent)
        refill(lane, limits)

    monkeypatch.setattr(Lane, "refill", watched)
    with relay_with() as addresses, open_lanes(scenario, addresses) as lanes:
        result = run_count(lanes, Limits(100), 250, lambda: 0.0, None, nullcontext)
    assert result.total_delivered == 1000
    assert sent == [0] * 4 + [100] * 4 + [200] * 4


def test_a_held_server_is_answered_while_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    is_held = False
    turns: list[bool] = []
    turn = load.Loop.turn

    @contextmanager
    def hold() -> Iterator[None]:
        nonlocal is_held
        is_held = True
        yield
        is_held = False

    def watched(loop: load.Loop, timeout: float) -> set[Lane]:
        turns.append(is_held)
        return turn(loop, timeout)

    monkeypatch.setattr(load.Loop, "turn", watched)
    scenario = SCENARIOS["mqtt-qos2-1to1"]
    with relay_with() as addresses, open_lanes(scenario, addresses) as lanes:
        result = run_count(lanes, Limits(100), 250, lambda: 0.0, None, hold)
    assert (result.total_sent, result.unconfirmed) == (250, 0)
    assert turns
    assert all(turns)


def test_a_wave_that_is_not_answered_ends_the_run() -> None:
    class Silent(MqttRelayConnection):
        """Forwards nothing but what comes first."""

        def consume(self, filled: int) -> int:
            return filled if self.targets else super().consume(filled)

    scenario = SCENARIOS["mqtt-qos1-1to1"]
    with relay_with(Silent) as addresses, open_lanes(scenario, addresses) as lanes:
        result = run_count(lanes, Limits(100), 250, lambda: 0.0, 0.1, nullcontext)
    assert (result.total_sent, result.unconfirmed) == (200, 100)


def test_lost_messages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "DRAIN_SECONDS", 0.1)
    with relay_with(LosingConnection) as addresses:
        result = closed_run(SCENARIOS["mqtt-qos0-1to1"], addresses)
    missing = result.total_sent - result.total_delivered
    assert missing > 0
    assert result.tally == Tally(missing, 0, 0)


def test_duplicated_messages_are_counted() -> None:
    with relay_with(RepeatingConnection) as addresses:
        result = closed_run(SCENARIOS["mqtt-qos0-1to1"], addresses)
    assert result.tally.duplicated > 0
    assert result.tally.unexpected == 0
    assert result.tally.duplicated - result.tally.lost == (
        result.total_delivered - result.total_sent
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [(ClosingConnection, "closed|lost"), (BabblingConnection, "not the expected PUBLISH")],
)
def test_a_server_that_misbehaves_fails_the_run(kind: type[RelayConnection], message: str) -> None:
    with relay_with(kind) as addresses, pytest.raises(PeerError, match=message):
        closed_run(SCENARIOS["mqtt-qos0-1to1"], addresses)


def test_a_refused_connection_says_how_it_was_refused() -> None:
    class RefusingConnection(MqttRelayConnection):
        def write(self, data: bytes | memoryview) -> None:
            super().write(b"\x20\x02\x00\x05")

    with (
        relay_with(RefusingConnection) as addresses,
        pytest.raises(PeerError, match="CONNECT was answered by 20 02 00 05"),
        open_lanes(SCENARIOS["mqtt-qos0-1to1"], addresses),
    ):
        pass


def test_the_backlog_and_the_window_bound_what_is_under_way() -> None:
    scenario = replace(SCENARIOS["mqtt-qos1-1to1"], window=7)
    most = 0

    class Watching(MqttRelayConnection):
        def consume(self, filled: int) -> int:
            nonlocal most
            if self.targets:
                most = max(most, filled // 80)
            return super().consume(filled)

    with relay_with(Watching) as addresses:
        closed_run(scenario, addresses)
    assert 0 < most <= 7

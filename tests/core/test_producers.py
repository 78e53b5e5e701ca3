"""Idempotent producers: epochs, sequence numbers, restart."""

from __future__ import annotations

import pytest

from tests.support.core import open_broker
from tests.support.server import move_to
from tests.support.steps import calls
from trivium.idempotence.producers import FENCED, GAP, IDLE_HOURS, MAX_PRODUCERS, Producers
from trivium.runtime.broker import Broker
from trivium.storage.memory import MemoryStorage, MemoryTable

HOUR = 3_600_000


def made(table: MemoryTable | None = None, broker: Broker | None = None) -> Producers:
    broker = open_broker() if broker is None else broker
    return Producers(MemoryTable() if table is None else table, broker)


def pass_hours(broker: Broker, hours: int) -> None:
    """Time passes, and everything that is due is done."""
    end = broker.elapsed_ms + hours * HOUR
    while broker.elapsed_ms < end:
        move_to(broker, min(broker.next_at() or end, end))
        broker.end_turn()


def test_a_producer_that_was_never_opened_is_fenced() -> None:
    assert made().check(b"p", 0, 0) == FENCED


def test_duplicates_are_counted_and_gaps_found() -> None:
    producers = made()
    assert producers.open(b"p") == (0, 0)
    assert producers.check(b"p", 0, 0) == 0
    producers.advance(b"p", 0, 10)
    assert producers.expected(b"p") == 10
    assert producers.check(b"p", 0, 10) == 0
    assert producers.check(b"p", 0, 7) == 3
    assert producers.check(b"p", 0, 11) == GAP


def test_opening_again_fences_the_old_epoch_and_keeps_the_numbers() -> None:
    producers = made()
    producers.open(b"p")
    producers.advance(b"p", 0, 5)
    assert producers.open(b"p") == (1, 5)
    assert producers.check(b"p", 0, 5) == FENCED
    assert producers.check(b"p", 2, 5) == FENCED
    assert producers.check(b"p", 1, 5) == 0


def test_the_state_is_in_the_storage_of_the_virtual_host() -> None:
    storage = MemoryStorage()
    broker = open_broker(storage)
    producers = broker.vhosts["/"].producers
    producers.open(b"p")
    producers.advance(b"p", 0, 5)
    broker.end_turn()
    assert open_broker(storage).vhosts["/"].producers.check(b"p", 0, 2) == 3


def test_their_number_is_bounded() -> None:
    producers = made()
    for n in range(MAX_PRODUCERS):
        producers.open(b"%d" % n)
    assert producers.open(b"new") is None
    assert producers.open(b"7") == (1, 0)


def test_a_producer_is_forgotten_after_a_week_without_use() -> None:
    broker = open_broker()
    producers = made(broker=broker)
    for name in (b"idle", b"busy", b"opened"):
        producers.open(name)
        producers.advance(name, 0, 9)
    pass_hours(broker, IDLE_HOURS)
    assert producers.expected(b"idle") == 9
    producers.advance(b"busy", 0, 10)
    producers.open(b"opened")
    pass_hours(broker, 3)
    assert producers.check(b"idle", 0, 9) == FENCED
    assert producers.open(b"idle") == (0, 0)
    assert producers.check(b"busy", 0, 10) == 0
    assert producers.open(b"opened") == (2, 9)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_wall_clock_changes_idle_time_by_no_more_than_itself(step: int) -> None:
    broker = open_broker()
    producers = made(broker=broker)
    producers.open(b"p")
    broker.now_ms += step
    broker.clock_offset += step
    broker.end_turn()
    pass_hours(broker, IDLE_HOURS - 1)
    assert producers.check(b"p", 0, 0) == 0
    pass_hours(broker, 4)
    assert producers.check(b"p", 0, 0) == FENCED


def test_idle_time_goes_on_over_a_restart() -> None:
    table = MemoryTable()
    broker = open_broker()
    made(table, broker).open(b"p")
    again = open_broker()
    again.now_ms = broker.now_ms + IDLE_HOURS * HOUR
    producers = made(table, again)
    assert producers.check(b"p", 0, 0) == 0
    pass_hours(again, 2)
    assert producers.check(b"p", 0, 0) == FENCED
    assert len(table) == 0


def test_forgetting_many_takes_more_than_one_turn() -> None:
    broker = open_broker()
    producers = made(broker=broker)
    for number in range(5000):
        producers.open(b"%d" % number)
    broker.now_ms += (IDLE_HOURS + 2) * HOUR
    broker.end_turn()
    left = [n for n in range(5000) if producers.check(b"%d" % n, 0, 0) == 0]
    assert 3000 < len(left) < 5000
    pass_hours(broker, 1)
    assert all(producers.check(b"%d" % n, 0, 0) == FENCED for n in range(5000))
    assert broker.next_at() == 0


@pytest.mark.pure
def test_numbers_that_go_on_in_a_turn_are_written_once() -> None:
    broker = open_broker()
    producers = made(MemoryTable(), broker)
    producers.open(b"p")
    broker.end_turn()
    before = broker.changes

    def turn() -> None:
        for sequence in range(1, 101):
            assert producers.check(b"p", 0, sequence - 1) == 0
            producers.advance(b"p", 0, sequence)
        assert broker.changes == before + 100
        broker.end_turn()

    assert calls(MemoryTable.put, turn) == 1
    assert producers.expected(b"p") == 100


def test_a_producer_that_is_deleted_in_the_turn_of_its_numbers_is_gone() -> None:
    storage = MemoryStorage()
    broker = open_broker(storage)
    producers = broker.vhosts["/"].producers
    producers.open(b"p")
    producers.advance(b"p", 0, 5)
    producers.delete(b"p")
    broker.end_turn()
    assert producers.check(b"p", 0, 5) == FENCED


def test_opening_fences_what_went_on_in_the_same_turn() -> None:
    storage = MemoryStorage()
    broker = open_broker(storage)
    producers = broker.vhosts["/"].producers
    producers.open(b"p")
    producers.advance(b"p", 0, 5)
    assert producers.open(b"p") == (1, 5)
    broker.end_turn()
    assert open_broker(storage).vhosts["/"].producers.check(b"p", 1, 5) == 0

"""Idempotent producers: epochs, sequence numbers, restart."""

from __future__ import annotations

from tests.core.harness import open_broker
from trivium.producers import FENCED, GAP, MAX_PRODUCERS, Producers
from trivium.storage.memory import MemoryStorage, MemoryTable


def test_a_producer_that_was_never_opened_is_fenced() -> None:
    assert Producers(MemoryTable()).check(b"p", 0, 0) == FENCED


def test_duplicates_are_counted_and_gaps_found() -> None:
    producers = Producers(MemoryTable())
    assert producers.open(b"p") == (0, 0)
    assert producers.check(b"p", 0, 0) == 0
    producers.advance(b"p", 0, 10)
    assert producers.expected(b"p") == 10
    assert producers.check(b"p", 0, 10) == 0
    assert producers.check(b"p", 0, 7) == 3
    assert producers.check(b"p", 0, 11) == GAP


def test_opening_again_fences_the_old_epoch_and_keeps_the_numbers() -> None:
    producers = Producers(MemoryTable())
    producers.open(b"p")
    producers.advance(b"p", 0, 5)
    assert producers.open(b"p") == (1, 5)
    assert producers.check(b"p", 0, 5) == FENCED
    assert producers.check(b"p", 2, 5) == FENCED
    assert producers.check(b"p", 1, 5) == 0


def test_the_state_is_in_the_storage_of_the_virtual_host() -> None:
    storage = MemoryStorage()
    producers = open_broker(storage).vhosts["/"].producers
    producers.open(b"p")
    producers.advance(b"p", 0, 5)
    assert open_broker(storage).vhosts["/"].producers.check(b"p", 0, 2) == 3


def test_their_number_is_bounded() -> None:
    producers = Producers(MemoryTable())
    for n in range(MAX_PRODUCERS):
        producers.advance(b"%d" % n, 0, 0)
    assert producers.open(b"new") is None
    assert producers.open(b"7") == (1, 0)

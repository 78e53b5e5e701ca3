"""What runs on a lane lets the loop go on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.core.storage.simulated import Host
from trivium.storage.chunks import CHUNK_RECORDS
from trivium.storage.executor import TimeSlice


class Clock:
    """In place of the system's: how often the interpreter lock was given up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        #: how much later it is each time that it is asked
        self.passing = 0.0
        self.given_up = 0

    def monotonic(self) -> float:
        self.seconds += self.passing
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds == 0
        self.given_up += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", clock.monotonic)
        patch.setattr(time, "sleep", clock.sleep)
        yield clock


def test_the_lock_is_given_up_once_it_was_kept_for_long_and_not_before(clock: Clock) -> None:
    slice_ = TimeSlice()
    slice_.pause()
    assert clock.given_up == 0
    clock.seconds += 0.1
    slice_.pause()
    slice_.pause()
    assert clock.given_up == 1


@pytest.mark.parametrize(("size", "count"), [(64, 20_000), (4096, 400)])
def test_a_batch_is_written_in_short_pieces(clock: Clock, size: int, count: int) -> None:
    host = Host()
    for _ in range(count):
        host.storage.log("l").append(bytes(size))
    clock.passing = 0.1
    host.commit()
    assert clock.given_up >= 2 * count // 1000


def test_a_checkpoint_pauses_between_chunks(clock: Clock) -> None:
    host = Host()
    chunks = 20
    for _ in range(chunks * CHUNK_RECORDS):
        host.storage.log("l").append(b"x")
    host.commit()
    host.storage.free_space()
    clock.passing = 0.1
    host.commit()
    assert host.disk.names("data/segments")
    # When they are written, and when their rows are made.
    assert clock.given_up >= 2 * chunks

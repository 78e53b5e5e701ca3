"""What every storage does, asserted of the memory and the disk storage alike."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.simulated import Host, Recorder
from trivium.storage.base import Log, Storage
from trivium.storage.memory import MemoryStorage
from trivium.storage.segments.chunks import CHUNK_BYTES, CHUNK_RECORDS

EVERYTHING = 1 << 40


@pytest.fixture(params=["memory", "disk"])
def storage(request: pytest.FixtureRequest) -> Storage:
    return MemoryStorage() if request.param == "memory" else Host().storage


def offsets(log: Log, start: int = 0) -> list[int]:
    return [offset for offset, _, _ in log.read(start, EVERYTHING, EVERYTHING)]


def test_offsets_start_at_0_and_rise_by_count(storage: Storage) -> None:
    log = storage.log("l")
    assert [log.append(b"a"), log.append(b"b", 5), log.append(b"c")] == [0, 1, 6]
    assert log.next_offset == 7
    assert log.first_offset == 0


def test_a_log_or_table_is_made_once(storage: Storage) -> None:
    assert storage.log("a") is storage.log("a")
    assert storage.table("a") is storage.table("a")
    assert storage.log_names() == ["a"]


def test_skip_gives_out_offsets_without_records(storage: Storage) -> None:
    log = storage.log("l")
    assert log.skip(3) == 0
    assert log.first_offset == 3
    assert log.append(b"x") == 3
    assert log.skip() == 4
    assert log.append(b"y") == 5
    assert log.first_offset == 3
    assert log.read(0, 10, 100) == [(3, b"x", b""), (5, b"y", b"")]
    assert len(log) == 2


def test_read_begins_with_the_record_that_ends_after_the_offset(storage: Storage) -> None:
    log = storage.log("l")
    log.append(b"a", 10)
    log.append(b"b", 10)
    log.skip(10)
    log.append(b"c")
    assert offsets(log, 9) == [0, 10, 30]
    assert offsets(log, 10) == [10, 30]
    assert offsets(log, 20) == [30]
    assert offsets(log, 31) == []


def test_read_returns_one_record_however_large(storage: Storage) -> None:
    log = storage.log("l")
    log.append(b"x" * 100)
    log.append(b"y" * 100)
    assert log.read(0, 10, 1) == [(0, b"x" * 100, b"")]
    assert log.read(0, 10, 199) == [(0, b"x" * 100, b"")]
    assert len(log.read(0, 10, 200)) == 2
    assert len(log.read(0, 1, 200)) == 1
    assert log.read(0, 0, 200) == []


def test_a_joined_record_takes_the_place_of_those_before(storage: Storage) -> None:
    log = storage.log("l")
    for n in range(CHUNK_RECORDS * 3):
        log.append(b"%d" % n, 2)
    first, end = 10, 2 * (CHUNK_RECORDS * 2 + 7)
    assert log.join(first, end, b"joined")
    assert [(offset, record) for offset, record, _ in log.read(0, EVERYTHING, EVERYTHING)] == [
        *((2 * n, b"%d" % n) for n in range(5)),
        (first, b"joined"),
        *((2 * n, b"%d" % n) for n in range(CHUNK_RECORDS * 2 + 7, CHUNK_RECORDS * 3)),
    ]
    assert offsets(log, end - 1)[0] == first
    assert len(log) == 5 + 1 + CHUNK_RECORDS - 7
    assert log.append(b"next") == CHUNK_RECORDS * 6
    assert (log.first_offset, offsets(log)[-1]) == (0, CHUNK_RECORDS * 6)


def test_everything_may_be_joined(storage: Storage) -> None:
    log = storage.log("l")
    for _ in range(CHUNK_RECORDS * 2):
        log.append(b"x")
    assert log.join(0, CHUNK_RECORDS * 2, b"joined")
    log.append(b"y")
    assert log.read(0, 10, 100) == [(0, b"joined", b""), (CHUNK_RECORDS * 2, b"y", b"")]


def test_what_was_removed_is_not_joined(storage: Storage) -> None:
    log = storage.log("l")
    for _ in range(10):
        log.append(b"x")
    log.truncate(3)
    assert not log.join(2, 10, b"joined")
    assert offsets(log) == list(range(3, 10))


def test_what_lies_in_a_segment_is_not_joined() -> None:
    host = Host(checkpoint_size=1000)
    log = host.storage.log("l")
    for _ in range(100):
        log.append(b"x" * 100)
        host.commit()
    before = host.contents("l")
    assert not log.join(0, 100, b"joined")
    assert host.contents("l") == before


def test_notes_belong_to_one_log(storage: Storage) -> None:
    record = b"shared"
    storage.log("a").append(record, 1, b"note a")
    storage.log("b").append(record, 1, b"note b")
    storage.log("c").append(record)
    assert storage.log("a").read(0, 1, 1) == [(0, record, b"note a")]
    assert storage.log("b").read(0, 1, 1) == [(0, record, b"note b")]
    assert storage.log("c").read(0, 1, 1) == [(0, record, b"")]


def test_a_removal_takes_a_range_with_both_ends(storage: Storage) -> None:
    log = storage.log("l")
    for _ in range(10):
        log.append(b"x")
    log.remove(3, 5)
    assert offsets(log) == [0, 1, 2, 6, 7, 8, 9]
    assert (log.first_offset, len(log)) == (0, 7)
    log.remove(0, 2)
    assert (log.first_offset, len(log)) == (6, 4)
    log.remove(0, EVERYTHING)
    assert (log.first_offset, log.next_offset, len(log)) == (10, 10, 0)
    assert log.append(b"y") == 10
    assert log.first_offset == 10


def test_a_record_is_removed_once(storage: Storage) -> None:
    log = storage.log("l")
    log.append(b"x")
    log.append(b"y")
    log.remove(0, 0)
    log.remove(0, 0)
    assert len(log) == 1


def test_a_removal_takes_what_starts_in_the_range(storage: Storage) -> None:
    log = storage.log("l")
    log.append(b"a", 10)
    log.append(b"b", 10)
    log.remove(5, 9)
    assert offsets(log) == [0, 10]
    log.remove(10, 10)
    assert offsets(log) == [0]


def test_truncate_keeps_a_record_that_reaches_the_offset(storage: Storage) -> None:
    log = storage.log("l")
    log.append(b"a", 10)
    log.append(b"b", 10)
    log.skip(5)
    log.append(b"c")
    log.truncate(9)
    assert log.first_offset == 0
    log.truncate(10)
    assert log.first_offset == 10
    log.truncate(22)
    assert log.first_offset == 25
    log.truncate(EVERYTHING)
    assert (log.first_offset, log.next_offset) == (26, 26)


def test_records_fill_many_chunks(storage: Storage) -> None:
    log = storage.log("l")
    count = 3 * CHUNK_RECORDS + 1
    for number in range(count):
        assert log.append(b"%d" % number) == number
    log.remove(1, 2 * CHUNK_RECORDS + 5)
    assert offsets(log) == [0, *range(2 * CHUNK_RECORDS + 6, count)]
    assert offsets(log, CHUNK_RECORDS)[:2] == [2 * CHUNK_RECORDS + 6, 2 * CHUNK_RECORDS + 7]
    log.remove(0, 0)
    assert log.first_offset == 2 * CHUNK_RECORDS + 6


def test_large_records_fill_chunks_by_size(storage: Storage) -> None:
    log = storage.log("l")
    large = b"x" * (CHUNK_BYTES // 2)
    for _ in range(5):
        log.append(large)
    assert [record for _, record, _ in log.read(0, 10, EVERYTHING)] == [large] * 5
    log.remove(0, 3)
    assert offsets(log) == [4]


def test_a_dropped_log_comes_back_empty(storage: Storage) -> None:
    storage.log("l").append(b"x")
    storage.drop_log("l")
    storage.drop_log("l")
    assert storage.log_names() == []
    assert (len(storage.log("l")), storage.log("l").next_offset) == (0, 0)


def test_everything_in_memory_is_loaded(storage: Storage) -> None:
    log = storage.log("l")
    assert log.is_loaded(0)
    log.append(b"x")
    assert log.is_loaded(0)
    assert log.is_loaded(1)


def test_table_put_get_delete(storage: Storage) -> None:
    table = storage.table("t")
    table.put(b"a", b"1")
    table.put(b"b", b"")
    table.put(b"a", b"2")
    table.delete(b"none")
    assert (table.get(b"a"), table.get(b"b"), table.get(b"none")) == (b"2", b"", None)
    assert sorted(table.items()) == [(b"a", b"2"), (b"b", b"")]
    table.delete(b"a")
    assert (len(table), table.get(b"a")) == (1, None)


def test_wait_names_the_current_batch(storage: Storage) -> None:
    waiter = Recorder()
    assert storage.wait(waiter) == storage.write_batch


class LogMachine(RuleBasedStateMachine):
    """A memory log, a disk log and a dict do the same."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = [MemoryStorage().log("l"), Host().storage.log("l")]
        self.model: dict[int, tuple[int, bytes, bytes]] = {}
        self.next_offset = 0

    @rule(
        records=st.lists(st.binary(max_size=3), min_size=1, max_size=600),
        count=st.sampled_from([1, 1, 1, 7]),
        annotation=st.sampled_from([b"", b"n"]),
    )
    def append(self, records: list[bytes], count: int, annotation: bytes) -> None:
        for record in records:
            for log in self.logs:
                assert log.append(record, count, annotation) == self.next_offset
            self.model[self.next_offset] = (self.next_offset + count, record, annotation)
            self.next_offset += count

    @rule(records=st.lists(st.binary(max_size=3), min_size=1, max_size=1200))
    def append_run(self, records: list[bytes]) -> None:
        for log in self.logs:
            assert log.append_run(records) == self.next_offset
        for record in records:
            self.model[self.next_offset] = (self.next_offset + 1, record, b"")
            self.next_offset += 1

    @rule(count=st.sampled_from([1, 1, 1000]))
    def skip(self, count: int) -> None:
        for log in self.logs:
            assert log.skip(count) == self.next_offset
        self.next_offset += count

    @precondition(lambda self: self.next_offset > 0)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.next_offset))
        last = data.draw(st.one_of(st.just(first), st.integers(first, self.next_offset + 5)))
        for log in self.logs:
            log.remove(first, last)
        self.model = {at: each for at, each in self.model.items() if not first <= at <= last}

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        before = data.draw(st.integers(0, self.next_offset + 5))
        for log in self.logs:
            log.truncate(before)
        self.model = {at: each for at, each in self.model.items() if each[0] > before}

    @rule(data=st.data(), max_records=st.integers(1, 600), max_bytes=st.integers(0, 1000))
    def read(self, data: st.DataObject, max_records: int, max_bytes: int) -> None:
        offset = data.draw(st.integers(0, self.next_offset + 5))
        expected: list[tuple[int, bytes, bytes]] = []
        size = 0
        for at, (end, record, annotation) in self.model.items():
            if end > offset and len(expected) < max_records:
                size += len(record)
                if expected and size > max_bytes:
                    break
                expected.append((at, record, annotation))
        for log in self.logs:
            assert log.is_loaded(offset)
            assert log.read(offset, max_records, max_bytes) == expected

    @invariant()
    def agree(self) -> None:
        for log in self.logs:
            assert len(log) == len(self.model)
            assert log.next_offset == self.next_offset
            assert log.first_offset == min(self.model, default=self.next_offset)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestLogMachine = LogMachine.TestCase


def test_the_newest_records_of_a_size_are_found(storage: Storage) -> None:
    log = storage.log("l")
    assert log.offset_of_newest(1) == -1
    for _ in range(2000):
        log.append(bytes(10), 3)
    assert log.offset_of_newest(1) == 5997
    assert log.offset_of_newest(10) == 5997
    assert log.offset_of_newest(11) == 5994
    assert log.offset_of_newest(19_990) == 3
    assert log.offset_of_newest(20_000) == 0
    assert log.offset_of_newest(20_001) == -1
    log.truncate(300)
    assert log.offset_of_newest(19_000) == 300
    assert log.offset_of_newest(18_990) == 303
    assert log.offset_of_newest(19_001) == -1

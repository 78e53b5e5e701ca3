"""Changes: each kind is read back as it was made, and what is cut or no change is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.storage.contents.changes import (
    APPEND,
    APPEND_SAME,
    DEFINE_LOG,
    DEFINE_TABLE,
    DROP_LOG,
    LARGE,
    NEXT_OFFSET,
    PIECE_SIZE,
    REMOVE,
    TRUNCATE,
    Changes,
    ChangeVisitor,
    WrongChange,
    read_changes,
)

Seen = tuple[str | int | bytes, ...]


class Recorder(ChangeVisitor):
    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def append(self, log: int, offset: int, count: int, record: bytes, annotation: bytes) -> None:
        self.seen.append(("append", log, offset, count, record, annotation))

    def change_log(self, kind: int, log: int, first: int, last: int) -> None:
        self.seen.append((kind, log, first, last))

    def put(self, table: int, key: bytes, value: bytes) -> None:
        self.seen.append(("put", table, key, value))

    def delete(self, table: int, key: bytes) -> None:
        self.seen.append(("delete", table, key))

    def define(self, kind: int, number: int, name: bytes) -> None:
        self.seen.append((kind, number, name))


def made() -> tuple[bytes, list[Seen]]:
    """Changes of every kind, and what a reader is to see."""
    changes = Changes()
    changes.define(DEFINE_LOG, 1, b"log")
    changes.define(DEFINE_TABLE, 2, b"")
    record = b"record"
    changes.append(1, 7, 3, record, b"")
    changes.append(3, 9, 1, record, b"annotation")
    changes.append(1, 10, 1, b"", b"a")
    changes.change_log(REMOVE, 1, 7, 8)
    changes.change_log(TRUNCATE, 1, 9, 0)
    changes.change_log(DROP_LOG, 3, 0, 0)
    changes.change_log(NEXT_OFFSET, 1, 1 << 40, 0)
    changes.put(2, b"key", b"")
    changes.delete(2, b"key")
    seen: list[Seen] = [
        (DEFINE_LOG, 1, b"log"),
        (DEFINE_TABLE, 2, b""),
        ("append", 1, 7, 3, b"record", b""),
        ("append", 3, 9, 1, b"record", b"annotation"),
        ("append", 1, 10, 1, b"", b"a"),
        (REMOVE, 1, 7, 8),
        (TRUNCATE, 1, 9, 0),
        (DROP_LOG, 3, 0, 0),
        (NEXT_OFFSET, 1, 1 << 40, 0),
        ("put", 2, b"key", b""),
        ("delete", 2, b"key"),
    ]
    return b"".join(changes.take()), seen


def test_every_kind_is_seen_as_it_was_made_and_in_order() -> None:
    data, expected = made()
    recorder = Recorder()
    # Other bytes may lie before and behind.
    read_changes(b"before" + data + b"behind", 6, 6 + len(data), recorder)
    assert recorder.seen == expected


@given(st.lists(st.sampled_from([0, 1, 100, LARGE - 1, LARGE, 3 * LARGE, PIECE_SIZE]), max_size=9))
def test_records_and_rows_of_any_sizes_keep_their_order(sizes: list[int]) -> None:
    changes = Changes()
    seen: list[Seen] = []
    for number, size in enumerate(sizes):
        content = bytes([number]) * size
        if number % 2:
            changes.put(7, b"key", content)
            seen.append(("put", 7, b"key", content))
        else:
            changes.append(3, number, 1, content, b"a")
            seen.append(("append", 3, number, 1, content, b"a"))
    pieces = changes.take()
    assert all(pieces)
    data = b"".join(pieces)
    recorder = Recorder()
    read_changes(data, 0, len(data), recorder)
    assert recorder.seen == seen
    assert not changes.take()


@given(st.lists(st.sampled_from([0, 1, LARGE - 1, LARGE, PIECE_SIZE]), min_size=1, max_size=9))
def test_a_run_is_written_as_its_records_one_by_one(sizes: list[int]) -> None:
    records = [bytes([number]) * size for number, size in enumerate(sizes)]
    together = Changes()
    singly = Changes()
    for changes in (together, singly):
        # Another log has the first one already.
        changes.append(3, 0, 1, records[0], b"")
    together.append_run(2, 7, records)
    for number, record in enumerate(records):
        singly.append(2, 7 + number, 1, record, b"")
    assert (together.count, together.size) == (singly.count, singly.size)
    assert together.take() == singly.take()


def test_the_same_record_for_two_logs_is_stored_once() -> None:
    changes = Changes()
    record = bytes(1000)
    for log in (1, 2):
        changes.append(log, 0, 1, record, b"")
    data = b"".join(changes.take())
    assert (data[0], data[len(data) - 24], len(data)) == (APPEND, APPEND_SAME, 1048)


def test_what_is_cut_between_two_changes_is_in_order_and_anywhere_else_it_is_not() -> None:
    data, expected = made()
    whole = 0
    for end in range(len(data) + 1):
        recorder = Recorder()
        try:
            read_changes(data[:end], 0, end, recorder)
        except (WrongChange, IndexError):
            # It may have seen the one that is cut.
            assert recorder.seen[:-1] == expected[: max(len(recorder.seen) - 1, 0)]
            continue
        assert recorder.seen == expected[:whole]
        whole += 1
    assert whole == len(expected) + 1


@pytest.mark.parametrize("kind", [0, 11, 255])
def test_a_kind_that_does_not_exist_is_refused(kind: int) -> None:
    data, expected = made()
    recorder = Recorder()
    data += bytes([kind]) + bytes(40)
    with pytest.raises(WrongChange):
        read_changes(data, 0, len(data), recorder)
    assert recorder.seen == expected

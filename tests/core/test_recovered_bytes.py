"""How many bytes a queue has after a start, which reads none of its messages."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from tests.support.core import broker_of, message, open_vhost
from tests.support.simulated import Host, SimulatedDisk
from trivium.messages.message import Message, decode_record, payload_bytes_of
from trivium.queues.queue import Queue
from trivium.storage.segments.chunks import CHUNK_RECORDS
from trivium.vhost.virtual_host import VirtualHost

COUNT = 3 * CHUNK_RECORDS
LARGEST = 97


def size_of(number: int) -> int:
    return number % LARGEST


class Process:
    """A broker on a simulated disk."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.host = Host(disk)
        self.vhost: VirtualHost = open_vhost(self.host.storage)

    @property
    def queue(self) -> Queue:
        return self.vhost.queues["q"]

    @property
    def bytes(self) -> int:
        """Those of the queue, which are those of its virtual host."""
        assert self.vhost.queued_bytes == self.queue.ready.bytes
        return self.queue.ready.bytes

    def settle(self) -> None:
        broker_of(self.vhost).end_turn()
        self.host.commit()

    def fill(self, *numbers: int) -> None:
        for number in numbers:
            self.queue.put(message(b"x" * size_of(number)), b"")
        self.settle()

    def take(self, most: int) -> list[int]:
        """Take and settle so many: their sizes."""
        sizes: list[int] = []
        while len(sizes) < most:
            entry = self.queue.get()
            if entry is None:
                if not self.queue.ready.is_loading:
                    break
                self.settle()
                continue
            sizes.append(entry.message.size)
            self.queue.settle(entry)
        self.settle()
        return sizes

    def again(self, is_clean: bool) -> Process:
        """The next process."""
        if is_clean:
            self.host.storage.close()
        return Process(self.host.disk.copy())


def filled() -> Process:
    process = Process()
    process.vhost.declare_queue("q", durable=True)
    process.fill(*range(COUNT))
    return process


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("checkpoints", ["", "before", "behind", "both"])
def test_they_are_those_of_the_messages_before_any_is_read(
    checkpoints: str, is_clean: bool
) -> None:
    process = filled()
    if checkpoints in ("before", "both"):
        process.host.checkpoint()
    process.take(100)
    if checkpoints in ("behind", "both"):
        process.host.checkpoint()
    expected = sum(map(size_of, range(100, COUNT)))
    assert process.bytes == expected
    again = process.again(is_clean)
    if checkpoints == "before":
        # Of what was taken since the checkpoint the sizes are on the disk alone.
        assert abs(again.bytes - expected) < LARGEST * 100
    else:
        assert again.bytes == expected
    again.fill(1, 2, 3)
    assert again.take(COUNT) == [size_of(number) for number in (*range(100, COUNT), 1, 2, 3)]
    assert again.bytes == 0


def test_they_stay_right_where_chunks_are_moved_and_lose_what_is_not_in_memory() -> None:
    process = filled()
    process.host.checkpoint()
    process = process.again(False)
    log = process.queue.ready.lowest.log
    assert log is not None
    kept = {3, 700, 701, COUNT - 1}
    for number in range(COUNT):
        if number not in kept:
            log.remove(number, number)
    process.host.commit()
    # The first notes what was lost, the second moves the rest; what is moved is read for it.
    for _ in range(2):
        process.host.storage.table("filler").put(b"key", b"")
        process.host.checkpoint()
    again = process.again(False)
    assert again.bytes == sum(map(size_of, kept))
    assert sorted(again.take(COUNT)) == sorted(map(size_of, kept))
    assert again.bytes == 0


def test_a_directory_that_does_not_say_counts_what_is_read(tmp_path: Path) -> None:
    """As versions before have left it."""
    process = filled()
    process.host.checkpoint()
    process.host.storage.close()
    disk = process.host.disk.copy()
    for name in ("catalog.sqlite", "catalog-copy.sqlite"):
        path = tmp_path / name
        path.write_bytes(disk.content(f"data/{name}"))
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE weight")
        connection.commit()
        connection.close()
        file = disk.create(f"data/{name}")
        file.write([path.read_bytes()], 0, False)
        file.sync()
    again = Process(disk)
    assert again.bytes == 0
    again.take(1)
    assert again.bytes > 0
    again.host.checkpoint()
    assert len(again.take(COUNT)) == COUNT - 1
    assert again.bytes == 0


def test_what_a_payload_weighs_is_what_is_decoded() -> None:
    random_ = random.Random(0)
    records: list[bytes | None] = [None, b"", b"short"]
    total = 0
    for _ in range(200):
        made: Message = message(
            random_.randbytes(random_.randrange(300)),
            key=random_.randbytes(random_.randrange(20)),
            exchange="e" * random_.randrange(9),
        )
        if random_.random() < 0.3:
            made.annotations = {"n" * random_.randrange(9): 1}
        if random_.random() < 0.3:
            made.deliver_at = 5
        record = made.record()
        decoded = decode_record(record)
        total += 0 if decoded.deliver_at else decoded.size
        records.append(record)
    assert payload_bytes_of(records) == total

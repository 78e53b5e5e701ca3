"""One durable writer in a process of its own: ``python -m bench.storage_worker ENGINE ...``.

Each engine makes messages durable in batches, one fdatasync (or its like) each, and counts those
that were durable when the time was up. ``raw`` shows what the disk allows when nothing is done but
write and sync. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import signal
import sqlite3
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from typing import Final

#: Messages that one turn of the loop publishes, and their bytes, as a few busy connections bring
#: them.
TURN: Final = 500
TURN_BYTES: Final = 256 * 1024
#: Messages that may be published and not durable yet, as publishers with open windows have them.
WINDOW: Final = 16_000
#: These are told how many messages to sync at once.
PEERS: Final = ("raw", "sqlite", "rocksdb")
ENGINES: Final = ("trivium", "pauses", "recovery", *PEERS)
#: What ``bare`` has in memory, in blocks of so many bytes; and the seconds between its turns.
BARE_BLOCKS: Final = 400
BARE_BLOCK_SIZE: Final = 64 * 1024
BARE_WAIT: Final = 0.002
RAW_FILE_SIZE: Final = 256 << 20
#: Bytes that are in no run's journal.
_NEVER: Final = 1 << 50
#: Bytes in the journal after which ``append`` has a checkpoint: some thousand small messages.
_SMALL_CHECKPOINT: Final = 256 * 1024


class Result:
    """Messages made durable, in how many batches and seconds; the longest turn, in seconds."""

    def __init__(self, messages: int, batches: int, seconds: float, longest: float = 0.0) -> None:
        self.messages = messages
        self.batches = batches
        self.seconds = seconds
        self.longest = longest


def trivium(directory: Path, payload: bytes, seconds: float) -> Result:
    """Publish persistent messages to a durable queue through the core alone, fsync always."""
    from trivium.storage.disk import CHECKPOINT_SIZE

    return _publish(directory, payload, seconds, sys.maxsize, CHECKPOINT_SIZE)


def pauses(directory: Path, payload: bytes, seconds: float) -> Result:
    """The same for 2 GiB however long it takes, with one checkpoint, when 1 GiB is in the journal.

    A turn is what happens between two looks for what else there is to do: here some publishing, and
    the storage's part of it.
    """
    gibibyte = 1 << 30
    return _publish(directory, payload, 3600.0, 2 * gibibyte // len(payload), gibibyte)


def _publish(
    directory: Path,
    payload: bytes,
    seconds: float,
    most: int,
    checkpoint_size: int,
    is_killed: bool = False,
    is_repeatable: bool = False,
) -> Result:
    """Publish for so many seconds or messages.

    Where it ``is_repeatable`` the same happens each time: a turn's messages are published once the
    last turn's are durable, however fast that is, and the files have the same random numbers.
    """
    from trivium.messages.message import AT_LEAST_ONCE, PROTOCOL_NONE, Message
    from trivium.runtime.broker import MAX_PENDING_BYTES, Broker, Driver
    from trivium.storage.disk import DiskStorage

    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    failures: list[BaseException] = []
    wakes: list[None] = []
    storage = DiskStorage(
        directory,
        post=posted.put,
        wake=lambda: wakes.append(None),
        on_fatal=failures.append,
        fsync="always",
        checkpoint_size=checkpoint_size,
        entropy=Random(0).randbytes if is_repeatable else os.urandom,
    )
    window = 1 if is_repeatable else WINDOW
    broker = Broker()
    broker.open(storage, Driver(), [])
    vhost = broker.vhosts["/"]
    vhost.declare_queue("q", durable=True)
    route = vhost.route(vhost.exchange(""), b"q")
    published: dict[int, int] = {}
    waiting = durable = total = 0
    first_write_batch = storage.durable
    longest = 0.0
    count = max(1, min(TURN, TURN_BYTES // len(payload)))
    start = turn = time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end and total < most and not failures:
        # As the broker pauses its publishers.
        is_open = waiting < window and storage.pending_bytes <= MAX_PENDING_BYTES
        if is_open:
            address, stamp = route.address, broker.now_ms
            for _ in range(count):
                route.publish(
                    Message(PROTOCOL_NONE, address, b"", payload, AT_LEAST_ONCE, True, stamp)
                )
            published[storage.write_batch] = published.get(storage.write_batch, 0) + count
            waiting += count
        wakes.clear()
        broker.end_turn()
        longest = max(longest, time.perf_counter() - turn)
        try:
            call = posted.get_nowait() if is_open or wakes else posted.get(timeout=0.1)
            turn = time.perf_counter()
            call()
        except Empty:
            turn = time.perf_counter()
        while durable < storage.durable:
            durable += 1
            done = published.pop(durable, 0)
            waiting -= done
            total += done
    result = Result(total, storage.durable - first_write_batch, now - start, longest)
    if failures:
        raise failures[0]
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    storage.close()
    return result


def recovery(directory: Path, payload: bytes, seconds: float) -> Result:
    """Replay the journal of ``seconds`` without a checkpoint, up to a SIGKILL."""
    child = os.fork()
    if child == 0:
        _publish(directory, payload, seconds, sys.maxsize, _NEVER, is_killed=True)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return _replay(directory)


def _replay(directory: Path) -> Result:
    from trivium.storage.disk import DiskStorage

    start = time.perf_counter()
    storage = DiskStorage(
        directory, post=lambda call: None, wake=lambda: None, on_fatal=print, fsync="always"
    )
    took = time.perf_counter() - start
    count = sum(len(storage.log(name)) for name in storage.log_names())
    return Result(count, 1, took)


def journal(directory: Path, payload: bytes, messages: int) -> Result:
    """Leave a journal of so many messages behind: the process is killed."""
    return _publish(
        directory, payload, 3600.0, messages, _NEVER, is_killed=True, is_repeatable=True
    )


def serve(payload: bytes) -> None:
    """Print a line, do what standard input asks for, a line each; print a line when it is done.

    ``append DIRECTORY MESSAGES`` publishes, repeatably, and goes through checkpoints.
    ``replay DIRECTORY`` opens what :func:`journal` left.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        what, directory, *count = line.split()
        if what == "append":
            most, size = int(count[0]), _SMALL_CHECKPOINT
            result = _publish(Path(directory), payload, 3600.0, most, size, is_repeatable=True)
        else:
            result = _replay(Path(directory))
        print(json.dumps(vars(result)), flush=True)


def raw(directory: Path, payload: bytes, seconds: float, batch: int) -> Result:
    """Write a checksummed batch and sync it, in a preallocated file, round and round."""
    descriptor = os.open(directory / "raw", os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(descriptor, 0, RAW_FILE_SIZE)
    os.fsync(descriptor)
    body = payload * batch
    position = batches = 0
    start = time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end:
        if position + len(body) > RAW_FILE_SIZE:
            position = 0
        zlib.crc32(body)
        os.pwrite(descriptor, body, position)
        os.fdatasync(descriptor)
        position += len(body)
        batches += 1
    os.close(descriptor)
    return Result(batches * batch, batches, now - start)


def sqlite(directory: Path, payload: bytes, seconds: float, batch: int) -> Result:
    """Insert in transactions of a batch each: WAL, synchronous=FULL."""
    database = sqlite3.connect(directory / "messages.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body BLOB)")
    rows = [(payload,)] * batch
    batches = 0
    start = time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end:
        database.execute("BEGIN")
        database.executemany("INSERT INTO messages (body) VALUES (?)", rows)
        database.execute("COMMIT")
        batches += 1
    database.close()
    return Result(batches * batch, batches, now - start)


def rocksdb(directory: Path, payload: bytes, seconds: float, batch: int) -> Result:
    """Put in write batches with a synced write-ahead log. Needs the package rocksdict."""
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(directory / "rocks"), options)
    synced = rocksdict.WriteOptions()
    synced.sync = True
    batches = number = 0
    start = time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end:
        changes = rocksdict.WriteBatch(raw_mode=True)
        for _ in range(batch):
            changes.put(number.to_bytes(8, "big"), payload)
            number += 1
        database.write(changes, synced)
        batches += 1
    database.close()
    return Result(number, batches, now - start)


def bare() -> Result:
    """Short turns of a thread that has nothing to wait for, until standard input ends.

    The longest one, with the wait before it, shows for how long the machine lets a process stand
    still.
    """
    blocks: deque[bytes] = deque(maxlen=BARE_BLOCKS)
    longest = 0.0
    turns = 0
    start = end = time.perf_counter()
    is_ended = False
    while not is_ended:
        is_ended = bool(select.select([sys.stdin], [], [], BARE_WAIT)[0])
        blocks.append(b"x" * BARE_BLOCK_SIZE)
        sum(range(4000))
        now = time.perf_counter()
        longest = max(longest, now - end - BARE_WAIT)
        end = now
        turns += 1
    return Result(turns, turns, end - start, longest)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.storage_worker")
    parser.add_argument("engine", choices=(*ENGINES, "bare", "journal", "serve"))
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--batch", type=int, default=1000, help="messages that a peer syncs at once"
    )
    parser.add_argument("--messages", type=int, default=1000, help="of a journal")
    chosen = parser.parse_args(arguments)
    # As `trivium serve` does, for the same reasons.
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    sys.setswitchinterval(0.001)
    payload = os.urandom(chosen.payload)
    ours = {"trivium": trivium, "pauses": pauses, "recovery": recovery}
    if chosen.engine == "serve":
        serve(payload)
        return 0
    if chosen.engine == "journal":
        result = journal(chosen.directory, payload, chosen.messages)
    elif chosen.engine == "bare":
        result = bare()
    elif chosen.engine in ours:
        result = ours[chosen.engine](chosen.directory, payload, chosen.seconds)
    else:
        peer = {"raw": raw, "sqlite": sqlite, "rocksdb": rocksdb}[chosen.engine]
        result = peer(chosen.directory, payload, chosen.seconds, chosen.batch)
    print(json.dumps(vars(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

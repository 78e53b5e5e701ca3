"""What runs on a worker lets the loop go on, and what goes wrong there is told."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tests.support.simulated import Host, Operation, Recorder
from trivium.storage.contents.changes import PIECE_SIZE
from trivium.storage.errors import StorageFailed
from trivium.storage.files.executor import Completions, ThreadWorker, TimeSlice, Work
from trivium.storage.segments.chunks import CHUNK_RECORDS


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
def test_a_batch_is_written_with_pauses(clock: Clock, size: int, count: int) -> None:
    host = Host()
    for _ in range(count):
        host.storage.log("l").append(bytes(size))
    clock.passing = 0.1
    host.commit()
    assert clock.given_up >= count * size // PIECE_SIZE


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


class Raises(Work):
    """Raises on the worker, or on the loop's thread."""

    def __init__(
        self, completions: Completions, error: BaseException, on_loop: bool = False
    ) -> None:
        super().__init__(completions)
        self.raised = error
        self.on_loop = on_loop

    def run(self) -> None:
        if not self.on_loop:
            raise self.raised

    def finish(self) -> None:
        if self.on_loop:
            raise self.raised


def test_a_worker_without_a_thread_says_so_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    worker = ThreadWorker("worker")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.submit(Counts(Completions(lambda call: None, lambda error: None), []))
    worker.stop()


class Counts(Work):
    """Counts how often it is done."""

    def __init__(self, completions: Completions, done: list[str]) -> None:
        super().__init__(completions)
        self.done = done

    def run(self) -> None:
        self.done.append("run")

    def finish(self) -> None:
        self.done.append("finish")


ERRORS = [MemoryError(), RuntimeError("a fault"), SystemExit(3), KeyboardInterrupt()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_whatever_a_worker_raises_is_told_and_ends_the_worker(error: BaseException) -> None:
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    errors: list[BaseException] = []
    done: list[str] = []
    completions = Completions(calls.put, errors.append)
    worker = ThreadWorker("worker")
    worker.submit(Counts(completions, done))
    worker.submit(Raises(completions, error))
    worker.submit(Counts(completions, done))
    worker.stop()
    while not calls.empty():
        calls.get()()
    assert errors == [error]
    assert done == ["run", "finish"]


def test_whatever_a_later_work_raises_is_told() -> None:
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    errors: list[BaseException] = []
    completions = Completions(calls.put, errors.append)
    worker = ThreadWorker("worker")

    class Starts(Counts):
        def run(self) -> None:
            worker.submit_later(Raises(completions, ERRORS[0]), 0)

    worker.submit(Starts(completions, []))
    for _ in range(2):
        calls.get(timeout=60)()
    worker.stop()
    assert errors == ERRORS[:1]


def test_whatever_the_end_of_a_work_raises_is_told_and_the_others_end() -> None:
    calls: list[Callable[[], None]] = []
    errors: list[BaseException] = []
    done: list[str] = []
    completions = Completions(calls.append, errors.append)
    Raises(completions, ERRORS[0], True).perform()
    Counts(completions, done).perform()
    for call in calls:
        call()
    assert errors == ERRORS[:1]
    assert done == ["run", "finish"]


@pytest.mark.parametrize("kind", ["write", "sync_range", "sync"])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_unexpected_error_of_the_journal_is_final(kind: str, error: BaseException) -> None:
    host = Host(fsync="interval:100" if kind == "sync" else "always")
    host.storage.log("l").append(b"first")
    host.commit()
    durable = host.storage.durable

    def fail(operation: Operation) -> None:
        if operation.kind == kind:
            raise error

    host.disk.before = fail
    waiter = Recorder()
    if kind != "sync":
        host.storage.log("l").append(b"lost")
        host.storage.wait(waiter)
    host.executor.clock = 1.0
    host.storage.commit()
    host.step()
    assert [type(each) for each in host.errors] == [StorageFailed]
    assert host.errors[0].__cause__ is error
    host.disk.before = lambda operation: None
    done = len(host.disk.operations)
    host.storage.log("l").append(b"later")
    host.storage.commit()
    host.step()
    with pytest.raises(StorageFailed):
        host.storage.close()
    assert (waiter.write_batches, host.storage.durable) == ([], durable)
    assert len(host.disk.operations) == done


@pytest.mark.parametrize("where", [".segment.tmp", "catalog"])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_unexpected_error_of_a_checkpoint_is_final(where: str, error: BaseException) -> None:
    host = Host()
    host.storage.log("l").append(b"kept")
    host.storage.table("t").put(b"key", b"kept")
    host.commit()

    def fail(operation: Operation) -> None:
        if where in operation.path:
            raise error

    host.disk.before = fail
    host.storage.free_space()
    for _ in range(10):
        host.storage.commit()
        host.step()
    assert [each.__cause__ for each in host.errors] == [error]
    host.disk.before = lambda operation: None
    with pytest.raises(StorageFailed):
        host.storage.close()
    assert Host(host.disk.power_cut(None), seed=1).contents("l") == {0: (b"kept", b"")}


def test_an_unexpected_error_of_a_read_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    host.storage.log("l").append(b"x" * 100)
    host.commit()
    host.storage.free_space()
    host.commit()
    host.storage.close()
    host = Host(host.disk, seed=1)
    assert not host.storage.log("l").is_loaded(0)

    def fail(path: str) -> None:
        raise ERRORS[0]

    monkeypatch.setattr(host.disk, "open", fail)
    host.storage.log("l").load(0, 100, lambda: pytest.fail("it was not read"))
    host.step()
    assert [each.__cause__ for each in host.errors] == ERRORS[:1]


def test_an_error_that_cannot_be_told_is_found_by_the_next_look() -> None:
    host = Host()
    host.storage.log("l").append(b"x")
    host.storage.commit()

    def post(call: Callable[[], None]) -> None:
        raise MemoryError

    host.post = post
    host.step()
    assert host.errors == []
    host.storage.tidy()
    assert [type(each.__cause__) for each in host.errors] == [MemoryError]


class TakenMeanwhile(deque[str]):
    """The other thread takes the last one just before this one does."""

    times = 0

    def popleft(self) -> str:
        self.clear()
        self.times += 1
        return super().popleft()


def test_the_journal_and_a_checkpoint_may_want_the_same_spare_file() -> None:
    host = Host(journal_file_size=1000, checkpoint_size=2000)
    journal = host.storage.journal
    for _ in range(20):
        host.storage.log("l").append(bytes(600))
        host.commit()
        if journal.spares:
            break
    journal.spares = taken = TakenMeanwhile(journal.spares)
    for _ in range(5):
        host.storage.log("l").append(bytes(600))
        host.commit()
    assert taken.times > 0
    assert host.errors == []

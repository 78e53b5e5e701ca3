"""A step of the wall clock moves what waits for a time, and nothing that waits for some time."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.core import RecordingConsumer, broker_of, message, open_vhost
from tests.support.server import RecordingDriver
from tests.support.simulated import Host
from tests.support.storages import BehindStorage
from trivium.common.timers import Timed
from trivium.common.turns import EndOfTurn
from trivium.config import Config, StorageConfig
from trivium.errors import StaleMember
from trivium.groups.membership import MemberListener
from trivium.idempotence.deduplication import FORGET_AT_ONCE, QUEUE, Settings
from trivium.queues.dead_letters import BEHIND_DELAY, RETRY_DELAY, TELL_INTERVAL
from trivium.queues.queue import Queue
from trivium.runtime.broker import Broker
from trivium.vhost.delays import BURST
from trivium.vhost.virtual_host import VirtualHost

START = 1_700_000_000_000
HOUR = 3_600_000

STEPS = pytest.mark.parametrize("step", [HOUR, -HOUR])


@pytest.fixture
def vhost() -> VirtualHost:
    found = open_vhost()
    broker_of(found).now_ms = START
    broker_of(found).end_turn()
    return found


def pass_time(broker: Broker, milliseconds: int) -> None:
    broker.now_ms += milliseconds
    broker.end_turn()


def step_clock(broker: Broker, milliseconds: int) -> None:
    """Somebody sets the wall clock."""
    broker.now_ms += milliseconds
    broker.clock_offset += milliseconds
    broker.end_turn()


def restart(host: Host, now: int) -> VirtualHost:
    """Cut the power; start again at ``now``."""
    host.commit()
    broker = Broker()
    broker.now_ms = now
    broker.open(Host(host.disk.power_cut(None), seed=1).storage, RecordingDriver(), [])
    return broker.vhosts["/"]


def put(queue: Queue, payload: bytes = b"x", expires: int = 0, deliver_at: int = 0) -> None:
    sent = message(payload, b"key", expires=expires)
    sent.deliver_at = deliver_at
    sent.timestamp = broker_of(queue.vhost).now_ms
    if deliver_at:
        queue.put_special(sent, b"")
    else:
        queue.put(sent, b"")


# What waits for some time


@STEPS
def test_a_retry(vhost: VirtualHost, step: int) -> None:
    queue = vhost.declare_queue("q", durable=True, arguments={"x-retry-delay": 1000})
    put(queue)
    entry = queue.get()
    assert entry is not None
    queue.requeue(entry)
    step_clock(broker_of(vhost), step)
    pass_time(broker_of(vhost), 999)
    assert queue.get() is None
    pass_time(broker_of(vhost), 1)
    assert queue.get() is entry


@STEPS
def test_a_retry_from_before_a_restart_never_waits_for_longer_than_a_retry(step: int) -> None:
    host = Host()
    vhost = open_vhost(host.storage)
    broker_of(vhost).now_ms = START
    arguments: dict[str, object] = {"x-retry-delay": 1000, "x-retry-delay-max": 1000}
    queue = vhost.declare_queue("q", durable=True, arguments=arguments)
    put(queue)
    entry = queue.get()
    assert entry is not None
    queue.requeue(entry)
    broker_of(vhost).end_turn()
    vhost = restart(host, START + step)
    queue = vhost.queues["q"]
    if step < 0:
        assert queue.get() is None
    pass_time(broker_of(vhost), 1000)
    assert queue.get() is not None


@STEPS
def test_the_expiry_of_a_queue(vhost: VirtualHost, step: int) -> None:
    vhost.declare_queue("q", arguments={"x-expires": 1000})
    broker_of(vhost).end_turn()
    step_clock(broker_of(vhost), step)
    pass_time(broker_of(vhost), 999)
    assert "q" in vhost.queues
    pass_time(broker_of(vhost), 1)
    assert "q" not in vhost.queues


class Listener(MemberListener):
    def rebalance(self, group: str, member: str) -> None:
        pass


@STEPS
def test_the_session_of_a_member(vhost: VirtualHost, step: int) -> None:
    vhost.declare_stream("s", 1)
    join = vhost.memberships.join
    member = join("g", "m", ["s"], "range", 1000, 1000, Listener())
    heartbeat = vhost.memberships.heartbeat
    step_clock(broker_of(vhost), step)
    pass_time(broker_of(vhost), 999)
    heartbeat("g", "m", member.generation, set(), Listener())
    step_clock(broker_of(vhost), step)
    pass_time(broker_of(vhost), 1000)
    with pytest.raises(StaleMember):
        heartbeat("g", "m", member.generation, set(), Listener())


@STEPS
def test_the_rest_of_many_delayed_messages_of_one_time(vhost: VirtualHost, step: int) -> None:
    queue = vhost.declare_queue("key")
    for _ in range(BURST + 1):
        sent = message(b"x", b"key")
        sent.deliver_at = START + 1000
        vhost.delays.add(sent, [])
    pass_time(broker_of(vhost), 1000)
    assert len(queue) == BURST
    step_clock(broker_of(vhost), step)
    assert len(queue) == BURST
    pass_time(broker_of(vhost), 1)
    assert len(queue) == BURST + 1


@STEPS
def test_the_next_look_at_a_length_limit(vhost: VirtualHost, step: int) -> None:
    stream = vhost.declare_stream("s", 1, {"x-max-length": 1})
    broker_of(vhost).end_turn()
    for _ in range(3):
        stream.accept(message(b"x"))
        broker_of(vhost).end_turn()
    step_clock(broker_of(vhost), step)
    pass_time(broker_of(vhost), 1000)
    assert stream.partitions[0].first_offset == 2


@pytest.mark.parametrize("target", ["nobody", "q"])
def test_the_next_line_about_lost_dead_letters(
    vhost: VirtualHost, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_of(vhost)
    arguments: dict[str, object] = {
        "x-message-ttl": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": target,
    }
    queue = vhost.declare_queue("q", arguments=arguments)
    for milliseconds in (0, -HOUR):
        step_clock(broker, milliseconds)
        put(queue)
        pass_time(broker, TELL_INTERVAL)
    assert len(caplog.records) == 2


@STEPS
def test_the_next_try_of_a_dead_letter_that_must_arrive(vhost: VirtualHost, step: int) -> None:
    arguments: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "b",
    }
    queue = vhost.declare_queue("a", durable=True, arguments=arguments)
    put(queue)
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)
    broker_of(vhost).end_turn()
    other = vhost.declare_queue("b")
    step_clock(broker_of(vhost), step)
    pass_time(broker_of(vhost), RETRY_DELAY - 1)
    assert len(other) == 0
    pass_time(broker_of(vhost), 1)
    assert len(other) == 1


@STEPS
def test_the_next_look_whether_the_disk_is_behind_with_dead_letters(step: int) -> None:
    storage = BehindStorage()
    vhost = open_vhost(storage)
    broker_of(vhost).now_ms = START
    arguments: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}
    queue = vhost.declare_queue("a", arguments=arguments)
    other = vhost.declare_queue("b")
    put(queue)
    entry = queue.get()
    assert entry is not None
    storage.is_behind = True
    queue.reject(entry)
    broker_of(vhost).end_turn()
    broker_of(vhost).now_ms += step
    broker_of(vhost).clock_offset += step
    storage.is_behind = False
    # The first look sees the end of it, the second is for those that waited.
    for _ in range(2):
        assert broker_of(vhost).next_at() == broker_of(vhost).elapsed_ms + BEHIND_DELAY
        pass_time(broker_of(vhost), BEHIND_DELAY)
    assert len(other) == 1


# What waits for a time


def test_a_message_expires_at_its_time(vhost: VirtualHost) -> None:
    queue = vhost.declare_queue("q")
    put(queue, b"early", START + HOUR // 2)
    put(queue, b"late", START + 2 * HOUR)
    broker_of(vhost).end_turn()
    step_clock(broker_of(vhost), HOUR)
    assert len(queue) == 1
    step_clock(broker_of(vhost), -HOUR)
    pass_time(broker_of(vhost), HOUR)
    assert len(queue) == 1
    pass_time(broker_of(vhost), HOUR)
    assert len(queue) == 0


def test_a_delayed_message_comes_at_its_time(vhost: VirtualHost) -> None:
    queue = vhost.declare_queue("q")
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    put(queue, b"early", deliver_at=START + HOUR // 2)
    put(queue, b"late", deliver_at=START + 2 * HOUR)
    step_clock(broker_of(vhost), -HOUR)
    pass_time(broker_of(vhost), HOUR)
    assert consumer.payloads == []
    step_clock(broker_of(vhost), HOUR)
    assert consumer.payloads == [b"early"]
    pass_time(broker_of(vhost), HOUR)
    assert consumer.payloads == [b"early", b"late"]


@pytest.mark.parametrize("restarts", [False, True])
def test_an_id_is_forgotten_at_its_time(restarts: bool) -> None:
    host = Host()
    vhost = open_vhost(host.storage)
    broker_of(vhost).now_ms = START
    vhost.declare_queue("q", durable=True)
    window = vhost.deduplication.window(QUEUE, "q")
    window.add(b"early", Settings(True, "", 10, HOUR // 2), True)
    window.add(b"late", Settings(True, "", 10, 3 * HOUR), True)
    broker_of(vhost).end_turn()
    if restarts:
        vhost = restart(host, START)
        window = vhost.deduplication.window(QUEUE, "q")
    else:
        step_clock(broker_of(vhost), -HOUR)
        pass_time(broker_of(vhost), HOUR)
        assert len(window) == 2
    step_clock(broker_of(vhost), HOUR)
    assert len(window) == 1


@STEPS
def test_ids_that_there_is_no_room_for(vhost: VirtualHost, step: int) -> None:
    window = vhost.deduplication.window(QUEUE, "q")
    count = 2 * FORGET_AT_ONCE + 1
    for number in range(count):
        window.add(b"%d" % number, Settings(True, "", count, -1), False)
    window.limit(1)
    step_clock(broker_of(vhost), step)
    for _ in range(2):
        pass_time(broker_of(vhost), 1)
    assert len(window) == 1


def test_the_age_limit_of_a_stream(vhost: VirtualHost) -> None:
    stream = vhost.declare_stream("s", 1, {"x-max-age": "30m"})
    for _ in range(2):
        sent = message(b"x")
        sent.timestamp = broker_of(vhost).now_ms
        stream.accept(sent)
        broker_of(vhost).end_turn()
    pass_time(broker_of(vhost), 1000)
    assert stream.partitions[0].first_offset == 0
    step_clock(broker_of(vhost), HOUR)
    assert stream.partitions[0].first_offset == 1


# The clocks


class Clocks:
    """The system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = START
        self.monotonic = HOUR
        monkeypatch.setattr(time, "time_ns", lambda: self.wall * 1_000_000)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic * 1_000_000)


def test_both_clocks_are_read_at_the_begin_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    broker = Broker()
    broker.begin_turn()
    assert (broker.now_ms, broker.elapsed_ms) == (START, HOUR)
    clocks.wall -= HOUR
    clocks.monotonic += 5
    broker.begin_turn()
    assert (broker.now_ms, broker.elapsed_ms) == (START - HOUR, HOUR + 5)


class Chain(EndOfTurn):
    """Asks for a turn in each of so many, and notes when they are."""

    def __init__(self, broker: Broker, count: int) -> None:
        self.broker = broker
        self.left = count
        self.times: list[int] = []
        self.is_over = asyncio.Event()

    def flush_turn(self) -> None:
        self.times.append(self.broker.elapsed_ms)
        self.left -= 1
        if self.left:
            self.broker.add_unflushed(self)
        else:
            self.is_over.set()


async def test_time_goes_on_where_each_turn_asks_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker(Config(listen={}, storage=StorageConfig(mode="memory"))) as broker:
        clocks = Clocks(monkeypatch)

        def monotonic() -> int:
            clocks.monotonic += 10
            clocks.wall += 10
            return clocks.monotonic * 1_000_000

        monkeypatch.setattr(time, "monotonic_ns", monotonic)
        chain = Chain(broker, 10)
        broker.add_unflushed(chain)
        await asyncio.wait_for(chain.is_over.wait(), 60)
        # The clocks of the first one were read before.
        del chain.times[0]
        assert sorted(set(chain.times)) == chain.times


def test_the_driver_wakes_at_what_is_due_first_by_either_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = Clocks(monkeypatch)
    broker = broker_of(open_vhost())
    broker.begin_turn()
    broker.end_turn()
    broker.dates.call_at(clocks.wall + 50, Bell())
    assert broker.next_at() == clocks.monotonic + 50
    broker.timeouts.call_at(clocks.monotonic + 60, Bell())
    assert broker.next_at() == clocks.monotonic + 50
    broker.timeouts.call_at(clocks.monotonic + 40, Bell())
    assert broker.next_at() == clocks.monotonic + 40


def test_readings_at_slightly_different_moments_move_nothing_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = Clocks(monkeypatch)
    broker = broker_of(open_vhost())
    broker.begin_turn()
    broker.dates.call_at(START + HOUR, Bell())
    due_at = broker.next_at()
    for wall, monotonic in ((1, 0), (0, 1), (1, 1), (2, 0)):
        clocks.wall += wall
        clocks.monotonic += monotonic
        broker.begin_turn()
        assert broker.next_at() == due_at


class Bell(Timed):
    """Can be waited for."""

    def __init__(self) -> None:
        self.has_rung = asyncio.Event()

    def due(self) -> None:
        self.has_rung.set()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_the_driver_wakes_after_some_time_whatever_the_wall_clock_says(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    real, real_monotonic = time.time_ns, time.monotonic_ns
    early, late = Bell(), Bell()
    readings = 0

    def monotonic() -> int:
        nonlocal readings
        readings += 1
        return real_monotonic()

    async with Broker(Config(listen={}, storage=StorageConfig(mode="memory"))) as broker:
        monkeypatch.setattr(time, "time_ns", lambda: real() + step * 1_000_000)
        monkeypatch.setattr(time, "monotonic_ns", monotonic)
        broker.begin_turn()
        broker.timeouts.call_at(broker.elapsed_ms + 100, early)
        broker.timeouts.call_at(broker.elapsed_ms + HOUR // 2, late)
        broker.driver.request_turn()
        await asyncio.wait_for(early.has_rung.wait(), 60)
        assert not late.has_rung.is_set()
        # It slept until then, but for the turns of each second.
        assert readings < 500


async def test_the_turn_of_each_second_notices_that_a_time_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = time.time_ns
    bell = Bell()
    async with Broker(Config(listen={}, storage=StorageConfig(mode="memory"))) as broker:
        broker.begin_turn()
        broker.dates.call_at(broker.now_ms + HOUR // 2, bell)
        broker.driver.request_turn()
        monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR * 1_000_000)
        await asyncio.wait_for(bell.has_rung.wait(), 60)

"""A run from one seed: lives of a broker between crashes, and what each start must find.

The reference model is changed when the broker is fed, and kept as it was after each write batch.
Clients note which write batch an acknowledgement was about: no start may find less than the newest
of those.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from unittest.mock import patch
from zlib import crc32

from tests.simulation.actors import Actor
from tests.simulation.amqp_actor import AmqpActor
from tests.simulation.damage import damage, repaired
from tests.simulation.inspection import (
    Contents,
    differences,
    inspect,
    undone,
    unexplained,
    vanished,
)
from tests.simulation.mqtt_actor import MqttActor, SharingActor
from tests.simulation.native_actor import NativeActor
from tests.simulation.reference import DEAD, KINDS, POLICIES, Reference, backlog_of
from tests.simulation.stream_model import STAGED_STREAMS, STREAMS
from tests.simulation.world import START_MS, Crash, Faults, World
from tests.support.simulated import SimulatedDisk
from trivium.storage.errors import StorageDamaged, StorageError
from trivium.storage.files.encryption import Keys
from trivium_native.server import parts
from trivium_native.server.adapter import NativeAdapter

#: Ways to end a life, and how often each is taken.
ENDINGS = {
    "kill": 3,
    "kill within an operation": 4,
    "power cut": 3,
    "power cut within an operation": 5,
    "failed sync": 2,
    "full disk": 2,
    "clean stop": 1,
}
#: How data is encrypted at rest, and how often: not, with the key given first, or with another key
#: or none from life to life.
ENCRYPTIONS = {"none": 5, "one key": 3, "changing keys": 2}
#: When the journal is synced, and how often that is so.
SYNC_POLICIES = {"always": 6, "every_n:3": 2, "interval:500": 2, "never": 1}
#: Operations of a life at most: short ones have more crashes, long ones get further.
LONGEST_LIVES = (40, 120, 500)
#: In these steps a broker that is left alone comes to all that it has to do.
IDLE_MS = (6000, 10, 10, 10) * 6
#: what the longer payloads have
PLAIN_TEXT = b"." * 100
#: What a turn publishes of parts that were decided on: of most transactions some is left to others.
STEP_BYTES = 2000
#: Where a start is looked at, it has published all before any time has passed.
WHOLE = patch.object(parts, "STEP_BYTES", parts.STEP_BYTES)
TRACE = 400


class Failure(AssertionError):
    """The broker broke a promise."""


def newest_known_synced(disk: SimulatedDisk) -> int:
    """The newest write batch that some other one in the journal says was synced before it.

    A write batch of which a part is missing says nothing.
    """
    newest = -1
    for path in disk.files:
        data = disk.content(path)
        marker = bytes(data[32:40])
        if not path.endswith(".journal"):
            continue
        position = data.find(marker, 96)
        while position >= 0:
            body = position + 48
            header = bytes(data[position:body])
            size = int.from_bytes(header[24:32], "little")
            sums = [crc32(header[:44]), crc32(data[body : body + size])]
            if sums == [int.from_bytes(header[at : at + 4], "little") for at in (44, 36)]:
                newest = max(newest, int.from_bytes(header[16:24], "little") - 1)
            position = data.find(marker, position + 8)
    return newest


class Simulation:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.reference = Reference()
        #: the model after each write batch
        self.states: dict[int, Reference] = {-1: self.reference.copy()}
        #: the newest write batch that an acknowledgement was about
        self.floor = -1
        #: queue and message that some consumer has seen
        self.delivered: set[tuple[str, int]] = set()
        #: who holds a message unsettled
        self.holders: dict[tuple[str, int], Actor] = {}
        #: went with their queue; may still be on their way to a consumer
        self.dropped: set[tuple[str, int]] = set()
        #: by message: its place in the order of publishing, and its write batch
        self.ranks: dict[int, int] = {}
        self.write_batches: dict[int, int] = {}
        #: streams deleted so far
        self.deletions = 0
        #: what the broker calls the incarnations of the model
        self.incarnations: dict[int, str] = {}
        #: offset up to which a partition was seen to be readable
        self.marks: dict[tuple[str, int], int] = {}
        #: the first offset that was seen to be kept
        self.firsts: dict[tuple[str, int], int] = {}
        self.next_number = 0
        #: how much of the time the disk works
        self.speed = 1.0
        self._rank = 0
        self.encryption = self.random.choices(list(ENCRYPTIONS), list(ENCRYPTIONS.values()))[0]
        self.secrets = (self.random.randbytes(32), self.random.randbytes(32))
        self.keys = Keys(None if self.encryption == "none" else self.secrets[0], self.secrets)
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.now = START_MS
        self.compression = "none"
        self.fsync = "always"
        #: whether the last life left nothing to a sync that was acknowledged
        self.is_synced = True
        self.disk = SimulatedDisk()
        self.actors: list[Actor] = [
            AmqpActor(self, "amqp0"),
            AmqpActor(self, "amqp1"),
            MqttActor(self, "mqtt0", 5),
            MqttActor(self, "mqtt1", 5),
            MqttActor(self, "mqtt2", 4),
            SharingActor(self, "share0", 5),
            SharingActor(self, "share1", 4),
            SharingActor(self, "share2", 5),
            NativeActor(self, "native0"),
            NativeActor(self, "native1"),
        ]
        self.world: World
        self.faults: Faults

    # Run

    def begin(self) -> None:
        """A first start without faults, for a script to go on from."""
        self.encryption = "none"
        self.keys = Keys()
        self._open()

    def run(self, operations: int) -> None:
        """Live and crash until so many operations were done. Raises Failure."""
        try:
            # Incarnations of streams are random.
            with (
                patch.object(secrets, "token_hex", self._token),
                patch.object(parts, "STEP_BYTES", STEP_BYTES),
            ):
                self._run(operations)
        except Exception as error:
            if isinstance(error, Failure):
                raise
            raise self._failure(f"{type(error).__name__}: {error}") from error

    def _token(self, size: int) -> str:
        return self.random.randbytes(size).hex()

    def _run(self, operations: int) -> None:
        if self.encryption != "none":
            self.counts[f"seeds encrypted with {self.encryption}"] = 1
        while self.counts["operations"] < operations:
            self._start()
            ending = self.random.choices(list(ENDINGS), list(ENDINGS.values()))[0]
            self.counts[ending] += 1
            longest = self.random.choice(LONGEST_LIVES)
            self._live(ending, self.random.randint(3, longest))
            self._check_disk()
        self._start()
        self._audit()

    def fail(self, text: str) -> None:
        """Raise Failure."""
        raise self._failure(text)

    def _failure(self, text: str) -> Failure:
        trace = "\n".join(self.trace[-TRACE:])
        return Failure(f"{trace}\nseed {self.seed}: {text}")

    def note(self, text: str) -> None:
        """Add to the trace."""
        self.trace.append(text)

    def _start(self) -> None:
        """Open the broker on the disk; where it dies on the way, on what is left, again."""
        while True:
            try:
                self._open(self.random.randint(0, 8) if self.random.random() < 0.3 else -1)
            except Crash:
                self.counts["crash during recovery"] += 1
                self.note("crash during recovery")
                self._lose_power_or_not(self.is_synced and self.random.random() < 0.5)
                self._check_disk()
                continue
            break
        if DEAD not in self.reference.queues:
            self._declare()

    def _open(self, dies_in: int = -1) -> None:
        self.faults = Faults(self.disk, self.random)
        self.faults.dies_in = dies_in
        if self.encryption == "changing keys":
            self.keys = Keys(self.random.choice((None, *self.secrets)), self.secrets)
        self.compression = self.random.choice(("none", "zstd"))
        seed = self.random.getrandbits(32)
        policies = SYNC_POLICIES
        self.fsync = self.random.choices(list(policies), list(policies.values()))[0]
        self.world = World(self.disk, seed, self.now, self.keys, self.compression, self.fsync)
        self.faults.dies_in = -1
        found = self.world.recovered_write_batch
        self.states = {found: self.reference.copy()}
        self.floor = found
        self.marks.clear()
        self.firsts.clear()
        self.dropped.clear()
        # Wills of clients that were cut off.
        first = self.world.first_write_batch
        for number in self._tick():
            self.note(f"{first}: will {number} is published")
            self.published(number, True)
            self.write_batches[number] = first
        if self.world.storage.write_batch != first:
            self.states[first] = self.reference.copy()
        self.note(f"start at batch {found}")
        for actor in self.actors:
            actor.restarted()

    def _declare(self) -> None:
        actor = self.actors[0]
        assert isinstance(actor, AmqpActor)
        actor.connect()
        for name in KINDS:
            actor.declare(name)
        native = self.actors[-1]
        assert isinstance(native, NativeActor)
        native.connect()
        for name in STREAMS:
            native.declare(name)
            native.bind(name, "#")
        for name in STAGED_STREAMS:
            native.declare(name)

    def _live(self, ending: str, operations: int) -> None:
        random_ = self.random
        is_within = "within" in ending
        self.speed = random_.choice((0.1, 1.0, 1.0))
        if is_within:
            self.faults.dies_in = random_.randint(0, 3 * operations)
        try:
            for done in range(operations):
                if done == operations // 2 and ending == "failed sync":
                    self.faults.sync_fails = True
                if done == operations // 2 and ending == "full disk":
                    self.disk.capacity = self.disk.used() + random_.randint(0, 6000)
                self._operate()
                if self.world.has_failed:
                    self._go_on_failed()
                    break
            if ending == "clean stop":
                self._stop()
        except Crash:
            self.counts["died within"] += 1
        self.note(f"{ending}, batch {self.world.storage.durable} is durable")
        self.now = self.world.broker.now_ms
        is_power_cut = "power" in ending or random_.random() < 0.3
        if is_power_cut and self.fsync != "always":
            # Clients then have acknowledgements that the broker forgot: no life goes on with that.
            self._check_unsynced(self.disk.power_cut(random_))
            is_power_cut = False
        self.is_synced = self.fsync == "always"
        self._lose_power_or_not(is_power_cut)

    def _operate(self) -> None:
        random_ = self.random
        self.counts["operations"] += 1
        actor = random_.choice(self.actors)
        if actor.wire is None:
            if random_.random() < 0.7:
                self.note(f"{actor.name} connects")
                actor.come()
        elif random_.random() < 0.015:
            self.turn()
            self.note(f"{actor.name} loses its connection")
            actor.lose()
            if random_.random() < 0.5:
                # At once, while much is not durable yet that it must hear again.
                self.note(f"{actor.name} connects again")
                actor.come()
        else:
            actor.act()
        if random_.random() < 0.02:
            self.advance(random_.choice((10, 1000, 4000)))
        if random_.random() < 0.6:
            self.turn()
        for _ in range(random_.randint(0, 2) if random_.random() < self.speed else 0):
            self.world.step(random_)
            if random_.random() < 0.5:
                self.turn()

    def advance(self, milliseconds: int) -> None:
        """Time passes."""
        self.world.pass_time(milliseconds)
        self.published_later(self._tick())

    def _tick(self) -> list[int]:
        """Sessions may end; the wills that are published."""
        before = set(self.reference.sessions)
        found = self.reference.tick(self.world.broker.now_ms)
        for client in sorted(before - set(self.reference.sessions)):
            self.note(f"the session of {client} ends")
            self.counts["sessions ended by time"] += 1
            self.session_ended(client)
        return found

    def see_handovers(self, write_batch: int) -> None:
        """What sessions that ended have left is with others once their queues are gone.

        ``write_batch`` has that, and what connections begin that waited for it.
        """
        queues = self.world.broker.vhosts["/"].queues
        for client in list(self.reference.leaving):
            if backlog_of(client) not in queues:
                del self.reference.leaving[client]
        for actor in self.actors:
            if isinstance(actor, MqttActor) and actor.name not in self.reference.leaving:
                actor.enter(write_batch)

    def turn(self) -> None:
        """End turns until nobody asks for more; after each, clients read what came."""
        storage = self.world.storage
        for _ in range(4):
            write_batch = storage.write_batch
            self.reference.end_turn(self.world.broker.now_ms)
            self.world.end_turn()
            self.see_handovers(write_batch)
            for actor in self.actors:
                if actor.wire is not None:
                    actor.receive()
            if storage.write_batch != write_batch:
                self.states[write_batch] = self.reference.copy()
            if not self.world.wants_turn:
                return

    def _go_on_failed(self) -> None:
        """The storage gave up: what still happens must not acknowledge anything."""
        durable = self.world.storage.durable
        for _ in range(3):
            self.turn()
            self.world.host.step()
        if self.world.storage.durable != durable:
            self.fail("a batch became durable after the storage failed")

    def _stop(self) -> None:
        self.turn()
        for actor in self.actors:
            if actor.wire is not None:
                actor.wire.connection.shutdown()
                actor.lose()
        self.world.end_turn()
        write_batch = self.world.storage.write_batch
        self.states[write_batch] = self.reference.copy()
        self.world.storage.close()
        self.floor = write_batch

    def _lose_power_or_not(self, is_power_cut: bool) -> None:
        self.disk = self.disk.power_cut(self.random) if is_power_cut else self.disk.copy()

    # Checks

    @WHOLE
    def _inspect(self, disk: SimulatedDisk) -> tuple[int, Contents, Reference, Reference]:
        """What a start on ``disk`` finds: write batch, contents; what should be there, and before.

        The start publishes the wills of clients that were cut off.
        """
        world = World(disk, 0, self.now, self.keys, self.compression)
        found = world.recovered_write_batch
        write_batch = max(each for each in self.states if each <= found)
        state = self.states[write_batch].restarted()
        expected = state.copy()
        expected.tick(self.now)
        contents = inspect(world, expected, self._clients(expected))
        return found, contents, expected, state

    def _clients(self, reference: Reference) -> dict[str, int]:
        """Those that have a session, with their versions."""
        return {
            actor.name: actor.version
            for actor in self.actors
            if isinstance(actor, MqttActor) and actor.name in reference.sessions
        }

    def _check_disk(self) -> None:
        """Whether a start finds a state that may be, and the model goes on from there."""
        if self.encryption == "one key":
            self._look_for_plain_text()
        found, contents, expected, state = self._inspect(self.disk.copy())
        if found < self.floor:
            self.fail(f"batch {self.floor} was acknowledged, the start found {found}")
        # What came to a queue in a write batch that is lost, and comes again, is new there.
        leaving = {number for numbers in state.leaving.values() for number in numbers}
        self.delivered = {
            (name, number)
            for name, number in self.delivered
            if number in state.queues.get(name, ())
            and not (number in leaving and number in state.shared)
        }
        faults = differences(expected, contents, self.delivered)
        for actor in self.actors:
            faults += actor.check(contents)
        if faults:
            self.fail(f"after batch {found}: " + "; ".join(faults))
        self.counts.update(vanished(contents))
        if self.random.random() < 0.5:
            self._check_damaged(expected)
        # Who gets what a session leaves may be another one at each start.
        is_settled = not leaving and state.ended == expected.ended
        for number, clients in list(state.shared.items() if is_settled else ()):
            for name in [backlog_of(client) for client in clients]:
                if number in [delivery.number for delivery in contents.queues[name]]:
                    state.resolve(name, number)
        for name, entries in state.queues.items():
            there = {delivery.number for delivery in contents.queues.get(name, ())}
            kind = KINDS.get(name)
            for number in list(entries):
                if number in there or (
                    entries[number].may_expire and not entries[number].is_unsure
                ):
                    continue
                if number in state.shared or name not in contents.queues:
                    continue
                is_limited = kind is not None and kind.max_length >= 0 and not kind.rejects
                if (name in POLICIES or is_limited) and entries[number].is_unsure:
                    # Perhaps that start dropped it, and the next one will not: policies change, and
                    # what is too much is dropped in turns, of which a consumer may be ahead.
                    continue
                if state.may_be_gone(name, number, self.now):
                    del entries[number]
                elif kind is not None and kind.delivery_limit >= 0:
                    state.move(number, self.now)
        self.reference = state
        # Numbers of write batches that are not there are used again by the next start.
        self.states = {
            write_batch: each for write_batch, each in self.states.items() if write_batch <= found
        }

    def _check_damaged(self, expected: Reference) -> None:
        """A file is damaged: either a start sees that, or nothing else is different.

        The end of the journal is the exception: write batches that no later one, and no trailer,
        knows to be synced. What a start refuses is repaired. ``expected`` is in it as it was.
        """
        disk = self.disk.copy()
        known = newest_known_synced(disk)
        if not any(disk.content(path) for path in disk.files):
            return
        what, path = damage(disk, self.random)
        is_bit = "bit" in what
        self.counts[what.partition(" at ")[0]] += 1
        self.note(f"{path}: {what}")
        if not is_bit:
            # What knew of a write batch may have gone with it.
            known = newest_known_synced(disk)
        damaged = disk.copy()
        try:
            found, contents, expected, _ = self._inspect(disk)
        except StorageDamaged:
            self.counts["damages noticed"] += 1
            self._check_repaired(damaged, expected)
            return
        except StorageError:
            self.counts["other formats or keys"] += 1
            return
        if found < min(self.floor, known):
            self.fail(f"batch {self.floor} was acknowledged, the start found {found}")
        faults = differences(expected, contents, set())
        if faults:
            self.fail(f"damaged, after batch {found}: " + "; ".join(faults))

    @WHOLE
    def _check_repaired(self, disk: SimulatedDisk, expected: Reference) -> None:
        """What a repair leaves can be started, and lacks nothing that is not told to be lost."""
        told = repaired(self.disk, disk, self.keys, self.random)
        if told.faults:
            self.fail("repair: " + "; ".join(told.faults))
        world = World(disk, 0, self.now, self.keys, self.compression)
        contents = inspect(world, expected, self._clients(expected))
        if told.losses or told.has_lost_rows:
            self.counts["repairs with losses"] += 1
            faults = unexplained(expected, contents, told, self.next_number)
        else:
            faults = differences(expected, contents, set())
        if faults:
            self.fail(f"repaired, {told.told}: " + "; ".join(faults))

    def _check_unsynced(self, disk: SimulatedDisk) -> None:
        """After a power cut under a weak policy: all that was synced is there, as it was."""
        synced = self.world.host.storage.journal.synced
        found, contents, expected, _ = self._inspect(disk)
        self.counts["power cuts under a weak policy"] += 1
        if found < synced:
            self.fail(f"batch {synced} was synced, the start found {found}")
        faults = differences(expected, contents, set())
        if faults:
            self.fail(f"after a power cut, at batch {found}: " + "; ".join(faults))

    def _look_for_plain_text(self) -> None:
        for path in self.disk.files:
            if PLAIN_TEXT in self.disk.content(path):
                self.fail(f"{path} holds a payload that is not encrypted")

    def _audit(self) -> None:
        """The broker as it runs: everything is answered, and there."""
        for _ in range(self.random.randint(0, min(LONGEST_LIVES))):
            self._operate()
        for _ in range(50):
            self.turn()
            self.world.host.step()
        self.world.sync()
        self.turn()
        for actor in self.actors:
            if actor.wire is not None:
                unanswered = actor.unanswered()
                if unanswered:
                    self.fail(f"{actor.name} waits for {unanswered}")
                actor.lose()
        self.world.sync()
        is_idle = self.random.random() < 0.5
        if is_idle:
            # Time for what the broker does by itself.
            for pause in IDLE_MS:
                self.advance(pause)
                self.turn()
                self.world.sync()
        self._publish_parts()
        contents = inspect(self.world, self.reference, self._clients(self.reference))
        faults = differences(self.reference, contents, self.delivered)
        if is_idle:
            faults += undone(self.reference, contents)
        if faults:
            self.fail("running: " + "; ".join(faults))

    def _publish_parts(self) -> None:
        """Let the broker publish all that was decided on."""
        broker = self.world.broker
        adapter = broker.adapters["native"]
        assert isinstance(adapter, NativeAdapter)
        staged = adapter.parts_of(broker.vhost("/"))
        while any(staged.progress(name.encode()) for name in self.reference.transactional):
            self.advance(1)
            self.turn()
            self.world.sync()
        expected = sum(len(each) for each in self.reference.parts.values())
        if len(staged) != expected:
            self.fail(f"{len(staged)} parts are staged, not {expected}")

    # What actors report

    def acknowledged(self, write_batch: int) -> None:
        """The broker said that what was done in ``write_batch`` is safe."""
        self.floor = max(self.floor, write_batch)

    def new_message(self) -> int:
        """The number of the next message."""
        self.next_number += 1
        return self.next_number

    def published(self, number: int, is_durable: bool) -> int:
        """A message was fed; the write batch that its acknowledgement is about, -1 for none."""
        self._rank += 1
        self.ranks[number] = self._rank
        self.write_batches[number] = self.world.storage.write_batch
        return self.world.storage.write_batch if is_durable else -1

    def published_later(self, numbers: list[int]) -> None:
        """The broker itself has published these now."""
        for number in numbers:
            self.note(f"{self.world.storage.write_batch}: will {number} is published")
            self.published(number, True)

    def saw_offsets(self, stream: str, partition: int, first: int, mark: int) -> None:
        """The broker said from and up to where a partition can be read."""
        place = (stream, partition)
        self.firsts[place] = max(first, self.firsts.get(place, 0))
        self.marks[place] = max(mark, self.marks.get(place, 0))
        # What a reader may see is durable.
        if mark:
            records = self.reference.streams[stream][partition].records
            self.acknowledged(self.write_batches[records[mark - 1].number])

    def deleted(self, queue: str) -> None:
        """A queue is about to be deleted."""
        for number in self.reference.queues.get(queue, ()):
            self.dropped.add((queue, number))
            self.holders.pop((queue, number), None)

    def session_ended(self, client: str) -> None:
        """What its client has seen is new to others, and to itself."""
        queue = backlog_of(client)
        self.delivered = {place for place in self.delivered if place[0] != queue}
        for place in [place for place in self.holders if place[0] == queue]:
            del self.holders[place]

    def stream_deleted(self, stream: str) -> None:
        """A stream is about to be deleted."""
        self.deletions += 1
        for place in [place for place in self.marks if place[0] == stream]:
            del self.marks[place]
            self.firsts.pop(place, None)

    def learn_incarnation(self, incarnation: int, name: str) -> None:
        """The broker called it so."""
        known = self.incarnations.setdefault(incarnation, name)
        if known != name:
            self.fail(f"the incarnation {name} of a stream was {known}")

    def received(self, actor: Actor, queue: str, number: int, is_flagged: bool) -> None:
        """A consumer got a message."""
        place = (queue, number)
        if place in self.dropped:
            return
        self.reference.resolve(queue, number)
        entries = self.reference.queues.get(queue)
        if entries is None or number not in entries:
            now = self.world.broker.now_ms
            is_moved = queue == DEAD and self.reference.move(number, now)
            if not is_moved and not self.reference.arrive(queue, number, now):
                self.fail(f"{actor.name} got {number} of {queue}, which is settled")
        if place in self.delivered and not is_flagged:
            self.fail(f"{actor.name} got {number} of {queue} again, not flagged")
        self.delivered.add(place)
        entry = self.reference.queues[queue][number]
        if entry.mode == 2:
            # Held back until its publisher's acknowledgement is certain.
            self.acknowledged(self.write_batches[number])
        holder = self.holders.get(place)
        if holder is not None:
            self.fail(f"{actor.name} got {number} of {queue}, which {holder.name} holds")
        if not entry.is_at_most_once and not (queue in KINDS and KINDS[queue].is_lossy):
            self.holders[place] = actor
        is_anywhere = entry.was_delayed or entry.handed != ()
        if not is_flagged and queue not in (DEAD, "priority") and not is_anywhere:
            # In MQTT, messages of different quality of service may overtake each other.
            kind = (queue, entry.qos)
            rank = self.ranks[number]
            if rank <= actor.last_ranks.get(kind, -1):
                self.fail(f"{actor.name} got {number} of {queue} out of order")
            actor.last_ranks[kind] = rank

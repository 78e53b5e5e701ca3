"""Short scenarios, crashed at every one of their disk operations, and again while they recover.

Each scenario is scripted for one durable thing. After each operation, and within each write, the
process dies or the power fails; each start that follows, and each start that is cut short itself,
must find a state of the reference model that is new enough.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.simulation.amqp_actor import AmqpActor
from tests.simulation.inspection import differences, inspect
from tests.simulation.mqtt_actor import MqttActor, Sent
from tests.simulation.native_actor import NativeActor
from tests.simulation.reference import DEAD, TOPICS, Reference, Session, Will, backlog_of
from tests.simulation.simulation import Simulation
from tests.simulation.wires import MqttWire
from tests.simulation.world import World
from tests.support import mqtt
from tests.support.simulated import SimulatedDisk

#: A scenario with more operations than this is not short any more.
MOST_OPERATIONS = 80


@dataclass
class Moment:
    """What clients knew after some number of disk operations."""

    operations: int
    floor: int
    delivered: set[tuple[str, int]]
    now: int
    #: of each MQTT client: messages under way by packet identifier, and those that it got
    received: dict[str, tuple[dict[int, int], set[int]]]
    #: QoS 2 messages that the sender has under way
    sent: dict[int, Sent]


class Scenario:
    """A broker and its clients, driven by a script."""

    def __init__(self) -> None:
        self.simulation = Simulation(0)
        self.simulation.begin()
        actors = {actor.name: actor for actor in self.simulation.actors}
        amqp, mqtt, sender, native = (
            actors[name] for name in ("amqp0", "mqtt0", "mqtt2", "native0")
        )
        assert isinstance(amqp, AmqpActor)
        assert isinstance(mqtt, MqttActor)
        assert isinstance(sender, MqttActor)
        assert isinstance(native, NativeActor)
        self.amqp, self.mqtt, self.sender, self.native = amqp, mqtt, sender, native
        #: operations of the first start, each of which has a test in the storage's tests
        self.opened = len(self.simulation.disk.operations)
        self.moments: list[Moment] = []
        self._note()

    def do(self, *actions: Callable[[], None]) -> None:
        """Act in one turn, and let the disk work until everything is answered."""
        for action in actions:
            action()
        world = self.simulation.world
        while True:
            self.simulation.turn()
            self._note()
            workers = [worker for worker in world.host.executor.workers.values() if worker.queue]
            if not workers and not world.wants_turn:
                return
            for worker in workers:
                worker.step()
                world.host.run_calls()

    def advance(self, milliseconds: int) -> None:
        self.do(lambda: self.simulation.advance(milliseconds))

    def _note(self) -> None:
        simulation = self.simulation
        received = {
            actor.name: (dict(actor.incoming), set(actor.completed))
            for actor in (self.mqtt, self.sender)
        }
        self.moments.append(
            Moment(
                len(simulation.disk.operations),
                simulation.floor,
                set(simulation.delivered),
                simulation.world.broker.now_ms,
                received,
                {packet_id: copy.copy(sent) for packet_id, sent in self.sender.outgoing.items()},
            )
        )

    def disks(self) -> Iterator[tuple[Moment, SimulatedDisk, bool]]:
        """The disk after each operation, and (True) within each write, after a kill."""
        disk = SimulatedDisk()
        for done, operation in enumerate(self.simulation.disk.operations):
            if done < self.opened:
                disk.apply(operation)
                continue
            moment = [each for each in self.moments if each.operations <= done][-1]
            yield moment, disk.copy(), False
            if operation.kind == "write" and len(operation.data) > 1:
                for size in (1, len(operation.data) // 2, len(operation.data) - 1):
                    yield moment, disk.torn(operation, size), True
            disk.apply(operation)
        yield self.moments[-1], disk, False

    def check(self, disk: SimulatedDisk, moment: Moment, found_before: int | None = None) -> int:
        """Start on ``disk`` and compare; the write batch that the start found."""
        world = World(disk, 1, moment.now)
        found = world.recovered_write_batch
        assert found >= moment.floor
        limit = found if found_before is None else min(found, found_before)
        states = self.simulation.states
        state: Reference = states[
            max(write_batch for write_batch in states if write_batch <= limit)
        ].restarted()
        clients = {
            actor.name: actor.version
            for actor in (self.mqtt, self.sender)
            if actor.name in state.sessions
        }
        delivered = {
            (name, number)
            for name, number in moment.delivered
            if number in state.queues.get(name, ())
        }
        # Wills of clients that were cut off are published by every start.
        state.tick(moment.now)
        if moment.sent:
            self._send_again(world, state, moment.sent)
            clients[self.sender.name] = self.sender.version
        contents = inspect(world, state, clients)
        faults = differences(state, contents, delivered)
        for actor in (self.mqtt, self.sender):
            actor.incoming, actor.completed = moment.received[actor.name]
            faults += actor.check(contents)
        assert faults == [], f"after batch {found}"
        return found

    def _send_again(self, world: World, state: Reference, outgoing: dict[int, Sent]) -> None:
        """What the sender does not know to be complete must not be there twice."""
        name = self.sender.name
        known = state.sessions.setdefault(name, Session()).incoming
        state.declare_queue(backlog_of(name))
        wire = MqttWire(world, name, self.sender.version)
        for packet_id, sent in outgoing.items():
            if sent.is_released:
                wire.feed(mqtt.pubrel(packet_id))
                continue
            if packet_id not in known:
                state.publish(sent.number, TOPICS, sent.key, 2, world.broker.now_ms)
            topic = sent.key.replace(".", "/")
            wire.publish(topic, sent.payload, 2, packet_id, dup=True)
        world.sync()
        wire.lose()


def starts(disk: SimulatedDisk, moment: Moment) -> Iterator[SimulatedDisk]:
    """The disk after each operation of a start on it, after a kill."""
    started = disk.copy()
    World(started, 2, moment.now)
    operations = started.operations
    interrupted = disk.copy()
    for operation in operations:
        interrupted.apply(operation)
        yield interrupted.copy()


# Scripts


def queue(run: Scenario) -> None:
    run.do(run.amqp.connect, lambda: run.amqp.declare("q0"))
    run.do(*[lambda: run.amqp.publish(("", "q0"))] * 3)
    run.do(lambda: run.amqp.consume("q0"))
    run.do(run.amqp.acknowledge, lambda: run.amqp.publish(("", "q0")))
    run.do(run.amqp.lose)


def transaction(run: Scenario) -> None:
    run.do(run.amqp.connect, lambda: run.amqp.declare("q0"), lambda: run.amqp.declare("q1"))
    run.do(*[lambda: run.amqp.publish(("", "q0"))] * 2)
    run.do(lambda: run.amqp.get("q0"))
    run.do(
        run.amqp.acknowledge_in_transaction,
        *[lambda: run.amqp.publish_in_transaction(("", "q1"))] * 2,
        run.amqp.commit,
    )


def dead_letter(run: Scenario) -> None:
    run.do(run.amqp.connect, lambda: run.amqp.declare(DEAD), lambda: run.amqp.declare("rejected"))
    run.do(*[lambda: run.amqp.publish(("", "rejected"))] * 2)
    run.do(lambda: run.amqp.consume("rejected"))
    run.do(lambda: run.amqp.reject(False))
    run.do(lambda: run.amqp.reject(True))


def expiry(run: Scenario) -> None:
    run.do(run.amqp.connect, lambda: run.amqp.declare(DEAD), lambda: run.amqp.declare("ttl"))
    run.do(*[lambda: run.amqp.publish(("", "ttl"))] * 2)
    run.advance(4000)
    run.do(lambda: run.amqp.publish(("", "ttl")))
    run.advance(1500)
    run.do(lambda: run.amqp.consume(DEAD))


def topology(run: Scenario) -> None:
    run.do(run.amqp.connect, lambda: run.amqp.declare("q0"), lambda: run.amqp.declare("priority"))
    run.do(lambda: run.amqp.bind("q0", "a.*"), lambda: run.amqp.bind("priority", "#"))
    run.do(lambda: run.amqp.publish(("amq.topic", "a.b")))
    run.do(lambda: run.amqp.bind("priority", "#", is_bind=False))
    run.do(lambda: run.amqp.publish(("amq.topic", "a.a")))
    run.do(lambda: run.amqp.delete("q0"))
    run.do(lambda: run.amqp.declare("q0"), lambda: run.amqp.publish(("", "q0")))


def session(run: Scenario) -> None:
    run.do(run.mqtt.connect, lambda: run.mqtt.subscribe("a/+", 1))
    run.do(run.sender.connect)
    run.do(*[lambda: run.sender.publish_acknowledged("a.a")] * 3)
    run.do(run.mqtt.acknowledge)
    run.do(run.mqtt.lose)
    run.do(lambda: run.sender.publish_acknowledged("a.b"))
    run.do(run.mqtt.connect, lambda: run.mqtt.unsubscribe("a/+"))
    run.do(lambda: run.sender.publish_acknowledged("a.b"))


def exactly_once(run: Scenario) -> None:
    run.do(run.mqtt.connect, lambda: run.mqtt.subscribe("a/+", 2))
    run.do(run.sender.connect, lambda: run.sender.publish_once("a.a"))
    run.do(run.sender.release_one, run.mqtt.confirm)
    run.do(lambda: run.sender.publish_once("a.b"))
    run.do(run.mqtt.lose, run.sender.lose)
    run.do(run.sender.connect, run.mqtt.connect)
    run.do(run.mqtt.confirm, run.sender.release_one)
    run.do(lambda: run.sender.publish_once("a.b"))


def retained(run: Scenario) -> None:
    run.do(run.sender.connect, lambda: run.sender.publish_acknowledged("a.a", True))
    run.do(lambda: run.sender.publish_acknowledged("a.a", True))
    run.do(lambda: run.sender.publish_acknowledged("b.b", True))


def producer(run: Scenario) -> None:
    run.do(run.native.connect, lambda: run.native.declare("q0"))
    run.do(run.native.open_producer)
    run.do(lambda: run.native.publish_once(("", "q0")))
    run.do(run.native.publish_again, lambda: run.native.publish_once(("", "q0")))
    run.do(run.native.open_producer, run.native.publish_fenced)
    run.do(lambda: run.native.subscribe("q0"))
    run.do(run.native.settle)


def stream(run: Scenario) -> None:
    run.do(run.native.connect, lambda: run.native.declare("s1"))
    run.do(lambda: run.native.bind("s1", "#"))
    for key in ("a.a", "a.b", "b.b"):
        run.do(partial(run.native.publish, ("amq.topic", key)))
    run.do(*[run.native.fetch] * 6)
    run.do(*[run.native.commit] * 4)
    run.do(lambda: run.native.publish(("amq.topic", "a.a")))
    run.do(lambda: run.native.delete("s1"))


def members(run: Scenario) -> None:
    run.do(run.native.connect, lambda: run.native.declare("s1"))
    run.do(lambda: run.native.bind("s1", "#"))
    for key in ("a.a", "a.b", "b.b"):
        run.do(partial(run.native.publish, ("amq.topic", key)))
    run.do(*[run.native.fetch] * 12)
    known = run.native.memberships
    for name in ("one", "two", "one"):
        run.do(partial(known.join, "g0", name))
    for _ in range(3):
        run.do(*[partial(known.heartbeat, member) for member in known.members.values()])
        run.do(known.commit)
    run.do(lambda: known.join_exclusively("g1"))
    run.do(known.leave, lambda: known.join_exclusively("g0"))
    run.do(known.commit)


def native_transaction(run: Scenario) -> None:
    run.do(run.native.connect, lambda: run.native.declare("q0"), lambda: run.native.declare("s1"))
    run.do(lambda: run.native.bind("s1", "#"))
    run.do(*[lambda: run.native.publish(("", "q0"))] * 2)
    run.do(lambda: run.native.publish(("amq.topic", "a.b")))
    run.do(*[run.native.fetch] * 6, lambda: run.native.subscribe("q0"))
    run.do(lambda: run.native.memberships.join("g0", "one"))
    for _ in range(3):
        run.do(run.native.transactions.commit)
    run.do(run.native.transactions.commit_again)
    run.do(run.native.lose)
    run.do(run.native.connect, run.native.transactions.commit_again)


def will(run: Scenario) -> None:
    run.do(run.mqtt.connect, lambda: run.mqtt.subscribe("a/+", 1))
    run.do(lambda: run.sender.connect(Will(run.simulation.new_message(), "a.a", 1, True, 0)))
    run.do(run.sender.lose)
    run.do(lambda: run.sender.connect(Will(run.simulation.new_message(), "a.b", 2, False, 0)))
    run.do(run.mqtt.lose)
    number = run.simulation.new_message()
    run.do(lambda: run.mqtt.connect(Will(number, "b.b", 1, True, 2000)))
    run.do(run.mqtt.lose)
    run.advance(3000)


def limits(run: Scenario) -> None:
    run.do(run.native.connect, lambda: run.native.declare("q0"), lambda: run.native.declare("s0"))
    run.do(lambda: run.native.bind("s0", "#"), lambda: run.native.bind("q0", "#"))
    run.do(lambda: run.native.set_policy("q0", {"max-length": 3}))
    for _ in range(3):
        run.do(*[lambda: run.native.publish(("amq.topic", "a.a"))] * 2)
    run.do(lambda: run.native.set_policy("s0", {"max-length": 5}))
    run.advance(1500)
    run.do(lambda: run.native.set_policy("q0", {"delivery": "exactly-once"}))
    run.do(lambda: run.native.publish(("amq.topic", "a.a")))
    run.advance(1500)
    run.do(lambda: run.native.set_policy("q0"), lambda: run.native.set_policy("s0"))
    run.do(lambda: run.native.publish(("amq.topic", "a.a")))


def checkpoint(run: Scenario) -> None:
    run.do(run.amqp.connect, lambda: run.amqp.declare("q0"), lambda: run.amqp.declare("q1"))
    run.do(lambda: run.amqp.consume("q0"))
    while not any(each.kind == "database" for each in run.simulation.disk.operations):
        run.do(
            *[lambda: run.amqp.publish(("", "q0"))] * 2,
            *[lambda: run.amqp.publish(("", "q1"))] * 4,
            run.amqp.acknowledge,
        )
    run.do(run.amqp.acknowledge, lambda: run.amqp.publish(("", "q1")))


SCRIPTS = (
    queue,
    transaction,
    dead_letter,
    expiry,
    topology,
    session,
    exactly_once,
    retained,
    producer,
    stream,
    members,
    native_transaction,
    will,
    limits,
    checkpoint,
)


# On a busy machine the longest script takes minutes.
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_crash_at_any_operation(script: Callable[[Scenario], None]) -> None:
    run = Scenario()
    script(run)
    assert len(run.simulation.disk.operations) < MOST_OPERATIONS
    random_ = random.Random(0)
    for moment, disk, is_torn in run.disks():
        # Where everything is synced the three are the same.
        cuts = () if disk.is_synced else (disk.power_cut(None), disk.power_cut(random_))
        for first in (disk, *cuts):
            found = run.check(first.copy(), moment)
            if is_torn:
                continue
            for second in starts(first, moment):
                run.check(second.power_cut(random_), moment, found)
                if random_.random() < 0.05:
                    for third in starts(second, moment):
                        run.check(third.power_cut(random_), moment, found)


def test_scripts_do_what_they_say() -> None:
    """Each has something to lose: acknowledgements, and what they were about."""
    for script in SCRIPTS:
        run = Scenario()
        script(run)
        assert run.simulation.floor > 2, script.__name__
        last = run.simulation.reference
        assert (
            any(last.queues.values())
            or last.retained
            or last.producers
            or last.streams
            or (script is stream)
        )

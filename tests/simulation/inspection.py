"""What is in a broker, read by clients of all three protocols, and how it differs from the model.

Reading takes the messages out, so a broker that is to go on is inspected on a copy of its disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import msgpack
from pamqp import commands

from tests.simulation.damage import Repaired
from tests.simulation.group_model import STALE, STRATEGIES
from tests.simulation.reference import DEAD, LATE, Entry, Reference, backlog_of
from tests.simulation.stream_model import STREAM_ARGUMENTS, Kept
from tests.simulation.wires import (
    CONSUMING,
    AmqpWire,
    Fetched,
    MqttWire,
    NativeWire,
    number_in,
)
from tests.simulation.world import World
from trivium_native.wire import frames

#: Longer than any message lives and any delivery is put off.
LATER_MS = 60_000


@dataclass
class Delivery:
    number: int
    is_redelivered: bool
    packet_id: int = 0
    qos: int = 0


@dataclass
class Contents:
    """Times of reading are ``now`` and a good while later, for what was not to be had at once."""

    now: int
    queues: dict[str, list[Delivery]] = field(default_factory=dict)
    streams: dict[str, list[Kept]] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)
    groups: dict[tuple[str, str, int], int] = field(default_factory=dict)
    retained: dict[str, int] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    transactional: dict[str, int] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    #: what cannot be, whatever the model says
    faults: list[str] = field(default_factory=list)


def inspect(world: World, reference: Reference, clients: dict[str, int]) -> Contents:
    """Read everything that ``reference`` knows of; ``clients`` maps MQTT clients to versions.

    Raises StorageError when the storage finds damage on the way.
    """
    world.sync()
    contents = Contents(world.broker.now_ms)
    vhost = world.broker.vhosts["/"]
    for name in vhost.queues:
        contents.queues[name] = []
    _read_streams(world, reference, contents)
    _read_groups(world, reference, contents)
    _read_retained(world, contents)
    _read_sessions(world, reference, contents, clients)
    _read_queues(world, contents)
    if world.has_failed:
        raise world.host.errors[0]
    return contents


def _settled(world: World) -> None:
    world.sync()
    if world.has_failed:
        raise world.host.errors[0]


def _read_queues(world: World, contents: Contents) -> None:
    wire = AmqpWire(world)
    # DEAD comes last: it is to have what the others give up while they are read.
    for name in sorted(contents.queues, key=lambda name: name == DEAD):
        if not name.startswith("amq."):
            wire.send(commands.Basic.Consume(queue=name, consumer_tag=name), CONSUMING)
    for wait in (0, LATER_MS):
        world.pass_time(wait)
        _settled(world)
        for _, method, body in wire.receive():
            if isinstance(method, commands.Basic.Deliver):
                assert method.consumer_tag is not None
                delivery = Delivery(number_in(body), bool(method.redelivered))
                contents.queues[method.consumer_tag].append(delivery)


def _read_sessions(
    world: World, reference: Reference, contents: Contents, clients: dict[str, int]
) -> None:
    for client, version in clients.items():
        wire = MqttWire(world, client, version)
        _settled(world)
        found: list[Delivery] = []
        for first, data in wire.receive():
            kind = first & 0xF0
            if kind == 0x20:
                is_present = data[0] == 1
                if is_present != (client in reference.sessions):
                    contents.faults.append(f"session {client}: present is {is_present}")
            elif kind == 0x30:
                _, packet_id, payload = wire.read_publish(first, data)
                delivery = Delivery(number_in(payload), first & 8 != 0, packet_id, first >> 1 & 3)
                found.append(delivery)
        contents.queues[backlog_of(client)] = found


def _read_retained(world: World, contents: Contents) -> None:
    wire = MqttWire(world, "inspector", 5, is_clean=True, expiry=0)
    wire.subscribe("#", 0, 1, retained=True)
    _settled(world)
    for first, data in wire.receive():
        if first & 0xF0 == 0x30:
            topic, _, payload = wire.read_publish(first, data)
            key = topic.replace("/", ".")
            if key in contents.retained:
                contents.faults.append(f"retained {key}: twice")
            contents.retained[key] = number_in(payload)
    wire.lose()


def _ask(world: World, wire: NativeWire, kind: int, **fields: Any) -> tuple[int, bytes]:
    wire.receive()
    correlation = wire.request(kind, fields)
    _settled(world)
    for reply, found, body in wire.receive():
        if found == correlation:
            return reply, body
    raise AssertionError("no reply")


def _read_streams(world: World, reference: Reference, contents: Contents) -> None:
    wire = NativeWire(world)
    _settled(world)
    for name, stream in world.broker.vhosts["/"].streams.items():
        contents.streams[name] = [
            _read_partition(world, wire, name, index, contents)
            for index in range(len(stream.partitions))
        ]
    _, body = _ask(world, wire, frames.LIST_POLICIES)
    for policy in msgpack.unpackb(body)["policies"]:
        contents.policies[policy["name"]] = policy["definition"]
    for group, name in product(STRATEGIES, contents.streams):
        reply, body = _ask(world, wire, frames.COMMITTED, group=group, stream=name)
        if reply == frames.OK:
            for partition, offset, *_ in msgpack.unpackb(body)["partitions"]:
                if offset is not None:
                    contents.groups[group, name, partition] = offset
    for names, is_transactional, sequences in (
        (reference.producers, False, contents.producers),
        (reference.transactional, True, contents.transactional),
    ):
        for name in names:
            _, body = _ask(
                world, wire, frames.PRODUCER, producer=name, transactional=is_transactional
            )
            sequences[name] = msgpack.unpackb(body)["sequence"]
    wire.lose()


def _read_groups(world: World, reference: Reference, contents: Contents) -> None:
    wire = NativeWire(world)
    _settled(world)
    for group in STRATEGIES:
        holder = reference.groups.holders.get(group)
        generation = reference.groups.generations.get(group, 0)
        fields = {"group": group, "member": holder or "nobody", "generation": generation}
        reply, body = _ask(world, wire, frames.HEARTBEAT, **fields)
        if reply != (frames.ERROR if holder is None else frames.OK) or (
            holder is None and msgpack.unpackb(body)[0] != STALE
        ):
            contents.faults.append(f"group {group}: the holder is not {holder}")
        # Whoever holds it next has the next generation.
        _, body = _ask(world, wire, frames.JOIN, group=group, member="inspector", exclusive=True)
        contents.generations[group] = msgpack.unpackb(body)["generation"] - 1
    wire.lose()


def _read_partition(
    world: World, wire: NativeWire, name: str, index: int, contents: Contents
) -> Kept:
    kept: Kept | None = None
    while True:
        offset: int | str = "first" if kept is None else kept.end
        reply, body = _ask(world, wire, frames.FETCH, stream=name, partition=index, offset=offset)
        if reply != frames.FETCHED:
            contents.faults.append(f"stream {name}/{index}: {msgpack.unpackb(body)}")
            return kept or Kept(0, 0)
        fetched = Fetched(body)
        if kept is None:
            kept = Kept(fetched.first, fetched.first)
        if fetched.batches and fetched.batches[0][0] < kept.end:
            contents.faults.append(f"stream {name}/{index}: {fetched.batches[0][0]} after {kept}")
            return kept
        fetched.add_to(kept)
        if kept.end >= fetched.mark or not fetched.batches:
            return kept


def differences(
    reference: Reference, contents: Contents, delivered: set[tuple[str, int]]
) -> list[str]:
    """Where what was found is not what the model says; ``delivered`` was seen by consumers."""
    found = list(contents.faults)
    now = contents.now
    if set(contents.queues) != set(reference.queues):
        found.append(f"queues are {sorted(contents.queues)}, not {sorted(reference.queues)}")
        return found
    found += _stream_differences(reference, contents)
    found += _share_differences(reference, contents)
    moved = _moved(reference, contents)
    for name in reference.queues:
        found += _queue_differences(reference, contents, delivered, moved, name)
    for what, is_, should in (
        ("streams", set(contents.streams), set(reference.streams)),
        ("policies", contents.policies, reference.policies),
        ("groups", contents.groups, reference.groups.offsets),
        ("generations", contents.generations, reference.groups.all_generations()),
        ("retained", contents.retained, reference.retained),
        ("producers", contents.producers, _sequences(reference.producers)),
        ("transactions", contents.transactional, _sequences(reference.transactional)),
    ):
        if is_ != should:
            found.append(f"{what} at {now}: {is_}, not {should}")
    return found


def _sequences(producers: dict[str, tuple[int, int]]) -> dict[str, int]:
    return {name: sequence for name, (_, sequence) in producers.items()}


def unexplained(reference: Reference, contents: Contents, told: Repaired, newest: int) -> list[str]:
    """What is missing after a repair without being told, and what never was there.

    ``newest`` is the number of the last message that was published. Where rows are lost,
    the queue or stream of a message may be gone with them.
    """
    found: list[str] = []
    numbers = [each.number for entries in contents.queues.values() for each in entries]
    numbers += contents.retained.values()
    for number in numbers:
        if not 0 < number <= newest:
            found.append(f"{number} was never published")
    if told.has_lost_rows:
        return found
    moved = _moved(reference, contents)
    for name, entries in reference.queues.items():
        there = {each.number for each in contents.queues.get(name, ())}
        for number, entry in entries.items():
            is_sure = not reference.may_be_gone(name, number, contents.now)
            is_elsewhere = number in reference.shared or number in moved or entry.was_delayed
            is_told = is_elsewhere or told.has_lost_from(name)
            if number not in there and is_sure and not is_told:
                found.append(f"{name} lacks {number}")
    for name, partitions in reference.streams.items():
        if not told.has_lost_records(name) and len(contents.streams.get(name, ())) != len(
            partitions
        ):
            found.append(f"stream {name} is not there")
    return found


def _stream_differences(reference: Reference, contents: Contents) -> list[str]:
    found: list[str] = []
    for name, partitions in contents.streams.items():
        least = STREAM_ARGUMENTS.get(name, {}).get("x-max-length-bytes", 0)
        for index, kept in enumerate(partitions):
            what = f"stream {name}/{index}"
            if name not in reference.streams:
                continue
            partition = reference.streams[name][index]
            if kept.end != len(partition.records):
                found.append(f"{what} ends with {kept.end}, not {len(partition.records)}")
            else:
                faults = partition.faults(kept, 0, contents.now)
                found += [f"{what}: {fault}" for fault in faults]
            if kept.first > 0 and kept.size < int(least):
                found.append(f"{what}: {kept.size} bytes are left")
    return found


def undone(reference: Reference, contents: Contents) -> list[str]:
    """What the broker should have done by now, where it was left alone."""
    return [
        f"stream {name}/{index}: {fault}"
        for name, partitions in contents.streams.items()
        for index, kept in enumerate(partitions)
        for fault in reference.streams[name][index].idle_faults(kept)
    ]


def vanished(contents: Contents) -> dict[str, int]:
    """How many partitions lack records, by what took them."""
    partitions = [kept for each in contents.streams.values() for kept in each]
    return {
        "partitions cut by a limit": sum(kept.first > 0 for kept in partitions),
        "partitions compacted": sum(
            len(kept.records) < kept.end - kept.first for kept in partitions
        ),
    }


def _share_differences(reference: Reference, contents: Contents) -> list[str]:
    """Each message of a share is in one backlog."""
    found: list[str] = []
    for number, clients in reference.shared.items():
        names = [backlog_of(client) for client in clients]
        there = [name for name in names if number in _numbers(contents, name)]
        is_lost = not any(reference.may_be_gone(name, number, contents.now) for name in names)
        if len(there) > 1 or (not there and is_lost):
            found.append(f"{number} is in {there} of {names}")
    return found


def _numbers(contents: Contents, name: str) -> list[int]:
    return [delivery.number for delivery in contents.queues[name]]


def _moved(reference: Reference, contents: Contents) -> dict[int, str]:
    """What is in DEAD because another queue gave it up by itself, with that queue."""
    moved: dict[int, str] = {}
    for delivery in contents.queues.get(DEAD, []):
        number = delivery.number
        if number not in reference.queues[DEAD]:
            for name, entries in reference.queues.items():
                later = contents.now + LATER_MS
                if number in entries and reference.may_move(name, entries[number], later):
                    moved[number] = name
    return moved


def _queue_differences(
    reference: Reference,
    contents: Contents,
    delivered: set[tuple[str, int]],
    moved: dict[int, str],
    name: str,
) -> list[str]:
    found: list[str] = []
    entries: dict[int, Entry] = reference.queues[name]
    deliveries = contents.queues[name]
    numbers = _numbers(contents, name)
    if len(set(numbers)) != len(numbers):
        found.append(f"{name}: duplicates in {numbers}")
    for delivery in deliveries:
        number = delivery.number
        entry = entries.get(number)
        if entry is None:
            if not (name == DEAD and number in moved) and not (
                name == LATE and number in reference.delayed
            ):
                found.append(f"{name}: {number} is settled, or never was there")
            continue
        if entry.qos and entry.qos != delivery.qos:
            found.append(f"{name}: {number} has QoS {delivery.qos}")
        if moved.get(number) == name:
            found.append(f"{name}: {number} is in {DEAD} too")
        # What a client may have it gets again, however late.
        if 0 < entry.expires <= contents.now and not (entry.qos and delivery.is_redelivered):
            found.append(f"{name}: {number} expired at {entry.expires}")
        if (name, number) in delivered and not delivery.is_redelivered:
            found.append(f"{name}: {number} is not flagged as redelivered")
    for number in entries:
        if number in numbers or moved.get(number) == name or number in reference.shared:
            continue
        if not reference.may_be_gone(name, number, contents.now) or reference.may_move(
            name, entries[number], contents.now
        ):
            found.append(f"{name}: {number} is lost")
    if name == LATE:
        found += [f"{number} is late" for number in reference.delayed if number not in numbers]
    if name == DEAD:
        # When other queues gave up what is in it the model does not know.
        return found
    for kind in {(entry.qos, entry.handed) for entry in entries.values()}:
        # In MQTT, messages of different quality of service may overtake each other.
        there = [
            number
            for number in numbers
            if number in entries
            and (entries[number].qos, entries[number].handed) == kind
            and not entries[number].was_delayed
        ]
        expected = [number for number in reference.order(name) if number in set(there)]
        if there != expected:
            found.append(f"{name}: {there} are not in the order {expected}")
    return found

"""A native client: batches, an idempotent producer, queues, streams and groups."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgpack

from tests.native import harness as native
from tests.simulation.actors import BINDABLE, KEYS, PATTERNS, STREAMS, Actor
from tests.simulation.reference import KINDS, TOPICS
from tests.simulation.wires import Delivered, NativeWire, number_in, payload_of, read_fetched
from trivium_native import frames

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

UNKNOWN_DELIVERY = 308
FENCED = 309
PERSISTENT = 4
RETAIN = 8
CREDIT = 4

GROUPS = ("g0", "g1")


class NativeActor(Actor):
    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.forget()
        self.actions = [
            (self.publish, 20),
            (self.open_producer, 2),
            (self.publish_once, 12),
            (self.publish_again, 4),
            (self.publish_fenced, 1),
            (self.subscribe, 4),
            (self.unsubscribe, 1),
            (self.settle, 16),
            (self.fetch, 12),
            (self.commit, 6),
            (self.ask_committed, 2),
            (self.declare, 3),
            (self.bind, 3),
            (self.delete, 1),
        ]

    def forget(self) -> None:
        #: what the broker has not answered, by correlation id: what it is about and its batch
        self.waiting: dict[int, tuple[str, int, Any]] = {}
        self.subscriptions: dict[int, str] = {}
        self.unsettled: dict[tuple[int, int], int] = {}
        self.next_subscription = 0
        #: epoch and next sequence number of its open producer
        self.producer: tuple[int, int] | None = None
        #: the latest request of that producer
        self.latest: tuple[int, bytes] | None = None

    def connect(self) -> None:
        self.wire = NativeWire(self.simulation.world)

    @property
    def native(self) -> NativeWire:
        assert isinstance(self.wire, NativeWire)
        return self.wire

    def _ask(self, what: str, batch: int, kind: int, data: Any, detail: Any = None) -> None:
        correlation = self.native.correlation + 1
        self.waiting[correlation] = (what, batch, detail)
        self.native.request(kind, data)

    def unanswered(self) -> str:
        return str(self.waiting or "")

    # Publishing

    def _entry(self, target: tuple[str, str] | None = None) -> tuple[bytes, int]:
        """An encoded message that the model has taken, and the batch to wait for."""
        target = target or self.target()
        if target is None or target[1] == "full":
            target = (TOPICS, self.random.choice(KEYS))
        exchange, key = target
        number = self.simulation.new_message()
        mode = self.random.choice((0, 1, 1, 2))
        retain = exchange == TOPICS and self.random.random() < 0.1
        flags = mode | (PERSISTENT if mode else 0) | (RETAIN if retain else 0)
        self.note(f"publishes {number} to {target}, mode {mode}, retain {retain}")
        durable = self.reference.publish(number, exchange, key, mode, self.now, retain=retain)
        batch = self.simulation.published(number, durable)
        payload = payload_of(number, self.size())
        return native.entry(payload, key.encode(), exchange.encode(), flags), batch

    def publish(self, target: tuple[str, str] | None = None) -> None:
        entries = [self._entry(target) for _ in range(self.random.choice((1, 1, 2, 5)))]
        batch = max(batch for _, batch in entries)
        data = native.publish(*[entry for entry, _ in entries])
        self._ask("publish", batch, frames.PUBLISH, data)

    def open_producer(self) -> None:
        epoch, sequence = self.reference.producers.get(self.name, (-1, 0))
        self.note(f"opens its producer in epoch {epoch + 1}")
        self.reference.producers[self.name] = (epoch + 1, sequence)
        self.producer = (epoch + 1, sequence)
        self.latest = None
        detail = {"epoch": epoch + 1, "sequence": sequence}
        self._ask("producer", self.batch, frames.PRODUCER, {"producer": self.name}, detail)

    def publish_once(self, target: tuple[str, str] | None = None) -> None:
        if self.producer is None:
            self.open_producer()
        assert self.producer is not None
        epoch, sequence = self.producer
        count = self.random.randint(1, 3)
        entries = [self._entry(target)[0] for _ in range(count)]
        data = native.publish(*entries, producer=(self.name.encode(), epoch, sequence))
        self.producer = (epoch, sequence + count)
        self.reference.producers[self.name] = self.producer
        self.latest = (self.batch, data)
        self._ask("publish once", self.batch, frames.PUBLISH, data)

    def publish_again(self) -> None:
        if self.latest is not None:
            self.note("repeats its latest request")
            self._ask("publish again", self.latest[0], frames.PUBLISH, self.latest[1])

    def publish_fenced(self) -> None:
        if self.producer is not None and self.producer[0] > 0:
            self.note("publishes in an old epoch")
            entry = native.entry(payload_of(0, 0), b"a.a", TOPICS.encode())
            block = (self.name.encode(), self.producer[0] - 1, self.producer[1])
            data = native.publish(entry, producer=block)
            self._ask("fenced", -1, frames.PUBLISH, data)

    # Queues

    def subscribe(self, queue: str | None = None) -> None:
        queue = queue or self.some(
            list(KINDS),
            lambda name: (
                self.exists(name) and name not in self.subscriptions.values() and name != "lossy"
            ),
        )
        if queue is None:
            return
        self.note(f"subscribes to {queue}")
        self.next_subscription += 1
        self.subscriptions[self.next_subscription] = queue
        fields = {
            "subscription": self.next_subscription,
            "mode": "queue",
            "queue": queue,
            "credit": CREDIT,
        }
        self._ask("subscribe", -1, frames.SUBSCRIBE, fields)

    def unsubscribe(self) -> None:
        if self.subscriptions:
            number = self.random.choice(list(self.subscriptions))
            queue = self.subscriptions.pop(number)
            self.note(f"unsubscribes from {queue}")
            for place in [place for place in self.unsettled if place[0] == number]:
                self.simulation.holders.pop((queue, self.unsettled.pop(place)), None)
            self._ask("unsubscribe", -1, frames.UNSUBSCRIBE, {"subscription": number})

    def settle(self) -> None:
        if not self.unsettled:
            return
        subscription, tag = self.random.choice(list(self.unsettled))
        message = self.unsettled.pop((subscription, tag))
        queue = self.subscriptions[subscription]
        self.simulation.holders.pop((queue, message), None)
        choice = self.random.random()
        flags = 0
        kind = frames.NACK
        if choice < 0.7:
            kind = frames.ACK
            self.note(f"acknowledges {message} of {queue}")
            self.reference.settle(queue, message)
        elif choice < 0.85:
            flags = 1
            self.note(f"gives {message} of {queue} back")
        else:
            self.note(f"rejects {message} of {queue}")
            self.reference.reject(queue, message)
        data = native.settle(subscription, tag, tag, flags)
        self._ask("settle", self.batch, kind, data, subscription)

    # Streams

    def _some_stream(self) -> str | None:
        found: str | None = self.some(tuple(STREAMS), self.exists)
        return found

    def fetch(self) -> None:
        stream = self._some_stream()
        if stream is None:
            return
        partition = self.random.randrange(len(self.reference.streams[stream]))
        mark = self.simulation.marks.get((stream, partition), 0)
        offset = self.random.randint(0, mark)
        self.note(f"fetches {stream}/{partition} from {offset}")
        fields = {"stream": stream, "partition": partition, "offset": offset}
        fields["max_bytes"] = self.random.choice((1, 1000, 1 << 20))
        detail = (stream, partition, self.simulation.deletions)
        self._ask("fetch", -1, frames.FETCH, fields, detail)

    def commit(self) -> None:
        stream = self._some_stream()
        if stream is None:
            return
        partition = self.random.randrange(len(self.reference.streams[stream]))
        offset = self.random.randint(0, self.simulation.marks.get((stream, partition), 0))
        group = self.random.choice(GROUPS)
        self.note(f"commits {offset} of {stream}/{partition} for {group}")
        self.reference.groups[group, stream, partition] = offset
        fields = {"group": group, "stream": stream, "offsets": [[partition, offset]]}
        self._ask("commit", self.batch, frames.COMMIT, fields)

    def ask_committed(self) -> None:
        stream = self._some_stream()
        if stream is not None:
            group = self.random.choice(GROUPS)
            expected = [
                self.reference.groups.get((group, stream, partition))
                for partition in range(len(self.reference.streams[stream]))
            ]
            fields = {"group": group, "stream": stream}
            self._ask("committed", -1, frames.COMMITTED, fields, expected)

    # Topology

    def declare(self, name: str = "") -> None:
        name = name or self.random.choice([*KINDS, *STREAMS])
        self.note(f"declares {name}")
        if name in STREAMS:
            self.reference.declare_stream(name, STREAMS[name])
            fields: dict[str, Any] = {"kind": "stream", "partitions": STREAMS[name]}
            if name == "s0":
                # As AMQP clients declare it, who cannot give it more partitions.
                fields["arguments"] = {}
        else:
            self.reference.declare_queue(name)
            kind = KINDS[name]
            fields = {"kind": "queue", "durable": kind.durable, "arguments": kind.arguments}
        self._ask("declare", self.batch, frames.DECLARE, {"name": name, **fields})

    def bind(self, name: str | None = None, pattern: str = "", is_bind: bool = True) -> None:
        if name is None:
            name = self.some(BINDABLE, self.exists)
            pattern = self.random.choice(PATTERNS)
            is_bind = self.random.random() < 0.7
        if name is None:
            return
        self.note(f"{'binds' if is_bind else 'unbinds'} {name} and {pattern}")
        if is_bind:
            self.reference.bindings.add((pattern, name))
        else:
            self.reference.bindings.discard((pattern, name))
        fields = {
            "exchange": TOPICS,
            "kind": "stream" if name in STREAMS else "queue",
            "name": name,
            "pattern": pattern.encode(),
        }
        self._ask("bind", self.batch, frames.BIND if is_bind else frames.UNBIND, fields)

    def delete(self, stream: str | None = None) -> None:
        stream = stream or self._some_stream()
        if stream is None:
            return
        self.note(f"deletes {stream}")
        self.reference.delete_stream(stream)
        self.simulation.stream_deleted(stream)
        self._ask("delete", self.batch, frames.DELETE, {"kind": "stream", "name": stream})

    # What comes

    def receive(self) -> None:
        for kind, correlation, body in self.native.receive():
            if kind == frames.DELIVER:
                self._got(Delivered(body))
            elif kind == frames.CONFIRM:
                (count,) = struct.unpack("<I", body)
                for each in range(correlation, correlation + count):
                    self._answered(each, "publish", b"")
            elif kind == frames.CANCELLED:
                number = msgpack.unpackb(body)["subscription"]
                self.subscriptions.pop(number, None)
                for place in [place for place in self.unsettled if place[0] == number]:
                    del self.unsettled[place]
            elif kind == frames.ERROR:
                self._refused(correlation, msgpack.unpackb(body))
            elif kind == frames.FETCHED:
                self._answered(correlation, "fetch", body)
            elif correlation > 2:
                self._answered(correlation, "", body)

    def _answered(self, correlation: int, expected: str, body: bytes) -> None:
        if correlation not in self.waiting:
            self.simulation.fail(f"{self.name} got an answer to {correlation} twice")
        what, batch, detail = self.waiting.pop(correlation)
        if not what.startswith(expected):
            self.simulation.fail(f"{self.name} got a wrong answer to {what}")
        self.simulation.acknowledged(batch)
        if what == "producer":
            if msgpack.unpackb(body) != detail:
                self.simulation.fail(f"{self.name}: producer {msgpack.unpackb(body)}, not {detail}")
        elif what == "committed":
            found = [offset for _, offset, _ in msgpack.unpackb(body)["partitions"]]
            if found != detail:
                self.simulation.fail(f"{self.name}: committed is {found}, not {detail}")
        elif what == "fetch":
            stream, partition, deletions = detail
            if deletions == self.simulation.deletions:
                self._got_records(stream, partition, body)

    def _refused(self, correlation: int, error: list[Any]) -> None:
        what, _, detail = self.waiting.pop(correlation, ("nothing", -1, None))
        if what == "fenced" and error[0] == FENCED:
            return
        if what == "settle" and error[0] == UNKNOWN_DELIVERY and detail not in self.subscriptions:
            # The queue was deleted in the same turn.
            return
        if what == "fetch" and detail[2] != self.simulation.deletions:
            return
        self.simulation.fail(f"{self.name} was refused to {what}: {error}")

    def _got_records(self, stream: str, partition: int, body: bytes) -> None:
        records = self.reference.streams[stream][partition]
        mark, batches = read_fetched(body)
        self.simulation.marks[stream, partition] = mark
        for base, numbers in batches:
            if numbers != records[base : base + len(numbers)]:
                self.simulation.fail(f"{stream}/{partition} from {base}: {numbers}")
        # What a reader may see is durable.
        if mark:
            self.simulation.acknowledged(self.simulation.batches[records[mark - 1]])

    def _got(self, delivered: Delivered) -> None:
        number = number_in(delivered.payload)
        is_flagged = delivered.flags & 1 != 0
        queue = self.subscriptions.get(delivered.subscription)
        if queue is None:
            return
        self.note(f"got {number} of {queue}, redelivered {is_flagged}")
        if delivered.mode == 2 and KINDS[queue].durable:
            # Held back until its publisher's acknowledgement is certain.
            self.simulation.acknowledged(self.simulation.batches[number])
        self.simulation.received(self, queue, number, is_flagged)
        self.unsettled[delivered.subscription, delivered.tag] = number

"""A native client: batches, an idempotent producer, queues and streams.

What it does as a member of groups, and its transactions, are modules of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack

from tests.simulation.actors import BINDABLE, KEYS, PATTERNS, Actor
from tests.simulation.group_model import FENCED, NOT_FOUND, STRATEGIES, Refused
from tests.simulation.memberships import Memberships
from tests.simulation.reference import KINDS, POLICIES, TOPICS
from tests.simulation.staging import Staging
from tests.simulation.stream_model import (
    KEYED,
    KEYED_SIZES,
    PARTITIONS,
    RECORD_KEYS,
    STREAM_ARGUMENTS,
    STREAM_POLICIES,
    STREAMS,
    Definition,
    Kept,
)
from tests.simulation.transactions import Transactions
from tests.simulation.wires import (
    Delivered,
    Fetched,
    Fields,
    NativeWire,
    number_in,
    payload_of,
)
from tests.support import native
from trivium_native.wire import frames

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

OUT_OF_RANGE = 304
UNKNOWN_DELIVERY = 308
PERSISTENT = 4
RETAIN = 8
CREDIT = 4
KEY_PROPERTY = 13


@dataclass
class Draft:
    """A message that is not published yet."""

    number: int
    exchange: str
    key: str
    mode: int
    is_retained: bool
    payload: bytes

    def encoded(self) -> bytes:
        flags = self.mode | (PERSISTENT if self.mode else 0) | (RETAIN if self.is_retained else 0)
        return native.entry(self.payload, self.key.encode(), self.exchange.encode(), flags)


@dataclass
class Request:
    what: str
    #: an answer says that this write batch is durable
    write_batch: int
    #: code of the ERROR that must come; 0 for none
    refusal: int
    #: takes the answer
    then: Callable[[bytes], None] | None
    #: whether an ERROR may come all the same
    is_open: Callable[[list[Any]], bool] | None


class NativeActor(Actor):
    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        #: goes on over its connections, so that what was delivered by an earlier one is unknown
        self.next_subscription = 0
        self.memberships = Memberships(self)
        self.transactions = Transactions(self)
        self.staging = Staging(self)
        self.forget()
        self.actions = [
            (self.publish, 20),
            (self.open_producer, 2),
            (self.publish_once, 12),
            (self.publish_again, 4),
            (self.publish_fenced, 1),
            (self.publish_keyed, 12),
            (self.subscribe, 4),
            (self.unsubscribe, 1),
            (self.settle, 16),
            (self.fetch, 12),
            (self.commit, 6),
            (self.ask_committed, 2),
            (self.declare, 3),
            (self.bind, 3),
            (self.delete, 1),
            (self.set_policy, 3),
            *self.memberships.actions,
            *self.transactions.actions,
            *self.staging.actions,
        ]

    def forget(self) -> None:
        #: what the broker has not answered, by correlation id
        self.waiting: dict[int, Request] = {}
        self.subscriptions: dict[int, str] = {}
        #: subscriptions that the broker ended
        self.cancelled: set[int] = set()
        self.unsettled: dict[tuple[int, int], int] = {}
        #: epoch and next sequence number of its open producer
        self.producer: tuple[int, int] | None = None
        #: the latest request of that producer
        self.latest: tuple[int, bytes] | None = None
        self.memberships.forget()
        self.transactions.forget()

    def restarted(self) -> None:
        super().restarted()
        self.transactions.restarted()

    def connect(self) -> None:
        self.wire = NativeWire(self.simulation.world)

    @property
    def native(self) -> NativeWire:
        assert isinstance(self.wire, NativeWire)
        return self.wire

    def ask(
        self,
        what: str,
        write_batch: int,
        kind: int,
        data: Any,
        then: Callable[[bytes], None] | None = None,
        refusal: int = 0,
        is_open: Callable[[list[Any]], bool] | None = None,
    ) -> None:
        """Send a request."""
        request = Request(what, write_batch, refusal, then, is_open)
        self.waiting[self.native.correlation + 1] = request
        self.native.request(kind, data)

    def unanswered(self) -> str:
        return str([request.what for request in self.waiting.values()] or "")

    # Publishing

    def draft(self, target: tuple[str, str] | None = None) -> Draft:
        """A message to publish."""
        target = target or self.target()
        if target is None or target[1] == "full":
            target = (TOPICS, self.random.choice(KEYS))
        number = self.simulation.new_message()
        mode = self.random.choice((0, 1, 1, 2))
        is_retained = target[0] == TOPICS and self.random.random() < 0.1
        self.note(f"publishes {number} to {target}, mode {mode}, retain {is_retained}")
        return Draft(number, *target, mode, is_retained, payload_of(number, self.size()))

    def model(self, draft: Draft, mode: int) -> int:
        """The model takes a message; the write batch to wait for."""
        durable = self.reference.publish(
            draft.number, draft.exchange, draft.key, mode, self.now, retain=draft.is_retained
        )
        return self.simulation.published(draft.number, durable)

    def publish(self, target: tuple[str, str] | None = None) -> None:
        drafts = [self.draft(target) for _ in range(self.random.choice((1, 1, 2, 5)))]
        write_batch = max([self.model(draft, draft.mode) for draft in drafts])
        data = native.publish(*[draft.encoded() for draft in drafts])
        self.ask("publish", write_batch, frames.PUBLISH, data)

    def open_producer(self) -> None:
        epoch, sequence = self.reference.producers.get(self.name, (-1, 0))
        self.note(f"opens its producer in epoch {epoch + 1}")
        self.reference.producers[self.name] = (epoch + 1, sequence)
        self.producer = (epoch + 1, sequence)
        self.latest = None
        self.ask_fields(
            "producer",
            self.write_batch,
            frames.PRODUCER,
            {"producer": self.name},
            {"epoch": epoch + 1, "sequence": sequence},
        )

    def ask_fields(
        self,
        what: str,
        write_batch: int,
        kind: int,
        fields: Fields,
        expected: Fields,
        refusal: int = 0,
    ) -> None:
        """Send a request whose answer must have these fields."""

        def check(body: bytes) -> None:
            found = msgpack.unpackb(body)
            if {name: found[name] for name in expected} != expected:
                self.simulation.fail(f"{self.name}: {what} {found}, not {expected}")

        self.ask(what, write_batch, kind, fields, check, refusal)

    def publish_once(self, target: tuple[str, str] | None = None) -> None:
        if self.producer is None:
            self.open_producer()
        assert self.producer is not None
        epoch, sequence = self.producer
        drafts = [self.draft(target) for _ in range(self.random.randint(1, 3))]
        for draft in drafts:
            self.model(draft, draft.mode)
        entries = [draft.encoded() for draft in drafts]
        data = native.publish(*entries, producer=(self.name.encode(), epoch, sequence))
        self.producer = (epoch, sequence + len(drafts))
        self.reference.producers[self.name] = self.producer
        self.latest = (self.write_batch, data)
        self.ask("publish once", self.write_batch, frames.PUBLISH, data)

    def publish_again(self) -> None:
        if self.latest is not None:
            self.note("repeats its latest request")
            self.ask("publish again", self.latest[0], frames.PUBLISH, self.latest[1])

    def publish_fenced(self) -> None:
        if self.producer is not None and self.producer[0] > 0:
            self.note("publishes in an old epoch")
            entry = native.entry(payload_of(0, 0), b"a.a", TOPICS.encode())
            block = (self.name.encode(), self.producer[0] - 1, self.producer[1])
            data = native.publish(entry, producer=block)
            self.ask("publish in an old epoch", -1, frames.PUBLISH, data, refusal=FENCED)

    def publish_keyed(self, stream: str | None = None) -> None:
        """Records with keys, some of them tombstones."""
        stream = stream or self.some(KEYED, self.exists)
        if stream is None:
            return
        entries: list[bytes] = []
        write_batch = -1
        for _ in range(self.random.randint(1, 6)):
            number, key = self.simulation.new_message(), self.random.choice(RECORD_KEYS)
            is_empty = self.random.random() < 0.15
            self.note(f"publishes {number} to {stream}, key {key!r}, empty {is_empty}")
            self.reference.publish(
                number, "", stream, 1, self.now, record_key=key, is_empty=is_empty
            )
            write_batch = self.simulation.published(number, True)
            payload = b"" if is_empty else payload_of(number, self.random.choice(KEYED_SIZES))
            properties = msgpack.packb({KEY_PROPERTY: key})
            entries.append(native.entry(payload, stream.encode(), b"", 5, properties))
        self.ask("publish", write_batch, frames.PUBLISH, native.publish(*entries))

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
        self.ask("subscribe", -1, frames.SUBSCRIBE, fields)

    def unsubscribe(self) -> None:
        if self.subscriptions:
            number = self.random.choice(list(self.subscriptions))
            queue = self.subscriptions.pop(number)
            self.note(f"unsubscribes from {queue}")
            for place in [place for place in self.unsettled if place[0] == number]:
                self.simulation.holders.pop((queue, self.unsettled.pop(place)), None)

            def is_cancelled(_: list[Any]) -> bool:
                # The queue was deleted in the same turn.
                return number in self.cancelled

            fields = {"subscription": number}
            self.ask("unsubscribe", -1, frames.UNSUBSCRIBE, fields, is_open=is_cancelled)

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
        # The queue may have been deleted in the same turn.
        is_gone = (queue, message) in self.simulation.dropped
        refusal = UNKNOWN_DELIVERY if is_gone else 0
        self.ask("settle", self.write_batch, kind, data, refusal=refusal)

    # Streams

    def some_stream(self) -> str | None:
        """One that there is."""
        found: str | None = self.some(tuple(PARTITIONS), self.exists)
        return found

    def fetch(self) -> None:
        stream = self.some_stream()
        if stream is None:
            return
        partition = self.random.randrange(len(self.reference.streams[stream]))
        mark = self.simulation.marks.get((stream, partition), 0)
        first = self.simulation.firsts.get((stream, partition), 0)
        offset = self.random.randint(0 if self.random.random() < 0.1 else first, mark)
        fields: Fields = {"stream": stream, "partition": partition, "offset": offset}
        if self.random.random() < 0.4:
            fields["offset"] = "first"
        fields["max_bytes"] = self.random.choice((1, 1000, 1 << 20))
        self.note(f"fetches {fields}")
        deletions = self.simulation.deletions

        def is_gone(error: list[Any]) -> bool:
            if deletions != self.simulation.deletions:
                return True
            if error[0] != OUT_OF_RANGE or fields["offset"] == "first":
                return False
            first: int = error[2]["first_offset"]
            self.simulation.saw_offsets(stream, partition, first, error[2]["high_watermark"])
            kept = Kept(first, first)
            return offset < first and not self._stream_faults(stream, partition, kept, 0)

        def then(body: bytes) -> None:
            if deletions == self.simulation.deletions:
                start = None if fields["offset"] == "first" else offset
                self._got_records(stream, partition, body, start)

        self.ask("fetch", -1, frames.FETCH, fields, then, is_open=is_gone)

    def commit(self) -> None:
        stream = self.some_stream()
        if stream is None:
            return
        partition = self.random.randrange(len(self.reference.streams[stream]))
        offset = self.random.randint(0, self.simulation.marks.get((stream, partition), 0))
        group = self.random.choice(list(STRATEGIES))
        self.note(f"commits {offset} of {stream}/{partition} for {group}")
        refusal = 0
        try:
            self.reference.groups.check_commit(group, None, 0, stream, partition)
            self.reference.groups.commit(group, stream, partition, offset)
        except Refused as refused:
            refusal = refused.code
        fields = {"group": group, "stream": stream, "offsets": [[partition, offset]]}
        self.ask("commit", self.write_batch, frames.COMMIT, fields, refusal=refusal)

    def ask_committed(self) -> None:
        stream = self.some_stream()
        if stream is None:
            return
        group = self.random.choice(list(STRATEGIES))
        expected = [
            self.reference.groups.offsets.get((group, stream, partition))
            for partition in range(len(self.reference.streams[stream]))
        ]

        def check(body: bytes) -> None:
            found = [offset for _, offset, *_ in msgpack.unpackb(body)["partitions"]]
            if found != expected:
                self.simulation.fail(f"{self.name}: committed is {found}, not {expected}")

        self.ask("committed", -1, frames.COMMITTED, {"group": group, "stream": stream}, check)

    # Topology

    def declare(self, name: str = "") -> None:
        name = name or self.random.choice([*KINDS, *STREAMS])
        self.note(f"declares {name}")
        if name in PARTITIONS:
            self.reference.declare_stream(name, PARTITIONS[name], self.now)
            fields: dict[str, Any] = {"kind": "stream", "partitions": PARTITIONS[name]}
            fields["arguments"] = STREAM_ARGUMENTS.get(name, {})
        else:
            self.reference.declare_queue(name)
            kind = KINDS[name]
            fields = {"kind": "queue", "durable": kind.durable, "arguments": kind.arguments}
        self.ask("declare", self.write_batch, frames.DECLARE, {"name": name, **fields})

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
        self.ask("bind", self.write_batch, frames.BIND if is_bind else frames.UNBIND, fields)

    def set_policy(self, name: str = "", definition: Definition | None = None) -> None:
        """Set or delete the policy of a queue or stream."""
        if not name:
            name = self.random.choice(list(POLICIES))
            if self.random.random() < 0.6:
                definition = self.random.choice(POLICIES[name])
        self.note(f"sets the policy of {name} to {definition}")
        refusal = NOT_FOUND if definition is None and name not in self.reference.policies else 0
        self.reference.set_policy(name, definition, self.now)
        fields: dict[str, Any] = {"name": name}
        if definition is None:
            self.ask("policy", self.write_batch, frames.DELETE_POLICY, fields, refusal=refusal)
        else:
            fields |= {"pattern": f"^{name}$", "definition": definition}
            if name in STREAM_POLICIES:
                # One that is for queues too has no ``max-length`` for streams.
                fields["apply_to"] = "streams"
            self.ask("policy", self.write_batch, frames.SET_POLICY, fields)

    def delete(self, stream: str | None = None) -> None:
        stream = stream or self.some(tuple(STREAMS), self.exists)
        if stream is None:
            return
        self.note(f"deletes {stream}")
        self.reference.delete_stream(stream, self.now)
        self.simulation.stream_deleted(stream)
        self.ask("delete", self.write_batch, frames.DELETE, {"kind": "stream", "name": stream})

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
                self.cancelled.add(number)
                self.subscriptions.pop(number, None)
                for place in [place for place in self.unsettled if place[0] == number]:
                    del self.unsettled[place]
            elif kind == frames.REBALANCE:
                self.memberships.rebalance(msgpack.unpackb(body))
            elif kind == frames.ERROR:
                self._refused(correlation, msgpack.unpackb(body))
            elif kind == frames.FETCHED:
                self._answered(correlation, "fetch", body)
            elif correlation > 2:
                self._answered(correlation, "", body)

    def _answered(self, correlation: int, expected: str, body: bytes) -> None:
        if correlation not in self.waiting:
            self.simulation.fail(f"{self.name} got an answer to {correlation} twice")
        request = self.waiting.pop(correlation)
        if request.refusal or not request.what.startswith(expected):
            self.simulation.fail(f"{self.name} got a wrong answer to {request.what}")
        self.simulation.acknowledged(request.write_batch)
        if request.then is not None:
            request.then(body)

    def _refused(self, correlation: int, error: list[Any]) -> None:
        request = self.waiting.pop(correlation, None)
        if request is None or (
            error[0] != request.refusal and (request.is_open is None or not request.is_open(error))
        ):
            self.simulation.fail(f"{self.name}: {request} was refused: {error}")

    def _got_records(self, stream: str, partition: int, body: bytes, start: int | None) -> None:
        fetched = Fetched(body)
        self.simulation.saw_offsets(stream, partition, fetched.first, fetched.mark)
        kept = Kept(fetched.first, fetched.first)
        fetched.add_to(kept)
        faults = self._stream_faults(
            stream, partition, kept, fetched.first if start is None else start
        )
        if faults:
            self.simulation.fail(f"{stream}/{partition} from {start}: {faults}")

    def _stream_faults(self, stream: str, partition: int, kept: Kept, start: int) -> list[str]:
        return self.reference.streams[stream][partition].faults(kept, start, self.now)

    def _got(self, delivered: Delivered) -> None:
        number = number_in(delivered.payload)
        is_flagged = delivered.flags & 1 != 0
        queue = self.subscriptions.get(delivered.subscription)
        if queue is None:
            return
        self.note(f"got {number} of {queue}, redelivered {is_flagged}")
        self.simulation.received(self, queue, number, is_flagged)
        self.unsettled[delivered.subscription, delivered.tag] = number

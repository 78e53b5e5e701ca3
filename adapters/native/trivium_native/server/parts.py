"""Parts: messages that are staged under a number of a transactional producer, by many clients.

Where many processes write what must count together, none of them may decide that its share is
complete. Each stages a *part*: its messages, kept in a log of the part's own, which nobody sees.
Whoever coordinates them commits a transaction that names the parts. That is the decision, one write
batch of the storage: the parts count, all other parts of that number or older ones are dropped, and
the producer's number goes on. What was decided is then published, some requests in a turn, each in
the write batch in which it leaves its log; a start of the broker goes on with it.

A part that is not decided on is forgotten when nobody has added to it for ``STAGED_HOURS``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from trivium import errors as core
from trivium.common.counters import Traffic
from trivium.common.timers import Timed
from trivium.observability.metrics import ProtocolMetrics
from trivium.storage.base import DurabilityWaiter
from trivium_native.server.handshake import of_topology
from trivium_native.server.publishing import Publisher
from trivium_native.server.staged_batches import StagedBatches, batches_of
from trivium_native.server.staged_parts import Part, StagedParts
from trivium_native.wire.errors import (
    Blocked,
    NativeError,
    NotFound,
    OutOfSequence,
    PreconditionFailed,
    TooManyRequests,
)
from trivium_native.wire.messages import PUBLISH_HEAD, PUBLISH_HEAD_SIZE

if TYPE_CHECKING:
    from trivium.routing.exchanges import Route
    from trivium.runtime.broker import Broker
    from trivium.streams.stream import Stream
    from trivium.vhost.virtual_host import VirtualHost

#: Parts of one virtual host: their rows are all in memory.
MAX_PARTS: Final = 65_536
#: A day: longer than the tasks of one micro-batch take.
STAGED_HOURS: Final = 24

#: What is published in one turn, about: as much as the largest request of a usual client.
STEP_MESSAGES: Final = 16_384
STEP_BYTES: Final = 4 << 20
#: Milliseconds until what was refused (a full queue, a stream that is gone) is tried again.
RETRY_MS: Final = 10_000
#: Bytes that one read of a part's segments brings into memory.
_LOAD_BYTES: Final = 4 << 20

#: Write batches with what was published that are not on the disk, while more is published.
_UNWRITTEN: Final = 2

#: States of publishing: it waits for its turn, for the disk to write what was published, or for it
#: to read what is next; or for nothing, at the start and after a refusal.
_STOPPED: Final = 0
_SCHEDULED: Final = 1
_WRITING: Final = 2
_READING: Final = 3

_HOUR_MS: Final = 3_600_000
#: Parts looked at in one turn when old ones are sought, and the pause before the next ones.
_SWEEP_PARTS: Final = 1024
_SWEEP_PAUSE_MS: Final = 100

#: number of the transaction, hour of the last request, whether it is decided on
_ROW: Final = Struct("<QIB")


class Parts(Timed):
    """The parts of one virtual host."""

    def __init__(self, broker: Broker, vhost: VirtualHost, metrics: ProtocolMetrics) -> None:
        self._vhost = vhost
        self._broker = broker
        self._metrics = metrics
        storage = broker.storage
        self._rows = storage.table(f"native.parts/{vhost.name}")
        self._publisher = Publisher(
            broker, vhost, metrics, Traffic(), None, broker.config.limits.max_message_bytes, None
        )
        self._parts: dict[bytes, StagedParts] = {}
        self._applications: dict[bytes, Application] = {}
        # Parts that this round of seeking old ones has still to look at.
        self._unseen: list[tuple[bytes, str]] = []
        self._restore()

    def _restore(self) -> None:
        decided: list[tuple[bytes, Part]] = []
        for key, row in self._rows.items():
            size = key[0]
            producer, name = key[1 : 1 + size], key[1 + size :].decode()
            sequence, hour, is_decided = _ROW.unpack(row)
            part = self._add(producer, name, sequence, bool(is_decided))
            part.hour = hour
            if is_decided:
                decided.append((producer, part))
        # Numbers in their order; the parts of one have none.
        for producer, part in sorted(decided, key=lambda each: (each[1].sequence, each[1].name)):
            self._application(producer).add(part)
        now = self._broker.elapsed_ms
        for application in self._applications.values():
            # At the end of this turn, when what the other adapters keep is there too.
            application.resume_at(now)
        if len(self._rows):
            self._broker.timeouts.call_at(now + _HOUR_MS, self)

    def __len__(self) -> int:
        return len(self._rows)

    # Staging

    def is_committed(self, producer: bytes, sequence: int) -> bool:
        """Whether the transaction of that number was committed: nothing more belongs to it."""
        return self._vhost.transactional.expected(producer) > sequence

    def stage(self, producer: bytes, sequence: int, name: str, index: int, record: bytes) -> None:
        """Keep request ``index`` of a part, unless it is there already.

        Raises PreconditionFailed, OutOfSequence, TooManyRequests.
        """
        part = self._find(producer, name)
        if part is None:
            if index:
                raise OutOfSequence(f"there is no part '{name}'", {"expected": 0})
            if len(self._rows) >= MAX_PARTS:
                raise TooManyRequests("this virtual host has too many parts")
            part = self._add(producer, name, sequence, False)
            if not self.due_at:
                self._broker.timeouts.call_at(self._broker.elapsed_ms + _HOUR_MS, self)
        elif part.sequence != sequence or part.is_decided:
            raise PreconditionFailed(f"part '{name}' belongs to number {part.sequence}")
        expected = part.log.next_offset
        if index > expected:
            raise OutOfSequence(
                f"request {index} of part '{name}' comes after a gap, {expected} is next",
                {"expected": expected},
            )
        if index == expected:
            part.log.append(record)
            hour = self._broker.now_ms // _HOUR_MS
            if hour != part.hour:
                part.hour = hour
                self._put(part)

    def _find(self, producer: bytes, name: str) -> Part | None:
        parts = self._parts.get(producer)
        return None if parts is None else parts.by_name.get(name)

    def _add(self, producer: bytes, name: str, sequence: int, is_decided: bool) -> Part:
        vhost = self._vhost.name
        text = producer.decode()
        log_name = f"part/{len(vhost)}:{vhost}/{len(text)}:{text}/{name}"
        key = bytes((len(producer),)) + producer + name.encode()
        part = Part(key, name, sequence, log_name, self._broker.storage.log(log_name))
        part.is_decided = is_decided
        parts = self._parts.get(producer)
        if parts is None:
            parts = self._parts[producer] = StagedParts()
        parts.add(part)
        return part

    def _put(self, part: Part) -> None:
        self._rows.put(part.key, _ROW.pack(part.sequence, part.hour, part.is_decided))

    def _drop(self, producer: bytes, part: Part) -> None:
        self._rows.delete(part.key)
        self._broker.storage.drop_log(part.log_name)
        parts = self._parts[producer]
        parts.remove(part)
        if not parts.by_name:
            del self._parts[producer]

    def forget_all(self) -> Iterator[int]:
        """The virtual host is deleted: drop part after part; 1 for each."""
        self._broker.timeouts.stop(self)
        for application in self._applications.values():
            application.stop()
        self._applications.clear()
        for producer, staged in list(self._parts.items()):
            for part in list(staged.by_name.values()):
                self._drop(producer, part)
                yield 1

    def discard(self, producer: bytes, name: str) -> None:
        """Forget a part, if there is one of that name. Raises PreconditionFailed once decided."""
        part = self._find(producer, name)
        if part is not None:
            if part.is_decided:
                raise PreconditionFailed(f"part '{name}' is committed")
            self._drop(producer, part)

    def forget(self, producer: bytes) -> None:
        """Forget the parts of a producer. Raises PreconditionFailed while one is decided on."""
        parts = self._parts.get(producer)
        if parts is None:
            return
        staged = list(parts.by_name.values())
        if any(part.is_decided for part in staged):
            raise PreconditionFailed("parts of this producer are still being published")
        for part in staged:
            self._drop(producer, part)

    # Deciding

    def find(self, producer: bytes, sequence: int, wanted: list[tuple[str, int]]) -> list[Part]:
        """The parts with these names, with as many requests as is said.

        Raises NotFound, PreconditionFailed.
        """
        found: dict[str, Part] = {}
        for name, requests in wanted:
            part = self._find(producer, name)
            if part is None:
                raise NotFound(f"no part '{name}'")
            if part.is_decided or part.sequence != sequence or name in found:
                raise PreconditionFailed(f"part '{name}' does not belong to this transaction")
            if part.log.next_offset != requests:
                raise PreconditionFailed(
                    f"part '{name}' has {part.log.next_offset} requests, not {requests}"
                )
            found[name] = part
        return list(found.values())

    def decide(self, producer: bytes, sequence: int, found: list[Part]) -> None:
        """These parts count; others of this number and older ones never will."""
        parts = self._parts.get(producer)
        if parts is None:
            return
        for part in found:
            parts.decide(part)
            self._put(part)
        for part in parts.undecided_up_to(sequence):
            self._drop(producer, part)
        if found:
            application = self._application(producer)
            for part in found:
                application.add(part)

    def progress(self, producer: bytes) -> dict[str, object]:
        """What the answer to a commit says: how much is left, and why it does not go on.

        What was refused before is tried again.
        """
        application = self._applications.get(producer)
        if application is None:
            return {}
        application.resume()
        if not application.left:
            return {}
        reply: dict[str, object] = {"left": application.left}
        error = application.error
        if error is not None:
            reply["refused"] = [error.code, error.text]
        return reply

    def _application(self, producer: bytes) -> Application:
        found = self._applications.get(producer)
        if found is None:
            found = Application(self, producer)
            self._applications[producer] = found
        return found

    def finished(self, producer: bytes, part: Part) -> None:
        """All of a part is published, as of the current write batch."""
        self._drop(producer, part)

    def ended(self, producer: bytes) -> None:
        """Nothing of a producer is left to be published."""
        self._applications.pop(producer, None)

    def publish(self, record: bytes) -> int:
        """Publish one request of a part, all of it; how many messages were read for that.

        Raises NativeError: then nothing of it was published.
        """
        publisher = self._publisher
        publisher.blocked = self._broker.alarms.reason
        count, _ = PUBLISH_HEAD.unpack_from(record)
        staged = batches_of(record)
        try:
            if staged is None:
                batch = publisher.batch(record, PUBLISH_HEAD_SIZE, len(record), count)
                publisher.read(batch)
            else:
                route = publisher.route_to(staged.exchange, staged.key)
                stream = staged.stream_of(route)
                if stream is not None and self._vhost.tracer is None:
                    self._append(staged, route, stream)
                    return 0
                batch = staged.read(route, self._broker.now_ms)
        except core.TopologyError as error:
            raise of_topology(error) from None
        publisher.check_read(batch, False)
        publisher.publish_read(batch)
        return int(count)

    def _append(self, staged: StagedBatches, route: Route, stream: Stream) -> None:
        """Have batches appended to the stream. Raises Blocked."""
        reason = self._publisher.blocked
        if reason is not None:
            raise Blocked(reason)
        count = staged.count
        self._metrics.messages_received += count
        route.counters.published += count
        route.counters.routed += count
        stream.accept_staged(staged.batches, self._broker.now_ms)

    # Forgetting

    def due(self) -> None:
        """Forget some of those that nobody adds to; go on soon, or begin again in an hour."""
        now = self._broker.elapsed_ms
        if not self._unseen:
            self._unseen = [
                (producer, name)
                for producer, parts in self._parts.items()
                for name in parts.by_name
            ]
        oldest = self._broker.now_ms // _HOUR_MS - STAGED_HOURS
        for _ in range(min(_SWEEP_PARTS, len(self._unseen))):
            producer, name = self._unseen.pop()
            part = self._find(producer, name)
            if part is None:
                continue
            if part.is_decided:
                # Its producer's number must not be forgotten before it is published.
                self._vhost.transactional.keep(producer)
            elif part.hour < oldest:
                self._drop(producer, part)
        if self._unseen:
            self._broker.timeouts.call_at(now + _SWEEP_PAUSE_MS, self)
        elif len(self._rows):
            self._broker.timeouts.call_at(now + _HOUR_MS, self)


class Application(DurabilityWaiter):
    """Publishes what was decided for one producer, in order, as the disk follows."""

    def __init__(self, parts: Parts, producer: bytes) -> None:
        self._parts = parts
        self._broker = parts._broker
        self._producer = producer
        self._decided: deque[Part] = deque()
        self._timer = _Step(self)
        self._state = _STOPPED
        #: why it does not go on
        self.error: NativeError | None = None

    @property
    def left(self) -> int:
        """Requests that are not published."""
        return sum(part.left for part in self._decided)

    def add(self, part: Part) -> None:
        """Publish ``part`` behind what is there."""
        self._decided.append(part)

    def resume(self) -> None:
        """Try again what was refused."""
        if self._state == _STOPPED:
            self.step()

    def due(self) -> None:
        """Its time has come."""
        if self._state <= _SCHEDULED and self._decided:
            self._state = _STOPPED
            self.step()

    def resume_at(self, at: int) -> None:
        """Go on or try again at ``at`` (see ``Broker.elapsed_ms``)."""
        self._broker.timeouts.call_at(at, self._timer)

    def stop(self) -> None:
        """Publish nothing any more."""
        self._decided.clear()
        self._broker.timeouts.stop(self._timer)

    def write_batch_durable(self, write_batch: int) -> None:
        if self._state == _WRITING:
            self._go_on()

    def _go_on(self) -> None:
        if not self._decided:
            # Nothing is left to be published, since it was stopped.
            return
        # In a turn of its own, for all that it does must be in one write batch.
        self._state = _SCHEDULED
        self.resume_at(self._broker.elapsed_ms)
        self._broker.driver.request_turn()

    def step(self) -> None:
        """Publish what fits in a turn."""
        self.error = None
        decided = self._decided
        messages, size = STEP_MESSAGES, STEP_BYTES
        while decided:
            part = decided[0]
            log = part.log
            if not part.left:
                decided.popleft()
                self._parts.finished(self._producer, part)
                continue
            if messages <= 0 or size <= 0:
                self._pause()
                return
            offset = log.first_offset
            if not log.is_loaded(offset):
                self._state = _READING
                log.load(offset, _LOAD_BYTES, self._go_on)
                return
            _, record, _ = log.read(offset, 1, 1)[0]
            try:
                messages -= self._parts.publish(record)
            except NativeError as error:
                self.error = error
                self.resume_at(self._broker.elapsed_ms + RETRY_MS)
                return
            size -= len(record)
            log.truncate(offset + 1)
        self._parts.ended(self._producer)

    def _pause(self) -> None:
        storage = self._broker.storage
        if storage.is_durable and storage.wait(self) - storage.durable >= _UNWRITTEN:
            self._state = _WRITING
        else:
            self._state = _SCHEDULED
            self.resume_at(self._broker.elapsed_ms + 1)


class _Step(Timed):
    def __init__(self, application: Application) -> None:
        self._application = application

    def due(self) -> None:
        self._application.due()

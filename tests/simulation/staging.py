"""Parts of a native client's transactions: what it stages, and what becomes of it.

Each client has a stream for that, which nobody else publishes to. So the model need not know when
the broker publishes what was decided on: it is in order, and all of it is there in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgpack

from tests.simulation.reference import StagedPart
from tests.simulation.stream_model import RECORD_KEYS, STAGED_STREAMS
from tests.simulation.wires import payload_of
from tests.support import native
from trivium_native.wire import frames

if TYPE_CHECKING:
    from tests.simulation.native_actor import NativeActor

#: The streams of the clients.
STREAM_OF: Final = {"native0": "t0", "native1": "t1"}

NOT_FOUND = 301
OTHER_NUMBER = 302
AFTER_A_GAP = 310
KEY_PROPERTY = 13
PERSISTENT_AT_LEAST_ONCE = 5
#: Messages of a request: from 128 on the broker keeps record batches.
COUNTS: Final = (1, 2, 5, 130, 150)
SIZES: Final = (0, 10, 60)


@dataclass(frozen=True)
class Request:
    """One STAGE."""

    part: str
    sequence: int
    index: int
    #: messages with their keys, None for none
    records: tuple[tuple[int, bytes | None], ...]
    entries: bytes


class Staging:
    def __init__(self, actor: NativeActor) -> None:
        self.actor = actor
        self.random = actor.random
        self.stream = STREAM_OF.get(actor.name, "")
        self.latest: Request | None = None
        #: names are not used again, whatever a crash makes of them
        self.next_part = 0
        self.actions: list[tuple[Callable[[], None], int]] = [
            (self.stage, 14),
            (self.stage_again, 2),
            (self.discard, 1),
        ]

    @property
    def parts(self) -> dict[str, StagedPart]:
        """What is staged for its producer and not decided on, by name."""
        return self.actor.reference.parts.setdefault(self.actor.name, {})

    @property
    def number(self) -> int:
        """Of the next transaction."""
        return self.actor.reference.transactional[self.actor.name][1]

    # Staging

    def stage(self) -> None:
        if self.stream not in self.actor.reference.streams:
            return
        if self.actor.name not in self.actor.reference.transactional:
            self.actor.transactions.open()
        name = self.actor.some(list(self.parts), lambda _: self.random.random() < 0.6)
        if name is None:
            self.next_part += 1
            name = f"part{self.next_part:05}"
            sequence, index = self.number + self.random.choice((0, 1, 2, 4, -1)), 0
        else:
            sequence, index = self.parts[name].sequence, len(self.parts[name].requests)
            # Now and then one that is refused.
            index += self.random.random() < 0.05
            sequence += self.random.random() < 0.05
        if sequence >= 0:
            self.latest = self._request(name, sequence, index)
            self._send(self.latest)

    def _request(self, name: str, sequence: int, index: int) -> Request:
        # Without keys records go to all partitions in turns, which the model leaves out.
        is_keyed = STAGED_STREAMS[self.stream] > 1 or self.random.random() < 0.3
        records: list[tuple[int, bytes | None]] = []
        entries: list[bytes] = []
        for _ in range(self.random.choice(COUNTS)):
            number = self.actor.simulation.new_message()
            key = self.random.choice(RECORD_KEYS) if is_keyed else None
            properties: bytes = msgpack.packb({KEY_PROPERTY: key}) if is_keyed else b""
            payload = payload_of(number, self.random.choice(SIZES))
            records.append((number, key))
            entries.append(
                native.entry(
                    payload, self.stream.encode(), b"", PERSISTENT_AT_LEAST_ONCE, properties
                )
            )
        return Request(name, sequence, index, tuple(records), b"".join(entries))

    def stage_again(self) -> None:
        """As who had no answer does, whatever became of it."""
        if self.latest is not None and self.actor.name in self.actor.reference.transactional:
            self._send(self.latest)

    def _send(self, request: Request) -> None:
        fields = {
            "producer": self.actor.name,
            "sequence": request.sequence,
            "part": request.part,
            "index": request.index,
        }
        self.actor.note(f"stages {fields} with {[number for number, _ in request.records]}")
        is_committed = request.sequence < self.number
        refusal, write_batch = 0, -1
        if not is_committed:
            refusal, is_new = self._staged(request)
            write_batch = self.actor.write_batch if is_new else -1

        def check(body: bytes) -> None:
            if msgpack.unpackb(body).get("committed", False) != is_committed:
                self.actor.simulation.fail(f"committed is not {is_committed}: {fields}")

        packed: bytes = msgpack.packb(fields)
        head = struct.pack("<II", len(packed), len(request.records)) + packed
        data = head + request.entries
        self.actor.ask("stage", write_batch, frames.STAGE, data, check, refusal)

    def _staged(self, request: Request) -> tuple[int, bool]:
        """The model takes a request: why it is refused, and whether it is kept."""
        part = self.parts.get(request.part)
        if part is None:
            part = StagedPart(request.sequence)
        elif part.sequence != request.sequence:
            return OTHER_NUMBER, False
        if request.index > len(part.requests):
            return AFTER_A_GAP, False
        if request.index < len(part.requests):
            return 0, False
        requests = (*part.requests, request.records)
        self.parts[request.part] = replace(part, requests=requests)
        return 0, True

    def discard(self) -> None:
        name = self.actor.some(list(self.parts), lambda _: True)
        if name is not None:
            self.actor.note(f"discards {name}")
            del self.parts[name]
            fields = {"kind": "part", "name": name, "producer": self.actor.name}
            self.actor.ask("discard", self.actor.write_batch, frames.DELETE, fields)

    # Transactions

    def some_parts(self) -> tuple[int, list[tuple[str, int]]] | None:
        """A number, and parts of it with how many requests they have, now and then wrongly."""
        if not self.parts:
            return None
        sequence = self.random.choice(sorted({part.sequence for part in self.parts.values()}))
        wanted = [
            (name, len(part.requests) + (self.random.random() < 0.05))
            for name, part in sorted(self.parts.items())
            if part.sequence == sequence and self.random.random() < 0.8
        ]
        return sequence, wanted

    def refusal(self, sequence: int, wanted: list[tuple[str, int]]) -> int:
        """Why a transaction with these parts is refused; 0 where it is not."""
        for name, requests in wanted:
            part = self.parts.get(name)
            if part is None:
                return NOT_FOUND
            if part.sequence != sequence or len(part.requests) != requests:
                return OTHER_NUMBER
        return 0

    def decide(self, sequence: int, wanted: list[tuple[str, int]]) -> None:
        """These parts count, the others of that number and older ones never will."""
        actor = self.actor
        for name, _ in wanted:
            for records in self.parts[name].requests:
                actor.simulation.counts["staged requests committed"] += 1
                for number, key in records:
                    actor.reference.publish(number, "", self.stream, 2, actor.now, record_key=key)
                    actor.simulation.published(number, True)
            del self.parts[name]
        for name in [name for name, part in self.parts.items() if part.sequence <= sequence]:
            del self.parts[name]

    def left(self, body: Any) -> None:
        """An answer to a commit says how much is not published yet."""
        if msgpack.unpackb(body).get("left", 0):
            self.actor.simulation.counts["commits published later"] += 1

"""The broker as a few dictionaries: what must be there after each write batch, whatever happens.

Messages are numbers, rising in the order of their publishing. Only what outlives a connection is
modelled; which consumer holds what is not. The state after each write batch is kept, so a restart
must show exactly the state after the last write batch that it found.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final
from zlib import crc32

from tests.simulation.group_model import GroupModel
from tests.simulation.stream_model import (
    STREAM_POLICIES,
    Definition,
    Partition,
    Record,
    limits_of,
)

TOPICS: Final = "amq.topic"
#: takes what other queues give up
DEAD: Final = "dead"
#: takes a message once
ONCE: Final = "once"
#: milliseconds between notes of the time
CLOCK_INTERVAL: Final = 60_000
#: gets what is delayed
LATE: Final = "q1"


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in a queue."""

    persistent: bool = True
    priority: int = 0
    arrived: int = 0
    #: time from which it may not be delivered any more; 0 for never
    expires: int = 0
    #: the same without a policy
    own_expires: int = 0
    #: an expiry that counts or not: of a policy that came later, or is gone
    perhaps: int = 0
    #: quality of service toward the client of a session
    qos: int = 0
    #: the broker may have refused it or given it up
    is_unsure: bool = False
    #: when it came the model does not know
    was_delayed: bool = False
    #: was in its queue while being handed to a consumer settled it
    is_at_most_once: bool = False
    #: delivery mode in this queue
    mode: int = 1
    #: came by a shared subscription
    is_shared: bool = False
    #: which of the sessions that ended had it before: those with the same ones keep their order
    handed: tuple[int, ...] = ()

    @property
    def may_expire(self) -> int:
        """Time from which it may be given up; 0 for never."""
        return earliest(self.expires, self.perhaps)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What is staged under the number of a transaction."""

    sequence: int
    #: the messages of each request, with their keys
    requests: tuple[tuple[tuple[int, bytes | None], ...], ...] = ()


def earliest(*times: int) -> int:
    """Of times of which 0 is never."""
    return min([time for time in times if time > 0], default=0)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a queue does beyond first in, first out."""

    name: str
    ttl: int = -1
    max_length: int = -1
    rejects: bool = False
    max_priority: int = 0
    delivery_limit: int = -1
    #: what it gives up goes to DEAD
    has_dead_letters: bool = False
    #: consumers do not acknowledge: what a crash finds on its way to them may be gone
    is_lossy: bool = False
    #: messages with an id are taken once
    deduplicates: bool = False
    durable: bool = True

    @property
    def arguments(self) -> dict[str, str | int | bool]:
        """Of its declaration."""
        found: dict[str, str | int | bool] = {}
        if self.deduplicates:
            found["x-message-deduplication"] = True
        if self.ttl >= 0:
            found["x-message-ttl"] = self.ttl
        if self.max_length >= 0:
            found["x-max-length"] = self.max_length
        if self.rejects:
            found["x-overflow"] = "reject-publish"
        if self.max_priority:
            found["x-max-priority"] = self.max_priority
        if self.delivery_limit >= 0:
            found["x-delivery-limit"] = self.delivery_limit
        if self.has_dead_letters:
            found["x-dead-letter-exchange"] = ""
            found["x-dead-letter-routing-key"] = DEAD
        return found


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("q0"),
        Kind("q1"),
        Kind(DEAD),
        Kind("priority", max_priority=2),
        Kind("ttl", ttl=5000, has_dead_letters=True),
        Kind("rejected", has_dead_letters=True),
        Kind("limit", delivery_limit=2, has_dead_letters=True),
        Kind("newest", max_length=4),
        Kind("full", max_length=4, rejects=True),
        Kind("lossy", is_lossy=True),
        Kind(ONCE, deduplicates=True),
        Kind("transient", durable=False),
    )
}


#: What a policy may say of a queue or stream; one at a time.
POLICIES: Final[dict[str, tuple[Definition, ...]]] = {
    "q0": (
        {"max-length": 3},
        {"delivery": "at-most-once"},
        {"delivery": "at-least-once"},
        {"delivery": "exactly-once"},
        {"message-ttl": 1500},
    ),
    "rejected": ({"message-ttl": 1000}, {"message-ttl": 6000}),
    "ttl": ({"message-ttl": 1000}, {"message-ttl": 60_000}),
    **STREAM_POLICIES,
}
DELIVERY: Final = {"at-most-once": 0, "at-least-once": 1, "exactly-once": 2}


@dataclass(frozen=True, slots=True)
class Will:
    number: int
    key: str
    qos: int
    retain: bool
    delay_ms: int
    #: 0 while the client is connected
    due: int = 0


@dataclass(slots=True)
class Session:
    """What the broker keeps of an MQTT client. Its backlog is the queue of its name."""

    #: topic filter, as a pattern, to quality of service
    subscriptions: dict[str, int] = field(default_factory=dict)
    #: packet identifiers of QoS 2 messages that were not released, to the messages
    incoming: dict[int, int] = field(default_factory=dict)
    will: Will | None = None
    is_connected: bool = False
    #: how long it stays without its client, in milliseconds; None for ever
    expiry_ms: int | None = None
    #: when it ends; 0 while its client is connected, or never
    ends: int = 0

    def copy(self) -> Session:
        return replace(self, subscriptions=dict(self.subscriptions), incoming=dict(self.incoming))


def backlog_of(client: str) -> str:
    """The name of the queue of a client's session."""
    return f"amq.mqtt-session.{client}"


def matches(pattern: list[str], levels: list[str]) -> bool:
    """Whether an AMQP topic pattern matches a key."""
    if not pattern:
        return not levels
    if pattern[0] == "#":
        return matches(pattern[1:], levels) or (bool(levels) and matches(pattern, levels[1:]))
    return bool(levels) and pattern[0] in ("*", levels[0]) and matches(pattern[1:], levels[1:])


class Reference:
    def __init__(self) -> None:
        self.queues: dict[str, dict[int, Entry]] = {}
        self.streams: dict[str, list[Partition]] = {}
        #: by the name of the queue or stream
        self.policies: dict[str, Definition] = {}
        #: pattern and queue or stream, bound to the topic exchange
        self.bindings: set[tuple[str, str]] = set()
        self.sessions: dict[str, Session] = {}
        #: by pattern, clients that share a subscription
        self.shares: dict[str, set[str]] = {}
        #: messages that one of these clients has in its backlog, nobody knows which
        self.shared: dict[int, frozenset[str]] = {}
        #: by client, what its former session may still be handing over
        self.leaving: dict[str, set[int]] = {}
        #: of these, what nobody was there for
        self.orphans: dict[int, Entry] = {}
        #: sessions that ended so far
        self.ended = 0
        #: when the broker noted that it runs, and when it does so again at the earliest
        self.clock = 0
        self.next_clock = 0
        self.groups = GroupModel()
        #: tells a stream from an earlier one of its name; all copies count together
        self.incarnations = count()
        self.retained: dict[str, int] = {}
        #: epoch and next sequence number
        self.producers: dict[str, tuple[int, int]] = {}
        #: the same of those that number transactions
        self.transactional: dict[str, tuple[int, int]] = {}
        #: what these have staged and not decided on, by name
        self.parts: dict[str, dict[str, StagedPart]] = {}
        #: messages on their way to LATE, and when they are due
        self.delayed: dict[int, int] = {}
        #: messages that ONCE has had with their id
        self.known: set[int] = set()
        #: given up in this turn: published again when it ends
        self.given_up: list[tuple[int, Entry]] = []

    def copy(self) -> Reference:
        copy = Reference()
        copy.queues = {name: dict(entries) for name, entries in self.queues.items()}
        copy.streams = {
            name: [partition.copy() for partition in partitions]
            for name, partitions in self.streams.items()
        }
        copy.policies = dict(self.policies)
        copy.bindings = set(self.bindings)
        copy.sessions = {name: session.copy() for name, session in self.sessions.items()}
        copy.shares = {pattern: set(clients) for pattern, clients in self.shares.items()}
        copy.shared = dict(self.shared)
        copy.leaving = dict(self.leaving)
        copy.orphans = dict(self.orphans)
        copy.ended = self.ended
        copy.clock, copy.next_clock = self.clock, self.next_clock
        copy.groups = self.groups.copy()
        copy.incarnations = self.incarnations
        copy.retained = dict(self.retained)
        copy.producers = dict(self.producers)
        copy.transactional = dict(self.transactional)
        copy.parts = {name: dict(parts) for name, parts in self.parts.items()}
        copy.delayed = dict(self.delayed)
        copy.known = set(self.known)
        return copy

    def restarted(self) -> Reference:
        """What a restart leaves."""
        copy = self.copy()
        for name in list(copy.queues):
            if name in KINDS and not KINDS[name].durable:
                copy.delete_queue(name)
            else:
                entries = copy.queues[name]
                for number in [each for each in entries if not entries[each].persistent]:
                    del entries[number]
        copy.next_clock = 0
        for session in copy.sessions.values():
            session.is_connected = False
            # That its client has left is noticed as of when the broker was there last.
            if session.will is not None and not session.will.due:
                due = copy.clock + session.will.delay_ms
                session.will = replace(session.will, due=due)
            if session.expiry_ms is not None and not session.ends:
                session.ends = copy.clock + session.expiry_ms
        return copy

    # Topology

    def declare_queue(self, name: str) -> None:
        self.queues.setdefault(name, {})

    def delete_queue(self, name: str) -> None:
        self.queues.pop(name, None)
        self.bindings = {each for each in self.bindings if each[1] != name}

    def declare_stream(self, name: str, partitions: int, now: int) -> int:
        """The incarnation of the stream."""
        if name not in self.streams:
            limits = limits_of(name, self.policies.get(name, {}))
            self.streams[name] = [Partition(limits) for _ in range(partitions)]
            self.groups.stream_made(name, next(self.incarnations), partitions, now)
        return self.groups.streams[name][0]

    def delete_stream(self, name: str, now: int) -> None:
        del self.streams[name]
        self.bindings = {each for each in self.bindings if each[1] != name}
        self.groups.stream_deleted(name, now)

    def set_policy(self, name: str, definition: Definition | None, now: int) -> None:
        """Put a policy in force, or take it away."""
        self.policies.pop(name, None)
        if definition is not None:
            self.policies[name] = definition
            if definition.get("delivery") == "at-most-once":
                entries = self.queues.get(name, {})
                for number, entry in entries.items():
                    entries[number] = replace(entry, is_unsure=True, is_at_most_once=True)
        ttl = int(self.policies.get(name, {}).get("message-ttl", 0))
        entries = self.queues.get(name, {})
        for number, entry in entries.items():
            # It counts for what comes; for the rest after a restart, perhaps.
            entries[number] = replace(
                entry,
                expires=entry.own_expires,
                perhaps=earliest(entry.may_expire, entry.arrived + ttl if ttl else 0),
            )
        for partition in self.streams.get(name, ()):
            partition.apply(limits_of(name, self.policies.get(name, {})), now)
        self._apply_limit(name)

    def _apply_limit(self, name: str) -> None:
        """Note what the limit of a queue allows to be gone."""
        if name in self.queues:
            kind = KINDS[name]
            limit = self.policies.get(name, {}).get("max-length")
            if kind.max_length >= 0 and not kind.rejects:
                limit = kind.max_length
            if limit is not None:
                self._overflow(self.queues[name], int(limit))

    # Sessions

    def connect(
        self, client: str, will: Will | None, now: int, expiry_ms: int | None = None
    ) -> None:
        """A client is here, and with it its session."""
        session = self.sessions.setdefault(client, Session())
        self.leaving.pop(client, None)
        self.declare_queue(backlog_of(client))
        session.is_connected = True
        session.expiry_ms, session.ends = expiry_ms, 0
        session.will = will
        self._note_time(now)

    def disconnect(self, client: str, now: int) -> list[int]:
        """A client is gone; the number of its will, if that is published."""
        session = self.sessions[client]
        session.is_connected = False
        if session.expiry_ms is not None:
            session.ends = now + session.expiry_ms
        if session.will is None:
            return []
        session.will = replace(session.will, due=now + session.will.delay_ms)
        return self._publish_will(client, now) if session.will.delay_ms == 0 else []

    def tick(self, now: int) -> list[int]:
        """Time has passed, or the broker starts: sessions end; wills that are published."""
        found: list[int] = []
        times = [(each.will.due, name) for name, each in self.sessions.items() if each.will]
        times += [(each.ends, name) for name, each in self.sessions.items()]
        for at, client in sorted(times):
            session = self.sessions.get(client)
            if session is None or not 0 < at <= now:
                continue
            if session.ends == at:
                found += self.end(client, now)
            else:
                found += self._publish_will(client, now)
        if any(session.is_connected for session in self.sessions.values()):
            self._note_time(now)
        return found

    def end(self, client: str, now: int) -> list[int]:
        """A session ends, and others of its share get what it has; the will that is published."""
        found = self._publish_will(client, now)
        del self.sessions[client]
        self.ended += 1
        entries = self.queues.pop(backlog_of(client))
        shared = {number: entry for number, entry in entries.items() if entry.is_shared}
        self.leave_shares(client)
        members = self._members()
        for number, entry in shared.items():
            self._hand_over(client, number, entry, members)
        if members:
            self.leaving[client] = set(shared)
        return found

    def _members(self) -> frozenset[str]:
        """All sharing sessions share the same."""
        return frozenset(client for clients in self.shares.values() for client in clients)

    def _hand_over(self, client: str, number: int, entry: Entry, members: frozenset[str]) -> None:
        # One that may be elsewhere already has its place there.
        is_in_order = number not in self.shared and not entry.was_delayed
        others = self.shared.pop(number, frozenset((client,))) - {client}
        if others | members:
            self.shared[number] = others | members
        else:
            self.orphans[number] = replace(entry, is_unsure=True)
        for each in sorted(others | members):
            queue = self.queues[backlog_of(each)]
            queue[number] = replace(
                queue.get(number, entry),
                # With nobody in the share it goes, if it was here and not with one of the others.
                is_unsure=entry.is_unsure or not members,
                was_delayed=not is_in_order,
                handed=(*entry.handed, self.ended) if is_in_order else (),
            )

    def join_share(self, pattern: str, client: str) -> None:
        """What others are handing over it may get too."""
        self.shares.setdefault(pattern, set()).add(client)
        queue = self.queues[backlog_of(client)]
        for number in [each for numbers in self.leaving.values() for each in sorted(numbers)]:
            clients = self.shared.get(number, frozenset())
            entry = self.orphans.pop(number, None)
            if clients:
                entry = self.queues[backlog_of(min(clients))][number]
            if entry is not None and client not in clients:
                queue[number] = replace(entry, was_delayed=True, handed=())
                self.shared[number] = clients | {client}

    def leave_shares(self, client: str) -> None:
        """When it was the last one, what others are handing over goes."""
        for clients in self.shares.values():
            clients.discard(client)
        if not self._members():
            for number in [each for numbers in self.leaving.values() for each in numbers]:
                for each in self.shared.get(number, ()):
                    queue = self.queues.get(backlog_of(each), {})
                    if number in queue:
                        queue[number] = replace(queue[number], is_unsure=True)

    def _publish_will(self, client: str, now: int) -> list[int]:
        session = self.sessions[client]
        will = session.will
        if will is None:
            return []
        session.will = None
        self.publish(will.number, TOPICS, will.key, will.qos, now, retain=will.retain)
        return [will.number]

    def _note_time(self, now: int) -> None:
        if now >= self.next_clock:
            self.clock = now
            self.next_clock = now + CLOCK_INTERVAL

    def resolve(self, queue: str, number: int) -> None:
        """A message of a share was found to be in this backlog."""
        backlogs = [backlog_of(client) for client in self.shared.get(number, ())]
        if queue in backlogs:
            del self.shared[number]
            self.queues[queue][number] = replace(self.queues[queue][number], is_unsure=False)
            for each in backlogs:
                if each != queue:
                    del self.queues[each][number]

    # Publishing

    def publish(
        self,
        number: int,
        exchange: str,
        key: str,
        mode: int,
        now: int,
        priority: int = 0,
        lifetime: int = 0,
        retain: bool = False,
        record_key: bytes | None = None,
        is_empty: bool = False,
    ) -> bool:
        """Route a message; whether anything durable took it. ``mode`` is 0, 1 or 2.

        ``record_key`` is its key property.
        """
        if exchange == TOPICS:
            levels = key.split(".")
            names = sorted(
                {to for pattern, to in self.bindings if matches(pattern.split("."), levels)}
            )
        else:
            names = [key]
        is_durable = retain
        if retain:
            self.retained[key] = number
        for name in names:
            if name in self.streams:
                partitions = self.streams[name]
                chosen = key.encode() if record_key is None else record_key
                kind = None if exchange == "" else b"r" + chosen
                record = Record(
                    number, now, kind if record_key is None else b"k" + record_key, is_empty
                )
                partitions[crc32(chosen) % len(partitions)].records.append(record)
                is_durable = True
            elif name in self.queues:
                is_durable |= self._enqueue(name, number, mode, now, priority, lifetime)
            self._apply_limit(name)
        if exchange == TOPICS and mode > 0:
            is_durable |= self._give_to_sessions(number, levels, mode, now, lifetime)
        return is_durable

    def _enqueue(
        self, name: str, number: int, mode: int, now: int, priority: int, lifetime: int
    ) -> bool:
        kind = KINDS[name]
        delivery = self.policies.get(name, {}).get("delivery")
        if delivery is not None:
            mode = DELIVERY[str(delivery)]
        is_at_most_once = delivery == "at-most-once"
        ends = [now + each for each in (lifetime, kind.ttl) if each > 0]
        ttl = int(self.policies.get(name, {}).get("message-ttl", 0))
        self.queues[name][number] = Entry(
            mode > 0,
            min(priority, kind.max_priority),
            now,
            earliest(*ends, now + ttl if ttl else 0),
            earliest(*ends),
            is_unsure=kind.rejects or is_at_most_once,
            is_at_most_once=is_at_most_once,
            mode=mode if kind.durable else 0,
        )
        return mode > 0 and kind.durable

    def _give_to_sessions(
        self, number: int, levels: list[str], mode: int, now: int, lifetime: int
    ) -> bool:
        expires = now + lifetime if lifetime else 0
        is_durable = False
        for client, session in self.sessions.items():
            granted = [
                qos
                for pattern, qos in session.subscriptions.items()
                if matches(pattern.split("."), levels)
            ]
            if granted and max(granted) > 0:
                entry = Entry(qos=min(mode, max(granted)), expires=expires)
                self.queues[backlog_of(client)][number] = entry
                is_durable = True
        for pattern, clients in self.shares.items():
            if clients and matches(pattern.split("."), levels):
                for client in clients:
                    entry = Entry(qos=1, expires=expires, is_shared=True)
                    self.queues[backlog_of(client)][number] = entry
                self.shared[number] = frozenset(clients)
                is_durable = True
        return is_durable

    @staticmethod
    def _overflow(entries: dict[int, Entry], limit: int) -> None:
        """The newest stay, since there are never more than the limit of them ready."""
        for number in list(entries)[:-limit]:
            entries[number] = replace(entries[number], is_unsure=True)

    def arrive(self, queue: str, number: int, now: int) -> bool:
        """A consumer of LATE has a delayed message; whether it may have."""
        if queue != LATE or not 0 < self.delayed.get(number, 0) <= now:
            return False
        del self.delayed[number]
        self.queues[LATE][number] = Entry(was_delayed=True)
        return True

    # Settlement

    def settle(self, queue: str, number: int) -> None:
        self.queues.get(queue, {}).pop(number, None)

    def reject(self, queue: str, number: int) -> None:
        entry = self.queues.get(queue, {}).pop(number, None)
        if entry is not None and KINDS[queue].has_dead_letters:
            self.given_up.append((number, entry))

    def end_turn(self, now: int) -> None:
        """What was given up is published to DEAD; members of groups may be due."""
        self.groups.end_turn(now)
        for number, entry in self.given_up:
            self.queues[DEAD][number] = Entry(entry.persistent)
        self.given_up.clear()

    def move(self, number: int, now: int) -> bool:
        """DEAD has a message: take it from the queue that gave it up by itself, if one may have."""
        for name, entries in self.queues.items():
            if number in entries and self.may_move(name, entries[number], now):
                self.queues[DEAD][number] = Entry(entries.pop(number).persistent)
                return True
        return False

    # What is not certain

    def may_move(self, queue: str, entry: Entry, now: int) -> bool:
        """Whether the broker may have given an entry up by itself, so that it is in DEAD."""
        kind = KINDS.get(queue)
        if kind is None or not kind.has_dead_letters:
            return False
        return kind.delivery_limit >= 0 or 0 < entry.may_expire <= now

    def may_be_gone(self, queue: str, number: int, now: int) -> bool:
        """Whether an entry may be missing, and nowhere else."""
        entry = self.queues[queue][number]
        kind = KINDS.get(queue)
        if entry.is_unsure or 0 < entry.may_expire <= now:
            return True
        return kind is not None and kind.is_lossy

    def order(self, queue: str) -> list[int]:
        """The entries in the order of their delivery."""
        entries = self.queues[queue]
        return sorted(entries, key=lambda number: -entries[number].priority)

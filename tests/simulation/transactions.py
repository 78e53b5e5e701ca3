"""Transactions of a native client: publishes, settlements and offset commits, all or none.

A client that got no answer sends the same transaction again, on whatever connection it has then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from tests.simulation.group_model import FENCED
from tests.simulation.reference import KINDS
from trivium_native.wire import frames

if TYPE_CHECKING:
    from tests.simulation.native_actor import Draft, NativeActor

UNKNOWN_DELIVERY = 308
DONE = 0
REJECTED = 2


@dataclass
class Settlement:
    action: int
    subscription: int
    #: tags, and the queue and message of each
    tags: dict[int, tuple[str, int]]


@dataclass
class Transaction:
    drafts: list[Draft]
    settlements: list[Settlement]
    #: with the incarnations of their streams
    commits: list[tuple[dict[str, Any], int]]
    #: -1 without a producer
    sequence: int
    #: names of parts, and how many requests these have
    parts: list[tuple[str, int]] = field(default_factory=list)
    #: of its commit, if that was in this life of the broker
    write_batch: int = -1


class Transactions:
    def __init__(self, actor: NativeActor) -> None:
        self.actor = actor
        self.random = actor.random
        self.latest: Transaction | None = None
        self.forget()
        self.actions: list[tuple[Callable[[], None], int]] = [
            (self.commit, 10),
            (self.commit_parts, 10),
            (self.commit_again, 4),
            (self.commit_fenced, 1),
            (self.open, 1),
        ]

    def forget(self) -> None:
        #: epoch and next number of its open producer
        self.producer: tuple[int, int] | None = None

    def restarted(self) -> None:
        """Whether the latest one was committed is for the broker to say."""
        if self.latest is not None:
            self.latest.write_batch = -1

    @property
    def known(self) -> dict[str, tuple[int, int]]:
        return self.actor.reference.transactional

    def open(self) -> None:
        name = self.actor.name
        epoch, sequence = self.known.get(name, (-1, 0))
        self.actor.note(f"opens its transactional producer in epoch {epoch + 1}")
        self.known[name] = self.producer = (epoch + 1, sequence)
        self.actor.ask_fields(
            "transactional producer",
            self.actor.write_batch,
            frames.PRODUCER,
            {"producer": name, "transactional": True},
            {"epoch": epoch + 1, "sequence": sequence},
        )

    # Commit

    def commit(self, target: tuple[str, str] | None = None) -> None:
        sequence = -1
        if self.random.random() < 0.8:
            if self.producer is None:
                self.open()
            assert self.producer is not None
            # Numbers may be left out.
            sequence = self.producer[1] + self.random.choice((0, 0, 0, 2))
        transaction = Transaction(
            [self.actor.draft(target) for _ in range(self.random.choice((0, 1, 1, 2, 4)))],
            self._some_settlements(),
            self._some_commits(),
            sequence,
        )
        if sequence >= 0:
            self.latest = transaction
        self._send(transaction)

    def commit_parts(self) -> None:
        """What was staged under a number, without some parts of it."""
        found = self.actor.staging.some_parts()
        if found is None:
            return
        if self.producer is None:
            self.open()
        drafts = [self.actor.draft() for _ in range(self.random.choice((0, 0, 1)))]
        self.latest = Transaction(drafts, [], self._some_commits(), *found)
        self._send(self.latest)

    def commit_again(self) -> None:
        if self.latest is not None:
            if self.producer is None:
                self.open()
            self._send(self.latest)

    def commit_fenced(self) -> None:
        if self.producer is not None and self.producer[0] > 0:
            transaction = Transaction([self.actor.draft()], [], [], self.producer[1])
            self._send(transaction, self.producer[0] - 1)

    def _some_settlements(self) -> list[Settlement]:
        """Of each subscription a tag, or all up to one."""
        found: list[Settlement] = []
        for subscription, queue in self.actor.subscriptions.items():
            tags = [tag for at, tag in self.actor.unsettled if at == subscription]
            if tags and self.random.random() < 0.6:
                last = self.random.choice(tags)
                first = min(tags) if self.random.random() < 0.3 else last
                places = {
                    tag: (queue, self.actor.unsettled[subscription, tag])
                    for tag in tags
                    if first <= tag <= last
                }
                action = self.random.choice((DONE, DONE, DONE, 1, REJECTED))
                found.append(Settlement(action, subscription, places))
        return found

    def _some_commits(self) -> list[tuple[dict[str, Any], int]]:
        found: dict[tuple[str, str, int], tuple[dict[str, Any], int]] = {}
        for _ in range(self.random.choice((0, 0, 1, 2))):
            commit = self.actor.memberships.commit_fields()
            if commit is not None:
                fields = commit[0]
                found[fields["group"], fields["stream"], fields["offsets"][0][0]] = commit
        return list(found.values())

    def _send(self, transaction: Transaction, epoch: int = -1) -> None:
        fields: dict[str, Any] = {
            "settle": [
                [each.subscription, each.action, min(each.tags), max(each.tags)]
                for each in transaction.settlements
            ],
            "commits": [fields for fields, _ in transaction.commits],
        }
        if transaction.sequence >= 0:
            assert self.producer is not None
            epoch = self.producer[0] if epoch < 0 else epoch
            fields["producer"] = self.actor.name
            fields["epoch"] = epoch
            fields["sequence"] = transaction.sequence
            fields["parts"] = transaction.parts
        entries = [draft.encoded() for draft in transaction.drafts]
        packed: bytes = msgpack.packb(fields)
        data = struct.pack("<II", len(packed), len(entries)) + packed + b"".join(entries)
        numbers = [draft.number for draft in transaction.drafts]
        self.actor.note(f"transaction {fields} with {numbers}")
        refusal = self._refusal(transaction, epoch)
        if not refusal and not self._is_known(transaction):
            self._apply(transaction, epoch)
        left = self.actor.staging.left
        self.actor.ask("transaction", transaction.write_batch, frames.TX, data, left, refusal)

    def _is_known(self, transaction: Transaction) -> bool:
        if transaction.sequence < 0:
            return False
        return transaction.sequence < self.known[self.actor.name][1]

    def _refusal(self, transaction: Transaction, epoch: int) -> int:
        actor = self.actor
        if transaction.sequence >= 0:
            if epoch != self.known[actor.name][0]:
                return FENCED
            if self._is_known(transaction):
                return 0
        commits = transaction.commits
        for fields, incarnation in commits:
            refusal = actor.memberships.stream_refusal(fields, incarnation)
            if refusal:
                return refusal
        refusal = actor.staging.refusal(transaction.sequence, transaction.parts)
        if refusal:
            return refusal
        for settlement in transaction.settlements:
            tags = settlement.tags
            if not any(
                (settlement.subscription, tag) in actor.unsettled
                and tags[tag] not in actor.simulation.dropped
                for tag in tags
            ):
                return UNKNOWN_DELIVERY
        for fields, _ in commits:
            refusal = actor.memberships.refusal(fields)
            if refusal:
                return refusal
        return 0

    def _apply(self, transaction: Transaction, epoch: int) -> None:
        actor = self.actor
        is_durable = transaction.sequence >= 0 or bool(transaction.commits)
        for settlement in transaction.settlements:
            for tag, (queue, number) in settlement.tags.items():
                if actor.unsettled.pop((settlement.subscription, tag), None) is None:
                    continue
                actor.simulation.holders.pop((queue, number), None)
                entry = actor.reference.queues[queue].get(number)
                if settlement.action == REJECTED:
                    actor.reference.reject(queue, number)
                elif settlement.action == DONE:
                    actor.reference.settle(queue, number)
                    if entry is not None:
                        is_durable |= entry.persistent and KINDS[queue].durable
        for draft in transaction.drafts:
            # Nobody is to see a persistent message before all of it is certain.
            is_durable |= actor.model(draft, 2 if draft.mode else 0) >= 0
        for fields, _ in transaction.commits:
            actor.memberships.apply(fields)
        if transaction.sequence >= 0:
            self.known[actor.name] = (epoch, transaction.sequence + 1)
            self.producer = self.known[actor.name]
            actor.staging.decide(transaction.sequence, transaction.parts)
        transaction.write_batch = actor.write_batch if is_durable else -1

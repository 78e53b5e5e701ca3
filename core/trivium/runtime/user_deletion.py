"""The deletion of a user: what protocols keep for it goes, and what it declared becomes nobody's, a
part in each turn.

Its row is marked first: from that write batch on the user is gone for clients, and a start after a
crash goes on with what is left. The row goes with the last part; until then there cannot be another
user of that name, who would get what is left. Its tags and permissions go with the last part too:
they say what of its declarations is in force, which the broker keeps so. And so do its limits:
without them what a rate holds back would be taken in before its clients are sent away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from trivium.common.quotas import USER
from trivium.common.timers import Timed
from trivium.idempotence.deduplication import REQUEST
from trivium.runtime.vhost_deletion import LOOK_AGAIN_MS, MAX_PER_TURN
from trivium.vhost.suspensions import (
    Item,
    declared,
    declarer_of,
    give,
    is_in_force,
    would_be_in_force,
)

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost


class UserDeletion(Timed):
    """That of one user; ``done`` is called in the turn of its last part."""

    def __init__(self, broker: Broker, name: str, done: Callable[[], None]) -> None:
        self._broker = broker
        self._name = name
        self._done = done
        granted = broker.authentication.granted
        limits = broker.logins.limits

        def forget() -> None:
            granted.forget_user(name)
            limits.forget(name)

        self._forget_settings = broker.events.for_served(forget)
        self._parts = self._all_parts()

    def begin(self) -> None:
        """Take away part after part, once its clients are sent away at the end of this turn."""
        self._broker.timeouts.call_at(self._broker.elapsed_ms, self)

    def due(self) -> None:
        broker = self._broker
        if take_parts(broker, self._parts, self):
            serving = broker.events.serving
            self._forget_settings()
            broker.events.serving = serving
            broker.users.deleted(self._name)
            broker.quotas.deleted(USER, self._name)
            self._done()

    def _all_parts(self) -> Iterator[int]:
        """Take the next part away; 1 for each."""
        for adapter in self._broker.adapters.values():
            yield from adapter.forget_user(self._name)
        for vhost in list(self._broker.vhosts.values()):
            vhost.deduplication.drop(REQUEST, self._name)
            yield 1
            yield from disown_queues(self._broker, vhost, self._name)
            yield from self._disown(vhost)

    def _disown(self, vhost: VirtualHost) -> Iterator[int]:
        for item in declared(vhost):
            if item is not None:
                self._take_over(vhost, item)
            yield 1

    def _take_over(self, vhost: VirtualHost, item: Item) -> None:
        """What is in force stays so, and what is not stays suspended, whoever has the name then;
        others who declared it too have it alone, if their rights suffice."""
        declarer = declarer_of(item)
        if declarer is None:
            return
        members = declarer.members()
        left = [member for member in members if member.name != self._name]
        if len(left) == len(members):
            return
        declarers = self._broker.authentication.declarers
        rest = declarers.joint(left, vhost.name) if left else declarers.nobody
        is_lost = is_in_force(item) and not would_be_in_force(item, rest)
        give(vhost, item, None if is_lost else rest)


def disown_queues(broker: Broker, vhost: VirtualHost, name: str) -> Iterator[int]:
    """The queues of a user stay and are nobody's, so they do not count for the next of its name; 1
    for each."""
    account = broker.quotas.account(USER, name)
    for queue in [queue for queue in vhost.queues.values() if queue.user is account]:
        if queue.is_deleted:
            continue
        vhost.count_queue(queue, -1)
        queue.user = None
        vhost.count_queue(queue, 1)
        vhost.rows.put_queue(queue)
        yield 1


class FormerUsers(Timed):
    """Users who were in a password file, and are in none any more: what protocols keep for them
    goes. What they were granted stays with their names."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names: set[str] = set()
        self._parts = self._all_parts()

    def left(self, names: Iterable[str]) -> None:
        """These have gone; their clients are sent away at the end of this turn."""
        self._names.update(names)
        if self._names:
            self._broker.timeouts.call_at(self._broker.elapsed_ms, self)

    def due(self) -> None:
        if take_parts(self._broker, self._parts, self):
            self._parts = self._all_parts()

    def _all_parts(self) -> Iterator[int]:
        broker = self._broker
        while self._names:
            name = self._names.pop()
            # Somebody else may have the name, or the file may have it again.
            if not broker.authentication.knows(name):
                for adapter in broker.adapters.values():
                    yield from adapter.forget_user(name)
            yield 1


def take_parts(broker: Broker, parts: Iterator[int], timed: Timed) -> bool:
    """Take some parts away in this turn; whether none is left. Else ``timed`` is called again."""
    delay_ms = LOOK_AGAIN_MS
    if not broker.is_behind:
        for _ in range(MAX_PER_TURN):
            if next(parts, 0) == 0:
                return True
            if broker.driver.is_turn_long():
                break
        delay_ms = 1
    broker.timeouts.call_at(broker.elapsed_ms + delay_ms, timed)
    return False


def delete_user(broker: Broker, name: str, done: Callable[[], None]) -> None:
    """Delete a user with its keys, permissions and limits, and with what protocols keep for it.

    It is gone for clients at once, as of the current write batch. ``done`` is called in the turn in
    which the last of it goes. Raises NotFound; AccessRefused for one of the configuration.
    """
    broker.users.changeable(name)
    broker.users.delete(name)
    broker.authentication.api_keys.delete_of(name)
    UserDeletion(broker, name, done).begin()


def go_on(broker: Broker) -> None:
    """The adapters have started: go on with deletions that the last stop cut off, and watch for
    users of files who go."""
    files = broker.authentication.files
    if files is not None:
        files.left = FormerUsers(broker).left
    for name in broker.users.leaving:
        UserDeletion(broker, name, lambda: None).begin()

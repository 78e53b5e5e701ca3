"""What passes messages on in a virtual host and is in force by the rights of its declarer.

A binding, the dead letter exchange of a queue, the alternate exchange of an exchange, and what a
policy says of such exchanges are in force while any of those who declared them might do it again;
those of the broker itself always are. That is looked at where a route is found and where a dead
letter leaves. Here it is told: after each change of rights a walk looks at all of them, a part in
each turn, and says which of them are suspended now, or are no longer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from trivium.common.bag import items_of
from trivium.common.timers import Timed
from trivium.queues.dead_letters import may_dead_letter
from trivium.queues.queue import Queue
from trivium.routing.exchanges import Binding, Declarer, Declarers, Exchange
from trivium.vhost.policies import Policy
from trivium.vhost.routes import has_alternate

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost

#: Things that are looked at in one turn.
MAX_PER_TURN: Final = 128
#: Things after which a walk looks whether its turn is long: what is told of them is written to
#: logs, which takes much longer than to look at them.
LOOK_EVERY: Final = 32
#: Things that are passed over before a walk lets others go on.
MAX_PASSED: Final = 1024
#: Who declared a thing and is remembered for it, and bytes of what is stored of them.
MAX_MEMBERS: Final = 8
MAX_MEMBER_BYTES: Final = 16 * 1024
#: Things that a line of the log names.
MAX_NAMED: Final = 5

Bound: TypeAlias = tuple[Exchange, Binding]
Item: TypeAlias = Queue | Exchange | Policy | Bound

logger = logging.getLogger(__name__)


def declarer_of(item: Item) -> Declarer | None:
    """Who declared it; None: the broker."""
    if isinstance(item, tuple):
        guard = item[1].guard
        return guard if isinstance(guard, Declarer) else None
    return item.declarer


def is_in_force(item: Item) -> bool:
    """Whether it passes messages on."""
    if isinstance(item, tuple):
        exchange, binding = item
        guard = binding.guard
        return not isinstance(guard, Declarer) or guard.admits(exchange, binding, b"")
    if isinstance(item, Policy):
        return item.passes_on
    return may_dead_letter(item) if isinstance(item, Queue) else has_alternate(item)


def declared(vhost: VirtualHost) -> Iterator[Item | None]:
    """All that has a declarer, also while some of it goes; now and then None, where others may be
    served between."""
    for policy in vhost.policies.all():
        if policy.declarer is not None:
            yield policy
    passed = 0
    items: list[Queue | Exchange] = [*vhost.exchanges.values(), *vhost.queues.values()]
    for item in items:
        if item.declarer is not None and is_there(vhost, item):
            yield item
        passed += 1
        if passed % MAX_PASSED == 0:
            yield None
    for kept in vhost.bindings.all():
        for bound in list(items_of(kept)):
            if isinstance(bound[1].guard, Declarer) and is_there(vhost, bound):
                yield bound
            passed += 1
            if passed % MAX_PASSED == 0:
                yield None


def is_there(vhost: VirtualHost, item: Item) -> bool:
    """Whether it is still in the virtual host."""
    if isinstance(item, tuple):
        exchange, binding = item
        return vhost.exchanges.get(exchange.name) is exchange and exchange.find(binding) is binding
    if isinstance(item, Policy):
        return vhost.policies.get(item.name) is item
    if isinstance(item, Queue):
        return not item.is_deleted
    return vhost.exchanges.get(item.name) is item


def give(vhost: VirtualHost, item: Item, declarer: Declarer | None) -> None:
    """It is somebody else's from now on, or the broker's, also after a restart."""
    if isinstance(item, tuple):
        vhost.bindings.declare(item[0], item[1], declarer)
        return
    item.declarer = declarer
    if isinstance(item, Policy):
        vhost.policies.keep(item)
    elif isinstance(item, Queue):
        vhost.rows.put_queue(item)
    else:
        vhost.rows.put_exchange(item)


def would_be_in_force(item: Item, declarer: Declarer) -> bool:
    """Whether it would pass messages on if it was somebody's."""
    if isinstance(item, tuple):
        return declarer.admits(item[0], item[1], b"")
    if isinstance(item, Policy):
        return declarer.may_set_policies()
    former = item.declarer
    item.declarer = declarer
    found = is_in_force(item)
    item.declarer = former
    return found


def take_over(vhost: VirtualHost, item: Queue | Exchange, declarer: Declarer | None) -> None:
    """Somebody declares again what is there: it is in force by those rights too from now on, if
    they suffice. What passes nothing on has no declarer."""
    target = "x-dead-letter-exchange" if isinstance(item, Queue) else "alternate-exchange"
    if declarer is None or target not in item.arguments:
        return
    if not would_be_in_force(item, declarer):
        return
    former = item.declarer
    found = vhost.suspensions.joined(item, former, declarer)
    if found is former:
        return
    give(vhost, item, found)
    vhost.topology_version += 1
    vhost.suspensions.resumed(item)


class Suspensions(Timed):
    """What is not in force in one virtual host, as of the last walk."""

    def __init__(self, vhost: VirtualHost, declarers: Declarers) -> None:
        self._vhost = vhost
        self._declarers = declarers
        self._items: dict[Item, None] = {}
        self._walk: Iterator[Item | None] | None = None
        # Whether rights have changed again since this walk began.
        self._must_repeat = False
        # What this walk has found, and the first of it.
        self._suspended = 0
        self._resumed = 0
        self._named: list[str] = []

    def __len__(self) -> int:
        """How many things are suspended."""
        return len(self._items)

    def has(self, item: Item) -> bool:
        """Whether it is suspended."""
        return item in self._items

    def joined(self, item: Item, former: Declarer | None, declarer: Declarer) -> Declarer:
        """Who has it once ``declarer`` declares it too, beside those who did before. What was the
        broker's own is the declarer's alone."""
        members = [] if former is None else former.members()
        if former is not None and any(member.row == declarer.row for member in members):
            return former
        members = [*members, declarer]
        size = sum(len(member.row) for member in members)
        while len(members) > MAX_MEMBERS or (size > MAX_MEMBER_BYTES and len(members) > 1):
            idle = [member for member in members[:-1] if not would_be_in_force(item, member)]
            gone = idle[0] if idle else members[0]
            members.remove(gone)
            size -= len(gone.row)
        return self._declarers.joint(members, self._vhost.name)

    def permissions_changed(self) -> None:
        """What users may do has changed, by which routes were found."""
        self._vhost.topology_version += 1
        self.begin()

    def tags_changed(self) -> None:
        """The tags of users may have changed, by which policies are in force."""
        if self._vhost.policies.rights_changed():
            self._vhost.policies_changed()
            self.begin()

    def begin(self) -> None:
        """Rights have changed: look at everything, in this turn and the next ones."""
        if self._walk is None:
            self._walk = declared(self._vhost)
            self._go_on()
        else:
            self._must_repeat = True

    def forget(self, item: Item) -> None:
        """It is gone."""
        if len(self._items):
            self._items.pop(item, None)

    def resumed(self, item: Item) -> None:
        """It is declared again."""
        if len(self._items) and item in self._items:
            del self._items[item]
            self._tell(item, "resumed")

    def due(self) -> None:
        """Another part."""
        walk = self._walk
        if walk is None:
            return
        for count in range(1, MAX_PER_TURN + 1):
            try:
                item = next(walk)
            except StopIteration:
                self._finish()
                return
            if item is None:
                break
            self._look_at(item)
            if count % LOOK_EVERY == 0 and self._vhost.broker.is_turn_long:
                break
        self._go_on()

    def _go_on(self) -> None:
        broker = self._vhost.broker
        broker.timeouts.call_at(broker.elapsed_ms, self)

    def _look_at(self, item: Item) -> None:
        is_suspended = not is_in_force(item)
        if is_suspended == (item in self._items):
            return
        if is_suspended:
            self._items[item] = None
            self._suspended += 1
            self._tell(item, "suspended")
        else:
            del self._items[item]
            self._resumed += 1
            self._tell(item, "resumed")
        if len(self._named) < MAX_NAMED:
            self._named.append(_text(item))

    def _tell(self, item: Item, what: str) -> None:
        vhost = self._vhost
        declarer = declarer_of(item)
        by = "" if declarer is None else declarer.name
        if isinstance(item, tuple):
            exchange, binding = item
            vhost.tell(
                f"binding.{what}",
                exchange=exchange.name,
                destination=binding.destination.name,
                key=binding.pattern.decode(errors="replace"),
                declarer=by,
            )
        elif isinstance(item, Policy):
            vhost.tell(f"policy.{what}", policy=item.name, declarer=by)
        elif isinstance(item, Queue):
            vhost.tell(f"queue.dead-letters.{what}", queue=item.name, declarer=by)
        else:
            vhost.tell(f"exchange.alternate.{what}", exchange=item.name, declarer=by)

    def _finish(self) -> None:
        self._walk = None
        if self._suspended or self._resumed:
            logger.warning(
                "vhost '%s': %d declarations are suspended, since their declarers have lost a"
                " right, and %d in force again: %s%s",
                self._vhost.name,
                self._suspended,
                self._resumed,
                ", ".join(self._named),
                ", ..." if self._suspended + self._resumed > len(self._named) else "",
            )
        self._suspended = self._resumed = 0
        self._named = []
        if self._must_repeat:
            self._must_repeat = False
            self.begin()


def _text(item: Item) -> str:
    if isinstance(item, tuple):
        exchange, binding = item
        key = binding.pattern.decode(errors="replace")
        return f"binding {exchange.name!r} -> {binding.destination.name!r} by {key!r}"
    if isinstance(item, Policy):
        return f"policy {item.name!r}"
    if isinstance(item, Queue):
        return f"dead letters of queue {item.name!r}"
    return f"alternate of exchange {item.name!r}"

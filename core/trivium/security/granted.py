"""Permissions and roles that commands change: a row for each user and role.

A row is written in the write batch of the command's answer. Users and roles of the configuration
are as that has them: commands do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from trivium.common.events import Events
from trivium.common.values import pack, unpack
from trivium.errors import Configured, LimitExceeded, NotFound, PreconditionFailed
from trivium.security.permissions import MAX_LINES, Grants, Permissions, grants_of
from trivium.storage.base import Table

#: What a row's key begins with.
USER: Final = "user"
ROLE: Final = "role"
#: What the names of events about them begin with.
_EVENTS: Final = {USER: "permission", ROLE: "role"}
#: Rows of the table, all of which are in memory; virtual hosts, exchanges and roles of one row.
MAX_ROWS: Final = 100_000
MAX_ENTRIES: Final = 1024


class Granted:
    """The table of one broker. ``changed`` is told whose permissions changed, None: anybody's.

    ``may_be`` says whether there may be a user of a name.
    """

    def __init__(
        self,
        permissions: Permissions,
        changed: Callable[[str | None], None],
        events: Events,
        may_be: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._may_be = may_be
        self._permissions = permissions
        self._changed = changed
        self._events = events
        self._configured = {
            *((USER, name) for name in permissions.users()),
            *((ROLE, name) for name in permissions.roles()),
        }
        self._table: Table | None = None
        self._rows: dict[tuple[str, str], Grants] = {}

    def open(self, table: Table) -> None:
        """Load what commands have made, and keep it there from now on."""
        self._table = table
        for key, row in table.items():
            kind, name = unpack(key)
            grants = grants_of(*unpack(row))
            self._rows[(kind, name)] = grants
            if (kind, name) not in self._configured:
                self._put(kind, name, grants)

    def is_configured(self, kind: str, name: str) -> bool:
        """Whether the configuration says what a user or role is granted."""
        return (kind, name) in self._configured

    def all(self, kind: str) -> Iterator[tuple[str, Grants]]:
        """Users or roles with what they are granted, in no order: there may be many. Also those of
        the configuration; what is gone by the time it is reached is left out."""
        permissions = self._permissions
        is_user = kind == USER
        for name in permissions.users() if is_user else permissions.roles():
            grants = permissions.user(name) if is_user else permissions.role(name)
            if grants is not None:
                yield name, grants

    def copy(self, kind: str, name: str) -> Grants:
        """What a user or role is granted, to be changed and ``set``; empty for a new one.

        Raises AccessRefused for one of the configuration.
        """
        if (kind, name) in self._configured:
            raise Configured(kind, name)
        known = self._rows.get((kind, name))
        if known is None:
            return Grants()
        return grants_of(*values_of(known))

    def set(self, kind: str, name: str, grants: Grants) -> None:
        """Grant this, and nothing else. Raises TopologyError."""
        self.copy(kind, name)
        if not name:
            raise PreconditionFailed(f"a {kind} has a name")
        known = self._rows.get((kind, name))
        if kind == USER and not self._may_be(name) and not _is_part(grants, known):
            # What nobody has would be a later user's, who begins with nothing.
            raise NotFound(f"no user '{name}'")
        if len(self._rows) >= MAX_ROWS and (kind, name) not in self._rows:
            raise LimitExceeded(f"there are {MAX_ROWS} users and roles with permissions")
        entries = (grants.permissions, grants.topics, grants.roles)
        if len(grants.acl) > MAX_LINES or any(len(each) > MAX_ENTRIES for each in entries):
            raise LimitExceeded("those are too many permissions in one place")
        assert self._table is not None
        self._rows[(kind, name)] = grants
        self._table.put(pack([kind, name]), pack(values_of(grants)))
        self._put(kind, name, grants)
        self._changed(name if kind == USER else None)
        permissions, topics, acl, roles = values_of(grants)
        self._events.tell(
            f"{_EVENTS[kind]}.set",
            name=name,
            permissions=permissions,
            topic_permissions=topics,
            acl=acl,
            roles=roles,
        )

    def delete(self, kind: str, name: str) -> None:
        """Take everything back. Raises NotFound; AccessRefused for one of the configuration."""
        self.copy(kind, name)
        if self._rows.pop((kind, name), None) is None:
            raise NotFound(f"{kind} '{name}' has no permissions")
        assert self._table is not None
        self._table.delete(pack([kind, name]))
        self._put(kind, name, None)
        self._changed(name if kind == USER else None)
        self._events.tell(f"{_EVENTS[kind]}.deleted", name=name)

    def forget_user(self, name: str) -> None:
        """A user is made, or deleted: it begins with nothing, and so does another of its name."""
        if (USER, name) in self._rows and (USER, name) not in self._configured:
            self.delete(USER, name)

    def forget_vhost(self, vhost: str) -> Iterator[int]:
        """A virtual host is deleted: take back what is granted there, 1 for each user or role."""
        for kind, name in list(self._rows):
            known = self._rows.get((kind, name))
            if known is None or (kind, name) in self._configured:
                continue
            topics = [place for place in known.topics if place[0] == vhost]
            if vhost in known.permissions or topics:
                grants = self.copy(kind, name)
                grants.permissions.pop(vhost, None)
                for place in topics:
                    del grants.topics[place]
                self.set(kind, name, grants)
                yield 1

    def _put(self, kind: str, name: str, grants: Grants | None) -> None:
        if kind == USER:
            self._permissions.set_user(name, grants)
        else:
            self._permissions.set_role(name, grants)


def values_of(grants: Grants) -> list[Any]:
    """What ``grants_of`` makes the same of."""
    permissions = {
        vhost: {"configure": configure, "write": write, "read": read}
        for vhost, (configure, write, read) in sorted(grants.permissions.items())
    }
    topics: dict[str, dict[str, dict[str, str]]] = {}
    for (vhost, exchange), (write, read) in sorted(grants.topics.items()):
        topics.setdefault(vhost, {})[exchange] = {"write": write, "read": read}
    return [permissions, topics, [line.text for line in grants.acl], grants.roles]


def _is_part(grants: Grants, known: Grants | None) -> bool:
    """Whether it is nothing but what is granted already."""
    return (
        known is not None
        and grants.permissions.items() <= known.permissions.items()
        and grants.topics.items() <= known.topics.items()
        and {line.text for line in grants.acl} <= {line.text for line in known.acl}
        and set(grants.roles) <= set(known.roles)
    )

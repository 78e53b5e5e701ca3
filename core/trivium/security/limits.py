"""Quotas of users that commands set: a row for each user who has any.

A row is written in the write batch of the command's answer. What the configuration says of a user
is not changed by commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from trivium.common.events import Events
from trivium.common.quotas import USER, Quotas, check_limits
from trivium.common.values import pack, unpack
from trivium.errors import Configured, LimitExceeded, NotFound
from trivium.security.users import check_name
from trivium.storage.base import Table

#: Rows of the table, all of which are in memory.
MAX_ROWS: Final = 100_000


class UserLimits:
    """The table of one broker. ``configured`` has the users of the configuration; ``may_be`` says
    whether there may be a user of a name.
    """

    def __init__(
        self,
        quotas: Quotas,
        configured: Mapping[str, Mapping[str, int]],
        events: Events,
        may_be: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._may_be = may_be
        self._quotas = quotas
        self._events = events
        self._configured = configured
        self._table: Table | None = None
        for name, limits in configured.items():
            quotas.set_limits(USER, name, limits)

    def open(self, table: Table) -> None:
        """Load what commands have set, and keep it there from now on."""
        self._table = table
        for key, row in table.items():
            name = key.decode()
            if name not in self._configured:
                self._quotas.set_limits(USER, name, unpack(row))

    def set(self, name: str, limits: Mapping[str, object]) -> None:
        """Give a user these quotas, and no others of its own. Raises TopologyError.

        The user need not be one of the broker's own.
        """
        check_name(name)
        if name in self._configured:
            raise Configured("user", name)
        found = check_limits(USER, limits)
        assert self._table is not None
        key = name.encode()
        if not found:
            self._table.delete(key)
        else:
            row = self._table.get(key)
            known: dict[str, int] = {} if row is None else unpack(row)
            if not self._may_be(name) and not found.items() <= known.items():
                # They would be a later user's, who begins with none.
                raise NotFound(f"no user '{name}'")
            if row is None and len(self._table) >= MAX_ROWS:
                raise LimitExceeded(f"there are {MAX_ROWS} users with limits")
            self._table.put(key, pack(found))
        self._quotas.set_limits(USER, name, found)
        self._events.tell("user.limits.set", name=name, limits=found)

    def forget(self, name: str) -> None:
        """A user is made, or deleted: it begins with none, and so does another of its name."""
        if name not in self._configured and self._quotas.limits(USER, name):
            self.set(name, {})

    def all(self) -> Iterator[tuple[str, dict[str, int]]]:
        """The users who have quotas of their own, in no order: there may be many."""
        return (each for each in self._quotas.own_limits(USER) if each[0])

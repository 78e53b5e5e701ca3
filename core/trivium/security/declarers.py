"""Who declared what passes messages on: an identity, as far as its rights are not found by its
name, and what it may do now.

A token or key that ends takes nothing back: what it was for (its scopes) is what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trivium.common.values import pack, unpack
from trivium.routing.exchanges import (
    Binding,
    Declarer,
    Declarers,
    Exchange,
    ExchangeDestination,
    TopicExchange,
)
from trivium.security.identity import SETS_POLICIES, Identity
from trivium.security.permissions import MADE_UP, READ, WRITE, Access, Permissions

#: Declarers that are kept for those who declare more, and bytes of what is stored of them; emptied
#: when full, since clients may come with ever other scopes.
MAX_DECLARERS: Final = 10_000
MAX_DECLARER_BYTES: Final = 4 << 20


class AccessDeclarer(Declarer):
    """One identity in one virtual host."""

    def __init__(self, row: bytes, access: Access, tags: Callable[[], frozenset[str]]) -> None:
        super().__init__(access.identity.name, row)
        self._access = access
        self._tags = tags

    def admits(self, exchange: Exchange, binding: Binding, key: bytes) -> bool:
        access = self._access
        if access.is_open:
            return True
        target = binding.destination
        if not access.may(WRITE, target.name):
            return False
        if isinstance(target, ExchangeDestination) and not access.may_write_all(target.name):
            return False
        if isinstance(exchange, TopicExchange):
            return access.may_read_all(exchange.name, binding.pattern)
        return access.may(READ, exchange.name)

    def may_pass_on(self, what: str, name: str, target: str, key: str | None) -> bool:
        return self._access.may_pass_on(
            MADE_UP if name.startswith(MADE_UP) else name, target, key if what == "queue" else None
        )

    def may_set_policies(self) -> bool:
        return bool(self._tags() & SETS_POLICIES)


class AccessDeclarers(Declarers):
    """Those of one broker. ``tags_of`` finds the tags of an identity by its name."""

    def __init__(
        self, permissions: Permissions, tags_of: Callable[[Identity], frozenset[str]]
    ) -> None:
        super().__init__()
        self._permissions = permissions
        self._tags_of = tags_of
        self._known: dict[tuple[bytes, str], AccessDeclarer] = {}
        self._bytes = 0

    def of(self, identity: Identity, vhost: str) -> Declarer:
        """Whoever declares something now."""
        return self._known_by(_row(identity, None), vhost)

    def of_policy(self, identity: Identity, vhost: str) -> Declarer:
        """Whoever sets a policy now, with the tags that are not found again by the name."""
        tags = None if identity.tags == self._tags_of(identity) else sorted(identity.tags)
        return self._known_by(_row(identity, tags), vhost)

    def restored(self, row: bytes, vhost: str) -> Declarer | None:
        if row == self.nobody.row:
            return self.nobody
        return self._known_by(row, vhost) if row else None

    def _known_by(self, row: bytes, vhost: str) -> Declarer:
        found = self._known.get((row, vhost))
        if found is None:
            name, scopes, is_narrowed, tags = [*unpack(row), None, False, None][:4]
            identity = Identity(
                name,
                is_anonymous=not name,
                scopes=None if scopes is None else tuple(scopes),
                is_narrowed=is_narrowed,
            )
            shown = None if tags is None else frozenset(tags)
            access = self._permissions.access(identity, vhost)
            found = AccessDeclarer(row, access, lambda: self._tags(identity, shown))
            self._bytes += len(row)
            if len(self._known) >= MAX_DECLARERS or self._bytes > MAX_DECLARER_BYTES:
                self._known.clear()
                self._bytes = len(row)
            self._known[(row, vhost)] = found
        return found

    def _tags(self, identity: Identity, shown: frozenset[str] | None) -> frozenset[str]:
        """The tags of who came with these or, with None, with those that are found by the name."""
        if shown is None:
            return self._tags_of(identity)
        # A key has those of its user that it names.
        return shown & self._tags_of(identity) if identity.is_narrowed else shown


def _row(identity: Identity, tags: list[str] | None) -> bytes:
    row: list[object] = [identity.name]
    if identity.scopes is not None or tags is not None:
        scopes = identity.scopes
        row += [None if scopes is None else list(scopes), identity.is_narrowed]
    if tags is not None:
        row.append(tags)
    found: bytes = pack(row)
    return found

"""Who declared what passes messages on: an identity, as far as its rights are not found by its
name, and what it may do now.

A token or key that ends takes nothing back: what it was for (its scopes) is what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trivium.common.values import pack, unpack
from trivium.routing.exchanges import (
    Binding,
    Declarer,
    Declarers,
    Exchange,
    ExchangeDestination,
    TopicExchange,
)
from trivium.security.identity import ADMINISTRATOR, SETS_POLICIES, Identity
from trivium.security.permissions import MADE_UP, READ, WRITE, Access, Permissions

#: Declarers that are kept for those who declare more, and bytes of what is stored of them; emptied
#: when full, since clients may come with ever other scopes.
MAX_DECLARERS: Final = 10_000
MAX_DECLARER_BYTES: Final = 4 << 20
#: What is left out at the end of a row.
_USUAL: Final[tuple[Any, ...]] = ("", None, False, None, 0)

# What is stored of a declarer beside its identity, as one number.
#: it brought the thing in a document, which needs a tag and no permission
IMPORTED: Final = 1
#: it was no user of the table, so that one who is, of the same name, is another
ELSEWHERE: Final = 2


class AccessDeclarer(Declarer):
    """One identity in one virtual host."""

    def __init__(
        self,
        row: bytes,
        access: Access,
        tags: Callable[[], frozenset[str]],
        flags: int,
        is_stored: Callable[[str], bool],
    ) -> None:
        super().__init__(access.identity.name, row)
        self._access = access
        self._tags = tags
        self._is_imported = flags & IMPORTED != 0
        self._is_elsewhere = flags & ELSEWHERE != 0
        self._is_stored = is_stored

    @property
    def _is_another(self) -> bool:
        """Whether a user of the table has the name now, who did not have it then."""
        return self._is_elsewhere and self._is_stored(self.name)

    @property
    def _may_import(self) -> bool:
        return ADMINISTRATOR in self._tags()

    def admits(self, exchange: Exchange, binding: Binding, key: bytes) -> bool:
        if self._is_another:
            return False
        if self._is_imported:
            return self._may_import
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
        if self._is_another:
            return False
        if self._is_imported:
            return self._may_import
        return self._access.may_pass_on(
            MADE_UP if name.startswith(MADE_UP) else name, target, key if what == "queue" else None
        )

    def may_set_policies(self) -> bool:
        return not self._is_another and bool(self._tags() & SETS_POLICIES)


class JointDeclarer(Declarer):
    """Several who declared the same, oldest first."""

    def __init__(self, members: list[Declarer]) -> None:
        names = dict.fromkeys(member.name for member in members)
        super().__init__(", ".join(names), pack([member.row for member in members]))
        self._members = members

    def members(self) -> list[Declarer]:
        return self._members

    def admits(self, exchange: Exchange, binding: Binding, key: bytes) -> bool:
        return any(member.admits(exchange, binding, key) for member in self._members)

    def may_pass_on(self, what: str, name: str, target: str, key: str | None) -> bool:
        return any(member.may_pass_on(what, name, target, key) for member in self._members)

    def may_set_policies(self) -> bool:
        return any(member.may_set_policies() for member in self._members)


class AccessDeclarers(Declarers):
    """Those of one broker. ``tags_of`` finds the tags of an identity by its name, ``is_stored``
    says whether a name is that of a user of the table."""

    def __init__(
        self,
        permissions: Permissions,
        tags_of: Callable[[Identity], frozenset[str]],
        is_stored: Callable[[str], bool],
    ) -> None:
        super().__init__()
        self._permissions = permissions
        self._tags_of = tags_of
        self._is_stored = is_stored
        self._known: dict[tuple[bytes, str], Declarer] = {}
        self._bytes = 0
        # Of those whose rights depend on more than permissions: what they depended on last.
        self._seen: dict[str, tuple[bool, bool]] = {}

    def of(self, identity: Identity, vhost: str) -> Declarer:
        """Whoever declares something now."""
        return self._known_by(self._row(identity, None, 0), vhost)

    def of_policy(self, identity: Identity, vhost: str) -> Declarer:
        """Whoever sets a policy now, with the tags that are not found again by the name."""
        return self._known_by(self._row(identity, self._shown(identity), 0), vhost)

    def of_import(self, identity: Identity, vhost: str) -> Declarer:
        """Whoever brings a document of definitions now."""
        return self._known_by(self._row(identity, self._shown(identity), IMPORTED), vhost)

    def restored(self, row: bytes, vhost: str) -> Declarer | None:
        if row == self.nobody.row:
            return self.nobody
        return self._known_by(row, vhost) if row else None

    def joint(self, members: list[Declarer], vhost: str) -> Declarer:
        if len(members) == 1:
            return members[0]
        made = JointDeclarer(members)
        return self._known.get((made.row, vhost)) or self._keep(made, vhost)

    def users_changed(self) -> bool:
        """Whether users have changed so that other declarations may be in force."""
        is_changed = False
        for name, seen in self._seen.items():
            found = self._look_at(name)
            if found != seen:
                self._seen[name] = found
                is_changed = True
        return is_changed

    def _look_at(self, name: str) -> tuple[bool, bool]:
        return ADMINISTRATOR in self._tags_of(Identity(name)), self._is_stored(name)

    def _known_by(self, row: bytes, vhost: str) -> Declarer:
        found = self._known.get((row, vhost))
        if found is not None:
            return found
        fields: list[Any] = unpack(row)
        if isinstance(fields[0], bytes):
            return self.joint([self._known_by(member, vhost) for member in fields], vhost)
        name, scopes, is_narrowed, tags, flags = [*fields, *_USUAL[len(fields) :]]
        identity = Identity(
            name,
            is_anonymous=not name,
            scopes=None if scopes is None else tuple(scopes),
            is_narrowed=is_narrowed,
        )
        if flags and name not in self._seen:
            if len(self._seen) >= MAX_DECLARERS:
                self._seen.clear()
            self._seen[name] = self._look_at(name)
        shown = None if tags is None else frozenset(tags)
        access = self._permissions.access(identity, vhost)
        made = AccessDeclarer(
            row, access, lambda: self._tags(identity, shown), flags, self._is_stored
        )
        return self._keep(made, vhost)

    def _keep(self, declarer: Declarer, vhost: str) -> Declarer:
        size = len(declarer.row)
        self._bytes += size
        if len(self._known) >= MAX_DECLARERS or self._bytes > MAX_DECLARER_BYTES:
            self._known.clear()
            self._bytes = size
        self._known[(declarer.row, vhost)] = declarer
        return declarer

    def _shown(self, identity: Identity) -> list[str] | None:
        return None if identity.tags == self._tags_of(identity) else sorted(identity.tags)

    def _tags(self, identity: Identity, shown: frozenset[str] | None) -> frozenset[str]:
        """The tags of who came with these or, with None, with those that are found by the name."""
        if shown is None:
            return self._tags_of(identity)
        # A key has those of its user that it names.
        return shown & self._tags_of(identity) if identity.is_narrowed else shown

    def _row(self, identity: Identity, tags: list[str] | None, flags: int) -> bytes:
        scopes = identity.scopes
        if (scopes is None or identity.is_narrowed) and not identity.is_anonymous:
            # Its rights are found by its name.
            flags |= 0 if self._is_stored(identity.name) else ELSEWHERE
        row: list[object] = [identity.name]
        if scopes is not None or tags is not None or flags:
            row += [None if scopes is None else list(scopes), identity.is_narrowed]
        if tags is not None or flags:
            row.append(tags)
        if flags:
            row.append(flags)
        found: bytes = pack(row)
        return found

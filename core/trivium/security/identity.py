"""Who a connection is, once it has authenticated. Permissions are looked up by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Tags that mean something here, RabbitMQ's. Any other one is kept and grants nothing.
ADMINISTRATOR: Final = "administrator"
POLICYMAKER: Final = "policymaker"
MONITORING: Final = "monitoring"
MANAGEMENT: Final = "management"
#: What the tags of users in the configuration may be: RabbitMQ's, of which two mean nothing here.
KNOWN_TAGS: Final = (ADMINISTRATOR, POLICYMAKER, MONITORING, MANAGEMENT, "impersonator", "none")
#: Those of whom each permits to set policies.
SETS_POLICIES: Final = frozenset({ADMINISTRATOR, POLICYMAKER})
#: What may all that another tag may, as in RabbitMQ.
_IMPLIED: Final = {
    ADMINISTRATOR: frozenset({POLICYMAKER, MONITORING, MANAGEMENT}),
    POLICYMAKER: frozenset({MANAGEMENT}),
    MONITORING: frozenset({MANAGEMENT}),
}


def with_implied(tags: frozenset[str]) -> frozenset[str]:
    """These tags, and those of which they permit everything."""
    return tags.union(*(_IMPLIED.get(tag, frozenset()) for tag in tags))


@dataclass(frozen=True, slots=True)
class Identity:
    """A user, or all clients that came without credentials."""

    #: name of the user; empty for clients without credentials
    name: str
    tags: frozenset[str] = frozenset()
    is_anonymous: bool = False
    #: what the token or key is for that it came with (`trivium.security.scopes`), sorted; None:
    #: for whatever the user may do
    scopes: tuple[str, ...] | None = None
    #: whether they narrow what the user may do; else they alone say it
    is_narrowed: bool = False

    def has_scopes_of(self, other: Identity) -> bool:
        """Whether both came with what is for the same."""
        return (self.scopes, self.is_narrowed) == (other.scopes, other.is_narrowed)


#: Whoever may open the control socket: an administrator to whom everything is granted. No user has
#: its name.
OWNER: Final = Identity(
    "(owner)", frozenset({ADMINISTRATOR}), scopes=("configure:*/*", "read:*/*", "write:*/*")
)

#: Whom a connection has before it has authenticated: nothing is permitted.
NOBODY: Final = Identity("")

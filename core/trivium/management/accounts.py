"""What operators do to users and their permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from trivium.management.calls import BadRequest, Call
from trivium.security.granted import USER
from trivium.security.passwords import no_password
from trivium.security.permissions import EVERY_VHOST

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.security.scram import ScramKeys


def put_user(
    broker: Broker, name: str, stored: str, tags: list[str], scram: ScramKeys | None = None
) -> None:
    """Make a user, or change one; an empty password is none that anybody can show."""
    users = broker.users
    stored = stored or no_password()
    known = users.find(name)
    if known is None:
        users.add(name, stored, tags, scram)
    else:
        if (known.stored, known.scram) != (stored, scram):
            users.set_password(name, stored, scram)
        if known.tags != frozenset(tags):
            users.set_tags(name, tags)


def set_password(
    call: Call,
    name: str,
    password: bytes,
    tags: list[str],
    rest: Callable[[], None] = lambda: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """``put_user`` with a password that a thread hashes, between ``check`` and ``rest``; answer."""
    users = call.broker.users
    found: list[tuple[str, ScramKeys | None]] = []

    def work() -> bool:
        found.append(users.hash(password))
        return True

    def done(_: bool) -> None:
        def change() -> None:
            if not found:
                raise BadRequest("the password cannot be hashed")
            ((stored, scram),) = found
            check()
            is_new = users.find(name) is None
            put_user(call.broker, name, stored, tags, scram)
            rest()
            call.created(is_new)

        call.go_on(change)

    call.broker.driver.run_blocking(work, done)


Permission = tuple[str, str, tuple[str, str, str]]
TopicPermission = tuple[str, str, str, tuple[str, str]]


def permissions_in(
    broker: Broker, users: Iterable[str | None] | None = None, within: str | None = None
) -> Iterator[Permission | None]:
    """User, virtual host and patterns: of these ``users``, or of all in no order. None where others
    may be served: for a None among the users, and for one who has none. ``within`` a virtual host
    there are what is granted there, and to others what is granted in all."""
    for name in broker.permissions.users() if users is None else users:
        grants = None if name is None else broker.permissions.user(name)
        held = {} if grants is None else grants.permissions
        if within is not None:
            patterns = held.get(within, held.get(EVERY_VHOST))
            held = {} if patterns is None else {within: patterns}
        if name is None or not held:
            yield None
            continue
        for vhost, patterns in sorted(held.items()):
            yield name, vhost, patterns


def topic_permissions_in(
    broker: Broker, users: Iterable[str | None] | None = None, within: str | None = None
) -> Iterator[TopicPermission | None]:
    """User, virtual host, exchange and patterns, as ``permissions_in`` has them."""
    for name in broker.permissions.users() if users is None else users:
        grants = None if name is None else broker.permissions.user(name)
        held = {} if grants is None else grants.topics
        if within is not None:
            held = {
                (within, exchange): patterns
                for place in (EVERY_VHOST, within)
                for (vhost, exchange), patterns in held.items()
                if vhost == place
            }
        if name is None or not held:
            yield None
            continue
        for (vhost, exchange), patterns in sorted(held.items()):
            yield name, vhost, exchange, patterns


def permit(broker: Broker, user: str, vhost: str, patterns: list[str]) -> bool:
    """Grant them; whether there was nothing before. A user of the configuration may have them
    already. Raises TopologyError."""
    if broker.users.is_configured(user):
        known = broker.permissions.user(user)
        held = {} if known is None else known.permissions
        if tuple(patterns) in (held.get(vhost), held.get(EVERY_VHOST)):
            return False
    granted = broker.authentication.granted
    grants = granted.copy(USER, user)
    is_new = vhost not in grants.permissions
    grants.permit(vhost, *patterns)
    granted.set(USER, user, grants)
    return is_new


def permit_topics(
    broker: Broker, user: str, vhost: str, exchange: str, patterns: list[str]
) -> bool:
    """Grant them; whether there was nothing before."""
    granted = broker.authentication.granted
    grants = granted.copy(USER, user)
    is_new = (vhost, exchange) not in grants.topics
    grants.permit_topics(vhost, exchange, *patterns)
    granted.set(USER, user, grants)
    return is_new

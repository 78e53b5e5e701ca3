"""``users``, ``permissions``, ``topic-permissions`` and ``user-limits``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from trivium.common.quotas import USER as USER_SCOPE
from trivium.errors import AccessRefused, NotFound
from trivium.management.accounts import (
    Permission,
    TopicPermission,
    permissions_in,
    permit,
    permit_topics,
    put_user,
    set_password,
    topic_permissions_in,
)
from trivium.management.calls import NOT_FOUND, BadRequest, Call
from trivium.management.compatible.password_hashes import exported, imported
from trivium.management.endpoints import ADMINISTRATORS, UNCHECKED, Endpoint
from trivium.management.listing import Listing
from trivium.management.values import checked, number_of, text_of
from trivium.observability.api import ApiAnswer
from trivium.runtime.user_deletion import delete_user
from trivium.security.granted import USER
from trivium.security.permissions import EVERY_VHOST

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.security.stored import StoredUser

#: Users that are deleted by one request.
MAX_BULK: Final = 1000


def shown_user(broker: Broker, user: StoredUser) -> dict[str, object]:
    """What is shown of a user. What this broker alone can read of its password is not shown."""
    password_hash, algorithm = exported(user.stored)
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": sorted(user.tags),
        "limits": dict(broker.quotas.limits(USER_SCOPE, user.name)),
    }


def get_all(call: Call) -> ApiAnswer:
    """All users."""
    return _listed(call, call.broker.users.all())


def _listed(
    call: Call, users: Iterable[StoredUser], admits: Callable[[StoredUser], bool] | None = None
) -> ApiAnswer:
    broker = call.broker
    return Listing(
        call, users, lambda user: shown_user(broker, user), lambda user: (user.name,), admits
    ).answer()


def get_without_permissions(call: Call) -> ApiAnswer:
    """Users who may enter no virtual host by permissions of their own."""
    permissions = call.broker.permissions

    def has_none(user: StoredUser) -> bool:
        grants = permissions.user(user.name)
        return grants is None or not grants.permissions

    return _listed(call, call.broker.users.all(), has_none)


def _found(call: Call) -> StoredUser:
    found = call.broker.users.find(call.names["user"])
    if found is None:
        raise NotFound(NOT_FOUND)
    return found


def _named(call: Call) -> str:
    """The name of somebody who may be granted something, or has been: not only of the users that
    the broker keeps. Raises NotFound."""
    name, broker = call.names["user"], call.broker
    has_rows = broker.permissions.user(name) is not None or broker.quotas.limits(USER_SCOPE, name)
    if not has_rows and not broker.authentication.may_be(name):
        raise NotFound(NOT_FOUND)
    return name


def get_one(call: Call) -> ApiAnswer:
    """One user."""
    return ApiAnswer(200, shown_user(call.broker, _found(call)))


def tags_of(value: object) -> list[str]:
    """A list of tags, or a text with commas between. Raises BadRequest."""
    if isinstance(value, str):
        value = [tag.strip() for tag in value.split(",") if tag.strip()]
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise BadRequest("'tags' are a list of texts, or one with commas between")
    return [checked(tag, "tags") for tag in value]


def password_of(body: Mapping[str, object]) -> str:
    """The password that a body gives a user as plain text; "" for none, or a hash. Raises
    BadRequest."""
    if "password" in body and "password_hash" in body:
        raise BadRequest("both_password_and_password_hash_are_provided")
    return text_of(body, "password", "")


def put(call: Call) -> None:
    """Make a user, or give one another password and tags."""
    name = call.names["user"]
    body = call.body
    if "tags" not in body and "administrator" not in body:
        raise BadRequest("tags_not_present")
    tags = tags_of(body.get("tags", "administrator" if body.get("administrator") else ""))
    users = call.broker.users
    known = users.find(name)
    if known is None:
        users.check_new(name)
    else:
        users.changeable(name)
    password = password_of(body).encode()
    if "password_hash" in body:
        stored = imported(text_of(body, "password_hash"), str(body.get("hashing_algorithm") or ""))
        put_user(call.broker, name, stored, tags)
        call.created(known is None)
    elif password:
        users.check_password(password)
        set_password(call, name, password, tags)
    else:
        put_user(call.broker, name, "", tags)
        call.created(known is None)


def delete(call: Call) -> None:
    """Delete a user."""
    delete_user(call.broker, _found(call).name, call.gone)


def delete_many(call: Call) -> None:
    """Delete users: all of them, or none where one is not there."""
    names = call.body.get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest("'users' are a list of names")
    if len(names) > MAX_BULK:
        raise BadRequest(f"at most {MAX_BULK} users are deleted at once")
    users = call.broker.users
    known = list(dict.fromkeys(names))
    for name in known:
        if users.find(name) is None:
            raise BadRequest(f"no_such_user: {name}")
        users.changeable(name)
    left = len(known)

    def one_gone() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            call.gone()

    for name in known:
        delete_user(call.broker, name, one_gone)
    if not known:
        call.gone()


# Permissions


def shown_permission(permission: Permission) -> dict[str, object]:
    """A permission of a user in a virtual host."""
    user, vhost, (configure, write, read) = permission
    return {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}


def shown_topic_permission(permission: TopicPermission) -> dict[str, object]:
    """A permission of a user for the topics of an exchange."""
    user, vhost, exchange, (write, read) = permission
    return {"user": user, "vhost": vhost, "exchange": exchange, "write": write, "read": read}


def _admits(call: Call) -> Callable[[tuple[object, ...]], bool]:
    """Whether a permission is about the user and virtual host of the path."""
    names = call.names
    if "vhost" in names:
        # It must be there.
        names = {**names, "vhost": call.vhost.name}
    if "user" in names:
        _named(call)
    return lambda found: (
        names.get("user", found[0]) == found[0] and names.get("vhost", found[1]) == found[1]
    )


def _wanted(call: Call) -> list[str] | None:
    """The users whose permissions are looked at; None for all."""
    return [call.names["user"]] if "user" in call.names else None


def get_permissions(call: Call) -> ApiAnswer:
    """The permissions that there are."""
    admits = _admits(call)
    every = permissions_in(call.broker, _wanted(call), call.names.get("vhost"))
    return Listing(call, every, shown_permission, lambda each: each[:2], admits).answer()


def get_permission(call: Call) -> ApiAnswer:
    """That of a user in a virtual host, or else in all of them."""
    user, vhost = _named(call), call.vhost.name
    grants = call.broker.permissions.user(user)
    held = {} if grants is None else grants.permissions
    patterns = held.get(vhost, held.get(EVERY_VHOST))
    if patterns is None:
        raise NotFound(NOT_FOUND)
    return ApiAnswer(200, shown_permission((user, vhost, patterns)))


def _check_both(call: Call) -> None:
    broker = call.broker
    may_be = broker.authentication.may_be(call.names["user"])
    if not may_be or call.names["vhost"] not in broker.vhosts:
        raise BadRequest("vhost_or_user_not_found")


def put_permission(call: Call) -> None:
    """Grant a user patterns in a virtual host."""
    _check_both(call)
    body = call.body
    patterns = [text_of(body, kind) for kind in ("configure", "write", "read")]
    is_new = permit(call.broker, call.names["user"], call.names["vhost"], patterns)
    call.created(is_new)


def delete_permission(call: Call) -> None:
    """Take it back."""
    granted = call.broker.authentication.granted
    grants = granted.copy(USER, _named(call))
    if grants.permissions.pop(call.vhost.name, None) is None:
        raise NotFound(NOT_FOUND)
    granted.set(USER, call.names["user"], grants)
    call.gone()


def get_topic_permissions(call: Call) -> ApiAnswer:
    """The topic permissions that there are."""
    admits = _admits(call)
    every = topic_permissions_in(call.broker, _wanted(call), call.names.get("vhost"))
    return Listing(call, every, shown_topic_permission, lambda each: each[:3], admits).answer()


def get_topic_permission(call: Call) -> ApiAnswer:
    """Those of a user in a virtual host."""
    admits = _admits(call)
    every = topic_permissions_in(call.broker, _wanted(call), call.names.get("vhost"))
    if not any(found is not None and admits(found) for found in every):
        raise NotFound(NOT_FOUND)
    return get_topic_permissions(call)


def put_topic_permission(call: Call) -> None:
    """Grant a user patterns for the topics of an exchange."""
    _check_both(call)
    body = call.body
    patterns = [text_of(body, kind) for kind in ("write", "read")]
    exchange = text_of(body, "exchange")
    user, vhost = call.names["user"], call.names["vhost"]
    call.created(permit_topics(call.broker, user, vhost, exchange, patterns))


def delete_topic_permission(call: Call) -> None:
    """Take back those of all exchanges, or of the one that the path names."""
    granted = call.broker.authentication.granted
    grants = granted.copy(USER, _named(call))
    vhost = call.vhost.name
    wanted = call.names.get("exchange")
    for place in list(grants.topics):
        if place[0] == vhost and wanted in (None, place[1]):
            del grants.topics[place]
    granted.set(USER, call.names["user"], grants)
    call.gone()


# Limits


def get_limits(call: Call) -> ApiAnswer:
    """The limits of all users, or of one; to who does not watch its own alone."""
    wanted = call.names.get("user")
    if not call.watches:
        if wanted not in (None, call.identity.name):
            raise AccessRefused("User not authorised to access object")
        wanted = call.identity.name
    elif wanted is not None:
        _named(call)
    return Listing(
        call,
        call.broker.logins.limits.all(),
        lambda found: {"user": found[0], "value": dict(found[1])},
        lambda found: (found[0],),
        lambda found: wanted in (None, found[0]),
    ).answer()


def put_limit(call: Call) -> None:
    """Set one limit of a user."""
    try:
        name = _named(call)
    except NotFound:
        raise BadRequest(f"no_such_user: {call.names['user']}") from None
    value = number_of(call.body, "value")
    limits = dict(call.broker.quotas.limits(USER_SCOPE, name))
    call.broker.logins.limits.set(name, {**limits, call.names["limit"]: value})
    call.gone()


def delete_limit(call: Call) -> None:
    """Take one limit of a user away."""
    name = _named(call)
    limits = dict(call.broker.quotas.limits(USER_SCOPE, name))
    limits.pop(call.names["limit"], None)
    call.broker.logins.limits.set(name, limits)
    call.gone()


_ADMIN: Final = (ADMINISTRATORS, UNCHECKED)

ENDPOINTS: Final = (
    Endpoint("GET", "users", get_all, *_ADMIN),
    Endpoint("GET", "users/without-permissions", get_without_permissions, *_ADMIN),
    Endpoint("POST", "users/bulk-delete", delete_many, *_ADMIN),
    Endpoint("GET", "users/{user}", get_one, *_ADMIN),
    Endpoint("PUT", "users/{user}", put, *_ADMIN),
    Endpoint("DELETE", "users/{user}", delete, *_ADMIN),
    Endpoint("GET", "users/{user}/permissions", get_permissions, *_ADMIN),
    Endpoint("GET", "users/{user}/topic-permissions", get_topic_permissions, *_ADMIN),
    Endpoint("GET", "vhosts/{vhost}/permissions", get_permissions, *_ADMIN),
    Endpoint("GET", "vhosts/{vhost}/topic-permissions", get_topic_permissions, *_ADMIN),
    Endpoint("GET", "permissions", get_permissions, *_ADMIN),
    Endpoint("GET", "permissions/{vhost}/{user}", get_permission, *_ADMIN),
    Endpoint("PUT", "permissions/{vhost}/{user}", put_permission, *_ADMIN),
    Endpoint("DELETE", "permissions/{vhost}/{user}", delete_permission, *_ADMIN),
    Endpoint("GET", "topic-permissions", get_topic_permissions, *_ADMIN),
    Endpoint("GET", "topic-permissions/{vhost}/{user}", get_topic_permission, *_ADMIN),
    Endpoint("PUT", "topic-permissions/{vhost}/{user}", put_topic_permission, *_ADMIN),
    Endpoint("DELETE", "topic-permissions/{vhost}/{user}", delete_topic_permission, *_ADMIN),
    Endpoint(
        "DELETE", "topic-permissions/{vhost}/{user}/{exchange}", delete_topic_permission, *_ADMIN
    ),
    Endpoint("GET", "user-limits", get_limits),
    Endpoint("GET", "user-limits/{user}", get_limits),
    Endpoint("PUT", "user-limits/{user}/{limit}", put_limit, *_ADMIN),
    Endpoint("DELETE", "user-limits/{user}/{limit}", delete_limit, *_ADMIN),
)

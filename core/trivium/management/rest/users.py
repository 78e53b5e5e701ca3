"""Users, their keys, what they and roles may do, and how much they may have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from trivium.common.quotas import USER as USER_SCOPE
from trivium.common.quotas import check_limits
from trivium.errors import AccessRefused, NotFound
from trivium.management.accounts import (
    permissions_in,
    permit,
    permit_topics,
    put_user,
    set_password,
    topic_permissions_in,
)
from trivium.management.endpoints import ADMINISTRATORS, UNCHECKED
from trivium.management.rest.general import has_own_keys
from trivium.management.rest.operations import (
    CONDITIONS,
    Parameter,
    answer,
    asked,
    body_of,
    check_condition,
    listed,
    operation,
)
from trivium.management.rest.schema import About, Limits, Name, Time
from trivium.observability.api import ApiAnswer
from trivium.runtime.user_deletion import delete_user
from trivium.security.granted import ROLE, USER
from trivium.security.identity import ADMINISTRATOR
from trivium.security.permissions import EVERY_VHOST, MAX_LINES, grants_of
from trivium.security.scopes import MAX_SCOPES
from trivium.security.stored import MAX_PASSWORD_BYTES
from trivium.security.users import MAX_TAGS, check_name

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.security.api_keys import ApiKey
    from trivium.security.permissions import Grants
    from trivium.security.stored import StoredUser

_Pattern = Annotated[str, About(text="a pattern for names; none match where it is empty")]
_Word = Annotated[str, About(shortest=1, longest=255)]
_Expiry = Annotated[
    int, About(text="milliseconds since the epoch; 0 is never", least=0, most=(1 << 53) - 1)
]


@dataclass(frozen=True, slots=True)
class User:
    """A user of the broker's own."""

    name: Name
    tags: list[str]
    is_configured: Annotated[bool, About(text="by the configuration, which alone changes it")]
    has_scram: bool
    virtual_host: Name
    roles: list[str]
    limits: Limits


@dataclass(frozen=True, slots=True)
class UserSetting:
    """A user that is to be there; what is left out stays as it is."""

    password: Annotated[
        str | None, About(shortest=1, longest=MAX_PASSWORD_BYTES, is_secret=True)
    ] = None
    tags: Annotated[list[_Word] | None, About(longest=MAX_TAGS)] = None
    virtual_host: Annotated[str | None, About(shortest=1, longest=255)] = None
    roles: Annotated[list[_Word] | None, About(longest=MAX_LINES)] = None
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """How much a user may have: what is set for it alone."""

    name: Name
    limits: Limits


@dataclass(frozen=True, slots=True)
class LimitsSetting:
    """These limits, and no others of its own."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a user, without its secret."""

    id: str
    user: Name
    scopes: Annotated[list[str] | None, About(text="to what it narrows; null is all")]
    expires_at: Time


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made. `key` is shown this once."""

    id: str
    user: Name
    scopes: list[str] | None
    expires_at: Time
    key: str


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key that is wanted."""

    scopes: Annotated[
        list[_Word] | None,
        About(
            text="each configure|write|read:VHOST/NAME[/KEY] or tag:NAME; none is all",
            shortest=1,
            longest=MAX_SCOPES,
        ),
    ] = None
    expires_at: _Expiry = 0


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do in a virtual host."""

    user: Name
    vhost: Name
    configure: _Pattern
    write: _Pattern
    read: _Pattern


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns for names."""

    configure: _Pattern
    write: _Pattern
    read: _Pattern


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """What a user may do with the topics of an exchange."""

    user: Name
    vhost: Name
    exchange: str
    write: _Pattern
    read: _Pattern


@dataclass(frozen=True, slots=True)
class TopicPatterns:
    """Patterns for routing keys."""

    write: _Pattern
    read: _Pattern


@dataclass(frozen=True, slots=True)
class Role:
    """Permissions that users have by its name."""

    name: Name
    permissions: Annotated[dict[str, Patterns], About(text="by virtual host")]
    topic_permissions: Annotated[
        dict[str, dict[str, TopicPatterns]], About(text="by virtual host and exchange")
    ]
    acl: Annotated[list[str], About(text="lines")]


@dataclass(frozen=True, slots=True)
class RolePatterns:
    """Patterns for names; what is left out permits nothing."""

    configure: _Pattern = ""
    write: _Pattern = ""
    read: _Pattern = ""


@dataclass(frozen=True, slots=True)
class RoleTopicPatterns:
    """Patterns for routing keys; what is left out permits nothing."""

    write: _Pattern = ""
    read: _Pattern = ""


@dataclass(frozen=True, slots=True)
class RoleSetting:
    """A role that is to be there."""

    permissions: Annotated[dict[str, RolePatterns], About(text="by virtual host")] = field(
        default_factory=dict
    )
    topic_permissions: Annotated[
        dict[str, dict[str, RoleTopicPatterns]], About(text="by virtual host and exchange")
    ] = field(default_factory=dict)
    acl: Annotated[list[str], About(text="lines", longest=MAX_LINES)] = field(default_factory=list)


def _view(call: Call, user: StoredUser) -> User:
    broker = call.broker
    grants = broker.permissions.user(user.name)
    return User(
        name=user.name,
        tags=sorted(user.tags),
        is_configured=broker.users.is_configured(user.name),
        has_scram=user.scram is not None,
        virtual_host=broker.users.virtual_host_of(user.name),
        roles=[] if grants is None else list(grants.roles),
        limits=dict(broker.quotas.limits(USER_SCOPE, user.name)),
    )


def list_all(call: Call) -> ApiAnswer:
    """All of them."""
    every = call.broker.users.all()
    return listed(call, every, lambda user: _view(call, user), lambda user: (user.name,))


def _found(call: Call) -> StoredUser:
    name = call.names["user"]
    found = call.broker.users.find(name)
    if found is None:
        raise NotFound(f"no user '{name}'")
    return found


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(_view(call, _found(call)))


def put(call: Call) -> None:
    """Make one, or give one what is named."""
    wanted = body_of(call, UserSetting)
    name = call.names["user"]
    broker = call.broker
    users = broker.users
    known = users.find(name)
    _check_condition(call)
    if known is None:
        users.check_new(name)
    else:
        users.changeable(name)
    vhost = wanted.virtual_host
    if vhost is not None:
        broker.vhost(vhost)
    tags = wanted.tags
    if tags is None:
        tags = [] if known is None else sorted(known.tags)
    # What cannot be raises before anything is done.
    if wanted.limits is not None:
        check_limits(USER_SCOPE, wanted.limits)
    if wanted.password is None:
        if known is None:
            put_user(broker, name, "", tags)
        elif wanted.tags is not None:
            users.set_tags(name, tags)
        _put_rest(call, name, wanted)
        call.created(known is None)
        return
    password = wanted.password.encode()
    users.check_password(password)
    set_password(
        call,
        name,
        password,
        tags,
        rest=lambda: _put_rest(call, name, wanted),
        check=lambda: _check_condition(call),
    )


def _check_condition(call: Call) -> None:
    name = call.names["user"]
    check_condition(call, call.broker.users.find(name) is not None, f"user '{name}'")


def _put_rest(call: Call, name: str, wanted: UserSetting) -> None:
    authentication = call.broker.authentication
    if wanted.limits is not None:
        call.broker.logins.limits.set(name, wanted.limits)
    if wanted.virtual_host is not None:
        authentication.set_virtual_host(name, wanted.virtual_host)
    if wanted.roles is not None:
        grants = authentication.granted.copy(USER, name)
        grants.roles = list(wanted.roles)
        authentication.granted.set(USER, name, grants)


def delete(call: Call) -> None:
    """Delete one, once nothing is left of it."""
    delete_user(call.broker, _found(call).name, call.gone)


# Limits. The user may be one of a file or a token, which only its name is known of.


def limits(call: Call) -> ApiAnswer:
    """Those of one."""
    name = _named(call)
    return answer(OwnLimits(name, dict(call.broker.quotas.limits(USER_SCOPE, name))))


def put_limits(call: Call) -> None:
    """Give one these, in place of those of its own."""
    call.broker.logins.limits.set(_named(call), body_of(call, LimitsSetting).limits)
    call.gone()


def _named(call: Call) -> str:
    """A user's name, whoever knows that user. Raises PreconditionFailed."""
    name = call.names["user"]
    check_name(name)
    return name


# Keys


def _key(key: ApiKey) -> Key:
    scopes = None if key.scopes is None else sorted(key.scopes)
    return Key(key.id, key.user, scopes, key.expires_ms)


def _is_administrator(call: Call) -> bool:
    return ADMINISTRATOR in call.identity.tags


def _require_keys_of(call: Call, user: str) -> None:
    """Raise AccessRefused unless the caller may have to do with a user's keys."""
    if _is_administrator(call) or (user == call.identity.name and has_own_keys(call)):
        return
    text = f"keys of user '{user}' are for an administrator, or that user with its password"
    call.broker.permissions.denied(f"HTTP API: {text}", call.identity)
    raise AccessRefused(text)


def keys(call: Call) -> ApiAnswer:
    """Those of a user."""
    _require_keys_of(call, call.names["user"])
    return _keys(call, _found(call).name)


def all_keys(call: Call) -> ApiAnswer:
    """Those of all users; of one who is no administrator its own."""
    if _is_administrator(call):
        return _keys(call, "")
    _require_keys_of(call, call.identity.name)
    return _keys(call, call.identity.name)


def _keys(call: Call, user: str) -> ApiAnswer:
    every = call.broker.authentication.api_keys.all(user)
    return listed(call, every, _key, lambda key: (key.id,))


def add_key(call: Call) -> None:
    """Make one."""
    name = call.names["user"]
    _require_keys_of(call, name)
    wanted = body_of(call, KeyRequest)
    api_keys = call.broker.authentication.api_keys
    add = api_keys.add if _is_administrator(call) else api_keys.add_own
    key, text = add(_found(call).name, wanted.scopes, wanted.expires_at)
    shown = _key(key)
    made = NewKey(shown.id, shown.user, shown.scopes, shown.expires_at, text)
    call.answer_durably(answer(made, 201))


def delete_key(call: Call) -> None:
    """Take one back."""
    number = call.names["key"]
    api_keys = call.broker.authentication.api_keys
    if not _is_administrator(call):
        _require_keys_of(call, call.identity.name)
        key = api_keys.find(number)
        if key is None or key.user != call.identity.name:
            # Whether it is somebody else's is not said.
            raise NotFound(f"no key '{number}'")
    api_keys.delete(number)
    call.gone()


# Permissions


_USER: Final = Parameter("user", Annotated[str, About(longest=255)], "only those of a user")
_VHOST: Final = Parameter("vhost", Annotated[str, About(longest=255)], "only those in one, or *")


def permissions(call: Call) -> ApiAnswer:
    """All of them."""
    user, vhost = asked(call, _USER, None), asked(call, _VHOST, None)
    return listed(
        call,
        permissions_in(call.broker),
        lambda each: Permission(each[0], each[1], *each[2]),
        lambda each: (each[1], each[0]),
        lambda each: user in (None, each[0]) and (vhost is None or each[1] in (vhost, EVERY_VHOST)),
    )


def put_permission(call: Call) -> None:
    """Grant some."""
    wanted = body_of(call, Patterns)
    patterns = [wanted.configure, wanted.write, wanted.read]
    call.created(permit(call.broker, _named(call), _place(call), patterns))


def delete_permission(call: Call) -> None:
    """Take them back."""
    granted = call.broker.authentication.granted
    name = _named(call)
    grants = granted.copy(USER, name)
    if grants.permissions.pop(_place(call), None) is None:
        raise NotFound("it has none there")
    granted.set(USER, name, grants)
    call.gone()


def _place(call: Call) -> str:
    """The virtual host, or all. Raises NotFound."""
    return EVERY_VHOST if call.names["vhost"] == EVERY_VHOST else call.vhost.name


def topic_permissions(call: Call) -> ApiAnswer:
    """All of them."""
    user, vhost = asked(call, _USER, None), asked(call, _VHOST, None)
    return listed(
        call,
        topic_permissions_in(call.broker),
        lambda each: TopicPermission(each[0], each[1], each[2], *each[3]),
        lambda each: (each[1], each[2], each[0]),
        lambda each: user in (None, each[0]) and (vhost is None or each[1] in (vhost, EVERY_VHOST)),
    )


def put_topic_permission(call: Call) -> None:
    """Grant some."""
    wanted = body_of(call, TopicPatterns)
    patterns = [wanted.write, wanted.read]
    exchange = call.names["exchange"]
    call.created(permit_topics(call.broker, _named(call), _place(call), exchange, patterns))


def delete_topic_permission(call: Call) -> None:
    """Take them back."""
    granted = call.broker.authentication.granted
    name = _named(call)
    grants = granted.copy(USER, name)
    if grants.topics.pop((_place(call), call.names["exchange"]), None) is None:
        raise NotFound("it has none there")
    granted.set(USER, name, grants)
    call.gone()


# Roles


def _role(item: tuple[str, Grants]) -> Role:
    name, grants = item
    topics: dict[str, dict[str, TopicPatterns]] = {}
    for (vhost, exchange), patterns in sorted(grants.topics.items()):
        topics.setdefault(vhost, {})[exchange] = TopicPatterns(*patterns)
    return Role(
        name,
        {vhost: Patterns(*each) for vhost, each in sorted(grants.permissions.items())},
        topics,
        [line.text for line in grants.acl],
    )


def _roles(call: Call) -> Iterator[tuple[str, Grants]]:
    yield from call.broker.authentication.granted.all(ROLE)


def roles(call: Call) -> ApiAnswer:
    """All of them."""
    return listed(call, _roles(call), _role, lambda item: (item[0],))


def show_role(call: Call) -> ApiAnswer:
    """One."""
    wanted = call.names["role"]
    for item in _roles(call):
        if item[0] == wanted:
            return answer(_role(item))
    raise NotFound(f"no role '{wanted}'")


def _has_role(call: Call) -> bool:
    return any(name == call.names["role"] for name, *_ in _roles(call))


def put_role(call: Call) -> None:
    """Have one with these permissions and no others."""
    wanted = body_of(call, RoleSetting)
    name = call.names["role"]
    is_new = not _has_role(call)
    topics: dict[str, Any] = {
        vhost: {
            exchange: {"write": each.write, "read": each.read}
            for exchange, each in exchanges.items()
        }
        for vhost, exchanges in wanted.topic_permissions.items()
    }
    patterns = {
        vhost: {"configure": each.configure, "write": each.write, "read": each.read}
        for vhost, each in wanted.permissions.items()
    }
    grants = grants_of(patterns, topics, wanted.acl, [])
    call.broker.authentication.granted.set(ROLE, name, grants)
    call.created(is_new)


def delete_role(call: Call) -> None:
    """Forget one: who has it has nothing by it."""
    call.broker.authentication.granted.delete(ROLE, call.names["role"])
    call.gone()


def put_member(call: Call) -> None:
    """Give a user one."""
    _assign(call, True)


def delete_member(call: Call) -> None:
    """Take one from a user."""
    _assign(call, False)


def _assign(call: Call, is_given: bool) -> None:
    granted = call.broker.authentication.granted
    name, role = _named(call), call.names["role"]
    grants = granted.copy(USER, name)
    is_there = role in grants.roles
    if not is_given and not is_there:
        raise NotFound(f"user '{name}' has no role '{role}'")
    if is_given and not is_there:
        grants.roles.append(role)
    elif not is_given:
        grants.roles.remove(role)
    granted.set(USER, name, grants)
    if is_given:
        call.created(not is_there)
    else:
        call.gone()


_ONE: Final = "users/{user}"
_LIMITS: Final = "users/{user}/limits"
_KEYS: Final = "users/{user}/keys"
_IN: Final = "users/{user}/permissions"
_TOPICS: Final = "users/{user}/topic-permissions"
_ROLE: Final = "roles/{role}"
_MEMBER: Final = "roles/{role}/users/{user}"
_ADMIN: Final = {"tags": ADMINISTRATORS, "vhost": UNCHECKED}
_PUT: Final = {"statuses": (201, 204), **_ADMIN}
_DELETE: Final = {"statuses": (204,), **_ADMIN}
_LIST: Final = {"is_list": True, **_ADMIN}
# Of all users with a tag: the handlers look whose keys they are.
_OWN: Final = {"vhost": UNCHECKED}

ENDPOINTS: Final = (
    operation("GET", "users", list_all, "Users", result=User, **_LIST),
    operation("GET", _ONE, show, "A user", result=User, **_ADMIN),
    operation(
        "PUT",
        _ONE,
        put,
        "Make or change a user",
        body=UserSetting,
        headers=CONDITIONS,
        **_PUT,
    ),
    operation("DELETE", _ONE, delete, "Delete a user", **_DELETE),
    operation("GET", _LIMITS, limits, "Limits of a user", result=OwnLimits, **_ADMIN),
    operation(
        "PUT",
        _LIMITS,
        put_limits,
        "Give a user these limits",
        body=LimitsSetting,
        **_DELETE,
    ),
    operation("GET", "keys", all_keys, "Keys", result=Key, is_list=True, **_OWN),
    operation("DELETE", "keys/{key}", delete_key, "Take a key back", statuses=(204,), **_OWN),
    operation("GET", _KEYS, keys, "Keys of a user", result=Key, is_list=True, **_OWN),
    operation(
        "POST",
        _KEYS,
        add_key,
        "Make a key",
        body=KeyRequest,
        result=NewKey,
        statuses=(201,),
        **_OWN,
    ),
    operation(
        "GET",
        "permissions",
        permissions,
        "Permissions",
        result=Permission,
        query=(_USER, _VHOST),
        **_LIST,
    ),
    operation("PUT", _IN + "/{vhost}", put_permission, "Grant permissions", body=Patterns, **_PUT),
    operation("DELETE", _IN + "/{vhost}", delete_permission, "Take them back", **_DELETE),
    operation(
        "GET",
        "topic-permissions",
        topic_permissions,
        "Topic permissions",
        result=TopicPermission,
        query=(_USER, _VHOST),
        **_LIST,
    ),
    operation(
        "PUT",
        _TOPICS + "/{vhost}/{exchange}",
        put_topic_permission,
        "Grant topic permissions",
        body=TopicPatterns,
        **_PUT,
    ),
    operation(
        "DELETE",
        _TOPICS + "/{vhost}/{exchange}",
        delete_topic_permission,
        "Take them back",
        **_DELETE,
    ),
    operation("GET", "roles", roles, "Roles", result=Role, **_LIST),
    operation("GET", _ROLE, show_role, "A role", result=Role, **_ADMIN),
    operation(
        "PUT",
        _ROLE,
        put_role,
        "Make or change a role",
        body=RoleSetting,
        headers=CONDITIONS,
        is_there=_has_role,
        **_PUT,
    ),
    operation("DELETE", _ROLE, delete_role, "Delete a role", **_DELETE),
    operation("PUT", _MEMBER, put_member, "Give a user a role", **_PUT),
    operation("DELETE", _MEMBER, delete_member, "Take a role from a user", **_DELETE),
)

"""The requests about users and their keys as values; see ``operations``."""

from __future__ import annotations

from collections.abc import Sequence

from trivium_native.client.operations import Operation, done, request
from trivium_native.client.values import ApiKeyInfo, UserInfo
from trivium_native.wire import frames


def renew(secret: str | bytes) -> Operation[None]:
    """Go on with a new token or API key of the same user, before that one expires by which the
    client came in.

    Where nothing expires nothing is checked. Raises AuthenticationFailed, and the connection ends.
    """
    operation = request(frames.AUTH, done, password=_as_bytes(secret))
    operation.secret = _as_bytes(secret)
    return operation


def add_user(name: str, password: str | bytes, tags: Sequence[str] = ()) -> Operation[None]:
    """A new user. Only administrators may; raises AccessRefused, PreconditionFailed."""
    return request(
        frames.MANAGE_USERS,
        done,
        action="add",
        name=name,
        password=_as_bytes(password),
        tags=list(tags),
    )


def set_password(name: str, password: str | bytes) -> Operation[None]:
    """Give a user another password; clients that came with the old one are disconnected."""
    return request(
        frames.MANAGE_USERS, done, action="passwd", name=name, password=_as_bytes(password)
    )


def set_user_tags(name: str, tags: Sequence[str]) -> Operation[None]:
    """Give a user other tags, also for clients that are connected."""
    return request(frames.MANAGE_USERS, done, action="tags", name=name, tags=list(tags))


def set_user_vhost(name: str, vhost: str) -> Operation[None]:
    """Say where a user's MQTT clients go that name no virtual host. Raises NotFound."""
    return request(frames.MANAGE_USERS, done, action="vhost", name=name, vhost=vhost)


def delete_user(name: str) -> Operation[None]:
    """Remove a user and its keys; its clients are disconnected."""
    return request(frames.MANAGE_USERS, done, action="delete", name=name)


def users() -> Operation[list[UserInfo]]:
    """All users of the broker, by name."""
    return request(
        frames.MANAGE_USERS,
        lambda reply: [UserInfo(**row) for row in reply["users"]],
        action="list",
    )


def add_api_key(
    name: str, scopes: Sequence[str] | None = None, expires_ms: int = 0
) -> Operation[ApiKeyInfo]:
    """A new key of a user; ``key`` of what it gives is shown this once.

    ``scopes`` say which of the user's tags it gives, and to what it narrows its permissions
    (``read:VHOST/NAME``, docs/security.md); None gives all. ``expires_ms`` is a time in
    milliseconds since the epoch, 0 for never.
    """
    fields = {} if scopes is None else {"scopes": list(scopes)}
    return request(
        frames.MANAGE_USERS,
        lambda reply: ApiKeyInfo(**reply),
        action="add-key",
        name=name,
        expires_ms=expires_ms,
        **fields,
    )


def delete_api_key(number: str) -> Operation[None]:
    """Take a key back, by its id; clients that came with it are disconnected."""
    return request(frames.MANAGE_USERS, done, action="delete-key", id=number)


def api_keys(name: str = "") -> Operation[list[ApiKeyInfo]]:
    """The keys of a user, or of all, without what is secret."""
    return request(
        frames.MANAGE_USERS,
        lambda reply: [ApiKeyInfo(**row) for row in reply["keys"]],
        action="list-keys",
        name=name,
    )


def _as_bytes(password: str | bytes) -> bytes:
    return password.encode() if isinstance(password, str) else password

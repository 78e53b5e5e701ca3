"""Requests about users and their keys, which administrators make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium import errors as core
from trivium.runtime.user_deletion import delete_user
from trivium.security.api_keys import ApiKey
from trivium.security.identity import ADMINISTRATOR
from trivium.security.scopes import MAX_SCOPES
from trivium.security.scram import ScramKeys
from trivium.security.stored import MAX_PASSWORD_BYTES
from trivium.security.users import MAX_TAGS
from trivium_native.server.handshake import BEHIND_REQUEST, of_topology
from trivium_native.server.lists import bounded, reply_rows
from trivium_native.wire.fields import Fields

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

ACTIONS: Final = (
    *("add", "passwd", "tags", "vhost", "delete", "list"),
    *("add-key", "delete-key", "list-keys"),
)
_MAX_TIME_MS: Final = (1 << 53) - 1


#: The tags of users who may make them.
_MAY: Final = frozenset((ADMINISTRATOR,))


class UserRequests:
    """Carries out the requests about users of one connection."""

    def __init__(self, connection: NativeConnection) -> None:
        self._connection = connection
        self._users = connection.broker.users
        self._keys = connection.broker.authentication.api_keys

    def handle(self, correlation: int, fields: Fields) -> None:
        """Carry out one request and answer it. Raises the errors that refuse the request."""
        connection = self._connection
        connection.broker.permissions.require_tag(connection.identity, _MAY, "users")
        action = fields.choice("action", ACTIONS)
        if action in ("add", "passwd"):
            self._hash(action == "add", correlation, fields)
        elif action == "tags":
            name = fields.text("name")
            tags = fields.texts("tags", MAX_TAGS) or []
            fields.finish()
            self._users.set_tags(name, tags)
            self._connection.reply_when_durable(correlation, {})
        elif action == "delete":
            self._delete(correlation, fields)
        elif action == "vhost":
            name = fields.text("name")
            vhost = self._connection.broker.vhost(fields.text("vhost"))
            fields.finish()
            self._connection.broker.authentication.set_virtual_host(name, vhost.name)
            self._connection.reply_when_durable(correlation, {})
        elif action == "list":
            fields.finish()
            users: list[dict[str, object]] = [
                {
                    "name": user.name,
                    "tags": sorted(user.tags),
                    "configured": self._users.is_configured(user.name),
                    "scram": user.scram is not None,
                    "vhost": self._users.virtual_host_of(user.name),
                }
                for user in sorted(bounded(self._users.all()), key=lambda user: user.name)
            ]
            reply_rows(connection, correlation, "users", users)
        else:
            self._manage_keys(action, correlation, fields)

    def _delete(self, correlation: int, fields: Fields) -> None:
        """Answer once nothing is left of the user."""
        name = fields.text("name")
        fields.finish()
        connection = self._connection

        def done() -> None:
            connection.continue_input(BEHIND_REQUEST)
            if not connection.is_closed:
                connection.reply_when_durable(correlation, {})

        delete_user(connection.broker, name, done)
        connection.hold_input(BEHIND_REQUEST)

    def _hash(self, is_new: bool, correlation: int, fields: Fields) -> None:
        """Add a user, or change its password: a thread hashes it first."""
        name = fields.text("name")
        password = fields.data("password", None, MAX_PASSWORD_BYTES)
        tags = fields.texts("tags", MAX_TAGS) or [] if is_new else []
        fields.finish()
        self._users.check_password(password)
        if is_new:
            self._users.check_new(name)
        else:
            self._users.changeable(name)
        hashed: list[tuple[str, ScramKeys | None]] = []

        def change() -> None:
            stored, scram = hashed[0]
            if is_new:
                self._users.add(name, stored, tags, scram)
            else:
                self._users.set_password(name, stored, scram)

        def work() -> bool:
            hashed.append(self._users.hash(password))
            return True

        connection = self._connection
        connection.hold_input(BEHIND_REQUEST)
        connection.broker.driver.run_blocking(
            work, lambda is_done: self._hashed(is_done, change, correlation)
        )

    def _hashed(self, is_done: bool, change: Callable[[], None], correlation: int) -> None:
        connection = self._connection
        if connection.is_closed:
            # Nobody would learn that it was done.
            return
        try:
            if not is_done:
                raise core.PreconditionFailed("the password cannot be hashed")
            change()
        except core.TopologyError as error:
            connection.send_error(correlation, of_topology(error))
        else:
            connection.reply_when_durable(correlation, {})
        connection.continue_input(BEHIND_REQUEST)

    def _manage_keys(self, action: str, correlation: int, fields: Fields) -> None:
        if action == "add-key":
            user = fields.text("name")
            scopes = fields.texts("scopes", MAX_SCOPES)
            expires_ms = fields.integer("expires_ms", 0, _MAX_TIME_MS, 0)
            fields.finish()
            key, text = self._keys.add(user, scopes, expires_ms)
            self._connection.reply_when_durable(correlation, {**_described(key), "key": text})
        elif action == "delete-key":
            number = fields.text("id")
            fields.finish()
            self._keys.delete(number)
            self._connection.reply_when_durable(correlation, {})
        else:
            user = fields.text("name", "")
            fields.finish()
            rows = [_described(key) for key in bounded(self._keys.all(user))]
            reply_rows(self._connection, correlation, "keys", rows)


def _described(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "user": key.user,
        "scopes": None if key.scopes is None else sorted(key.scopes),
        "expires_ms": key.expires_ms,
    }

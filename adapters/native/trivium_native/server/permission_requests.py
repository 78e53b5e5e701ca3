"""Requests about permissions, roles and virtual hosts, which administrators make."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trivium.common.quotas import VHOST, check_limits
from trivium.security.granted import ROLE, USER
from trivium.security.identity import ADMINISTRATOR
from trivium.security.permissions import MAX_LINES, grants_of
from trivium.vhost.settings import MAX_TAGS, VirtualHostSettings
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.handshake import BEHIND_REQUEST
from trivium_native.server.lists import bounded, reply_rows
from trivium_native.wire.errors import PreconditionFailed
from trivium_native.wire.fields import Fields

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

ACTIONS: Final = (
    *("set", "clear", "list", "set-topic", "clear-topic", "list-topics"),
    *("set-role", "delete-role", "list-roles", "grant", "revoke"),
    *("create-vhost", "delete-vhost", "describe-vhost", "list-vhosts", "set-vhost-limits"),
    *("set-limits", "list-limits"),
)
#: Longest pattern in bytes; the core has a limit in characters.
_MAX_PATTERN_BYTES: Final = 4096


#: The tags of users who may make them.
_MAY: Final = frozenset((ADMINISTRATOR,))


class PermissionRequests:
    """Carries out the requests about permissions of one connection."""

    def __init__(self, connection: NativeConnection) -> None:
        self._connection = connection
        self._granted = connection.broker.authentication.granted

    def handle(self, correlation: int, fields: Fields) -> None:
        """Carry out one request and answer it. Raises the errors that refuse the request."""
        connection = self._connection
        connection.broker.permissions.require_tag(connection.identity, _MAY, "permissions")
        action = fields.choice("action", ACTIONS)
        if action.startswith("list"):
            fields.finish()
            reply_rows(connection, correlation, "rows", self._rows(action))
            return
        if action == "describe-vhost":
            vhost = self._connection.broker.vhost(fields.text("name"))
            fields.finish()
            self._connection.reply(correlation, {"rows": [self._described(vhost)]})
            return
        if action == "delete-vhost":
            self._delete_vhost(correlation, fields)
            return
        if action == "create-vhost":
            self._create_vhost(fields)
        elif action.endswith("limits"):
            self._set_limits(action == "set-vhost-limits", fields)
        elif action in ("set-role", "delete-role"):
            self._change_role(action == "set-role", fields)
        elif action in ("grant", "revoke"):
            self._assign(action == "grant", fields)
        else:
            self._change(action, fields)
        self._connection.reply_when_durable(correlation, {})

    def _create_vhost(self, fields: Fields) -> None:
        """Make a virtual host, or give one that exists what is named."""
        name = fields.text("name")
        description = fields.optional_text("description")
        tags = fields.texts("tags", MAX_TAGS)
        kind = fields.optional_text("default_queue_type")
        fields.finish()
        virtual_hosts = self._connection.broker.virtual_hosts
        known = virtual_hosts.by_name.get(name)
        settings = VirtualHostSettings() if known is None else known.settings
        if description is not None:
            settings = replace(settings, description=description)
        if tags is not None:
            settings = replace(settings, tags=tuple(tags))
        if kind is not None:
            settings = replace(settings, default_queue_type=kind)
        virtual_hosts.declare(name, settings)

    def _set_limits(self, is_vhost: bool, fields: Fields) -> None:
        """Give a virtual host, or a user, these quotas in place of those it has of its own."""
        name = fields.text("name")
        limits = fields.arguments("limits")
        fields.finish()
        broker = self._connection.broker
        if is_vhost:
            vhost = broker.vhost(name)
            found = check_limits(VHOST, limits)
            broker.virtual_hosts.declare(name, replace(vhost.settings, limits=found))
        else:
            broker.logins.limits.set(name, limits)

    def _delete_vhost(self, correlation: int, fields: Fields) -> None:
        """Answer once nothing is left of it."""
        name = fields.text("name")
        fields.finish()
        connection = self._connection
        if name == connection.vhost.name:
            raise PreconditionFailed("this connection is in that virtual host")

        def done() -> None:
            connection.continue_input(BEHIND_REQUEST)
            if not connection.is_closed:
                connection.reply_when_durable(correlation, {})

        connection.broker.virtual_hosts.delete(name, done)
        connection.hold_input(BEHIND_REQUEST)

    def _described(self, vhost: VirtualHost) -> dict[str, object]:
        connections = self._connection.broker.connections
        return {
            **_settings(vhost),
            "exchanges": len(vhost.exchanges),
            "queues": len(vhost.queues),
            "streams": len(vhost.streams),
            "suspended": len(vhost.suspensions),
            "connections": sum(one.access.vhost == vhost.name for one in connections),
        }

    def _change(self, action: str, fields: Fields) -> None:
        user = fields.text("user")
        vhost = fields.text("vhost", "/")
        grants = self._granted.copy(USER, user)
        if action.endswith("topic"):
            exchange = fields.text("exchange")
            if action == "set-topic":
                write, read = self._patterns(fields, "write", "read")
                fields.finish()
                grants.permit_topics(vhost, exchange, write, read)
            else:
                fields.finish()
                grants.topics.pop((vhost, exchange), None)
        elif action == "set":
            configure, write, read = self._patterns(fields, "configure", "write", "read")
            fields.finish()
            grants.permit(vhost, configure, write, read)
        else:
            fields.finish()
            grants.permissions.pop(vhost, None)
        self._granted.set(USER, user, grants)

    def _patterns(self, fields: Fields, *kinds: str) -> list[str]:
        return [fields.text(kind, max_bytes=_MAX_PATTERN_BYTES) for kind in kinds]

    def _change_role(self, is_set: bool, fields: Fields) -> None:
        name = fields.text("name")
        if not is_set:
            fields.finish()
            self._granted.delete(ROLE, name)
            return
        permissions = fields.arguments("permissions")
        topics = fields.arguments("topic_permissions")
        acl = fields.texts("acl", MAX_LINES) or []
        fields.finish()
        self._granted.set(ROLE, name, grants_of(permissions, topics, acl, []))

    def _assign(self, is_granted: bool, fields: Fields) -> None:
        role = fields.text("role")
        user = fields.text("user")
        fields.finish()
        grants = self._granted.copy(USER, user)
        grants.roles = [name for name in grants.roles if name != role]
        if is_granted:
            grants.roles.append(role)
        self._granted.set(USER, user, grants)

    def _rows(self, action: str) -> list[dict[str, object]]:
        if action == "list-vhosts":
            vhosts = bounded(self._connection.broker.vhosts.items())
            return [_settings(one) for _, one in sorted(vhosts)]
        if action == "list-limits":
            users = sorted(bounded(self._connection.broker.logins.limits.all()))
            return [{"name": name, "limits": limits} for name, limits in users]
        rows: list[dict[str, object]] = []
        every = bounded(self._granted.all(ROLE if action == "list-roles" else USER))
        every.sort(key=lambda each: each[0])
        if action == "list-topics":
            return bounded(
                {"user": name, "vhost": vhost, "exchange": exchange, "write": write, "read": read}
                for name, grants in every
                for (vhost, exchange), (write, read) in sorted(grants.topics.items())
            )
        for name, grants in every:
            permissions = {
                vhost: {"configure": configure, "write": write, "read": read}
                for vhost, (configure, write, read) in sorted(grants.permissions.items())
            }
            acl = [line.text for line in grants.acl]
            rows.append({"name": name, "permissions": permissions, "acl": acl})
            if action == "list":
                rows[-1]["roles"] = grants.roles
        return rows


def _settings(vhost: VirtualHost) -> dict[str, object]:
    return {"name": vhost.name, **vhost.settings.described()}

"""Requests about policies: set, delete, list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.security.identity import MANAGEMENT, MONITORING, SETS_POLICIES
from trivium.vhost.policies import ALL, APPLIES_TO, Policy
from trivium.vhost.policy_walk import PolicyWaiter
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.handshake import BEHIND_REQUEST
from trivium_native.wire import frames
from trivium_native.wire.errors import InvalidArgument
from trivium_native.wire.fields import Fields

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: The tags of users who may change policies, and of those who may see them.
_MAY_READ: Final = SETS_POLICIES | {MONITORING, MANAGEMENT}

_MAX_PRIORITY: Final = (1 << 31) - 1
#: Longest pattern in bytes; the core has a limit in characters.
_MAX_PATTERN_BYTES: Final = 4096


class PolicyRequests:
    """Carries out the requests about policies of one connection."""

    def __init__(self, connection: NativeConnection, vhost: VirtualHost) -> None:
        self._connection = connection
        self._vhost = vhost

    def handle(self, kind: int, correlation: int, fields: Fields) -> None:
        """Carry out one request and answer it."""
        tags = _MAY_READ if kind == frames.LIST_POLICIES else SETS_POLICIES
        connection = self._connection
        connection.broker.permissions.require_tag(connection.identity, tags, "policies")
        if kind == frames.SET_POLICY:
            self._set(correlation, fields)
        elif kind == frames.DELETE_POLICY:
            name = fields.text("name")
            fields.finish()
            self._vhost.delete_policy(name)
            self._answer(correlation)
        else:
            fields.finish()
            self._connection.reply(
                correlation, {"policies": [_described(p) for p in self._vhost.policies.all()]}
            )

    def _set(self, correlation: int, fields: Fields) -> None:
        name = fields.text("name")
        pattern = fields.text("pattern", max_bytes=_MAX_PATTERN_BYTES)
        definition = fields.arguments("definition")
        apply_to = fields.text("apply_to", ALL)
        priority = fields.integer("priority", -_MAX_PRIORITY, _MAX_PRIORITY, 0)
        fields.finish()
        if apply_to not in APPLIES_TO:
            raise InvalidArgument(f"'apply_to' must be one of {', '.join(APPLIES_TO)}")
        connection = self._connection
        declarers = connection.broker.authentication.declarers
        declarer = declarers.of_policy(connection.identity, self._vhost.name)
        self._vhost.set_policy(Policy(name, pattern, definition, apply_to, priority, declarer))
        self._answer(correlation)

    def _answer(self, correlation: int) -> None:
        """Answer once the change is durable and in force everywhere."""
        walk = self._vhost.policy_walk
        if walk.is_done:
            self._connection.reply_when_durable(correlation, {})
        else:
            self._connection.hold_input(BEHIND_REQUEST)
            walk.wait(_Answer(self._connection, correlation))


class _Answer(PolicyWaiter):
    def __init__(self, connection: NativeConnection, correlation: int) -> None:
        self._connection = connection
        self._correlation = correlation

    def in_force(self) -> None:
        self._connection.continue_input(BEHIND_REQUEST)
        if not self._connection.is_closed:
            self._connection.reply_when_durable(self._correlation, {})


def _described(policy: Policy) -> dict[str, object]:
    found: dict[str, object] = {
        "name": policy.name,
        "pattern": policy.pattern,
        "definition": policy.definition,
        "apply_to": policy.apply_to,
        "priority": policy.priority,
    }
    if not policy.passes_on:
        found["suspended"] = True
    return found

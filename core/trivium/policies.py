"""Policies: settings for all objects whose name matches a pattern, put in force at run time.

Of the policies that match an object the one with the highest priority holds, alone, as in RabbitMQ;
of several with the same priority the first by name. Policies are rows of a table, so they are
durable and come back with the broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from trivium.errors import NotFound, PreconditionFailed
from trivium.message import HeaderValue
from trivium.queue_settings import POLICY_KEYS, check_value
from trivium.storage.base import Table
from trivium.stream_settings import POLICY_KEYS as STREAM_KEYS
from trivium.stream_settings import check_stream_value

QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
STREAMS: Final = "streams"
ALL: Final = "all"

_EXCHANGE_KEYS: Final = frozenset({"alternate-exchange"})

#: A pattern is an expression of the administrator's; longer ones are mistakes.
MAX_PATTERN: Final = 1024


class Policy:
    """One policy. ``definition`` maps keys such as ``max-length`` to values."""

    def __init__(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, HeaderValue],
        apply_to: str = ALL,
        priority: int = 0,
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.definition = dict(definition)
        self.apply_to = apply_to
        self.priority = priority
        if apply_to not in (QUEUES, EXCHANGES, STREAMS, ALL):
            raise PreconditionFailed(f"policy '{name}' cannot apply to '{apply_to}'")
        if not definition:
            raise PreconditionFailed(f"policy '{name}' defines nothing")
        try:
            if len(pattern) > MAX_PATTERN:
                raise re.error("it is too long")
            self.expression = re.compile(pattern)
        except re.error as error:
            raise PreconditionFailed(f"policy '{name}' has a wrong pattern: {error}") from None
        for key, value in definition.items():
            what = f"'{key}' of policy '{name}'"
            if key in _EXCHANGE_KEYS:
                if not isinstance(value, str):
                    raise PreconditionFailed(f"invalid {what}: text is needed")
            elif key in POLICY_KEYS:
                check_value(key, value, what)
            elif key in STREAM_KEYS:
                check_stream_value(key, value, what)
            else:
                raise PreconditionFailed(f"invalid {what}: it is not supported")


class Policies:
    """The policies of one virtual host. ``table`` may already hold rows: they are loaded."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._policies: dict[str, Policy] = {}
        for key, row in table.items():
            pattern, definition, apply_to, priority = _unpack(row)
            name = key.decode()
            self._policies[name] = Policy(name, pattern, definition, apply_to, priority)

    def __len__(self) -> int:
        return len(self._policies)

    def all(self) -> list[Policy]:
        """All policies, by name."""
        return [self._policies[name] for name in sorted(self._policies)]

    def set(self, policy: Policy) -> None:
        """Add a policy, or replace the one of its name."""
        self._policies[policy.name] = policy
        row: bytes = msgpack.packb(
            [policy.pattern, policy.definition, policy.apply_to, policy.priority]
        )
        self._table.put(policy.name.encode(), row)

    def delete(self, name: str) -> None:
        """Remove the policy called ``name``. Raises NotFound."""
        if self._policies.pop(name, None) is None:
            raise NotFound(f"no policy '{name}'")
        self._table.delete(name.encode())

    def match(self, name: str, kind: str) -> Policy | None:
        """The policy in force for the object of that kind and name."""
        found: Policy | None = None
        for policy in self.all():
            if (
                policy.apply_to in (kind, ALL)
                and (found is None or policy.priority > found.priority)
                and policy.expression.search(name) is not None
            ):
                found = policy
        return found

    def effective(self, name: str, kind: str) -> dict[str, HeaderValue]:
        """What the policy in force defines; empty when there is none."""
        found = self.match(name, kind)
        return {} if found is None else found.definition


def _unpack(row: bytes) -> Any:
    return msgpack.unpackb(row)

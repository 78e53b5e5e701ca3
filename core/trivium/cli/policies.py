"""`trivium policy`: set, delete and list policies of a running broker."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from trivium.cli.clients import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDefinition:
    """One policy; see `trivium.vhost.policies`."""

    name: str
    pattern: str
    definition: Mapping[str, object]
    apply_to: str
    priority: int
    #: whether the exchanges that it names are not in force
    suspended: bool = False


@runtime_checkable
class Administrator(Protocol):
    """A client whose protocol has policies. Each method may raise ClientError."""

    async def set_policy(self, policy: PolicyDefinition) -> None:
        """Add a policy, or replace the one of its name."""

    async def delete_policy(self, name: str) -> None:
        """Remove a policy."""

    async def policies(self) -> list[PolicyDefinition]:
        """All policies, by name."""


async def run(options: argparse.Namespace, client: object) -> None:
    """Do what the options say; policies are listed on standard output, a JSON object per line."""
    if not isinstance(client, Administrator):
        raise UsageError("policies are managed by trivium:// URLs")
    if options.action == "set":
        await client.set_policy(
            PolicyDefinition(
                name=options.name,
                pattern=options.pattern,
                definition=_read_definition(options.definition),
                apply_to=options.apply_to,
                priority=options.priority,
            )
        )
    elif options.action == "delete":
        await client.delete_policy(options.name)
    else:
        for policy in await client.policies():
            print(json.dumps(asdict(policy)))


def _read_definition(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the definition is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("the definition is not a JSON object")
    return found

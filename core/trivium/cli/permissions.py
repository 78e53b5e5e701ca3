"""`trivium permission`, `topic-permission`, `role` and `vhost`: what users of a broker may do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from trivium.cli.server_options import add_server

#: The action of the broker for each command's, and the options that it needs.
ACTIONS: Final[dict[tuple[str, str], tuple[str, tuple[str, ...]]]] = {
    ("permission", "set"): ("set", ("user", "vhost", "configure", "write", "read")),
    ("permission", "clear"): ("clear", ("user", "vhost")),
    ("permission", "list"): ("list", ()),
    ("topic-permission", "set"): ("set-topic", ("user", "vhost", "exchange", "write", "read")),
    ("topic-permission", "clear"): ("clear-topic", ("user", "vhost", "exchange")),
    ("topic-permission", "list"): ("list-topics", ()),
    ("role", "set"): ("set-role", ("name",)),
    ("role", "delete"): ("delete-role", ("name",)),
    ("role", "list"): ("list-roles", ()),
    ("role", "grant"): ("grant", ("role", "user")),
    ("role", "revoke"): ("revoke", ("role", "user")),
    ("vhost", "create"): ("create-vhost", ("name",)),
    ("vhost", "delete"): ("delete-vhost", ("name",)),
    ("vhost", "describe"): ("describe-vhost", ("name",)),
    ("vhost", "limits"): ("set-vhost-limits", ("name",)),
    ("vhost", "list"): ("list-vhosts", ()),
    ("user", "limits"): ("set-limits", ("name",)),
}


@runtime_checkable
class PermissionAdministrator(Protocol):
    """A client whose protocol has permissions."""

    async def manage_permissions(
        self, action: str, fields: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Carry out an action; what it lists. May raise ClientError."""


def add_arguments(command: str, parser: argparse.ArgumentParser) -> None:
    """The arguments of one of the commands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for (name, action), (_, needed) in ACTIONS.items():
        if name != command:
            continue
        made = actions.add_parser(action)
        add_server(made)
        for option in needed:
            if option == "vhost":
                made.add_argument("--vhost", default="/", help="default: /; * for every one")
            else:
                made.add_argument(option, metavar=option.upper())
        if (name, action) == ("role", "set"):
            made.add_argument("definition", metavar="DEFINITION", help="JSON: the keys of [roles]")
        if action == "limits":
            add_limits(made)
        if (name, action) == ("vhost", "create"):
            made.add_argument("--description", metavar="TEXT")
            made.add_argument("--tag", action="append", dest="tags", metavar="TAG")
            made.add_argument(
                "--default-queue-type", metavar="TYPE", help="classic, quorum or stream"
            )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The argument of a command that sets limits, or shows them."""
    parser.add_argument(
        "definition",
        metavar="LIMITS",
        nargs="?",
        help='JSON, as in {"max-connections": 10}: these and no others; without it they are shown',
    )


async def run(options: argparse.Namespace, client: object) -> None:
    """Do what the options say; what is listed goes to standard output, a JSON object per line."""
    # The command's arguments are read without what its client needs.
    from trivium.cli.clients import UsageError

    if not isinstance(client, PermissionAdministrator):
        raise UsageError("permissions are managed by trivium:// URLs")
    action, needed = ACTIONS[(options.command, options.action)]
    fields: dict[str, Any] = {name: getattr(options, name) for name in needed}
    if action == "set-role":
        fields = {**_definition(options), **fields}
    elif options.action == "limits" and options.definition is None:
        await _show_limits(action == "set-vhost-limits", options.name, client)
        return
    elif options.action == "limits":
        fields["limits"] = _definition(options)
    elif action == "create-vhost":
        for name in ("description", "tags", "default_queue_type"):
            value = getattr(options, name)
            if value is not None:
                fields[name] = value
    for row in await client.manage_permissions(action, fields):
        print(json.dumps(row))


def _definition(options: argparse.Namespace) -> dict[str, Any]:
    """The JSON object that was given. Raises UsageError."""
    from trivium.cli.clients import UsageError

    try:
        definition = json.loads(options.definition)
    except ValueError as error:
        raise UsageError(f"the definition is not JSON: {error}") from None
    if not isinstance(definition, dict):
        raise UsageError("the definition is not a JSON object")
    return definition


async def _show_limits(is_vhost: bool, name: str, client: PermissionAdministrator) -> None:
    if is_vhost:
        rows = await client.manage_permissions("describe-vhost", {"name": name})
    else:
        rows = await client.manage_permissions("list-limits", {})
    limits: dict[str, Any] = next((row["limits"] for row in rows if row["name"] == name), {})
    print(json.dumps({"name": name, "limits": limits}))

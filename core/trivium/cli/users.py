"""`trivium user`: users of a running broker, and their API keys."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
import time
from typing import Protocol, runtime_checkable

from trivium.cli import permissions
from trivium.cli.clients import UsageError


@runtime_checkable
class UserAdministrator(Protocol):
    """A client whose protocol has users. Each method may raise ClientError."""

    async def add_user(self, name: str, password: bytes, tags: list[str]) -> None:
        """Add a user."""

    async def set_password(self, name: str, password: bytes) -> None:
        """Give a user another password."""

    async def set_user_tags(self, name: str, tags: list[str]) -> None:
        """Give a user other tags."""

    async def set_user_vhost(self, name: str, vhost: str) -> None:
        """Say where a user's clients go that name no virtual host."""

    async def delete_user(self, name: str) -> None:
        """Remove a user."""

    async def users(self) -> list[dict[str, object]]:
        """All users, by name."""

    async def add_api_key(
        self, name: str, scopes: list[str] | None, expires_ms: int
    ) -> dict[str, object]:
        """A new key of a user."""

    async def delete_api_key(self, number: str) -> None:
        """Take a key back."""

    async def api_keys(self, name: str) -> list[dict[str, object]]:
        """The keys of a user, or of all."""


def read_password(options: argparse.Namespace) -> bytes:
    """The password of the options, of the terminal, or of standard input. Raises UsageError."""
    text: str | None = options.password
    if text is None and sys.stdin.isatty():
        text = getpass.getpass("password: ")
        if text != getpass.getpass("again: "):
            raise UsageError("the two are not the same")
    elif text is None:
        text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise UsageError("the password must not be empty")
    return text.encode(errors="surrogateescape")


async def run(options: argparse.Namespace, client: object) -> None:
    """Do what the options say; what is listed goes to standard output, a JSON object per line."""
    if not isinstance(client, UserAdministrator):
        raise UsageError("users are managed by trivium:// URLs")
    action = options.action
    if action == "limits":
        await permissions.run(options, client)
    elif action == "add":
        await client.add_user(options.name, read_password(options), options.tag)
    elif action == "passwd":
        await client.set_password(options.name, read_password(options))
    elif action == "tags":
        await client.set_user_tags(options.name, options.tags)
    elif action == "vhost":
        await client.set_user_vhost(options.name, options.vhost)
    elif action == "delete":
        await client.delete_user(options.name)
    elif action == "list":
        _print(await client.users())
    elif action == "add-key":
        expires_ms = 0
        if options.days is not None:
            expires_ms = int((time.time() + options.days * 86_400) * 1000)
        scopes = None if options.scope is None else list(options.scope)
        _print([await client.add_api_key(options.name, scopes, expires_ms)])
    elif action == "delete-key":
        await client.delete_api_key(options.id)
    else:
        _print(await client.api_keys(options.name))


def _print(rows: list[dict[str, object]]) -> None:
    for row in rows:
        print(json.dumps(row))

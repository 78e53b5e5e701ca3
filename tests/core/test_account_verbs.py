"""`trivium user`, `permission`, `role`, `vhost` and `policy`, against a running broker."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import trivium_native
from tests.support.verbs import Commands, Running, on_terminal
from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium_native.client import Client
from trivium_native.errors import AuthenticationFailed, NativeError


def types(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have a text on standard input, which is no terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def address(broker: Running, user: str, password: str) -> str:
    return f"trivium://{user}:{password}@{broker.places['native']}"


async def until_ended(client: Client) -> None:
    """Ask again and again, until the broker ends the connection."""
    while True:
        await client.metadata([])


# Users


async def test_a_password_comes_from_standard_input_and_changes_hold_at_once(
    broker: Running, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    types(monkeypatch, "one\n")
    assert commands.done("user", "add", "ann", "--tag", "monitoring", "--tag", "x") == ""
    (found,) = commands.rows("user", "show", "ann")
    assert (found["tags"], found["is_configured"]) == (["monitoring", "x"], False)
    assert commands.names("user", "list") == ["ann", "guest"]
    commands.done("permission", "set", "ann", "", "", "")
    async with trivium_native.connect(address(broker, "ann", "one")) as client:
        types(monkeypatch, "two\n")
        assert commands.done("user", "passwd", "ann") == ""
        with pytest.raises(NativeError):
            await until_ended(client)
    async with trivium_native.connect(address(broker, "ann", "two")):
        pass
    commands.done("user", "tags", "ann", "a", "b")
    assert commands.rows("user", "show", "ann")[0]["tags"] == ["a", "b"]
    commands.done("user", "tags", "ann")
    assert commands.rows("user", "show", "ann")[0]["tags"] == []
    commands.done("user", "delete", "ann", "--yes")
    with pytest.raises(AuthenticationFailed):
        async with trivium_native.connect(address(broker, "ann", "two")):
            pass


def test_a_password_is_asked_for_twice_on_a_terminal(broker: Running, commands: Commands) -> None:
    arguments = ["user", "add", "tim", "--data", str(broker.data)]
    code, out = on_terminal(arguments, {"password: ": "one\n", "again: ": "two\n"})
    assert (code, out.splitlines()[-1]) == (EXIT_USAGE, "trivium user: the two are not the same")
    code, out = on_terminal(arguments, {"password: ": "secret\n", "again: ": "secret\n"})
    assert (code, "secret" in out) == (EXIT_OK, False)
    commands.done("user", "delete", "tim", "--yes")


def test_a_user_that_is_there_is_not_added_and_one_that_is_not_gets_no_password(
    commands: Commands,
) -> None:
    commands.done("user", "add", "eve", "--password", "one")
    code, _, err = commands.run("user", "add", "eve", "--password", "two")
    assert (code, err) == (EXIT_FAILED, "trivium user: user 'eve' exists already\n")
    for more in (["passwd", "--password", "x"], ["tags", "y"], ["vhost", "/"]):
        verb, *rest = more
        code, _, err = commands.run("user", verb, "nobody", *rest)
        assert (code, err) == (EXIT_FAILED, "trivium user: no user 'nobody'\n")
    commands.done("user", "delete", "eve", "--yes")


def test_limits_are_shown_where_none_are_given(commands: Commands) -> None:
    commands.done("vhost", "create", "small")
    commands.done("user", "add", "lim", "--password", "one")
    for noun, name in (("user", "lim"), ("vhost", "small")):
        commands.done(noun, "limits", name, "max-queues=5")
        assert commands.rows(noun, "limits", name) == [{"name": name, "limits": {"max-queues": 5}}]
        commands.done(noun, "limits", name, "{}")
        assert commands.rows(noun, "limits", name) == [{"name": name, "limits": {}}]
    commands.done("vhost", "delete", "small", "--yes")
    commands.done("user", "delete", "lim", "--yes")


def test_nothing_is_set_for_a_name_that_nobody_has(commands: Commands) -> None:
    for words in (
        ("permission", "set", "nobody", "", "", ""),
        ("topic-permission", "set", "nobody", "amq.topic", "", ""),
        ("role", "grant", "none", "nobody"),
        ("user", "limits", "nobody", '{"max-queues": 5}'),
    ):
        code, _, err = commands.run(*words)
        assert (code, err) == (EXIT_FAILED, f"trivium {words[0]}: no user 'nobody'\n")


async def test_keys_are_made_listed_and_taken_back(broker: Running, commands: Commands) -> None:
    commands.done("user", "add", "bob", "--password", "one")
    commands.done("permission", "set", "bob", "", "", "")
    before = time.time()
    for scope, wanted, reason in (
        ("", EXIT_USAGE, "--scope"),
        ("monitoring", EXIT_FAILED, "no tag 'monitoring'"),
        ("read:*/a read:*/b", EXIT_FAILED, "VHOST/NAME[/KEY]"),
    ):
        code, _, err = commands.run("user", "add-key", "bob", "--scope", scope)
        assert code == wanted
        assert reason in err
    commands.done("user", "tags", "bob", "monitoring")
    (made,) = commands.rows("user", "add-key", "bob", "--days", "1", "--scope", "monitoring")
    assert 0 <= made["expires_at"] / 1000 - before - 86_400 < 600
    async with trivium_native.connect(address(broker, "bob", made["key"])):
        pass
    del made["key"]
    assert commands.rows("user", "list-keys", "bob") == [made]
    assert commands.rows("user", "list-keys") == [made]
    commands.done("user", "delete-key", made["id"], "--yes")
    assert commands.rows("user", "list-keys") == []
    commands.done("user", "delete", "bob", "--yes")


# Permissions and roles


def test_permissions_are_set_listed_and_cleared(commands: Commands) -> None:
    commands.done("user", "add", "ann", "--password", "one")
    for vhost in ((), ("--vhost", "*")):
        commands.done("permission", "set", "ann", "^$", "^out", "^in", *vhost)
        place = vhost[-1] if vhost else "/"
        expected = {"vhost": place, "user": "ann", "configure": "^$", "write": "^out"}
        listed = commands.rows("permission", "list", "--name", "ann")
        assert listed == [{**expected, "read": "^in"}]
        commands.done("permission", "clear", "ann", *vhost, "--yes")
        assert commands.rows("permission", "list", "--name", "ann") == []
    commands.done("user", "delete", "ann", "--yes")


def test_topic_permissions_are_set_listed_and_cleared(commands: Commands) -> None:
    commands.done("user", "add", "ann", "--password", "one")
    commands.done("topic-permission", "set", "ann", "amq.topic", r"^{username}\.", ".*")
    (found,) = commands.rows("topic-permission", "list")
    assert (found["user"], found["exchange"]) == ("ann", "amq.topic")
    assert (found["write"], found["read"]) == (r"^{username}\.", ".*")
    commands.done("topic-permission", "clear", "ann", "amq.topic", "--yes")
    assert commands.rows("topic-permission", "list") == []
    commands.done("user", "delete", "ann", "--yes")


def test_roles_are_set_granted_revoked_and_deleted(commands: Commands) -> None:
    commands.done("user", "add", "rob", "--password", "one")
    commands.done("role", "set", "reader", '{"permissions": {"/": {"read": ".*"}}}')
    (found,) = commands.rows("role", "list")
    assert found["permissions"] == {"/": {"configure": "", "write": "", "read": ".*"}}
    commands.done("role", "grant", "reader", "rob")
    assert commands.rows("user", "show", "rob")[0]["roles"] == ["reader"]
    commands.done("role", "revoke", "reader", "rob", "--yes")
    assert commands.rows("user", "show", "rob")[0]["roles"] == []
    commands.done("role", "delete", "reader", "--yes")
    assert commands.rows("role", "list") == []
    commands.done("user", "delete", "rob", "--yes")


# Virtual hosts and policies


def test_virtual_hosts_are_made_shown_and_deleted(commands: Commands) -> None:
    made = ("--description", "of the farm", "--tag", "a", "--tag", "b")
    commands.done("vhost", "create", "farm", *made, "--default-queue-type", "stream")
    for verb in ("show", "describe"):
        (found,) = commands.rows("vhost", verb, "farm")
        assert (found["description"], found["tags"]) == ("of the farm", ["a", "b"])
        assert (found["default_queue_type"], found["connections"]) == ("stream", 0)
    commands.done("user", "add", "cat", "--password", "one")
    commands.done("user", "vhost", "cat", "farm")
    assert commands.rows("user", "show", "cat")[0]["virtual_host"] == "farm"
    commands.done("user", "delete", "cat", "--yes")
    assert commands.names("vhost", "list") == ["/", "farm"]
    commands.done("vhost", "delete", "farm", "--yes")
    code, _, err = commands.run("vhost", "show", "farm")
    assert (code, err) == (EXIT_FAILED, "trivium vhost: no virtual host 'farm'\n")


def test_policies_are_set_listed_and_deleted(commands: Commands) -> None:
    options = ("--apply-to", "queues", "--priority", "2")
    definition = ("max-length=5", '{"overflow": "drop-head"}')
    commands.done("policy", "set", "short", "^q", *definition, *options)
    expected = {"vhost": "/", "name": "short", "pattern": "^q", "apply_to": "queues"}
    expected_rest: dict[str, Any] = {"priority": 2, "definition": {"max-length": 5}}
    expected_rest["definition"] |= {"overflow": "drop-head"}
    (found,) = commands.rows("policy", "list")
    assert found == {**expected, **expected_rest, "suspended": False}
    assert commands.rows("policy", "show", "short") == [found]
    commands.done("policy", "delete", "short", "--yes")
    assert commands.rows("policy", "list") == []


# What is refused


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["user", "add", "x", "--password", ""], EXIT_USAGE, "must not be empty"),
        (["user", "delete", "nobody", "--yes"], EXIT_FAILED, "no user 'nobody'"),
        (["user", "passwd", "guest", "--password", "x"], EXIT_FAILED, "in the configuration"),
        (["user", "add-key", "guest", "--days", "0"], EXIT_USAGE, "is not above 0"),
        (["user", "delete-key", "none", "--yes"], EXIT_FAILED, "no key 'none'"),
        (["user", "limits", "x", "5"], EXIT_USAGE, "'5' is neither KEY=VALUE nor a JSON object"),
        (["user", "limits", "x", "{"], EXIT_USAGE, "'{' is not JSON"),
        (["permission", "set", "x", "(", "", ""], EXIT_FAILED, "missing )"),
        (["role", "set", "r", "5"], EXIT_FAILED, "the body is an object"),
        (["role", "set", "r", '{"odd": 1}'], EXIT_FAILED, "the body has an unknown field 'odd'"),
        (["policy", "set", "p", "q", "5"], EXIT_USAGE, "'5' is neither KEY=VALUE nor"),
        (["policy", "set", "p", "(", '{"max-length": 5}'], EXIT_FAILED, "missing )"),
        (["policy", "delete", "none", "--yes"], EXIT_FAILED, "no policy 'none'"),
        (["vhost", "delete", "/", "--yes"], EXIT_FAILED, "cannot be deleted"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    commands: Commands, arguments: list[str], code: int, text: str
) -> None:
    found, out, err = commands.run(*arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert text in err


def test_who_has_no_right_is_refused(broker: Running, commands: Commands, tmp_path: Path) -> None:
    commands.done("user", "add", "low", "--password", "one", "--tag", "management")
    place = ("--url", f"http://low:one@{broker.places['http']}")
    code, _, err = commands.run("user", "list", place=place)
    assert (code, err) == (EXIT_FAILED, "trivium user: Not administrator user\n")
    commands.done("user", "delete", "low", "--yes")

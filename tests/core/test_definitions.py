"""`trivium definitions` and `trivium import rabbitmq`, against running brokers."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.rest import authorization
from tests.support.rest import serve as serve_here
from tests.support.verbs import Commands, running
from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, definitions
from trivium.common.values import pack, same
from trivium.routing.exchanges import Binding

#: What RabbitMQ has and what is not here.
STRANGE: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "users": [
        {"name": "old", "password_hash": "x", "hashing_algorithm": "rabbit_password_hashing_md5",
         "tags": []},
        {"name": "long", "password": "x" * 2000, "tags": []},
    ],
    "vhosts": [{"name": "/"}],
    "parameters": [{"component": "shovel", "vhost": "/", "name": "s", "value": {}}],
    "policies": [
        {"vhost": "/", "name": "ha", "pattern": "^x", "apply-to": "all", "priority": 0,
         "definition": {"ha-mode": "all", "max-length": 7}},
    ],
    "queues": [
        {"name": "lazy", "vhost": "/", "durable": True, "auto_delete": False,
         "arguments": {"x-queue-mode": "lazy"}},
    ],
    "exchanges": [
        {"name": "hash", "vhost": "/", "type": "x-consistent-hash", "durable": True,
         "auto_delete": False, "internal": False, "arguments": {}},
    ],
    "bindings": [
        {"source": "hash", "vhost": "/", "destination": "lazy", "destination_type": "queue",
         "routing_key": "1", "arguments": {}},
    ],
}  # fmt: skip
#: What is said of that, in this order.
NOTES = (
    "user 'old': ",
    "user 'long': a password has",
    "parameter 's' in '/': 'shovel' means nothing here",
    "policy 'ha' in '/': 'ha-mode' means nothing here",
    "policy 'ha' in '/': it holds for classic queues alone, as what was left out did",
    "queue 'lazy' in '/': 'x-queue-mode' means nothing here",
    "exchange 'hash' in '/': unknown exchange type 'x-consistent-hash'",
    "binding 'hash' 'lazy' in '/': no exchange 'hash' in vhost '/'",
)


def declare(commands: Commands) -> None:
    commands.done("vhost", "create", "farm", "--description", "of the farm")
    commands.done("queue", "create", "milk", "--vhost", "farm", "--arguments", "x-max-length=3")
    commands.done("exchange", "create", "cows", "--vhost", "farm", "--type", "topic")
    commands.done("binding", "create", "cows", "milk", "--key", "m.#", "--vhost", "farm")
    commands.done("policy", "set", "p", "^m", '{"expires": 70000}', "--vhost", "farm")
    if "ann" not in commands.names("user", "list"):
        commands.done("user", "add", "ann", "--password", "p")
    commands.done("permission", "set", "ann", "", "^milk$", "", "--vhost", "farm")
    commands.done("permission", "set", "ann", "^a", "", ".*", "--vhost", "*")
    commands.done("topic-permission", "set", "ann", "cows", "^m", "", "--vhost", "*")
    commands.done("user", "vhost", "ann", "farm")
    role = {
        "permissions": {"farm": {"configure": "", "write": "^c", "read": ""}},
        "topic_permissions": {"farm": {"cows": {"write": "^m", "read": ".*"}}},
        "acl": ["topic read milk/#"],
    }
    commands.done("role", "set", "clerk", json.dumps(role))
    commands.done("role", "grant", "clerk", "ann")


def test_what_is_exported_comes_back_equal(
    commands: Commands, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    declare(commands)
    file = tmp_path / "d.json"
    assert commands.done("definitions", "export", str(file)) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["d.json"]
    document = json.loads(file.read_text())
    assert [queue["name"] for queue in document["queues"]] == ["milk"]
    # What is granted in every virtual host is nothing that RabbitMQ could take.
    assert [each["vhost"] for each in document["permissions"]] == ["farm"]
    assert document["topic_permissions"] == []
    assert [each["name"] for each in document["roles"]] == ["clerk"]
    (grants,) = document["grants"]
    assert (grants["user"], grants["roles"], grants["virtual_host"]) == ("ann", ["clerk"], "farm")
    with running(tmp_path / "other") as other:
        there = Commands(other, capsys)
        (said,) = there.rows("definitions", "import", str(file))
        assert said["passed_over"] == []
        assert said["entries"] == sum(map(len, (document[name] for name in definitions.SECTIONS)))
        (again,) = there.rows("definitions", "export")
        assert again == document
        assert there.done("definitions", "import", str(file)) == "", "it is there already"


def test_those_of_one_virtual_host_go_into_another(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(commands)
    text = commands.done("definitions", "export", "--vhost", "farm")
    commands.done("vhost", "create", "barn")
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    commands.done("definitions", "import", "--vhost", "barn")
    assert commands.names("queue", "list", "--vhost", "barn") == ["milk"]
    (binding,) = commands.rows("binding", "list", "--source", "cows", "--vhost", "barn")
    assert binding["key"] == "m.#"
    commands.done("vhost", "delete", "barn", "--yes")


@pytest.mark.parametrize("entries", [1, 2, 500])
def test_a_document_of_any_size_is_sent_in_parts(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entries: int
) -> None:
    monkeypatch.setattr(definitions, "PART_ENTRIES", entries)
    names = [f"part-{number}" for number in range(5)]
    made = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    binding = {"vhost": "/", "source": "amq.topic", "destination": "part-4", "routing_key": "k"}
    bindings = [{**binding, "destination_type": "queue", "arguments": {}}]
    file = tmp_path / "d.json"
    # The order of a document is not that in which one thing needs the other.
    queues = [{"name": name, **made} for name in names]
    file.write_text(json.dumps({"bindings": bindings, "queues": queues}))
    commands.done("definitions", "import", str(file))
    assert commands.names("queue", "list", "--name", "part-") == names
    for name in names:
        commands.done("queue", "delete", name, "--yes")


def test_parts_are_bounded_by_size_and_keep_the_order() -> None:
    queues = [{"name": "x" * 400_000}] * 5
    parts = list(definitions.parts({"queues": queues, "users": [{"name": "u"}]}))
    assert parts[0] == {"users": [{"name": "u"}], "queues": queues[:2]}
    assert [sum(map(len, part.values())) for part in parts] == [3, 2, 1]
    assert list(definitions.parts({})) == [{}]


def test_parts_have_few_passwords_that_are_to_be_hashed() -> None:
    users = [{"name": str(number), "password": "p"} for number in range(40)]
    parts = list(definitions.parts({"users": [*users, {"name": "x", "password_hash": "h"}]}))
    assert [len(part["users"]) for part in parts] == [25, 16]


def test_what_rabbitmq_has_and_is_not_here_is_named_line_by_line(
    commands: Commands, tmp_path: Path
) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(STRANGE))
    code, out, err = commands.run("import", "rabbitmq", str(file))
    assert (code, out) == (EXIT_OK, "")
    lines = err.splitlines()
    assert len(lines) == len(NOTES)
    for line, note in zip(lines, NOTES, strict=True):
        assert line.startswith(note)
    code, out, err = commands.run("import", "rabbitmq", str(file), "--json")
    assert (code, err) == (EXIT_OK, "")
    assert json.loads(out)["passed_over"] == lines
    (policy,) = commands.rows("policy", "list", "--name", "ha")
    assert policy["definition"] == {"max-length": 7}
    assert commands.names("queue", "list", "--name", "lazy") == ["lazy"]


@pytest.mark.parametrize(
    "document",
    [
        {"queues": [{"name": "x"}]},
        {"parameters": [{"component": "shovel", "vhost": "/", "name": "s", "value": {}}]},
    ],
)
def test_when_nothing_can_be_taken_that_is_a_failure(
    commands: Commands, tmp_path: Path, document: dict[str, Any]
) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(document))
    for command in (["import", "rabbitmq"], ["definitions", "import", "--skip"]):
        code, out, err = commands.run(*command, str(file))
        assert (code, out) == (EXIT_FAILED, "")
        assert err.endswith(f"trivium {command[0]}: {file}: nothing of it could be taken\n")
        assert err.count("\n") == 2
    file.write_text(json.dumps({**document, "vhosts": [{"name": "/"}]}))
    assert commands.run("import", "rabbitmq", str(file))[0] == EXIT_OK


def test_without_skip_the_first_thing_that_cannot_be_ends_it(
    commands: Commands, tmp_path: Path
) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps({**STRANGE, "users": []}))
    code, out, err = commands.run("definitions", "import", str(file))
    assert (code, out, err) == (EXIT_FAILED, "", f"trivium definitions: {NOTES[6]}\n")
    assert commands.run("definitions", "import", str(file), "--skip")[0] == EXIT_OK


@pytest.mark.parametrize(
    ("arguments", "text", "code", "error"),
    [
        (["definitions", "import"], "{", EXIT_USAGE, "not JSON: "),
        (["definitions", "import"], "[]", EXIT_USAGE, "definitions are a JSON object"),
        (["definitions", "import"], '{"name": "x"}', EXIT_USAGE, "there are no definitions in it"),
        (["definitions", "import"], '{"queues": {}}', EXIT_USAGE, "'queues' is a list"),
        (["definitions", "import"], '{"queues": [1]}', EXIT_FAILED, "'queues' is a list of"),
        (["definitions", "import"], '{"users": [1]}', EXIT_FAILED, "'users' is a list of"),
        (["definitions", "import", "/none"], "", EXIT_FAILED, "/none: No such file"),
        (["definitions", "export", "/none/x"], "", EXIT_FAILED, "/none/x: No such file"),
        (["import", "rabbitmq", "x", "--output", "y"], "", EXIT_USAGE, "there is no --output"),
        (["import", "rabbitmq", "/none"], "", EXIT_FAILED, "/none: No such file"),
        (["import", "mosquitto", "x"], "", EXIT_USAGE, "of no broker: no --data"),
        (["import", "nothing", "x"], "", EXIT_USAGE, "not one of mosquitto, rabbitmq"),
    ],
)
def test_what_is_wrong_is_one_line(
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
    code: int,
    error: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    found, out, err = commands.run(*arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert error in err


def test_an_export_to_a_pipe_or_through_a_link_leaves_them_there(
    commands: Commands, tmp_path: Path
) -> None:
    """So it is with devices: ``/dev/null`` was a file afterwards."""
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert commands.done("definitions", "export", str(pipe)) == ""
        assert json.loads(os.read(reading, 1 << 20))["vhosts"]
    finally:
        os.close(reading)
    assert pipe.is_fifo()
    assert commands.done("definitions", "export", str(link)) == ""
    assert link.is_symlink()
    assert json.loads(file.read_text())["vhosts"]


async def test_the_http_api_exports_imports_and_tells_what_was_passed_over(tmp_path: Path) -> None:
    async with serve_here(tmp_path) as site:
        for path in ("definitions", "vhosts/%2F/definitions"):
            status, found = await site.ask("GET", path)
            assert (status, type(found["queues"])) == (200, list)
            assert (await site.ask("GET", path, "ann"))[0] == 403
            assert (await site.ask("POST", path, "ann", json={}))[0] == 403
            assert await site.ask("POST", path, json={}) == (
                200,
                {"passed_over": [], "taken": 0},
            )
            status, found = await site.ask("POST", path, json=STRANGE)
            assert (status, found["type"].rpartition(":")[2]) == (400, "bad-request")
            status, found = await site.ask("POST", f"{path}?skip=true", json=STRANGE)
            assert status == 200
        assert [note.partition(": ")[0] for note in found["passed_over"]] == [
            note.partition(": ")[0] for note in NOTES[2:]
        ]


async def test_notes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.management.compatible.definitions.MAX_NOTES", 2)
    async with serve_here(tmp_path) as site:
        _, found = await site.ask("POST", "definitions?skip=true", json=STRANGE)
        assert len(found["passed_over"]) == 3
        assert found["passed_over"][-1] == "and 6 more"


@pytest.mark.parametrize(("kind", "status"), [("topic", 204), ("fanout", 400)])
async def test_a_predeclared_exchange_is_imported_as_it_is_or_refused(
    tmp_path: Path, kind: str, status: int
) -> None:
    trace = {"name": "amq.rabbitmq.trace", "vhost": "/", "type": kind, "durable": True}
    trace |= {"auto_delete": False, "internal": True, "arguments": {}}
    body = {"exchanges": [{**trace, "name": "amq.not.here"}, trace]}
    async with serve_here(tmp_path) as site:
        url = f"http://{site.broker.listeners['http']}/api/definitions"
        async with site.client.post(url, json=body, headers=authorization("root")) as answer:
            assert answer.status == status


async def test_grants_that_cannot_be_are_refused_by_name(tmp_path: Path) -> None:
    async with serve_here(tmp_path) as site:
        for section, entry in (
            ("roles", {"name": "r", "permissions": {"/": {"odd": ""}}}),
            ("roles", {"name": "r", "permissions": {"/": {"read": "("}}}),
            ("roles", {"name": "r", "acl": "topic a"}),
            ("roles", {"name": "r", "acl": ["odd"]}),
            ("roles", {"name": ""}),
            ("grants", {"user": "nobody", "roles": ["r"]}),
            ("grants", {"user": "nobody", "virtual_host": "/"}),
            ("grants", {"roles": ["r"]}),
        ):
            status, found = await site.ask("POST", "definitions", json={section: [entry]})
            assert (status, found["type"].rpartition(":")[2]) == (400, "bad-request"), entry
        # Those of the configuration stay as they are there.
        entry = {"user": "ann", "roles": ["r"]}
        status, found = await site.ask("POST", "definitions", json={"grants": [entry]})
        assert (status, found["passed_over"]) == (200, [])
        assert (await site.ask("GET", "roles"))[1]["items"] == []


async def test_a_permission_in_every_virtual_host_is_taken_as_it_was_exported_once(
    tmp_path: Path,
) -> None:
    patterns = {"configure": "", "write": "", "read": "^a"}
    document = {
        "users": [{"name": "new", "password": "p", "tags": []}],
        "permissions": [{"user": "new", "vhost": "*", **patterns}],
    }
    async with serve_here(tmp_path) as site:
        assert (await site.ask("POST", "definitions", json=document))[0] == 200
        _, found = await site.ask("GET", "permissions?user=new&vhost=%2F")
        assert found["items"] == [{"user": "new", "vhost": "*", **patterns}]


#: What JSON has no words for.
UNSAYABLE: dict[str, Any] = {
    "bytes": b"\xff\x00",
    "text": b"as bytes",
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "much": Decimal("1.50"),
    "list": [b"\x80", {"in": float("inf")}],
}


async def test_keys_and_arguments_that_json_cannot_say_come_back_as_they_were(
    tmp_path: Path,
) -> None:
    """RabbitMQ passes over what says them."""
    (tmp_path / "two").mkdir()
    async with serve_here(tmp_path) as site:
        vhost = site.broker.vhosts["/"]
        queue = vhost.declare_queue("q", durable=True)
        for key, arguments in ((b"\xff\x00>", {}), ("ü".encode(), {}), (b"k", UNSAYABLE)):
            binding = Binding(queue, key, dict(arguments))
            vhost.bind(vhost.exchange("amq.topic"), binding)
        _, document = await site.ask("GET", "definitions")
        _, of_vhost = await site.ask("GET", "vhosts/%2F/definitions")
    said = {
        found["routing_key"]: ("routing_key_base64" in found, "arguments_base64" in found)
        for found in document["bindings"]
    }
    assert said == {"\ufffd\x00>": (True, False), "ü": (False, False), "k": (False, True)}
    async with serve_here(tmp_path / "two") as site:
        assert (await site.ask("POST", "definitions", json=document))[0] == 200
        exchange = site.broker.vhosts["/"].exchange("amq.topic")
        found = {binding.pattern: binding.arguments for binding in exchange.bindings()}
        assert found.keys() == {b"\xff\x00>", "ü".encode(), b"k"}
        assert same(dict(found[b"k"]), UNSAYABLE)
        assert (await site.ask("GET", "definitions"))[1] == document
        # A second time nothing is new.
        for path, body in (("definitions", document), ("vhosts/%2F/definitions", of_vhost)):
            assert (await site.ask("POST", path, json=body))[0] == 200
            assert (await site.ask("GET", path))[1] == body


@pytest.mark.parametrize(
    "said",
    [
        {"routing_key_base64": "_"},
        {"routing_key_base64": 1},
        {"routing_key_base64": base64.b64encode(b"other").decode()},
        {"arguments_base64": "_"},
        {"arguments_base64": ""},
        {"arguments_base64": base64.b64encode(pack([])).decode()},
        {"arguments_base64": base64.b64encode(pack({"b": 1})).decode()},
        {"arguments": {"a": {"1": 1}}, "arguments_base64": "gaFhgQEB"},
        {"arguments": {"a": 1}, "arguments_base64": "gZMBAgMB"},
        {"arguments": {"a": 1}, "arguments_base64": base64.b64encode(b"\x91" * 600).decode()},
        {
            "arguments": {"a": 1.5},
            "arguments_base64": base64.b64encode(pack({"a": Decimal("sNaN")})).decode(),
        },
        {
            "arguments": {"a": 1},
            "arguments_base64": base64.b64encode(b"\x81\xa1a\xc7\x0c\xff" + b"\x7f" * 12).decode(),
        },
    ],
)
async def test_bytes_that_say_something_else_than_what_is_shown_are_refused(
    tmp_path: Path, said: dict[str, object]
) -> None:
    """Whoever reads a document sees what it brings."""
    entry = {"vhost": "/", "source": "amq.topic", "destination": "amq.fanout", "routing_key": "k"}
    entry |= {"destination_type": "exchange"}
    async with serve_here(tmp_path) as site:
        status, found = await site.ask("POST", "definitions", json={"bindings": [entry | said]})
        assert (status, found["type"].rpartition(":")[2]) == (400, "bad-request")
        assert "_base64'" in found["detail"]


@pytest.mark.parametrize("apply_to", ["queues", "all"])
async def test_a_policy_that_is_narrowed_goes_back_to_rabbitmq_as_it_came(
    tmp_path: Path, apply_to: str
) -> None:
    """Versions before 3.12 know no ``classic_queues``, and refuse all of the document."""
    narrow = {"vhost": "/", "name": "ha", "pattern": "^h", "apply-to": apply_to, "priority": 0}
    narrow["definition"] = {"ha-mode": "all", "expires": 100000}
    given = {**narrow, "name": "given", "apply-to": "classic_queues", "definition": {"expires": 1}}
    value = {key: narrow[key] for key in ("pattern", "apply-to", "definition", "priority")}
    bound = {"component": "operator_policy", "vhost": "/", "name": "o", "value": value}
    (tmp_path / "two").mkdir()
    async with serve_here(tmp_path) as site:
        body = {"policies": [narrow, given], "parameters": [bound]}
        assert (await site.ask("POST", "definitions", json=body))[0] == 200
        _, document = await site.ask("GET", "definitions")
    policies = {each["name"]: each for each in document["policies"]}
    assert policies["ha"]["apply-to"] == apply_to
    assert policies["ha"]["narrowed-to"] == "classic_queues"
    assert policies["given"] == given
    (parameter,) = document["parameters"]
    assert (parameter["value"]["apply-to"], parameter["narrowed-to"]) == (
        apply_to,
        "classic_queues",
    )
    assert "narrowed-to" not in parameter["value"]
    # It holds for those alone, also once it is read again, and elsewhere.
    for path in (tmp_path, tmp_path / "two"):
        async with serve_here(path) as site:
            if path is not tmp_path:
                assert (await site.ask("POST", "definitions", json=document))[0] == 200
            for kind in ("policies", "operator-policies"):
                _, found = await site.ask("GET", kind)
                assert {item["apply_to"] for item in found["items"]} == {"classic_queues"}
            assert (await site.ask("GET", "definitions"))[1] == document

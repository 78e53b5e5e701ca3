"""What holds for every command: found by walking all that the parser knows, so that a new one has
to keep to it too."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

import trivium_native
from tests.support.commands import run
from tests.support.verbs import Running, on_terminal, running
from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, NOUNS, main, make_parser
from trivium.cli.completion import commands_of

Words = tuple[str, ...]

#: Words of verbs that take something away, and ask before they do.
TAKES_AWAY = {"delete", "purge", "close", "reset", "clear", "revoke"}
#: Prints a script, or names for it.
NO_JSON = {("completion",)}
#: Commands that have a test of their own for their JSON, since they take a while.
JSON_ELSEWHERE = {("bench",), ("chaos",), ("serve",), ("sub",), ("top",)}


PARSERS: dict[Words, argparse.ArgumentParser] = {}
LEAVES: dict[Words, list[argparse.Action]] = {}
PARSER = make_parser(NOUNS)
for each, parser, actions in commands_of(PARSER):
    PARSERS[each] = parser
    LEAVES[each] = actions


def options_of(words: Words) -> set[str]:
    return {flag for action in LEAVES[words] for flag in action.option_strings}


LISTING = [
    words
    for words in LEAVES
    # One of them has its own formats.
    if "--columns" in options_of(words) and "--format" not in options_of(words)
]
#: Those that show one thing.
SHOWING = [words for words in LEAVES if words[0] in NOUNS and words[-1] in ("show", "describe")]


def arguments_of(words: Words) -> list[str]:
    """A value for each argument that must be there."""
    return [
        "1" if action.type is int else "x"
        for action in LEAVES[words]
        if not action.option_strings and action.nargs not in ("?", "*")
    ]


def ids(words: Words) -> str:
    return "-".join(words)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("b") / "d") as broker:
        yield broker


NODE = "trivium@localhost"


@pytest.fixture
async def names(broker: Running) -> Any:
    """There is one of each thing; what each argument is then."""
    place = ("--data", str(broker.data))
    if main(["user", "show", "u", *place]) != EXIT_OK:
        assert main(["user", "add", "u", "--password", "p", *place]) == EXIT_OK
        assert main(["user", "add-key", "u", *place]) == EXIT_OK
    for words in (
        ("stream", "create", "s"),
        ("queue", "create", "q"),
        ("exchange", "create", "e"),
        ("binding", "create", "e", "q"),
        ("group", "reset", "g", "--stream", "s", "--to", "first", "--yes"),
        ("vhost", "create", "v"),
        ("user", "limits", "u", "{}"),
        ("permission", "set", "u", "", "", ""),
        ("topic-permission", "set", "u", "amq.topic", "", ""),
        ("role", "set", "r", "{}"),
        ("policy", "set", "p", "^none$", '{"expires": 70000}'),
        ("operator-policy", "set", "p", "^none$", '{"expires": 70000}'),
    ):
        assert main([*words, *place]) == EXIT_OK
    found = {"stream": "s", "queue": "q", "exchange": "e", "group": "g", "vhost": "v", "user": "u"}
    found |= {"role": "r", "policy": "p", "node": NODE, "topic": "t", "client_id": "c"}
    port = int(broker.places["mqtt"].rpartition(":")[2])
    url = f"trivium://guest:guest@{broker.places['native']}"
    mqtt = aiomqtt.Client("127.0.0.1", port, identifier="c", clean_session=False)
    async with mqtt, trivium_native.connect(url) as native, native.consume("q"):
        await mqtt.subscribe([("a/#", 1), ("$share/two/lamp/+", 1)])
        await mqtt.publish("t", b"kept", qos=1, retain=True)
        yield found


def asked(words: Words, names: dict[str, str], broker: Running) -> list[str]:
    """The command with an argument for each that it needs."""
    given: list[str] = []
    for action in LEAVES[words]:
        if action.option_strings or action.nargs in ("?", "*"):
            continue
        name = action.dest.removeprefix("path_")
        if name == "connection":
            found = answer(["connection", "list", "--json", "--data", str(broker.data)])
            given.append(json.loads(found.splitlines()[0])["name"])
        else:
            given.append(names[name])
    return [*words, *given, "--data", str(broker.data)]


class Output(io.StringIO):
    """Standard output, which may be a terminal."""

    def __init__(self, is_terminal: bool = False) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def reconfigure(self, errors: str) -> None:
        """There is nothing to be encoded."""


def answer(arguments: list[str], is_terminal: bool = False) -> str:
    """What a command prints that does what it should."""
    before = sys.stdout
    sys.stdout = output = Output(is_terminal)
    try:
        assert main(arguments) == EXIT_OK
    finally:
        sys.stdout = before
    return output.getvalue()


# What the documents say

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
#: what begins as a command does and is none: lines that the broker prints, names on the disk
NOT_COMMANDS = {"ready", "version", "catalog", "key"}


def documented(text: str) -> Iterator[str]:
    """The commands of a document: lines of code, without what explains them, and in the prose."""
    for line in re.findall(r"^ *(?:\$ )?(trivium [a-z].*)$", text, re.MULTILINE):
        # Prose is not indented, and its lines are filled.
        yield re.split(r"  +| &$| \| ", line)[0]
    yield from re.findall(r"`(trivium [a-z][^`]*)`", text)


def is_taken(command: str) -> bool:
    """Whether the parser takes a command of the documents; a name of one needs no arguments."""
    given = re.sub(r"[][]", "", command.partition(" >")[0])
    words = shlex.split(given)[1:]
    if any(tuple(words) == known[: len(words)] for known in LEAVES):
        return True
    try:
        PARSER.parse_args(words)
    except SystemExit as stopped:
        return stopped.code == EXIT_OK
    return True


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_commands_of_the_documents_are_taken(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = documented(file.read_text(encoding="utf-8"))
    assert [
        command
        for command in found
        if command.split()[1] not in NOT_COMMANDS and not is_taken(command)
    ] == []


# What each takes


@pytest.mark.parametrize("words", LEAVES, ids=ids)
def test_each_command_prints_json_where_it_is_asked_for(words: Words) -> None:
    assert ("--json" in options_of(words)) is (words not in NO_JSON)


@pytest.mark.parametrize("words", LEAVES, ids=ids)
def test_each_command_says_what_it_does(words: Words, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    out = capsys.readouterr().out
    assert stopped.value.code == EXIT_OK
    assert out.startswith(f"usage: {PARSERS[words].prog} ")
    assert PARSERS[words].description


@pytest.mark.parametrize("words", LEAVES, ids=ids)
def test_what_takes_away_asks_and_nothing_else_does(words: Words) -> None:
    takes_away = words[-1].partition("-")[0] in TAKES_AWAY
    assert ("--yes" in options_of(words)) is takes_away


@pytest.mark.parametrize(
    "words", [words for words in LEAVES if "--yes" in options_of(words)], ids=ids
)
def test_without_a_terminal_what_takes_away_is_refused_unless_yes_is_said(
    words: Words, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("trivium.cli.control.Api.ask", lambda *given, **more: asked.append(given))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    arguments = [*words, *arguments_of(words)]
    assert main(arguments) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), asked) == ("", 1, [])
    assert "say --yes, as nobody is there to be asked" in err
    assert main([*arguments, "--yes"]) == EXIT_OK
    assert len(asked) == 1


@pytest.mark.parametrize(
    "words", [words for words in LEAVES if "--data" in options_of(words) and words[0] in NOUNS],
    ids=ids,
)  # fmt: skip
def test_where_no_broker_is_one_line_says_so(
    words: Words,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}\n"))
    given = [value if value != "x" or words[1] != "set" else "{}" for value in arguments_of(words)]
    yes = ["--yes"] if "--yes" in options_of(words) else []
    assert main([*words, *given, *yes, "--data", str(tmp_path)]) == EXIT_FAILED
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"trivium {words[0]}: no broker listens on {tmp_path}/control.sock")


# What each prints


async def test_each_list_is_a_table_on_a_terminal_and_plain_columns_elsewhere(
    names: dict[str, str], broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    for words in LISTING:
        arguments = asked(words, names, broker)
        plain = answer(arguments).splitlines()
        assert plain[0] == plain[0].upper()
        assert "─" not in plain[0]
        rows = [json.loads(line) for line in answer([*arguments, "--json"]).splitlines()]
        assert len(rows) == len(plain) - 1, "a row is a line in both"
        assert "──" in answer(arguments, is_terminal=True)
        # Members of a group and channels are of other clients than come here.
        assert rows or words in {("group", "members"), ("channel", "list")}


async def test_what_is_shown_is_one_json_object_or_a_line_for_each_field(
    names: dict[str, str], broker: Running
) -> None:
    for words in SHOWING:
        arguments = asked(words, names, broker)
        (line,) = answer([*arguments, "--json"]).splitlines()
        found = json.loads(line)
        plain = answer(arguments).splitlines()
        assert {each.partition(".")[0].split()[0] for each in plain} == set(found)


def test_commands_that_need_no_verb_print_json_too(
    broker: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ["--data", str(broker.data)]
    stopped = tmp_path / "stopped"
    with running(stopped):
        pass
    mosquitto = tmp_path / "mosquitto.conf"
    mosquitto.write_text("listener 1883\nallow_anonymous true\n")
    document = tmp_path / "d.json"
    document.write_text('{"queues": []}')
    given: dict[Words, list[str]] = {
        ("status",): place,
        ("doctor",): ["--memory", *(f"--{each}=0" for each in ("mqtt", "amqp", "native", "http"))],
        ("pub",): [f"trivium://{broker.places['native']}", "a", "b"],
        ("check",): [str(stopped)],
        ("repair",): [str(stopped)],
        ("import",): ["mosquitto", str(mosquitto)],
        ("definitions", "export"): place,
        ("definitions", "import"): [str(document), *place],
        ("tls", "self-signed"): [str(tmp_path / "tls")],
        ("hash-password",): [],
    }
    others = {words for words in LEAVES if words[0] not in NOUNS}
    assert given.keys() == others - JSON_ELSEWHERE - NO_JSON
    for words, arguments in given.items():
        monkeypatch.setattr(sys, "stdin", io.StringIO("secret\n"))
        lines = answer([*words, *arguments, "--json"]).splitlines()
        assert lines
        assert all(isinstance(json.loads(line), dict) for line in lines)


def test_a_change_prints_nothing_whether_or_not_json_is_asked_for(broker: Running) -> None:
    place = ["--data", str(broker.data)]
    for more in ([], ["--json"]):
        assert answer(["queue", "create", "made", *place, *more]) == ""
        assert answer(["queue", "delete", "made", "--yes", *place, *more]) == ""


# Long work


def test_long_work_has_a_bar_on_a_terminal_and_none_elsewhere(
    broker: Running, tmp_path: Path
) -> None:
    stopped = tmp_path / "stopped"
    with running(stopped):
        assert main(["queue", "create", "long", "--data", str(broker.data)]) == EXIT_OK
    document = tmp_path / "d.json"
    document.write_text('{"queues": []}')
    place = ["--data", str(broker.data)]
    for title, arguments in (
        ("check", ["check", str(stopped)]),
        ("repair", ["repair", str(stopped)]),
        ("import", ["import", "rabbitmq", str(document), *place]),
        ("import", ["definitions", "import", str(document), *place]),
        ("purge queue", ["queue", "purge", "long", "--yes", *place]),
        ("trivium", ["bench", "trivium", "--count", "10"]),
    ):
        code, out = on_terminal(arguments)
        assert code == EXIT_OK
        assert re.search(f"{title} .*━", out), arguments
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (EXIT_OK, "")
        assert "━" not in done.stdout


def test_without_rich_long_work_is_done_without_a_bar(broker: Running, tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError")
    assert main(["queue", "create", "long", "--data", str(broker.data)]) == EXIT_OK
    arguments = ["queue", "purge", "long", "--yes", "--data", str(broker.data)]
    code, out = on_terminal(
        arguments, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    )
    assert (code, out.splitlines()) == (EXIT_OK, ["messages  0"])

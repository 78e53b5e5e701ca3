"""The verbs of `trivium queue` and so on, against a running broker."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import aiomqtt
import pytest

from tests.support.certificates import Authority
from tests.support.commands import COMMAND, NO_PROTOCOLS, serve
from tests.support.verbs import Commands, Running, on_terminal
from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, NOUNS, completion, control, main
from trivium.cli import verbs as module
from trivium.cli.tables import print_rows
from trivium.management.rest.schema import hints_of

MARKUP = "<script>alert(1)</script>&[bold]x[/bold]"
#: Verbs that do.
TAKES_AWAY = {"delete", "purge", "close", "reset", "clear", "revoke"}
NAMES = [MARKUP, "größe/日本 %2F?#", "a b\tc", "..", "\x1b[31mred", "-"]
#: Operations that are no verbs: of the broker as a whole, and what comes as messages, or as pages.
NO_VERBS = re.compile(
    "browser_|browsing_|definitions_|general_|gateway_|live_|retained_levels_|topics_"
)


# What there is


def test_each_operation_has_a_verb_and_each_noun_its_summary() -> None:
    verbs = [noun.verb(name) for noun in module.NOUNS.values() for name in noun.verbs]
    used = {name for verb in verbs for name in (verb.operation, verb.without) if name}
    twins = {f"{name}_of_vhost" for name in used}
    known = set(module.OPERATIONS)
    assert used <= known
    assert {name for name in known - used - twins if not NO_VERBS.match(name)} == set()
    assert list(module.NOUNS) == list(NOUNS)


@pytest.mark.parametrize("noun", NOUNS)
def test_columns_are_fields_of_what_is_listed(noun: str) -> None:
    operation = module.operation_of(noun, "list")
    if noun == "retained":
        fields = {"topic", "bytes", "published_at", "mode"}
    else:
        fields = set(hints_of(operation.result))
    assert {column.partition(".")[0] for column in module.NOUNS[noun].columns} <= fields


@pytest.mark.parametrize("noun", NOUNS)
def test_each_verb_has_help(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in module.NOUNS[noun].verbs:
        with pytest.raises(SystemExit) as stopped:
            main([noun, verb, "--help"])
        assert stopped.value.code == EXIT_OK
        assert capsys.readouterr().out.startswith(f"usage: trivium {noun} {verb} ")


# Each noun


def test_queues(commands: Commands) -> None:
    commands.done("queue", "create", "q", "--arguments", "x-max-length=10", "--no-durable")
    (found,) = commands.rows("queue", "show", "q")
    assert (found["durable"], found["arguments"]) == (False, {"x-max-length": 10})
    assert commands.names("queue", "list", "--name", "q", "--vhost", "/") == ["q"]
    (mode,) = commands.rows("queue", "delivery-modes", "--name", "q")
    assert mode["mode"] == "as-published"
    assert commands.rows("queue", "purge", "q", "--yes") == [{"messages": 0}]
    assert commands.done("queue", "delete", "q", "--if-empty", "--yes") == ""
    assert commands.names("queue", "list", "--name", "q") == []


def test_policies_of_operators(commands: Commands) -> None:
    words = ("^bound$", '{"max-length": 5}', "--apply-to", "queues")
    commands.done("operator-policy", "set", "o", *words)
    commands.done("queue", "create", "bound", "--arguments", "x-max-length=10")
    (queue,) = commands.rows("queue", "show", "bound")
    assert (queue["operator_policy"], queue["effective_policy"]) == ("o", {"max-length": 5})
    (found,) = commands.rows("operator-policy", "list")
    assert (found["name"], found["apply_to"]) == ("o", "queues")
    commands.done("operator-policy", "delete", "o", "--yes")
    assert commands.rows("operator-policy", "list") == []
    commands.done("queue", "delete", "bound", "--yes")


def test_streams(commands: Commands) -> None:
    arguments = '{"x-max-age": "7D"}'
    commands.done("stream", "create", "s", "--partitions", "3", "--arguments", arguments)
    (found,) = commands.rows("stream", "show", "s")
    assert (found["partitions"], found["arguments"]) == (3, {"x-max-age": "7D"})
    assert [row["partition"] for row in commands.rows("stream", "partitions", "s")] == [0, 1, 2]
    assert commands.names("stream", "list") == ["s"]
    commands.done("stream", "extend", "s", "5")
    assert len(commands.rows("stream", "partitions", "s")) == 5
    commands.done("stream", "delete", "s", "--yes")
    assert commands.names("stream", "list") == []


def test_exchanges_and_bindings(commands: Commands) -> None:
    commands.done("exchange", "create", "shop", "--type", "topic")
    commands.done("queue", "create", "orders")
    commands.done("binding", "create", "shop", "orders", "--key", "order.#")
    (found,) = commands.rows("binding", "list", "--source", "shop")
    assert (found["destination"], found["key"]) == ("orders", "order.#")
    (shown,) = commands.rows("exchange", "show", "shop")
    assert (shown["name"], shown["type"]) == ("shop", "topic")
    commands.done("binding", "delete", "shop", "orders", "--key", "order.#", "--yes")
    assert commands.rows("binding", "list", "--source", "shop") == []
    commands.done("exchange", "delete", "shop", "--yes")
    assert "shop" not in commands.names("exchange", "list")
    commands.done("queue", "delete", "orders", "--yes")


def test_groups(commands: Commands) -> None:
    commands.done("stream", "create", "readings")
    reset = ("group", "reset", "billing", "--stream", "readings")
    commands.done(*reset, "--to", "offset", "--offset", "0", "--yes")
    assert commands.names("group", "list") == ["billing"]
    (row,) = commands.rows("group", "offsets", "billing")
    assert (row["stream"], row["committed"], row["lag"]) == ("readings", 0, 0)
    assert commands.rows("group", "members", "billing") == []
    for place in ("first", "next", "last"):
        commands.done("group", "reset", "billing", "--to", place, "--partition", "0", "--yes")
    commands.done("group", "reset", "billing", "--to", "first", "--force", "--yes")
    commands.done("group", "reset", "billing", "--to", "time", "--time", "2026-03-01", "--yes")
    (shown,) = commands.rows("group", "show", "billing")
    assert shown["streams"] == ["readings"]
    commands.done("group", "delete", "billing", "--yes")
    assert commands.names("group", "list") == []
    commands.done("stream", "delete", "readings", "--yes")


async def test_connections_sessions_and_retained_messages(
    broker: Running, commands: Commands
) -> None:
    topics = [f"home/{number:03}" for number in range(150)]
    client = aiomqtt.Client("127.0.0.1", broker.port, identifier=MARKUP, clean_session=False)
    is_closed = False
    with contextlib.suppress(aiomqtt.MqttError):
        async with client:
            await client.subscribe([("alarm/#", 1), ("$share/two/lamp/+", 1)])
            for topic in topics:
                await client.publish(topic, b"<b>hot</b>", qos=1, retain=True)
            (found,) = commands.rows("connection", "list")
            assert (found["protocol"], found["user"]) == ("MQTT 3-1-1", "")
            (shown,) = commands.rows("connection", "show", found["name"])
            assert shown["counters"]["published"] == len(topics)
            consumers = commands.rows("consumer", "list")
            channels = commands.rows("channel", "list")
            assert all(row["connection"] == found["name"] for row in [*consumers, *channels])
            close = ("connection", "close", found["name"], "--reason", "maintenance", "--yes")
            commands.done(*close)
            is_closed = True
    assert is_closed
    assert commands.rows("connection", "list") == []
    (session,) = commands.rows("session", "list")
    assert (session["client_id"], session["is_connected"]) == (MARKUP, False)
    assert commands.rows("session", "show", MARKUP) == [session]
    subscriptions = commands.rows("session", "subscriptions", MARKUP)
    assert [row["filter"] for row in subscriptions] == ["alarm/#", "lamp/+"]
    assert [row["name"] for row in commands.rows("session", "shared")] == ["two"]
    commands.done("session", "delete", MARKUP, "--yes")
    assert commands.rows("session", "list") == []
    found_topics = [row["topic"] for row in commands.rows("retained", "list")]
    assert [topic for topic in found_topics if topic.startswith("home")] == topics
    assert len(commands.rows("retained", "list", "--filter", "home/+", "--limit", "7")) == 7
    (message,) = commands.rows("retained", "show", "home/007")
    assert message["payload"] == "<b>hot</b>"
    commands.done("retained", "delete", "home/007", "--yes")
    code, _, err = commands.run("retained", "show", "home/007")
    assert (code, err.count("\n")) == (EXIT_FAILED, 1)


def test_virtual_hosts(commands: Commands) -> None:
    code, _, err = commands.run("queue", "list", "--vhost", "none")
    assert (code, err) == (EXIT_FAILED, "trivium queue: no virtual host 'none'\n")


def test_the_firehose_is_switched_without_a_question(commands: Commands) -> None:
    for verb, is_on in (("on", True), ("off", False)):
        commands.done("trace", verb)
        (found,) = [row for row in commands.rows("trace", "list") if row["name"] == "/"]
        assert found["tracing"] is is_on


# Names


@pytest.mark.parametrize("name", NAMES)
def test_names_may_have_any_characters(commands: Commands, name: str) -> None:
    commands.done("queue", "create", "--", name)
    try:
        assert name in commands.names("queue", "list")
        (shown,) = commands.rows("queue", "show", "--", name)
        assert shown["name"] == name
        table = commands.done("queue", "list")
        assert "\x1b" not in table
    finally:
        commands.done("queue", "delete", "--yes", "--", name)
    assert name not in commands.names("queue", "list")


def test_a_name_is_not_empty(commands: Commands) -> None:
    code, _, err = commands.run("queue", "delete", "", "--yes")
    assert code == EXIT_USAGE
    assert "must not be empty" in err


# What is printed


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_list_has_all_pages(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    listed = ("exchange", "list", "--vhost", "/")
    names = commands.names(*listed)
    assert len(names) > 3
    monkeypatch.setattr(control, "PAGE_SIZE", size)
    assert commands.names(*listed) == names
    assert len(commands.done(*listed).splitlines()) == 1 + len(names)


def test_columns_are_chosen(commands: Commands) -> None:
    listed = ("exchange", "list", "--name", "amq.topic", "--columns", "name,counters.routed")
    assert commands.done(*listed) == "NAME       COUNTERS.ROUTED\namq.topic  0\n"
    assert commands.rows(*listed) == [{"name": "amq.topic", "counters.routed": 0}]


def test_lists_are_sorted(commands: Commands) -> None:
    found = commands.names("exchange", "list", "--sort", "name", "--sort-reverse")
    assert found == sorted(found, reverse=True)


def test_a_record_is_shown_field_by_field(commands: Commands) -> None:
    lines = commands.done("exchange", "show", "amq.fanout").splitlines()
    assert lines[1].split() == ["name", "amq.fanout"]
    assert lines[-1].split() == ["counters.unroutable", "0"]


def test_who_has_seen_enough_may_go(broker: Running) -> None:
    command = [*COMMAND, "exchange", "list", "--json", "--data", str(broker.data)]
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (process.returncode, process.stderr) == (EXIT_OK, b"")


# A terminal


def test_on_a_terminal_a_table_has_lines_and_markup_is_text(
    broker: Running, commands: Commands
) -> None:
    commands.done("queue", "create", MARKUP)
    code, out = on_terminal(["queue", "list", "--data", str(broker.data)])
    commands.done("queue", "delete", MARKUP, "--yes")
    assert code == EXIT_OK
    assert "──" in out
    assert MARKUP in out


def test_without_rich_columns_are_plain(broker: Running, tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError")
    arguments = ["exchange", "list", "--columns", "name", "--data", str(broker.data)]
    code, out = on_terminal(arguments, PYTHONPATH=str(tmp_path))
    assert code == EXIT_OK
    assert out.splitlines()[0] == "NAME"


def test_a_long_text_in_plain_columns_moves_its_own_row_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("short", "a name of thirty characters ok", "x" * 255)
    print_rows([{"name": name, "type": "t"} for name in names], ["name", "type"])
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [36, 33, 33, 258]


@pytest.mark.parametrize(("answer", "code"), [("y\n", EXIT_OK), ("\n", EXIT_USAGE)])
def test_what_destroys_is_asked_for(
    broker: Running, commands: Commands, answer: str, code: int
) -> None:
    commands.done("queue", "create", "asked")
    arguments = ["queue", "delete", "asked", "--data", str(broker.data)]
    assert on_terminal(arguments, {"[y/N] ": answer})[0] == code
    is_there = "asked" in commands.names("queue", "list")
    assert is_there is (code != EXIT_OK)
    if is_there:
        commands.done("queue", "delete", "asked", "--yes")


def test_what_destroys_needs_yes_where_nobody_can_be_asked(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.done("queue", "create", "kept")
    with open(os.devnull) as nothing:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", nothing)
        code, _, err = commands.run("queue", "purge", "kept")
    assert code == EXIT_USAGE
    assert err == (
        "trivium queue: purge queue 'kept' in virtual host '/': say --yes, as nobody is there to"
        " be asked\n"
    )
    commands.done("queue", "delete", "kept", "--yes")


@pytest.mark.parametrize("noun", NOUNS)
def test_what_takes_away_must_be_confirmed(noun: str) -> None:
    for verb in module.NOUNS[noun].verbs:
        takes = verb.partition("-")[0] in TAKES_AWAY
        assert module.destroys(module.operation_of(noun, verb)) is takes


# Where the broker is


def test_a_url_is_asked_with_its_password(broker: Running, commands: Commands) -> None:
    code, out, err = commands.run("exchange", "list", "--json", place=("--url", broker.url))
    assert (code, err) == (EXIT_OK, "")
    assert "amq.topic" in out


def test_a_password_may_be_in_a_file(broker: Running, commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("guest\n")
    url = f"http://guest@{broker.places['http']}"
    more = ("--password-file", str(tmp_path / "p"))
    assert commands.run("exchange", "list", *more, place=("--url", url))[0] == EXIT_OK
    (tmp_path / "p").write_text("wrong\n")
    code, _, err = commands.run("exchange", "list", *more, place=("--url", url))
    assert (code, err) == (
        EXIT_FAILED,
        "trivium exchange: wrong user name or password, or it may not come in from here\n",
    )


def test_a_broker_by_tls_is_verified(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.pair("server", "127.0.0.1")
    files = ["--tls-certificate", str(server.certificate), "--tls-key", str(server.key)]
    with serve("--memory", *NO_PROTOCOLS, "--https", "0", *files) as (_, line):
        url = f"https://guest:guest@{line.split('https=')[1].split()[0]}"
        listed = ["exchange", "list", "--url", url]
        assert main([*listed, "--tls-ca", str(authority.ca)]) == EXIT_OK
        assert "amq.topic" in capsys.readouterr().out
        assert main(listed) == EXIT_FAILED
        assert "the certificate does not verify" in capsys.readouterr().err
        assert main([*listed[:-1], url.replace("https", "http")]) == EXIT_FAILED
        assert "the URL begins with https://" in capsys.readouterr().err


def test_the_environment_may_say_where(
    broker: Running, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (broker.url, f"unix:{broker.data}/control.sock"):
        monkeypatch.setenv("TRIVIUM_URL", place)
        assert main(["exchange", "list"]) == EXIT_OK
    monkeypatch.setenv("TRIVIUM_URL", "http://127.0.0.1:1")
    assert commands.run("exchange", "list")[0] == EXIT_OK, "what is said goes first"


def test_the_configuration_says_where(broker: Running, commands: Commands, tmp_path: Path) -> None:
    file = tmp_path / "trivium.toml"
    file.write_text(f'[control]\nsocket = "{broker.data}/control.sock"\n[mqtt]\n')
    assert commands.run("exchange", "list", place=("--config", str(file)))[0] == EXIT_OK
    file.write_text('[control]\nsocket = "off"\n')
    code, _, err = commands.run("exchange", "list", place=("--config", str(file)))
    assert code == EXIT_USAGE
    assert "no control socket by its configuration" in err


@pytest.mark.parametrize(
    ("place", "code", "text"),
    [
        (("--data", "/nowhere"), EXIT_FAILED, "no broker listens on /nowhere/control.sock"),
        (("--url", "http://127.0.0.1:1"), EXIT_FAILED, "127.0.0.1:1: Connection refused"),
        (("--url", "ftp://x"), EXIT_USAGE, "a URL is http:// or https://"),
        (("--url", "http://x:port"), EXIT_USAGE, "Port could not be cast"),
        (("--url", "http://x/path"), EXIT_USAGE, "a URL is http:// or https://"),
        (("--config", "/nowhere.toml"), EXIT_USAGE, "/nowhere.toml: No such file"),
        (("--tls-insecure",), EXIT_USAGE, "need a URL that begins with https://"),
        (("--password-file", "x"), EXIT_USAGE, "the control socket asks for no password"),
    ],
)
def test_what_goes_wrong_is_one_line(
    commands: Commands, place: tuple[str, str], code: int, text: str
) -> None:
    found, out, err = commands.run("queue", "list", place=place)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("trivium queue")
    assert text in err


def test_what_answers_is_not_a_broker(broker: Running, commands: Commands) -> None:
    code, _, err = commands.run(
        "queue", "list", place=("--url", f"http://{broker.places['native']}")
    )
    assert (code, err.count("\n")) == (EXIT_FAILED, 1)
    assert "does not answer as a broker does" in err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["queue", "show", "none"], EXIT_FAILED, "no queue 'none' in vhost '/'"),
        (["queue", "show", "\x1b[2J"], EXIT_FAILED, r"no queue '\x1b[2J' in vhost '/'"),
        (["queue", "create", "x", "--arguments", "novalue"], EXIT_USAGE, "neither KEY=VALUE"),
        (["queue", "create", "x", "--arguments", "{"], EXIT_USAGE, "is not JSON"),
        (["group", "reset", "g", "--yes"], EXIT_FAILED, "at 'positions', or 'to' somewhere"),
        (["group", "reset", "g", "--to", "first", "--yes"], EXIT_FAILED, "no group 'g'"),
        (["group", "reset", "g", "--to", "time", "--yes"], EXIT_FAILED, "'time' is there where"),
        (["group", "reset", "g", "--to", "x", "--yes"], EXIT_USAGE, "invalid choice: 'x'"),
        (["group", "reset", "g", "--time", "tomorrow", "--yes"], EXIT_USAGE, "is no time"),
        (["stream", "create", "x", "--partitions", "0"], EXIT_USAGE, ": --partitions is from 1"),
        (
            ["user", "add-key", "u", "--scope", ""],
            EXIT_USAGE,
            ": --scope has at least 1 character\n",
        ),
        (["vhost", "create", "v", "--tag", ""], EXIT_USAGE, ": --tag has at least 1 character\n"),
        (["retained", "list", "--limit", "0"], EXIT_USAGE, ": --limit is from 1"),
        (
            ["binding", "create", "amq.topic", ""],
            EXIT_USAGE,
            ": DESTINATION has at least 1 character\n",
        ),
        (["queue", "nonsense"], EXIT_USAGE, "invalid choice: 'nonsense'"),
        (["queue", "list", "--columns", "a,,b"], EXIT_USAGE, "must not be empty"),
        (
            ["queue", "list", "--columns", "name,nope"],
            EXIT_USAGE,
            "'nope' is no field: one of vhost,",
        ),
        (
            ["retained", "list", "--columns", "nope"],
            EXIT_USAGE,
            "'nope' is no field: one of topic,",
        ),
        (["queue", "list", "--sort", "nope"], EXIT_FAILED, "which 'nope' is not: one of vhost,"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    commands: Commands, arguments: list[str], code: int, text: str
) -> None:
    found, out, err = commands.run(*arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert text in err


# Completion


def test_a_shell_completes_nouns_verbs_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == EXIT_OK
    script = capsys.readouterr().out
    assert " --sort-reverse " in script
    asked = 'COMP_WORDS=(trivium queue pu); COMP_CWORD=2; _shtab_trivium; echo "${COMPREPLY[@]}"'
    result = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.split() == ["purge"]
    assert main(["completion", "zsh"]) == EXIT_OK
    assert "#compdef trivium" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["import", ""], {"mosquitto", "rabbitmq"}),
        (["import", "mos"], {"mosquitto"}),
        (["chaos", ""], {"kill", "pause", "full", "network"}),
        (["chaos", "kill", "p"], {"pause"}),
        (["chaos", "--protocol", "m"], {"mqtt"}),
        (["import", "rabbitmq", "definitions.j"], {"definitions.json"}),
        (["check", "da"], {"data"}),
        (["serve", "--data", "d"], {"data"}),
        (["serve", "--config", "d"], {"data", "definitions.json"}),
    ],
)
def test_a_shell_completes_what_a_command_knows_by_itself(
    words: list[str], found: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "definitions.json").touch()
    assert main(["completion", "bash"]) == EXIT_OK
    line = " ".join(shlex.quote(word) for word in ("trivium", *words))
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_trivium"
    script = f"{capsys.readouterr().out}\n{asked}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    # Options are completed where the next word may be one.
    assert {each for each in done.stdout.split() if not each.startswith("-")} == found


def test_a_package_that_is_missing_is_named_with_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = ("shtab", "rich", "cryptography")
    # What was imported of them by others is as missing as they are.
    for name in (*packages, *sys.modules):
        if name.partition(".")[0] in packages:
            monkeypatch.setitem(sys.modules, name, None)
    for name in ("completion", "top", "certificates"):
        monkeypatch.delitem(sys.modules, f"trivium.cli.{name}", raising=False)
    for arguments, package, extra in (
        (["completion", "bash"], "shtab", "cli"),
        (["top"], "rich", "cli"),
        (["tls", "self-signed", "d"], "cryptography", "encryption"),
    ):
        assert main(arguments) == EXIT_FAILED
        need = f"it needs the package {package}: pip install 'trivium[{extra}]'"
        assert capsys.readouterr().err == f"trivium {arguments[0]}: {need}\n"


def completed(broker: Running, script: str, *words: str) -> list[str]:
    """What bash completes the last word to."""
    line = " ".join(shlex.quote(word) for word in words)
    words_are = f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))"
    asked = words_are + "; _shtab_trivium; printf '%s\\n' \"${COMPREPLY[@]}\""
    result = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TRIVIUM_URL": f"unix:{broker.data}/control.sock",
        },
    )
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_a_shell_completes_names_as_it_must_quote_them(
    broker: Running, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == EXIT_OK
    script = capsys.readouterr().out
    for name in ("say", "say it", "say$1", "x\ny", "hay"):
        commands.done("queue", "create", "--", name)
    found = completed(broker, script, "trivium", "queue", "purge", "sa")
    assert sorted(found) == ["say", "say\\ it", "say\\$1"]
    place = ("--data", str(broker.data))
    assert "hay" in completed(broker, script, "trivium", "queue", "show", *place, "")
    assert completed(broker, script, "trivium", "queue", "list", "--vhost", "") == ["/"]
    assert "amq.topic" in completed(broker, script, "trivium", "binding", "create", "amq.")
    nobody = ("--data", "/nowhere")
    assert completed(broker, script, "trivium", "queue", "show", *nobody, "sa") == [""]
    for name in ("say", "say it", "say$1", "x\ny", "hay"):
        commands.done("queue", "delete", "--yes", "--", name)


def test_names_are_completed_from_as_many_as_there_are(
    broker: Running,
    commands: Commands,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion, "PAGE_SIZE", 2)
    monkeypatch.setattr(completion, "MOST", 3)
    names = ["a-zed", "b-zed", "c-zed", "zed-1", "zed-2"]
    for name in names:
        commands.done("queue", "create", name)
    place = ("--url", f"unix:{broker.data}/control.sock")
    for prefix, expected in (("zed", names[3:]), ("", 3)):
        assert main(["completion", "names", "queue", "--prefix", prefix, *place]) == EXIT_OK
        found = capsys.readouterr().out.splitlines()
        assert expected in (found, len(found))
    for name in names:
        commands.done("queue", "delete", "--yes", name)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is missing")
def test_zsh_asks_for_names_with_what_is_typed(
    broker: Running, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "zsh"]) == EXIT_OK
    preamble = capsys.readouterr().out.partition("_trivium_names() {")
    script = "_trivium_names() {" + preamble[2].partition("\n}\n")[0] + "\n}\n"
    for name in ("say it", "hay"):
        commands.done("queue", "create", name)
    asked = (
        f"{script}\ncompadd() {{ shift; print -rl -- $@ }}\n"
        "words=(trivium queue purge 'say\\ '); CURRENT=4; PREFIX='say\\ '; _trivium_names queue"
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TRIVIUM_URL": f"unix:{broker.data}/control.sock",
    }
    result = subprocess.run(
        ["zsh", "-f", "-c", asked], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (result.stdout, result.stderr) == ("say it\n", "")
    for name in ("say it", "hay"):
        commands.done("queue", "delete", "--yes", name)


def test_names_are_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "SECONDS", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        assert main(["completion", "names", "queue", "--url", f"unix:{tmp_path}/s"]) == EXIT_OK
    assert capsys.readouterr() == ("", "")


def test_arguments_that_are_names_are_completed() -> None:
    """Each part of a path that names something is known, but for what is too many to list."""
    of_paths = {
        name
        for noun, found in module.NOUNS.items()
        for verb in found.verbs
        for name in re.findall(r"{([^}]*)}", module.operation_of(noun, verb).path)
    }
    left = {name for name in of_paths if completion.kind_of(f"path_{name}") is None}
    assert left == {"topic"}
    for kind, (path, field) in completion.KINDS.items():
        wanted = f"v1/{path}"
        (operation,) = (
            each
            for each in module.OPERATIONS.values()
            if (each.method, each.path) == ("GET", wanted)
        )
        assert operation.is_list
        assert field in hints_of(operation.result), kind

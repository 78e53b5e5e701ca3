"""`trivium status` and `trivium top`, against a running broker."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trivium_native
from tests.support.commands import COMMAND, run, serve
from tests.support.rest import DOCUMENT
from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.status import Look, duration, lines_of, rates_of, size

MARKUP = "<b>[red]x[/red]"
#: What has rates.
ROADS = ["amqp", "http", "mqtt", "native"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("b") / "d"
    ports = [f"--{name}=0" for name in ("mqtt", "amqp", "native")]
    with serve("--data", str(data), *ports, "--http", "off"):
        yield data


def look(at: float, received: int, turns: list[int], **about: Any) -> Look:
    protocol = {
        "name": "mqtt",
        "connections": 3,
        "messages_received": received,
        "messages_sent": 10 * received,
        "bytes_received": 0,
        "bytes_sent": 0,
    }
    lengths = [0.5, 5.0, None]
    overview = {
        "version": "9",
        "state": "running",
        "uptime_ms": 90_061_000,
        "alarms": [],
        "protocols": [protocol],
        "turns": [
            {"most_ms": most, "count": count} for most, count in zip(lengths, turns, strict=True)
        ],
        **dict.fromkeys(("connections", "consumers", "queues", "streams", "groups", "records"), 1),
        **dict.fromkeys(("messages_ready", "messages_unsettled", "messages_delayed"), 1),
        "retained_messages": 1,
        **about,
    }
    storage = {"directory": "d", "pending_bytes": 2048, "fsync": "always"}
    return Look(at, overview, storage, [])


def test_rates_are_by_time() -> None:
    (found,) = rates_of(look(1.0, 100, [0, 0, 0]), look(3.0, 300, [0, 0, 0]))
    assert (found["protocol"], found["connections"]) == ("mqtt", 3)
    assert (found["in/s"], found["out/s"]) == (100, 1000)


def test_rates_of_a_broker_that_has_started_again_are_not_below_zero() -> None:
    (found,) = rates_of(look(1.0, 100, [0, 0, 0]), look(2.0, 3, [0, 0, 0]))
    assert found["in/s"] == 0


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ([1, 0, 0], [2, 0, 0], "at most 0.5 ms since the start, at most 0.5 ms lately"),
        ([1, 1, 0], [2, 1, 0], "at most 5 ms since the start, at most 0.5 ms lately"),
        ([1, 1, 0], [1, 1, 1], "over 10 s since the start, over 10 s lately"),
        ([1, 0, 0], [1, 0, 0], "at most 0.5 ms since the start, none lately"),
    ],
)
def test_the_longest_turn_is_that_of_the_start_and_of_late(
    before: list[int], now: list[int], text: str
) -> None:
    assert dict(lines_of(look(1.0, 0, before), look(2.0, 0, now)))["longest turn"] == text


def test_alarms_are_said_loudly() -> None:
    alarm = {"resource": "disk", "is_on": True, "current_bytes": 1024, "limit_bytes": 2048}
    lines = dict(lines_of(look(1, 0, [0, 0, 0]), look(2, 0, [0, 0, 0], alarms=[alarm])))
    assert lines["disk"] == "ALARM: 1.0 KiB free, at least 2.0 KiB"


@pytest.mark.parametrize(
    ("number", "text"),
    [(-1, "unknown"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 s"), (61_000, "1 min 1 s"), (86_400_000, "1 d"), (90_061_000, "1 d 1 h")],
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_what_should_not_happen_is_told_once_it_has() -> None:
    before, now = look(1, 0, [0, 0, 0]), look(2, 0, [0, 0, 0])
    assert "trouble" not in dict(lines_of(before, now))
    trouble = {"messages_dropped": 2, "authentication_failures": 3}
    now.overview["protocols"][0].update(trouble)
    before.overview["protocols"][0].update({"messages_dropped": 2, "authentication_failures": 1})
    assert dict(lines_of(before, now))["trouble"] == "2 dropped, 3 logins failed (2 lately)"


def test_who_must_wait_is_told_for_what() -> None:
    alarm = {"resource": "disk", "is_on": True, "current_bytes": 1024, "limit_bytes": 2048}
    about = look(2, 0, [0, 0, 0], alarms=[alarm], state="blocked")
    found = dict(lines_of(look(1, 0, [0, 0, 0]), about))["broker"]
    assert "publishers wait for disk" in found


async def test_status_names_queues_with_messages_and_groups_that_are_behind(
    tmp_path: Path,
) -> None:
    ports = ["--native=0", "--mqtt=off", "--amqp=off", "--http=off"]
    with serve("--data", str(tmp_path / "d"), *ports) as (_, line):
        address = line.split("native=")[1].split()[0]
        async with trivium_native.connect(f"trivium://guest:guest@{address}") as client:
            await client.declare_queue("full")
            await client.declare_queue("empty")
            await client.declare_stream("s")
            for key in ("full", "s", "s"):
                await client.publish(b"x", routing_key=key, exchange="")
            await client.commit("late", "s", {0: 1})
            await client.commit("there", "s", {0: 2})
        out = run("status", "--data", str(tmp_path / "d")).stdout
        found = json.loads(run("status", "--json", "--data", str(tmp_path / "d")).stdout)
    _, _, queues, groups = out.split("\n\n")
    assert [line.split()[1] for line in queues.splitlines()] == ["NAME", "full"]
    assert [line.split()[1::3] for line in groups.splitlines()] == [["NAME", "LAG"], ["late", "1"]]
    assert found["queues_with_most"][0]["name"] == "full"
    assert [row["name"] for row in found["groups_with_most_lag"]] == ["late", "there"]


def test_what_is_shown_is_in_the_api() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    known = schemas["Overview"]["properties"]
    assert set(look(1, 0, [0, 0, 0]).overview) <= set(known)
    assert set(look(1, 0, [0, 0, 0]).storage) <= set(schemas["Storage"]["properties"])


def test_status_is_one_screen(data: Path) -> None:
    result = run("status", "--data", str(data))
    assert (result.returncode, result.stderr) == (EXIT_OK, "")
    lines = result.stdout.splitlines()
    assert len(lines) < 25
    assert re.match(r"broker +Trivium [0-9.]+, running, up for \d+ ", lines[0])
    assert f"at control    unix:{data}/control.sock" in lines
    assert [line.split()[0] for line in lines[-4:]] == ROADS


def test_status_as_json_is_one_object(data: Path) -> None:
    result = run("status", "--json", "--data", str(data))
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found["storage"]["directory"] == str(data)
    assert [each["protocol"] for each in found["rates"]] == ROADS
    assert "control" in [each["name"] for each in found["listeners"]]


def test_status_without_a_broker_is_one_line(tmp_path: Path) -> None:
    result = run("status", "--data", str(tmp_path))
    assert (result.returncode, result.stdout) == (EXIT_FAILED, "")
    assert result.stderr.startswith(f"trivium status: no broker listens on {tmp_path}/control.sock")


def test_top_is_for_a_terminal(data: Path) -> None:
    result = run("top", "--data", str(data))
    assert (result.returncode, result.stdout) == (EXIT_USAGE, "")
    assert result.stderr == "trivium top: this is no terminal; see trivium status, or --json\n"


def test_top_as_json_is_one_object_a_second_for_as_long_as_somebody_reads(data: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "top", "--json", "--data", str(data)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(2):
        found = json.loads(process.stdout.readline())
        assert [each["protocol"] for each in found["rates"]] == ROADS
        assert isinstance(found["queues_with_most"], list)
    process.stdout.close()
    assert process.wait(60) == EXIT_OK
    assert process.stderr.read() == ""
    process.stderr.close()


def test_top_is_live_and_q_ends_it(data: Path) -> None:
    assert run("queue", "create", MARKUP, "--data", str(data)).returncode == EXIT_OK
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 120))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [*COMMAND, "top", "--data", str(data)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"},
        start_new_session=True,
    )
    found = b""
    try:
        # The second picture is made of another look.
        while found.count(b"q ends") < 2:
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, found
            found += os.read(ours, 65536)
        os.write(ours, b"q")
        while process.poll() is None:
            if select.select([ours], [], [], 0.1)[0]:
                found += os.read(ours, 65536)
        assert process.returncode == EXIT_OK
        assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
    finally:
        process.kill()
        process.wait(60)
        os.close(theirs)
        os.close(ours)
    text = found.decode()
    assert MARKUP in text
    assert "running, up for" in text
    assert "Traceback" not in text

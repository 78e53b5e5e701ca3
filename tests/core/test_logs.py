"""The log's lines: their form, and for whom the broker was acting."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from tests.support import amqp, mqtt
from trivium.common.events import Events
from trivium.config import LogConfig
from trivium.runtime.logs import LogHandler

logger = logging.getLogger("trivium.tested")


class Log:
    """What a handler has written."""

    def __init__(self, form: str) -> None:
        self._stream = io.StringIO()
        self.handler = LogHandler(
            LogConfig(format="json" if form == "json" else "text"), self._stream
        )

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    found = Log(getattr(request, "param", "json"))
    logger.addHandler(found.handler)
    yield found
    logger.removeHandler(found.handler)


def client_events(client_id: str = "c") -> tuple[Events, mqtt.Client]:
    server = mqtt.Server()
    client = server.open(client_id)
    events = server.broker.events
    events.serving = client.connection
    return events, client


def test_a_line_is_an_object(log: Log) -> None:
    logger.warning("it is %d\nand more", 7)
    (line,) = log.lines
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "warning", "logger": logger.name, "message": "it is 7\nand more"}


def test_a_traceback_is_part_of_its_line(log: Log) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    (line,) = log.lines
    assert "ValueError: why" in line["exception"]


def test_a_line_names_the_client_that_is_served(log: Log) -> None:
    events, client = client_events()
    log.handler.follow(events)
    logger.warning("served")
    events.serving = None
    logger.warning("alone")
    served, alone = log.lines
    about = {name: served[name] for name in ("connection", "vhost", "client_id")}
    expected = {"connection": client.connection.peer.address, "vhost": "/", "client_id": "c"}
    assert about == expected
    assert "user" not in served, "it is anonymous"
    assert "connection" not in alone


def test_a_line_names_the_user(log: Log) -> None:
    server = amqp.Server()
    client = server.open()
    server.broker.events.serving = client.connection
    log.handler.follow(server.broker.events)
    logger.warning("served")
    assert (log.lines[0]["user"], log.lines[0]["vhost"]) == ("guest", "/")


def test_lines_of_other_threads_name_nobody(log: Log) -> None:
    events, _ = client_events()
    log.handler.follow(events)
    thread = threading.Thread(target=lambda: logger.warning("elsewhere"))
    thread.start()
    thread.join()
    assert "connection" not in log.lines[0]


@pytest.mark.parametrize("log", ["text"], indirect=True)
def test_a_line_of_text_ends_with_the_client(log: Log) -> None:
    events, client = client_events()
    logger.warning("before")
    log.handler.follow(events)
    logger.warning("served")
    before, served = log.text.splitlines()
    assert before.endswith(f"WARNING {logger.name}: before")
    address = client.connection.peer.address
    assert f"{logger.name}: served [connection={address} " in served
    assert served.endswith("client_id=c]")


@pytest.mark.parametrize("log", ["text"], indirect=True)
def test_a_client_cannot_make_lines_of_its_own(log: Log) -> None:
    events, _ = client_events("c]\n2026-01-01 ERROR forged")
    log.handler.follow(events)
    logger.warning("served")
    assert len(log.text.splitlines()) == 1


#: Whatever begins a line somewhere (``str.splitlines``), or speaks to a terminal.
CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u2028", "\u2029"]


@pytest.mark.parametrize("log", ["text"], indirect=True)
def test_control_characters_of_a_message_are_escaped(log: Log) -> None:
    name = "".join(f"{each}FORGED" for each in CONTROLS)
    logger.warning("queue '%s'", name)
    assert not set(log.text.rstrip("\n")) & set(CONTROLS)
    (line,) = log.text.splitlines()
    assert r"\nFORGED" in line
    assert r"\x1bFORGED" in line
    assert r"\u2028FORGED" in line


@pytest.mark.parametrize("log", ["text"], indirect=True)
def test_other_characters_of_a_message_stay(log: Log) -> None:
    logger.warning("'%s'", "é 日 \U0001f600 \\n \u00a0")
    assert "'é 日 \U0001f600 \\n \u00a0'" in log.text


@pytest.mark.parametrize("log", ["text"], indirect=True)
def test_a_traceback_keeps_its_lines_and_none_of_them_is_a_line_of_the_log(log: Log) -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("q\n2026-01-01 ERROR forged\x1b[31m\u2028x") from None
    except ValueError:
        logger.warning("failed", exc_info=True, stack_info=True)
    first, *others = log.text.split("\n")[:-1]
    assert first.endswith("failed")
    assert others[0] == "  Traceback (most recent call last):"
    assert len(others) > 5
    assert all(line.startswith("  ") for line in others)
    assert not set("".join(others)) & set(CONTROLS)

"""No secret in logs, errors, metrics or what objects say of themselves."""

from __future__ import annotations

import gc
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support import amqp, mqtt, native
from tests.support.metrics import metrics_text
from tests.support.server import Client
from trivium.cli.configuration import load
from trivium.config import EVERYTHING, Config, HttpAuthConfig, UserConfig
from trivium.errors import ConfigError
from trivium.security.api_keys import ApiKey
from trivium.security.attempts import Attempt, Login
from trivium.security.passwords import PasswordHash
from trivium.security.scram import ScramKeys
from trivium.security.stored import StoredUser
from trivium.security.token_keys import TokenKey
from trivium.security.web import WebAnswer, WebRequest
from trivium_native.client.values import ApiKeyInfo
from trivium_native.wire import frames

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "found",
    [
        Attempt(username="ann", password=SECRET.encode()),
        Login(identity=StoredUser(name="ann", stored=SECRET).identity, credential=SECRET),
        StoredUser(name="ann", stored=SECRET),
        UserConfig(password=SECRET),
        Config(users={"ann": UserConfig(password=SECRET)}),
        HttpAuthConfig(headers={"X": SECRET}),
        PasswordHash("sha512", (), SECRET.encode(), SECRET.encode()),
        ScramKeys(4096, SECRET.encode(), SECRET.encode(), SECRET.encode()),
        ApiKey(id="1", user="ann", digest=SECRET.encode()),
        ApiKeyInfo(id="1", user="ann", key=SECRET),
        TokenKey(None, "HS256", SECRET.encode()),
        WebRequest(
            url="x", timeout_ms=1, max_bytes=1, body=SECRET.encode(), headers=(("X", SECRET),)
        ),
        WebAnswer(200, SECRET.encode()),
    ],
    ids=lambda found: type(found).__name__,
)
def test_what_has_a_secret_does_not_say_it(found: object) -> None:
    assert SECRET not in repr(found)
    assert SECRET not in f"{found}"


@pytest.mark.parametrize(
    "text",
    [
        f'[users.ann]\npassword = ["{SECRET}"]',
        f'[users.ann]\npassword = {{a = "{SECRET}"}}',
        f'[users.ann]\npassword = "${SECRET}"',
        f'[users.ann]\npasword = "{SECRET}"',
        f'[users]\nann = "{SECRET}"',
        f'[http_auth]\nheaders = "{SECRET}"',
        f'[http_auth]\nheaders = ["{SECRET}"]',
        f'[http_auth]\nheaders = {{a = ["{SECRET}"]}}',
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trivium.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert SECRET not in str(raised.value)


def test_a_number_for_a_password_is_not_said(tmp_path: Path) -> None:
    file = tmp_path / "trivium.toml"
    file.write_text("[users.ann]\npassword = 8472019", encoding="utf-8")
    with pytest.raises(ConfigError, match="password") as raised:
        load(file)
    assert "8472019" not in str(raised.value)


def refused_by_mqtt(secret: bytes) -> tuple[Any, Client]:
    server = mqtt.Server()
    client = server.connect()
    client.feed(mqtt.connect("c", 5, username="guest", password=secret))
    return server, client


def refused_by_amqp(secret: bytes) -> tuple[Any, Client]:
    server = amqp.Server()
    client = server.connect()
    client.feed(amqp.PROTOCOL_HEADER)
    client.send(amqp.start_ok(b"guest", secret), channel=0)
    return server, client


def refused_by_native(secret: bytes) -> tuple[Any, Client]:
    server = native.Server()
    client = server.greet()
    client.feed(native.frame(frames.AUTH, 2, {"username": "guest", "password": secret}))
    return server, client


@pytest.mark.parametrize("refused", [refused_by_mqtt, refused_by_amqp, refused_by_native])
def test_a_refusal_does_not_say_what_was_shown(
    refused: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        server, client = refused(SECRET.encode())
    assert "guest" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET.encode() not in client.take_bytes()
    assert SECRET not in metrics_text(server.broker)


@pytest.mark.parametrize("refused", [refused_by_mqtt, refused_by_amqp, refused_by_native])
def test_a_name_with_line_ends_makes_no_lines_in_the_log(
    refused: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        refused(b"x\nINFO forged: y")
    assert "\nINFO forged" not in caplog.text


def test_what_is_stored_of_users_and_keys_is_hashed() -> None:
    server = native.Server()
    client = server.open()
    ask = frames.MANAGE_USERS
    client.ask(ask, action="add", name="ann", password=SECRET.encode())
    key = client.ask(ask, action="add-key", name="ann")["key"].split("_")[2]
    for name in ("users", "keys"):
        for _, row in server.storage.table(name).items():
            assert SECRET.encode() not in row
            assert key.encode() not in row
            assert bytes.fromhex(key) not in row
    listed = json.dumps([client.ask(ask, action="list"), client.ask(ask, action="list-keys")])
    assert SECRET not in listed
    assert key not in listed


def test_a_connection_keeps_no_password() -> None:
    """What is in memory for long may be in a dump of it."""
    ann = UserConfig(password=SECRET, permissions=EVERYTHING)
    server = mqtt.Server(config=Config(users={"ann": ann}))
    client = server.open("c", 5, username="ann", password=SECRET.encode())
    gc.collect()
    seen: set[int] = set()
    found = [vars_of(client.connection)]
    while found:
        for value in found.pop():
            if id(value) in seen or isinstance(value, type):
                continue
            seen.add(id(value))
            assert value != SECRET.encode(), "bytes as the client has sent them"
            if type(value).__module__.startswith("trivium_mqtt"):
                found.append(vars_of(value))


def vars_of(owner: object) -> list[object]:
    return [getattr(owner, name, None) for name in dir(owner) if not name.startswith("__")]

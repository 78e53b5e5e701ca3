"""Off-the-shelf clients that prove who they are in each way, against one broker."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import aio_pika
import jwt
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, ProbableAuthenticationError

from interop import javascript
from interop.brokers import LOOPBACK, TriviumProcess
from interop.mqtt import PATIENCE, V5, V311, Mqtt, take
from tests.support import mqtt
from trivium_native.errors import AuthenticationFailed
from trivium_native.sync import connect

SECRET = "a secret of more than thirty-two bytes"
#: credentials that hold, by the method that lets them in; what is empty is made by the fixture
WAYS = ("internal", "api-key", "jwt", "password-file", "http")


class Answers(BaseHTTPRequestHandler):
    """An HTTP authenticator that knows one user."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = (asked["username"], asked["password"]) == ("web", "web-password")
        body = json.dumps({"result": "allow" if known else "deny"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing is logged."""


class World:
    def __init__(self, broker: TriviumProcess) -> None:
        self.broker = broker
        self.credentials: dict[str, tuple[str, str]] = {
            "internal": ("ann", "ann-password"),
            "jwt": ("tom", token(3600)),
            "password-file": ("file", "file-password"),
            "http": ("web", "web-password"),
        }

    def administrator(self) -> Any:
        return connect(f"trivium://guest:guest@{LOOPBACK}:{self.broker.ports['native']}")

    def amqp(self, user: str, password: str) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                LOOPBACK,
                self.broker.ports["amqp"],
                credentials=pika.PlainCredentials(user, password),
                socket_timeout=PATIENCE,
            )
        )

    def mqtt(self, user: str, password: str, version: Any = V5) -> Mqtt:
        made = Mqtt(self.broker.ports["mqtt"], version=version, connects=False)
        made.client.username_pw_set(user, password)
        return made


def token(seconds: float) -> str:
    claims = {"sub": "tom", "exp": int(time.time() + seconds)}
    return jwt.encode(claims, SECRET, "HS256")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("authentication")
    (directory / "key").write_text(SECRET, encoding="utf-8")
    # Whoever is let in may do something.
    (directory / "acl").write_text("pattern readwrite #\n", encoding="utf-8")
    passwords = directory / "passwords"
    passwords.touch()
    subprocess.run(
        ["mosquitto_passwd", "-b", passwords, "file", "file-password"],
        check=True,
        capture_output=True,
    )
    web = ThreadingHTTPServer((LOOPBACK, 0), Answers)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    broker = TriviumProcess(
        directory,
        environment={
            "TRIVIUM_AUTH__ANONYMOUS": "never",
            "TRIVIUM_AUTH__SCRAM": "true",
            "TRIVIUM_AUTH__SCRAM_ITERATIONS": "4096",
            "TRIVIUM_AUTH__ACL_FILE": str(directory / "acl"),
            "TRIVIUM_AUTH__PASSWORD_FILES": json.dumps([str(passwords)]),
            "TRIVIUM_JWT__KEY_FILE": str(directory / "key"),
            "TRIVIUM_JWT__LEEWAY_SECONDS": "0",
            "TRIVIUM_HTTP_AUTH__URL": f"http://{LOOPBACK}:{web.server_port}/",
        },
    )
    broker.start()
    found = World(broker)
    with found.administrator() as client:
        client.add_user("ann", "ann-password")
        found.credentials["api-key"] = ("ann", client.add_api_key("ann").key)
    yield found
    broker.stop()
    web.shutdown()
    web.server_close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", [V311, V5])
def test_paho(world: World, way: str, version: Any) -> None:
    user, password = world.credentials[way]
    made = world.mqtt(user, password, version)
    assert not made.connect().reason.is_failure
    made.close()
    refused = world.mqtt(user, password + "x", version)
    assert refused.connect().reason.is_failure
    refused.close()


@pytest.mark.parametrize("way", WAYS)
def test_pika(world: World, way: str) -> None:
    user, password = world.credentials[way]
    world.amqp(user, password).close()
    with pytest.raises(ProbableAuthenticationError):
        world.amqp(user, password + "x")


@pytest.mark.parametrize("way", WAYS)
async def test_aio_pika(world: World, way: str) -> None:
    user, password = world.credentials[way]
    port = world.broker.ports["amqp"]
    made = await aio_pika.connect(host=LOOPBACK, port=port, login=user, password=password)
    await made.close()
    with pytest.raises(aio_pika.exceptions.AMQPError):
        await aio_pika.connect(host=LOOPBACK, port=port, login=user, password=password + "x")


@pytest.mark.parametrize("way", WAYS)
def test_native(world: World, way: str) -> None:
    user, password = world.credentials[way]
    place = f"{LOOPBACK}:{world.broker.ports['native']}"
    with connect(f"trivium://{user}:{password}@{place}"):
        pass
    with pytest.raises(AuthenticationFailed):
        connect(f"trivium://{user}:{password}x@{place}")


def test_paho_without_credentials_is_refused_although_a_server_could_be_asked(
    world: World,
) -> None:
    made = Mqtt(world.broker.ports["mqtt"], connects=False)
    assert made.connect().reason.is_failure
    made.close()


def test_paho_is_told_when_its_user_is_deleted(world: World) -> None:
    with world.administrator() as client:
        client.add_user("short", "password")
        made = world.mqtt("short", "password")
        assert not made.connect().reason.is_failure
        client.delete_user("short")
    reason, _ = take(made.disconnects, "DISCONNECT")
    assert reason.value == 0x87
    made.close()


def test_pika_goes_on_with_a_new_token_and_ends_without_one(world: World) -> None:
    renewed, other = world.amqp("tom", token(3)), world.amqp("tom", token(3))
    renewed.update_secret(token(3600), "rotation")
    # It reads until the broker closes it.
    with pytest.raises(ConnectionClosedByBroker, match="credentials"):
        other.process_data_events(time_limit=PATIENCE)
    assert renewed.channel().is_open
    renewed.close()


@pytest.mark.parametrize(
    ("credentials", "outcome"),
    [("ann:ann-password", True), ("ann:wrong", 0x87), ("nobody:ann-password", 0x87)],
)
def test_mqttjs_by_scram_and_again(world: World, credentials: str, outcome: Any) -> None:
    port = world.broker.ports["mqtt"]
    assert javascript.run("mqttjs.mjs", port, "scram", 5, credentials) == outcome


@pytest.mark.parametrize(("seconds", "outcome"), [(3600, 0), (-1, 0x87)])
def test_mqttjs_renews_its_token(world: World, seconds: float, outcome: int) -> None:
    tokens = f"{token(3600)} {token(seconds)}"
    port = world.broker.ports["mqtt"]
    assert javascript.run("mqttjs.mjs", port, "renewal", 5, tokens) == outcome


def test_paho_by_a_token_as_authentication_data(world: World) -> None:
    for seconds, is_refused in ((3600, False), (-1, True)):
        shown: dict[str, Any] = {
            "AuthenticationMethod": "OAUTH2-JWT",
            "AuthenticationData": token(seconds).encode(),
        }
        made = Mqtt(world.broker.ports["mqtt"], connects=False, **shown)
        assert made.connect().reason.is_failure is is_refused
        made.close()


def test_scramp_by_scram(world: World) -> None:
    """Another implementation of the client's side, over a bare socket."""
    scramp = pytest.importorskip("scramp")
    for password, first_byte in (("ann-password", 0), ("wrong", 0x87)):
        client = scramp.ScramClient(["SCRAM-SHA-256"], "ann", password)
        with socket.create_connection((LOOPBACK, world.broker.ports["mqtt"]), PATIENCE) as made:
            reader = made.makefile("rb")
            first = client.get_client_first().encode()
            made.sendall(mqtt.connect("scramp", 5, properties=scram(first)))
            kind, body = packet_from(reader)
            assert (kind, body[0]) == (0xF0, 0x18)
            client.set_server_first(body[body.index(b"r=") :].decode())
            final = b"\x18" + mqtt.block(scram(client.get_client_final().encode()))
            made.sendall(mqtt.packet(0xF0, final))
            kind, body = packet_from(reader)
            assert (kind, body[1]) == (0x20, first_byte)
            if not first_byte:
                at = body.index(b"v=")
                client.set_server_final(body[at : at + 46].decode())


def scram(data: bytes) -> bytes:
    """The properties of a message of SCRAM."""
    return b"\x15" + mqtt.text("SCRAM-SHA-256") + b"\x16" + mqtt.text(data)


def packet_from(reader: BinaryIO) -> tuple[int, bytes]:
    """One packet of less than 16 KiB: its first byte and body."""
    kind, size = reader.read(2)
    if size > 0x7F:
        size += (reader.read(1)[0] - 1) * 0x80
    return kind, reader.read(size)

"""Clients off the shelf over TLS, with the certificates of ``trivium tls self-signed``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import aio_pika
import aiomqtt
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pika.exceptions import AuthenticationError

from interop.brokers import LOOPBACK, compiled_build
from interop.site import Site
from trivium.common.client_tls import ClientTls
from trivium_native.sync import connect
from trivium_native.values import Publication

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["interpreted", "compiled"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    build: str = request.param
    if build == "compiled" and (reason := compiled_build()) is not None:
        pytest.skip(reason)
    found = Site(tmp_path_factory.mktemp(build), build)
    yield found
    found.close()


@pytest.mark.parametrize("with_certificate", [False, True])
@pytest.mark.parametrize("door", ["mqtts", "wss"])
def test_paho_publishes_and_receives(site: Site, door: str, with_certificate: bool) -> None:
    transport: Literal["tcp", "websockets"] = "websockets" if door == "wss" else "tcp"
    client = paho.Client(CallbackAPIVersion.VERSION2, "paho", transport=transport)
    client.tls_set_context(site.context(with_certificate))
    found: list[bytes] = []

    def on_connect(client: paho.Client, *_: object) -> None:
        client.subscribe("paho/#", 1)

    def on_subscribe(client: paho.Client, *_: object) -> None:
        client.publish("paho/a", b"x" * 100_000, 1)

    def on_message(client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        found.append(bytes(message.payload))
        client.disconnect()

    client.on_connect, client.on_subscribe, client.on_message = on_connect, on_subscribe, on_message
    client.connect(LOOPBACK, site.port(door))
    client.loop_forever()
    assert found == [b"x" * 100_000]


@pytest.mark.parametrize("with_certificate", [False, True])
def test_aiomqtt_publishes_and_receives(site: Site, with_certificate: bool) -> None:
    async def run() -> object:
        client = aiomqtt.Client(
            LOOPBACK, site.port("mqtts"), tls_context=site.context(with_certificate)
        )
        async with client:
            await client.subscribe("aiomqtt/#", 1)
            await client.publish("aiomqtt/a", b"hello", 1)
            async for message in client.messages:
                return message.payload
        return None

    assert asyncio.run(run()) == b"hello"


def mosquitto(program: str, site: Site, *arguments: str) -> list[str]:
    found = shutil.which(program)
    if found is None:
        pytest.skip("mosquitto-clients is missing")
    place = ["-h", LOOPBACK, "-p", str(site.port("mqtts")), "--cafile", site.ca]
    return [found, *place, *arguments]


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
def test_mosquitto_pub_and_sub(site: Site, version: str) -> None:
    keep = ["-r", "-q", "1", "-t", f"mosquitto/{version}", "-m", "kept", "--tls-version", version]
    subprocess.run(mosquitto("mosquitto_pub", site, *keep), check=True, timeout=30)
    once = ["-C", "1", "-W", "20", "-t", f"mosquitto/{version}", "--tls-version", version]
    got = subprocess.run(
        mosquitto("mosquitto_sub", site, *once), check=True, timeout=30, capture_output=True
    )
    assert got.stdout == b"kept\n"


def test_mosquitto_pub_with_a_certificate(site: Site) -> None:
    pair = ["--cert", str(site.folder / "client.pem"), "--key", str(site.folder / "client.key")]
    command = mosquitto("mosquitto_pub", site, "-q", "1", "-t", "a", "-m", "b", *pair)
    subprocess.run(command, check=True, timeout=30)


def test_pika_confirms_and_consumes(site: Site) -> None:
    parameters = pika.ConnectionParameters(
        LOOPBACK,
        site.port("amqps"),
        ssl_options=pika.SSLOptions(site.context(), LOOPBACK),
        socket_timeout=20,
    )
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("pika")
    for size in (0, 10, 200_000):
        channel.basic_publish("", "pika", b"x" * size)
    for size in (0, 10, 200_000):
        _, _, body = channel.basic_get("pika", auto_ack=True)
        assert body == b"x" * size
    connection.close()


def test_pika_comes_in_by_its_certificate(site: Site) -> None:
    def open_connection(context: ssl.SSLContext) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                LOOPBACK,
                site.port("amqps"),
                credentials=pika.credentials.ExternalCredentials(),
                ssl_options=pika.SSLOptions(context, LOOPBACK),
                socket_timeout=20,
            )
        )

    connection = open_connection(site.context(with_certificate=True))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("external", exclusive=True)
    # Whom the broker takes it for: a message may name nobody else (validated user-id).
    channel.basic_publish("", "external", b"x", pika.BasicProperties(user_id="client"))
    assert channel.basic_get("external", auto_ack=True)[2] == b"x"
    connection.close()
    with pytest.raises(AuthenticationError):
        open_connection(site.context())


def test_aio_pika_roundtrip(site: Site) -> None:
    async def run() -> bytes:
        connection = await aio_pika.connect(
            f"amqps://guest:guest@{LOOPBACK}:{site.port('amqps')}/", ssl_context=site.context()
        )
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("aio", auto_delete=True)
            await channel.default_exchange.publish(aio_pika.Message(b"hello"), "aio")
            message = await queue.get()
            await message.ack()
            return message.body

    assert asyncio.run(run()) == b"hello"


def node(script: str, site: Site, *arguments: str) -> object:
    program = shutil.which("node")
    if program is None or not (HERE / "node_modules").is_dir():
        pytest.skip("Node.js or interop/node_modules is missing")
    result = subprocess.run(
        [program, str(HERE / "node" / script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"NODE_EXTRA_CA_CERTS": site.ca, "OVER_TLS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_amqplib_roundtrip(site: Site) -> None:
    found = node("amqplib.mjs", site, str(site.port("amqps")), "roundtrip", "tls")
    assert found == [str(i) for i in range(200)]


def test_mqttjs_retained(site: Site) -> None:
    found = node("mqttjs.mjs", site, str(site.port("mqtts")), "retained", "5", "tls")
    assert found == {"payload": b"kept".hex(), "retain": True}


def test_mqttjs_by_wss(site: Site) -> None:
    place = f"wss://{LOOPBACK}:{site.port('wss')}/mqtt"
    found = node("mqttjs.mjs", site, place, "retained", "5", "wss")
    assert found == {"payload": b"kept".hex(), "retain": True}


def test_native_roundtrip(site: Site) -> None:
    url = f"triviums://{LOOPBACK}:{site.port('natives')}"
    tls = ClientTls(
        ca=site.ca,
        certificate=str(site.folder / "client.pem"),
        key=str(site.folder / "client.key"),
    )
    with connect(url, tls=tls) as client:
        client.declare_stream("native")
        client.bind_stream("native", "amq.topic", "native")
        client.publish_batch([Publication(payload=b"x" * 300_000, routing_key="native")])
        (batch,) = client.fetch("native", 0, 0).batches
        assert [record.payload for record in batch.records(0)] == [b"x" * 300_000]
        client.delete_stream("native")


def test_https_serves_health_and_metrics(site: Site) -> None:
    place = f"https://{LOOPBACK}:{site.port('https')}"
    for path in ("/health/ready", "/metrics"):
        with urllib.request.urlopen(place + path, context=site.context(), timeout=20) as answer:
            assert answer.status == 200
            assert answer.read()


def openssl(site: Site, *arguments: str, door: str = "mqtts", lines: str = "Q\n") -> str:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is missing")
    place = f"{LOOPBACK}:{site.port(door)}"
    result = subprocess.run(
        [program, "s_client", "-connect", place, "-CAfile", site.ca, *arguments],
        input=lines,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return result.stdout + result.stderr


def test_openssl_verifies_and_negotiates(site: Site) -> None:
    said = openssl(site, "-alpn", "mqtt", "-verify_return_error")
    assert "Verify return code: 0 (ok)" in said
    assert "ALPN protocol: mqtt" in said
    assert re.search(r"New, TLSv1\.3, Cipher is TLS_", said)
    said = openssl(site, "-tls1_2")
    assert re.search(r"Cipher is ECDHE-ECDSA-.*GCM|Cipher is ECDHE-ECDSA-CHACHA20", said)
    assert "Secure Renegotiation IS supported" in said
    assert "Compression: NONE" in said


@pytest.mark.parametrize("door", ["mqtts", "https"])
def test_openssl_may_update_keys_but_not_for_ever(site: Site, door: str) -> None:
    # One for each read of its input, of 8 KiB or less.
    read = "K\n" * 4096
    said = openssl(site, "-tls1_3", door=door, lines=read * 10 + "Q\n")
    assert said.count("KEYUPDATE") >= 10
    assert said.endswith("DONE\n")
    said = openssl(site, "-tls1_3", door=door, lines=read * 4000)
    assert 10 < said.count("KEYUPDATE") < 4000


def test_openssl_resumes_a_session(site: Site) -> None:
    said = openssl(site, "-tls1_2", "-reconnect")
    assert said.count("Reused, TLSv1.2") == 5


def test_sighup_reads_the_certificates_again(site: Site) -> None:
    other = site.folder / "other"
    subprocess.run(
        [sys.executable, "-m", "trivium", "tls", "self-signed", str(other), "--host", "b.example"],
        check=True,
        capture_output=True,
    )
    kept = {name: (site.folder / name).read_bytes() for name in ("server.pem", "server.key")}
    assert site.process.process is not None

    def hang_up(files: dict[str, bytes]) -> str:
        for name, data in files.items():
            (site.folder / name).write_bytes(data)
        before = site.process.log.read_text().count("were read again")
        site.process.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
        for _ in range(200):
            said = openssl(site)
            if site.process.log.read_text().count("were read again") >= before + 3:
                return said
        raise AssertionError(site.process.log_tail())

    hang_up({name: (other / name).read_bytes() for name in kept})
    assert "Verify return code: 0" not in openssl(site), "of another authority"
    hang_up(kept)
    assert "Verify return code: 0 (ok)" in openssl(site)

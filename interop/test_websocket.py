"""Clients over WebSocket: paho, MQTT.js and amqp-client.js, on a listener and on the HTTP port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from interop.brokers import TriviumProcess, compiled_build
from interop.javascript import run
from interop.mqtt import V5, V31, V311, Mqtt

ROUNDTRIP = [str(i) for i in range(200)]


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TriviumProcess]:
    """One that listens for WebSockets too."""
    build: str = request.param
    if build not in ("interpreted", "compiled"):
        pytest.skip("a listener of ours is asked")
    if build == "compiled" and (reason := compiled_build()) is not None:
        pytest.skip(reason)
    process = TriviumProcess(
        tmp_path_factory.mktemp(build),
        is_compiled=build == "compiled",
        protocols=("mqtt", "amqp", "http"),
        environment={"TRIVIUM_LISTEN__WS": "0"},
    )
    process.start()
    yield process
    assert process.stop() == 0
    process.check_log()


@pytest.fixture(params=["ws", "http"])
def port(request: pytest.FixtureRequest, broker: TriviumProcess) -> int:
    """Where WebSockets are served."""
    return broker.ports[request.param]


@pytest.mark.parametrize("version", [V31, V311, V5], ids=["v31", "v311", "v5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_order_is_kept(port: int, name: str, version: MQTTProtocolVersion, qos: int) -> None:
    count = 200
    with (
        Mqtt(port, f"{name}s", version=version, transport="websockets") as subscriber,
        Mqtt(port, f"{name}p", version=version, transport="websockets") as publisher,
    ):
        subscriber.subscribe(name, qos)
        for i in range(count):
            publisher.publish_later(name, b"%d" % i, qos)
        assert subscriber.receive_payloads(count) == [b"%d" % i for i in range(count)]


def test_paho_large_message(port: int, name: str) -> None:
    payload = bytes(range(256)) * 4000
    with Mqtt(port, name, transport="websockets") as client:
        client.subscribe(name, 1)
        client.publish(name, payload, 1)
        assert client.receive().payload == payload


def test_websocket_and_plain_clients_meet(broker: TriviumProcess, port: int, name: str) -> None:
    with (
        Mqtt(broker.ports["mqtt"], f"{name}s") as subscriber,
        Mqtt(port, f"{name}p", transport="websockets") as publisher,
    ):
        subscriber.subscribe(name, 1)
        publisher.publish(name, b"x", 1)
        assert subscriber.receive().payload == b"x"


@pytest.mark.parametrize("version", [4, 5], ids=["v311", "v5"])
def test_mqttjs(port: int, name: str, version: int) -> None:
    url = f"ws://127.0.0.1:{port}/mqtt"
    assert run("mqttjs.mjs", url, "matrix", version, name) == [
        [f"/{subscribed}/é/{published}", "00ff", min(subscribed, published)]
        for subscribed in range(3)
        for published in range(3)
    ]
    assert run("mqttjs.mjs", url, "will", version, name) == b"gone".hex()


def test_amqp_client_js_confirms_and_order(broker: TriviumProcess, name: str) -> None:
    url = f"ws://127.0.0.1:{broker.ports['http']}/amqp"
    assert run("amqpclient.mjs", url, "roundtrip", name) == ROUNDTRIP


def test_amqp_client_js_large_message(broker: TriviumProcess, name: str) -> None:
    url = f"ws://127.0.0.1:{broker.ports['http']}/amqp"
    assert run("amqpclient.mjs", url, "large", name) == 1_000_000

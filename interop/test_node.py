"""The JavaScript clients MQTT.js and amqplib."""

from __future__ import annotations

import pytest

from interop.javascript import run

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["v311", "v5"])


@VERSIONS
def test_mqttjs_qos(mqtt_port: int, name: str, version: int) -> None:
    assert run("mqttjs.mjs", mqtt_port, "matrix", version, name) == [
        [f"/{subscribed}/é/{published}", "00ff", min(subscribed, published)]
        for subscribed in range(3)
        for published in range(3)
    ]


@VERSIONS
def test_mqttjs_persistent_session(mqtt_port: int, name: str, version: int) -> None:
    found = run("mqttjs.mjs", mqtt_port, "session", version, name)
    assert found == {"present": True, "found": [str(i) for i in range(20)]}


@VERSIONS
def test_mqttjs_retained(mqtt_port: int, name: str, version: int) -> None:
    found = run("mqttjs.mjs", mqtt_port, "retained", version, name)
    assert found == {"payload": b"kept".hex(), "retain": True}


@VERSIONS
def test_mqttjs_will(mqtt_port: int, name: str, version: int) -> None:
    assert run("mqttjs.mjs", mqtt_port, "will", version, name) == b"gone".hex()


def test_mqttjs_properties(mqtt_port: int, name: str) -> None:
    found = run("mqttjs.mjs", mqtt_port, "properties", 5, name)
    assert 90 <= found.pop("messageExpiryInterval") <= 100
    assert found == {
        "contentType": "text/plain",
        "correlationData": "0100fe",
        "responseTopic": f"{name}/r",
        "userProperties": {"a": ["1", "2"], "b": "3"},
        "subscriptionIdentifier": 9,
    }


def test_amqplib_confirms_and_order(amqp_port: int, name: str) -> None:
    found = run("amqplib.mjs", amqp_port, "roundtrip", name)
    assert found == [str(i) for i in range(200)]


def test_amqplib_properties(amqp_port: int, name: str) -> None:
    assert run("amqplib.mjs", amqp_port, "properties", name) == {
        "body": "00ff",
        "contentType": "application/json",
        "correlationId": "c",
        "replyTo": "r",
        "expiration": "60000",
        "messageId": "m",
        "headers": {
            "text": "ü",
            "number": 5,
            "flag": True,
            "nothing": None,
            "list": [1, {"a": "b"}],
            "f": 0.25,
        },
    }


def test_amqplib_topic_exchange(amqp_port: int, name: str) -> None:
    assert run("amqplib.mjs", amqp_port, "topic", name) == ["a.b.c", "a..c"]


def test_amqplib_redelivery(amqp_port: int, name: str) -> None:
    assert run("amqplib.mjs", amqp_port, "redelivery", name) == [False, True]


def test_amqplib_refusal_closes_one_channel(amqp_port: int, name: str) -> None:
    message = run("amqplib.mjs", amqp_port, "refusal", name)
    assert f"404 (NOT-FOUND) with message \"NOT_FOUND - no queue '{name}' in vhost '/'\"" in message


def test_amqplib_return(amqp_port: int, name: str) -> None:
    found = run("amqplib.mjs", amqp_port, "returned", name)
    assert found == [312, "NO_ROUTE", name]

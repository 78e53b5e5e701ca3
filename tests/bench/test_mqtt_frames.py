"""The encoders against paho-mqtt: what it sends for the same request, and what it understands."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from bench import mqtt_frames
from bench.frames import SEQUENCE, FrameBlock, payload


@contextmanager
def paho_client(client_id: str, keep_alive: int = 60) -> Iterator[tuple[Client, socket.socket]]:
    """Yield a client that believes to be connected, and the server's end of its connection."""
    client = Client(CallbackAPIVersion.VERSION2, client_id, clean_session=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        client.connect(host, port, keep_alive)
        server, _ = listener.accept()
    with server:
        server.settimeout(5)
        yield client, server
        client.disconnect()


def test_connect_is_what_paho_sends() -> None:
    with paho_client("bench-1", 600) as (_, server):
        assert server.recv(1000) == mqtt_frames.connect("bench-1", 600)


def test_subscribe_and_disconnect_are_what_paho_sends() -> None:
    with paho_client("bench-1") as (client, server):
        server.recv(1000)
        client.subscribe("bench/topic", 1)
        assert server.recv(1000) == mqtt_frames.subscribe(1, "bench/topic", 1)
        client.disconnect()
        assert server.recv(1000) == mqtt_frames.disconnect()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_is_what_paho_sends(qos: int) -> None:
    body = payload(300)
    with paho_client("bench-1") as (client, server):
        server.recv(1000)
        server.sendall(bytes((mqtt_frames.CONNACK, 2, 0, 0)))
        client.loop(5)
        client.publish("bench/topic", body, qos)
        frame, fields = mqtt_frames.publish("bench/topic", qos, body)
        block = FrameBlock(frame, fields, 1)
        if qos:
            block.column(mqtt_frames.PACKET_ID)[:] = 1
        assert server.recv(1000) == bytes(block.take(1))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_receives_a_block_of_publishes(qos: int) -> None:
    received: list[MQTTMessage] = []
    frame, fields = mqtt_frames.publish("bench/topic", qos, payload(64))
    block = FrameBlock(frame, fields, 3)
    block.column(SEQUENCE)[:] = [10, 11, 12]
    if qos:
        block.column(mqtt_frames.PACKET_ID)[:] = [1, 2, 65535]
    with paho_client("bench-1") as (client, server):
        client.on_message = lambda _client, _data, message: received.append(message)
        server.sendall(bytes((mqtt_frames.CONNACK, 2, 0, 0)) + block.take(3))
        if qos == 2:
            releases = FrameBlock(
                mqtt_frames.acknowledgement(mqtt_frames.PUBREL),
                mqtt_frames.ACKNOWLEDGEMENT_FIELDS,
                3,
            )
            releases.column(mqtt_frames.PACKET_ID)[:] = [1, 2, 65535]
            server.sendall(releases.take(3))
        for _ in range(20):
            client.loop(5)
            if len(received) == 3:
                break
    numbers = [int.from_bytes(message.payload[:8], "little") for message in received]
    assert numbers == [10, 11, 12]
    assert {message.topic for message in received} == {"bench/topic"}
    assert {message.qos for message in received} == {qos}
    assert [message.mid for message in received] == ([1, 2, 65535] if qos else [0, 0, 0])


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (268435455, "ffffff7f"),
    ],
)
def test_mqtt_2_2_3_remaining_length(value: int, encoded: str) -> None:
    assert mqtt_frames.remaining_length(value).hex() == encoded

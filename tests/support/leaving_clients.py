"""Clients that come, use what there is, and leave: ``python -m tests.support.leaving_clients``.

In a process of their own, so that the broker's has nothing of theirs. Each function does one visit.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Literal

import paho.mqtt.client as mqtt
import pika
import pika.exceptions
from paho.mqtt.enums import CallbackAPIVersion
from pika.adapters.blocking_connection import BlockingChannel
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

import trivium_native


def _mqtt(host: str, port: int, transport: Literal["tcp", "websockets"] = "tcp") -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5, transport=transport)
    client.will_set("left/will", b"gone", 1)
    client.connect(host, port)
    client.loop_start()
    for topic in ("left/#", "$share/group/left/+"):
        client.subscribe(topic, 2)
    for qos in (0, 1, 2):
        client.publish("left/topic", b"payload", qos, retain=True).wait_for_publish(10)
    client.unsubscribe("left/#")
    return client


def mqtt_disconnects(host: str, port: int) -> None:
    client = _mqtt(host, port)
    client.disconnect()
    client.loop_stop()


def websocket_disconnects(host: str, port: int) -> None:
    client = _mqtt(host, port, "websockets")
    client.disconnect()
    client.loop_stop()


def websocket_vanishes(host: str, port: int) -> None:
    client = _mqtt(host, port, "websockets")
    client.loop_stop()
    # The process ends without another word.


def _websocket(host: str, port: int) -> ClientConnection:
    client = connect(f"ws://{host}:{port}/mqtt", subprotocols=[Subprotocol("mqtt")])
    client.send(b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c")
    assert client.recv()
    return client


def websocket_closes(host: str, port: int) -> None:
    _websocket(host, port).close()


def websocket_is_wrong(host: str, port: int) -> None:
    """It sends a frame of no known kind."""
    client = _websocket(host, port)
    client.socket.sendall(b"\x83\x80\0\0\0\0")
    with contextlib.suppress(ConnectionClosed):
        client.recv()


def mqtt_vanishes(host: str, port: int) -> None:
    client = _mqtt(host, port)
    client.loop_stop()
    socket = client.socket()
    assert socket is not None
    socket.close()


def mqtt_is_wrong(host: str, port: int) -> None:
    client = _mqtt(host, port)
    client.loop_stop()
    socket = client.socket()
    assert socket is not None
    socket.send(b"\x00\x00")


def _amqp(host: str, port: int) -> BlockingChannel:
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    other = connection.channel()
    other.queue_declare("left", durable=True)
    other.confirm_delivery()
    # It stays there, and keeps nothing of its publisher.
    other.basic_publish("", "left", b"stays", pika.BasicProperties(delivery_mode=2))
    other.close()
    channel = connection.channel()
    channel.exchange_declare("left", "topic", auto_delete=True)
    channel.exchange_declare("left-outer", "fanout", auto_delete=True)
    channel.exchange_bind("left", "left-outer")
    arguments = {"x-expires": 600_000, "x-message-ttl": 600_000, "x-max-priority": 2}
    mine = str(channel.queue_declare("", exclusive=True, arguments=arguments).method.queue)
    channel.queue_bind(mine, "left", "#")
    for _ in range(3):
        channel.basic_publish("left", "key", b"payload")
    channel.basic_qos(prefetch_count=1)
    next(channel.consume(mine))
    channel.basic_get(mine, auto_ack=False)
    return channel


def amqp_reads(host: str, port: int) -> None:
    """One consumer of a stream is cancelled, one leaves, the stream of one is deleted."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    stream = {"x-queue-type": "stream"}
    for name in ("left-stream", "left-other"):
        channel.queue_declare(name, durable=True, arguments=stream)
        channel.basic_publish("", name, b"payload")
        channel.basic_publish("", name, b"payload")
    for name in ("left-stream", "left-stream", "left-other"):
        reader = connection.channel()
        reader.basic_qos(prefetch_count=1)
        next(reader.consume(name, arguments={"x-stream-offset": "first"}))
        if name == "left-stream":
            reader.cancel()
    last = connection.channel()
    last.basic_qos(prefetch_count=10)
    next(last.consume("left-stream", arguments={"x-stream-offset": "first"}))
    channel.queue_delete("left-other")
    connection.close()


def amqp_closes(host: str, port: int) -> None:
    _amqp(host, port).connection.close()


def amqp_transacts(host: str, port: int) -> None:
    channel = _amqp(host, port).connection.channel()
    channel.tx_select()
    channel.basic_publish("left", "key", b"payload")
    channel.tx_commit()
    channel.basic_publish("left", "key", b"payload")
    channel.connection.close()


def amqp_errs(host: str, port: int) -> None:
    channel = _amqp(host, port)
    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare("no such queue", passive=True)
    channel.connection.channel().basic_publish("left", "key", b"payload")
    channel.connection.close()


def amqp_vanishes(host: str, port: int) -> None:
    _amqp(host, port)


def amqp_is_refused(host: str, port: int) -> None:
    wrong = pika.PlainCredentials("guest", "wrong")
    with contextlib.suppress(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=wrong))


def native_closes(host: str, port: int) -> None:
    asyncio.run(_native(f"trivium://{host}:{port}"))


async def _native(url: str) -> None:
    async with trivium_native.connect(url) as client:
        await client.declare_stream("left")
        await client.declare_queue("left-queue")
        await client.publish(b"stays", exchange="", routing_key="left-queue")
        await client.open_producer("left")
        async with (
            client.subscribe("#", no_local=True),
            client.consume("left-queue"),
            client.read("left"),
            client.join("left", ["left"]),
        ):
            pass
        async with client.consume("left-queue"), client.read("left"):
            await client.delete("queue", "left-queue")
            await client.delete("stream", "left")


def http_asks(host: str, port: int) -> None:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics") as answer:
        assert answer.read()


def http_borrows(host: str, port: int) -> None:
    """Messages that are there, and some that are waited for and do not come."""
    vhost = f"http://{host}:{port}/api/v1/vhosts/%2F"
    _send("PUT", f"{vhost}/queues/lent", {})
    message = {"key": "lent", "payload": "x"}
    _send("POST", f"{vhost}/exchanges/amq.default/messages", {"messages": [message]})
    for _ in range(2):
        _send("POST", f"{vhost}/queues/lent/leases", {"wait_ms": 20})
    _send("DELETE", f"{vhost}/queues/lent", None)
    _send("PUT", f"{vhost}/streams/read", {})
    _send("GET", f"{vhost}/streams/read/partitions/0/records?wait_ms=20", None)


def _send(method: str, url: str, body: object) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


VISITS: dict[str, list[Callable[[str, int], None]]] = {
    "mqtt": [mqtt_disconnects, mqtt_vanishes, mqtt_is_wrong],
    "amqp": [amqp_reads, amqp_closes, amqp_transacts, amqp_errs, amqp_vanishes, amqp_is_refused],
    "native": [native_closes],
    "http": [http_asks, http_borrows],
    "ws": [websocket_disconnects, websocket_vanishes, websocket_closes, websocket_is_wrong],
}

if __name__ == "__main__":
    protocol, name, address = sys.argv[1:]
    host, _, port = address.rpartition(":")
    for visit in VISITS[protocol]:
        if visit.__name__ == name:
            visit(host, int(port))

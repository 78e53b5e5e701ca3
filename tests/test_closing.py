"""The last answer reaches a client although what it sent was not read, on every protocol.

A socket that is closed with unread input is reset, and its peer gets an error in place of what it
was told.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import msgpack
import pytest
from pamqp import body, commands, frame, header

from trivium.config import Config, LimitsConfig, Listen, StorageConfig
from trivium.runtime.broker import Broker

#: More than any socket's buffers hold.
MUCH = 16 << 20


def config(**limits: float) -> Config:
    return Config(
        listen={name: Listen(0) for name in ("mqtt", "amqp", "native")},
        storage=StorageConfig(mode="memory"),
        limits=LimitsConfig(**limits),  # type: ignore[arg-type]
    )


class Client:
    """A plain socket."""

    def __init__(self, broker: Broker, protocol: str) -> None:
        host, _, port = broker.listeners[protocol].rpartition(":")
        self.loop = asyncio.get_running_loop()
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self.loop.sock_recv(self.socket, size - len(data))
            assert piece
            data += piece
        return data

    async def receive_all(self) -> bytes:
        """Everything up to the end; raises when the connection is reset."""
        data = b""
        while piece := await self.loop.sock_recv(self.socket, 1 << 16):
            data += piece
        return data


async def open_amqp(broker: Broker) -> Client:
    client = Client(broker, "amqp")
    start_ok = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
    await client.send(b"AMQP\0\0\x09\x01")
    for method in (
        start_ok,
        commands.Connection.TuneOk(2047, 131_072, 0),
        commands.Connection.Open("/"),
    ):
        await client.send(frame.marshal(method, 0))
    await client.send(frame.marshal(commands.Channel.Open(), 1))
    data = b""
    while not data.endswith(bytes.fromhex("0014000b 00000000 ce")):
        data += await client.loop.sock_recv(client.socket, 1 << 16)
        assert data
    return client


def publishes(size: int) -> bytes:
    one = (
        frame.marshal(commands.Basic.Publish(exchange="amq.topic", routing_key="k"), 1)
        + frame.marshal(header.ContentHeader(0, 100_000, commands.Basic.Properties()), 1)
        + frame.marshal(body.ContentBody(bytes(100_000)), 1)
    )
    return one * (size // len(one) + 1)


def method_of(data: bytes) -> Any:
    """The first frame in ``data``."""
    return frame.unmarshal(data)[2]


async def test_amqp_close_ahead_of_publishes_that_were_buffered_is_answered() -> None:
    async with Broker(config()) as broker:
        client = await open_amqp(broker)
        goodbye = frame.marshal(commands.Connection.Close(200, "bye", 0, 0), 0)
        await client.send(goodbye + publishes(MUCH))
        assert await client.receive_all() == frame.marshal(commands.Connection.CloseOk(), 0)
        client.socket.close()


async def test_amqp_close_of_the_broker_is_read_although_much_is_on_its_way() -> None:
    async with Broker(config()) as broker:
        client = await open_amqp(broker)
        wrong = frame.marshal(commands.Queue.Declare(queue="q"), 77)
        await client.send(wrong + publishes(MUCH))
        await client.send(frame.marshal(commands.Connection.CloseOk(), 0))
        told = method_of(await client.receive_all())
        assert isinstance(told, commands.Connection.Close)
        assert told.reply_code == 504
        client.socket.close()


@pytest.mark.parametrize(
    ("hello", "wrong", "answer"),
    [
        # A second CONNECT is a protocol error; what follows is not read.
        ("10 0e 0004 4d515454 05 02 0000 00 0001 63", "10 0e 0004", b"\xe0\x01\x82"),
        ("10 0e 0004 4d515454 05 02 0000 00 0001 63", "00 00", b"\xe0\x01\x81"),
    ],
)
async def test_mqtt_disconnect_of_the_broker_is_read_although_much_is_on_its_way(
    hello: str, wrong: str, answer: bytes
) -> None:
    async with Broker(config()) as broker:
        client = Client(broker, "mqtt")
        connect = bytes.fromhex(hello)
        await client.send(connect)
        (_, length) = await client.receive(2)
        await client.receive(length)
        packet = connect if wrong.startswith("10") else bytes.fromhex(wrong)
        await client.send(packet + bytes(MUCH))
        assert await client.receive_all() == answer
        client.socket.close()


async def test_mqtt_refusal_is_read_although_much_is_on_its_way() -> None:
    async with Broker(config()) as broker:
        client = Client(broker, "mqtt")
        # No such protocol version.
        await client.send(bytes.fromhex("10 0d 0004 4d515454 03 02 0000 0001 63") + bytes(MUCH))
        assert await client.receive_all() == bytes.fromhex("20 02 00 01")
        client.socket.close()


async def test_native_error_is_read_although_much_is_on_its_way() -> None:
    async with Broker(config()) as broker:
        client = Client(broker, "native")
        await client.send(struct.pack("<IBQ", 9, 0x7F, 1) + bytes(MUCH))
        answer = await client.receive_all()
        code = msgpack.unpackb(answer[13:])[0]
        assert code == 103
        client.socket.close()


@pytest.mark.parametrize("protocol", ["mqtt", "amqp", "native"])
async def test_clients_are_told_that_the_broker_stops_although_they_are_not_read(
    protocol: str,
) -> None:
    broker = await Broker(config()).__aenter__()
    client = Client(broker, protocol)
    if protocol == "mqtt":
        await client.send(bytes.fromhex("10 0e 0004 4d515454 05 02 0000 00 0001 63"))
        (_, length) = await client.receive(2)
        await client.receive(length)
        expected = b"\xe0\x01\x8b"
    elif protocol == "amqp":
        client.socket.close()
        client = await open_amqp(broker)
        expected = b"\x01\x00\x00"
    else:
        hello = msgpack.packb({"protocol": "trivium", "version": 1})
        await client.send(struct.pack("<IBQ", 9 + len(hello), 0x01, 1) + hello)
        (length,) = struct.unpack("<I", await client.receive(4))
        await client.receive(length)
        expected = b""
    for connection in broker.connections:
        connection.transport.pause_reading()
    await client.send(bytes(100_000))
    stopping = asyncio.create_task(broker.__aexit__(None, None, None))
    answer = await client.receive(max(len(expected), 1))
    assert answer.startswith(expected)
    if protocol == "amqp":
        client.socket.close()
    else:
        await client.receive_all()
        client.socket.close()
    await stopping

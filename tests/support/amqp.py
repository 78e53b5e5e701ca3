"""Drives AMQP connections without sockets; frames are made and read by pamqp, not by our codec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pamqp import body, commands, frame, header
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

import trivium_amqp
from tests.support.amqp_strict import StrictClient
from tests.support.server import Client as BaseClient
from tests.support.server import Server as BaseServer
from tests.support.server import Transport
from trivium.runtime.adapter import Adapter
from trivium.runtime.adapter import Connection as CoreConnection
from trivium_amqp.connection import AmqpConnection
from trivium_amqp.options import AmqpOptions

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}

#: What pamqp makes of a frame: a method, a content header, a body or a heartbeat.
Received = Any


class StrictTransport(Transport):
    """Everything that is written must be what a strict client takes."""

    def __init__(self) -> None:
        super().__init__()
        self.strict = StrictClient()

    def wrote(self, connection: CoreConnection, data: bytes) -> None:
        self.strict.take(data)
        super().wrote(connection, data)


class Client(BaseClient):
    """A client that has sent nothing yet."""

    server: Server
    transport: StrictTransport
    connection: AmqpConnection

    def __init__(self, server: BaseServer, is_loopback: bool = True) -> None:
        super().__init__(server, "amqp", is_loopback, StrictTransport())

    def take(self) -> list[Received]:
        """The frames that the server has written since the last look."""
        return [received for _, received in self.take_with_channels()]

    def take_with_channels(self) -> list[tuple[int, Received]]:
        unread = self.take_bytes()
        found: list[tuple[int, Received]] = []
        while unread:
            size, channel, received = frame.unmarshal(unread)
            unread = unread[size:]
            found.append((channel, received))
        return found

    # Frames

    def send(self, *methods: Frame, channel: int = 1) -> None:
        """Send methods in one turn."""
        self.feed(b"".join(frame.marshal(method, channel) for method in methods))

    def call(self, *methods: Frame, channel: int = 1) -> list[Received]:
        """Send methods in one turn; the frames that came back."""
        self.send(*methods, channel=channel)
        return self.take()

    def ask(self, method: Frame, channel: int = 1) -> Received:
        """Send a method; the one frame that came back, where needed once it is durable."""
        received = self.call(method, channel=channel)
        if not received:
            self.server.sync()
            received = self.take()
        assert len(received) == 1, received
        return received[0]

    def publish(self, key: str, payload: bytes = b"x", exchange: str = "", **kwargs: Any) -> None:
        """Publish in one turn; see ``publish_frames``."""
        self.feed(publish_frames(key, payload, exchange, **kwargs))

    # Shorthand

    def handshake(
        self,
        user: bytes = b"guest",
        password: bytes = b"guest",
        vhost: str = "/",
        capabilities: dict[str, Any] | None = None,
        frame_max: int = 131_072,
        heartbeat: int = 0,
    ) -> Client:
        """Open the connection and channel 1."""
        self.feed(PROTOCOL_HEADER)
        self.send(start_ok(user, password, capabilities), channel=0)
        self.transport.strict.frame_max = frame_max
        self.send(Connection.TuneOk(2047, frame_max, heartbeat), channel=0)
        self.send(Connection.Open(vhost), channel=0)
        self.send(Channel.Open())
        names = [received.name for received in self.take()]
        assert names == [
            "Connection.Start",
            "Connection.Tune",
            "Connection.OpenOk",
            "Channel.OpenOk",
        ]
        return self

    def open_channel(self, number: int) -> None:
        assert self.ask(Channel.Open(), channel=number).name == "Channel.OpenOk"

    def declare(self, name: str = "q", **kwargs: Any) -> str:
        """Declare a queue; its name."""
        answer = self.ask(Queue.Declare(queue=name, **kwargs))
        assert isinstance(answer, Queue.DeclareOk), answer
        assert isinstance(answer.queue, str)
        return answer.queue

    def bind(self, queue: str, exchange: str, key: str, **kwargs: Any) -> None:
        answer = self.ask(Queue.Bind(queue=queue, exchange=exchange, routing_key=key, **kwargs))
        assert isinstance(answer, Queue.BindOk), answer

    def exchange(self, name: str, kind: str = "direct", **kwargs: Any) -> None:
        answer = self.ask(Exchange.Declare(exchange=name, exchange_type=kind, **kwargs))
        assert isinstance(answer, Exchange.DeclareOk), answer

    def consume(self, queue: str, tag: str = "c", **kwargs: Any) -> list[Received]:
        """Start a consumer; what came behind the consume-ok."""
        received = self.call(Basic.Consume(queue=queue, consumer_tag=tag, **kwargs))
        assert isinstance(received[0], Basic.ConsumeOk), received
        return received[1:]

    def get(self, queue: str, no_ack: bool = True) -> bytes | None:
        """basic.get; the body, or None when the queue is empty."""
        received = self.call(Basic.Get(queue=queue, no_ack=no_ack))
        if isinstance(received[0], Basic.GetEmpty):
            return None
        assert isinstance(received[0], Basic.GetOk), received
        return b"".join(part.value for part in received[2:])

    def counts(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers, by a passive declare."""
        answer = self.ask(Queue.Declare(queue=queue, passive=True))
        assert isinstance(answer, Queue.DeclareOk), answer
        return answer.message_count or 0, answer.consumer_count or 0


class Server(BaseServer):
    """A broker that speaks AMQP."""

    def make_adapters(self) -> list[Adapter]:
        options = self.config.protocols.get("amqp")
        assert options is None or isinstance(options, AmqpOptions)
        return [trivium_amqp.adapter(options)]

    def connect(self, is_loopback: bool = True) -> Client:
        """A client that has sent nothing."""
        return Client(self, is_loopback)

    def open(self, **kwargs: Any) -> Client:
        """A client with an open connection and channel 1."""
        client = self.connect().handshake(**kwargs)
        self.sync()
        return client


def start_ok(
    user: bytes = b"guest", password: bytes = b"guest", capabilities: dict[str, Any] | None = None
) -> Connection.StartOk:
    announced: dict[str, Any] = dict(CAPABILITIES if capabilities is None else capabilities)
    return Connection.StartOk(
        {"capabilities": announced},
        "PLAIN",
        (b"\x00" + user + b"\x00" + password).decode(),
        "en_US",
    )


def publish_frames(
    key: str,
    payload: bytes = b"x",
    exchange: str = "",
    mandatory: bool = False,
    immediate: bool = False,
    channel: int = 1,
    chunk: int = 131_064,
    **properties: Any,
) -> bytes:
    """The frames of a publish, with body frames of at most ``chunk`` bytes."""
    method = Basic.Publish(
        exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
    )
    content = header.ContentHeader(0, len(payload), Basic.Properties(**properties))
    frames = [frame.marshal(method, channel), frame.marshal(content, channel)]
    for at in range(0, len(payload), chunk):
        frames.append(frame.marshal(body.ContentBody(payload[at : at + chunk]), channel))
    return b"".join(frames)


def names(received: Iterable[Received]) -> list[str]:
    return [one.name for one in received]


def bodies(received: Iterable[Received]) -> list[bytes]:
    return [one.value for one in received if isinstance(one, body.ContentBody)]


def tags(received: Iterable[Received]) -> list[int]:
    """The delivery tags of the deliveries."""
    return [one.delivery_tag or 0 for one in received if isinstance(one, commands.Basic.Deliver)]


def assert_channel_closed(received: Received, code: int, text: str) -> None:
    assert isinstance(received, Channel.Close), received
    assert (received.reply_code, received.reply_text) == (code, text)


def assert_connection_closed(client: Client, code: int, text: str) -> None:
    """The last frame is a connection.close like this."""
    received = client.take()[-1]
    assert isinstance(received, Connection.Close), received
    assert (received.reply_code, received.reply_text) == (code, text)

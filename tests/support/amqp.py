"""Drives AMQP connections without sockets; frames are made and read by pamqp, not by our codec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from pamqp import body, commands, frame, header
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

import trivium_amqp
from tests.support.core import CLOCK_OFFSET, move_to
from trivium.config import Config
from trivium.runtime.adapter import Connection as CoreConnection
from trivium.runtime.adapter import Peer
from trivium.runtime.broker import Broker, Driver
from trivium.storage.base import Storage
from trivium.storage.memory import MemoryStorage
from trivium_amqp.connection import AmqpConnection

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


class FakeTransport:
    """Records what the connection asks of its socket."""

    def __init__(self) -> None:
        self.written = b""
        self.is_paused = False
        self.is_closed = False
        self.is_aborted = False
        #: bytes that the socket holds
        self.waiting = 0
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.is_paused = True
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.is_paused = False
        self.calls.append("resume_reading")

    def close(self) -> None:
        self.is_closed = True
        self.calls.append("close")

    def abort(self) -> None:
        self.is_aborted = True
        self.calls.append("abort")

    def unsent(self) -> int:
        return self.waiting


class FakeDriver(Driver):
    """Writes to the fake transports; blocking work waits until the test lets it run."""

    def __init__(self) -> None:
        self.blocking: list[Callable[[], None]] = []

    def write(self, connection: CoreConnection, output: list[bytes]) -> None:
        transport = connection.transport
        assert isinstance(transport, FakeTransport)
        transport.written += b"".join(output)
        if connection.is_writable and not connection.is_closed:
            connection.flushed()

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self.blocking.append(lambda: done(work()))


class Clock:
    """Stands in for the clocks that the broker reads at the start of each turn."""

    def __init__(self) -> None:
        self._wall = time.time_ns()
        self._monotonic = self._wall - CLOCK_OFFSET * 1_000_000

    def time_ns(self) -> int:
        return self._wall

    def monotonic_ns(self) -> int:
        return self._monotonic

    def move(self, server: Server, milliseconds: int) -> None:
        """Let time pass, and what is due happen."""
        self._wall += milliseconds * 1_000_000
        self._monotonic += milliseconds * 1_000_000
        server.broker.begin_turn()
        server.end_turn()


class Client:
    """One client's end of a connection."""

    def __init__(self, server: Server, peer: Peer) -> None:
        self.server = server
        self.transport = FakeTransport()
        connection = server.adapter.connect(self.transport, peer)
        assert isinstance(connection, AmqpConnection)
        self.connection = connection
        server.broker.connections.add(connection)
        self._unread = b""

    # Bytes

    def feed(self, data: bytes) -> None:
        """Have the connection read ``data`` in one turn."""
        if not self.connection.is_closed:
            self.connection.feed(data)
        self.server.end_turn()

    def take_bytes(self) -> bytes:
        """What the server has written since the last look."""
        data = self.transport.written
        self.transport.written = b""
        return data

    def take(self) -> list[Received]:
        """The frames that the server has written since the last look."""
        return [received for _, received in self.take_with_channels()]

    def take_with_channels(self) -> list[tuple[int, Received]]:
        self._unread += self.take_bytes()
        found: list[tuple[int, Received]] = []
        while self._unread:
            size, channel, received = frame.unmarshal(self._unread)
            self._unread = self._unread[size:]
            found.append((channel, received))
        return found

    def lose(self) -> None:
        """The socket is gone."""
        self.connection.is_closed = True
        self.server.broker.connections.discard(self.connection)
        self.connection.lost()
        self.server.end_turn()

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
            self.server.settle()
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


class Server:
    """A broker with the AMQP adapter, without sockets."""

    def __init__(self, config: Config | None = None, storage: Storage | None = None) -> None:
        self.driver = FakeDriver()
        self.adapter = trivium_amqp.adapter()
        self.broker = Broker(config)
        self.broker.clock_offset = CLOCK_OFFSET
        self.broker.open(storage or MemoryStorage(), self.driver, [self.adapter])
        self.vhost = self.broker.vhost("/")
        #: makes durable what is pending; for storage that does not do so by itself
        self.settle: Callable[[], None] = lambda: None

    def connect(self, is_loopback: bool = True) -> Client:
        """A client that has sent nothing."""
        return Client(self, Peer("127.0.0.1:1", is_loopback))

    def open(self, **kwargs: Any) -> Client:
        """A client with an open connection and channel 1."""
        return self.connect().handshake(**kwargs)

    def advance(self, seconds: float) -> None:
        """Let time pass, with turns whenever one is due."""
        broker = self.broker
        end = broker.elapsed_ms + int(seconds * 1000)
        while (at := broker.next_at()) and at <= end:
            move_to(broker, at)
            self.end_turn()
        move_to(broker, end)
        self.end_turn()

    def end_turn(self) -> None:
        """End the turn, and those that it asks for."""
        self.broker.end_turn()
        while self.broker._dirty:
            self.broker.end_turn()


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

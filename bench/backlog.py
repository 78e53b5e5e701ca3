"""Measure a backlog: many messages published while nobody consumes, then drained in order."""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench import amqp_frames
from bench.amqp_clients import AmqpConsumer, AmqpPublisher, AmqpSetup
from bench.endpoints import Address, Endpoint, PeerError, Publisher, Receiver, closed_on_error
from bench.frames import payload
from bench.mqtt_clients import MqttPublisher, MqttSubscriber
from bench.runner import make_server, server_cores, working_directory
from bench.servers import Server

KINDS: Final = ("queue", "session", "stream")
_NAME: Final = "backlog"
_WINDOW: Final = 4000
_RECEIVE_BYTES: Final = 256 * 1024
_PARTS: Final = 10
"""The first and the last of so many parts of the messages give the rates at start and end."""
_STALL_SECONDS: Final = 30.0

#: What the broker must reach: resident bytes, rate at the end over that at the start, and the rate
#: of draining over that of publishing.
MAX_RESIDENT: Final = 400_000_000
MIN_END: Final = 0.7
MIN_DRAIN: Final = 0.5


@dataclass(frozen=True)
class BacklogResult:
    """A backlog was published and drained; rates in messages per second."""

    server: str
    kind: str
    messages: int
    payload: int
    start_rate: float
    """Over the first tenth of the messages."""
    end_rate: float
    """Over the last tenth."""
    publish_rate: float
    drain_rate: float
    resident_bytes: int
    """The most of resident memory that was seen, from the first message to the last."""
    lost: int
    duplicated: int
    is_in_order: bool

    @property
    def is_met(self) -> bool:
        """Every goal is reached, and nothing is lost, repeated or out of order."""
        return (
            self.resident_bytes <= MAX_RESIDENT
            and self.end_rate >= MIN_END * self.start_rate
            and self.drain_rate >= MIN_DRAIN * self.publish_rate
            and not self.lost
            and not self.duplicated
            and self.is_in_order
        )

    def __str__(self) -> str:
        return (
            f"{self.server:20} {self.kind:8} {self.messages:,} x {self.payload} B:"
            f" published {self.publish_rate:,.0f}/s"
            f" (end/start {self.end_rate / self.start_rate:.2f}),"
            f" drained {self.drain_rate:,.0f}/s ({self.drain_rate / self.publish_rate:.2f}),"
            f" {self.resident_bytes / 1e6:.0f} MB resident, {self.lost} lost,"
            f" {self.duplicated} twice, {'in' if self.is_in_order else 'OUT OF'} order:"
            f" {'met' if self.is_met else 'missed'}"
        )


def measure_backlog(server_name: str, kind: str, messages: int, size: int) -> BacklogResult:
    """Publish ``messages`` of ``size`` bytes to a queue, session or stream; drain it.

    Raises:
        ServerError: the server cannot be started.
        PeerError: it refused something, or nothing moved for :data:`_STALL_SECONDS`.
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        cores = stack.enter_context(server_cores(pin=False))
        server = make_server(server_name, directory, cores, on_disk=True)
        server.start()
        stack.callback(server.stop)
        body = payload(size)
        watch = Watch(server)
        publisher = _open_publisher(kind, server, body)
        stack.callback(publisher.close)
        marks = _fill(publisher, messages, watch)
        receiver = _open_receiver(kind, server, body)
        stack.callback(receiver.close)
        begin = time.monotonic()
        _drain(receiver, messages, watch)
        drained = messages / (time.monotonic() - begin)
        tally = receiver.check.tally(messages)
        part = messages / _PARTS
        return BacklogResult(
            server=server_name,
            kind=kind,
            messages=messages,
            payload=size,
            start_rate=part / (marks[1] - marks[0]),
            end_rate=part / (marks[-1] - marks[-2]),
            publish_rate=messages / (marks[-1] - marks[0]),
            drain_rate=drained,
            resident_bytes=watch.most,
            lost=tally.lost,
            duplicated=tally.duplicated,
            is_in_order=receiver.check.is_in_order,
        )


class Watch:
    """Looks at the server's memory about ten times a second."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._next = 0.0
        self.most = 0

    def look(self, now: float) -> None:
        """Note the memory, if the last time is long enough ago."""
        if now >= self._next:
            self._next = now + 0.1
            self.most = max(self.most, self._server.resident_bytes())


def _open_publisher(kind: str, server: Server, body: bytes) -> Publisher:
    if kind == "session":
        _session(server.addresses["mqtt"], body).close()
        return MqttPublisher(server.addresses["mqtt"], "publisher", _NAME, 1, body, _WINDOW)
    setup = AmqpSetup(server.addresses["amqp"])
    with closed_on_error(setup.socket):
        setup.declare_queue(_NAME, _table(kind, "x-queue-type", "stream"))
        setup.close()
    return AmqpPublisher(server.addresses["amqp"], "", _NAME, body, _WINDOW)


def _session(address: Address, body: bytes, *, is_resumed: bool = False) -> MqttSubscriber:
    return MqttSubscriber(
        address, _NAME, _NAME, 1, body, _RECEIVE_BYTES, is_kept=True, is_resumed=is_resumed
    )


def _open_receiver(kind: str, server: Server, body: bytes) -> Receiver:
    if kind == "session":
        return _session(server.addresses["mqtt"], body, is_resumed=True)
    setup = AmqpSetup(server.addresses["amqp"])
    table = _table(kind, "x-stream-offset", "first")
    return AmqpConsumer(setup, _NAME, body, _WINDOW, 100, _RECEIVE_BYTES, table)


def _table(kind: str, name: str, value: str) -> bytes:
    return amqp_frames.text_table(name, value) if kind == "stream" else amqp_frames.EMPTY_TABLE


def _fill(publisher: Publisher, messages: int, watch: Watch) -> list[float]:
    """Publish; return when it began and when each tenth was acknowledged."""
    marks = [time.monotonic()]

    def act() -> int:
        while publisher.sent < messages and not publisher.has_unsent:
            allowed = min(_WINDOW - publisher.unsettled, messages - publisher.sent)
            if allowed <= 0:
                break
            publisher.publish(allowed)
        while publisher.settled >= math.ceil(messages * len(marks) / _PARTS):
            marks.append(time.monotonic())
            if len(marks) > _PARTS:
                break
        if publisher.refused:
            raise PeerError(f"{publisher.refused} messages were refused")
        return publisher.settled

    drive(publisher, act, messages, watch)
    return marks


def _drain(receiver: Receiver, messages: int, watch: Watch) -> None:
    drive(receiver, lambda: receiver.check.received, messages, watch)
    receiver.finish()


def drive(
    endpoint: Endpoint,
    act: Callable[[], int],
    goal: int,
    watch: Watch,
    stall_seconds: float = _STALL_SECONDS,
) -> None:
    """Let the endpoint react until ``act``, called each turn, returns ``goal``.

    Raises:
        PeerError: what ``act`` returns has not changed for ``stall_seconds``.
    """
    epoll = select.epoll()
    with contextlib.closing(epoll):
        epoll.register(endpoint.socket.fileno(), select.EPOLLIN)
        is_waiting = False
        progress = -1
        moved_at = time.monotonic()
        while (done := act()) < goal:
            now = time.monotonic()
            watch.look(now)
            if done != progress:
                progress, moved_at = done, now
            elif now > moved_at + stall_seconds:
                raise PeerError(f"nothing moved for {stall_seconds:.0f} s at message {done}")
            if endpoint.has_unsent != is_waiting:
                is_waiting = endpoint.has_unsent
                events = select.EPOLLIN | (select.EPOLLOUT if is_waiting else 0)
                epoll.modify(endpoint.socket.fileno(), events)
            for _, event in epoll.poll(0.1):
                if event & select.EPOLLOUT:
                    endpoint.writable()
                if event & ~select.EPOLLOUT:
                    endpoint.readable()

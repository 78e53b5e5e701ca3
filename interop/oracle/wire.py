"""A client that says any method in any order and writes down what comes back.

Frames and methods are pamqp's. Tables are made here, since the type of each value matters and the
library would choose it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pamqp import commands
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Connection
from pamqp.exceptions import UnmarshalingException
from pamqp.frame import unmarshal

from interop.brokers import LOOPBACK

#: Stands for a word that no other case uses, in names that are sent and in texts that come back.
UNIQUE: Final = "~"

#: How long a broker may take to answer; only failures take as long.
PATIENCE: Final = 20.0

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8

_FRAME_MAX: Final = 131_072
_NUMBERS: Final = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "T": ">Q",
    "f": ">f",
    "d": ">d",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A value with its type letter (RabbitMQ's): ``D`` takes (scale, number)."""

    letter: str
    value: Any


def table(fields: Mapping[str, Any], unique: str) -> bytes:
    """A field table with its length in front."""
    content = b"".join(_short(name) + _value(value, unique) for name, value in fields.items())
    return struct.pack(">I", len(content)) + content


def _value(value: Any, unique: str) -> bytes:
    if isinstance(value, Typed):
        if value.letter == "D":
            return b"D" + struct.pack(">Bi", *value.value)
        return value.letter.encode() + struct.pack(_NUMBERS[value.letter], value.value)
    if isinstance(value, str):
        return b"S" + _long(value.replace(UNIQUE, unique).encode())
    if isinstance(value, bytes):
        return b"x" + _long(value)
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return _value(Typed("I", value), unique)
    if isinstance(value, float):
        return _value(Typed("d", value), unique)
    if isinstance(value, list):
        return b"A" + _long(b"".join(_value(item, unique) for item in value))
    if isinstance(value, dict):
        return b"F" + table(value, unique)
    assert value is None
    return b"V"


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a client does. ``connection`` is a name, ``channel`` a number."""

    connection: str = "a"
    channel: int = 1

    def frames(self, unique: str) -> bytes:
        """What is sent."""
        return b""

    def answers(self) -> tuple[str, ...]:
        """Names of the methods of which one answers; none: whatever comes before the barrier."""
        return ()


@dataclass(frozen=True, slots=True)
class Say(Step):
    """Send a method. ``options`` is the table of one that has a table."""

    method: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] | None = None

    def frames(self, unique: str) -> bytes:
        given = {
            name: value.replace(UNIQUE, unique) if isinstance(value, str) else value
            for name, value in self.arguments.items()
        }
        payload = self._class()(**given).marshal()
        if self.options is not None:
            payload = payload[:-4] + table(self.options, unique)
        made = self._class()
        return frame(METHOD, self.channel, struct.pack(">I", made.index) + payload)

    def answers(self) -> tuple[str, ...]:
        if self.arguments.get("nowait"):
            return ()
        made = self._class()
        return tuple(made.valid_responses) if made.synchronous else ()

    def _class(self) -> type[Frame]:
        found = commands
        for part in self.method.split("."):
            found = getattr(found, part)
        return found  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Publish(Step):
    """basic.publish with its content. ``properties`` are the property flags and list as bytes."""

    key: str = ""
    exchange: str = ""
    body: bytes = b"x"
    properties: bytes = b"\x00\x00"
    headers: dict[str, Any] | None = None
    mandatory: bool = False
    immediate: bool = False

    def frames(self, unique: str) -> bytes:
        method = Basic.Publish(
            exchange=self.exchange.replace(UNIQUE, unique),
            routing_key=self.key.replace(UNIQUE, unique),
            mandatory=self.mandatory,
            immediate=self.immediate,
        )
        properties = self.properties
        if self.headers is not None:
            properties = b"\x20\x00" + table(self.headers, unique)
        content = struct.pack(">HHQ", 60, 0, len(self.body)) + properties
        made = frame(
            METHOD, self.channel, struct.pack(">I", Basic.Publish().index) + method.marshal()
        )
        made += frame(HEADER, self.channel, content)
        if self.body:
            made += frame(BODY, self.channel, self.body)
        return made


@dataclass(frozen=True, slots=True)
class Raw(Step):
    """Send bytes as they are. ``is_fatal``: they end the connection, on another channel's account
    than the one by which an answer to nothing is noticed."""

    data: bytes = b""
    is_fatal: bool = False

    def frames(self, unique: str) -> bytes:
        return self.data

    def answers(self) -> tuple[str, ...]:
        return ("Connection.Close",) if self.is_fatal else ()


@dataclass(frozen=True, slots=True)
class Await(Step):
    """Wait for a method that comes by itself."""

    method: str = ""

    def answers(self) -> tuple[str, ...]:
        return (self.method,)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a client opens its connections."""

    header: bytes = PROTOCOL_HEADER
    mechanism: str = "PLAIN"
    response: str = "\x00guest\x00guest"
    channel_max: int = 2047
    frame_max: int = _FRAME_MAX
    vhost: str = "/"
    capabilities: Mapping[str, bool] = field(
        default_factory=lambda: {
            "authentication_failure_close": True,
            "consumer_cancel_notify": True,
        }
    )
    #: sent behind connection.start in place of the rest
    instead: Sequence[Step] = ()


#: The way that all cases take which are about something else.
PLAINLY: Final = Opening()


class Link:
    """One connection. What comes back is rendered as lines of text, in the order it came."""

    def __init__(self, port: int, opening: Opening, unique: str) -> None:
        self.socket = socket.create_connection((LOOPBACK, port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines: list[str] = []
        self.is_open = True
        self._unique = unique
        self._data = b""
        self._channels: set[int] = set()
        self._open(opening)

    def close(self) -> None:
        """Close it, politely where it is still open."""
        if self.is_open:
            self._send(0, Connection.Close(200, "", 0, 0))
            self._expect("Connection.CloseOk")
        self.socket.close()

    def do(self, step: Step) -> list[str]:
        """Do a step; what came back for it."""
        self.lines = []
        if step.channel and step.channel not in self._channels and self.is_open:
            self._send(step.channel, Channel.Open())
            if not self._expect("Channel.OpenOk"):
                return self.lines
            self._channels.add(step.channel)
            self.lines = []
        self._write(step.frames(self._unique))
        answers = step.answers()
        if not answers:
            self._send(step.channel or 1, Channel.Flow(True))
            answers = ("Channel.FlowOk",)
        self._expect(*answers)
        return [line for line in self.lines if not line.startswith("channel.flow-ok")]

    def _open(self, opening: Opening) -> None:
        self._write(opening.header)
        if not self._expect("Connection.Start"):
            return
        if opening.instead:
            for step in opening.instead:
                self._write(step.frames(self._unique))
            self._expect("Connection.Tune")
            return
        capabilities: dict[str, Any] = {"capabilities": dict(opening.capabilities)}
        self._send(
            0, Connection.StartOk(capabilities, opening.mechanism, opening.response, "en_US")
        )
        if not self._expect("Connection.Tune"):
            return
        self._send(0, Connection.TuneOk(opening.channel_max, opening.frame_max, 0))
        self._send(0, Connection.Open(opening.vhost))
        self._expect("Connection.OpenOk")

    def _send(self, channel: int, method: Frame) -> None:
        self._write(frame(METHOD, channel, struct.pack(">I", method.index) + method.marshal()))

    def _write(self, data: bytes) -> None:
        # Where the broker has closed, what it said before that is there to be read.
        with suppress(OSError):
            self.socket.sendall(data)

    def _expect(self, *names: str) -> bool:
        """Read up to a method of one of these names, or to what ends the channel or connection."""
        for channel, received in self._frames():
            if not isinstance(received, Frame):
                continue
            self.lines.append(self._render(received))
            if isinstance(received, Connection.Close):
                self._send(0, Connection.CloseOk())
                self.is_open = False
            if received.name in names:
                return True
            if isinstance(received, Channel.Close):
                self._send(channel, Channel.CloseOk())
                self._channels.discard(channel)
                return False
        return False

    def _frames(self) -> Iterator[tuple[int, Any]]:
        while self.is_open:
            try:
                size, channel, received = unmarshal(self._data)
            except (UnmarshalingException, struct.error):
                size = 0
            if size:
                self._data = self._data[size:]
                if isinstance(received, Frame) or channel >= 0:
                    yield channel, received
                continue
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            except TimeoutError:
                self.lines.append("(nothing)")
                self.is_open = False
                return
            if self._data + data == PROTOCOL_HEADER:
                self.lines.append("AMQP 0 0 9 1")
                data = b""
            if not data:
                self.lines.append("(end)")
                self.is_open = False
            self._data += data

    def _render(self, method: Frame) -> str:
        words = [_dashed(method.name)]
        for name, value in method:
            if name == "server_properties" or name.startswith("reserved"):
                continue
            text = str(value).replace(self._unique, UNIQUE)
            for made_up in ("amq.gen-", "amq.ctag-"):
                if text.startswith(made_up):
                    text = made_up + "*"
            words.append(text or "''")
        return " ".join(words)


def _dashed(name: str) -> str:
    """``Queue.DeclareOk`` as ``queue.declare-ok``."""
    group, _, method = name.partition(".")
    dashed = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in method)
    return f"{group.lower()}.{dashed[1:]}"


def run(port: int, opening: Opening, steps: Sequence[Step], unique: str) -> list[str]:
    """What a broker answers to these steps, a line each."""
    links: dict[str, Link] = {}
    lines: list[str] = []
    try:
        if not steps:
            links["a"] = Link(port, opening, unique)
            return links["a"].lines
        for step in steps:
            link = links.get(step.connection)
            if link is None or not link.is_open:
                if link is not None:
                    link.close()
                link = links[step.connection] = Link(port, opening, unique)
            lines += link.do(step)
    finally:
        for link in links.values():
            link.close()
    return lines

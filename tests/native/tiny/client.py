"""A client written from the document alone, which the tests use to hold the document to the broker.

It blocks, and needs nothing but the standard library. What is on the wire is in ``wire.py``.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.native.tiny.wire import (
    Frame,
    Kind,
    Message,
    Producer,
    Publish,
    Work,
    decode_body,
    encode_body,
    frame,
)

#: Nothing in a test takes so long; it is only there so that none hangs for ever.
TIMEOUT: Final = 30.0


class Failed(Exception):
    """The broker refused a request, or ends the connection."""

    def __init__(self, code: int, text: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, text, detail)
        self.code = code
        self.detail = detail or {}


class Refused(Failed):
    """An ERROR for one request."""


class Ended(Failed):
    """An ERROR or a CLOSE for the connection."""


class Client:
    """One connection."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), TIMEOUT)
        self._last = 0
        self._answers: dict[int, Frame] = {}
        self._pushed: deque[Frame] = deque()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # Frames

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, kind: Kind, body: Any = None, *, quiet: bool = False) -> int:
        """Sends a frame; its correlation id, 0 where no reply is wanted."""
        if not quiet:
            self._last += 1
        number = 0 if quiet else self._last
        self.send_bytes(frame(kind, number, encode_body(kind, {} if body is None else body)))
        return number

    def receive(self) -> Frame:
        """The next frame. Raises EOFError where the broker has closed the connection."""
        (size,) = struct.unpack("<I", self._take(4))
        kind, number = struct.unpack("<BQ", self._take(9))
        kind = Kind(kind)
        return Frame(kind, number, decode_body(kind, self._take(size - 9)))

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def _read_one(self) -> None:
        got = self.receive()
        if got.kind is Kind.CONFIRM:
            confirmed = range(got.correlation, got.correlation + got.body["count"])
            self._answers.update(dict.fromkeys(confirmed, got))
        elif got.kind is Kind.CLOSE or (got.kind is Kind.ERROR and not got.correlation):
            raise Ended(*got.body)
        elif got.correlation:
            self._answers[got.correlation] = got
        else:
            self._pushed.append(got)

    def answer(self, number: int) -> Any:
        """The body of the reply to a request."""
        while number not in self._answers:
            self._read_one()
        got = self._answers.pop(number)
        if got.kind is Kind.ERROR:
            raise Refused(*got.body)
        return got.body

    def pushed(self, kind: Kind) -> Any:
        """The body of the next frame of a type that nothing asked for."""
        while True:
            for at, got in enumerate(self._pushed):
                if got.kind is kind:
                    del self._pushed[at]
                    return got.body
            self._read_one()

    def request(self, kind: Kind, /, **fields: Any) -> Any:
        """Sends a map and waits for the reply."""
        return self.answer(self.send(kind, fields))

    # Requests

    def hello(self, **fields: Any) -> Any:
        return self.request(Kind.HELLO, **{"protocol": "trivium", "version": 1} | fields)

    def publish(self, messages: Iterable[Message], producer: Producer | None = None) -> None:
        flags = 0 if producer is None else 1
        self.answer(self.send(Kind.PUBLISH, Publish(list(messages), producer, flags)))

    def settle(self, kind: Kind, subscription: int, first: int, last: int, flags: int = 0) -> None:
        names = ("subscription", "flags", "first", "last")
        values = (subscription, flags, first, last)
        self.answer(self.send(kind, dict(zip(names, values, strict=True))))

    def work(self, kind: Kind, fields: Mapping[str, Any], *messages: Message) -> Any:
        """TX or STAGE."""
        return self.answer(self.send(kind, Work(fields, messages)))

    def ping(self) -> None:
        self.answer(self.send(Kind.PING))

    def close(self) -> None:
        self.send(Kind.CLOSE, [0, ""], quiet=True)
        self._socket.close()

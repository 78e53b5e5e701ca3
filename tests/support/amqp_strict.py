"""What a strict client makes of the frames that a server sends it (AMQP 0-9-1).

Frames are read by pika. What the standard says of their order and size is checked here; whatever
would end a client's connection is an AssertionError, or an error of pika.
"""

from __future__ import annotations

from pika import frame, spec

#: bytes of a frame around its payload (2.3.5)
_FRAME_OVERHEAD = 8
_WITH_CONTENT = (spec.Basic.Deliver, spec.Basic.GetOk, spec.Basic.Return)
_CONNECTION_METHODS = tuple(
    method
    for method in spec.methods.values()
    if method.INDEX is not None and method.INDEX >> 16 == spec.Connection.INDEX
)


class StrictClient:
    """Takes what one connection wrote. ``frame_max`` is what its tune-ok asked for; 0 is any."""

    def __init__(self) -> None:
        self.frame_max = 0
        self.is_closed = False
        #: by channel: bytes that are to come behind a method, None before their content header
        self._missing: dict[int, int | None] = {}

    def take(self, data: bytes) -> None:
        """What was written in one go: whole frames."""
        at = 0
        while at < len(data):
            size = _FRAME_OVERHEAD + int.from_bytes(data[at + 3 : at + 7])
            if data.startswith(b"AMQP", at):
                size = len(data) - at
            _, received = frame.decode_frame(data[at : at + size])
            assert received is not None, "a frame is cut off"
            at += size
            assert not self.is_closed, "a frame behind the end of the connection"
            assert not self.frame_max or size <= self.frame_max, f"{size} bytes (4.2.3)"
            if not isinstance(received, frame.ProtocolHeader):
                self._take(received.channel_number, received)

    def _take(self, channel: int, received: object) -> None:
        if isinstance(received, frame.Heartbeat):
            assert channel == 0, "a heartbeat on a channel (4.2.7)"
        elif isinstance(received, frame.Method):
            method = received.method
            assert channel not in self._missing, f"{method} within content (4.2.6)"
            assert (channel == 0) == isinstance(method, _CONNECTION_METHODS), method
            self.is_closed = isinstance(method, spec.Connection.CloseOk)
            if isinstance(method, _WITH_CONTENT):
                self._missing[channel] = None
        else:
            assert channel in self._missing, "content without a method (4.2.6)"
            missing = self._missing.pop(channel)
            if isinstance(received, frame.Header):
                assert missing is None, "two content headers (4.2.6)"
                missing = received.body_size
            else:
                assert isinstance(received, frame.Body), received
                assert missing is not None, "a body before its header (4.2.6)"
                assert 0 < len(received.fragment) <= missing, "more body than announced (4.2.6)"
                missing -= len(received.fragment)
            if missing:
                self._missing[channel] = missing

"""What a client still sends when nothing of it is carried out any more."""

from __future__ import annotations

from trivium.runtime.adapter import DISCARDED_BYTES
from trivium_amqp.codec.frames import CLOSE_OK_FRAME


class Discarded:
    """Counts it, and looks for the end where frames cannot be followed."""

    def __init__(self) -> None:
        #: the stream cannot be followed any more
        self.is_garbled = False
        # Bytes that came since connection.close was sent.
        self._size = 0
        # The last bytes of what cannot be followed.
        self._end = b""

    def is_too_much(self, data: bytes) -> bool:
        """Whether the client sends on and on, with ``data``, instead of answering."""
        self._size += len(data)
        return self._size > DISCARDED_BYTES

    def ends_in_close_ok(self, data: bytes) -> bool:
        """Whether ``data`` ends as the client's last frame does."""
        size = len(CLOSE_OK_FRAME)
        self._end = (self._end + data[-size:])[-size:]
        return self._end == CLOSE_OK_FRAME

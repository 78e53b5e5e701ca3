"""How much of what was written to a socket its peer has yet to take."""

from __future__ import annotations

import fcntl
import termios
from array import array
from typing import Any, Protocol


class _Transport(Protocol):
    """A transport of asyncio."""

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of it."""

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for room in the socket."""


def unsent_bytes(transport: _Transport) -> int:
    """Bytes that wait in the transport, and in the kernel for the peer; 0 once it closes."""
    if transport.is_closing():
        return 0
    waiting = array("i", (0,))
    raw = transport.get_extra_info("socket")
    if raw is not None:
        try:
            fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, waiting)
        except OSError:
            waiting[0] = 0
    return transport.get_write_buffer_size() + waiting[0]

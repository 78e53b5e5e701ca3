"""Tells systemd, where it started the broker, that it is ready, alive, or about to stop.

As sd_notify(3) describes: datagrams to the socket that the environment names.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class ServiceManager:
    """The one that started this process; without one, nothing is told to nobody."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        #: a name that begins with @ is an abstract one
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._watchdog_seconds = _watchdog_seconds(environment)

    def ready(self, status: str) -> None:
        """Clients can connect. From now on it is told that the loop turns, if it wants to know."""
        self._tell(f"READY=1\nSTATUS={status}")
        if self._address and self._watchdog_seconds:
            self._alive()

    def stopping(self) -> None:
        """The broker has begun to stop."""
        self._tell("STOPPING=1")

    def _alive(self) -> None:
        self._tell("WATCHDOG=1")
        # Twice as often as it must be.
        asyncio.get_running_loop().call_later(self._watchdog_seconds / 2, self._alive)

    def _tell(self, what: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.setblocking(False)
                notify.sendto(what.encode(), self._address)
        except OSError as error:
            logger.warning("the service manager cannot be told %s: %s", what.split("\n")[0], error)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Time without a sign of life after which the process is killed; 0 is for ever."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or environment.get("WATCHDOG_PID", "") not in (
        "",
        str(os.getpid()),
    ):
        return 0.0
    return int(microseconds) / 1e6

"""A broker in a process of its own, which tests kill and start again on the same port and data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from interop.brokers import release, reserve_restart_ports
from trivium_native.sync import SyncClient, connect


class BrokerProcess:
    """``trivium serve`` with the native protocol only."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._log = data.with_suffix(".log").open("a")
        self._reserved = reserve_restart_ports(1)
        self.port: int = self._reserved[0].getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"trivium://127.0.0.1:{self.port}"

    def connect(self) -> SyncClient:
        """A client of this broker."""
        return connect(self.url)

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        options = {
            "data": str(self._data),
            "mqtt": "off",
            "amqp": "off",
            "http": "off",
            "native": f"127.0.0.1:{self.port}",
        }
        command = [sys.executable, "-m", "trivium", "serve"]
        command += [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        is_ready = f"native=127.0.0.1:{self.port}" in line
        assert is_ready, f"no ready line but {line!r}: {Path(self._log.name).read_text()}"

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def close(self) -> None:
        """Stop for good."""
        self.kill()
        release(self._reserved)
        self._log.close()

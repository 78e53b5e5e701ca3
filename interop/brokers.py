"""Real broker processes for the tests: started, killed, restarted on the same directory and ports.

Only processes that were started here are ever signalled.
"""

from __future__ import annotations

import filecmp
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
ROOT: Final = Path(__file__).resolve().parents[1]
COMPILED: Final = ROOT / "build" / "compiled"
SOURCES: Final = ("core", "adapters/mqtt", "adapters/amqp", "adapters/native", "spark_bridge")
PROTOCOLS: Final = ("mqtt", "amqp", "native")
#: Ports for brokers that are restarted on the same port; outside the range that the kernel takes
#: the ports of outgoing connections from.
RESTART_PORTS: Final = range(21000, 22000)
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0


class BrokerError(AssertionError):
    """A broker did not start or stop as it should; the text has the end of its log."""


def compiled_build() -> str | None:
    """Why the compiled build cannot be used; None when it is there and made of this source."""
    if not any(COMPILED.glob("*.so")) and not any(COMPILED.rglob("*.so")):
        return "there is no compiled build (./dev build)"
    for folder in SOURCES:
        for source in (ROOT / folder).rglob("*.py"):
            copy = COMPILED / source.relative_to(ROOT / folder)
            if not copy.exists() or not filecmp.cmp(source, copy, shallow=False):
                return f"the compiled build is older than {source.name} (./dev build)"
    return None


def reserve_restart_ports(count: int) -> list[socket.socket]:
    """Sockets bound to loopback ports of the restart range; others reserve none of these.

    A broker may listen there all the same: its sockets have SO_REUSEADDR, and so have these once
    they are bound.
    """
    reserved: list[socket.socket] = []
    for port in random.sample(RESTART_PORTS, len(RESTART_PORTS)):
        probe = socket.socket()
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.append(probe)
        if len(reserved) == count:
            return reserved
    release(reserved)
    raise BrokerError(f"no free ports in {RESTART_PORTS}")


def release(reserved: Iterable[socket.socket]) -> None:
    """Let others have these ports."""
    for probe in reserved:
        probe.close()


class TriviumProcess:
    """One ``trivium serve``. ``ports`` maps each protocol to its port once it has started.

    ``module`` is run with ``python -m``, behind the words of ``prefix`` and before ``arguments``.
    With ``restartable`` the ports are fixed from the start and kept while this object lives, so
    that clients find a restarted broker where the killed one was.
    """

    def __init__(
        self,
        directory: Path,
        *,
        is_compiled: bool = False,
        restartable: bool = False,
        protocols: tuple[str, ...] = PROTOCOLS,
        environment: Mapping[str, str] | None = None,
        module: str = "trivium",
        prefix: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.data = directory / "data"
        self.log = directory / "broker.log"
        self.ports = dict.fromkeys(protocols, 0)
        if restartable:
            reserved = reserve_restart_ports(len(protocols))
            weakref.finalize(self, release, reserved)
            places = [int(probe.getsockname()[1]) for probe in reserved]
            self.ports = dict(zip(protocols, places, strict=True))
        self.process: subprocess.Popen[str] | None = None
        #: times that it was killed
        self.kills = 0
        self._module = module
        self._prefix = prefix
        self._arguments = arguments
        self._environment = dict(os.environ) | dict(environment or {})
        # ./dev exports the path of the compiled build.
        self._environment.pop("PYTHONPATH", None)
        if is_compiled:
            self._environment["PYTHONPATH"] = str(COMPILED)

    @property
    def url(self) -> str:
        """Of the native protocol."""
        return f"trivium://{LOOPBACK}:{self.ports['native']}"

    def launch(self) -> None:
        """Start, and wait for nothing."""
        places = [
            word
            for name in ("mqtt", "amqp", "native", "http")
            for word in (f"--{name}", str(self.ports[name]) if name in self.ports else "off")
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self._prefix,
                    *(sys.executable, "-m", self._module),
                    *("serve", "--data", str(self.data), *places, *self._arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=self._environment,
            )

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start, and wait so long for the ready line. Raises BrokerError."""
        self.launch()
        process = self.process
        assert process is not None
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("trivium ready "):
            self.kill()
            raise BrokerError(f"no ready line but {line!r}\n{self.log_tail()}")
        for name, port in re.findall(r"(\w+)=\S*?:(\d+)", line):
            self.ports[name] = int(port)

    def kill(self) -> None:
        """End it as a power cut would: no handler runs, nothing is flushed."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate(timeout=STOP_SECONDS)
        self.kills += 1

    def restart(self) -> None:
        """Kill it and start it again on the same directory and ports."""
        self.kill()
        self.start()

    def stop(self) -> int:
        """Ask it to stop with SIGTERM; its exit code. Raises BrokerError when it does not."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"does not stop on SIGTERM\n{self.log_tail()}") from None
        return self.process.returncode

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log_tail(self) -> str:
        """The end of what it wrote to standard error."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def check_log(self) -> None:
        """Raise BrokerError when it logged a traceback or an error."""
        text = self.log.read_text(errors="replace")
        if "Traceback" in text or re.search(r" (ERROR|CRITICAL) ", text):
            raise BrokerError(f"the broker logged an error\n{text[:2000]}\n...\n{text[-4000:]}")


def wait_until_refused(port: int, seconds: float = 10.0) -> None:
    """Wait until nothing accepts connections on a port."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            return
    raise BrokerError(f"port {port} still accepts connections")

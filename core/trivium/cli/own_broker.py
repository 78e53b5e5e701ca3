"""A broker of a command's own: a child process on a data directory that is gone afterwards.

It listens on loopback, on ports that are free. Only this child is ever signalled.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trivium.cli.clients import ClientError
from trivium.cli.serve import protocols
from trivium.common.client_tls import ClientTls

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
#: Bytes of the end of its log that an error shows.
LOG_TAIL: Final = 2000


class OwnBroker:
    """`trivium serve` with some listeners, or another command that takes its options.

    A listener is named as its option. Those with TLS have a certificate that is made for them (it
    takes the package cryptography), and that ``client_tls`` trusts. Its directory, of which `data`
    is the broker's, is made below the system's place for temporary files, or in ``directory``.
    """

    def __init__(
        self,
        listeners: Iterable[str],
        *,
        environment: Mapping[str, str] | None = None,
        command: tuple[str, ...] = (),
        directory: str | None = None,
    ) -> None:
        self._listeners = set(listeners)
        self._environment = dict(os.environ) | dict(environment or {})
        self._command = command or (sys.executable, "-m", "trivium", "serve")
        self._temporary = tempfile.TemporaryDirectory(prefix="trivium-", dir=directory)
        self.directory = Path(self._temporary.name)
        self.log = self.directory / "broker.log"
        #: how its clients speak TLS; None where it has no listener with TLS
        self.client_tls: ClientTls | None = None
        self._process: asyncio.subprocess.Process | None = None
        #: where each listener is, once it is ready
        self.ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def is_running(self) -> bool:
        """The process has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, and wait until it takes connections. Raises ClientError."""
        places = [
            word
            for name in sorted(protocols() | self._listeners)
            for word in (f"--{name}", "0" if name in self._listeners else "off")
        ]
        plain = {"ws", *protocols()}
        if any(name not in plain and name.removesuffix("s") in plain for name in self._listeners):
            places += self._tls_files()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                *("--data", str(self.directory / "data")),
                *places,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                # What interrupts the command is not for it.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = (await self._process.stdout.readline()).decode()
        except TimeoutError:
            line = ""
        if not line.startswith("trivium ready "):
            await self.kill()
            raise ClientError(f"the broker does not start: {self.log_tail() or line.strip()}")
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.ports = {
            name: int(words[name].rpartition(":")[2]) for name in self._listeners if name in words
        }

    def _tls_files(self) -> list[str]:
        """Options with the certificate, which is made once."""
        names = ("ca.pem", "server.pem", "server.key")
        ca, certificate, key = (str(self.directory / name) for name in names)
        if self.client_tls is None:
            # It needs a package that only this needs.
            from trivium.cli.certificates import make_certificates

            made = make_certificates([])
            for name in names:
                (self.directory / name).write_bytes(made[name])
            self.client_tls = ClientTls(ca=ca)
        return ["--tls-certificate", certificate, "--tls-key", key]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it; nothing where it has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.signal(signal.SIGKILL)
        await self.ended()

    def limit_files(self, size: int) -> None:
        """Let no file of it become longer than so many bytes (RLIMIT_FSIZE), until it starts again.

        To who writes that is as a full disk: the write fails.
        """
        assert self._process is not None
        _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, hard))

    async def ended(self) -> int:
        """Wait until it has ended; its exit code."""
        return 0 if self._process is None else await self._process.wait()

    async def stop(self) -> int:
        """Ask it to end (SIGTERM), or kill it where it does not; its exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await self.ended()
        except TimeoutError:
            await self.kill()
        return await self.ended()

    def log_tail(self) -> str:
        """The end of what it has logged."""
        try:
            text = self.log.read_bytes()[-LOG_TAIL:].decode(errors="replace")
        except OSError:
            return ""
        return " | ".join(line for line in text.splitlines()[-4:] if line.strip())

    async def close(self) -> None:
        """End it, and remove its directory."""
        if self._process is not None:
            await self.stop()
        self._temporary.cleanup()

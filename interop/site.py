"""A broker with every door, and the certificates of ``trivium tls self-signed``."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from interop.brokers import TriviumProcess
from trivium.config import EVERYTHING


class Site:
    """One of them. The certificate's user, ``client``, may do what anonymous clients may."""

    def __init__(
        self, folder: Path, build: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.ca = str(folder / "ca.pem")
        subprocess.run(
            [sys.executable, "-m", "trivium", "tls", "self-signed", str(folder)],
            check=True,
            capture_output=True,
        )
        names = ("MQTTS", "AMQPS", "NATIVES", "HTTPS", "WSS")
        everything = {f"TRIVIUM_LISTEN__{name}": "0" for name in names} | {
            "TRIVIUM_TLS__CERTIFICATE": str(folder / "server.pem"),
            "TRIVIUM_TLS__KEY": str(folder / "server.key"),
            "TRIVIUM_TLS__CA": self.ca,
            "TRIVIUM_USERS__client__PASSWORD": "not used",
            "TRIVIUM_USERS__client__PERMISSIONS": json.dumps(EVERYTHING),
        }
        self.process = TriviumProcess(
            folder,
            is_compiled=build == "compiled",
            environment=everything | dict(environment or {}),
        )
        self.process.start()

    def port(self, name: str) -> int:
        return self.process.ports[name]

    def context(self, with_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if with_certificate:
            context.load_cert_chain(self.folder / "client.pem", self.folder / "client.key")
        return context

    def close(self) -> None:
        assert self.process.is_running, self.process.log_tail()
        assert self.process.stop() == 0
        self.process.check_log()

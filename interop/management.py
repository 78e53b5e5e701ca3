"""A small client of the HTTP API, and brokers that have one."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from typing import Any, Final

from bench.servers import LOOPBACK, RabbitMq, free_port

WAIT_SECONDS: Final = 60.0


class Api:
    """Asks the API of the broker at ``port`` as an administrator."""

    def __init__(self, port: int, user: str = "guest:guest") -> None:
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}/api/"
        self._authorization = "Basic " + base64.b64encode(user.encode()).decode()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": self._authorization, "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    def get(self, path: str) -> Any:
        """The JSON of what is there."""
        status, found = self.ask("GET", path)
        assert status == 200, (path, status, found)
        return found

    def put(self, path: str, body: Any = None) -> None:
        """Make or change something."""
        status, found = self.ask("PUT", path, {} if body is None else body)
        assert status in (201, 204), (path, status, found)

    def wait_for(self, path: str, name: str) -> Any:
        """What is there once it has a field of this name: some brokers collect figures later."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            found = self.get(path)
            one = found[0] if isinstance(found, list) and found else found
            if isinstance(one, dict) and name in one:
                return found
            assert time.monotonic() < until, (path, found)


class ManagedRabbitMq(RabbitMq):
    """Debian's RabbitMQ with its management plug-in, at the address ``http``."""

    plugins = (*RabbitMq.plugins, "rabbitmq_management")

    def _more_settings(self) -> str:
        self._http_port = free_port()
        return (
            f"management.tcp.ip = {LOOPBACK}\n"
            f"management.tcp.port = {self._http_port}\n"
            "management.rates_mode = basic\n"
            "collect_statistics_interval = 1000\n"
        )

    @property
    def api(self) -> Api:
        """Its API."""
        return Api(self._http_port)

"""RabbitMQ's management API without sockets: a broker whose API the test asks."""

from __future__ import annotations

import json
from typing import Any

from tests.support.amqp import Client, Server
from trivium.listen import ListenerConfig
from trivium.management.management import Management
from trivium.observability.api import ApiAnswer, ApiRequest
from trivium.security.identity import Identity


class Site:
    """A broker with a queue `q`, and a client of it."""

    def __init__(self) -> None:
        self.server = Server()
        self._management = Management(self.server.broker, lambda work: work())
        self.client: Client = self.server.open()
        self.client.declare("q")

    def get(self, path: str, **query: str) -> Any:
        """What is answered at a path whose segments have spaces between."""
        return self.ask("GET", path, None, query)

    def ask(self, method: str, path: str, body: bytes | None, query: dict[str, str]) -> Any:
        """The same of any request."""
        answers: list[ApiAnswer] = []
        request = ApiRequest(
            method=method,
            path=tuple(path.split(" ")),
            query=query,
            body=body,
            identity=Identity("root", frozenset(("administrator",))),
            address="",
            listener=ListenerConfig(protocol="http", address="127.0.0.1:0"),
        )
        self._management.ask(request, answers.append)
        self.server.settle()
        (answer,) = answers
        if answer.parts is None:
            return answer.body
        return json.loads(b"".join(answer.parts))

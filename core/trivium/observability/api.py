"""What the HTTP API asks the broker, and what it is answered: no HTTP, no event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trivium.listen import ListenerConfig
from trivium.security.identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request of a client that has authenticated. To events it is who is served."""

    method: str
    #: the segments of the path behind ``/api``, decoded
    path: tuple[str, ...]
    #: what the body says, a JSON object; None where there is none
    body: dict[str, object] | None
    identity: Identity
    #: of the client
    address: str
    listener: ListenerConfig


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer to one request."""

    status: int
    #: what is to be JSON; None for no body
    body: object = None


def refusal(status: int, error: str, reason: str) -> ApiAnswer:
    """An answer in the form that RabbitMQ's management API has for errors."""
    return ApiAnswer(status, {"error": error, "reason": reason})


#: Carries out a request and calls with the answer, at once or later.
Api = Callable[[ApiRequest, Callable[[ApiAnswer], None]], None]

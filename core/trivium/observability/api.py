"""What the HTTP API asks the broker, and what it is answered: no HTTP, no event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trivium.listen import ListenerConfig
from trivium.security.identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request of a client that has authenticated, if it must. To events it is who is served."""

    method: str
    #: the segments of the path behind ``/api``, decoded
    path: tuple[str, ...]
    #: what stands behind the path; of what is given twice the first
    query: Mapping[str, str] = field(default_factory=dict)
    #: the JSON of the body; None where there is none
    body: object
    identity: Identity
    #: why, in the words of the client; "" where it says nothing
    reason: str = ""
    #: of the client
    address: str
    listener: ListenerConfig


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer to one request."""

    status: int
    #: what is to be JSON; None for no body
    body: object = None
    #: in place of a body: parts of a JSON text. Each takes a moment to make, and may be empty: the
    #: rest is for after others were served. ``ApiRefused`` may come before the first that is not.
    parts: Iterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class ApiRefused(Exception):
    """A request is refused by this answer."""

    def __init__(self, answer: ApiAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class ApiPlace:
    """What a request must bring to be looked at."""

    #: whether anybody may ask
    is_public: bool
    #: bytes of the body, at most
    most_bytes: int


class Api(Protocol):
    """Carries out requests."""

    def place(self, method: str, path: tuple[str, ...]) -> ApiPlace:
        """Where a request leads. Raises ApiRefused where there is nothing."""

    def ask(self, request: ApiRequest, done: Callable[[ApiAnswer], None]) -> None:
        """Carry out a request and call with the answer, at once or later."""


def refusal(status: int, error: str, reason: str) -> ApiAnswer:
    """An answer in the form that RabbitMQ's management API has for errors."""
    return ApiAnswer(status, {"error": error, "reason": reason})

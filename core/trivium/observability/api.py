"""What the HTTP API asks the broker, and what it is answered: no HTTP, no event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

from trivium.listen import ListenerConfig
from trivium.observability.browsers import NO_COOKIE, Cookie
from trivium.observability.served import ServedRequest
from trivium.security.attempts import Login
from trivium.security.identity import Identity
from trivium.security.sessions import Session

#: The first segment behind ``/api`` of the paths that are Trivium's own, by their version.
OWN: Final = "v1"
#: What kinds of problems begin with (RFC 9457, 3.1.1).
PROBLEM: Final = "urn:trivium:problem:"
#: Titles that RFC 9110 (15.5) has changed, and older versions of Python have not.
_TITLES: Final = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(ServedRequest):
    """One request of a client that has authenticated, if it must."""

    method: str
    #: the segments of the path behind ``/api``, decoded
    path: tuple[str, ...]
    #: what stands behind the path; of what is given twice the first
    query: Mapping[str, str] = field(default_factory=dict)
    #: the JSON of the body, or its bytes where the place takes these; None where there is none
    body: object
    identity: Identity
    #: by which the client is in; None where that lasts as long as the broker
    login: Login | None = None
    #: of the page by which it is known, in place of what it came with; None for none
    session: Session | None = None
    #: the cookie that has the token of such a session
    cookie: Cookie = NO_COOKIE
    #: why, in the words of the client; "" where it says nothing
    reason: str = ""
    #: by which a request that is made again is known; "" for none
    idempotency_key: str = ""
    #: 16 bytes that another query or body has not
    fingerprint: bytes = bytes(16)
    #: whether what it names must be there, or must not; None where the client does not say
    must_exist: bool | None = None
    #: whether the client asks for a WebSocket
    is_websocket: bool = False
    #: the last event that the client has of a feed; "" for none
    last_event: str = ""
    #: the trace that it belongs to (W3C Trace Context), as it came; "" for none
    traceparent: str = ""
    tracestate: str = ""
    #: of the client
    address: str
    listener: ListenerConfig
    #: whether it has gone meanwhile
    has_left: Callable[[], bool] = lambda: False
    #: whether it has yet to take some of what it was sent
    is_behind: Callable[[], bool] = lambda: False
    #: closes its connection
    drop: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One of a feed. ``data`` is JSON in one line, ``identity`` a word by which it goes on.

    What is long has ``more`` pieces of that line behind ``data``. Each takes a moment to make, and
    may be empty: the rest is for after others were served.
    """

    name: str
    data: bytes
    identity: str = ""
    more: Iterator[bytes] | None = None


class Feed(Protocol):
    """What is sent to a client as it comes. All is called within a turn of the broker."""

    #: called once there may be something to ``take``
    wake: Callable[[], None]
    #: whether there is nothing to come behind what can be taken
    is_over: bool

    def take(self) -> list[FeedEvent]:
        """What there is, as much as takes a moment to make."""

    def check(self) -> None:
        """Some time has passed: end it where the client may not go on."""

    def received(self, said: object) -> None:
        """What the client of a WebSocket says: JSON, or None for what is no JSON."""

    def close(self) -> None:
        """The client is gone, or has all: let go of everything."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer to one request."""

    status: int
    #: what is to be JSON; None for no body
    body: object = None
    #: in place of a body: parts of a JSON text. Each takes a moment to make, and may be empty: the
    #: rest is for after others were served. ``ApiRefused`` may come before the first that is not.
    parts: Iterator[bytes] | None = None
    #: in place of both: texts that are sent with a second between them, for as long as the client
    #: takes them. An empty one is as an empty part.
    events: Generator[bytes, None, None] | None = None
    #: in place of all these: what is sent as it comes
    feed: Feed | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = _JSON


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
    #: objects, lists, and what is in them, at most
    most_values: int
    #: whether the body is bytes, as they are, and no JSON
    is_raw: bool = False
    #: whether clients without credentials may ask whom the listener admits
    admits_anonymous: bool = False
    #: the virtual host that the path names; "" for none
    vhost: str = ""


class Api(Protocol):
    """Carries out requests."""

    def place(self, method: str, path: tuple[str, ...]) -> ApiPlace:
        """Where a request leads. Raises ApiRefused where there is nothing."""

    def ask(self, request: ApiRequest, done: Callable[[ApiAnswer], None]) -> None:
        """Carry out a request and call with the answer, at once or later."""

    def go_on(self, request: ApiRequest, work: Callable[[], None]) -> None:
        """Do some more work of a request that is answered, as a turn of the broker."""

    def waits(self, request: ApiRequest) -> bool:
        """Whether a request waits for what may not come for long."""

    def left(self, request: ApiRequest) -> None:
        """The client is gone before it was answered: what it waits for is for others."""


class Refusal(ApiAnswer):
    """Says why a request is refused, in the form that RabbitMQ's management API has for errors."""

    def __init__(
        self, status: int, error: str, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, {"error": error, "reason": reason}, headers=headers or {})

    def as_problem(self) -> ApiAnswer:
        """The same as problem details (RFC 9457): a type, by which programs know it, and texts."""
        assert isinstance(self.body, dict)
        kind = str(self.body["error"]).lower().replace(" ", "-").replace("_", "-")
        body = {
            "type": PROBLEM + kind,
            "title": _TITLES.get(self.status) or HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.body["reason"],
        }
        headers = self.headers
        return ApiAnswer(
            self.status, body, headers=headers, content_type="application/problem+json"
        )


def refusal(
    status: int, error: str, reason: str, headers: Mapping[str, str] | None = None
) -> Refusal:
    """An answer that says why a request is refused."""
    return Refusal(status, error, reason, headers)

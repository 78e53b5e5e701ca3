"""Endpoints as data: which there are, who may use them, and how a path finds its own.

A path is a pattern of segments, ``queues/{vhost}/{name}``: a segment in braces stands for any one,
and the others for themselves, which go first. A ``{vhost}`` is looked at before the handler is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trivium.errors import AccessRefused, Configured, NotFound, TopologyError
from trivium.observability.api import ApiAnswer, Refusal, refusal
from trivium.security.identity import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER

if TYPE_CHECKING:
    from trivium.management.calls import Call

#: The tags of which a user needs one, by what an endpoint is for.
USERS: Final = frozenset((MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR))
POLICIES: Final = frozenset((POLICYMAKER, ADMINISTRATOR))
WATCHERS: Final = frozenset((MONITORING, ADMINISTRATOR))
ADMINISTRATORS: Final = frozenset((ADMINISTRATOR,))
#: of an endpoint that needs no user at all
ANYBODY: Final[frozenset[str]] = frozenset()

#: of one for every client that may connect, without credentials where its listener admits that
CLIENTS: Final = frozenset(("client",))

# What the user needs of the virtual host in the path.
#: any permission there, or to be an administrator
SEEN: Final = "seen"
#: any permission there, or to be among ``WATCHERS``
WATCHED: Final = "watched"
#: any permission there
ENTERED: Final = "entered"
#: nothing: it is there, or the handler looks
UNCHECKED: Final = ""


class BadRequest(Exception):
    """The request says something that it cannot; the text is for the client."""

    def __init__(self, text: str, error: str = "bad_request") -> None:
        super().__init__(text)
        self.error = error


#: Bytes of a usual body, and of one that brings messages or definitions.
SMALL: Final = 64 * 1024
LARGE: Final = 20 * 1024 * 1024
#: Values of a body: what is done with them is done in one turn, unless they are definitions.
FEW_VALUES: Final = 100_000
MANY_VALUES: Final = 2_000_000

#: Carries out a call; None: it answers later, by the call itself.
Handler = Callable[["Call"], ApiAnswer | None]


def compatible_refusal(error: Exception) -> Refusal | None:
    """What a request is answered as RabbitMQ's management API does; None for a fault of ours."""
    if isinstance(error, NotFound):
        return refusal(404, "Object Not Found", str(error))
    if isinstance(error, AccessRefused) and not isinstance(error, Configured):
        # For 401 `rabbitmqadmin` does not say why.
        return refusal(401, "not_authorised", str(error))
    if isinstance(error, BadRequest):
        return refusal(400, error.error, str(error))
    if isinstance(error, TopologyError):
        return refusal(400, "bad_request", str(error))
    return None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    #: a user needs one of these
    tags: frozenset[str] = USERS
    vhost: str = SEEN
    most_bytes: int = SMALL
    most_values: int = FEW_VALUES
    #: whether its body is bytes, as they are
    is_raw: bool = False

    def carry_out(self, call: Call) -> ApiAnswer | None:
        """Carry out a call that may be made."""
        return self.handler(call)

    def refusal_of(self, error: Exception) -> Refusal | None:
        """The answer to a call that ended so; None for a fault of ours."""
        return compatible_refusal(error)


class Place:
    """What a path has found: its endpoints by method, and what its braces stand for."""

    def __init__(self, endpoints: dict[str, Endpoint], names: dict[str, str]) -> None:
        self.endpoints = endpoints
        self.names = names

    def endpoint(self, method: str) -> Endpoint | None:
        """That of a method: HEAD is GET without the body."""
        return self.endpoints.get("GET" if method == "HEAD" else method)

    @property
    def methods(self) -> str:
        """Those that there are, as ``Allow`` has them (RFC 9110, 10.2.1)."""
        found = [*self.endpoints, *(["HEAD"] if "GET" in self.endpoints else []), "OPTIONS"]
        return ", ".join(sorted(found))


class Endpoints:
    """A set of endpoints, found by path and method."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.all: list[Endpoint] = list(endpoints)
        # By the number of segments, those with the fewest braces first.
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Endpoint]]]] = {}
        paths: dict[str, dict[str, Endpoint]] = {}
        for endpoint in self.all:
            methods = paths.setdefault(endpoint.path, {})
            assert endpoint.method not in methods, f"{endpoint.method} {endpoint.path} twice"
            methods[endpoint.method] = endpoint
        for path, methods in sorted(paths.items(), key=_breadth):
            segments = tuple(path.split("/"))
            self._by_length.setdefault(len(segments), []).append((segments, methods))

    def find(self, path: tuple[str, ...]) -> Place | None:
        """What stands at a path; None for nothing."""
        for segments, methods in self._by_length.get(len(path), ()):
            names = _names(segments, path)
            if names is not None:
                return Place(methods, names)
        return None


def _breadth(item: tuple[str, object]) -> tuple[int, str]:
    # A brace sorts behind letters: of paths with as many, one that begins with a word goes first.
    return item[0].count("{"), item[0]


def _names(segments: tuple[str, ...], path: tuple[str, ...]) -> dict[str, str] | None:
    """What the braces stand for; None where the path is another."""
    names: dict[str, str] = {}
    for segment, given in zip(segments, path, strict=True):
        if segment.startswith("{"):
            names[segment[1:-1]] = given
        elif segment != given:
            return None
    return names

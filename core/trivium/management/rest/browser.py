"""Signing in and out on a page: a session, whose token is in a cookie that no script can read; and
what a page need not offer, because it would be refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from trivium.errors import AccessRefused
from trivium.listen import is_loopback
from trivium.management.calls import Call
from trivium.management.endpoints import ANYBODY, BadRequest
from trivium.management.rest.general import Caller, caller
from trivium.management.rest.operations import Parameter, answer, asked, operation
from trivium.management.rest.schema import MAX_NAME, About, shown_model
from trivium.messages.topics import key_of
from trivium.observability.api import ApiAnswer
from trivium.routing.retained import RETAINING_EXCHANGE
from trivium.security.permissions import CONFIGURE, READ, WRITE


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who has signed in on the page that asks."""

    caller: Annotated[Caller | None, About(text="null: nobody has")]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the caller may do with what has a name."""

    configure: bool
    write: bool
    read: bool


_NAME: Final = Parameter(
    "name",
    Annotated[str, About(shortest=1, longest=MAX_NAME)],
    "of an exchange, a queue, a stream or a group",
)
_TOPIC: Final = Parameter(
    "topic", Annotated[str, About(shortest=1, longest=1024)], "of retained messages"
)


def sign_in(call: Call) -> ApiAnswer:
    """Begin a session for who shows credentials."""
    request = call.request
    if request.login is None or request.session is not None:
        # A session is not made of another one: it would never end.
        raise AccessRefused("credentials are needed")
    token = call.broker.authentication.sessions.begin(
        request.login, request.listener.name, is_loopback(request.address)
    )
    return ApiAnswer(201, shown_model(caller(call)), headers=_cookie(call, token))


def sign_out(call: Call) -> ApiAnswer:
    """End the session by which the caller comes."""
    session = call.request.session
    if session is not None:
        call.broker.authentication.sessions.end(session)
    return ApiAnswer(204, headers=_cookie(call, ""))


def show(call: Call) -> ApiAnswer:
    """Who has signed in: no refusal where nobody has, which browsers would write down."""
    return answer(SignedIn(None if call.request.session is None else caller(call)))


def allowed(call: Call) -> ApiAnswer:
    """What the caller may do with a name, or a topic."""
    access = call.access
    name, topic = asked(call, _NAME, None), asked(call, _TOPIC, None)
    if (name is None) is (topic is None):
        raise BadRequest("it is of a 'name', or of a 'topic'")
    if name is not None:
        return answer(Allowed(*(access.may(kind, name) for kind in (CONFIGURE, WRITE, READ))))
    key = key_of(topic.encode())
    write, read = (access.may_topic(kind, RETAINING_EXCHANGE, key) for kind in (WRITE, READ))
    return answer(Allowed(False, write, read))


def _cookie(call: Call, token: str) -> dict[str, str]:
    return {"Set-Cookie": call.request.cookie.header(token)}


ENDPOINTS: Final = (
    operation(
        "POST",
        "session",
        sign_in,
        "Sign in: a cookie in place of the credentials of this request",
        result=Caller,
        statuses=(201,),
    ),
    operation("GET", "session", show, "Who has signed in", tags=ANYBODY, result=SignedIn),
    operation("DELETE", "session", sign_out, "Sign out", statuses=(204,)),
    operation(
        "GET",
        "vhosts/{vhost}/access",
        allowed,
        "What the caller may do with a name",
        result=Allowed,
        query=(_NAME, _TOPIC),
    ),
)

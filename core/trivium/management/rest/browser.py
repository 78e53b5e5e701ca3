"""Signing in and out on a page: a session, whose token is in a cookie that no script can read."""

from __future__ import annotations

from typing import Final

from trivium.errors import AccessRefused
from trivium.listen import is_loopback
from trivium.management.calls import Call
from trivium.management.rest.general import Caller, caller
from trivium.management.rest.operations import operation
from trivium.management.rest.schema import shown_model
from trivium.observability.api import ApiAnswer
from trivium.observability.browsers import cookie


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


def _cookie(call: Call, token: str) -> dict[str, str]:
    request = call.request
    return {"Set-Cookie": cookie(request.cookie, token, request.listener.tls is not None)}


ENDPOINTS: Final = (
    operation(
        "POST",
        "session",
        sign_in,
        "Sign in: a cookie in place of the credentials of this request",
        result=Caller,
        statuses=(201,),
    ),
    operation("DELETE", "session", sign_out, "Sign out", statuses=(204,)),
)

"""Carries out what is asked: finds the endpoint, looks whether the caller may, calls it.

What changes something is answered once that is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from trivium.errors import AccessRefused
from trivium.management import compatible, rest
from trivium.management.calls import NOT_FOUND, Call, Done
from trivium.management.endpoints import (
    CLIENTS,
    SEEN,
    UNCHECKED,
    WATCHED,
    Endpoint,
    Endpoints,
    Place,
)
from trivium.management.listing import only_columns
from trivium.management.segments import DOTS, name_of, segment
from trivium.management.state import ManagementState
from trivium.observability.api import OWN, ApiAnswer, ApiPlace, ApiRefused, ApiRequest, refusal
from trivium.security.identity import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from trivium.security.permissions import EVERY_VHOST

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

logger = logging.getLogger(__name__)

#: All that there are.
ENDPOINTS: Final = Endpoints([*compatible.ENDPOINTS.all, *rest.ENDPOINTS])

#: What a user is told who has none of the tags that are needed, by the least of them.
_NEEDED = (
    (MANAGEMENT, "Not management user"),
    (MONITORING, "Not monitor user"),
    (POLICYMAKER, "Not policymaker user"),
    (ADMINISTRATOR, "Not administrator user"),
)


class Management:
    """Those endpoints for one broker. ``call`` does some work as a turn of it."""

    def __init__(
        self,
        broker: Broker,
        call: Callable[[Callable[[], None]], None],
        endpoints: Endpoints = ENDPOINTS,
    ) -> None:
        self._broker = broker
        self._call = call
        self._endpoints = endpoints
        self._state = ManagementState(broker)

    def place(self, method: str, path: tuple[str, ...]) -> ApiPlace:
        """Where a request leads. Raises ApiRefused where there is nothing."""
        found, endpoint = self._found(method, path)
        vhost = found.names.get("vhost", "")
        return ApiPlace(
            is_public=not endpoint.tags,
            most_bytes=endpoint.most_bytes,
            most_values=endpoint.most_values,
            is_raw=endpoint.is_raw,
            admits_anonymous=endpoint.tags is CLIENTS,
            vhost="" if vhost == EVERY_VHOST else vhost,
        )

    def ask(self, request: ApiRequest, done: Done) -> None:
        """Carry out one request."""
        self._call(partial(self._carry_out, request, done))

    def go_on(self, request: ApiRequest, work: Callable[[], None]) -> None:
        """Do some more work of a request that is answered."""
        broker = self._broker
        failed: list[Exception] = []

        def done() -> None:
            broker.events.serving = request
            changes = broker.changes
            try:
                work()
            except Exception as error:
                if broker.changes != changes:
                    # It is done by halves.
                    raise
                failed.append(error)

        self._call(done)
        if failed:
            raise failed[0]

    def waits(self, request: ApiRequest) -> bool:
        """Whether a request waits for what may not come for long."""
        return self._state.waits.has(request)

    def left(self, request: ApiRequest) -> None:
        """The client is gone before it was answered: what it waits for is for others."""
        self._call(lambda: self._state.waits.left(request))

    def _found(self, method: str, path: tuple[str, ...]) -> tuple[Place, Endpoint]:
        is_own = path[:1] == (OWN,)
        if is_own:
            path = _names_in(path)
        elif path[-1:] == ("",) and method != "DELETE":
            # As with RabbitMQ a slash at the end says nothing.
            path = path[:-1]
        # An empty name is most often one that a browser or a script has lost.
        place = None if is_own and "" in path else self._endpoints.find(path)
        if place is None:
            error = "not_found" if is_own else "Object Not Found"
            raise ApiRefused(refusal(404, error, NOT_FOUND))
        endpoint = place.endpoint(method)
        if endpoint is None:
            headers = {"Allow": place.methods}
            if method == "OPTIONS":
                raise ApiRefused(ApiAnswer(200, headers=headers))
            text = f"{method} is not for this resource"
            raise ApiRefused(refusal(405, "method_not_allowed", text, headers))
        return place, endpoint

    def _carry_out(self, request: ApiRequest, done: Done) -> None:
        broker = self._broker
        if broker.is_stopping:
            done(refusal(503, "service_unavailable", "the broker is stopping"))
            return
        try:
            place, endpoint = self._found(request.method, request.path)
        except ApiRefused as refused:
            done(refused.answer)
            return
        call = Call(
            broker,
            self._state,
            request,
            endpoint,
            place.names,
            done,
            lambda work: self._answer(endpoint, request, done, work),
        )

        def work() -> ApiAnswer | None:
            call.require_login()
            self._check(call)
            answer = endpoint.carry_out(call)
            if answer is not None and isinstance(answer.body, dict) and request.path[0] != OWN:
                answer = replace(answer, body=only_columns(call, answer.body))
            return answer

        self._answer(endpoint, request, done, work)

    def _check(self, call: Call) -> None:
        """Raise AccessRefused unless the caller may, NotFound where the virtual host is none."""
        endpoint = call.endpoint
        if endpoint.tags and endpoint.tags is not CLIENTS:
            self._require_tag(call, endpoint.tags)
        if endpoint.vhost == UNCHECKED or "vhost" not in call.names:
            return
        vhost = call.vhost
        is_enough = (endpoint.vhost == SEEN and call.may_see(vhost.name)) or (
            endpoint.vhost == WATCHED and call.watches
        )
        if not is_enough and not call.may_enter(vhost.name):
            raise AccessRefused("User not authorised to access virtual host")

    def _require_tag(self, call: Call, tags: frozenset[str]) -> None:
        text = next(text for tag, text in _NEEDED if tag in tags)
        if not call.identity.tags & tags:
            name = call.identity.name
            self._broker.permissions.denied(f"HTTP API: {text} '{name}'", call.identity)
            raise AccessRefused(text)

    def _answer(
        self,
        endpoint: Endpoint,
        request: ApiRequest,
        done: Done,
        work: Callable[[], ApiAnswer | None],
    ) -> None:
        """Do a call's work, and answer what comes of it."""
        broker = self._broker
        before = broker.events.serving
        broker.events.serving = request
        changes = broker.changes
        try:
            answer = work()
            if answer is not None:
                done(answer)
        except ApiRefused as refused:
            done(refused.answer)
        except Exception as error:
            answer = endpoint.refusal_of(error)
            if answer is None:
                if broker.changes != changes:
                    # It is done by halves.
                    raise
                logger.error("internal error, a request is given up: %r", error, exc_info=error)
                answer = refusal(500, "internal_server_error", "internal error")
            done(answer)
        finally:
            broker.events.serving = before


def _names_in(path: tuple[str, ...]) -> tuple[str, ...]:
    """What the segments of a path of our own API stand for. Raises ApiRefused."""
    for each in path:
        if each in DOTS:
            text = f"in a path the name {each!r} is {segment(each)}"
            raise ApiRefused(refusal(400, "bad_request", text))
    return tuple(map(name_of, path))

"""The HTTP API of administrators: requests and answers are those of RabbitMQ's management API.

Each resource has a class that knows its methods; ``Management`` finds it by the path. What changes
something is answered once that is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trivium.errors import AccessRefused, NotFound, TopologyError
from trivium.observability.api import ApiAnswer, ApiRequest, refusal
from trivium.security.identity import ADMINISTRATOR
from trivium.storage.base import DurabilityWaiter
from trivium.vhost.settings import VirtualHostSettings

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

#: The tags of users who may ask.
_MAY: Final = frozenset((ADMINISTRATOR,))

Done = Callable[[ApiAnswer], None]


class _BadRequest(Exception):
    """The request says something that it cannot; the text is for the client."""


class _Durable(DurabilityWaiter):
    """Answers once a write batch is durable."""

    def __init__(self, answer: ApiAnswer, done: Done) -> None:
        self._answer = answer
        self._done = done

    def write_batch_durable(self, write_batch: int) -> None:
        self._done(self._answer)


class Management:
    """The API of one broker. ``call`` does some work as a turn of it."""

    def __init__(self, broker: Broker, call: Callable[[Callable[[], None]], None]) -> None:
        self._broker = broker
        self._call = call
        self._resources = {"vhosts": VhostResource(broker)}

    def ask(self, request: ApiRequest, done: Done) -> None:
        """Carry out one request."""
        self._call(lambda: self._carry_out(request, done))

    def _carry_out(self, request: ApiRequest, done: Done) -> None:
        broker = self._broker
        if broker.is_stopping:
            done(refusal(503, "service_unavailable", "the broker is stopping"))
            return
        broker.events.serving = request
        try:
            broker.permissions.require_tag(request.identity, _MAY, "management")
            resource = self._resources.get(request.path[0]) if request.path else None
            if resource is None:
                raise NotFound("no such resource")
            resource.ask(request, done)
        except NotFound as error:
            done(refusal(404, "Object Not Found", str(error)))
        except AccessRefused as error:
            done(refusal(403, "not_authorised", str(error)))
        except (TopologyError, _BadRequest) as error:
            done(refusal(400, "bad_request", str(error)))
        finally:
            broker.events.serving = None


class VhostResource:
    """``/vhosts`` and ``/vhosts/NAME``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def ask(self, request: ApiRequest, done: Done) -> None:
        """Carry out one request. Raises the errors that refuse it."""
        method = request.method
        names = request.path[1:]
        if len(names) > 1:
            raise NotFound("no such resource")
        if method in ("GET", "HEAD"):
            done(ApiAnswer(200, self._described(names[0]) if names else self._all()))
        elif names and method == "PUT":
            status = self._put(names[0], request.body or {})
            self._when_durable(ApiAnswer(status), done)
        elif names and method == "DELETE":
            self._broker.virtual_hosts.delete(
                names[0], lambda: self._when_durable(ApiAnswer(204), done)
            )
        else:
            done(refusal(405, "method_not_allowed", f"{method} is not for this resource"))

    def _when_durable(self, answer: ApiAnswer, done: Done) -> None:
        storage = self._broker.storage
        if storage.is_durable:
            storage.wait(_Durable(answer, done))
        else:
            done(answer)

    def _all(self) -> list[dict[str, object]]:
        return [_fields(vhost) for _, vhost in sorted(self._broker.vhosts.items())]

    def _described(self, name: str) -> dict[str, object]:
        return _fields(self._broker.virtual_hosts.get(name))

    def _put(self, name: str, body: dict[str, object]) -> int:
        """Make it, or give one that exists what is named; the status."""
        virtual_hosts = self._broker.virtual_hosts
        known = virtual_hosts.by_name.get(name)
        settings = VirtualHostSettings() if known is None else known.settings
        for key, value in body.items():
            if key == "description":
                settings = replace(settings, description=_text(key, value))
            elif key == "tags":
                settings = replace(settings, tags=_tags(value))
            elif key == "default_queue_type":
                settings = replace(settings, default_queue_type=_text(key, value))
            elif key != "tracing" or value is not False:
                # Clients of RabbitMQ say that they want none.
                raise _BadRequest(f"{key!r} cannot be set")
        virtual_hosts.declare(name, settings)
        return 201 if known is None else 204


def _fields(vhost: VirtualHost) -> dict[str, object]:
    return {"name": vhost.name, **vhost.settings.described()}


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _BadRequest(f"{key!r} is a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _BadRequest(f"{key!r} is no Unicode") from None
    return value


def _tags(value: object) -> tuple[str, ...]:
    """A list of them, or a text with commas between."""
    if isinstance(value, str):
        value = [tag.strip() for tag in value.split(",") if tag.strip()]
    if not isinstance(value, list):
        raise _BadRequest("'tags' are a list of texts")
    return tuple(_text("tags", tag) for tag in value)

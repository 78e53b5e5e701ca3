"""Live figures, as server-sent events."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from trivium.management.places import MAX_PLACES, Place
from trivium.management.rest.general import Overview, overview_of
from trivium.management.rest.operations import Parameter, asked, operation
from trivium.management.rest.schema import About, Name, Time, shown_model
from trivium.management.values import encode
from trivium.observability.api import ApiAnswer, ApiRefused, refusal

if TYPE_CHECKING:
    from trivium.management.calls import Call

#: Events of one client, who comes again then.
MAX_EVENTS: Final = 600

_COUNT: Final = Parameter(
    "count", Annotated[int, About(least=1, most=MAX_EVENTS)], "how many events, 600"
)


@dataclass(frozen=True, slots=True)
class Rates:
    """What one protocol did per second since the event before."""

    protocol: Name
    messages_received: float
    messages_sent: float
    bytes_received: float
    bytes_sent: float


@dataclass(frozen=True, slots=True)
class Live:
    """The figures of a moment."""

    at: Time
    overview: Overview
    rates: list[Rates]


def live(call: Call) -> ApiAnswer:
    """Figures, each second."""
    events = _events(call, asked(call, _COUNT, MAX_EVENTS))
    if call.request.method != "HEAD":
        # It has its place from now on.
        next(events)
    return ApiAnswer(200, events=events, content_type="text/event-stream")


def _events(call: Call, count: int) -> Generator[bytes, None, None]:
    broker = call.broker
    request = call.request
    place = Place(call.identity.name, request.address, request.is_behind, request.drop)
    if not call.state.places.take(place):
        text = f"at most {MAX_PLACES} clients are sent live figures"
        raise ApiRefused(refusal(429, "too_many_requests", text, {"Retry-After": "10"}))
    before: Overview | None = None
    before_ms = 0
    try:
        yield b""
        for _ in range(count):
            if broker.is_stopping or not call.may_go_on(time.time_ns() // 1_000_000):
                return
            found = yield from overview_of(call)
            now_ms = time.monotonic_ns() // 1_000_000
            rates = [] if before is None else _rates(before, found, now_ms - before_ms)
            event = Live(time.time_ns() // 1_000_000, found, rates)
            place.look()
            if place.is_given_up:
                return
            yield b"event: figures\ndata: " + encode(shown_model(event)) + b"\n\n"
            before, before_ms = found, now_ms
    finally:
        call.state.places.leave(place)


def _rates(before: Overview, now: Overview, elapsed_ms: int) -> list[Rates]:
    seconds = max(elapsed_ms, 1) / 1000
    earlier = {each.name: each for each in before.protocols}
    return [
        Rates(
            each.name,
            *(
                round((getattr(each, name) - getattr(earlier[each.name], name)) / seconds, 1)
                for name in ("messages_received", "messages_sent", "bytes_received", "bytes_sent")
            ),
        )
        for each in now.protocols
        if each.name in earlier
    ]


ENDPOINTS: Final = (
    operation(
        "GET",
        "live",
        live,
        "Figures of each second, as server-sent events",
        result=Live,
        media="text/event-stream",
        query=(_COUNT,),
    ),
)

"""Requests that publish: each is done once, and takes several turns where it makes many deliveries.

In between others are served, in the one line of all protocols. How far a request with an
``Idempotency-Key`` is stands in the write batch of what it has published: made again, because its
client or the broker was gone meanwhile, it goes on there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from trivium.errors import PreconditionFailed
from trivium.idempotence.deduplication import REQUEST, Settings, short_id
from trivium.management.counting import count_published
from trivium.management.endpoints import BadRequest
from trivium.management.pacing import must_wait
from trivium.management.rest.operations import Parameter, answer
from trivium.management.rest.schema import About
from trivium.observability.api import ApiAnswer, ApiRefused, refusal
from trivium.routing.exchanges import DELIVERY_VISITS, REJECTED, UNROUTABLE
from trivium.runtime.long_requests import STEP, LongRequest

if TYPE_CHECKING:
    from trivium.management.calls import Call

#: Bytes of a payload that take as long as one more delivery: a step has 4 MiB of payloads.
DELIVERY_BYTES: Final = 4096

#: Keys of requests that are remembered for each user, and for how long.
MAX_KEYS: Final = 65_536
KEY_MS: Final = 24 * 3600 * 1000
MAX_KEY: Final = 255
KEY: Final = Parameter(
    "Idempotency-Key",
    Annotated[str, About(longest=MAX_KEY)],
    "what is asked again with the same key, by the same user, is done once, and nothing else",
)
#: What windows of such keys are called.
_KEYS: Final = Settings(True, "", MAX_KEYS, KEY_MS)

Outcome = Literal["accepted", "unroutable", "unretained", "rejected"]
#: Those of requests that are remembered; each is noted as its place here, behind a byte that is no
#: place and what the request was known by, which earlier versions did not note.
_NOTED: Final[tuple[Outcome, ...]] = ("accepted", "unroutable", "unretained", "rejected")
_KNOWN: Final = b"\xff"

#: Publishes the message at an index: what becomes of it, and the deliveries that it makes. Raises
#: what refuses it, and all behind it.
PublishOne = Callable[[int], tuple[Outcome, int]]


@dataclass(frozen=True, slots=True)
class Published:
    """What became of the messages, once all is durable that must be."""

    outcomes: Annotated[list[Outcome], About(text="in their order; as they were the first time")]
    repeated: Annotated[bool, About(text="whether a request with this key was done before")]


def outcome_of(call: Call, result: int) -> Outcome:
    """What became of a message that was published, as what ``publish`` says; it is counted."""
    count_published(call, result)
    return (
        "unroutable" if result == UNROUTABLE else "rejected" if result == REJECTED else "accepted"
    )


def publish_once(call: Call, place: str, sizes: list[int], publish: PublishOne) -> None:
    """Publish messages with payloads of these sizes to a place, unless that was done before, and
    answer."""
    if must_wait(call, len(sizes), sum(sizes)):
        return
    note = _Note(call, place, len(sizes)) if call.request.idempotency_key else None
    if note is not None and note.was_done():
        _answer(call, note.outcomes, True)
        return
    publishing = _Publishing(call, sizes, publish, note)
    # Where others have a turn each it has no whole one before them.
    if publishing.take_part(call.broker.long_requests.has_any):
        _answer(call, publishing.outcomes, False)
    else:
        call.broker.long_requests.enter(publishing)


def _answer(call: Call, outcomes: list[Outcome], is_repeated: bool) -> None:
    if outcomes and all(outcome == "rejected" for outcome in outcomes):
        raise PreconditionFailed("all queues that it led to have no room")
    call.answer_durably(answer(Published(outcomes, is_repeated), 202))


class _Note:
    """What is noted with the ``Idempotency-Key`` of a request of so many messages."""

    def __init__(self, call: Call, place: str, count: int) -> None:
        key = call.request.idempotency_key.encode()
        if len(key) > MAX_KEY:
            raise BadRequest(f"'Idempotency-Key' has at most {MAX_KEY} bytes")
        if call.identity.is_anonymous:
            raise BadRequest("'Idempotency-Key' is for users")
        self._count = count
        self._identity = short_id(f"{place}\0".encode() + key)
        self._known = _KNOWN + call.request.fingerprint
        self._window = call.vhost.deduplication.window(REQUEST, call.identity.name)
        self._is_there = False
        #: what became of the messages that are published, as was noted last
        self.outcomes: list[Outcome] = []

    def was_done(self) -> bool:
        """Whether the request was done before. Raises ApiRefused where another one came."""
        noted = self.read()
        if not noted or (noted.startswith(_KNOWN) and len(self.outcomes) < self._count):
            return False
        # The first one is durable before this one is answered.
        self._window.answer(self._identity)
        return True

    def read(self) -> bytes:
        """Look what is noted now. Raises ApiRefused where it is another request's."""
        noted = self._window.note_of(self._identity)
        places = noted
        if noted.startswith(_KNOWN):
            if not noted.startswith(self._known):
                text = "another request came with this 'Idempotency-Key'"
                raise ApiRefused(refusal(422, "key_reused", text))
            places = noted[len(self._known) :]
        self._is_there = len(noted) > 0
        self.outcomes = [_NOTED[place] for place in places]
        return noted

    def write(self, outcomes: list[Outcome]) -> None:
        """So far it is published, in the current write batch."""
        noted = self._known + bytes([_NOTED.index(each) for each in outcomes])
        if len(outcomes) == self._count and "rejected" in outcomes:
            # It may be made anew.
            if not self._is_there:
                return
            noted = b""
        self._window.add(self._identity, _KEYS, True, noted)
        self._is_there = True


class _Publishing(LongRequest):
    """One such request, while it is carried out."""

    def __init__(
        self, call: Call, sizes: list[int], publish: PublishOne, note: _Note | None
    ) -> None:
        super().__init__(call.broker, call.identity.name or call.request.address, False)
        self._call = call
        self._sizes = sizes
        self._publish = publish
        self._note = note
        self._is_over = False
        #: what became of the messages that are published
        self.outcomes: list[Outcome] = [] if note is None else note.outcomes

    def take_part(self, is_short: bool = False) -> bool:
        """Publish what fits in the turn, or one step; whether that is the last. Raises what refuses
        it."""
        sizes = self._sizes
        outcomes = self.outcomes
        try:
            while len(outcomes) < len(sizes):
                room = STEP
                while room > 0 and len(outcomes) < len(sizes):
                    size = sizes[len(outcomes)]
                    before = self.broker.work
                    outcome, deliveries = self._publish(len(outcomes))
                    deliveries += (self.broker.work - before) // DELIVERY_VISITS
                    outcomes.append(outcome)
                    room -= max(deliveries, 1) * (1 + size // DELIVERY_BYTES)
                if is_short or self.broker.driver.is_turn_long():
                    break
        finally:
            if self._note is not None and outcomes:
                self._note.write(outcomes)
        return len(outcomes) == len(sizes)

    def ask(self) -> None:
        self.broker.driver.call_soon(self._turn)

    def _turn(self) -> None:
        self.go_on()

    def step(self) -> bool:
        self._is_over = True
        self._call.go_on(self._resumed)
        return self._is_over

    def _resumed(self) -> ApiAnswer | None:
        """Others were served."""
        if self.broker.is_stopping:
            raise ApiRefused(refusal(503, "service_unavailable", "the broker is stopping"))
        if self._note is not None:
            self._catch_up(self._note)
        if self.take_part():
            _answer(self._call, self.outcomes, False)
        else:
            self._is_over = False
        return None

    def _catch_up(self, note: _Note) -> None:
        """The client may have made the request once more, and that one has gone on."""
        note.read()
        if len(note.outcomes) > len(self.outcomes):
            self.outcomes = note.outcomes

"""Requests that take several turns, or one for themselves, of all clients of a broker: whose turn
it is.

In between others are served; of its own client nothing else is taken meanwhile, so what that sends
behind stays behind. In a turn one request goes on, and then that of another user, and of another
connection of the user. What a request of very many messages costs in memory, opened and read, is
far more than what it came as: of one user one such is under way, and the others have not begun.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from trivium.runtime.framed import Work

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.runtime.framed import FramedConnection

#: Messages of one request that are read at once, and deliveries that are made of them at once,
#: before the clock is looked at. What must be done at once and makes more has a turn for itself.
STEP: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class LongRequest(Work):
    """One of them: of a user or, without credentials, of an address."""

    def __init__(self, broker: Broker, owner: str, needs_place: bool) -> None:
        self.broker = broker
        self.owner = owner
        #: whether it begins only once no other of its user that needs a place is under way
        self.needs_place = needs_place
        #: where it stands, once it has entered
        self.line: Line

    def step(self) -> bool:
        """Do what fits in the turn; whether that was the last of it. What refuses it is answered,
        never raised."""
        raise NotImplementedError

    def entered(self) -> None:
        """It is in line: take nothing else of its client."""

    def ask(self) -> None:
        """Have ``go_on`` called in the next turn."""
        raise NotImplementedError

    def release(self) -> None:
        """It is over: let go what it holds."""

    def go_on(self) -> bool:
        is_done = True
        try:
            is_done = self.step()
        finally:
            if is_done:
                self.give_up()
            else:
                self.broker.long_requests.went_on(self)
        return is_done

    def give_up(self) -> None:
        self.release()
        self.broker.long_requests.left(self)


@mypyc_attr(allow_interpreted_subclasses=True)
class LongFrame(LongRequest):
    """What a frame asks for."""

    def __init__(self, connection: FramedConnection, needs_place: bool) -> None:
        host, _, _ = connection.peer.address.rpartition(":")
        super().__init__(connection.broker, connection.identity.name or host, needs_place)
        self.connection = connection

    def entered(self) -> None:
        self.connection.take_turns(self)

    def ask(self) -> None:
        self.broker.driver.next_turn(self.connection)


class Line:
    """Those of one user, or of all without credentials who come from one address."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        #: under way, in the order of their turns
        self.going_on: deque[LongRequest] = deque()
        #: those that wait for the place of another
        self.waiting: deque[LongRequest] = deque()
        #: which of those under way has the place
        self.placed: LongRequest | None = None


class LongRequests:
    """All of a broker."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        # Those of them with requests under way, in the order of their turns.
        self._turns: deque[Line] = deque()
        # What goes on in the next turn.
        self._next: LongRequest | None = None

    @property
    def has_any(self) -> bool:
        """Whether some are under way."""
        return len(self._turns) > 0

    def enter(self, request: LongRequest) -> None:
        """It goes on in turns to come, and nothing else of its client is taken until it is over."""
        request.entered()
        line = self._lines.get(request.owner)
        if line is None:
            line = self._lines[request.owner] = Line(request.owner)
        request.line = line
        if not request.needs_place:
            self._begin(line, request)
        elif line.placed is None:
            line.placed = request
            self._begin(line, request)
        else:
            line.waiting.append(request)

    def _begin(self, line: Line, request: LongRequest) -> None:
        if not line.going_on:
            self._turns.append(line)
        line.going_on.append(request)
        self._ask()

    def _ask(self) -> None:
        """Ask for the next turn, unless somebody has it or nobody wants it."""
        if self._next is None and self._turns:
            request = self._next = self._turns[0].going_on[0]
            request.ask()

    def went_on(self, request: LongRequest) -> None:
        """It has had its turn, and there is more of it: now others."""
        request.line.going_on.rotate(-1)
        self._turns.rotate(-1)
        self._next = None
        self._ask()

    def left(self, request: LongRequest) -> None:
        """It is over."""
        line = request.line
        if request not in line.going_on:
            line.waiting.remove(request)
            return
        line.going_on.remove(request)
        if request is self._next:
            self._next = None
        if request is line.placed:
            line.placed = line.waiting.popleft() if line.waiting else None
            if line.placed is not None:
                line.going_on.append(line.placed)
        self._turns.remove(line)
        if line.going_on:
            self._turns.append(line)
        else:
            del self._lines[line.owner]
        self._ask()

"""When sessions of clients that are away end (3.1.2.11.2), and their wills are due (3.1.3.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.timers import Timed, Timers
from trivium_mqtt.codec.packets import NEVER
from trivium_mqtt.session import Session

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker


class Deadlines:
    """The sessions of a virtual host for which something is to be done at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: sessions whose time was over
        self.ended = 0
        self._timers = Timers()
        # Those whose time has come since ``take_due``.
        self._due: list[Session] = []

    def __len__(self) -> int:
        """How many times are kept, stopped ones among them."""
        return len(self._timers)

    def end_later(self, session: Session, last_seen: int) -> None:
        """The session ends when its expiry has passed since ``last_seen``, in Unix milliseconds."""
        if session.expiry != NEVER:
            # The clock may have been set since: it never lives longer than it is to.
            passed = max(self._broker.now_ms - last_seen, 0)
            left = session.expiry * 1000 - passed
            session.ends = max(self._broker.elapsed_ms + left, 1)
            self._call_at(session.ends, session)

    def will_later(self, session: Session, delay: int) -> None:
        """Its will is due in ``delay`` milliseconds."""
        session.will_due = max(self._broker.elapsed_ms + delay, 1)
        self._call_at(session.will_due, session)

    def will_is_done(self, session: Session) -> None:
        """What was due is done; the session lives on until it ends."""
        if session.ends:
            self._call_at(session.ends, session)

    def stop(self, session: Session) -> None:
        """The client is back, or the session has ended: nothing is due any more."""
        session.ends = 0
        session.will_due = 0
        if session.timer is not None:
            self._timers.stop(session.timer)
            session.timer = None

    def take_due(self) -> list[Session]:
        """The sessions whose will is due or that end, in the order of their times."""
        self._timers.run(self._broker.elapsed_ms)
        due = self._due
        self._due = []
        due.sort(key=_by_time)
        return due

    def is_due(self, session: Session) -> None:
        """Called by the session's timer."""
        session.timer = None
        self._due.append(session)

    def _call_at(self, at: int, session: Session) -> None:
        if session.timer is None:
            session.timer = _SessionTimer(self, session)
        self._timers.call_at(at, session.timer)


class _SessionTimer(Timed):
    """The session has it until then."""

    def __init__(self, deadlines: Deadlines, session: Session) -> None:
        self._deadlines = deadlines
        self._session = session

    def due(self) -> None:
        self._deadlines.is_due(self._session)


def _by_time(session: Session) -> tuple[int, bytes]:
    """What is due at one time comes by client identifier: after a start nobody knows who left
    first."""
    is_will = session.will is not None and session.will_due > 0
    return session.will_due if is_will else session.ends, session.client_id

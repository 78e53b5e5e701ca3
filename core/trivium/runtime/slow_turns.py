"""Turns that took long, and what was in them, for the log.

While a turn lasts nobody else is served. It is made of steps: what came from one client, a callback
of the storage, a request of an operator, the end of the turn. Of each turn the longest step is
known, and how many there were. A timer that is due is a step of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from trivium.common.timers import Timed
from trivium.observability.served import ServedRequest
from trivium.runtime.adapter import Connection

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

logger = logging.getLogger(__name__)

#: Seconds between two lines, at least.
INTERVAL: Final = 10.0
#: Characters of a name or a path.
_MAX_TEXT: Final = 200
END: Final = "the end of the turn"
#: What callbacks are for: the beginning of their module's name -> words.
_KINDS: Final = (
    ("trivium.storage.", "what the storage has done"),
    ("trivium.runtime.driver", "what a thread has done, or a timer"),
    ("trivium.security.", "who may connect"),
    ("trivium.runtime.handshakes", "a handshake"),
    ("trivium.runtime.proxy_protocol", "a handshake"),
    ("trivium.runtime.tls", "a handshake"),
    ("trivium.runtime.websocket", "a handshake"),
    ("trivium.runtime.sockets", "a socket"),
    ("trivium.observability.http", "a client of HTTP"),
    ("trivium.management.", "HTTP"),
    ("trivium.runtime.", "the broker's own"),
)
#: What timers are for, in the same way.
_TIMERS: Final = (
    ("trivium.queues.dead_letters", "dead letters"),
    ("trivium.queues.", "messages that expire, queues that nobody uses"),
    ("trivium.vhost.delays", "delayed messages"),
    ("trivium.vhost.policy_walk", "a policy that has changed"),
    ("trivium.vhost.suspensions", "bindings whose makers lose permissions"),
    ("trivium.streams.retention", "what streams keep no longer"),
    ("trivium.streams.compaction", "the compaction of a stream"),
    ("trivium.streams.filtered_reads", "readers with a filter"),
    ("trivium.streams.", "a stream"),
    ("trivium.groups.", "members of a group that are silent"),
    ("trivium.idempotence.", "what is remembered to find doubles"),
    ("trivium.management.sampling", "rates that somebody looks at"),
    ("trivium.management.compatible.definitions", "an import of definitions"),
    ("trivium.management.leases", "messages that are lent over HTTP"),
    ("trivium.management.", "requests over HTTP that wait"),
    ("trivium.runtime.authentication", "logins that end"),
    ("trivium.runtime.user_deletion", "a user that is deleted"),
    ("trivium.runtime.vhost_deletion", "a virtual host that is deleted"),
    ("trivium.runtime.firehose", "the firehose"),
    ("trivium.runtime.event_messages", "events as messages"),
    ("trivium.runtime.alarms", "memory and disk"),
    ("trivium.runtime.", "a client that has to wait"),
    ("trivium.common.timers", "what was to be done later"),
    ("trivium.", "the broker's own"),
)


class SlowTurns:
    """Tells of the turns of one broker, whose adapters are there, that take ``limit`` seconds or
    more."""

    def __init__(self, broker: Broker, limit: float) -> None:
        self._broker = broker
        # Each turn looks at them.
        adapters = broker.adapters.values()
        self._metrics: Final = [broker.http, *[adapter.metrics for adapter in adapters]]
        self._limit = limit
        self._began = self._last = time.monotonic()
        self._steps: i64 = 0
        self._longest = 0.0
        self._what: object = None
        self._received: i64 = 0
        self._sent: i64 = 0
        # When the last line was written, and slow turns since.
        self._told_at = -INTERVAL
        self._untold = 0

    def begin(self, now: float) -> None:
        """A turn begins."""
        self._began = self._last = now
        self._steps = 0
        self._longest = 0.0

    def did(self, what: object) -> None:
        """A step is done: for a connection or a request, or a callback."""
        self.did_at(what, time.monotonic())

    def did_at(self, what: object, now: float) -> None:
        """A step is done, as ``did``, at this time."""
        took = now - self._last
        self._last = now
        self._steps += 1
        if took > self._longest:
            self._longest = took
            self._what = what

    def did_work(self, work: Callable[[], None]) -> None:
        """A callback is done, for whom it has served if it was anybody."""
        serving = self._broker.events.serving
        self.did(work if serving is None else serving)

    def end(self) -> None:
        """A turn ends. When the broker stops nobody is served anyway."""
        seconds = self._last - self._began
        received: i64 = 0
        sent: i64 = 0
        for metrics in self._metrics:
            received += metrics.messages_received
            sent += metrics.messages_sent
        if seconds >= self._limit and not self._broker.is_stopping:
            self._tell(seconds, received - self._received, sent - self._sent)
        self._received = received
        self._sent = sent
        self._what = None

    def _tell(self, seconds: float, received: int, sent: int) -> None:
        if self._last - self._told_at < INTERVAL:
            self._untold += 1
            return
        more = f"; {self._untold} more since the last line" if self._untold else ""
        self._told_at = self._last
        self._untold = 0
        logger.warning(
            "a turn took %.0f ms: %d messages came, %d left, in %d steps;"
            " the longest, %.0f ms, was %s%s",
            seconds * 1000,
            received,
            sent,
            self._steps,
            self._longest * 1000,
            described(self._what),
            more,
        )


def described(what: object) -> str:
    """What a step was for, without anything that is secret."""
    if isinstance(what, Connection):
        listener = what.peer.listener.config.protocol
        user = what.identity.name[:_MAX_TEXT]
        name = what.client_id[:_MAX_TEXT].decode(errors="replace")
        client = f", client {name!r}" if name else ""
        return f"for {what.peer.address} ({listener}, user {user!r}{client})"
    if isinstance(what, ServedRequest):
        path = "/".join(what.path)[:_MAX_TEXT]
        user = what.identity.name[:_MAX_TEXT]
        return f"{what.method} {path!r} for {what.address} (user {user!r})"
    if isinstance(what, str):
        return what
    if isinstance(what, partial):
        served = [each for each in what.args if isinstance(each, (ServedRequest, Connection))]
        return described(served[0] if served else what.func)
    if isinstance(what, Timed):
        return _timer(what)
    owner = getattr(what, "__self__", None)
    if isinstance(owner, Connection):
        return described(owner)
    # Methods of what is compiled do not know their module.
    module: str = getattr(what, "__module__", None) or type(owner).__module__
    kind = _words(_KINDS, module, "something")
    # One that has no name of its own was made in a function that has.
    name = str(getattr(what, "__qualname__", type(what).__qualname__)).partition(".<locals>")[0]
    return f"{kind} ({module}.{name})"


def _timer(item: Timed) -> str:
    """What a timer was for; those of protocols are for a client of theirs."""
    # One that does some work is for whom it does it. Classes that are compiled have their names for
    # Python alone.
    kind: Any = type(getattr(getattr(item, "_work", None), "__self__", item))
    module: str = kind.__module__
    text = f"a timer for {_words(_TIMERS, module, 'clients')} ({module}.{kind.__qualname__})"
    for name in ("connection", "_connection"):
        connection = getattr(item, name, None)
        if isinstance(connection, Connection):
            return f"{text} {described(connection)}"
    return text


def _words(kinds: tuple[tuple[str, str], ...], module: str, other: str) -> str:
    return next((words for begin, words in kinds if module.startswith(begin)), other)

"""Deduplication by message id: a window of the ids that an exchange or a queue has taken.

A publisher that got no answer sends its message again with the same id; what has the id already
acknowledges it and drops it. The id of a message that is stored is a row of a table, written in the
write batch of the message: after a crash either both are there or neither. A window holds the
latest ids, as many as its size says and for as long as its time says.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Container, Mapping
from struct import Struct
from typing import Final

from trivium.common.timers import Timed
from trivium.errors import PreconditionFailed
from trivium.host import Host
from trivium.messages.message import HeaderValue, Message, codec_of
from trivium.routing.exchanges import ACCEPTED, REJECTED, Destination, Route
from trivium.storage.base import Table

#: The header that has the id, unless the argument ``x-deduplication-header`` names another.
DEFAULT_HEADER: Final = "x-deduplication-header"
#: Ids that a window holds unless ``x-cache-size`` says otherwise, and most that it may say: a table
#: has all of its rows in memory.
DEFAULT_SIZE: Final = 65_536
MAX_SIZE: Final = 1 << 20
#: Ids that a window which became smaller forgets in one turn, lest everything else stop.
FORGET_AT_ONCE: Final = 1024
#: Longer ids are replaced by their SHA-256.
MAX_ID_BYTES: Final = 128

#: Arguments that say how an exchange or a queue deduplicates.
ARGUMENTS: Final = frozenset({"x-message-deduplication", "x-deduplication-header"}) | {
    "x-cache-size",
    "x-cache-ttl",
}

EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
#: The kind of requests with an ``Idempotency-Key``, by user.
REQUEST: Final = "request"

#: size of what follows it in a key: the kind and name of an exchange or queue; then comes the id
_SCOPE: Final = Struct("<I")
#: when it was taken and when it may be forgotten (0: only for want of room), ms since the epoch;
#: a note may follow
_ROW: Final = Struct("<qq")


class Settings:
    """How something deduplicates. ``ttl`` is in milliseconds, -1 for no limit."""

    def __init__(self, is_on: bool, header: str, size: int, ttl: int) -> None:
        self.is_on = is_on
        self.header = header
        self.size = size
        self.ttl = ttl


def exchange_settings(arguments: Mapping[str, HeaderValue], what: str) -> Settings:
    """What the arguments of an exchange say. Raises PreconditionFailed."""
    is_on = arguments.get("x-message-deduplication", False)
    header = arguments.get("x-deduplication-header", DEFAULT_HEADER)
    size = arguments.get("x-cache-size", DEFAULT_SIZE)
    ttl = arguments.get("x-cache-ttl", -1)
    if not isinstance(is_on, bool):
        raise PreconditionFailed(f"invalid arg 'x-message-deduplication' for {what}")
    if not isinstance(header, str):
        raise PreconditionFailed(f"invalid arg 'x-deduplication-header' for {what}")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MAX_SIZE:
        raise PreconditionFailed(f"invalid arg 'x-cache-size' for {what}")
    if not isinstance(ttl, int) or isinstance(ttl, bool) or (ttl <= 0 and ttl != -1):
        raise PreconditionFailed(f"invalid arg 'x-cache-ttl' for {what}")
    return Settings(is_on, header, size, ttl)


def deduplication_id(message: Message, header: str) -> bytes | None:
    """The id of a message: text, bytes or an integer in the header, or its own id where the
    protocol has one for that.

    None when it has none, and for what the broker publishes itself (dead letters): a message that
    comes back to where it was is no repetition.
    """
    if message.annotations is not None:
        return None
    properties = message.properties()
    value = properties.header(header)
    if value is None and codec_of(message.protocol).identifies_messages:
        value = properties.message_id
    if isinstance(value, str):
        identity = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        identity = value
    elif isinstance(value, int) and not isinstance(value, bool):
        identity = str(value).encode()
    else:
        return None
    return short_id(identity)


def short_id(identity: bytes) -> bytes:
    """An id, or its digest where it is long."""
    return identity if len(identity) <= MAX_ID_BYTES else hashlib.sha256(identity).digest()


class _Entry:
    """One id in a window."""

    def __init__(
        self, identity: bytes, expires: int, write_batch: int, is_stored: bool, note: bytes
    ) -> None:
        self.identity = identity
        #: what is to be known of it when it comes again
        self.note = note
        self.expires = expires
        #: the write batch that makes it durable; 0 when it is
        self.write_batch = write_batch
        self.is_stored = is_stored


class Window(Timed):
    """The ids that one exchange or queue has taken, oldest first."""

    def __init__(self, owner: Deduplication, scope: bytes) -> None:
        self._owner = owner
        self._broker = owner.broker
        self._prefix = _SCOPE.pack(len(scope)) + scope
        self._entries: dict[bytes, _Entry] = {}
        self._order: deque[_Entry] = deque()
        self._size = MAX_SIZE
        self._more = _More(self)

    def __len__(self) -> int:
        return len(self._entries)

    def answer(self, identity: bytes) -> int:
        """What a repetition of an id is answered: ACCEPTED, or the write batch to wait for.

        The first one must be durable before the second is acknowledged. REJECTED when it is new.
        """
        entry = self._entries.get(identity)
        if entry is None or 0 < entry.expires <= self._broker.now_ms:
            return REJECTED
        self._owner.duplicates += 1
        storage = self._broker.storage
        return storage.write_batch if entry.write_batch > storage.durable else ACCEPTED

    def note_of(self, identity: bytes) -> bytes:
        """What was noted with an id; nothing with one that is new."""
        entry = self._entries.get(identity)
        if entry is None or 0 < entry.expires <= self._broker.now_ms:
            return b""
        return entry.note

    def add(self, identity: bytes, settings: Settings, is_stored: bool, note: bytes = b"") -> None:
        """The message with this id was taken; ``is_stored``: in the current write batch. With one
        that is known something else is noted."""
        broker = self._broker
        is_stored = is_stored and broker.storage.is_durable
        now = broker.now_ms
        expires = now + settings.ttl if settings.ttl > 0 else 0
        write_batch = broker.storage.write_batch if is_stored else 0
        known = self._entries.get(identity)
        if known is not None:
            if not 0 < known.expires <= now:
                known.note = note
                known.write_batch = write_batch
                if is_stored:
                    known.is_stored = True
                    row = _ROW.pack(now, known.expires) + note
                    self._owner.table.put(self._prefix + identity, row)
                return
            # It has expired, and nobody has swept it yet.
            self._drop(known)
        entry = _Entry(identity, expires, write_batch, is_stored, note)
        self._entries[identity] = entry
        self._order.append(entry)
        if is_stored:
            self._owner.table.put(self._prefix + identity, _ROW.pack(now, expires) + note)
        self.limit(settings.size)
        if expires:
            broker.dates.call_at(expires, self)

    def limit(self, size: int) -> None:
        """Hold the latest ``size`` ids: forget the others, very many of them bit by bit."""
        self._size = size
        forgotten = 0
        while len(self._entries) > size and forgotten < FORGET_AT_ONCE:
            self._drop(self._order.popleft())
            forgotten += 1
        if len(self._entries) > size:
            self._broker.timeouts.call_at(self._broker.elapsed_ms + 1, self._more)

    def restore(self, identity: bytes, expires: int, note: bytes) -> None:
        """An id from before a restart; in the order in which they were taken."""
        entry = _Entry(identity, expires, 0, True, note)
        self._entries[identity] = entry
        self._order.append(entry)
        if expires:
            self._broker.dates.call_at(expires, self)

    def clear(self) -> None:
        """Forget everything."""
        for entry in self._order:
            self._drop(entry)
        self._order.clear()
        self._broker.dates.stop(self)
        self._broker.timeouts.stop(self._more)

    def due(self) -> None:
        """Forget what has expired."""
        order = self._order
        now = self._broker.now_ms
        while order and 0 < order[0].expires <= now:
            self._drop(order.popleft())
        if order and order[0].expires:
            self._broker.dates.call_at(order[0].expires, self)

    def limit_on(self) -> None:
        """Go on to forget what there is no room for."""
        self.limit(self._size)

    def _drop(self, entry: _Entry) -> None:
        if self._entries.get(entry.identity) is entry:
            del self._entries[entry.identity]
            if entry.is_stored:
                self._owner.table.delete(self._prefix + entry.identity)


class _More(Timed):
    """Forgets more of the ids that there is no room for."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def due(self) -> None:
        self._window.limit_on()


class Deduplication:
    """The windows of one virtual host. ``table`` may already hold rows: they are loaded."""

    def __init__(self, broker: Host, table: Table) -> None:
        self.broker = broker
        self.table = table
        #: repetitions that were dropped since the start
        self.duplicates = 0
        self._windows: dict[bytes, Window] = {}
        rows: list[tuple[int, bytes, bytes, int, bytes]] = []
        for key, row in table.items():
            (size,) = _SCOPE.unpack_from(key)
            end = _SCOPE.size + size
            taken, expires = _ROW.unpack_from(row)
            rows.append((taken, key[_SCOPE.size : end], key[end:], expires, row[_ROW.size :]))
        rows.sort()
        for _, scope, identity, expires, note in rows:
            self._window(scope).restore(identity, expires, note)

    def window(self, kind: str, name: str) -> Window:
        """The window of the exchange or queue (``kind``) called ``name``."""
        return self._window(f"{kind}/{name}".encode())

    def limit(self, kind: str, name: str, size: int) -> None:
        """The exchange or queue remembers ``size`` ids from now on."""
        if not self._windows:
            return
        window = self._windows.get(f"{kind}/{name}".encode())
        if window is not None:
            window.limit(size)

    def _window(self, scope: bytes) -> Window:
        found = self._windows.get(scope)
        if found is None:
            found = self._windows[scope] = Window(self, scope)
        return found

    def keep_only(self, names: Mapping[str, Container[str]]) -> None:
        """After a start: forget the windows of what did not come back. ``names`` are by kind,
        and those of other kinds are kept."""
        for scope in list(self._windows):
            kind, _, name = scope.decode().partition("/")
            if kind in names and name not in names[kind]:
                self._windows.pop(scope).clear()

    def drop(self, kind: str, name: str) -> None:
        """The exchange, queue or user is deleted."""
        window = self._windows.pop(f"{kind}/{name}".encode(), None)
        if window is not None:
            window.clear()


class DeduplicatedRoute(Route):
    """The route of a message with an id through an exchange that deduplicates."""

    def __init__(self, route: Route, window: Window, settings: Settings, identity: bytes) -> None:
        super().__init__(route.address, route.destinations, route.topology_version)
        self.counters = route.counters
        self._window = window
        self._settings = settings
        self._identity = identity

    def publish(self, message: Message) -> int:
        """What nobody got, or somebody refused, may come again."""
        answer = self._window.answer(self._identity)
        if answer != REJECTED:
            return answer
        result = super().publish(message)
        if self.destinations and result != REJECTED:
            self._window.add(self._identity, self._settings, result > ACCEPTED)
        return result

    def offer(self, message: Message, wanted: list[Destination] | None) -> list[Destination]:
        if wanted is None and self._window.answer(self._identity) != REJECTED:
            return []
        refused = super().offer(message, wanted)
        if wanted is None and len(refused) < len(self.destinations):
            self._window.add(self._identity, self._settings, message.persistent)
        return refused

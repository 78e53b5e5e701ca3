"""The audit log: lines of JSON about who came in, what was refused, and who changed what.

A thread writes the lines, so a slow disk holds nobody up. Refusals, which clients can repeat at
will, are bounded: the same one is written once in a minute, and so many different ones.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Final

from trivium.config import AuditConfig
from trivium.errors import ConfigError

#: What ``[audit] events`` names, and the beginnings of the events' names.
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "logins": (
        *("user.authentication.", "user.session."),
        *("connection.ended", "session.ended"),
    ),
    "refusals": (
        *("user.authentication.failure", "user.authentication.slowed"),
        "permission.denied",
    ),
    "users": (
        *("user.created", "user.deleted", "user.password.", "user.tags.", "user.vhost."),
        *("user.limits.", "user.key."),
    ),
    "permissions": ("permission.set", "permission.deleted", "role."),
    "topology": (
        *("vhost.", "exchange.", "queue.", "stream.", "binding.", "group."),
        *("retained.", "definitions."),
    ),
    "policies": ("policy.", "operator-policy.", "global-parameter."),
}
#: Events that clients can cause as often as they like without any right.
REFUSALS: Final = (
    *("user.authentication.failure", "user.authentication.slowed"),
    "permission.denied",
)

#: Different refusals of a kind that are written in a minute, in all and of one host: a single one
#: silences nobody else's, and no kind another.
MAX_REFUSALS: Final = 10_000
MAX_OF_HOST: Final = 200
MINUTE_MS: Final = 60_000
#: Lines that may wait for the thread, and characters of a text in them.
MAX_WAITING: Final = 20_000
MAX_TEXT: Final = 1024

logger = logging.getLogger(__name__)


class AuditLog:
    """Writes events where ``[audit]`` says. Raises ConfigError if the file cannot be opened."""

    def __init__(self, config: AuditConfig) -> None:
        self._kinds = tuple(start for kind in (config.events or KINDS) for start in KINDS[kind])
        #: refusals that were not written: they repeated one, or were too many
        self._left_out = 0
        # By event, those that were written in this minute, and how many of a host.
        self._seen: dict[str, set[str]] = {event: set() for event in REFUSALS}
        self._by_host: dict[tuple[str, str], int] = {}
        self._minute = 0
        # Lines that came faster than they could be written.
        self._dropped = 0
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_WAITING)
        self._file = _opened(config) if config.file else None
        self._handlers: list[logging.Handler] = [] if self._file is None else [self._file]
        if config.log:
            self._handlers.append(_ToLogger())
        self._writer = threading.Thread(target=self._write_waiting, name="audit", daemon=True)
        self._writer.start()

    def _write_waiting(self) -> None:
        while (record := self._waiting.get()) is not None:
            for handler in self._handlers:
                handler.handle(record)

    @property
    def lost(self) -> int:
        """Lines that could not be written, or not as fast as they came."""
        return self._dropped + (0 if self._file is None else self._file.failed)

    def close(self) -> None:
        """Write what waits, and end."""
        self._waiting.put(None)
        self._writer.join()
        if self._file is not None:
            self._file.close()

    def reopen(self) -> None:
        """Go on in a new file, if another program has moved the one that is open."""
        if self._file is not None:
            self._file.reopen()

    def write(self, now_ms: int, event: str, about: dict[str, object], host: str = "") -> None:
        """Write a line, unless the event is none that is wanted; ``host`` is where it came from."""
        if not event.startswith(self._kinds):
            return
        if now_ms // MINUTE_MS != self._minute:
            self.begin_minute(now_ms)
        if event in REFUSALS and not self._is_new(event, about, host):
            self._left_out += 1
            return
        self._put(now_ms, event, about)

    def _is_new(self, event: str, about: dict[str, object], host: str) -> bool:
        """Whether a refusal is neither the same as one of this minute nor one too many."""
        # The address has a port, another one for each connection.
        what = json.dumps({**about, "address": host}, default=str)
        seen = self._seen[event]
        count = self._by_host.get((event, host), 0)
        if what in seen or count >= MAX_OF_HOST or len(seen) >= MAX_REFUSALS:
            return False
        seen.add(what)
        self._by_host[event, host] = count + 1
        return True

    def begin_minute(self, now_ms: int) -> None:
        """Say what was left out in the minute before, if that is over."""
        if now_ms // MINUTE_MS == self._minute:
            return
        self._minute = now_ms // MINUTE_MS
        for seen in self._seen.values():
            seen.clear()
        self._by_host.clear()
        if self._left_out:
            self._put(now_ms, "audit.left_out", {"refusals": self._left_out})
            self._left_out = 0

    def _put(self, now_ms: int, event: str, about: dict[str, object]) -> None:
        time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        values = {name: _value(value) for name, value in about.items()}
        line = json.dumps({"time": time, "event": event, **values}, default=str)
        try:
            self._waiting.put_nowait(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))
        except queue.Full:
            if not self._dropped:
                logger.error("audit log: events come faster than they can be written")
            self._dropped += 1


def _value(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return value[:MAX_TEXT] + "..."
    return value


class _ToLogger(logging.Handler):
    """Puts lines into the log."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.info("%s", record.getMessage())


class _File(logging.handlers.RotatingFileHandler):
    """A file of lines that only its owner reads; full ones get numbers behind their name."""

    def __init__(self, config: AuditConfig) -> None:
        # Lines that could not be written.
        self.failed = 0
        super().__init__(
            config.file, maxBytes=config.max_file_bytes, backupCount=config.files, encoding="utf-8"
        )

    def _open(self) -> TextIOWrapper:
        number = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return TextIOWrapper(os.fdopen(number, "ab"), encoding=self.encoding)

    def reopen(self) -> None:
        """Open it by its name again, for the next line."""
        self.acquire()
        try:
            if self.stream is not None:
                self.stream.close()
                self.stream = None
        finally:
            self.release()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self.failed += 1
        if self.failed == 1:
            error = sys.exc_info()[1]
            logger.error("audit log: %s cannot be written: %s", self.baseFilename, error)


def _opened(config: AuditConfig) -> _File:
    try:
        return _File(config)
    except OSError as error:
        raise ConfigError(f"[audit] file {config.file}: {error.strerror}") from None

"""The log's lines: as text, or each as a JSON object, and for whom the broker was acting."""

from __future__ import annotations

import json
import logging
import re
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from trivium.common.events import Events
from trivium.observability.served import ServedRequest
from trivium.runtime.adapter import Connection

if TYPE_CHECKING:
    from trivium.config import LogConfig

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: What a terminal obeys, or ends a line: C0, DEL, C1 (ISO 6429), and Unicode's separators.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes lines to ``stream`` in the form that is configured."""

    def __init__(self, config: LogConfig, stream: TextIO) -> None:
        super().__init__(stream)
        self._events: Events | None = None
        self._thread = 0
        self.addFilter(self._name_served)
        self.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter(_TEXT))

    def follow(self, events: Events) -> None:
        """From now on lines of this thread say for whom ``events`` has the broker act."""
        self._events = events
        self._thread = threading.get_ident()

    def _name_served(self, record: logging.LogRecord) -> bool:
        # What another thread says is about something else.
        events = self._events if record.thread == self._thread else None
        record.served = {} if events is None else served(events.serving)
        return True


def served(by: object) -> dict[str, str]:
    """What is known of a client."""
    if isinstance(by, ServedRequest):
        return {
            "connection": by.address,
            "protocol": by.listener.protocol,
            "user": by.identity.name,
        }
    if not isinstance(by, Connection):
        return {}
    found = {
        "connection": by.peer.address,
        "protocol": by.peer.listener.config.protocol,
    }
    if by.login is not None:
        found["user"] = by.identity.name
        found["vhost"] = by.access.vhost
        if by.client_id:
            found["client_id"] = by.client_id.decode(errors="replace")
    return {name: value for name, value in found.items() if value}


class TextFormatter(logging.Formatter):
    """A line of text, with the client behind its message; those of a traceback are indented.

    Clients choose names, and what is said of them. So control characters are escaped: nothing of
    theirs begins a line, and a terminal obeys none of it.
    """

    def format(self, record: logging.LogRecord) -> str:
        # Another formatter may have left its own there.
        record.exc_text = None
        return super().format(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = _escaped(super().formatMessage(record))
        about: dict[str, str] = getattr(record, "served", {})
        if not about:
            return line
        return f"{line} [{' '.join(f'{name}={_plain(value)}' for name, value in about.items())}]"


def _indented(text: str) -> str:
    return "\n".join(f"  {_escaped(line)}" for line in text.split("\n"))


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _plain(value: str) -> str:
    """``value``, quoted where it could be taken for more of the log: clients choose their names."""
    return value if value.isprintable() and not set(value) & set(" =]'\"") else repr(value)


class JsonFormatter(logging.Formatter):
    """A JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, str] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "served", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)

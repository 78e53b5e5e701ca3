"""Where a broker is: ``trivium://[user[:password]@]host[:port][/vhost]``."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from trivium_native.wire.frames import DEFAULT_PORT


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. Without a user the client is anonymous."""

    host: str
    port: int = DEFAULT_PORT
    vhost: str = "/"
    username: str | None = None
    password: str = field(default="", repr=False)


def parse_url(url: str) -> Target:
    """Parse a URL; percent-escapes in user, password and vhost are decoded.

    No path, and a path of ``/`` alone, mean the virtual host ``/``. Raises ValueError.
    """
    parts = urlsplit(url)
    if parts.scheme != "trivium" or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("not of the form trivium://[user[:password]@]host[:port][/vhost]")
    return Target(
        parts.hostname,
        DEFAULT_PORT if parts.port is None else parts.port,
        unquote(parts.path[1:]) or "/",
        None if parts.username is None else unquote(parts.username),
        unquote(parts.password or ""),
    )

"""Where a broker is: ``trivium://[user[:password]@]host[:port][/vhost]``, or ``triviums://``.

The latter is the same by TLS.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote, urlsplit

from trivium.common.client_tls import ClientTls, tls_reason
from trivium_native.wire.errors import ConnectionFailed, NotVerified
from trivium_native.wire.frames import DEFAULT_PORT

SCHEME: Final = "trivium"
TLS_SCHEME: Final = "triviums"
#: Where ``triviums://`` goes without a port.
DEFAULT_TLS_PORT: Final = 7651
#: The protocol's name in ALPN (RFC 7301).
ALPN: Final = "native"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. Without a user the client is anonymous; with ``tls`` None it speaks plainly."""

    host: str
    port: int = DEFAULT_PORT
    vhost: str = "/"
    username: str | None = None
    password: str = field(default="", repr=False)
    tls: ClientTls | None = None


def parse_url(url: str) -> Target:
    """Parse a URL; percent-escapes in user, password and vhost are decoded.

    No path, and a path of ``/`` alone, mean the virtual host ``/``. Raises ValueError.
    """
    parts = urlsplit(url)
    is_known = parts.scheme in (SCHEME, TLS_SCHEME)
    if not is_known or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("not of the form trivium[s]://[user[:password]@]host[:port][/vhost]")
    is_tls = parts.scheme == TLS_SCHEME
    default_port = DEFAULT_TLS_PORT if is_tls else DEFAULT_PORT
    return Target(
        parts.hostname,
        default_port if parts.port is None else parts.port,
        unquote(parts.path[1:]) or "/",
        None if parts.username is None else unquote(parts.username),
        unquote(parts.password or ""),
        ClientTls() if is_tls else None,
    )


def make_target(
    url: str | Target,
    tls: ClientTls | None = None,
    username: str | None = None,
    password: str | None = None,
) -> Target:
    """The target of a URL, with what is said beside it.

    ``username`` and ``password`` are instead of those of the URL. A password without any user is a
    token or an API key. Raises ValueError, also for ``tls`` beside a URL that is not for TLS.
    """
    target = parse_url(url) if isinstance(url, str) else url
    if tls is not None:
        if target.tls is None:
            raise ValueError(f"TLS is asked for, but the URL does not begin with {TLS_SCHEME}://")
        target = replace(target, tls=tls)
    if username is not None:
        target = replace(target, username=username)
    if password is not None:
        target = replace(target, username=target.username or "", password=password)
    return target


def cannot_connect(target: Target, error: OSError) -> ConnectionFailed:
    """The error to raise when there is no connection because of ``error``."""
    is_verified = not isinstance(error, ssl.SSLCertVerificationError)
    kind = ConnectionFailed if is_verified else NotVerified
    return kind(f"cannot connect to {target.host}:{target.port}: {tls_reason(error)}")

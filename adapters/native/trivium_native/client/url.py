"""Where a broker is: ``trivium://[user[:password]@]host[:port][,host[:port]...][/vhost]``.

``triviums://`` is the same by TLS.
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
    """A parsed URL. Without a user the client is anonymous; with ``tls`` None it speaks plainly.

    ``others`` are further hosts and ports where the broker may be, tried in their order.
    """

    host: str
    port: int = DEFAULT_PORT
    vhost: str = "/"
    username: str | None = None
    password: str = field(default="", repr=False)
    tls: ClientTls | None = None
    others: tuple[tuple[str, int], ...] = ()

    @property
    def places(self) -> list[Target]:
        """The target with each of its hosts and ports alone."""
        return [
            replace(self, host=host, port=port, others=())
            for host, port in ((self.host, self.port), *self.others)
        ]


def parse_url(url: str) -> Target:
    """Parse a URL; percent-escapes in user, password and vhost are decoded.

    No path, and a path of ``/`` alone, mean the virtual host ``/``. Raises ValueError.
    """
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    # The parts of a URL know one host.
    first, *others = [
        urlsplit(f"{parts.scheme}://{credentials}{at}{host}") for host in hosts.split(",")
    ]
    is_known = parts.scheme in (SCHEME, TLS_SCHEME)
    has_hosts = all(each.hostname for each in (first, *others))
    if not is_known or not has_hosts or parts.query or parts.fragment:
        raise ValueError(
            "not of the form trivium[s]://[user[:password]@]host[:port][,host[:port]...][/vhost]"
        )
    is_tls = parts.scheme == TLS_SCHEME
    default_port = DEFAULT_TLS_PORT if is_tls else DEFAULT_PORT
    places = [
        (each.hostname or "", default_port if each.port is None else each.port)
        for each in (first, *others)
    ]
    return Target(
        *places[0],
        unquote(parts.path[1:]) or "/",
        None if first.username is None else unquote(first.username),
        unquote(first.password or ""),
        ClientTls() if is_tls else None,
        tuple(places[1:]),
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

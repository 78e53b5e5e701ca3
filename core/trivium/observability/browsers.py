"""What browsers need that programs do not: files of pages, and cookies that are no danger.

A page of another site, also one of another port of the same host, can have a browser send requests
with our cookie. So one that comes by it must come from a page of ours: what a browser says of the
origin must be true of us, and what changes something must have a header that only our own pages may
send (Fetch, CORS-preflight).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

#: The header that our own pages send with each request.
PAGE_HEADER: Final = "Trivium-Page"
SAFE_METHODS: Final = frozenset(("GET", "HEAD"))

#: What pages may do: all that they have is ours. No other site may show them.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: Seconds for which a file is kept whose path changes with it.
_YEAR: Final = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class File:
    """A file of a page."""

    body: bytes
    content_type: str
    #: whether there never is another one at its path
    is_lasting: bool

    @property
    def tag(self) -> str:
        """What its content is known by (``ETag``, without its quotes)."""
        return hashlib.sha256(self.body).hexdigest()[:32]

    @property
    def headers(self) -> dict[str, str]:
        """Those that it is answered with."""
        keep = f"max-age={_YEAR}, immutable" if self.is_lasting else "no-cache"
        return {**PAGE_HEADERS, "Cache-Control": keep}


@dataclass(frozen=True, slots=True)
class Cookie:
    """That of a session, without its token."""

    name: str
    #: what is below it gets the cookie
    path: str = "/"
    #: whether it needs TLS
    is_secure: bool = False

    def header(self, token: str) -> str:
        """It as ``Set-Cookie`` has it; without a token it ends the one that is there."""
        secure = "; Secure" if self.is_secure else ""
        end = "" if token else "; Max-Age=0"
        return f"{self.name}={token}; Path={self.path}; HttpOnly; SameSite=Strict{secure}{end}"


#: That of a request for which there is none.
NO_COOKIE: Final = Cookie("")


def cookie_of(host: str, has_tls: bool, prefix: str = "", is_forwarded_tls: bool = False) -> Cookie:
    """The one for pages below ``prefix``, by what the browser calls us (``Host``): a cookie is for
    all ports of a host, where other brokers may be. ``__Host-`` is for us alone, and for a whole
    host (RFC 6265bis, 4.1.3). A proxy may have had TLS with the browser where we have none.
    """
    port = host.rpartition(":")[2]
    name = f"trivium-session-{port}" if port.isascii() and port.isdigit() else "trivium-session"
    if has_tls:
        name = f"__Secure-{name}" if prefix else f"__Host-{name}"
    return Cookie(name, f"{prefix}/", has_tls or is_forwarded_tls)


def is_of_own_page(method: str, headers: Mapping[str, str], has_tls: bool) -> bool:
    """Whether a request comes from a page of ours, or from the user's own hand."""
    if method not in SAFE_METHODS and PAGE_HEADER not in headers:
        return False
    if headers.get("Sec-Fetch-Site") == "none":
        return method in SAFE_METHODS
    return is_of_this_site(headers, has_tls)


def is_of_this_site(headers: Mapping[str, str], has_tls: bool) -> bool:
    """Whether a request comes from no page of another site: from one of ours, from the user's own
    hand, or from a program that is no browser."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("Origin")
    return origin is None or is_own_origin(origin, headers.get("Host", ""), has_tls)


def is_own_origin(origin: str, host: str, has_tls: bool) -> bool:
    """Whether an ``Origin`` is that of pages of ``host``. Where the request ``has_tls`` a page that
    came without is another's: anybody on its way may have written it."""
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return found.netloc.lower() == host.lower() and (found.scheme == "https" or not has_tls)

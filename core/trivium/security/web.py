"""Requests over HTTP that authentication makes; who drives the broker carries them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """GET, or POST where there is a body, which is JSON."""

    url: str
    timeout_ms: int
    #: largest answer that is read
    max_bytes: int
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """What came back."""

    status: int
    body: bytes = field(repr=False)


#: Calls the function with the answer, None where there is none in time; in a later turn.
Fetch = Callable[[WebRequest, Callable[[WebAnswer | None], None]], None]

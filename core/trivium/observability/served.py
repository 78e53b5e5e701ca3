"""The request over HTTP that a broker serves, as far as those know it whom events are told.

It stands by itself: a broker without HTTP does not load what requests are answered with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.listen import ListenerConfig
    from trivium.security.identity import Identity


class ServedRequest:
    """What ``trivium.observability.api.ApiRequest`` is to events (``Events.serving``)."""

    __slots__ = ()

    method: str
    path: tuple[str, ...]
    identity: Identity
    #: of the client
    address: str
    listener: ListenerConfig

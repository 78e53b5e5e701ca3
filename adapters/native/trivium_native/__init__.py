"""Trivium's own protocol: the broker's side of it, and the Python clients.

``trivium_native.client`` is the client for asyncio (``connect``), ``trivium_native.sync`` the
blocking one; their values are in ``values``, their errors in ``errors``. The specification is
docs/native-protocol.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.runtime.adapter import Adapter
    from trivium_native.client.client import connect
    from trivium_native.server.options import NativeOptions

__all__ = ["adapter", "connect"]


def adapter(options: NativeOptions | None = None) -> Adapter:
    """The broker's side: the entry point ``native`` of the group ``trivium.adapters``."""
    from trivium_native.server.adapter import NativeAdapter

    return NativeAdapter(options)


def __getattr__(name: str) -> object:
    # Neither side pays for importing the other.
    if name == "connect":
        from trivium_native.client.client import connect

        return connect
    raise AttributeError(f"module 'trivium_native' has no attribute {name!r}")

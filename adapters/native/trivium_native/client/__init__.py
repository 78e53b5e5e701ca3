"""The clients: ``connect`` for asyncio; ``trivium_native.sync`` is the blocking one.

Both speak the protocol by ``protocol``, which does no input or output of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium_native.client.client import Client, connect

__all__ = ["Client", "connect"]


def __getattr__(name: str) -> object:
    # Who wants the blocking client does not pay for the other.
    if name in __all__:
        from trivium_native.client import client

        return getattr(client, name)
    raise AttributeError(f"module 'trivium_native.client' has no attribute {name!r}")

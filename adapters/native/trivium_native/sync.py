"""The blocking client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium_native.client.sync import (
    SyncClient,
    connect,
)

if TYPE_CHECKING:
    # Whoever makes requests alone pays for no event loop.
    from trivium_native.client.blocking import BlockingPolled as BlockingPolled

__all__ = [
    "SyncClient",
    "connect",
]

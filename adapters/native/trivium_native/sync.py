"""The blocking client."""

from __future__ import annotations

from trivium_native.client.sync import (
    DEFAULT_TIMEOUT,
    SyncClient,
    connect,
)

__all__ = [
    "DEFAULT_TIMEOUT",
    "SyncClient",
    "connect",
]

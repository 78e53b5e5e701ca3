"""Transactions of the clients."""

from __future__ import annotations

from trivium_native.client.transaction import (
    Transaction,
)

__all__ = [
    "Transaction",
]

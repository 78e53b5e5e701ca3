"""Requests as values, for who keeps several of a blocking client under way."""

from __future__ import annotations

from trivium_native.client.group_operations import committed
from trivium_native.client.operations import (
    Operation,
    fetch,
    metadata,
    offset_for_timestamp,
    publish,
    stage,
)
from trivium_native.client.sync import finish, start
from trivium_native.wire.frames import FILTER, MAX_STREAMS

__all__ = [
    "FILTER",
    "MAX_STREAMS",
    "Operation",
    "committed",
    "fetch",
    "finish",
    "metadata",
    "offset_for_timestamp",
    "publish",
    "stage",
    "start",
]

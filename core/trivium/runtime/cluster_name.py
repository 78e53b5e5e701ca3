"""The name of the broker that people are shown and clients are told: a global parameter."""

from __future__ import annotations

from typing import Final

from trivium.common.values import unpack
from trivium.storage.base import Storage

CLUSTER_NAME: Final = "cluster_name"
DEFAULT_NAME: Final = "trivium"


def cluster_name(storage: Storage) -> str:
    """The name of the broker that has this storage."""
    row = storage.table("global-parameters").get(CLUSTER_NAME.encode())
    return DEFAULT_NAME if row is None else str(unpack(row))

"""The requests about permissions, roles and virtual hosts as values; see ``operations``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium_native.client.operations import Operation, request
from trivium_native.wire import frames


def manage_permissions(action: str, fields: Mapping[str, Any]) -> Operation[list[dict[str, Any]]]:
    """Carry out one action of MANAGE_PERMISSIONS; the rows of one that lists.

    Only administrators may; raises AccessRefused, PreconditionFailed, NotFound.
    """
    return request(
        frames.MANAGE_PERMISSIONS, lambda reply: reply.get("rows", []), action=action, **fields
    )

"""Who asks."""

from __future__ import annotations

from typing import Final

from trivium.management.calls import Call
from trivium.management.endpoints import Endpoint
from trivium.observability.api import ApiAnswer


def get_whoami(call: Call) -> ApiAnswer:
    """``whoami``."""
    identity = call.identity
    return ApiAnswer(200, {"name": identity.name, "tags": sorted(identity.tags)})


ENDPOINTS: Final = (Endpoint("GET", "whoami", get_whoami),)

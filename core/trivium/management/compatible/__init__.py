"""The HTTP API that tools for RabbitMQ know: its paths, names and answers.

Each module has the endpoints of some things, as data. What they show is made of the plain
descriptions of ``trivium.management.views``.
"""

from __future__ import annotations

from typing import Final

from trivium.management.compatible import (
    bindings,
    connections,
    definitions,
    exchanges,
    general,
    health,
    messages,
    policies,
    queues,
    users,
    vhosts,
)
from trivium.management.endpoints import Endpoints

#: All of them.
ENDPOINTS: Final = Endpoints(
    [
        *general.ENDPOINTS,
        *health.ENDPOINTS,
        *vhosts.ENDPOINTS,
        *users.ENDPOINTS,
        *exchanges.ENDPOINTS,
        *queues.ENDPOINTS,
        *messages.ENDPOINTS,
        *bindings.ENDPOINTS,
        *connections.ENDPOINTS,
        *policies.ENDPOINTS,
        *definitions.ENDPOINTS,
    ]
)

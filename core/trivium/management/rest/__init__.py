"""Trivium's own HTTP API, under ``/api/v1``.

Each module has the operations of some things, as data: what they take and show is said by models
(``schema``), from which the OpenAPI document is made (``document``).
"""

from __future__ import annotations

from typing import Final

from trivium.management.rest import (
    browser,
    browsing,
    connections,
    definitions,
    exchanges,
    gateway,
    gateway_feeds,
    gateway_members,
    general,
    groups,
    live,
    policies,
    queues,
    retained,
    retained_levels,
    sessions,
    streams,
    topics,
    users,
    vhosts,
)
from trivium.management.rest.operations import Operation

#: All of them.
ENDPOINTS: Final[tuple[Operation, ...]] = (
    *general.ENDPOINTS,
    *browser.ENDPOINTS,
    *live.ENDPOINTS,
    *vhosts.ENDPOINTS,
    *exchanges.ENDPOINTS,
    *queues.ENDPOINTS,
    *streams.ENDPOINTS,
    *groups.ENDPOINTS,
    *sessions.ENDPOINTS,
    *retained.ENDPOINTS,
    *retained_levels.ENDPOINTS,
    *policies.ENDPOINTS,
    *connections.ENDPOINTS,
    *users.ENDPOINTS,
    *definitions.ENDPOINTS,
    *gateway.ENDPOINTS,
    *gateway_feeds.ENDPOINTS,
    *gateway_members.ENDPOINTS,
    *browsing.ENDPOINTS,
    *topics.ENDPOINTS,
)

"""The route of each raw topic name, so that a repeated topic costs one dictionary look-up."""

from __future__ import annotations

from typing import Final

from trivium.messages.message import Address
from trivium.messages.topics import key_of
from trivium.routing.exchanges import Exchange, RefusedRoute, Route
from trivium.routing.route_cache import RouteCache
from trivium.security.permissions import WRITE, Access
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.codec.wire import check_text, check_topic_name

EXCHANGE: Final = "amq.topic"

#: Topics that are remembered, and what they and their routes may take of memory (``Route.cost``):
#: of those who may publish everything, and of each who may not. The cache is emptied when full.
MAX_TOPICS: Final = 65_536
MAX_COST: Final = 128 << 20
MAX_RESTRICTED_COST: Final = 1 << 20


class TopicCache:
    """Topics of one virtual host, shared by all connections that may publish the same.

    ``access`` is what they may do; None: everything.
    """

    def __init__(self, vhost: VirtualHost, access: Access | None = None) -> None:
        self.vhost = vhost
        self._access = access
        self.exchange: Exchange = vhost.exchange(EXCHANGE)
        self._cache = RouteCache(MAX_TOPICS, MAX_COST if access is None else MAX_RESTRICTED_COST)
        # Those of the cache: a look-up is on the way of each message.
        self._routes = self._cache.routes

    @property
    def cost(self) -> int:
        """What it takes of memory, about."""
        return self._cache.cost

    def route(self, topic: bytes) -> Route:
        """The route of ``topic``. Raises RemoteError when it is not a topic name."""
        found = self._routes.get(topic)
        if found is not None:
            return (
                found
                if found.topology_version == self.vhost.topology_version
                else self.renew(topic, found)
            )
        check_text(topic)
        check_topic_name(topic)
        found = self._route(key_of(topic))
        self._cache.remember(topic, found)
        return found

    def renew(self, topic: bytes, stale: Route) -> Route:
        """The route of ``topic`` after the topology changed."""
        found = self._route(stale.address.key)
        self._cache.remember(topic, found)
        return found

    def _route(self, key: bytes) -> Route:
        access = self._access
        if access is not None and not access.may_topic(WRITE, EXCHANGE, key):
            return RefusedRoute(Address(EXCHANGE, key), self.vhost.topology_version)
        return self.vhost.route(self.exchange, key)

"""The route of each raw topic name, so that a repeated topic costs one dictionary look-up."""

from __future__ import annotations

from typing import Final

from trivium.messages.topics import key_of
from trivium.routing.exchanges import Exchange, Route
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.codec.wire import check_text, check_topic_name

EXCHANGE: Final = "amq.topic"

#: Topics that are remembered; the cache is emptied when full.
MAX_TOPICS: Final = 65_536


class TopicCache:
    """Topics of one virtual host, shared by all its connections."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.exchange: Exchange = vhost.exchange(EXCHANGE)
        self._routes: dict[bytes, Route] = {}

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
        if len(self._routes) >= MAX_TOPICS:
            self._routes.clear()
        found = self.vhost.route(self.exchange, key_of(topic))
        self._routes[topic] = found
        return found

    def renew(self, topic: bytes, stale: Route) -> Route:
        """The route of ``topic`` after the topology changed."""
        found = self.vhost.route(self.exchange, stale.address.key)
        self._routes[topic] = found
        return found

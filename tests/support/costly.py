"""Bindings that make much of one routing key."""

from __future__ import annotations

from itertools import product

from tests.support.server import Client, ShortTurns
from trivium.routing.exchanges import Binding, Destination
from trivium.vhost.virtual_host import VirtualHost

#: A key for which ``bind_many`` makes more visits than 64 frames are, and one that is refused.
LONG_KEY = ".".join("a" * 9)
REFUSED_KEY = ".".join("a" * 100)


def bind_many(vhost: VirtualHost, destination: Destination, exchange: str = "amq.topic") -> None:
    """Every pattern of the key: 1,023 nodes are visited to find all 512."""
    topic = vhost.exchange(exchange)
    for levels in product((b"a", b"*"), repeat=9):
        vhost.bind(topic, Binding(destination, b".".join(levels)))


def bind_too_many(vhost: VirtualHost, destination: Destination, exchange: str) -> None:
    """300 patterns of 60 levels that end all over the key."""
    topic = vhost.exchange(exchange)
    for number in range(300):
        levels = [(b"#", b"a", b"*")[(number >> at % 11) % 3] for at in range(60)]
        vhost.bind(topic, Binding(destination, b".".join(levels)))


def turns_of(client: Client, data: bytes) -> int:
    """The turns that it takes to carry out ``data``, where each is long from its begin on."""
    server = client.server
    driver = ShortTurns()
    server.broker.driver = server.driver = driver
    server.broker.events.serving = client.connection
    client.connection.feed(data)
    turns = 1
    while driver.next:
        driver.next.clear()
        client.connection.next_turn()
        turns += 1
    return turns

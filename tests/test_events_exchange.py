"""Nobody but the broker gets a message into the exchange of its events, by whatever way."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Exchange, Queue

from tests.support import native
from tests.support.core import drain
from tests.support.permitted import Server, make_server
from tests.support.simulated import Host
from trivium.config import EVERYTHING, Config, UserConfig
from trivium.routing.exchanges import Binding
from trivium.vhost.policies import Policy
from trivium.vhost.predeclared import EVENT_EXCHANGE
from trivium_native.wire import frames

AMQP_WAYS = [
    Exchange.Bind(destination=EVENT_EXCHANGE, source="amq.fanout", routing_key="user.deleted"),
    Exchange.Declare(
        exchange="n", exchange_type="topic", arguments={"alternate-exchange": EVENT_EXCHANGE}
    ),
    Queue.Declare(queue="n", arguments={"x-dead-letter-exchange": EVENT_EXCHANGE}),
]
NATIVE_WAYS: list[tuple[int, dict[str, Any]]] = [
    (
        frames.BIND,
        {"exchange": "amq.fanout", "kind": "exchange", "name": EVENT_EXCHANGE, "pattern": b"k"},
    ),
    (
        frames.DECLARE,
        {"kind": "exchange", "name": "n", "arguments": {"alternate-exchange": EVENT_EXCHANGE}},
    ),
    (
        frames.DECLARE,
        {"kind": "queue", "name": "n", "arguments": {"x-dead-letter-exchange": EVENT_EXCHANGE}},
    ),
]


@pytest.mark.parametrize("way", AMQP_WAYS, ids=lambda way: str(way.name))
def test_amqp_refuses_what_would_lead_to_it(way: Any) -> None:
    (answer,) = make_server().amqp("root").call(way)
    assert (answer.name, answer.reply_code) == ("Channel.Close", 403)


@pytest.mark.parametrize(("kind", "fields"), NATIVE_WAYS)
def test_the_native_protocol_refuses_what_would_lead_to_it(
    kind: int, fields: dict[str, Any]
) -> None:
    ((reply, _, body),) = make_server().native("root").send(kind, 7, fields)
    assert reply == frames.ERROR
    assert "takes messages of the broker alone" in str(body)


def on_disk(host: Host) -> Server:
    users = {"root": UserConfig(password="p", permissions=EVERYTHING)}
    return Server(config=Config(users=users), host=host)


def watched(server: Server) -> Any:
    """A queue that gets all events."""
    vhost = server.vhost
    found = vhost.declare_queue("watch", durable=True)
    vhost.bind(vhost.exchange(EVENT_EXCHANGE), Binding(found, b"#"))
    return found


def forged(server: Server, *addresses: tuple[str, str]) -> list[bytes]:
    """What comes out of the queue of events, beside events, once root has published to these."""
    for exchange, key in addresses:
        body = native.publish(native.entry(key=key.encode(), exchange=exchange.encode()))
        server.native("root").send(frames.PUBLISH, 7, body)
    server.sync()
    server.advance(1)
    server.sync()
    # Events have no body.
    return [payload for payload in drain(server.vhost.queues["watch"]) if payload]


def test_a_policy_that_names_it_leads_nowhere() -> None:
    server = on_disk(Host())
    watched(server)
    vhost = server.vhost
    vhost.declare_exchange("e", "direct")
    vhost.declare_queue("q", arguments={"x-message-ttl": 0})
    vhost.set_policy(Policy("a", "^e$", {"alternate-exchange": EVENT_EXCHANGE}, "exchanges"))
    vhost.set_policy(Policy("d", "^q$", {"dead-letter-exchange": EVENT_EXCHANGE}, "queues"))
    server.sync()
    assert not forged(server, ("e", "user.deleted"), ("", "q"))
    assert server.broker.dead_letters.lost.counts["no_exchange"] == 1


def test_what_was_declared_before_it_was_refused_leads_nowhere() -> None:
    server = on_disk(Host())
    watched(server)
    vhost = server.vhost
    events = vhost.exchange(EVENT_EXCHANGE)
    events.is_brokers_own = False
    arguments: dict[str, Any] = {"x-message-ttl": 0, "x-dead-letter-exchange": EVENT_EXCHANGE}
    vhost.declare_queue("q", durable=True, arguments=arguments)
    vhost.declare_exchange("e", "direct", True, arguments={"alternate-exchange": EVENT_EXCHANGE})
    vhost.bind(vhost.exchange("amq.fanout"), Binding(events.destination(), b"k"))
    ways = [("amq.fanout", "user.deleted"), ("e", "user.deleted"), ("", "q")]
    assert len(forged(server, *ways)) == len(ways)
    server.sync()
    server = server.crash()
    assert not forged(server, *ways)

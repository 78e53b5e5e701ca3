"""Publishes whose routes are much work to find take turns; those that are too much are refused."""

from __future__ import annotations

import pytest
from pamqp import frame
from pamqp.commands import Channel, Confirm, Queue, Tx

from tests.support.amqp import Client, Server, publish_frames
from tests.support.costly import LONG_KEY, REFUSED_KEY, bind_many, bind_too_many, turns_of
from trivium.routing.exchanges import Binding


def test_each_costly_key_has_a_turn(server: Server, client: Client) -> None:
    queue = server.vhost.declare_queue("q")
    bind_many(server.vhost, queue)
    # The same pattern of visits for each, as no pattern has these levels behind them.
    keys = [LONG_KEY, *[f"{LONG_KEY}.{number}" for number in range(9)]]
    data = b"".join(publish_frames(key, b"x", "amq.topic") for key in keys)
    assert turns_of(client, data) >= 10
    assert len(queue) == 1


@pytest.mark.parametrize("is_repeated", [False, True])
def test_each_costly_message_has_a_turn(server: Server, client: Client, is_repeated: bool) -> None:
    queue = server.vhost.declare_queue("q")
    headers = server.vhost.exchange("amq.headers")
    for number in range(100):
        arguments = {f"{number}.{name}": 1 for name in range(10)}
        server.vhost.bind(headers, Binding(queue, b"", arguments | {"x-match": "any"}))
    server.vhost.bind(headers, Binding(queue, b""))
    one = publish_frames("", b"12345", "amq.headers")
    client.feed(one * 2)
    bodies = [b"12345" if is_repeated else b"x" * (1 + number % 2) for number in range(20)]
    data = b"".join(publish_frames("", body, "amq.headers") for body in bodies)
    assert turns_of(client, data) >= 20
    assert len(queue) == 22


def test_purges_have_turns(server: Server, client: Client) -> None:
    client.declare("q")
    queue = server.vhost.queues["q"]
    client.feed(publish_frames("q") * 1100)
    assert len(queue) == 1100
    purge = frame.marshal(Queue.Purge(queue="q", nowait=True), 1)
    data = b"".join([purge, publish_frames("q"), purge])
    # The second frame is not taken in the turn of the first.
    assert turns_of(client, data) >= 2


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_key_that_is_too_costly_is_406_and_nobody_gets_it(
    server: Server, client: Client, is_confirmed: bool
) -> None:
    queue = server.vhost.declare_queue("q")
    server.vhost.declare_exchange("e", "topic")
    bind_too_many(server.vhost, queue, "e")
    if is_confirmed:
        client.send(Confirm.Select())
    client.take()
    client.feed(publish_frames(REFUSED_KEY, b"x", "e") * 3)
    (closed,) = client.take()
    assert isinstance(closed, Channel.Close)
    assert closed.reply_code == 406
    assert "too many bindings" in closed.reply_text
    assert len(queue) == 0
    assert not client.connection.is_closed


def test_a_transaction_with_such_a_key_is_refused_as_a_whole(
    server: Server, client: Client
) -> None:
    queue = server.vhost.declare_queue("q")
    server.vhost.declare_exchange("e", "topic")
    bind_too_many(server.vhost, queue, "e")
    client.send(Tx.Select())
    client.take()
    client.feed(publish_frames("q") + publish_frames(REFUSED_KEY, b"x", "e"))
    client.send(Tx.Commit())
    (closed,) = client.take()
    assert isinstance(closed, Channel.Close)
    assert closed.reply_code == 406
    assert len(queue) == 0

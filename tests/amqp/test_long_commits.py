"""A tx.commit with very many deliveries has a turn for itself: others are served around it."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue, Tx

from tests.support.amqp import (
    Client,
    Server,
    assert_channel_closed,
    names,
    publish_frames,
    tags,
)
from tests.support.server import ShortTurns
from trivium.routing.exchanges import Binding
from trivium.runtime.long_requests import STEP
from trivium.security.identity import Identity
from trivium_amqp.codec.errors import PRECONDITION_FAILED, ChannelException

#: queues behind the exchanges ``fan`` and ``heads``
QUEUES = 256
#: publishes to them that make more deliveries than a turn that is shared has
COUNT = STEP // QUEUES + 1


class Setup:
    """A broker whose turns are long from their begin on, and three clients of one user."""

    def __init__(self) -> None:
        self.server = Server()
        vhost = self.server.vhost
        vhost.declare_exchange("fan", "fanout")
        vhost.declare_exchange("heads", "headers")
        self.queues = [vhost.declare_queue(f"q{number}") for number in range(QUEUES)]
        for queue in self.queues:
            vhost.bind(vhost.exchange("fan"), Binding(queue, b""))
            vhost.bind(vhost.exchange("heads"), Binding(queue, b"", {"x": "y"}))
        self.clients = [self.open() for _ in range(3)]
        self.client, self.other, self.third = self.clients
        self.driver = ShortTurns()
        self.server.broker.driver = self.driver

    def open(self) -> Client:
        client = self.server.open()
        client.ask(Tx.Select())
        return client

    @property
    def lengths(self) -> set[int]:
        return {len(queue) for queue in self.queues}

    def turn(self) -> list[Client]:
        """The next turn of long requests, and whose it was."""
        going_on, self.driver.next = self.driver.next, []
        for connection in going_on:
            connection.next_turn()
        self.server.settle()
        return [each for each in self.clients if each.connection in going_on]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def fan(count: int = COUNT) -> bytes:
    return publish_frames("", b"x", "fan") * count


def test_others_are_served_before_it(setup: Setup) -> None:
    setup.client.feed(fan())
    assert setup.client.call(Tx.Commit()) == []
    assert setup.lengths == {0}
    assert setup.other.counts("q0") == (0, 0)
    assert setup.turn() == [setup.client]
    assert names(setup.client.take()) == ["Tx.CommitOk"]
    assert (setup.lengths, setup.driver.next) == ({COUNT}, [])


def test_a_shorter_one_is_carried_out_at_once(setup: Setup) -> None:
    setup.client.feed(fan(COUNT - 1))
    assert names(setup.client.call(Tx.Commit())) == ["Tx.CommitOk"]
    assert setup.lengths == {COUNT - 1}


def test_what_is_behind_waits(setup: Setup) -> None:
    setup.client.feed(fan())
    setup.client.send(Tx.Commit(), Queue.Purge(0, "q0"), Tx.Rollback())
    assert setup.client.transport.is_paused
    assert setup.client.take() == []
    while setup.driver.next:
        setup.turn()
    received = setup.client.take()
    assert names(received) == ["Tx.CommitOk", "Queue.PurgeOk", "Tx.RollbackOk"]
    assert isinstance(received[1], Queue.PurgeOk)
    assert received[1].message_count == COUNT
    assert not setup.client.transport.is_paused


def test_bindings_made_after_the_publishes_count(setup: Setup) -> None:
    setup.server.vhost.declare_exchange("late", "fanout")
    setup.client.feed(publish_frames("", b"x", "late") * COUNT)
    for queue in setup.queues:
        setup.server.vhost.bind(setup.server.vhost.exchange("late"), Binding(queue, b""))
    assert setup.client.call(Tx.Commit()) == []
    setup.turn()
    assert setup.lengths == {COUNT}


def test_destinations_by_headers_count(setup: Setup) -> None:
    setup.client.feed(publish_frames("", b"x", "heads", headers={"x": "y"}) * COUNT)
    assert setup.client.call(Tx.Commit()) == []
    setup.turn()
    assert setup.lengths == {COUNT}


def test_destinations_of_copies_count(setup: Setup) -> None:
    keys = [queue.name for queue in setup.queues]
    setup.client.feed(publish_frames("none", b"x", headers={"CC": keys}) * COUNT)
    assert setup.client.call(Tx.Commit()) == []
    setup.turn()
    assert setup.lengths == {COUNT}


def test_acknowledgements_count(setup: Setup) -> None:
    queue = setup.queues[0]
    setup.server.broker.driver = setup.server.driver
    setup.server.open().feed(publish_frames(queue.name) * (STEP + 1))
    assert tags(setup.client.consume(queue.name)) == list(range(1, STEP + 2))
    setup.server.broker.driver = setup.driver
    setup.client.send(Basic.Ack(0, multiple=True))
    assert setup.client.call(Tx.Commit()) == []
    setup.turn()
    assert names(setup.client.take()) == ["Tx.CommitOk"]
    setup.client.lose()
    assert len(queue) == 0


def test_users_take_turns(setup: Setup) -> None:
    setup.third.connection.identity = Identity("bob")
    for client in setup.clients:
        client.feed(fan())
        client.send(Tx.Commit())
    order = [setup.turn() for _ in range(3)]
    assert order == [[setup.client], [setup.third], [setup.other]]
    assert (setup.lengths, setup.driver.next) == ({3 * COUNT}, [])


def test_what_is_gone_by_then_refuses_it(setup: Setup) -> None:
    setup.client.feed(publish_frames("q0") + fan())
    setup.client.send(Tx.Commit())
    setup.server.vhost.delete_exchange("fan")
    setup.turn()
    (received,) = setup.client.take()
    assert_channel_closed(received, 404, "NOT_FOUND - no exchange 'fan' in vhost '/'")
    assert isinstance(received, Channel.Close)
    assert (received.class_id, received.method_id) == (90, 20)
    assert setup.lengths == {0}
    setup.client.send(Channel.CloseOk())
    setup.client.open_channel(1)


def test_it_is_not_carried_out_where_the_channel_has_failed(setup: Setup) -> None:
    setup.client.feed(fan())
    setup.client.send(Tx.Commit())
    channel = setup.client.connection.channels[1]
    channel.fail(ChannelException(PRECONDITION_FAILED, "too late"), 0)
    setup.turn()
    assert names(setup.client.take()) == ["Channel.Close"]
    assert setup.lengths == {0}
    setup.client.send(Channel.CloseOk())
    setup.client.open_channel(1)


def test_it_is_not_carried_out_where_the_connection_is_ended(setup: Setup) -> None:
    setup.client.feed(fan())
    setup.client.send(Tx.Commit())
    setup.client.connection.shutdown()
    setup.turn()
    assert names(setup.client.take()) == ["Connection.Close"]
    setup.client.send(Connection.CloseOk(), channel=0)
    assert (setup.client.is_closed, setup.lengths) == (True, {0})


def test_who_is_lost_lets_the_next_go_on(setup: Setup) -> None:
    for client in (setup.client, setup.other):
        client.feed(fan())
        client.send(Tx.Commit())
    setup.client.lose()
    while setup.driver.next:
        setup.turn()
    assert names(setup.other.take()) == ["Tx.CommitOk"]
    assert setup.lengths == {COUNT}

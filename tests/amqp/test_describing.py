"""What operators see of AMQP connections, channels and consumers, and how they close one."""

from __future__ import annotations

from pamqp.commands import Basic, Channel, Confirm, Connection, Tx

from tests.support.amqp import Server, assert_connection_closed
from trivium.common.descriptions import (
    ChannelDescription,
    ConnectionDescription,
    ConsumerDescription,
)


def test_a_connection_says_who_it_is() -> None:
    server = Server()
    client = server.connect()
    assert client.connection.managed().describe() == ConnectionDescription(
        protocol="AMQP 0-9-1", state="starting", max_channels=2047, max_frame=8192
    )
    client.handshake(capabilities={"basic.nack": True}, frame_max=16384, heartbeat=7)
    found = client.connection.managed().describe()
    assert found.client["capabilities"] == {"basic.nack": True}
    assert (found.state, found.mechanism) == ("running", "PLAIN")
    assert (found.channels, found.max_channels) == (1, 2047)
    assert (found.max_frame, found.timeout) == (16384, 7)


def test_one_that_publishes_while_publishers_are_paused_is_blocked() -> None:
    server = Server()
    client = server.open()
    client.connection.blocked("memory")
    assert client.connection.managed().describe().state == "running"
    client.publish("nowhere")
    assert client.connection.managed().describe().state == "blocked"
    client.connection.unblocked()
    assert client.connection.managed().describe().state == "running"


def test_a_channel_says_what_is_open_in_it() -> None:
    server = Server()
    client = server.open()
    client.declare("q")
    client.ask(Basic.Qos(prefetch_count=5))
    client.ask(Basic.Qos(prefetch_count=9, global_=True))
    client.consume("q", "c")
    client.publish("q")
    client.publish("q")
    client.take()
    client.open_channel(2)
    client.ask(Confirm.Select(), channel=2)
    client.open_channel(3)
    client.ask(Tx.Select(), channel=3)
    first, second, third = client.connection.managed().channels()
    assert first == ChannelDescription(
        number=1,
        consumers=1,
        unsettled=2,
        unconfirmed=0,
        uncommitted=0,
        unsettled_uncommitted=0,
        consumer_limit=5,
        limit=9,
        confirms=False,
        transactional=False,
        traffic=first.traffic,
    )
    assert (first.traffic.published, first.traffic.delivered) == (2, 2)
    assert (second.number, second.confirms, second.transactional) == (2, True, False)
    assert (third.number, third.confirms, third.transactional) == (3, False, True)


def test_a_consumer_says_what_it_reads() -> None:
    server = Server()
    client = server.open()
    client.declare("q")
    client.ask(Basic.Qos(prefetch_count=5))
    client.consume("q", "c", arguments={"x-priority": 3})
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.consume("s", "d")
    of_queue = ConsumerDescription(
        tag="c",
        queue="q",
        connection=client.connection,
        channel=1,
        acknowledges=True,
        limit=5,
        arguments={"x-priority": 3},
    )
    of_stream = ConsumerDescription(
        tag="d", queue="s", connection=client.connection, channel=1, acknowledges=True, limit=5
    )
    assert client.connection.managed().consumers() == [of_queue, of_stream]
    (consumer,) = server.vhost.queues["q"].consumers.all()
    assert consumer.describe() == of_queue


def test_an_operator_closes_it_with_320_and_the_reason() -> None:
    server = Server()
    client = server.open()
    client.declare("q", exclusive=True)
    client.connection.managed().close("too <b>busy</b>")
    assert client.connection.managed().describe().state == "closing"
    server.settle()
    assert_connection_closed(client, 320, "CONNECTION_FORCED - too <b>busy</b>")
    assert server.vhost.queues == {}
    assert client.connection.managed().channels() == []
    client.send(Connection.CloseOk(), channel=0)
    assert client.is_closed


def test_one_that_has_not_begun_is_closed_without_a_word() -> None:
    server = Server()
    client = server.connect()
    client.connection.managed().close("no")
    server.settle()
    assert client.is_closed
    assert client.take() == []


def test_a_closed_channel_is_not_described() -> None:
    server = Server()
    client = server.open()
    client.ask(Channel.Close(reply_code=200, class_id=0, method_id=0))
    assert client.connection.managed().channels() == []

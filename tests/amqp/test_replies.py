"""The answers of a channel leave in the order of its methods, though some wait for the disk."""

from __future__ import annotations

import pytest
from pamqp import body, frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from tests.support.amqp import Client, Server, bodies, names, publish_frames, tags
from tests.support.simulated import Host
from tests.support.storages import HeldStorage

DURABLE = Queue.Declare(queue="q", durable=True)


def with_messages_on_disk(*queues: str) -> tuple[Server, Client]:
    """A client of a broker that has these queues, with two messages each that are on disk only."""
    server = Server(host=Host(checkpoint_size=1, memory_size=0))
    client = server.open()
    for queue in queues:
        client.declare(queue, durable=True)
        for number in (b"0", b"1"):
            client.publish(queue, queue.encode() + number, delivery_mode=2)
    for _ in range(20):
        server.sync()
    server = Server(host=Host(server.host.disk.power_cut(None), memory_size=0))
    return server, server.open()


def test_nothing_overtakes_a_get_that_waits_for_the_disk() -> None:
    server, client = with_messages_on_disk("a")
    client.declare("memory")
    client.publish("memory", b"m")
    client.send(
        Basic.Get(queue="a", no_ack=False),
        Basic.Get(queue="memory", no_ack=False),
        Basic.Qos(prefetch_count=1),
        Basic.Get(queue="memory", no_ack=False),
    )
    assert client.take() == []
    server.sync()
    received = client.take()
    answers = [
        one for one in received if isinstance(one, (Basic.GetOk, Basic.QosOk, Basic.GetEmpty))
    ]
    assert names(answers) == ["Basic.GetOk", "Basic.GetOk", "Basic.QosOk", "Basic.GetEmpty"]
    assert bodies(received) == [b"a0", b"m"]
    assert [one.delivery_tag for one in answers if isinstance(one, Basic.GetOk)] == [1, 2]


def test_gets_from_several_queues_on_disk_are_answered_in_order() -> None:
    server, client = with_messages_on_disk("a", "b")
    asked = ["b", "a", "a", "b", "b"]
    client.send(*[Basic.Get(queue=queue, no_ack=True) for queue in asked])
    for _ in range(4):
        server.sync()
    received = client.take()
    assert bodies(received) == [b"b0", b"a0", b"a1", b"b1"]
    assert names(received)[-1] == "Basic.GetEmpty"


def test_a_get_that_waits_is_forgotten_with_its_channel() -> None:
    server, client = with_messages_on_disk("a")
    client.send(Basic.Get(queue="a"), Basic.Get(queue="a"))
    # A channel exception, and the end of another channel with the same number.
    received = client.call(Basic.Get(queue="none"))
    assert names(received) == ["Channel.Close"]
    assert names(client.call(Channel.CloseOk(), Channel.Open())) == ["Channel.OpenOk"]
    server.sync()
    assert client.take() == []
    client.send(Basic.Get(queue="a"))
    server.sync()
    assert bodies(client.take()) == [b"a0"]


def test_other_methods_do_not_overtake_tx_commit() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    client.declare("memory")
    client.call(Tx.Select())
    client.feed(
        publish_frames("q", b"stored", delivery_mode=2)
        + frame.marshal(Tx.Commit(), 1)
        + frame.marshal(Tx.Rollback(), 1)
        + publish_frames("memory", b"m")
        + frame.marshal(Tx.Commit(), 1)
        + frame.marshal(Basic.Get(queue="memory"), 1)
    )
    assert client.take() == []
    server.sync()
    assert [name for name in names(client.take()) if name[0] != "C"] == [
        "Tx.CommitOk",
        "Tx.RollbackOk",
        "Tx.CommitOk",
        "Basic.GetOk",
    ]


def test_confirms_and_returns_stay_behind_what_was_asked_before() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("memory")
    client.feed(
        frame.marshal(DURABLE, 1)
        + frame.marshal(Confirm.Select(), 1)
        + publish_frames("memory", b"m")
        + publish_frames("nowhere", b"r", mandatory=True)
        + publish_frames("q", b"s", delivery_mode=2)
    )
    assert client.take() == []
    server.sync()
    found = client.take()
    assert names(found)[:2] == ["Queue.DeclareOk", "Confirm.SelectOk"]
    confirms = [one for one in found if isinstance(one, Basic.Ack)]
    assert (confirms[-1].delivery_tag, "Basic.Return" in names(found)) == (3, True)


def test_deliveries_wait_for_consume_ok() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("memory")
    client.publish("memory", b"m")
    client.send(DURABLE, Basic.Consume(queue="memory", consumer_tag="c"))
    assert client.take() == []
    client.publish("memory", b"n")
    server.sync()
    received = client.take()
    assert names(received)[:3] == ["Queue.DeclareOk", "Basic.ConsumeOk", "Basic.Deliver"]
    assert (bodies(received), tags(received)) == ([b"m", b"n"], [1, 2])


def test_a_consumer_that_is_cancelled_before_consume_ok_gets_nothing() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("memory")
    client.publish("memory", b"m")
    client.send(
        DURABLE, Basic.Consume(queue="memory", consumer_tag="c"), Basic.Cancel(consumer_tag="c")
    )
    server.sync()
    assert names(client.take()) == ["Queue.DeclareOk", "Basic.ConsumeOk", "Basic.CancelOk"]
    assert client.counts("memory") == (1, 0)


def test_basic_cancel_of_a_deleted_queue_stays_behind_consume_ok() -> None:
    server = Server(host=Host())
    client, other = server.open(), server.open()
    client.declare("memory")
    client.send(DURABLE, Basic.Consume(queue="memory", consumer_tag="c"))
    other.send(Queue.Delete(queue="memory"))
    server.sync()
    assert names(client.take()) == ["Queue.DeclareOk", "Basic.ConsumeOk", "Basic.Cancel"]


def test_other_channels_do_not_wait() -> None:
    server = Server(host=Host())
    client = server.open()
    client.open_channel(2)
    assert client.call(DURABLE) == []
    assert names(client.call(Basic.Qos(prefetch_count=1), channel=2)) == ["Basic.QosOk"]
    server.sync()
    assert names(client.take()) == ["Queue.DeclareOk"]


def test_the_end_of_a_channel_and_another_of_its_number_stay_behind() -> None:
    server = Server(host=Host())
    client = server.open()
    client.send(DURABLE, Channel.Close(200, "", 0, 0), Channel.Open(), Basic.Qos(prefetch_count=1))
    assert client.take() == []
    server.sync()
    assert names(client.take()) == [
        "Queue.DeclareOk",
        "Channel.CloseOk",
        "Channel.OpenOk",
        "Basic.QosOk",
    ]


def test_a_channel_exception_stays_behind() -> None:
    server = Server(host=Host())
    client = server.open()
    client.send(DURABLE, Exchange.Declare(exchange="none", passive=True))
    assert client.take() == []
    server.sync()
    assert names(client.take()) == ["Queue.DeclareOk", "Channel.Close"]


@pytest.mark.parametrize("sends_no_more", [False, True])
def test_connection_close_waits_for_all_channels(sends_no_more: bool) -> None:
    server = Server(host=Host())
    client = server.open()
    client.open_channel(2)
    client.send(DURABLE)
    client.send(Exchange.Declare(exchange="e", durable=True), channel=2)
    client.send(Connection.Close(200, "", 0, 0), channel=0)
    if sends_no_more:
        client.end()
    assert (client.take(), client.transport.is_closed) == ([], False)
    server.sync()
    assert names(client.take()) == ["Queue.DeclareOk", "Exchange.DeclareOk", "Connection.CloseOk"]
    assert client.transport.is_closed


def test_the_goodbye_of_a_client_that_sends_no_more_does_not_wait_for_ever_for_the_disk() -> None:
    server = Server(HeldStorage())
    client = server.open()
    client.send(DURABLE)
    client.send(Connection.Close(200, "", 0, 0), channel=0)
    client.end()
    server.advance(2.9)
    assert (client.take(), client.transport.is_closed) == ([], False)
    server.advance(0.1)
    assert names(client.take()) == ["Connection.CloseOk"]
    assert client.transport.is_closed


def test_the_close_of_a_connection_that_fails_stays_behind_what_waits() -> None:
    server = Server(host=Host())
    client = server.open()
    client.send(DURABLE)
    client.feed(b"\x09")
    client.feed(b"\x00" * 20)
    assert client.take() == []
    server.sync()
    assert names(client.take()) == ["Queue.DeclareOk", "Connection.Close"]


def test_a_connection_that_fails_confirms_all_before_its_close() -> None:
    """Whoever publishes again what was not confirmed would have it twice."""
    server = Server(host=Host())
    client = server.open()
    client.declare("memory")
    client.declare("disk", durable=True)
    server.sync()
    client.send(Confirm.Select())
    client.take()
    client.feed(publish_frames("disk", b"1", delivery_mode=2))
    client.feed(
        frame.marshal(DURABLE, 1)
        + publish_frames("memory", b"2")
        + publish_frames("nowhere", b"3", mandatory=True)
        + publish_frames("disk", b"4", delivery_mode=2)
        + b"\x09" * 8
    )
    assert client.take() == []
    server.sync()
    found = client.take()
    returned = ["Basic.Return", "ContentHeader", "ContentBody"]
    assert [one for one in names(found) if one in ("Queue.DeclareOk", *returned)] == [
        "Queue.DeclareOk",
        *returned,
    ]
    assert names(found)[-1] == "Connection.Close"
    acks = [one for one in found if isinstance(one, Basic.Ack)]
    assert acks[-1].delivery_tag == 4


def test_without_the_disk_what_waits_for_nothing_is_confirmed_before_the_close() -> None:
    server = Server(storage=HeldStorage())
    client = server.open()
    client.declare("memory")
    client.send(Confirm.Select())
    client.take()
    client.feed(
        frame.marshal(DURABLE, 1)
        + publish_frames("memory", b"1")
        + frame.marshal(DURABLE, 1)
        + publish_frames("memory", b"2")
        + b"\x09" * 8
    )
    assert client.take() == []
    server.advance(3)
    confirm, closed = client.take()
    assert (confirm.name, confirm.delivery_tag, confirm.multiple) == ("Basic.Ack", 2, True)
    assert closed.name == "Connection.Close"


def test_a_confirm_does_not_overtake_what_waits_for_nothing_itself() -> None:
    server = Server(storage=HeldStorage())
    client = server.open()
    client.declare("memory")
    client.feed(
        frame.marshal(DURABLE, 1)
        + frame.marshal(Confirm.Select(), 1)
        + publish_frames("memory", b"m")
        + b"\x09" * 8
    )
    server.advance(3)
    assert names(client.take()) == ["Connection.Close"]


def test_a_client_that_pipelines_without_end_is_held() -> None:
    server = Server(host=Host())
    client = server.open()
    client.call(Confirm.Select())
    client.send(DURABLE)
    payload = b"x" * 100_000
    returned = publish_frames("nowhere", payload, mandatory=True)
    for _ in range(60):
        client.connection.feed(returned)
    states = [client.transport.is_paused]
    server.sync()
    states.append(client.transport.is_paused)
    assert states == [True, False]
    received = client.take()
    assert names(received)[0] == "Queue.DeclareOk"
    assert sum(isinstance(one, body.ContentBody) for one in received) == 60


def test_cancels_of_a_delete_wait_behind_its_answer_for_the_disk() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    client.consume("q", "c")
    assert client.call(Queue.Delete(queue="q")) == []
    server.sync()
    assert names(client.take()) == ["Queue.DeleteOk", "Basic.Cancel"]

"""What is on disk after the server is gone (a simulated disk, cut off without warning)."""

from __future__ import annotations

import pytest
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from tests.support.amqp import Server, bodies, names, publish_frames, tags
from tests.support.simulated import Host


def test_confirmed_messages_survive_and_come_back_redelivered() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    client.exchange("e", "topic", durable=True)
    client.bind("q", "e", "a.#")
    client.call(Confirm.Select())
    client.feed(publish_frames("a.b", b"0", "e", delivery_mode=2, content_type="a/b") * 3)
    assert client.take() == []
    server.sync()
    (confirm,) = client.take()
    assert (confirm.delivery_tag, confirm.multiple) == (3, True)

    client = server.crash().open()
    received = client.consume("q")
    assert bodies(received) == [b"0"] * 3
    delivery = received[0]
    assert delivery.redelivered is True
    assert (delivery.exchange, delivery.routing_key) == ("e", "a.b")
    assert received[1].properties.content_type == "a/b"
    # The topology is back as well.
    assert names(client.call(Exchange.Declare(exchange="e", passive=True))) == [
        "Exchange.DeclareOk"
    ]
    client.publish("a.c", b"new", "e")
    assert bodies(client.take()) == [b"new"]


def test_unconfirmed_messages_may_be_lost() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    server.sync()
    client.call(Confirm.Select())
    client.publish("q", delivery_mode=2)
    assert client.take() == []
    assert server.crash().open().counts("q") == (0, 0)


def test_transient_messages_and_queues_do_not_survive() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    client.declare("transient")
    client.publish("q", b"transient")
    client.publish("q", b"persistent", delivery_mode=2)
    server.sync()
    client = server.crash().open()
    assert client.get("q") == b"persistent"
    assert client.get("q") is None
    assert client.ask(Queue.Declare(queue="transient", passive=True)).reply_code == 404


def test_acknowledged_messages_do_not_come_back() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    for number in range(4):
        client.publish("q", str(number).encode(), delivery_mode=2)
    client.consume("q")
    client.send(Basic.Ack(3, multiple=True))
    server.sync()
    assert bodies(server.crash().open().consume("q")) == [b"3"]


def test_committed_transaction_survives_as_a_whole() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("from", durable=True)
    client.declare("to", durable=True)
    client.publish("from", b"order", delivery_mode=2)
    server.sync()
    client.call(Tx.Select())
    client.get("from", no_ack=False)
    client.publish("to", b"invoice", delivery_mode=2)
    client.publish("to", b"receipt", delivery_mode=2)
    client.send(Basic.Ack(1))
    assert client.call(Tx.Commit()) == []
    before = server.crash().open()
    assert (before.counts("from"), before.counts("to")) == ((1, 0), (0, 0))
    server.sync()
    assert names(client.take()) == ["Tx.CommitOk"]
    after = server.crash().open()
    assert (after.counts("from"), after.counts("to")) == ((0, 0), (2, 0))


def test_purged_and_deleted_stay_so() -> None:
    server = Server(host=Host())
    client = server.open()
    for queue in ("purged", "deleted"):
        client.declare(queue, durable=True)
        client.publish(queue, delivery_mode=2)
    server.sync()
    client.call(Queue.Purge(queue="purged"), Queue.Delete(queue="deleted"))
    server.sync()
    client = server.crash().open()
    assert client.counts("purged") == (0, 0)
    assert client.ask(Queue.Declare(queue="deleted", passive=True)).reply_code == 404
    client.send(Channel.CloseOk())


def test_durable_exclusive_queue_does_not_survive() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True, exclusive=True)
    server.sync()
    client = server.crash().open()
    assert client.ask(Queue.Declare(queue="q", passive=True)).reply_code == 404


def test_changes_of_the_topology_are_answered_once_durable_and_in_order() -> None:
    server = Server(host=Host())
    client = server.open()
    changes = [
        Exchange.Declare(exchange="e", durable=True),
        Exchange.Bind(destination="e", source="amq.topic", routing_key="#"),
        Queue.Declare(queue="q", durable=True),
        Queue.Bind(queue="q", exchange="e", routing_key="k"),
        Queue.Purge(queue="q"),
        Queue.Unbind(queue="q", exchange="e", routing_key="k"),
        Exchange.Unbind(destination="e", source="amq.topic", routing_key="#"),
        Queue.Delete(queue="q"),
        Exchange.Delete(exchange="e"),
    ]
    for change in changes:
        # What need not wait must not overtake what does.
        assert client.call(change, Queue.Declare(queue="memory")) == []
        server.sync()
        assert names(client.take()) == [f"{change.name}Ok", "Queue.DeclareOk"]
    assert names(client.call(Queue.Declare(queue="memory", passive=True))) == ["Queue.DeclareOk"]


def test_close_waits_behind_the_answer_to_a_change() -> None:
    server = Server(host=Host())
    client = server.open()
    assert client.call(Queue.Declare(queue="q", durable=True)) == []
    client.send(Connection.Close(200, "", 0, 0), channel=0)
    assert client.take() == []
    assert not client.transport.is_closed
    server.sync()
    assert names(client.take()) == ["Queue.DeclareOk", "Connection.CloseOk"]
    assert client.transport.is_closed


def test_basic_get_waits_for_a_message_that_is_on_disk_only() -> None:
    server = Server(host=Host(checkpoint_size=1, memory_size=0))
    client = server.open()
    client.declare("q", durable=True)
    client.call(Confirm.Select())
    client.feed(publish_frames("q", b"0", delivery_mode=2) * 3)
    for _ in range(20):
        server.sync()
    server = Server(host=Host(server.host.disk.power_cut(None), memory_size=0))
    client = server.open()
    assert client.counts("q")[0] == 3
    assert client.call(Basic.Get(queue="q", no_ack=True)) == [], "not that the queue is empty"
    server.sync()
    assert names(client.take())[0] == "Basic.GetOk"
    other = server.open()
    assert bodies(other.call(Basic.Get(queue="q"))) == [b"0"]
    assert bodies(client.call(Basic.Get(queue="q"))) == [b"0"]
    assert names(client.call(Basic.Get(queue="q"))) == ["Basic.GetEmpty"]


def test_basic_get_that_waits_is_answered_when_the_queue_is_deleted_and_forgotten_when_closed() -> (
    None
):
    server = Server(host=Host(checkpoint_size=1, memory_size=0))
    client = server.open()
    client.declare("q", durable=True)
    client.call(Confirm.Select())
    client.publish("q", delivery_mode=2)
    for _ in range(20):
        server.sync()
    server = Server(host=Host(server.host.disk.power_cut(None), memory_size=0))
    client, closed, deleting = server.open(), server.open(), server.open()
    for one in (closed, client):
        assert one.call(Basic.Get(queue="q")) == []
    assert names(closed.call(Channel.Close(200, "", 0, 0))) == ["Channel.CloseOk"]
    deleting.send(Queue.Delete(queue="q"))
    assert names(client.take()) == ["Basic.GetEmpty"]
    server.sync()
    assert closed.take() == []


def test_x_delivery_count_goes_on_after_a_crash() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    client.publish("q", b"m", delivery_mode=2)
    for _ in range(2):
        received = client.call(Basic.Get(queue="q"))
        client.call(Basic.Nack(received[0].delivery_tag))
    server.sync()
    client = server.crash().open()
    header = client.call(Basic.Get(queue="q"))[1]
    assert header.properties.headers == {"x-delivery-count": 2}


@pytest.mark.parametrize(
    ("change", "question", "answer"),
    [
        (Queue.Delete(queue="q"), Queue.Delete(queue="q"), "Queue.DeleteOk"),
        (Queue.Delete(queue="q"), Queue.Declare(queue="q", passive=True), "Channel.Close"),
        (Queue.Delete(queue="q"), Queue.Declare(queue="q"), "Queue.DeclareOk"),
        (Queue.Delete(queue="q"), Queue.Purge(queue="q"), "Channel.Close"),
        (Queue.Delete(queue="s"), Queue.Delete(queue="s"), "Queue.DeleteOk"),
        (Exchange.Delete(exchange="e"), Exchange.Delete(exchange="e"), "Exchange.DeleteOk"),
        (
            Exchange.Delete(exchange="e"),
            Exchange.Declare(exchange="e", passive=True),
            "Channel.Close",
        ),
        (Exchange.Delete(exchange="e"), Exchange.Declare(exchange="e"), "Exchange.DeclareOk"),
        (
            Queue.Declare(queue="new", durable=True),
            Queue.Declare(queue="new", passive=True),
            "Queue.DeclareOk",
        ),
        (
            Exchange.Declare(exchange="new", durable=True),
            Exchange.Declare(exchange="new", passive=True),
            "Exchange.DeclareOk",
        ),
    ],
)
def test_who_asks_for_what_another_has_just_changed_waits_for_the_disk_too(
    change: Frame, question: Frame, answer: str
) -> None:
    server = Server(host=Host())
    client, other = server.open(), server.open()
    client.declare("q", durable=True)
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.exchange("e", durable=True)
    server.sync()
    assert client.call(change) == []
    assert other.call(question) == []
    server.sync()
    assert names(other.take()) == [answer]


def test_what_has_nothing_to_do_with_a_pending_change_is_answered_at_once() -> None:
    server = Server(host=Host())
    client, other = server.open(), server.open()
    client.declare("r", durable=True)
    assert client.call(Queue.Declare(queue="q", durable=True)) == []
    assert names(other.call(Queue.Declare(exclusive=True))) == ["Queue.DeclareOk"]
    assert names(other.call(Queue.Declare(queue="r", passive=True))) == ["Queue.DeclareOk"]
    assert names(other.call(Exchange.Declare(exchange="q"))) == ["Exchange.DeclareOk"]
    server.sync()
    assert names(other.call(Queue.Delete(queue="nothing"))) == ["Queue.DeleteOk"]


def redelivered(server: Server, queue: str = "q") -> list[bool]:
    """The flags of all messages in a queue, in order; they stay in it."""
    client = server.open()
    received = client.consume(queue)
    return [bool(one.redelivered) for one in received if isinstance(one, Basic.Deliver)]


def test_unacknowledged_messages_come_back_redelivered_after_a_clean_stop() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    for _ in range(4):
        client.publish("q", delivery_mode=2)
    server.sync()
    client.call(Basic.Get(queue="q"))
    client.call(Basic.Qos(prefetch_count=2))
    assert len(tags(client.consume("q"))) == 2
    assert redelivered(server.restart()) == [True, True, True, False]


def test_what_a_crash_flagged_as_redelivered_stays_so_over_clean_stops() -> None:
    server = Server(host=Host())
    client = server.open()
    for queue in ("q", "deleted"):
        client.declare(queue, durable=True)
        client.publish(queue, delivery_mode=2)
    client.consume("q")
    server.sync()
    server = server.crash().restart()
    client = server.open()
    client.declare("q", durable=True)
    client.publish("q", delivery_mode=2)
    # Another queue of the same name has nothing redelivered.
    client.ask(Queue.Delete(queue="deleted"))
    client.declare("deleted", durable=True)
    client.publish("deleted", delivery_mode=2)
    server = server.restart().restart()
    assert redelivered(server) == [True, False]
    assert redelivered(server, "deleted") == [False]

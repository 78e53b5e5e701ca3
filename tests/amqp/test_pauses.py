"""While publishers are paused: who is told, what waits, and what goes on."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.base import Frame
from pamqp.commands import Basic, Confirm, Connection, Tx
from pamqp.heartbeat import Heartbeat

from tests.support.amqp import Client, Server, bodies, names, publish_frames


def marshal(method: Frame) -> bytes:
    return frame.marshal(method, 1)


def is_paused(client: Client) -> bool:
    """Whether the client is not read."""
    return client.transport.is_paused


def pause(server: Server, reason: str = "low on disk") -> None:
    for connection in list(server.broker.connections):
        connection.blocked(reason)
    server.settle()


def resume(server: Server) -> None:
    for connection in list(server.broker.connections):
        connection.unblocked()
    server.settle()


def assert_nothing(clients: Iterable[Client]) -> None:
    for client in clients:
        assert client.take() == []


def test_only_who_publishes_is_told_and_only_with_the_capability(server: Server) -> None:
    publisher, consumer = server.open(), server.open()
    plain = server.open(capabilities={})
    publisher.declare("q")
    publisher.feed(publish_frames("q") * 3)
    pause(server)
    assert_nothing((publisher, consumer, plain))
    publisher.publish("q")
    plain.publish("q")
    (blocked,) = publisher.take()
    assert (blocked.name, blocked.reason) == ("Connection.Blocked", "low on disk")
    assert_nothing((consumer, plain))
    assert [c.transport.is_paused for c in (publisher, plain, consumer)] == [True, True, False]
    resume(server)
    assert names(publisher.take()) == ["Connection.Unblocked"]
    assert_nothing((consumer, plain))
    assert not publisher.transport.is_paused
    assert not plain.transport.is_paused


def test_nothing_is_published_during_a_pause_and_all_of_it_after(server: Server) -> None:
    client, reader = server.open(), server.open()
    client.declare("q")
    client.feed(publish_frames("q", b"0") * 2)
    pause(server)
    client.feed(b"".join(publish_frames("q", b"%d" % number) for number in range(1, 5)))
    assert reader.counts("q") == (2, 0)
    resume(server)
    assert [reader.get("q") for _ in range(7)] == [b"0", b"0", b"1", b"2", b"3", b"4", None]


def test_the_content_of_a_publish_that_had_begun_is_taken(server: Server) -> None:
    client, reader = server.open(), server.open()
    client.declare("q")
    client.feed(publish_frames("q", b"first"))
    frames = publish_frames("q", b"second")
    client.feed(frames[:-9])
    pause(server)
    client.feed(frames[-9:])
    assert reader.counts("q") == (2, 0)
    assert not client.transport.is_paused
    client.feed(frames)
    assert reader.counts("q") == (2, 0), "the next one is seen although it repeats the last"
    assert client.transport.is_paused


def test_consumers_go_on_and_their_acknowledgements_count(server: Server) -> None:
    publisher, consumer = server.open(), server.open()
    publisher.declare("q")
    consumer.send(Basic.Qos(prefetch_count=1))
    publisher.feed(publish_frames("q", b"1") + publish_frames("q", b"2"))
    consumer.take()
    assert bodies(consumer.consume("q")) == [b"1"]
    pause(server)
    publisher.publish("q")
    consumer.send(Basic.Ack(1))
    assert bodies(consumer.take()) == [b"2"]


def test_a_publisher_that_does_not_publish_can_acknowledge(server: Server) -> None:
    client = server.open()
    client.declare("q")
    client.publish("q")
    client.consume("q")
    pause(server)
    client.send(Basic.Ack(1))
    queue = server.vhost.queues["q"]
    assert (len(queue), queue.unsettled) == (0, 0)


def test_what_was_sent_before_a_publish_is_done(server: Server) -> None:
    client = server.open()
    client.declare("q")
    client.publish("q")
    client.consume("q")
    pause(server)
    client.feed(marshal(Basic.Ack(1)) + publish_frames("q"))
    queue = server.vhost.queues["q"]
    assert (len(queue), queue.unsettled) == (0, 0)


def test_a_transaction_waits_as_a_whole(server: Server) -> None:
    client, reader = server.open(), server.open()
    client.declare("q")
    assert client.ask(Tx.Select()).name == "Tx.SelectOk"
    pause(server, "low on memory")
    client.feed(publish_frames("q") + marshal(Tx.Commit()))
    assert names(client.take()) == ["Connection.Blocked"]
    resume(server)
    assert names(client.take()) == ["Connection.Unblocked", "Tx.CommitOk"]
    assert reader.counts("q") == (1, 0)


def test_a_client_that_comes_during_a_pause_is_told_when_it_publishes(server: Server) -> None:
    server.open().declare("q")
    late = server.connect()
    late.connection.blocked("low on disk")
    late.handshake()
    assert late.take() == []
    late.publish("q")
    assert names(late.take()) == ["Connection.Blocked"]


def test_a_pause_for_a_moment_is_not_told(server: Server) -> None:
    client, reader = server.open(), server.open()
    client.declare("q")
    pause(server, "")
    client.publish("q")
    assert client.transport.is_paused
    assert client.take() == []
    resume(server)
    assert client.take() == []
    assert reader.counts("q") == (1, 0)


def test_an_alarm_after_a_pause_for_a_moment_is_told(server: Server) -> None:
    client = server.open()
    client.declare("q")
    pause(server, "")
    client.feed(publish_frames("q") * 2)
    resume(server)
    pause(server)
    client.publish("q")
    assert names(client.take()) == ["Connection.Blocked"]


def test_a_client_that_is_not_read_gets_heartbeats_and_owes_none(server: Server) -> None:
    client = server.open(heartbeat=10)
    client.declare("q")
    pause(server)
    client.publish("q")
    client.take()
    server.advance(100)
    assert len([frame for frame in client.take() if isinstance(frame, Heartbeat)]) == 20
    assert not client.transport.is_aborted
    resume(server)
    server.advance(19.999)
    assert not client.transport.is_aborted, "its time starts anew"
    server.advance(0.001)
    assert client.transport.is_aborted


def test_a_client_that_is_not_read_can_answer_the_close(server: Server) -> None:
    client = server.open()
    client.declare("q")
    pause(server)
    client.feed(publish_frames("q") * 3)
    client.take()
    client.connection.shutdown()
    server.settle()
    assert names(client.take()) == ["Connection.Close"]
    assert not client.transport.is_paused
    client.send(Connection.CloseOk(), channel=0)
    assert client.transport.is_closed


def test_a_client_that_does_not_read_its_answers_is_held_for_both(server: Server) -> None:
    client, reader = server.open(), server.open()
    client.declare("q")
    pause(server)
    client.connection.is_writable = False
    client.feed(marshal(Basic.Get(queue="q", no_ack=True)) * 330_000)
    assert is_paused(client)
    client.feed(publish_frames("q"))
    resume(server)
    assert is_paused(client)
    assert reader.counts("q") == (0, 0)
    client.connection.resume_writing()
    server.settle()
    assert not is_paused(client)
    assert reader.counts("q") == (1, 0)


@given(
    st.lists(st.sampled_from([b"x", b"yy", b"z" * 30]), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(1, 120), st.booleans()), max_size=20),
)
def test_pauses_at_any_moment_change_neither_what_arrives_nor_its_order(
    payloads: list[bytes], pauses: list[tuple[int, bool]]
) -> None:
    server = Server()
    client = server.open()
    client.declare("q")
    assert client.ask(Confirm.Select()).name == "Confirm.SelectOk"
    data = b"".join(publish_frames("q", payload) for payload in payloads)
    is_paused_now = False
    for size, is_pause in pauses:
        if is_pause != is_paused_now:
            is_paused_now = is_pause
            (pause if is_pause else resume)(server)
        client.feed(data[:size])
        data = data[size:]
    if is_paused_now:
        resume(server)
    client.feed(data)
    confirmed = [one.delivery_tag for one in client.take() if one.name == "Basic.Ack"]
    assert confirmed[-1] == len(payloads)
    reader = server.open()
    assert [reader.get("q") for _ in payloads] == payloads
    assert reader.get("q") is None

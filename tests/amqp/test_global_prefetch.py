"""basic.qos with ``global``: one limit for all consumers of a channel, whose room goes round."""

from __future__ import annotations

from collections import Counter

import pytest
from pamqp import frame
from pamqp.commands import Basic, Queue

from tests.support.amqp import Client, Received, Server, bodies, names, publish_frames, tags
from tests.support.steps import steps


def fill(client: Client, queue: str, count: int) -> None:
    client.declare(queue)
    client.feed(b"".join(publish_frames(queue, b"%d" % number) for number in range(count)))


def limit(client: Client, count: int) -> list[Received]:
    return client.call(Basic.Qos(prefetch_count=count, global_=True))


def takers(received: list[Received]) -> list[str]:
    """The consumers that were delivered to."""
    return [one.consumer_tag or "" for one in received if isinstance(one, Basic.Deliver)]


def acknowledged_singly(client: Client, received: list[Received], count: int) -> Counter[str]:
    """Acknowledge one delivery at a time; who got the first ``count`` of them."""
    got = takers(received)
    waiting = tags(received)
    while len(got) < count:
        received = client.call(Basic.Ack(waiting.pop(0)))
        got += takers(received)
        waiting += tags(received)
    return Counter(got[:count])


@pytest.mark.parametrize("prefetch", [1, 2, 5, 7])
def test_the_room_of_a_channel_goes_round_over_queues(client: Client, prefetch: int) -> None:
    for queue in ("a", "b", "c"):
        fill(client, queue, 50)
    limit(client, prefetch)
    received = [one for queue in ("a", "b", "c") for one in client.consume(queue, queue)]
    got = acknowledged_singly(client, received, 60)
    # The first one had the room before the others came.
    assert max(got.values()) - min(got.values()) <= 2 * prefetch, got


def test_the_room_of_a_channel_goes_round_over_consumers_of_a_queue(client: Client) -> None:
    fill(client, "q", 50)
    fill(client, "r", 50)
    limit(client, 1)
    received = [one for tag in ("a", "b", "c") for one in client.consume("q", tag)]
    received += client.consume("r", "d")
    got = acknowledged_singly(client, received, 40)
    assert min(got.values()) >= 5, got
    assert len(got) == 4


def test_room_that_comes_at_once_goes_round_too(client: Client) -> None:
    for queue in ("a", "b", "c"):
        fill(client, queue, 50)
    limit(client, 5)
    received = [one for queue in ("a", "b", "c") for one in client.consume(queue, queue)]
    got = Counter(takers(received))
    for _ in range(6):
        received = client.call(Basic.Ack(tags(received)[-1], multiple=True))
        got.update(takers(received))
    assert got == {"a": 15, "b": 10, "c": 10}


@pytest.mark.parametrize(
    "give_back",
    [
        lambda tag: Basic.Nack(tag, requeue=True),
        lambda tag: Basic.Reject(tag, requeue=True),
        lambda tag: Basic.Recover(requeue=True),
    ],
)
def test_what_is_returned_does_not_keep_the_room_for_its_queue(
    client: Client, give_back: object
) -> None:
    assert callable(give_back)
    for queue in ("a", "b"):
        fill(client, queue, 2)
    limit(client, 1)
    received = client.consume("a", "a")
    client.consume("b", "b")
    got = takers(received)
    for _ in range(5):
        received = client.call(give_back(tags(received)[0]))
        got += takers(received)
    assert got == ["a", "a", "b", "a", "b", "a"]


def test_an_own_limit_and_the_channels_hold_together(client: Client) -> None:
    for queue in ("a", "b"):
        fill(client, queue, 20)
    limit(client, 3)
    client.call(Basic.Qos(prefetch_count=2))
    assert takers(client.consume("a", "a")) == ["a", "a"]
    assert takers(client.consume("b", "b")) == ["b"]
    assert takers(client.call(Basic.Ack(3))) == ["b"]
    assert takers(client.call(Basic.Ack(1))) == ["b"]
    # Now it is the consumer's own limit that keeps b from more.
    assert takers(client.call(Basic.Ack(2))) == ["a"]
    assert takers(client.call(Basic.Ack(6))) == ["a"]


def test_consumers_without_acknowledgement_wait_while_the_limit_is_used_up(client: Client) -> None:
    fill(client, "acked", 1)
    fill(client, "q", 3)
    limit(client, 1)
    client.consume("acked", "a")
    assert client.consume("q", "n", no_ack=True) == []
    client.publish("q", b"3")
    assert client.take() == []
    assert bodies(client.call(Basic.Ack(1))) == [b"0", b"1", b"2", b"3"]


def test_consumers_without_acknowledgement_use_no_room(client: Client) -> None:
    fill(client, "q", 3)
    fill(client, "acked", 2)
    limit(client, 1)
    assert takers(client.consume("q", "n", no_ack=True)) == ["n"] * 3
    assert takers(client.consume("acked", "a")) == ["a"]


def test_direct_replies_come_though_the_limit_is_used_up(server: Server) -> None:
    """RabbitMQ sends them by another way, which no prefetch holds up."""
    client, responder = server.open(), server.open()
    fill(client, "acked", 1)
    limit(client, 1)
    client.consume("acked", "a")
    client.consume("amq.rabbitmq.reply-to", "r", no_ack=True)
    client.declare("requests")
    client.publish("requests", reply_to="amq.rabbitmq.reply-to")
    header = responder.call(Basic.Get(queue="requests", no_ack=True))[1]
    responder.publish(header.properties.reply_to, b"answer")
    assert bodies(client.take()) == [b"answer"]


def test_what_basic_get_took_uses_no_room(client: Client) -> None:
    fill(client, "q", 4)
    client.get("q", no_ack=False)
    limit(client, 1)
    assert takers(client.consume("q", "a")) == ["a"]


@pytest.mark.parametrize("count", [0, 10])
def test_a_higher_limit_lets_all_who_wait_go_on(client: Client, count: int) -> None:
    for queue in ("a", "b", "c"):
        fill(client, queue, 2)
    limit(client, 1)
    for queue in ("a", "b", "c"):
        client.consume(queue, queue)
    received = limit(client, count)
    assert Counter(takers(received)) == {"a": 1, "b": 2, "c": 2}
    fill(client, "c", 1)
    assert takers(client.take()) == ["c"]


def test_a_first_limit_holds_for_consumers_that_are_there(client: Client) -> None:
    fill(client, "q", 2)
    assert takers(client.consume("q", "a")) == ["a", "a"]
    limit(client, 1)
    fill(client, "q", 2)
    assert takers(client.call(Basic.Ack(1))) == []
    assert takers(client.call(Basic.Ack(2))) == ["a"]


def test_consumers_that_end_are_not_waited_for(client: Client) -> None:
    fill(client, "held", 3)
    limit(client, 1)
    client.consume("held", "a")
    channel = client.connection.channels[1]
    for number in range(3):
        fill(client, f"q{number}", 1)
        client.consume(f"q{number}", "b")
        client.call(Basic.Cancel("b"))
        client.consume(f"q{number}", "c")
        assert names(client.call(Queue.Delete(queue=f"q{number}"))) == [
            "Queue.DeleteOk",
            "Basic.Cancel",
        ]
    assert len(channel.waiting) == 1
    assert takers(client.call(Basic.Ack(1))) == ["a"]


@pytest.mark.pure
def test_the_work_of_an_acknowledgement_does_not_grow_with_the_consumers(server: Server) -> None:
    found: list[int] = []
    for count in (10, 100):
        client = server.open()
        for number in range(count):
            queue = f"{count}-{number}"
            fill(client, queue, 1)
        limit(client, 1)
        for number in range(count):
            queue = f"{count}-{number}"
            client.consume(queue, queue)
        ack = frame.marshal(Basic.Ack(1), 1)
        found.append(steps(lambda client=client, ack=ack: client.feed(ack)))  # type: ignore[misc]
    assert found[1] < 1.2 * found[0], found

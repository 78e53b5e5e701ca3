"""What the core's queue features look like on the wire: dead letters, priorities, counts."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import frame
from pamqp.commands import Basic, Channel, Connection, Queue

from tests.support.amqp import Client, Server, assert_channel_closed, bodies, tags


def dead_letter_queue(client: Client, **arguments: object) -> None:
    """``q``, whose dead letters go to ``dead``."""
    client.declare("dead")
    table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **arguments}
    answer = client.ask(Queue.Declare(queue="q", durable=True, arguments=table))  # type: ignore[arg-type]
    assert isinstance(answer, Queue.DeclareOk), answer


def test_rejected_message_is_dead_lettered_with_x_death(client: Client) -> None:
    dead_letter_queue(client)
    client.publish("q", b"1", content_type="a/b", headers={"k": 1}, expiration="60000")
    client.get("q", no_ack=False)
    client.send(Basic.Reject(1, requeue=False))
    received = client.call(Basic.Get(queue="dead"))
    properties = received[1].properties
    assert bodies(received) == [b"1"]
    assert properties.content_type == "a/b"
    assert properties.expiration is None
    headers = properties.headers
    assert headers["k"] == 1
    assert headers["x-first-death-reason"] == headers["x-last-death-reason"] == "rejected"
    assert headers["x-first-death-queue"] == "q"
    (death,) = headers["x-death"]
    assert death["queue"] == "q"
    assert death["reason"] == "rejected"
    assert death["count"] == 1
    assert death["exchange"] == ""
    assert death["routing-keys"] == ["q"]
    assert death["original-expiration"] == "60000"
    assert "time" in death


def test_headers_of_the_publisher_stay_as_they_were_byte_by_byte(client: Client) -> None:
    dead_letter_queue(client)
    table = bytes.fromhex("01 61 62 ff" "01 62 73 8000" "01 63 44 02 0000007d")  # fmt: skip
    properties = b"\xe0\x80\x03a/b\x04gzip" + len(table).to_bytes(4, "big") + table + b"\x01m"
    content = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + properties
    client.feed(
        b"\x01\x00\x01\x00\x00\x00\x0a\x00\x3c\x00\x28\x00\x00\x00\x01q\x00\xce"
        + b"\x02\x00\x01"
        + len(content).to_bytes(4, "big")
        + content
        + b"\xce\x03\x00\x01\x00\x00\x00\x01x\xce"
    )
    client.get("q", no_ack=False)
    client.send(Basic.Reject(1, requeue=False))
    client.take()
    client.send(Basic.Get(queue="dead"))
    data = client.take_bytes()
    assert b"\xe0\x80\x03a/b\x04gzip" in data
    assert table + b"\x01m\xce" in data


def test_dead_letter_of_a_dead_letter_counts(client: Client) -> None:
    dead_letter_queue(client)
    client.publish("q", b"1")
    for count in (1, 2):
        got = client.call(Basic.Get(queue="q"))[0]
        client.send(Basic.Reject(got.delivery_tag, requeue=False))
        received = client.call(Basic.Get(queue="dead", no_ack=True))
        headers = received[1].properties.headers
        assert [(d["queue"], d["count"]) for d in headers["x-death"]] == [("q", count)]
        client.publish("q", b"1", headers=headers)


@pytest.mark.parametrize(
    ("count", "then"), [((1 << 63) - 1, (1 << 63) - 1), (-5, 1), ("7", 1), (True, 1), (7, 8)]
)
def test_a_publishers_own_count_stays_a_number(client: Client, count: object, then: int) -> None:
    dead_letter_queue(client, **{"x-message-ttl": 0})
    death = {"queue": "q", "reason": "expired", "count": count}
    rejected = {"queue": "else", "reason": "rejected", "count": 1}
    client.publish("q", b"1", headers={"x-death": [death, rejected]})
    client.server.settle()
    received = client.call(Basic.Get(queue="dead"))
    assert received[1].properties.headers["x-death"] == [death | {"count": then}, rejected]


def test_a_dead_letter_goes_by_all_routing_keys_of_its_message(client: Client) -> None:
    client.exchange("dlx", "direct")
    client.declare("q", arguments={"x-dead-letter-exchange": "dlx"})
    for name in ("first", "second", "blind"):
        client.declare(name)
    client.bind("first", "dlx", "q")
    client.bind("second", "dlx", "cc")
    client.bind("second", "dlx", "q")
    client.bind("blind", "dlx", "bcc")
    client.publish("q", b"1", headers={"CC": ["cc", "cd"], "BCC": ["bcc"]})
    client.get("q", no_ack=False)
    client.send(Basic.Reject(1, requeue=False))
    for name in ("first", "second"):
        received = client.call(Basic.Get(queue=name, no_ack=True))
        assert (received[0].exchange, received[0].routing_key) == ("dlx", "q")
        headers = received[1].properties.headers
        assert headers["CC"] == ["cc", "cd"]
        assert headers["x-death"][0]["routing-keys"] == ["q", "cc", "cd"]
        assert client.get(name) is None
    # Those of BCC are known no more.
    assert client.get("blind") is None


def test_a_dead_letter_routing_key_replaces_all_and_cc_goes(client: Client) -> None:
    client.exchange("dlx", "fanout")
    client.declare("cc")
    client.declare("last")
    client.bind("last", "dlx", "")
    client.declare("stage", arguments={"x-dead-letter-exchange": "dlx"})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "stage"}
    client.declare("q", arguments=arguments)
    client.publish("q", b"1", headers={"CC": ["cc"], "k": 1})
    assert client.get("cc") == b"1"
    for queue in ("q", "stage"):
        received = client.call(Basic.Get(queue=queue))
        client.send(Basic.Reject(received[0].delivery_tag, requeue=False))
    headers = client.call(Basic.Get(queue="last"))[1].properties.headers
    assert "CC" not in headers
    assert headers["k"] == 1
    assert [death["routing-keys"] for death in headers["x-death"]] == [["stage"], ["q", "cc"]]
    assert client.get("cc") is None


def test_expired_message_is_dead_lettered(client: Client) -> None:
    dead_letter_queue(client, **{"x-message-ttl": 0})
    client.publish("q", b"1")
    client.server.settle()
    received = client.call(Basic.Get(queue="dead"))
    assert received[1].properties.headers["x-death"][0]["reason"] == "expired"


def test_priorities(client: Client) -> None:
    client.declare("q", arguments={"x-max-priority": 5})
    for priority in (0, 3, 9, 5, 3):
        client.publish("q", str(priority).encode(), priority=priority)
    assert [client.get("q") for _ in range(5)] == [b"9", b"5", b"3", b"3", b"0"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_next_single_active_consumer_begins_with_what_the_last_one_held(
    server: Server, is_lost: bool
) -> None:
    one, two = server.open(), server.open()
    one.declare("q", arguments={"x-single-active-consumer": True})
    one.call(Basic.Qos(prefetch_count=5))
    one.consume("q")
    two.consume("q")
    for number in range(10):
        server.open().publish("q", b"%d" % number)
    if is_lost:
        one.lose()
    else:
        one.send(Channel.Close(reply_code=200, class_id=0, method_id=0))
    assert bodies(two.take()) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("end", ["channel", "connection", "recover", "nack"])
def test_the_next_single_active_consumer_waits_for_what_comes_back_in_the_same_write(
    server: Server, end: str
) -> None:
    one, two = server.open(), server.open()
    one.declare("q", arguments={"x-single-active-consumer": True})
    one.call(Basic.Qos(prefetch_count=4))
    one.consume("q", tag="one")
    two.consume("q")
    for number in range(8):
        server.open().publish("q", b"%d" % number)
    cancel = frame.marshal(Basic.Cancel("one"), 1)
    if end == "channel":
        last = frame.marshal(Channel.Close(reply_code=200, class_id=0, method_id=0), 1)
    elif end == "connection":
        last = frame.marshal(Connection.Close(reply_code=200, class_id=0, method_id=0), 0)
    elif end == "recover":
        last = frame.marshal(Basic.Recover(requeue=True), 1)
    else:
        last = frame.marshal(Basic.Nack(0, multiple=True, requeue=True), 1)
    one.feed(cancel + last)
    assert bodies(two.take()) == [b"%d" % number for number in range(8)]


def test_a_connection_that_ends_has_nothing_delivered_to_its_other_channels(server: Server) -> None:
    one, two = server.open(), server.open()
    one.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    one.send(Channel.Open(), channel=2)
    one.call(Basic.Qos(prefetch_count=1))
    one.consume("q")
    one.call(Basic.Consume(queue="q"), channel=2)
    one.publish("q", b"0")
    one.take()
    one.send(Connection.Close(reply_code=200, class_id=0, method_id=0), channel=0)
    received = two.consume("q")
    assert bodies(received) == [b"0"]
    # It came back once, from one consumer.
    assert received[-2].properties.headers == {"x-delivery-count": 1}


def test_single_active_consumer_fails_over(server: Server) -> None:
    one, two = server.open(), server.open()
    one.declare("q", arguments={"x-single-active-consumer": True})
    one.consume("q")
    two.consume("q")
    one.publish("q", b"1")
    one.publish("q", b"2")
    assert bodies(one.take()) == [b"1", b"2"]
    assert two.take() == []
    one.lose()
    received = two.take()
    assert bodies(received) == [b"1", b"2"]


def test_quorum_queue_counts_deliveries_and_gives_up(client: Client) -> None:
    dead_letter_queue(client, **{"x-queue-type": "quorum", "x-delivery-limit": 2})
    client.publish("q", b"1", delivery_mode=2)
    client.call(Basic.Qos(prefetch_count=1))
    received = client.consume("q")
    counts = []
    while tags(received):
        counts.append((received[1].properties.headers or {}).get("x-delivery-count"))
        received = client.call(Basic.Reject(tags(received)[0], requeue=True))
    assert counts == [None, 1, 2]
    received = client.call(Basic.Get(queue="dead"))
    assert received[1].properties.headers["x-death"][0]["reason"] == "delivery_limit"


def test_max_length_drops_the_oldest(client: Client) -> None:
    client.declare("q", arguments={"x-max-length": 2})
    for number in range(4):
        client.publish("q", str(number).encode())
    assert [client.get("q"), client.get("q"), client.get("q")] == [b"2", b"3", None]


def test_exclusive_quorum_queue_is_406(client: Client) -> None:
    declare = Queue.Declare(
        queue="q", durable=True, exclusive=True, arguments={"x-queue-type": "quorum"}
    )
    assert_channel_closed(
        client.ask(declare),
        406,
        "PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue 'q' in vhost '/'",
    )


@pytest.mark.parametrize("frame_max", [4096])
def test_history_too_large_for_a_frame_is_left_out(server: Server, frame_max: int) -> None:
    publisher, reader = server.open(), server.open(frame_max=frame_max)
    dead_letter_queue(publisher)
    publisher.publish("q", b"1", headers={"big": "z" * 4000})
    publisher.get("q", no_ack=False)
    publisher.send(Basic.Reject(1, requeue=False))
    received = reader.call(Basic.Get(queue="dead"))
    assert bodies(received) == [b"1"]
    assert received[1].properties.headers is None


def test_a_message_that_is_published_again_with_its_history_may_expire_again(
    client: Client,
) -> None:
    client.declare("tdq")
    arguments = {
        "x-message-ttl": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "tdq",
    }
    client.declare("tq", arguments=arguments)
    headers: dict[str, Any] = {}
    for count in (1, 2, 3):
        client.publish("tq", b"later", headers=headers)
        client.server.settle()
        received = client.call(Basic.Get(queue="tdq", no_ack=True))
        assert bodies(received) == [b"later"]
        headers = received[1].properties.headers
        assert [(d["queue"], d["count"]) for d in headers["x-death"]] == [("tq", count)]


def turns(server: Server, count: int) -> int:
    """Messages that queues took in so many turns."""
    queues = server.broker.vhosts["/"].queues.values()
    for _ in range(count):
        server.settle()
    return sum(queue.counters.published for queue in queues)


@pytest.mark.parametrize("targets", [["a"], ["b", "a"]])
@pytest.mark.parametrize("is_forged", [True, False])
def test_full_queues_whose_dead_letters_go_round_do_not_go_on_for_ever(
    client: Client, targets: list[str], is_forged: bool
) -> None:
    for name, other in zip(["a", "b"], targets, strict=False):
        arguments = {
            "x-max-length": 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": other,
        }
        client.declare(name, arguments=arguments)
    headers = {"x-death": [{"reason": "rejected"}]} if is_forged else {}
    for number in range(3):
        client.publish("a", b"%d" % number, headers=headers)
        if not is_forged:
            client.get("a", no_ack=False)
    if not is_forged:
        # All three are rejected, and come back in one turn.
        client.send(Basic.Nack(0, multiple=True, requeue=False))
    before = turns(client.server, 10)
    assert turns(client.server, 10) == before
    assert client.counts("a")[0] <= 1


def test_at_least_once_dead_letters_wait_in_their_queue_until_another_takes_them(
    client: Client,
) -> None:
    arguments = {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-dead-letter-strategy": "at-least-once",
    }
    client.declare("q", durable=True, arguments=arguments)
    client.publish("q", b"1", delivery_mode=2)
    client.get("q", no_ack=False)
    client.send(Basic.Reject(1, requeue=False))
    client.declare("dead", durable=True)
    assert client.get("dead") is None
    client.server.advance(1)
    received = client.call(Basic.Get(queue="dead"))
    assert bodies(received) == [b"1"]
    assert received[1].properties.headers["x-death"][0]["reason"] == "rejected"
    arguments["x-overflow"] = "drop-head"
    declare = Queue.Declare(queue="other", durable=True, arguments=arguments)  # type: ignore[arg-type]
    closed = client.ask(declare)
    assert (closed.reply_code, "x-dead-letter-strategy" in closed.reply_text) == (406, True)

"""Class basic (60): consuming, acknowledgement, get, qos, return."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import frame
from pamqp.commands import Basic, Channel, Connection, Queue

from tests.support.amqp import (
    Client,
    Server,
    assert_channel_closed,
    assert_connection_closed,
    bodies,
    names,
    publish_frames,
    tags,
)


def fill(client: Client, count: int, queue: str = "q") -> None:
    client.declare(queue)
    client.feed(b"".join(publish_frames(queue, str(n).encode()) for n in range(count)))


# Publish


def test_mandatory_unroutable_is_returned_with_312(client: Client) -> None:
    client.publish("x", b"lost", mandatory=True, content_type="a/b", headers={"k": 1})
    returned, header, body = client.take()
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("", "x")
    assert (header.properties.content_type, header.properties.headers) == ("a/b", {"k": 1})
    assert body.value == b"lost"


def test_mandatory_is_returned_each_time(client: Client) -> None:
    client.feed(publish_frames("x", b"same", mandatory=True) * 5)
    assert names(client.take()).count("Basic.Return") == 5


def test_unroutable_is_dropped_otherwise(client: Client) -> None:
    client.publish("x")
    assert client.take() == []
    assert client.server.adapter.metrics.messages_unroutable == 1


def test_immediate_is_540(client: Client) -> None:
    client.feed(publish_frames("x", immediate=True))
    assert_connection_closed(client, 540, "NOT_IMPLEMENTED - immediate=true")


@pytest.mark.parametrize("expiration", ["abc", "-1", "1.5", " 1", "9" * 30])
def test_bad_expiration_is_406(client: Client, expiration: str) -> None:
    client.publish("q", expiration=expiration)
    assert_channel_closed(
        client.take()[0], 406, f"PRECONDITION_FAILED - invalid expiration '{expiration}'"
    )


def test_expired_message_is_not_delivered(client: Client) -> None:
    client.declare("q")
    client.publish("q", b"gone", expiration="0")
    client.publish("q", b"stays", expiration="100000")
    assert client.get("q") == b"stays"


def test_user_id_must_be_the_user_406(client: Client) -> None:
    client.declare("q")
    client.publish("q", user_id="guest")
    assert client.counts("q") == (1, 0)
    client.publish("q", user_id="ada")
    assert_channel_closed(
        client.take()[0],
        406,
        "PRECONDITION_FAILED - user_id property set to 'ada' but authenticated user was 'guest'",
    )


def test_properties_pass_through_byte_by_byte(client: Client) -> None:
    client.declare("q")
    # All fourteen properties, with a table that has types no client library writes.
    table = bytes.fromhex(
        "01 61 62 ff" "01 62 42 ff" "01 63 73 8000" "01 64 75 ffff" "01 65 69 ffffffff"
        "01 66 66 3fc00000" "01 67 44 02 0000007d" "01 68 78 00000001 00" "01 69 56"
        "01 6a 54 0000000000000001" "01 6b 53 00000001 ff" "01 6b 74 01"
    )  # fmt: skip
    properties = (
        b"\xff\xfc\x03a/b\x04gzip"
        + len(table).to_bytes(4, "big")
        + table
        + b"\x07\x09\x02\xff\xfe\x01r\x0599999\x01m"
        + (1).to_bytes(8, "big")
        + b"\x01t\x05guest\x01p\x01c"
    )
    content = b"\x00\x3c\x00\x00" + (3).to_bytes(8, "big") + properties
    header_frame = b"\x02\x00\x01" + len(content).to_bytes(4, "big") + content + b"\xce"
    publish = frame.marshal(Basic.Publish(routing_key="q"), 1)
    body_frame = b"\x03\x00\x01\x00\x00\x00\x03abc\xce"
    client.feed((publish + header_frame + body_frame) * 3)
    client.take()
    client.send(Basic.Get(queue="q", no_ack=True))
    assert client.take_bytes().endswith(header_frame + body_frame)
    client.send(Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
    assert client.take_bytes().count(header_frame + body_frame) == 2


# Delivery


def test_basic_deliver_bytes(client: Client) -> None:
    client.declare("q")
    client.consume("q", "tag")
    client.feed(publish_frames("q", b"body", delivery_mode=2) * 2)
    assert client.take_bytes() == b"".join(
        bytes.fromhex("01 0001 00000014 003c003c 03 746167")
        + delivery_tag.to_bytes(8, "big")
        + bytes.fromhex("00 00 01 71 ce")
        + bytes.fromhex("02 0001 0000000f 003c 0000 0000000000000004 1000 02 ce")
        + bytes.fromhex("03 0001 00000004 626f6479 ce")
        for delivery_tag in (1, 2)
    )


def test_deliveries_of_different_messages(client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.topic", "#")
    client.consume("q")
    client.publish("q", b"1")
    client.publish("a", b"1", exchange="amq.topic")
    client.publish("a", b"22", exchange="amq.topic")
    client.publish("b", b"22", exchange="amq.topic")
    client.publish("b", b"22", exchange="amq.topic", priority=3)
    client.publish("b", b"", exchange="amq.topic", priority=3)
    client.publish("b", b"", exchange="amq.topic", priority=3)
    received = client.take()
    deliveries = [r for r in received if isinstance(r, Basic.Deliver)]
    assert [(d.exchange, d.routing_key) for d in deliveries] == [
        ("", "q"),
        ("amq.topic", "a"),
        ("amq.topic", "a"),
        ("amq.topic", "b"),
        ("amq.topic", "b"),
        ("amq.topic", "b"),
        ("amq.topic", "b"),
    ]
    headers = [r for r in received if r.name == "ContentHeader"]
    assert [h.body_size for h in headers] == [1, 1, 2, 2, 2, 0, 0]
    assert [h.properties.priority for h in headers] == [None, None, None, None, 3, 3, 3]
    assert bodies(received) == [b"1", b"1", b"22", b"22", b"22"]
    assert tags(received) == [1, 2, 3, 4, 5, 6, 7]


def test_consume_ok_comes_before_deliveries(client: Client) -> None:
    fill(client, 2)
    received = client.call(Basic.Consume(queue="q", consumer_tag="c"))
    assert names(received)[:2] == ["Basic.ConsumeOk", "Basic.Deliver"]
    assert bodies(received) == [b"0", b"1"]


def test_consume_nowait_is_not_answered(client: Client) -> None:
    fill(client, 1)
    received = client.call(Basic.Consume(queue="q", consumer_tag="c", nowait=True))
    assert names(received)[0] == "Basic.Deliver"


def test_server_named_consumer(client: Client) -> None:
    client.declare("q")
    first = client.ask(Basic.Consume(queue="q"))
    second = client.ask(Basic.Consume(queue="q"))
    assert first.consumer_tag.startswith("amq.ctag-")
    assert first.consumer_tag != second.consumer_tag


def test_reused_consumer_tag_is_530(client: Client) -> None:
    client.declare("q")
    client.consume("q", "c")
    client.send(Basic.Consume(queue="q", consumer_tag="c"))
    assert_connection_closed(client, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'")


def test_consumer_tag_is_free_on_another_channel(client: Client) -> None:
    client.declare("q")
    client.consume("q", "c")
    client.open_channel(2)
    assert client.ask(Basic.Consume(queue="q", consumer_tag="c"), channel=2).consumer_tag == "c"


def test_consume_of_missing_queue_is_404(client: Client) -> None:
    assert_channel_closed(
        client.ask(Basic.Consume(queue="x")), 404, "NOT_FOUND - no queue 'x' in vhost '/'"
    )


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_exclusive_consumer_is_403(server: Server, first: bool, second: bool) -> None:
    one, two = server.open(), server.open()
    one.declare("q")
    one.consume("q", exclusive=first)
    assert_channel_closed(
        two.ask(Basic.Consume(queue="q", exclusive=second)),
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
    )


def test_an_exclusive_consumer_of_a_single_active_consumer_queue_is_403(server: Server) -> None:
    one, two = server.open(), server.open()
    one.declare("q", arguments={"x-single-active-consumer": True})
    assert_channel_closed(
        one.ask(Basic.Consume(queue="q", exclusive=True)),
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
    )
    two.consume("q")
    assert two.counts("q") == (0, 1)


def test_get_from_an_exclusively_consumed_queue_is_allowed(server: Server) -> None:
    one, two = server.open(), server.open()
    one.declare("q")
    one.consume("q", exclusive=True)
    assert two.get("q") is None
    assert two.ask(Basic.Consume(queue="q")).reply_code == 403


def test_consumers_take_turns(server: Server) -> None:
    one, two = server.open(), server.open()
    fill(one, 0)
    one.consume("q")
    two.consume("q")
    one.feed(b"".join(publish_frames("q", str(n).encode()) for n in range(4)))
    assert bodies(one.take()) == [b"0", b"2"]
    assert bodies(two.take()) == [b"1", b"3"]


def test_consumer_with_priority_is_served_first(server: Server) -> None:
    low, high = server.open(), server.open()
    fill(low, 0)
    low.consume("q")
    high.call(Basic.Qos(prefetch_count=1))
    high.consume("q", arguments={"x-priority": 5})
    low.feed(b"".join(publish_frames("q", str(n).encode()) for n in range(2)))
    assert bodies(high.take()) == [b"0"]
    assert bodies(low.take()) == [b"1"]


@pytest.mark.parametrize(
    ("priority", "kind"), [("5", "longstr"), (True, "bool"), (5.0, "double"), (None, "void")]
)
def test_bad_consumer_priority_is_406(client: Client, priority: Any, kind: str) -> None:
    client.declare("q")
    assert_channel_closed(
        client.ask(Basic.Consume(queue="q", arguments={"x-priority": priority})),
        406,
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/':"
        f' "expected integer, got {kind}"',
    )


def test_a_consumer_priority_may_be_any_integer(client: Client) -> None:
    client.declare("q")
    client.consume("q", "last", arguments={"x-priority": -(1 << 62)})
    client.consume("q", "first", arguments={"x-priority": 1 << 62})
    client.publish("q")
    assert client.take()[0].consumer_tag == "first"


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("offset", ["first", "nonsense", 5])
def test_a_stream_offset_for_a_queue_is_406(client: Client, kind: str, offset: Any) -> None:
    client.declare("q", durable=True, arguments={"x-queue-type": kind})
    assert_channel_closed(
        client.ask(Basic.Consume(queue="q", arguments={"x-stream-offset": offset})),
        406,
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/'"
        f" of queue type rabbit_{kind}_queue",
    )


def test_cancel_stops_deliveries_and_keeps_the_unacknowledged(client: Client) -> None:
    fill(client, 1)
    client.consume("q")
    assert client.ask(Basic.Cancel("c")).consumer_tag == "c"
    client.publish("q", b"1")
    assert client.take() == []
    assert client.call(Basic.Ack(1)) == []
    assert client.counts("q") == (1, 0)


def test_cancel_of_unknown_consumer_is_no_error(client: Client) -> None:
    assert client.ask(Basic.Cancel("x")).consumer_tag == "x"
    assert client.call(Basic.Cancel("x", nowait=True)) == []


def test_queue_delete_cancels_consumers_that_understand_it(server: Server) -> None:
    client, plain = server.open(), server.open(capabilities={})
    client.declare("q")
    client.consume("q", "c")
    plain.consume("q", "c")
    server.open().call(Queue.Delete(queue="q"))
    (cancel,) = client.take()
    assert (cancel.name, cancel.consumer_tag, cancel.nowait) == ("Basic.Cancel", "c", True)
    assert plain.take() == []
    # The tag is free again.
    client.declare("q")
    client.consume("q", "c")


def test_no_ack_settles_on_delivery(client: Client) -> None:
    fill(client, 2)
    received = client.call(Basic.Consume(queue="q", no_ack=True))
    assert bodies(received) == [b"0", b"1"]
    client.lose()
    assert len(client.server.vhost.queue("q")) == 0


# Acknowledgement


def test_ack_settles_one(client: Client) -> None:
    fill(client, 3)
    client.consume("q")
    client.send(Basic.Ack(2))
    client.lose()
    other = client.server.open()
    assert bodies(other.consume("q")) == [b"0", b"2"]


def test_ack_multiple_settles_all_up_to_the_tag(client: Client) -> None:
    fill(client, 4)
    client.consume("q")
    client.send(Basic.Ack(1))
    client.send(Basic.Ack(3, multiple=True))
    client.lose()
    assert bodies(client.server.open().consume("q")) == [b"3"]


def test_ack_multiple_of_zero_settles_all(client: Client) -> None:
    fill(client, 3)
    client.consume("q")
    assert client.call(Basic.Ack(0, multiple=True)) == []
    assert client.call(Basic.Ack(0, multiple=True)) == []
    client.lose()
    assert len(client.server.vhost.queue("q")) == 0


def test_ack_multiple_after_many_single_ones(client: Client) -> None:
    fill(client, 50)
    client.consume("q")
    for tag in range(50, 2, -1):
        client.send(Basic.Ack(tag))
    client.send(Basic.Ack(2, multiple=True))
    client.feed(publish_frames("q", b"x") * 3)
    assert tags(client.take()) == [51, 52, 53]
    client.send(Basic.Ack(52, multiple=True))
    client.lose()
    assert len(client.server.vhost.queue("q")) == 1


@pytest.mark.parametrize(
    "method",
    [
        Basic.Ack(9),
        Basic.Ack(9, multiple=True),
        Basic.Ack(0),
        Basic.Nack(9),
        Basic.Nack(9, multiple=True),
        Basic.Reject(9),
    ],
)
def test_unknown_delivery_tag_is_406(client: Client, method: Basic.Ack) -> None:
    fill(client, 2)
    client.consume("q")
    closed = client.ask(method)
    tag = method.delivery_tag
    assert_channel_closed(closed, 406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
    assert (closed.class_id, closed.method_id) == (60, method.frame_id)


@pytest.mark.parametrize("has_acknowledged", [False, True])
@pytest.mark.parametrize("method", [Basic.Ack, Basic.Nack, Basic.Reject])
@pytest.mark.parametrize("bits", [0, 1])
def test_a_delivery_tag_of_64_bits_is_unknown(
    client: Client, method: type[Basic.Ack], bits: int, has_acknowledged: bool
) -> None:
    fill(client, 2)
    client.consume("q")
    if has_acknowledged:
        client.send(Basic.Ack(1))
    client.take()
    largest = method.frame_id.to_bytes(2) + b"\xff" * 8 + bytes([bits])
    client.feed(b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c" + largest + b"\xce")
    text = "PRECONDITION_FAILED - unknown delivery tag 18446744073709551615"
    assert_channel_closed(client.take()[0], 406, text)


@pytest.mark.parametrize("method", [Basic.Nack(1), Basic.Recover(requeue=True)])
def test_what_was_requeued_keeps_nothing_of_who_had_it(client: Client, method: Any) -> None:
    fill(client, 1)
    client.consume("q")
    client.send(Basic.Cancel("c"), method)
    client.take()
    entry = client.server.vhost.queue("q").get()
    assert entry is not None
    assert entry.is_redelivered
    assert entry.holder is None


def test_second_ack_is_406(client: Client) -> None:
    fill(client, 3)
    client.consume("q")
    acks = b"".join(frame.marshal(Basic.Ack(tag), 1) for tag in (1, 2, 2, 3))
    client.feed(acks)
    assert_channel_closed(client.take()[0], 406, "PRECONDITION_FAILED - unknown delivery tag 2")
    # The third one came after the channel was closed.
    assert len(client.server.vhost.queue("q")) == 1


def test_tags_belong_to_their_channel(client: Client) -> None:
    fill(client, 1)
    client.consume("q")
    client.open_channel(2)
    assert client.ask(Basic.Ack(1), channel=2).reply_code == 406


def test_reject_without_requeue_drops(client: Client) -> None:
    fill(client, 2)
    client.get("q", no_ack=False)
    client.send(Basic.Reject(1, requeue=False))
    assert client.counts("q") == (1, 0)


def test_requeue_keeps_the_position_and_sets_redelivered(client: Client) -> None:
    fill(client, 3)
    for _ in range(2):
        client.get("q", no_ack=False)
    client.send(Basic.Nack(2, multiple=True, requeue=True))
    received = [client.call(Basic.Get(queue="q", no_ack=True)) for _ in range(3)]
    assert [bodies(r) for r in received] == [[b"0"], [b"1"], [b"2"]]
    assert [r[0].redelivered for r in received] == [True, True, False]


def test_requeued_is_redelivered_to_a_consumer(client: Client) -> None:
    fill(client, 2)
    client.call(Basic.Qos(prefetch_count=1))
    assert bodies(client.consume("q")) == [b"0"]
    received = client.call(Basic.Reject(1, requeue=True))
    assert bodies(received) == [b"0"]
    assert received[0].redelivered is True


def test_nack_without_requeue_drops_several(client: Client) -> None:
    fill(client, 3)
    client.consume("q")
    client.send(Basic.Nack(2, multiple=True, requeue=False))
    client.lose()
    assert bodies(client.server.open().consume("q")) == [b"2"]


def test_recover_returns_all_unacknowledged_in_order(client: Client) -> None:
    fill(client, 3)
    for _ in range(3):
        client.get("q", no_ack=False)
    assert client.ask(Basic.Recover(True)).name == "Basic.RecoverOk"
    received = client.consume("q")
    assert bodies(received) == [b"0", b"1", b"2"]
    assert {r.redelivered for r in received if isinstance(r, Basic.Deliver)} == {True}


def test_recover_without_requeue_is_540(client: Client) -> None:
    client.send(Basic.Recover(False))
    assert_connection_closed(client, 540, "NOT_IMPLEMENTED - requeue=false")


@pytest.mark.parametrize("how", ["channel", "connection", "exception"])
def test_what_is_unacknowledged_returns_in_order(server: Server, how: str) -> None:
    one, two = server.open(), server.open()
    fill(one, 5)
    one.call(Basic.Qos(prefetch_count=4))
    one.consume("q")
    one.send(Basic.Ack(2))
    two.consume("q", "c")
    assert bodies(two.take()) == []
    if how == "channel":
        one.call(Channel.Close(200, "", 0, 0))
    elif how == "connection":
        one.lose()
    else:
        one.call(Basic.Ack(77))
    received = two.take()
    assert bodies(received) == [b"0", b"2", b"3", b"4"]
    assert server.vhost.queue("q").unsettled == 4


# Get


def test_get_ok_counts_what_is_left(client: Client) -> None:
    fill(client, 3)
    got = client.call(Basic.Get(queue="q"))[0]
    assert (got.delivery_tag, got.redelivered, got.message_count) == (1, False, 2)


def test_get_of_an_empty_queue(client: Client) -> None:
    client.declare("q")
    client.send(Basic.Get(queue="q"))
    assert client.take_bytes() == bytes.fromhex("01 0001 00000005 003c0048 00 ce")


def test_get_with_no_ack_has_no_tag_to_acknowledge(client: Client) -> None:
    fill(client, 1)
    client.get("q", no_ack=True)
    assert client.ask(Basic.Ack(1)).reply_code == 406


# Qos


def test_prefetch_limits_each_consumer(client: Client) -> None:
    fill(client, 10)
    client.call(Basic.Qos(prefetch_count=2))
    assert tags(client.consume("q", "a")) == [1, 2]
    client.call(Basic.Qos(prefetch_count=3))
    assert tags(client.consume("q", "b")) == [3, 4, 5]
    assert tags(client.call(Basic.Ack(1))) == [6]
    assert tags(client.call(Basic.Ack(5, multiple=True))) == [7, 8, 9, 10]


def test_qos_global_limits_the_channel(client: Client) -> None:
    fill(client, 10)
    client.call(Basic.Qos(prefetch_count=3, global_=True))
    assert tags(client.consume("q", "a")) == [1, 2, 3]
    assert tags(client.consume("q", "b")) == []
    assert tags(client.call(Basic.Ack(1))) == [4]
    # Raising it takes effect at once, lowering it with the next acknowledgements.
    assert tags(client.call(Basic.Qos(prefetch_count=5, global_=True))) == [5, 6]
    assert tags(client.call(Basic.Qos(prefetch_count=1, global_=True))) == []
    assert tags(client.call(Basic.Ack(5, multiple=True))) == []
    assert tags(client.call(Basic.Ack(6))) == [7]


def test_qos_global_credit_goes_to_any_consumer_of_the_channel(client: Client) -> None:
    fill(client, 1, "first")
    client.call(Basic.Qos(prefetch_count=1, global_=True))
    client.consume("first", "a")
    fill(client, 1, "second")
    assert tags(client.consume("second", "b")) == []
    received = client.call(Basic.Ack(1))
    assert [r.consumer_tag for r in received if isinstance(r, Basic.Deliver)] == ["b"]


def test_qos_does_not_limit_no_ack_or_get(client: Client) -> None:
    fill(client, 4)
    client.call(Basic.Qos(prefetch_count=1), Basic.Qos(prefetch_count=1, global_=True))
    client.get("q", no_ack=False)
    assert len(tags(client.consume("q", no_ack=True))) == 3


def test_qos_prefetch_size_is_540(client: Client) -> None:
    client.send(Basic.Qos(prefetch_size=1))
    assert_connection_closed(client, 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")


def test_slow_reader_is_held_and_goes_on(server: Server) -> None:
    publisher, reader = server.open(), server.open()
    publisher.declare("q")
    reader.consume("q")
    reader.connection.is_writable = False
    publisher.feed(publish_frames("q", b"held") * 3)
    assert reader.take() == []
    assert publisher.counts("q") == (3, 1)
    reader.connection.resume_writing()
    server.settle()
    assert bodies(reader.take()) == [b"held"] * 3


def test_output_of_a_turn_is_bounded_and_the_rest_follows(server: Server) -> None:
    client = server.open()
    client.declare("q")
    payload = b"z" * 100_000
    for _ in range(30):
        client.publish("q", payload)
    client.server.broker.begin_turn()
    client.connection.feed(frame.marshal(Basic.Consume(queue="q"), 1))
    assert client.connection.output_size < 2_000_000
    server.settle()
    assert len(bodies(client.take())) == 30


def test_client_that_does_not_read_its_answers_is_not_read_from(server: Server) -> None:
    client = server.open()
    fill(client, 0)
    body = b"z" * 100_000
    client.feed(publish_frames("q", body) * 100)
    gets = frame.marshal(Basic.Get(queue="q", no_ack=True), 1)
    client.connection.is_writable = False
    client.feed(gets * 100)
    assert client.transport.calls == ["pause_reading"]
    left = len(server.vhost.queue("q"))
    assert 50 < left < 60
    client.feed(gets[:10])
    assert len(server.vhost.queue("q")) == left
    client.connection.resume_writing()
    server.settle()
    assert client.transport.calls[-1] == "resume_reading"
    assert bodies(client.take()) == [body] * 100
    # The first half of a request came while input was held.
    client.feed(gets[10:])
    assert names(client.take()) == ["Basic.GetEmpty"]


# Flow


def test_channel_flow(client: Client) -> None:
    assert client.ask(Channel.Flow(True)).active is True
    client.send(Channel.Flow(False))
    assert_connection_closed(client, 540, "NOT_IMPLEMENTED - active=false")


# Direct reply-to


REPLY_TO = "amq.rabbitmq.reply-to"


def test_direct_reply_to(server: Server) -> None:
    requester, responder = server.open(), server.open()
    responder.declare("requests")
    requester.consume(REPLY_TO, "r", no_ack=True)
    requester.publish("requests", b"ask", reply_to=REPLY_TO, correlation_id="7")
    received = responder.call(Basic.Get(queue="requests", no_ack=True))
    reply_to = received[1].properties.reply_to
    assert reply_to.startswith(REPLY_TO + ".")
    assert received[1].properties.correlation_id == "7"
    # The responder may ask whether anybody still waits.
    assert responder.counts(reply_to) == (0, 1)
    responder.publish(reply_to, b"answer", mandatory=True)
    assert responder.take() == []
    assert bodies(requester.take()) == [b"answer"]
    requester.call(Basic.Cancel("r"))
    responder.publish(reply_to, b"late", mandatory=True)
    assert names(responder.take())[0] == "Basic.Return"


def test_direct_reply_to_ends_with_the_channel(server: Server) -> None:
    requester = server.open()
    requester.consume(REPLY_TO, no_ack=True)
    requester.call(Channel.Close(200, "", 0, 0))
    assert not server.vhost.queues


@pytest.mark.parametrize(
    ("prepare", "method", "text"),
    [
        (False, Basic.Consume(queue=REPLY_TO), "reply consumer cannot acknowledge"),
        (True, Basic.Consume(queue=REPLY_TO, no_ack=True), "reply consumer already set"),
    ],
)
def test_direct_reply_to_misused_is_406(
    client: Client, prepare: bool, method: Basic.Consume, text: str
) -> None:
    if prepare:
        client.consume(REPLY_TO, no_ack=True)
    assert_channel_closed(client.ask(method), 406, f"PRECONDITION_FAILED - {text}")


def test_direct_reply_to_without_a_consumer_is_406(client: Client) -> None:
    client.publish("q", reply_to=REPLY_TO)
    assert_channel_closed(
        client.take()[0], 406, "PRECONDITION_FAILED - fast reply consumer does not exist"
    )


def test_direct_reply_to_passive_declare_is_answered(client: Client) -> None:
    assert client.counts(REPLY_TO) == (0, 1)
    assert client.ask(Queue.Declare(queue=REPLY_TO)).consumer_count == 1


def test_connection_close_class_and_method_name_the_culprit(client: Client) -> None:
    client.send(Basic.Qos(prefetch_size=1))
    closed = client.take()[-1]
    assert isinstance(closed, Connection.Close)
    assert (closed.class_id, closed.method_id) == (60, 10)


def test_consumers_that_are_acknowledged_to_at_once_take_turns(client: Client) -> None:
    client.declare("q")
    client.call(Basic.Qos(prefetch_count=2))
    for tag in ("one", "two"):
        client.consume("q", tag)
    client.feed(publish_frames("q") * 6)
    assert len(bodies(client.take())) == 4
    client.send(Basic.Ack(4, multiple=True))
    found = [each for each in client.take() if isinstance(each, Basic.Deliver)]
    assert [each.consumer_tag for each in found] == ["one", "two"]

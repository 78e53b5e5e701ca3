"""Streams consumed by basic.consume: where they begin, what is delivered, what is refused."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from typing import Any

import pytest
from pamqp import header
from pamqp.commands import Basic, Channel, Queue, Tx

from tests.support.amqp import (
    Client,
    Received,
    Server,
    assert_channel_closed,
    assert_connection_closed,
    bodies,
    names,
    tags,
)
from tests.support.steps import living
from tests.support.storages import ColdLog
from trivium.messages.message import PROTOCOL_NATIVE, Address, Message
from trivium.streams.records import encode_batch
from trivium.vhost.policies import Policy
from trivium_amqp.stream_cursor import StreamCursor

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def stream(client: Client) -> Client:
    """A stream ``s`` with the records 0 to 4 in three batches: 0 and 1, 2, 3 and 4."""
    client.declare("s", durable=True, arguments=STREAM)
    for turn in ([0, 1], [2], [3, 4]):
        fill(client.server, *turn)
    return client


def fill(server: Server, *numbers: int, arrived: int | None = None) -> None:
    found = server.vhost.stream("s")
    at = server.broker.now_ms if arrived is None else arrived
    for number in numbers:
        address = Address("amq.topic", b"a.b")
        found.accept(Message(PROTOCOL_NATIVE, address, b"", b"%d" % number, 1, True, at))
    server.settle()


def start(client: Client, prefetch: int = 100, **kwargs: Any) -> list[Received]:
    assert names(client.call(Basic.Qos(prefetch_count=prefetch))) == ["Basic.QosOk"]
    return client.consume("s", **kwargs)


def begin(client: Client, offset: Any, prefetch: int = 100) -> list[bytes]:
    return bodies(start(client, prefetch, arguments={"x-stream-offset": offset}))


def offsets(received: list[Received]) -> list[object]:
    """The header x-stream-offset of each delivery."""
    return [
        (one.properties.headers or {}).get("x-stream-offset")
        for one in received
        if isinstance(one, header.ContentHeader)
    ]


# Where it begins


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", [0, 1, 2, 3, 4]),
        ("last", [4]),
        ("next", []),
        (0, [0, 1, 2, 3, 4]),
        (1, [1, 2, 3, 4]),
        (4, [4]),
        (5, []),
        (1 << 62, []),
        ("1h", [0, 1, 2, 3, 4]),
    ],
)
def test_a_consumer_begins_at_an_offset_a_word_or_an_interval(
    stream: Client, offset: object, expected: list[int]
) -> None:
    assert begin(stream, offset) == [b"%d" % n for n in expected]
    fill(stream.server, 5)
    assert bodies(stream.take()) == [b"5"]


def test_without_an_offset_a_consumer_begins_at_the_next_record(stream: Client) -> None:
    assert start(stream) == []
    fill(stream.server, 5)
    received = stream.take()
    assert (bodies(received), offsets(received)) == ([b"5"], [5])


@pytest.mark.parametrize(("seconds", "expected"), [(-1, [0, 1]), (0, [0, 1]), (1, [1]), (2, [])])
def test_a_timestamp_is_a_time_and_no_offset(
    client: Client, seconds: int, expected: list[int]
) -> None:
    client.declare("s", durable=True, arguments=STREAM)
    now = client.server.broker.now_ms // 1000
    fill(client.server, 0, arrived=now * 1000)
    fill(client.server, 1, arrived=now * 1000 + 1000)
    when = datetime.fromtimestamp(now + seconds, UTC)
    assert begin(client, when) == [b"%d" % n for n in expected]


def test_an_interval_leaves_older_records_out(client: Client) -> None:
    client.declare("s", durable=True, arguments=STREAM)
    now = client.server.broker.now_ms
    fill(client.server, 0, arrived=now - 3_700_000)
    fill(client.server, 1, arrived=now - 3_500_000)
    assert begin(client, "1h") == [b"1"]


@pytest.mark.parametrize("offset", ["newest", "1x", "", -1, True, 1.5, [], {"a": 1}])
def test_another_offset_is_406(stream: Client, offset: Any) -> None:
    stream.send(Basic.Qos(prefetch_count=1))
    stream.take()
    closed = stream.ask(Basic.Consume(queue="s", arguments={"x-stream-offset": offset}))
    assert isinstance(closed, Channel.Close)
    assert closed.reply_code == 406
    assert "x-stream-offset" in closed.reply_text


# What is delivered


def test_a_delivery_says_its_offset_beside_the_message_s_own_headers(client: Client) -> None:
    client.declare("s", durable=True, arguments=STREAM)
    client.publish("s", b"x", headers={"n": 1}, content_type="text/plain", correlation_id="c")
    deliver, properties, content = start(client, arguments={"x-stream-offset": "first"})
    assert isinstance(deliver, Basic.Deliver)
    assert (deliver.exchange, deliver.routing_key, deliver.redelivered) == ("", "s", False)
    assert properties.properties.headers == {"x-stream-offset": 0, "n": 1}
    assert properties.properties.content_type == "text/plain"
    assert properties.properties.correlation_id == "c"
    assert content.value == b"x"


def test_every_delivery_says_its_own_offset_in_64_bits(client: Client) -> None:
    client.declare("s", durable=True, arguments=STREAM)
    for body in (b"a", b"bc", b"de"):
        client.publish("s", body, headers={"n": 1}, content_type="x-stream-offsetl", expiration="9")
    client.call(Basic.Qos(prefetch_count=9))
    consume = Basic.Consume(queue="s", arguments={"x-stream-offset": "first"})
    client.send(consume)
    raw = client.transport.written
    fields = [b"\x0fx-stream-offsetl" + number.to_bytes(8, "big") for number in range(3)]
    assert [raw.count(field) for field in fields] == [1, 1, 1]
    received = client.take()
    assert bodies(received) == [b"a", b"bc", b"de"]
    headers = [one for one in received if isinstance(one, header.ContentHeader)]
    assert [one.properties.content_type for one in headers] == ["x-stream-offsetl"] * 3
    assert [one.properties.expiration for one in headers] == ["9"] * 3


def test_reading_takes_nothing(stream: Client) -> None:
    assert len(begin(stream, "first")) == 5
    stream.send(Basic.Ack(delivery_tag=0, multiple=True))
    other = stream.server.open()
    assert len(begin(other, "first")) == 5
    assert stream.counts("s")[0] == 5


def test_a_consumer_holds_no_more_than_its_prefetch(stream: Client) -> None:
    received = start(stream, 2, arguments={"x-stream-offset": "first"})
    assert (bodies(received), tags(received), offsets(received)) == ([b"0", b"1"], [1, 2], [0, 1])
    received = stream.call(Basic.Ack(delivery_tag=1))
    assert (bodies(received), tags(received), offsets(received)) == ([b"2"], [3], [2])
    assert bodies(stream.call(Basic.Ack(delivery_tag=3, multiple=True))) == [b"3", b"4"]


@pytest.mark.parametrize(
    "method",
    [
        Basic.Nack(delivery_tag=1, requeue=True),
        Basic.Nack(delivery_tag=1, requeue=False),
        Basic.Reject(delivery_tag=1, requeue=True),
        Basic.Reject(delivery_tag=1, requeue=False),
    ],
)
def test_every_settlement_makes_room_and_nothing_comes_again(stream: Client, method: Any) -> None:
    assert begin(stream, "first", 1) == [b"0"]
    assert bodies(stream.call(method)) == [b"1"]


def test_an_unknown_tag_is_406(stream: Client) -> None:
    begin(stream, "first", 1)
    assert_channel_closed(
        stream.ask(Basic.Ack(delivery_tag=9)), 406, "PRECONDITION_FAILED - unknown delivery tag 9"
    )


def test_acknowledgements_may_be_in_a_transaction(stream: Client) -> None:
    stream.open_channel(2)
    assert names(stream.call(Basic.Qos(prefetch_count=1), channel=2)) == ["Basic.QosOk"]
    stream.call(Tx.Select(), channel=2)
    consume = Basic.Consume(queue="s", arguments={"x-stream-offset": "first"})
    assert bodies(stream.call(consume, channel=2)) == [b"0"]
    assert stream.call(Basic.Ack(delivery_tag=1), channel=2) == []
    received = stream.call(Tx.Commit(), channel=2)
    assert bodies(received) == [b"1"]
    assert "Tx.CommitOk" in names(received)


def test_cancel_ends_it(stream: Client) -> None:
    start(stream)
    assert names(stream.call(Basic.Cancel(consumer_tag="c"))) == ["Basic.CancelOk"]
    fill(stream.server, 5)
    assert stream.take() == []


def test_a_lost_connection_leaves_nothing_behind(stream: Client) -> None:
    gc.collect()
    before = living(StreamCursor)
    start(stream)
    assert living(StreamCursor) == before + 1
    stream.lose()
    # Nobody else refers to it, the stream neither, before anything is added to that.
    gc.collect()
    assert living(StreamCursor) == before
    fill(stream.server, 5)


def test_deleting_the_stream_cancels_its_consumers(stream: Client) -> None:
    start(stream)
    other = stream.server.open()
    assert other.ask(Queue.Delete(queue="s")).name == "Queue.DeleteOk"
    (cancel,) = stream.take()
    assert (cancel.name, cancel.consumer_tag) == ("Basic.Cancel", "c")


def test_a_slow_reader_is_not_sent_more_than_its_output_takes(client: Client) -> None:
    client.declare("s", durable=True, arguments=STREAM)
    for _ in range(20):
        client.publish("s", bytes(1 << 20))
    client.connection.is_writable = False
    start_without_answer = Basic.Consume(queue="s", arguments={"x-stream-offset": "first"})
    client.send(Basic.Qos(prefetch_count=100), start_without_answer)
    client.take()
    first = client.connection.channels[1].delivery_tag
    assert first < 20
    client.connection.resume_writing()
    client.server.settle()
    assert client.connection.channels[1].delivery_tag > first


def test_a_consumer_goes_on_with_the_first_record_that_is_kept(stream: Client) -> None:
    assert begin(stream, "first", 1) == [b"0"]
    stream.server.vhost.set_policy(Policy("p", "s", {"max-length": 1}, "streams"))
    stream.server.settle()
    received = stream.call(Basic.Ack(delivery_tag=1))
    # The rest of the batch that it has, and then what is there.
    received += stream.call(Basic.Ack(delivery_tag=2))
    assert offsets(received) == [1, 3]


@pytest.mark.parametrize(("begin_at", "expected"), [(0, [0, 3, 9]), (1, [3, 9]), (4, [9])])
def test_a_sparse_batch_is_delivered_with_its_own_offsets(
    client: Client, begin_at: int, expected: list[int]
) -> None:
    client.declare("s", durable=True, arguments=STREAM)
    address = Address("amq.topic", b"a")
    made = [Message(PROTOCOL_NATIVE, address, b"", b"%d" % n, 1, True, 0) for n in (0, 3)]
    partition = client.server.vhost.stream("s").partitions[0]
    partition.log.append(encode_batch(made, None, 0, [0, 3], 9), 9)
    fill(client.server, 9)
    received = start(client, 2, arguments={"x-stream-offset": begin_at})
    received += client.call(Basic.Ack(delivery_tag=1))
    assert offsets(received) == expected
    assert bodies(received) == [b"%d" % n for n in expected]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_stream_is_read_like_any_other(client: Client, codec: str) -> None:
    client.declare("s", durable=True, arguments=STREAM | {"x-compression": codec})
    fill(client.server, *range(500))
    assert begin(client, 495) == [b"%d" % n for n in range(495, 500)]


def test_of_several_partitions_one_is_named(client: Client) -> None:
    client.server.vhost.declare_stream("s", 2)
    client.send(Basic.Qos(prefetch_count=10))
    client.take()
    arguments: Any = {"x-stream-offset": "first", "x-stream-partition": 1}
    assert names(client.call(Basic.Consume(queue="s", arguments=arguments))) == ["Basic.ConsumeOk"]
    fill(client.server, 0)
    fill(client.server, 1)
    found = client.server.vhost.stream("s").partitions[1].high_watermark
    assert len(bodies(client.take())) == found
    for wrong in (None, 2, -1, "1", True):
        number = 2
        if number not in client.connection.channels:
            client.open_channel(number)
        client.call(Basic.Qos(prefetch_count=10), channel=number)
        given: Any = {} if wrong is None else {"x-stream-partition": wrong}
        closed = client.ask(Basic.Consume(queue="s", arguments=given), channel=number)
        assert closed.reply_code == 406
        assert "x-stream-partition" in closed.reply_text
        client.send(Channel.CloseOk(), channel=number)


def test_a_delivery_has_the_exchange_and_routing_key_of_the_publish(client: Client) -> None:
    client.declare("s", durable=True, arguments=STREAM)
    client.bind("s", "amq.topic", "a.#")
    client.publish("a.b", b"x", exchange="amq.topic")
    deliver, *_ = start(client, arguments={"x-stream-offset": "first"})
    assert (deliver.exchange, deliver.routing_key) == ("amq.topic", "a.b")


# What is refused


def test_without_a_prefetch_count_it_is_406(stream: Client) -> None:
    assert_channel_closed(
        stream.ask(Basic.Consume(queue="s")),
        406,
        "PRECONDITION_FAILED - consumer prefetch count is not set for 'queue 's' in vhost '/''",
    )


def test_automatic_acknowledgement_is_540(stream: Client) -> None:
    stream.send(Basic.Qos(prefetch_count=1), Basic.Consume(queue="s", no_ack=True))
    assert_connection_closed(
        stream,
        540,
        "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues queue"
        " 's' in vhost '/'",
    )


def test_an_exclusive_consumer_is_540(stream: Client) -> None:
    stream.send(Basic.Qos(prefetch_count=1), Basic.Consume(queue="s", exclusive=True))
    assert_connection_closed(
        stream,
        540,
        "NOT_IMPLEMENTED - exclusive consumers not supported by stream queues queue"
        " 's' in vhost '/'",
    )


@pytest.mark.parametrize("method", [Basic.Get(queue="s"), Queue.Purge(queue="s")])
def test_get_and_purge_are_540(stream: Client, method: Any) -> None:
    stream.send(method)
    assert_connection_closed(
        stream,
        540,
        f"NOT_IMPLEMENTED - {method.name.lower()} not supported by stream queues queue"
        " 's' in vhost '/'",
    )


def test_a_consumer_of_a_stream_has_no_priority(stream: Client) -> None:
    stream.call(Basic.Qos(prefetch_count=1))
    assert_channel_closed(
        stream.ask(Basic.Consume(queue="s", arguments={"x-priority": 1})),
        406,
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 's' in vhost '/'"
        " of queue type rabbit_stream_queue",
    )


class DamagedLog(ColdLog):
    """A log in memory, of which the first record is none that can be read."""

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        found = super().read(offset, max_records, max_bytes)
        return [
            (at, record[:8] + bytes(4) + record[12:], annotation)
            if at == 0
            else (at, record, annotation)
            for at, record, annotation in found
        ]

    def is_loaded(self, offset: int) -> bool:
        return True


def test_a_record_that_cannot_be_read_cancels_the_consumer(stream: Client) -> None:
    partition = stream.server.vhost.stream("s").partitions[0]
    partition.log = DamagedLog(partition.log)
    received = start(stream, arguments={"x-stream-offset": "first"})
    assert names(received) == ["Basic.Cancel"]

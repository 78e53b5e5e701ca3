"""pika's blocking client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, cast

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)
from pika.spec import BasicProperties

from interop.amqp import PERSISTENT, bodies, channel, connection, consume, get
from interop.brokers import LOOPBACK


def refusal(error: pytest.ExceptionInfo[ChannelClosedByBroker]) -> tuple[int, str]:
    return error.value.reply_code, error.value.reply_text


def test_server_says_what_it_can(amqp_port: int) -> None:
    with connection(amqp_port) as opened:
        properties = cast("Any", opened)._impl.server_properties
        assert set(properties["capabilities"]) >= {
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "authentication_failure_close",
            "per_consumer_qos",
        }
        assert all(properties["capabilities"].values())
        assert len(str(properties["version"]).split(".")) >= 3


def test_wrong_password_is_refused(amqp_port: int) -> None:
    parameters = pika.ConnectionParameters(
        LOOPBACK, amqp_port, credentials=pika.PlainCredentials("guest", "wrong")
    )
    with pytest.raises(ProbableAuthenticationError):
        pika.BlockingConnection(parameters)


def test_unknown_virtual_host_is_refused(amqp_port: int) -> None:
    parameters = pika.ConnectionParameters(LOOPBACK, amqp_port, virtual_host="nowhere")
    with pytest.raises((ProbableAccessDeniedError, ConnectionClosedByBroker)) as error:
        pika.BlockingConnection(parameters)
    assert "530" in repr(error.value) or "530" in repr(error.value.args)


def test_queue_is_first_in_first_out(amqp_port: int, name: str) -> None:
    with channel(amqp_port) as opened:
        opened.queue_declare(name)
        for i in range(500):
            opened.basic_publish("", name, b"%d" % i)
        found = consume(opened, name, 500, auto_ack=True)
        assert [m.body for m in found] == [b"%d" % i for i in range(500)]
        assert [m.tag for m in found] == list(range(1, 501))
        assert not any(m.redelivered for m in found)
        opened.queue_delete(name)


def test_all_properties_and_table_types_come_back(amqp_port: int, name: str) -> None:
    headers: dict[str, Any] = {
        "bool": True,
        "int": 2**31 - 1,
        "long": -(2**63),
        "text": "ünï",
        "bytes": b"\x00\xff",
        "void": None,
        "list": [1, "two", None, [3], {"four": 4}],
        "table": {"a": {"b": {"c": "deep"}}},
        "decimal": Decimal("3.14"),
        "time": datetime(2024, 2, 29, 12, 30, 59),
        "empty": {},
        "x" * 120: "long name",
    }
    properties = BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=9,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="",
    )
    with channel(amqp_port) as opened:
        opened.queue_declare(name)
        opened.basic_publish("", name, b"body", properties)
        message = get(opened, name)
        assert message is not None
        assert message.body == b"body"
        found = message.properties
        received = dict(found.headers)
        assert received.pop("time").replace(tzinfo=None) == headers.pop("time")
        assert received == headers
        for field in ("content_type", "content_encoding", "delivery_mode", "priority", "type"):
            assert getattr(found, field) == getattr(properties, field)
        for field in ("correlation_id", "reply_to", "expiration", "message_id", "timestamp"):
            assert getattr(found, field) == getattr(properties, field)
        assert (found.user_id, found.app_id) == ("guest", "a")
        opened.queue_delete(name)


@pytest.mark.parametrize("size", [0, 1, 4088, 131_064, 131_065, 131_072, 1_000_000])
def test_bodies_of_all_sizes(amqp_port: int, name: str, size: int) -> None:
    body = bytes(i % 251 for i in range(size))
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name)
        opened.basic_publish("", name, body)
        message = get(opened, name)
        assert message is not None
        assert message.body == body
        opened.queue_delete(name)


def test_declare_says_what_is_in_the_queue(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        first = opened.queue_declare(name).method
        assert (first.queue, first.message_count, first.consumer_count) == (name, 0, 0)
        opened.basic_publish("", name, b"1")
        opened.basic_publish("", name, b"2")
        passive = opened.queue_declare(name, passive=True).method
        assert passive.message_count == 2
        assert opened.queue_purge(name).method.message_count == 2
        opened.basic_publish("", name, b"3")
        assert opened.queue_delete(name).method.message_count == 1
        assert opened.queue_delete(name).method.message_count == 0, "a missing one is no error"


def test_server_named_exclusive_queue(amqp_port: int) -> None:
    with connection(amqp_port) as one, connection(amqp_port) as other:
        queue = one.channel().queue_declare("", exclusive=True).method.queue
        assert queue.startswith("amq.gen-")
        with pytest.raises(ChannelClosedByBroker) as error:
            other.channel().queue_declare(queue, passive=True)
        assert error.value.reply_code == 405
        one.close()
        with pytest.raises(ChannelClosedByBroker) as gone:
            other.channel().queue_declare(queue, passive=True)
        assert refusal(gone) == (404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")


def test_auto_delete_queue_goes_with_its_last_consumer(amqp_port: int, name: str) -> None:
    with connection(amqp_port) as opened:
        one = opened.channel()
        one.queue_declare(name, auto_delete=True)
        tag = one.basic_consume(name, lambda *_: None)
        one.basic_cancel(tag)
        with pytest.raises(ChannelClosedByBroker) as error:
            one.queue_declare(name, passive=True)
        assert error.value.reply_code == 404


def test_different_redeclaration_is_refused(amqp_port: int, name: str) -> None:
    with connection(amqp_port) as opened:
        opened.channel().queue_declare(name)
        with pytest.raises(ChannelClosedByBroker) as error:
            opened.channel().queue_declare(name, durable=True)
        assert error.value.reply_code == 406
        assert error.value.reply_text.startswith("PRECONDITION_FAILED - inequivalent arg 'durable'")
        opened.channel().exchange_declare(name, "fanout")
        with pytest.raises(ChannelClosedByBroker) as error:
            opened.channel().exchange_declare(name, "topic")
        assert error.value.reply_code == 406
        last = opened.channel()
        last.queue_delete(name)
        last.exchange_delete(name)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (404, lambda c, n: c.basic_consume(n, lambda *_: None)),
        (404, lambda c, n: c.basic_get(n)),
        (404, lambda c, n: c.queue_bind("", n, "k")),
        (404, lambda c, n: c.exchange_declare(n, passive=True)),
        (403, lambda c, n: c.queue_declare(f"amq.{n}")),
        (403, lambda c, n: c.exchange_declare(f"amq.{n}")),
        (403, lambda c, _: c.exchange_delete("amq.topic")),
        (406, lambda c, _: c.basic_ack(99) or c.queue_declare("", exclusive=True)),
        (406, lambda c, _: c.basic_reject(99) or c.queue_declare("", exclusive=True)),
    ],
    ids=["consume", "get", "bind", "passive", "queue", "exchange", "delete", "ack", "reject"],
)
def test_channel_errors_close_the_channel_alone(
    amqp_port: int, name: str, code: int, what: Callable[[BlockingChannel, str], object]
) -> None:
    with connection(amqp_port) as opened:
        broken, other = opened.channel(), opened.channel()
        with pytest.raises(ChannelClosedByBroker) as error:
            what(broken, name)
        assert error.value.reply_code == code
        assert other.queue_declare("", exclusive=True).method.queue


def test_direct_exchange(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(name, "direct")
        queues = [opened.queue_declare("", exclusive=True).method.queue for _ in range(2)]
        opened.queue_bind(queues[0], name, "a")
        opened.queue_bind(queues[0], name, "b")
        opened.queue_bind(queues[1], name, "b")
        for key in ("a", "b", "c"):
            opened.basic_publish(name, key, key.encode())
        assert [bodies(opened, q) for q in queues] == [[b"a", b"b"], [b"b"]]
        opened.queue_unbind(queues[0], name, "b")
        opened.basic_publish(name, "b", b"later")
        assert [bodies(opened, q) for q in queues] == [[], [b"later"]]
        opened.exchange_delete(name)


def test_fanout_exchange(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(name, "fanout")
        queues = [opened.queue_declare("", exclusive=True).method.queue for _ in range(3)]
        for queue in queues:
            opened.queue_bind(queue, name)
        opened.basic_publish(name, "whatever", b"x")
        assert [bodies(opened, q) for q in queues] == [[b"x"]] * 3
        opened.exchange_delete(name)


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("a.*", {"a.b"}),
        ("a.#", {"a", "a.b", "a.b.c", "a.b.b.c"}),
        ("#.c", {"a.b.c", "a.b.b.c"}),
        ("a.#.c", {"a.b.c", "a.b.b.c"}),
        ("*.b.*", {"a.b.c"}),
        ("#", {"a", "a.b", "a.b.c", "a.b.b.c", "", "x/y"}),
        ("x/y", {"x/y"}),
        ("*", {"a", "x/y"}),
    ],
)
def test_topic_exchange(amqp_port: int, name: str, pattern: str, matching: set[str]) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(name, "topic")
        queue = opened.queue_declare("", exclusive=True).method.queue
        opened.queue_bind(queue, name, pattern)
        for key in ("a", "a.b", "a.b.c", "a.b.b.c", "", "x/y"):
            opened.basic_publish(name, key, key.encode())
        assert {body.decode() for body in bodies(opened, queue)} == matching
        opened.exchange_delete(name)


@pytest.mark.parametrize(
    ("arguments", "matching"),
    [
        ({"x-match": "all", "a": 1, "b": "2"}, {"both"}),
        ({"x-match": "any", "a": 1, "b": "2"}, {"both", "one"}),
        ({"a": 1, "b": "2"}, {"both"}),
        ({"a": None}, {"both", "one"}),
    ],
)
def test_headers_exchange(
    amqp_port: int, name: str, arguments: dict[str, Any], matching: set[str]
) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(name, "headers")
        queue = opened.queue_declare("", exclusive=True).method.queue
        opened.queue_bind(queue, name, arguments=arguments)
        sent: list[tuple[str, dict[str, Any]]] = [
            ("both", {"a": 1, "b": "2"}),
            ("one", {"a": 1, "b": "3"}),
            ("none", {}),
        ]
        for body, headers in sent:
            opened.basic_publish(name, "", body.encode(), BasicProperties(headers=headers))
        assert {body.decode() for body in bodies(opened, queue)} == matching
        opened.exchange_delete(name)


def test_exchange_to_exchange_binding(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(f"{name}a", "topic")
        opened.exchange_declare(f"{name}b", "fanout")
        queue = opened.queue_declare("", exclusive=True).method.queue
        opened.exchange_bind(f"{name}b", f"{name}a", "x.#")
        opened.queue_bind(queue, f"{name}b")
        opened.basic_publish(f"{name}a", "x.y", b"yes")
        opened.basic_publish(f"{name}a", "z", b"no")
        assert bodies(opened, queue) == [b"yes"]
        opened.exchange_delete(f"{name}a")
        opened.exchange_delete(f"{name}b")


def test_mandatory_message_without_a_queue_is_returned(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        with pytest.raises(UnroutableError) as error:
            opened.basic_publish("amq.direct", name, b"x", PERSISTENT, mandatory=True)
        (returned,) = error.value.messages
        assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
        assert (returned.method.routing_key, returned.body) == (name, b"x")
        opened.basic_publish("amq.direct", name, b"nobody asked", PERSISTENT)


def test_publish_to_a_missing_exchange_closes_the_channel(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        with pytest.raises(ChannelClosedByBroker) as error:
            opened.basic_publish(name, "k", b"x")
        assert refusal(error) == (404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")


def test_confirms_come_for_every_publish(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name, durable=True)
        for i in range(100):
            opened.basic_publish("", name, b"%d" % i, PERSISTENT)
        assert opened.queue_declare(name, passive=True).method.message_count == 100
        opened.queue_delete(name)


def test_unacknowledged_messages_come_back_in_order(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name)
        for i in range(10):
            opened.basic_publish("", name, b"%d" % i)
        with channel(amqp_port) as consumer:
            found = consume(consumer, name, 10)
            consumer.basic_ack(found[4].tag, multiple=True)
            consumer.basic_ack(found[6].tag)
        again = consume(opened, name, 4)
        assert [m.body for m in again] == [b"5", b"7", b"8", b"9"]
        assert all(m.redelivered for m in again)
        opened.basic_nack(again[-1].tag, multiple=True, requeue=False)
        opened.cancel()
        assert opened.queue_delete(name).method.message_count == 0


def test_requeue_and_reject(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name)
        for i in range(3):
            opened.basic_publish("", name, b"%d" % i)
        message = get(opened, name, auto_ack=False)
        assert message is not None
        assert (message.redelivered, message.body) == (False, b"0")
        opened.basic_reject(message.tag, requeue=True)
        message = get(opened, name, auto_ack=False)
        assert message is not None
        assert (message.redelivered, message.body) == (True, b"0"), "it keeps its place"
        opened.basic_reject(message.tag, requeue=False)
        assert bodies(opened, name) == [b"1", b"2"]
        opened.queue_delete(name)


@pytest.mark.parametrize("global_qos", [False, True])
def test_prefetch_bounds_what_is_unacknowledged(
    amqp_port: int, name: str, global_qos: bool
) -> None:
    with channel(amqp_port, confirms=True) as opened, channel(amqp_port) as other:
        opened.queue_declare(name)
        for i in range(6):
            opened.basic_publish("", name, b"%d" % i)
        opened.basic_qos(prefetch_count=3, global_qos=global_qos)
        held = consume(opened, name, 3)
        # The rest is free for others.
        assert bodies(other, name) == [b"3", b"4", b"5"]
        opened.basic_publish("", name, b"6")
        opened.basic_ack(held[0].tag)
        (last,) = consume(opened, name, 1)
        assert last.body == b"6"
        opened.basic_ack(last.tag, multiple=True)
        opened.cancel()
        opened.queue_delete(name)


def test_consumers_share_a_queue(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name)
        counts: dict[str, int] = {}
        done = 0

        def received(_c: object, method: Any, _p: object, _body: bytes) -> None:
            nonlocal done
            tag = method.consumer_tag
            counts[tag] = counts.get(tag, 0) + 1
            done += 1

        tags = [opened.basic_consume(name, received, auto_ack=True) for _ in range(3)]
        for i in range(90):
            opened.basic_publish("", name, b"%d" % i)
        while done < 90:
            opened.connection.process_data_events(1)
        assert counts == dict.fromkeys(tags, 30)
        for tag in tags:
            opened.basic_cancel(tag)
        opened.queue_delete(name)


def test_exclusive_consumer_is_alone(amqp_port: int, name: str) -> None:
    with connection(amqp_port) as opened:
        one, other = opened.channel(), opened.channel()
        one.queue_declare(name)
        one.basic_consume(name, lambda *_: None, exclusive=True)
        with pytest.raises(ChannelClosedByBroker) as error:
            other.basic_consume(name, lambda *_: None)
        assert error.value.reply_code == 403
        one.queue_delete(name)


def test_consumer_is_told_when_its_queue_is_deleted(amqp_port: int, name: str) -> None:
    with channel(amqp_port) as opened, channel(amqp_port) as other:
        opened.queue_declare(name)
        cancelled = []
        opened.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = opened.basic_consume(name, lambda *_: None)
        other.queue_delete(name)
        while not cancelled:
            opened.connection.process_data_events(1)
        assert cancelled == [tag]


def test_delete_if_unused_and_if_empty(amqp_port: int, name: str) -> None:
    with connection(amqp_port) as opened:
        one = opened.channel()
        one.confirm_delivery()
        one.queue_declare(name)
        one.basic_publish("", name, b"x")
        with pytest.raises(ChannelClosedByBroker) as error:
            opened.channel().queue_delete(name, if_empty=True)
        assert error.value.reply_code == 406
        one.queue_purge(name)
        one.basic_consume(name, lambda *_: None)
        with pytest.raises(ChannelClosedByBroker) as error:
            opened.channel().queue_delete(name, if_unused=True)
        assert error.value.reply_code == 406
        one.queue_delete(name)


def test_request_and_reply_by_an_exclusive_queue(amqp_port: int, name: str) -> None:
    def serve() -> None:
        with channel(amqp_port) as server:
            (request,) = consume(server, name, 1)
            correlation = BasicProperties(correlation_id=request.properties.correlation_id)
            server.basic_publish("", request.properties.reply_to, request.body[::-1], correlation)
            server.basic_ack(request.tag)

    with channel(amqp_port, confirms=True) as client:
        client.queue_declare(name)
        thread = threading.Thread(target=serve)
        thread.start()
        reply = client.queue_declare("", exclusive=True).method.queue
        client.basic_publish("", name, b"abc", BasicProperties(reply_to=reply, correlation_id="7"))
        (answer,) = consume(client, reply, 1, auto_ack=True)
        assert (answer.body, answer.properties.correlation_id) == (b"cba", "7")
        thread.join()
        client.queue_delete(name)


def test_message_expires_in_its_queue(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name)
        opened.basic_publish("", name, b"short", BasicProperties(expiration="50"))
        opened.basic_publish("", name, b"long", BasicProperties(expiration="60000"))
        opened.connection.sleep(0.3)
        assert bodies(opened, name) == [b"long"]
        opened.queue_delete(name)


def test_many_channels_on_one_connection(amqp_port: int) -> None:
    with connection(amqp_port) as opened:
        channels = [opened.channel() for _ in range(200)]
        queues = [c.queue_declare("", exclusive=True).method.queue for c in channels]
        assert len(set(queues)) == 200
        for one in channels[::2]:
            one.close()
        assert opened.channel().queue_declare(queues[0], passive=True).method.queue == queues[0]


def test_nack_of_an_internal_exchange(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(name, "fanout", internal=True)
        with pytest.raises((ChannelClosedByBroker, NackError)) as error:
            opened.basic_publish(name, "", b"x")
        assert isinstance(error.value, ChannelClosedByBroker)
        assert error.value.reply_code == 403
    with channel(amqp_port) as opened:
        opened.exchange_delete(name)

"""Class queue (50)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Queue

from tests.support.amqp import Client, Server, assert_channel_closed, names
from trivium.vhost.settings import VirtualHostSettings


def test_queue_declare_ok_has_the_counts(client: Client) -> None:
    client.declare("q")
    client.publish("q")
    client.publish("q")
    client.server.open().consume("q", no_ack=False)
    answer = client.ask(Queue.Declare(queue="q"))
    assert (answer.queue, answer.message_count, answer.consumer_count) == ("q", 0, 1)
    client.publish("q")
    client.declare("other")
    client.publish("other")
    assert client.counts("other") == (1, 0)


def test_queue_declare_nowait_is_not_answered(client: Client) -> None:
    assert client.call(Queue.Declare(queue="q", nowait=True)) == []
    assert client.call(Queue.Bind(queue="q", exchange="amq.fanout", nowait=True)) == []
    assert client.call(Queue.Purge(queue="q", nowait=True)) == []
    assert client.call(Queue.Delete(queue="q", nowait=True)) == []


def test_server_named_queue(client: Client) -> None:
    first, second = client.declare(""), client.declare("")
    assert re.fullmatch(r"amq\.gen-[\w-]{22}", first)
    assert first != second


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_the_virtual_host_has_a_type_for_queues_that_name_none(server: Server, kind: str) -> None:
    server.broker.virtual_hosts.declare("/", VirtualHostSettings(default_queue_type=kind))
    client = server.open()
    for _ in range(2):
        assert client.ask(Queue.Declare(queue="q", durable=True)).name == "Queue.DeclareOk"
        named = Queue.Declare(queue="q", durable=True, arguments={"x-queue-type": kind})
        assert client.ask(named).name == "Queue.DeclareOk"
    assert ("q" in server.vhost.streams) is (kind == "stream")
    assert client.ask(Queue.Declare(queue="gone", exclusive=True)).name == "Queue.DeclareOk"
    assert "x-queue-type" not in server.vhost.queues["gone"].arguments


def test_empty_name_means_the_last_declared_queue(client: Client) -> None:
    client.exchange("e")
    client.declare("first")
    client.declare("last")
    client.ask(Queue.Bind(queue="", exchange="e", routing_key=""))
    client.publish("last", b"by name", exchange="e")
    assert client.get("") == b"by name"
    assert names(client.call(Basic.Consume(queue="", consumer_tag="c"))) == ["Basic.ConsumeOk"]
    assert client.counts("last") == (0, 1)
    assert client.ask(Queue.Purge(queue="")).name == "Queue.PurgeOk"
    assert client.ask(Queue.Unbind(queue="", exchange="e")).name == "Queue.UnbindOk"
    client.call(Queue.Delete(queue=""))
    assert set(client.server.vhost.queues) == {"first"}


@pytest.mark.parametrize(
    "method",
    [
        Queue.Bind(queue="", exchange="amq.fanout"),
        Queue.Purge(queue=""),
        Queue.Delete(queue=""),
        Basic.Get(queue=""),
        Basic.Consume(queue=""),
    ],
)
def test_empty_name_without_a_declared_queue_is_404(client: Client, method: Queue.Purge) -> None:
    assert_channel_closed(client.ask(method), 404, "NOT_FOUND - no previously declared queue")


def test_last_declared_queue_is_one_of_the_channel(client: Client) -> None:
    client.declare("q")
    client.open_channel(2)
    assert client.ask(Basic.Get(queue=""), channel=2).reply_code == 404


def test_a_passive_declaration_needs_a_name(client: Client) -> None:
    client.declare("q")
    assert_channel_closed(
        client.ask(Queue.Declare(queue="", passive=True)),
        404,
        "NOT_FOUND - no queue '' in vhost '/'",
    )


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_only_classic_queues_are_named_by_the_server(client: Client, kind: str) -> None:
    arguments: dict[str, Any] = {"x-queue-type": kind}
    assert_channel_closed(
        client.ask(Queue.Declare(queue="", durable=True, arguments=arguments)),
        406,
        f"PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_{kind}_queue",
    )


def test_queue_declare_passive_of_missing_queue_is_404(client: Client) -> None:
    closed = client.ask(Queue.Declare(queue="x", passive=True))
    assert_channel_closed(closed, 404, "NOT_FOUND - no queue 'x' in vhost '/'")
    assert (closed.class_id, closed.method_id) == (50, 10)


@pytest.mark.parametrize(
    ("change", "field", "received", "current"),
    [
        ({"durable": True}, "durable", "'true'", "'false'"),
        ({"auto_delete": True}, "auto_delete", "'true'", "'false'"),
    ],
)
def test_queue_redeclare_with_other_properties_is_406(
    client: Client, change: dict[str, Any], field: str, received: str, current: str
) -> None:
    client.declare("q")
    assert_channel_closed(
        client.ask(Queue.Declare(queue="q", **change)),
        406,
        f"PRECONDITION_FAILED - inequivalent arg '{field}' for queue 'q' in vhost '/':"
        f" received {received} but current is {current}",
    )


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({"x-max-length": 1}, {"x-max-length": 2}, "received '2' but current is '1'"),
        ({"x-max-length": 1}, {"x-max-length": True}, "received 'true' but current is '1'"),
        ({"x-max-length": 1}, {"x-max-length": 1.0}, "received '1.0' but current is '1'"),
        ({"x-max-length": 1}, {"x-max-length": "1"}, "received '1' but current is '1'"),
        (
            {"x-max-length": 1},
            {},
            "received none but current is the value '1' of type 'signedint'",
        ),
        (
            {},
            {"x-max-length": 1 << 40},
            "received the value '1099511627776' of type 'long' but current is none",
        ),
        (
            {},
            {"x-dead-letter-exchange": "x"},
            "received the value 'x' of type 'longstr' but current is none",
        ),
        (
            {"x-queue-type": "quorum"},
            {"x-queue-type": "stream"},
            "received 'stream' but current is 'quorum'",
        ),
        (
            {"x-queue-type": "stream"},
            {},
            "received none but current is the value 'stream' of type 'longstr'",
        ),
        (
            {},
            {"x-queue-type": "stream"},
            "received the value 'stream' of type 'longstr' but current is none",
        ),
    ],
)
def test_queue_redeclare_with_other_arguments_is_406(
    client: Client, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    client.declare("q", durable=True, arguments=first)
    client.declare("q", durable=True, arguments=first)
    name = next(iter(first or second))
    assert_channel_closed(
        client.ask(Queue.Declare(queue="q", durable=True, arguments=second)),
        406,
        f"PRECONDITION_FAILED - inequivalent arg '{name}' for queue 'q' in vhost '/': {text}",
    )


def test_a_stream_has_the_partitions_that_it_is_declared_with(server: Server) -> None:
    client = server.open()
    several: dict[str, Any] = {"x-queue-type": "stream", "x-partitions": 3, "x-max-age": "1h"}
    for _ in range(2):
        client.declare("s", durable=True, arguments=several)
    client.declare("one", durable=True, arguments={"x-queue-type": "stream", "x-partitions": 1})
    client.declare("one", durable=True, arguments={"x-queue-type": "stream"})
    streams = server.vhost.streams
    assert [len(streams[name].partitions) for name in ("s", "one")] == [3, 1]
    assert "x-partitions" not in streams["s"].arguments
    others: list[tuple[dict[str, Any], int]] = [
        ({**several, "x-partitions": 4}, 4),
        ({"x-queue-type": "stream"}, 1),
    ]
    for other, received in others:
        channel = server.open()
        closed = channel.ask(Queue.Declare(queue="s", durable=True, arguments=other))
        assert_channel_closed(
            closed,
            406,
            "PRECONDITION_FAILED - inequivalent arg 'x-partitions' for queue 's' in vhost '/':"
            f" received '{received}' but current is '3'",
        )


@pytest.mark.parametrize(
    ("partitions", "text"),
    [
        (0, "0 is not in 1..1024"),
        (1025, "1025 is not in 1..1024"),
        ("3", "expected integer, got longstr"),
        (True, "expected integer, got bool"),
    ],
)
def test_a_number_of_partitions_that_cannot_be_is_406(
    server: Server, partitions: Any, text: str
) -> None:
    arguments = {"x-queue-type": "stream", "x-partitions": partitions}
    closed = server.open().ask(Queue.Declare(queue="s", durable=True, arguments=arguments))
    assert isinstance(closed, Channel.Close)
    assert closed.reply_code == 406
    assert closed.reply_text.startswith("PRECONDITION_FAILED - invalid arg 'x-partitions'")
    assert text in closed.reply_text
    assert not server.vhost.streams


@pytest.mark.parametrize("flags", [{"durable": False}, {"auto_delete": True}])
def test_stream_redeclare_with_other_properties_is_406(
    client: Client, flags: dict[str, bool]
) -> None:
    stream: dict[str, Any] = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    client.declare("s", **stream)
    closed = client.ask(Queue.Declare(queue="s", **(stream | flags)))
    (name, value) = next(iter(flags.items()))
    assert_channel_closed(
        closed,
        406,
        f"PRECONDITION_FAILED - inequivalent arg '{name}' for queue 's' in vhost '/':"
        f" received '{str(value).lower()}' but current is '{str(not value).lower()}'",
    )


LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'."
    " It could be originally declared on another connection or the exclusive"
    " property value does not match that of the original declaration."
)


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_queue_redeclare_with_other_exclusiveness_is_405(
    client: Client, is_exclusive: bool
) -> None:
    client.declare("q", exclusive=is_exclusive)
    assert_channel_closed(
        client.ask(Queue.Declare(queue="q", exclusive=not is_exclusive)), 405, LOCKED
    )


@pytest.mark.parametrize("is_durable", [False, True])
def test_durability_says_nothing_of_an_exclusive_queue(client: Client, is_durable: bool) -> None:
    client.declare("q", exclusive=True, durable=is_durable)
    client.declare("q", exclusive=True, durable=not is_durable)


@pytest.mark.parametrize("flags", [{}, {"durable": True, "arguments": {"x-queue-type": "quorum"}}])
def test_unknown_arguments_are_ignored_and_told_once(
    client: Client, caplog: pytest.LogCaptureFixture, flags: dict[str, Any]
) -> None:
    known = flags.get("arguments", {})
    for value in ("a", 2, None, Decimal("1.5"), datetime.fromtimestamp(1, UTC)):
        flags["arguments"] = known | {"team": value, "x-ha-policy": value}
        client.declare("q", **flags)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "argument 'team' of queue 'q' in vhost '/' is unknown and ignored",
        "argument 'x-ha-policy' of queue 'q' in vhost '/' is unknown and ignored",
    ]


def test_unknown_arguments_of_a_stream_are_ignored(client: Client) -> None:
    for value in ("a", "b"):
        arguments = {"x-queue-type": "stream", "team": value, "x-unknown": value}
        client.declare("s", durable=True, arguments=arguments)
    assert client.counts("s") == (0, 0)


def test_queue_declare_of_reserved_name_is_403(client: Client) -> None:
    assert_channel_closed(
        client.ask(Queue.Declare(queue="amq.mine")),
        403,
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "classic"},
        {"x-queue-mode": "lazy"},
        {"x-queue-version": 2},
        {"x-queue-master-locator": "min-masters"},
        {"x-queue-leader-locator": "balanced"},
        {"x-ha-policy": "all"},
        {"x-stream-filter-size-bytes": 32},
        {"x-max-priority": 0},
        {"anything-else": [1, {"a": None}]},
        {"x-message-ttl": 60_000, "x-expires": 60_000, "x-max-length": 10},
        {"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": "k"},
        {"x-max-priority": 10},
        {"x-single-active-consumer": True},
    ],
)
def test_known_arguments_are_accepted(client: Client, arguments: dict[str, object]) -> None:
    client.declare("q", arguments=arguments)
    client.declare("q", arguments=arguments)


def test_classic_is_the_default_queue_type(client: Client) -> None:
    for name, first, second in (("q", "classic", None), ("r", None, "classic")):
        for kind in (first, second):
            client.declare(name, arguments={} if kind is None else {"x-queue-type": kind})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", "soon"),
        ("x-max-priority", 256),
        ("x-overflow", "spill"),
        ("x-message-ttl", datetime.fromtimestamp(1, UTC)),
        ("x-message-ttl", 10.0),
        ("x-queue-mode", "eager"),
        ("x-queue-version", 3),
        ("x-max-age", "1h"),
        ("x-quorum-initial-group-size", 3),
        ("x-dead-letter-strategy", "at-least-once"),
    ],
)
def test_arguments_that_are_not_honoured_are_406(client: Client, name: str, value: Any) -> None:
    closed = client.ask(Queue.Declare(queue="q", arguments={name: value}))
    assert closed.reply_code == 406
    assert closed.reply_text.startswith(
        f"PRECONDITION_FAILED - invalid arg '{name}' for queue 'q' in vhost '/'"
    )


def test_quorum_queue(client: Client) -> None:
    quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
    client.declare("q", durable=True, arguments=quorum)
    client.publish("q", b"1", delivery_mode=2)
    assert client.get("q") == b"1"


WHAT = "queue 'q' in vhost '/'"
MAGIC = "\"unsupported queue type 'magic'\""


@pytest.mark.parametrize(
    ("kind", "flags", "text"),
    [
        ("quorum", {}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
        ("stream", {}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
        *(
            (kind, {"durable": True, flag: True}, f"invalid property '{name}' for {WHAT}")
            for kind in ("quorum", "stream")
            for flag, name in (("exclusive", "exclusive-owner"), ("auto_delete", "auto-delete"))
        ),
        *(
            ("magic", flags, f"invalid arg 'x-queue-type' for {WHAT}: {MAGIC}")
            for flags in ({}, {"durable": True, "exclusive": True})
        ),
    ],
)
def test_queue_type_that_cannot_be_is_406(
    client: Client, kind: str, flags: dict[str, bool], text: str
) -> None:
    declare = Queue.Declare(queue="q", arguments={"x-queue-type": kind}, **flags)
    assert_channel_closed(client.ask(declare), 406, f"PRECONDITION_FAILED - {text}")


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("quorum", "x-max-priority", 5),
        ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-max-age", "1h"),
        ("stream", "x-max-length", 5),
        ("stream", "x-message-ttl", 5),
        ("stream", "x-max-priority", 5),
        ("stream", "x-overflow", "drop-head"),
        ("stream", "x-queue-mode", "lazy"),
    ],
)
def test_arguments_of_another_queue_type_are_406(
    client: Client, kind: str, argument: str, value: Any
) -> None:
    arguments = {"x-queue-type": kind, argument: value}
    assert_channel_closed(
        client.ask(Queue.Declare(queue="q", durable=True, arguments=arguments)),
        406,
        f"PRECONDITION_FAILED - invalid arg '{argument}' for {WHAT}"
        f" of queue type rabbit_{kind}_queue",
    )


@pytest.mark.parametrize("value", [0, -1, "3"])
def test_the_group_size_of_a_quorum_queue_is_a_positive_number(client: Client, value: Any) -> None:
    arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": value}
    closed = client.ask(Queue.Declare(queue="q", durable=True, arguments=arguments))
    assert closed.reply_code == 406


def test_stream_takes_messages_by_binding_and_by_name(client: Client) -> None:
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.bind("s", "amq.topic", "a.#")
    client.publish("a.b", b"1", exchange="amq.topic", mandatory=True)
    client.publish("s", b"2", mandatory=True)
    assert client.take() == []
    client.server.settle()
    assert client.counts("s") == (2, 0)


def test_stream_is_deleted_like_a_queue(client: Client) -> None:
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    assert client.ask(Queue.Delete(queue="s")).name == "Queue.DeleteOk"
    assert client.server.vhost.streams == {}


# Exclusive, auto-delete


@pytest.mark.parametrize(
    "method",
    [
        Queue.Declare(queue="q"),
        Queue.Declare(queue="q", exclusive=True),
        Queue.Declare(queue="q", passive=True),
        Queue.Bind(queue="q", exchange="amq.fanout"),
        Queue.Unbind(queue="q", exchange="amq.fanout"),
        Queue.Purge(queue="q"),
        Queue.Delete(queue="q"),
        Basic.Get(queue="q"),
        Basic.Consume(queue="q"),
    ],
)
def test_exclusive_queue_is_405_for_other_connections(server: Server, method: Queue.Bind) -> None:
    owner, other = server.open(), server.open()
    owner.declare("q", exclusive=True)
    assert_channel_closed(
        other.ask(method),
        405,
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'."
        " It could be originally declared on another connection or the exclusive property value"
        " does not match that of the original declaration.",
    )


def test_exclusive_queue_is_open_to_other_channels_of_its_connection(client: Client) -> None:
    client.declare("q", exclusive=True)
    client.open_channel(2)
    assert client.ask(Queue.Declare(queue="q", exclusive=True), channel=2).name == "Queue.DeclareOk"


def test_exclusive_queue_goes_with_its_connection(server: Server) -> None:
    owner = server.open()
    owner.declare("q", exclusive=True, durable=True)
    owner.ask(Channel.Close(200, "", 0, 0))
    assert "q" in server.vhost.queues
    owner.lose()
    assert "q" not in server.vhost.queues


def test_auto_delete_queue_goes_with_its_last_consumer(client: Client) -> None:
    client.declare("q", auto_delete=True)
    client.consume("q", "one")
    client.consume("q", "two")
    client.call(Basic.Cancel("one"))
    assert "q" in client.server.vhost.queues
    client.call(Basic.Cancel("two"))
    assert "q" not in client.server.vhost.queues


def test_auto_delete_queue_stays_until_it_had_a_consumer(client: Client) -> None:
    client.declare("q", auto_delete=True)
    client.lose()
    assert "q" in client.server.vhost.queues


def test_auto_delete_queue_goes_with_the_connection_of_its_consumer(server: Server) -> None:
    client = server.open()
    client.declare("q", auto_delete=True)
    client.publish("q")
    client.consume("q")
    client.lose()
    assert "q" not in server.vhost.queues


# Purge and delete


def test_purge_counts_and_leaves_unacknowledged(client: Client) -> None:
    client.declare("q")
    for _ in range(3):
        client.publish("q")
    client.get("q", no_ack=False)
    assert client.ask(Queue.Purge(queue="q")).message_count == 2
    client.call(Basic.Reject(1, True))
    assert client.counts("q") == (1, 0)


def test_delete_counts(client: Client) -> None:
    client.declare("q")
    client.publish("q")
    assert client.ask(Queue.Delete(queue="q")).message_count == 1
    assert client.ask(Queue.Delete(queue="q")).message_count == 0


def test_purge_of_missing_queue_is_404(client: Client) -> None:
    assert_channel_closed(
        client.ask(Queue.Purge(queue="x")), 404, "NOT_FOUND - no queue 'x' in vhost '/'"
    )


def test_delete_if_unused_with_consumers_is_406(client: Client) -> None:
    client.declare("q")
    client.consume("q")
    assert_channel_closed(
        client.ask(Queue.Delete(queue="q", if_unused=True)),
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' in use",
    )


def test_delete_if_empty_with_messages_is_406(client: Client) -> None:
    client.declare("q")
    client.publish("q")
    assert_channel_closed(
        client.ask(Queue.Delete(queue="q", if_empty=True)),
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty",
    )


# Consumers of the channel that deletes


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "stream"}])
def test_delete_ok_comes_before_the_cancels_that_it_causes_on_its_channel(
    client: Client, arguments: dict[str, str]
) -> None:
    client.declare("q", durable=True, arguments=arguments)
    client.call(Basic.Qos(prefetch_count=10))
    client.consume("q", "a")
    client.consume("q", "b")
    received = client.call(Queue.Delete(queue="q"))
    assert names(received) == ["Queue.DeleteOk", "Basic.Cancel", "Basic.Cancel"]
    assert sorted(one.consumer_tag for one in received[1:]) == ["a", "b"]


def test_a_delete_without_an_answer_cancels_before_the_next_answer(client: Client) -> None:
    client.declare("q")
    client.consume("q", "a")
    received = client.call(
        Queue.Delete(queue="q", nowait=True), Queue.Declare(queue="q", passive=True)
    )
    assert names(received) == ["Basic.Cancel", "Channel.Close"]


def test_the_channel_of_a_deleted_queue_goes_on_cancelling_at_once(client: Client) -> None:
    for queue in ("q", "r"):
        client.declare(queue)
        client.consume(queue, queue)
    client.call(Queue.Delete(queue="q"))
    client.server.open().call(Queue.Delete(queue="r"))
    (cancel,) = client.take()
    assert (cancel.name, cancel.consumer_tag) == ("Basic.Cancel", "r")


# Expiry of the queue (x-expires)


EXPIRING: dict[str, Any] = {"x-expires": 1000}


@pytest.mark.parametrize(
    ("methods", "is_use"),
    [
        ([Queue.Declare(queue="q", passive=True)], True),
        ([Queue.Declare(queue="q", arguments=EXPIRING)], True),
        ([Basic.Get(queue="q")], True),
        ([Basic.Consume(queue="q", consumer_tag="c"), Basic.Cancel("c")], True),
        ([Queue.Purge(queue="q")], False),
        ([Queue.Bind(queue="q", exchange="amq.fanout")], False),
    ],
)
def test_what_renews_the_expiry_of_a_queue(
    server: Server, methods: list[Frame], is_use: bool
) -> None:
    client = server.open()
    client.declare("q", arguments=EXPIRING)
    server.advance(0.999)
    client.send(*methods)
    server.advance(0.999)
    assert ("q" in server.vhost.queues) is is_use
    server.advance(0.001)
    assert "q" not in server.vhost.queues


def test_a_passive_declare_that_is_refused_renews_nothing(server: Server) -> None:
    server.open().declare("q", exclusive=True, arguments=EXPIRING)
    server.advance(0.999)
    other = server.open()
    assert names(other.call(Queue.Declare(queue="q", passive=True))) == ["Channel.Close"]
    server.advance(0.001)
    assert "q" not in server.vhost.queues


def test_a_purge_is_told(client: Client) -> None:
    told: list[tuple[str, dict[str, object]]] = []
    client.ask(Queue.Declare(queue="q"))
    client.publish("q")
    client.server.broker.events.listen(lambda event, about: told.append((event, about)))
    client.ask(Queue.Purge(queue="q"))
    assert ("queue.purged", {"vhost": "/", "queue": "q", "messages": 1}) in told

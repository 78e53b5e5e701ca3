"""Every operation of every protocol, by users with just enough permissions and with one less.

One table says what each operation needs. An identity that has all of it must succeed, one that
lacks any of it must be refused, in the terms of the protocol; and nothing must have happened then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest
from pamqp.commands import Basic, Connection, Exchange, Queue, Tx

from tests.support import amqp, mqtt, native
from tests.support.permitted import (
    EVERY,
    SECRET,
    TOPIC,
    Need,
    ScopedServer,
    Server,
    TokenServer,
    make_server,
)
from tests.support.roads import Server as BaseServer
from tests.support.server import Client
from tests.support.simulated import Host
from trivium.config import EVERYTHING, Config, JwtConfig, StorageConfig, UserConfig
from trivium.security.identity import Identity
from trivium.security.passwords import hash_password
from trivium.security.permissions import CONFIGURE, READ, WRITE, Grants, grants_of
from trivium_native.wire import frames


@dataclass(frozen=True)
class Row:
    """One operation, and all that it needs."""

    name: str
    needs: list[Need]
    act: Callable[[Server], bool]
    """Do it as ann; whether it was admitted."""


def by_amqp(method: Any) -> Callable[[Server], bool]:
    def act(server: Server) -> bool:
        answer = server.amqp("ann").call(method)[0]
        if answer.name == "Channel.Close":
            assert answer.reply_code == 403
            assert answer.reply_text.startswith("ACCESS_REFUSED - ")
            assert answer.reply_text.endswith("refused for user 'ann'")
            return False
        return True

    return act


def amqp_publish(exchange: str, key: str, headers: Any = None) -> Callable[[Server], bool]:
    def act(server: Server) -> bool:
        client = server.amqp("ann")
        client.publish(key, exchange=exchange, headers=headers)
        found = client.take()
        if not found:
            return True
        amqp.assert_channel_closed(found[0], 403, found[0].reply_text)
        return False

    return act


def by_native(request: int, /, **fields: Any) -> Callable[[Server], bool]:
    def act(server: Server) -> bool:
        ((reply, _, body), *_) = server.native("ann").send(request, 7, fields)
        if reply == frames.ERROR:
            text = msgpack.unpackb(body)[1]
            assert text.endswith("refused for user 'ann'"), text
            return False
        return True

    return act


def native_publish(exchange: bytes, key: bytes) -> Callable[[Server], bool]:
    def act(server: Server) -> bool:
        body = native.publish(native.entry(key=key, exchange=exchange))
        ((reply, _, answer),) = server.native("ann").send(frames.PUBLISH, 7, body)
        if reply == frames.ERROR:
            assert msgpack.unpackb(answer)[1].endswith("refused for user 'ann'")
        return reply == frames.CONFIRM

    return act


def mqtt_publish(qos: int, retain: int = 0) -> Callable[[Server], bool]:
    def act(server: Server) -> bool:
        watcher = server.mqtt("root", "watcher")
        watcher.subscribe("a/b")
        client = server.mqtt("ann")
        client.feed(mqtt.publish("a/b", b"m", qos, 9, 5, retain=bool(retain)))
        answers = client.take()
        got = bool(watcher.take())
        if qos:
            ((_, body),) = answers
            assert (body[2:3] == b"\x87") is not got
        assert (len(server.vhost.retained) > 0) is (got and bool(retain))
        return got

    return act


def mqtt_subscribe(topic_filter: str) -> Callable[[Server], bool]:
    def act(server: Server) -> bool:
        client = server.mqtt("ann")
        client.feed(mqtt.subscribe(topic_filter, 1, 1, 5))
        code = client.take_first()[1][-1]
        assert code in (1, 0x87)
        server.mqtt("root", "sender").feed(mqtt.publish("a/b", b"m", 0, 0, 5))
        assert bool(client.take()) is (code == 1)
        return code == 1

    return act


def mqtt_will(server: Server) -> bool:
    watcher = server.mqtt("root", "watcher")
    watcher.subscribe("a/b")
    server.mqtt("ann", will=("a/b", b"gone", 0, False)).lose()
    return bool(watcher.take())


def mqtt_retained(server: Server) -> bool:
    server.mqtt("root", "sender").feed(mqtt.publish("a/b", b"m", 0, 0, 5, retain=True))
    client = server.mqtt("ann")
    client.feed(mqtt.subscribe("a/+", 0, 1, 5))
    return len(client.take()) > 1


def native_member(request: int) -> Callable[[Server], bool]:
    """What a member of a group asks for, by another connection than it came by."""

    def act(server: Server) -> bool:
        joined = server.native("root").ask(frames.JOIN, group="g", streams=["s"])
        fields = {"group": "g", "member": joined["member"], "generation": joined["generation"]}
        return by_native(request, **fields)(server)

    return act


def native_group_deletion(server: Server) -> bool:
    server.native("root").ask(frames.COMMIT, stream="s", group="g", offsets=[[0, 0]])
    return by_native(frames.DELETE, kind="group", name="g")(server)


def native_description(server: Server) -> bool:
    server.native("root").ask(frames.COMMIT, stream="s", group="g", offsets=[[0, 0]])
    return by_native(frames.DESCRIBE_GROUP, group="g", streams=["s"])(server)


def native_transaction(request: int, *entries: bytes, **fields: Any) -> Callable[[Server], bool]:
    """TX or STAGE of the producer ``p``, which is there."""

    def act(server: Server) -> bool:
        server.native("root").ask(frames.PRODUCER, producer="p", transactional=True)
        body = native.tx(*entries, producer="p", sequence=0, **fields)
        ((reply, _, answer),) = server.native("ann").send(request, 7, body)
        if reply == frames.ERROR:
            assert msgpack.unpackb(answer)[1].endswith("refused for user 'ann'")
        return reply == frames.OK

    return act


TOPIC_WRITE: list[Need] = [(WRITE, "amq.topic"), (TOPIC + WRITE, "a.b")]
TOPIC_READ: list[Need] = [(READ, "amq.topic"), (TOPIC + READ, "a.b")]
BIND: list[Need] = [(WRITE, "q"), (READ, "x"), (TOPIC + READ, "k")]
WRITE_ALL: list[Need] = [(WRITE, "x"), (TOPIC + WRITE, EVERY)]
MADE_UP: list[Need] = [(CONFIGURE, "amq.gen-"), (READ, "amq.gen-"), *WRITE_ALL]
DLX: dict[str, Any] = {"x-dead-letter-exchange": "x"}
DLX_KEY: dict[str, Any] = {**DLX, "x-dead-letter-routing-key": "k"}
AE: dict[str, Any] = {"alternate-exchange": "x"}

ROWS = [
    Row("amqp exchange.declare", [(CONFIGURE, "n")], by_amqp(Exchange.Declare(exchange="n"))),
    Row(
        "amqp exchange.declare alternate",
        [(CONFIGURE, "n"), (READ, "n"), *WRITE_ALL],
        by_amqp(Exchange.Declare(exchange="n", arguments=AE)),
    ),
    Row("amqp exchange.delete", [(CONFIGURE, "x")], by_amqp(Exchange.Delete(exchange="x"))),
    Row(
        "amqp exchange.bind",
        [(WRITE, "y"), (READ, "x"), (TOPIC + READ, "k")],
        by_amqp(Exchange.Bind(destination="y", source="x", routing_key="k")),
    ),
    Row(
        "amqp exchange.bind to topics",
        [(READ, "amq.fanout"), *WRITE_ALL],
        by_amqp(Exchange.Bind(destination="x", source="amq.fanout")),
    ),
    Row(
        "amqp exchange.unbind",
        [(WRITE, "y"), (READ, "x"), (TOPIC + READ, "k")],
        by_amqp(Exchange.Unbind(destination="y", source="x", routing_key="k")),
    ),
    Row("amqp queue.declare", [(CONFIGURE, "n")], by_amqp(Queue.Declare(queue="n"))),
    Row(
        "amqp queue.declare dead letters",
        [(CONFIGURE, "n"), (READ, "n"), *WRITE_ALL],
        by_amqp(Queue.Declare(queue="n", arguments=DLX)),
    ),
    Row(
        "amqp queue.declare dead letters with a key",
        [(CONFIGURE, "n"), (READ, "n"), (WRITE, "x"), (TOPIC + WRITE, "k")],
        by_amqp(Queue.Declare(queue="n", arguments=DLX_KEY)),
    ),
    Row(
        "amqp queue.declare stream",
        [(CONFIGURE, "n")],
        by_amqp(Queue.Declare(queue="n", durable=True, arguments={"x-queue-type": "stream"})),
    ),
    Row("amqp queue.bind", BIND, by_amqp(Queue.Bind(queue="q", exchange="x", routing_key="k"))),
    Row("amqp queue.unbind", BIND, by_amqp(Queue.Unbind(queue="q", exchange="x", routing_key="k"))),
    Row("amqp queue.purge", [(READ, "q")], by_amqp(Queue.Purge(queue="q"))),
    Row("amqp queue.delete", [(CONFIGURE, "q")], by_amqp(Queue.Delete(queue="q"))),
    Row("amqp queue.delete stream", [(CONFIGURE, "s")], by_amqp(Queue.Delete(queue="s"))),
    Row("amqp basic.get", [(READ, "q")], by_amqp(Basic.Get(queue="q"))),
    Row("amqp basic.consume", [(READ, "q")], by_amqp(Basic.Consume(queue="q"))),
    Row("amqp basic.publish", TOPIC_WRITE, amqp_publish("amq.topic", "a.b")),
    Row("amqp basic.publish default", [(WRITE, "amq.default")], amqp_publish("", "q")),
    Row(
        "amqp basic.publish copies",
        [*TOPIC_WRITE, (TOPIC + WRITE, "z")],
        amqp_publish("amq.topic", "a.b", {"CC": ["z"]}),
    ),
    Row("mqtt PUBLISH 0", TOPIC_WRITE, mqtt_publish(0)),
    Row("mqtt PUBLISH 1", TOPIC_WRITE, mqtt_publish(1)),
    Row("mqtt PUBLISH 2", TOPIC_WRITE, mqtt_publish(2)),
    Row("mqtt PUBLISH retain", TOPIC_WRITE, mqtt_publish(1, 1)),
    Row("mqtt will", TOPIC_WRITE, mqtt_will),
    Row("mqtt SUBSCRIBE", TOPIC_READ, mqtt_subscribe("a/b")),
    Row("mqtt SUBSCRIBE share", TOPIC_READ, mqtt_subscribe("$share/g/a/b")),
    Row("mqtt retained", [*TOPIC_READ, (TOPIC + READ, "a.*")], mqtt_retained),
    Row("native PUBLISH", TOPIC_WRITE, native_publish(b"amq.topic", b"a.b")),
    Row("native PUBLISH default", [(WRITE, "amq.default")], native_publish(b"", b"q")),
    Row(
        "native SUBSCRIBE pubsub",
        TOPIC_READ,
        by_native(
            frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"a.b"
        ),
    ),
    Row(
        "native SUBSCRIBE queue",
        [(READ, "q")],
        by_native(frames.SUBSCRIBE, subscription=1, mode="queue", queue="q", credit=1),
    ),
    Row(
        "native SUBSCRIBE log",
        [(READ, "s")],
        by_native(
            frames.SUBSCRIBE,
            subscription=1,
            mode="log",
            stream="s",
            partition=0,
            offset="first",
            credit=0,
        ),
    ),
    Row(
        "native FETCH",
        [(READ, "s")],
        by_native(frames.FETCH, stream="s", partition=0, offset="first", min_bytes=0),
    ),
    Row(
        "native OFFSETS",
        [(READ, "s")],
        by_native(frames.OFFSETS, stream="s", partition=0, timestamp=0),
    ),
    Row("native METADATA", [(READ, "s")], by_native(frames.METADATA, streams=["s"])),
    Row(
        "native COMMIT",
        [(READ, "s"), (READ, "g")],
        by_native(frames.COMMIT, stream="s", group="g", offsets=[[0, 0]]),
    ),
    Row(
        "native COMMITTED",
        [(READ, "s"), (READ, "g")],
        by_native(frames.COMMITTED, stream="s", group="g"),
    ),
    Row(
        "native JOIN", [(READ, "s"), (READ, "g")], by_native(frames.JOIN, group="g", streams=["s"])
    ),
    Row("native PRODUCER", [(WRITE, "p")], by_native(frames.PRODUCER, producer="p")),
    Row(
        "native DECLARE exchange",
        [(CONFIGURE, "n")],
        by_native(frames.DECLARE, kind="exchange", name="n"),
    ),
    Row(
        "native DECLARE queue dead letters",
        [(CONFIGURE, "n"), (READ, "n"), *WRITE_ALL],
        by_native(frames.DECLARE, kind="queue", name="n", arguments=DLX),
    ),
    Row(
        "native DECLARE queue dead letters with a key",
        [(CONFIGURE, "n"), (READ, "n"), (WRITE, "x"), (TOPIC + WRITE, "k")],
        by_native(frames.DECLARE, kind="queue", name="n", arguments=DLX_KEY),
    ),
    Row(
        "native DECLARE stream",
        [(CONFIGURE, "n")],
        by_native(frames.DECLARE, kind="stream", name="n"),
    ),
    Row(
        "native DELETE queue", [(CONFIGURE, "q")], by_native(frames.DELETE, kind="queue", name="q")
    ),
    Row(
        "native DELETE stream",
        [(CONFIGURE, "s")],
        by_native(frames.DELETE, kind="stream", name="s"),
    ),
    Row(
        "native BIND",
        BIND,
        by_native(frames.BIND, exchange="x", kind="queue", name="q", pattern=b"k"),
    ),
    Row(
        "native BIND to topics",
        [(READ, "amq.fanout"), *WRITE_ALL],
        by_native(frames.BIND, exchange="amq.fanout", kind="exchange", name="x"),
    ),
    Row(
        "native UNBIND",
        BIND,
        by_native(frames.UNBIND, exchange="x", kind="queue", name="q", pattern=b"k"),
    ),
    Row("native PURGE", [(READ, "q")], by_native(frames.PURGE, name="q")),
    Row(
        "native SUBSCRIBE pubsub fanout",
        [(READ, "amq.fanout")],
        by_native(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.fanout"),
    ),
    Row("native METADATA of a writer", [(WRITE, "s")], by_native(frames.METADATA, streams=["s"])),
    Row("native HEARTBEAT", [(READ, "g")], native_member(frames.HEARTBEAT)),
    Row("native LEAVE", [(READ, "g")], native_member(frames.LEAVE)),
    Row(
        "native TX",
        [(WRITE, "p"), (READ, "s"), (READ, "g")],
        native_transaction(
            frames.TX, epoch=0, commits=[{"group": "g", "stream": "s", "offsets": [[0, 0]]}]
        ),
    ),
    Row(
        "native STAGE",
        [(WRITE, "p"), (WRITE, "amq.default")],
        native_transaction(frames.STAGE, native.into(b"s", b"1"), part="a", index=0),
    ),
    Row(
        "native DECLARE exchange alternate",
        [(CONFIGURE, "n"), (READ, "n"), *WRITE_ALL],
        by_native(frames.DECLARE, kind="exchange", name="n", arguments=AE),
    ),
    Row(
        "native DELETE exchange",
        [(CONFIGURE, "x")],
        by_native(frames.DELETE, kind="exchange", name="x"),
    ),
    Row(
        "native DELETE part",
        [(CONFIGURE, "a"), (WRITE, "p")],
        by_native(frames.DELETE, kind="part", name="a", producer="p"),
    ),
    Row(
        "native SUBSCRIBE poll",
        [(READ, "q")],
        by_native(frames.SUBSCRIBE, subscription=1, mode="poll", queue="q"),
    ),
    Row(
        "native SUBSCRIBE to a queue of its own",
        [(CONFIGURE, "n"), (WRITE, "n"), (READ, "n"), (READ, "amq.fanout")],
        by_native(frames.SUBSCRIBE, subscription=1, mode="poll", queue="n", exchange="amq.fanout"),
    ),
    Row("native DESCRIBE_GROUP", [(READ, "s"), (READ, "g")], native_description),
    Row("native DELETE group", [(CONFIGURE, "g")], native_group_deletion),
    Row(
        "native DELETE producer",
        [(CONFIGURE, "p")],
        by_native(frames.DELETE, kind="producer", name="p"),
    ),
    Row("amqp queue.declare made up", MADE_UP, by_amqp(Queue.Declare(queue="", arguments=DLX))),
    Row(
        "native DECLARE queue made up",
        MADE_UP,
        by_native(frames.DECLARE, kind="queue", arguments=DLX),
    ),
]
CASES = [
    pytest.param(
        row,
        missing,
        home,
        id=f"{row.name} in {home}{f' without {missing}' if missing else ''}",
    )
    for row in ROWS
    for missing in (None, *row.needs)
    for home in ("/", "farm")
]


@pytest.mark.parametrize(("row", "missing", "home"), CASES)
def test_an_operation_needs_each_of_its_permissions(
    row: Row, missing: Need | None, home: str
) -> None:
    server = make_server(home)
    server.permit("ann", [need for need in row.needs if need != missing])
    assert row.act(server) is (missing is None)


@pytest.mark.parametrize("kind", [ScopedServer, TokenServer])
@pytest.mark.parametrize(("row", "missing", "home"), CASES)
def test_an_operation_needs_each_of_its_scopes(
    row: Row, missing: Need | None, home: str, kind: type[Server], tmp_path: Path
) -> None:
    server = make_server(home, kind, tmp_path)
    server.permit("ann", [need for need in row.needs if need != missing])
    assert row.act(server) is (missing is None)


def topology(server: Server) -> list[list[str]]:
    vhost = server.vhost
    return [sorted(vhost.exchanges), sorted(vhost.queues), sorted(vhost.streams)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_refused_changes_nothing(row: Row) -> None:
    server = make_server()
    server.permit("ann", [])
    before = topology(server)
    assert not row.act(server)
    assert topology(server) == before
    assert server.broker.permissions.denials > 0


def test_what_is_there_is_declared_again_by_who_may_configure_it() -> None:
    """What it passes on was permitted to who made it."""
    server = make_server()
    server.permit("ann", [(CONFIGURE, "n")])
    for kind, arguments in (("exchange", AE), ("queue", DLX)):
        declaration = {"kind": kind, "name": "n", "arguments": arguments}
        server.native("root").ask(frames.DECLARE, **declaration)
        assert by_native(frames.DECLARE, **declaration)(server)
    assert by_amqp(
        Exchange.Declare(exchange="n", exchange_type="topic", durable=True, arguments=AE)
    )(server)
    assert by_amqp(Queue.Declare(queue="n", durable=True, arguments=DLX))(server)


PUBSUB = {"subscription": 1, "mode": "pubsub"}
NO_SUCH: dict[str, Callable[[Server], bool]] = {
    "amqp exchange.delete": by_amqp(Exchange.Delete(exchange="no")),
    "amqp exchange.bind": by_amqp(Exchange.Bind(destination="no", source="x", routing_key="k")),
    "amqp queue.bind": by_amqp(Queue.Bind(queue="q", exchange="no", routing_key="k")),
    "amqp queue.unbind": by_amqp(Queue.Unbind(queue="q", exchange="no", routing_key="k")),
    "amqp queue.purge": by_amqp(Queue.Purge(queue="no")),
    "amqp queue.delete": by_amqp(Queue.Delete(queue="no")),
    "amqp basic.get": by_amqp(Basic.Get(queue="no")),
    "amqp basic.consume": by_amqp(Basic.Consume(queue="no")),
    "amqp basic.publish": amqp_publish("no", "k"),
    "native PUBLISH": native_publish(b"no", b"k"),
    "native SUBSCRIBE pubsub": by_native(frames.SUBSCRIBE, **PUBSUB, exchange="no"),
    "native SUBSCRIBE queue": by_native(
        frames.SUBSCRIBE, subscription=1, mode="queue", queue="no", credit=1
    ),
    "native FETCH": by_native(frames.FETCH, stream="no", partition=0, offset="first", min_bytes=0),
    "native METADATA": by_native(frames.METADATA, streams=["no"]),
    "native COMMIT": by_native(frames.COMMIT, stream="no", group="g", offsets=[[0, 0]]),
    "native JOIN": by_native(frames.JOIN, group="g", streams=["no"]),
    "native BIND source": by_native(
        frames.BIND, exchange="no", kind="queue", name="q", pattern=b"k"
    ),
    "native BIND": by_native(frames.BIND, exchange="x", kind="queue", name="no", pattern=b"k"),
    "native PURGE": by_native(frames.PURGE, name="no"),
    "native DELETE": by_native(frames.DELETE, kind="queue", name="no"),
}


@pytest.mark.parametrize("name", NO_SUCH)
def test_who_may_not_use_a_name_is_not_told_whether_it_is_there(name: str) -> None:
    server = make_server()
    given: list[Need] = [(WRITE, "q"), (READ, "q"), (READ, "x"), (WRITE, "x"), (READ, "g")]
    server.permit("ann", [*given, (TOPIC + READ, "k"), (TOPIC + WRITE, "k")])
    assert not NO_SUCH[name](server)


def test_whoever_lists_streams_gets_those_that_it_may_use() -> None:
    server = make_server()
    root = server.native("root")
    for name in ("r", "w"):
        root.ask(frames.DECLARE, kind="stream", name=name)
        body = native.publish(native.into(name.encode(), b"1"))
        assert root.send(frames.PUBLISH, 5, body)[0][0] == frames.CONFIRM
    server.permit("ann", [(READ, "r"), (WRITE, "w")])
    found = server.native("ann").ask(frames.METADATA)["streams"]
    assert [(stream["name"], stream["partitions"]) for stream in found] == [
        ("r", [[0, 1, 1]]),
        # How much was written is for readers.
        ("w", [[0, 0, 0]]),
    ]


def everybody(server: Server) -> tuple[Client, Client, Client, Client]:
    """Ann reads the same by all roads."""
    server.permit("ann", [*TOPIC_READ, (READ, "q"), (TOPIC + READ, "a.#")])
    by_mqtt = server.mqtt("ann")
    by_mqtt.subscribe("a/#", 1)
    consumer = server.amqp("ann")
    consumer.consume("q", no_ack=True)
    live = server.native("ann")
    live.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"a.b")
    queue = server.native("ann")
    queue.ask(frames.SUBSCRIBE, subscription=1, mode="queue", queue="q", credit=9)
    for client in (by_mqtt, consumer, live, queue):
        client.take_bytes()
    return by_mqtt, consumer, live, queue


def test_a_change_takes_effect_on_live_subscriptions_and_consumers() -> None:
    server = make_server()
    by_mqtt, consumer, live, queue = everybody(server)
    root = server.mqtt("root", "sender")
    root.feed(mqtt.publish("a/b", b"before", 0, 0, 5))
    assert by_mqtt.take_bytes()
    assert live.take_bytes()
    server.permit("ann", [])
    assert isinstance(consumer, amqp.Client)
    (closed,) = consumer.take()
    amqp.assert_channel_closed(
        closed,
        403,
        "ACCESS_REFUSED - read access to queue 'q' in vhost '/' refused for user 'ann'",
    )
    for client in (live, queue):
        assert isinstance(client, native.Client)
        ((kind, _, body),) = client.take()
        assert (kind, msgpack.unpackb(body)["code"]) == (frames.CANCELLED, 201)
    for topic in ("a/b", "a/c"):
        root.feed(mqtt.publish(topic, b"after", 1, 7, 5))
    server.amqp("root").publish("q", b"after")
    for client in (by_mqtt, consumer, live, queue):
        assert client.take_bytes() == b""


def test_a_renewal_with_other_scopes_takes_effect_at_once() -> None:
    server = make_server("/", ScopedServer)
    assert isinstance(server, ScopedServer)
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))

    def key(*scopes: str) -> bytes:
        expires_ms = server.broker.now_ms + 60_000
        return server.broker.authentication.api_keys.add("ann", scopes, expires_ms)[1].encode()

    server.shown = key("read:*/*", "write:*/*")
    properties = b"\x15" + mqtt.text("API-KEY") + b"\x16" + mqtt.text(server.shown)
    by_mqtt = mqtt.Client(server).open("c", 5, properties=properties)
    by_mqtt.subscribe("a/#", 1)
    consumer, live = server.amqp("ann"), server.native("ann")
    consumer.consume("q", no_ack=True)
    live.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"a.b")
    publish = native.publish(native.entry(key=b"a.b", exchange=b"amq.topic"))
    for client in (by_mqtt, consumer, live):
        client.take_bytes()
    by_mqtt.feed(mqtt.publish("a/b", b"before", 1, 7, 5))
    consumer.publish("a.b", exchange="amq.topic")
    assert live.send(frames.PUBLISH, 5, publish)[-1][0] == frames.CONFIRM
    assert by_mqtt.take_bytes().count(b"a/b") == 3
    live.take_bytes()

    less = key("read:*/amq.topic/other", "write:*/amq.topic/other").decode()
    data = b"\x19" + mqtt.block(b"\x15" + mqtt.text("API-KEY") + b"\x16" + mqtt.text(less))
    by_mqtt.feed(mqtt.packet(0xF0, data))
    assert by_mqtt.take_one()[0] == 0xF0
    assert [found[:2] for found in live.send(frames.AUTH, 6, {"password": less.encode()})] == [
        (frames.CANCELLED, 0),
        (frames.OK, 6),
    ]
    consumer.send(Connection.UpdateSecret(less, "less"), channel=0)
    assert [found.name for found in consumer.take()] == [
        "Channel.Close",
        "Connection.UpdateSecretOk",
    ]
    by_mqtt.feed(mqtt.publish("a/b", b"after", 1, 8, 5))
    assert by_mqtt.take_one() == (0x40, b"\x00\x08\x87")
    assert live.send(frames.PUBLISH, 9, publish)[0][0] == frames.ERROR
    server.mqtt("root", "sender").feed(mqtt.publish("a/b", b"after", 0, 0, 5))
    assert by_mqtt.take_bytes() == b""
    by_mqtt.feed(mqtt.publish("other", b"after", 1, 8, 5))
    assert by_mqtt.take_one()[1][2:] != b"\x87"


def test_a_key_in_the_place_of_a_token_gives_no_more_than_its_user_has(tmp_path: Path) -> None:
    server = make_server("/", TokenServer, tmp_path)
    assert isinstance(server, TokenServer)
    server.show("ann", ["read:*/q"])
    client = server.amqp("ann")
    client.consume("q", no_ack=True)
    client.take()
    by_native = server.native("ann")
    properties = b"\x15" + mqtt.text("OAUTH2-JWT") + b"\x16"
    by_mqtt = mqtt.Client(server).open("c", 5, properties=properties + mqtt.text(server.shown))
    key = server.broker.authentication.api_keys.add("ann", ["read:*/q"])[1]
    client.send(Connection.UpdateSecret(key, "a key"), channel=0)
    (closed,) = client.take()
    assert (closed.name, closed.reply_code) == ("Connection.Close", 530)
    ((kind, _, body),) = by_native.send(frames.AUTH, 5, {"password": key.encode()})
    assert (kind, msgpack.unpackb(body)[0]) == (frames.CLOSE, 201)
    server.show("ann", [])
    data = b"\x19" + mqtt.block(properties + mqtt.text(server.shown))
    by_mqtt.feed(mqtt.packet(0xF0, data))
    assert by_mqtt.take_bytes() == b"\xe0\x01\x87"


def test_a_renewal_with_other_scopes_forgets_routes() -> None:
    """Where nothing is subscribed to, whose end would change the topology."""
    server = make_server("/", ScopedServer)
    assert isinstance(server, ScopedServer)
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    expires_ms = server.broker.now_ms + 60_000
    add = server.broker.authentication.api_keys.add
    server.shown = add("ann", ["write:*/*"], expires_ms)[1].encode()
    less = add("ann", ["write:*/amq.topic/other"], expires_ms)[1]
    by_amqp, by_native = server.amqp("ann"), server.native("ann")
    body = native.publish(native.entry(key=b"a.b", exchange=b"amq.topic"))
    assert by_native.send(frames.PUBLISH, 5, body)[0][0] == frames.CONFIRM
    assert by_native.send(frames.AUTH, 6, {"password": less.encode()})[0][0] == frames.OK
    assert by_native.send(frames.PUBLISH, 7, body)[0][0] == frames.ERROR
    by_amqp.publish("a.b", exchange="amq.topic")
    by_amqp.send(Connection.UpdateSecret(less, "less"), channel=0)
    by_amqp.publish("a.b", exchange="amq.topic")
    assert [found.name for found in by_amqp.take()] == [
        "Connection.UpdateSecretOk",
        "Channel.Close",
    ]


def test_identities_with_other_scopes_share_no_decision() -> None:
    server = make_server("/", ScopedServer)
    assert isinstance(server, ScopedServer)
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    watcher = server.mqtt("root", "watcher")
    watcher.subscribe("#")
    clients = []
    for number, topic in enumerate(("a", "b")):
        server.show("ann", [f"write:%2F/amq.topic/{topic}.*"])
        clients.append(server.mqtt("ann", str(number)))
    for _ in range(3):
        for client in clients:
            client.feed(mqtt.publish("a/x", b"m", 1, 1, 5) + mqtt.publish("a/x", b"m", 1, 2, 5))
    assert len(watcher.take()) == 6
    assert {body[2:3] for _, body in clients[1].take()} == {b"\x87"}
    assert b"\x87" not in {body[2:3] for _, body in clients[0].take()}


def kept_over_a_crash(server: TokenServer, tokens: JwtConfig, topic: str) -> list[bytes]:
    """The ends of the PUBLISH packets that Ann's session has for her, of one to ``topic`` that came
    after a crash and before she was back."""
    password = server.shown
    server.crash()
    server = TokenServer(config=Config(jwt=tokens), host=server.host)
    root = mqtt.Client(server).open("root", 5)
    root.feed(mqtt.publish(topic, b"kept", 1, 7, 5))
    server.sync()
    again = mqtt.Client(server)
    again.open("c", 5, False, username="ann", password=password)
    return [body[-4:] for first, body in again.take() if first >> 4 == 3]


def test_a_kept_session_has_its_scopes_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET, encoding="utf-8")
    tokens = JwtConfig(key_file=str(tmp_path / "key"), scopes_claim="scope")
    host = Host()
    server = TokenServer(config=Config(jwt=tokens), host=host)
    server.show("ann", ["read:%2F/amq.topic/a.*"])
    client = server.mqtt("ann", clean=False, properties=b"\x11" + (600).to_bytes(4, "big"))
    client.feed(mqtt.subscribe("a/#", 1, 1, 5))
    server.sync()
    assert client.take()[-1][1][-1] == 1
    assert kept_over_a_crash(server, tokens, "a/x") == [b"kept"]


def test_a_kept_session_has_the_scopes_of_a_renewal_after_a_crash(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET, encoding="utf-8")
    tokens = JwtConfig(key_file=str(tmp_path / "key"), scopes_claim="scope")
    host = Host()
    server = TokenServer(config=Config(jwt=tokens), host=host)

    def shown(*scopes: str) -> bytes:
        server.show("ann", list(scopes))
        return b"\x15" + mqtt.text("OAUTH2-JWT") + b"\x16" + mqtt.text(server.shown)

    kept = b"\x11" + (600).to_bytes(4, "big")
    client = mqtt.Client(server)
    client.open("c", 5, False, properties=kept + shown("read:%2F/amq.topic/a"))
    client.feed(mqtt.packet(0xF0, b"\x19" + mqtt.block(shown("read:%2F/amq.topic/b"))))
    assert client.take_bytes() == b""
    # It holds once it survives.
    server.sync()
    assert client.take_one()[0] == 0xF0
    client.feed(mqtt.subscribe("a", 1, 1, 5) + mqtt.subscribe("b", 1, 2, 5))
    server.sync()
    assert [body[-1] for _, body in client.take()] == [0x87, 1]
    assert kept_over_a_crash(server, tokens, "b") == [b"kept"]


def test_a_wildcard_delivers_only_what_may_be_read() -> None:
    server = make_server()
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read a/+"], []))
    client = server.mqtt("ann")
    client.subscribe("#", 1)
    client.take_bytes()
    root = server.mqtt("root", "sender")
    for number, topic in enumerate(("a/b", "secret", "a/b/c"), 1):
        root.feed(mqtt.publish(topic, topic.encode(), 1, number, 5))
    assert [body.split(b"\x00")[-1] for _, body in client.take()] == [b"a/b"]


def test_a_route_that_is_shared_leaks_no_decision() -> None:
    server = make_server()
    for user, topic in (("ann", "a/#"), ("bob", "b/#")):
        server.broker.permissions.set_user(user, grants_of({}, {}, [f"topic write {topic}"], []))
    watcher = server.mqtt("root", "watcher")
    watcher.subscribe("#")
    ann, bob = server.mqtt("ann", "one"), server.mqtt("bob", "two")
    for _ in range(3):
        for client in (ann, bob):
            client.feed(mqtt.publish("a/x", b"m", 1, 1, 5) + mqtt.publish("a/x", b"m", 1, 2, 5))
    assert len(watcher.take()) == 6
    assert {body[2:3] for _, body in bob.take()} == {b"\x87"}
    assert b"\x87" not in {body[2:3] for _, body in ann.take()}


def test_another_users_session_is_not_taken_over() -> None:
    server = make_server()
    for user in ("ann", "bob"):
        server.broker.permissions.set_user(user, grants_of({}, {}, ["topic readwrite t"], []))
    kept = server.mqtt("ann", "c", 5, clean=False, properties=mqtt.KEPT)
    kept.subscribe("t", 1)
    kept.lose()
    server.mqtt("root", "sender").feed(mqtt.publish("t", b"for ann", 1, 1, 5))
    client = server.mqtt("bob", "c", 5, clean=False, properties=mqtt.KEPT)
    assert client.connack[1][0] == 0
    assert client.take_bytes() == b""


@pytest.mark.parametrize("setting", ["acknowledge", "disconnect"])
def test_mqtt_3_is_told_by_setting(setting: Any, caplog: pytest.LogCaptureFixture) -> None:
    from trivium.config import AuthConfig

    users = {"ann": UserConfig(password="p", acl=("topic read t",))}
    config = Config(
        storage=StorageConfig(mode="memory"), users=users, auth=AuthConfig(refused_publish=setting)
    )
    client = Server(config=config).mqtt("ann", "c", 4)
    with caplog.at_level("INFO", "trivium_mqtt"):
        client.feed(mqtt.publish("t", b"m", 1, 1))
    assert client.is_closed is (setting == "disconnect")
    assert client.is_closed is ("it may not publish to the topic" in caplog.text)
    assert "a queue is full" not in caplog.text
    assert client.take_bytes() == (b"" if client.is_closed else b"\x40\x02\x00\x01")


def test_client_identifiers_can_be_tied_to_users() -> None:
    from trivium.config import AuthConfig

    users = {"a.b": UserConfig(password="p", acl=("topic read t",))}
    auth = AuthConfig(client_id_pattern="^{username}-")
    server = Server(config=Config(storage=StorageConfig(mode="memory"), users=users, auth=auth))
    server.mqtt("a.b", "a.b-1")
    for client_id in ("axb-1", "x-a.b-1", "c"):
        client = mqtt.Client(server)
        client.feed(mqtt.connect(client_id, 5, username="a.b", password=b"p"))
        assert client.take_first()[1][1] == 0x85
        assert client.is_closed


def test_entry_to_a_virtual_host_needs_a_permission_there() -> None:
    server = make_server()
    server.broker.permissions.set_user("ann", None)
    client = amqp.Client(server)
    client.feed(amqp.PROTOCOL_HEADER)
    client.send(amqp.start_ok(b"ann", b"p", None), channel=0)
    client.send(Connection.TuneOk(2047, 131_072, 0), channel=0)
    client.send(Connection.Open("/"), channel=0)
    closed = client.take()[-1]
    assert closed.reply_code == 530
    assert closed.reply_text == "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"
    other = native.Client(server).greet()
    ((kind, _, _),) = other.send(frames.AUTH, 2, {"username": "ann", "password": b"p"})
    assert kind == frames.ERROR
    third = mqtt.Client(server)
    third.feed(mqtt.connect("c", 5, username="ann", password=b"p"))
    assert third.take_first()[1][1] == 0x87


def test_policies_need_a_tag() -> None:
    server = make_server()
    server.permit("ann", [])
    client = server.native("ann")
    for kind in (frames.SET_POLICY, frames.DELETE_POLICY, frames.LIST_POLICIES):
        fields = {} if kind == frames.LIST_POLICIES else {"name": "p"}
        client.refused(kind, **fields)


ORDERS: list[dict[str, Any]] = [
    {"action": "set", "user": "dan", "configure": "", "write": "", "read": "^q$"},
    {"action": "clear", "user": "dan"},
    {"action": "list"},
    {"action": "set-topic", "user": "dan", "exchange": "amq.topic", "write": "", "read": "a"},
    {"action": "clear-topic", "user": "dan", "exchange": "amq.topic"},
    {"action": "list-topics"},
    {"action": "set-role", "name": "r", "permissions": {"/": {"read": "^q$"}}, "acl": []},
    {"action": "delete-role", "name": "r"},
    {"action": "list-roles"},
    {"action": "grant", "role": "r", "user": "dan"},
    {"action": "revoke", "role": "r", "user": "dan"},
    {"action": "create-vhost", "name": "v"},
    {"action": "list-vhosts"},
    {"action": "describe-vhost", "name": "/"},
    {"action": "set-vhost-limits", "name": "/", "limits": {"max-queues": 5}},
    {"action": "set-limits", "name": "dan", "limits": {"max-queues": 5}},
    {"action": "list-limits"},
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order["action"])
def test_permissions_are_managed_by_administrators_only(order: dict[str, Any]) -> None:
    server = make_server()
    server.native("root").refused(frames.MANAGE_PERMISSIONS, **order)
    server.broker.users.add("dan", hash_password(b"x"))
    client = server.administrator()
    if order["action"] == "delete-role":
        client.ask(frames.MANAGE_PERMISSIONS, action="set-role", name="r")
    client.ask(frames.MANAGE_PERMISSIONS, **order)


def test_what_commands_grant_outlives_a_crash() -> None:
    host = Host()
    server = Server(host=host)
    server.broker.users.add("dan", hash_password(b"x"))
    client = server.administrator()
    for order in (ORDERS[0], ORDERS[3], ORDERS[6], ORDERS[9], ORDERS[11]):
        client.send(frames.MANAGE_PERMISSIONS, 9, order)
    server.sync()
    assert [kind for kind, _, _ in client.take()] == [frames.OK] * 5
    server.crash()
    again = Server(host=host)
    assert "v" in again.broker.vhosts
    access = again.broker.permissions.access(Identity("dan"), "/")
    assert access.may(READ, "q")
    assert not access.may(WRITE, "q")
    assert again.broker.permissions.role("r") is not None
    found = again.broker.permissions.user("dan")
    assert found is not None
    assert (found.roles, found.topics) == (["r"], {("/", "amq.topic"): ("", "a")})


def test_a_user_of_the_configuration_is_not_changed_by_commands() -> None:
    server = make_server()
    client = server.administrator()
    client.refused(frames.MANAGE_PERMISSIONS, **{**ORDERS[0], "user": "root"})
    assert server.broker.permissions.access(Identity("root"), "/").is_open


def test_a_user_who_is_deleted_leaves_no_permissions() -> None:
    server = make_server()
    client = server.administrator()
    client.ask(frames.MANAGE_USERS, action="add", name="dan", password=b"p", tags=[])
    client.ask(frames.MANAGE_PERMISSIONS, **ORDERS[0])
    client.ask(frames.MANAGE_USERS, action="delete", name="dan")
    assert server.broker.permissions.user("dan") is None


def test_a_command_takes_effect_on_a_live_consumer() -> None:
    server = make_server()
    client = server.administrator()
    client.ask(frames.MANAGE_USERS, action="add", name="dan", password=b"p", tags=[])
    client.ask(frames.MANAGE_PERMISSIONS, **ORDERS[0])
    consumer = server.amqp("dan")
    consumer.consume("q")
    consumer.take()
    client.ask(frames.MANAGE_PERMISSIONS, **{**ORDERS[0], "read": "^other$"})
    (closed,) = consumer.take()
    amqp.assert_channel_closed(
        closed,
        403,
        "ACCESS_REFUSED - read access to queue 'q' in vhost '/' refused for user 'dan'",
    )


COPIES = [pytest.param([], "a.b", id="its key"), pytest.param(["z"], "z", id="a copy's key")]


def ann_without(server: Server, key: str) -> None:
    """Ann may publish to two topics, but for one."""
    keys = [found for found in ("a.b", "z") if found != key]
    server.permit("ann", [(WRITE, "amq.topic"), *((TOPIC + WRITE, found) for found in keys)])


@pytest.mark.parametrize(("copies", "lost"), COPIES)
def test_a_transaction_is_committed_by_who_may_publish_all_of_it_then(
    copies: list[str], lost: str
) -> None:
    server = make_server()
    watcher = server.mqtt("root", "watcher")
    watcher.subscribe("#")
    ann_without(server, "")
    client = server.amqp("ann")
    client.ask(Tx.Select())
    client.publish("a.b", exchange="amq.topic", headers={"CC": copies})
    ann_without(server, lost)
    (closed,) = client.call(Tx.Commit())
    amqp.assert_channel_closed(closed, 403, closed.reply_text)
    assert watcher.take() == []


@pytest.mark.parametrize(("copies", "lost"), COPIES)
def test_a_message_is_published_by_who_may_when_its_last_frame_comes(
    copies: list[str], lost: str
) -> None:
    server = make_server()
    watcher = server.mqtt("root", "watcher")
    watcher.subscribe("#")
    ann_without(server, "")
    client = server.amqp("ann")
    data = amqp.publish_frames("a.b", b"message", "amq.topic", headers={"CC": copies})
    client.feed(data[:-1])
    ann_without(server, lost)
    client.feed(data[-1:])
    (closed,) = client.take()
    amqp.assert_channel_closed(closed, 403, closed.reply_text)
    assert watcher.take() == []


def test_a_requester_keeps_its_replies_when_permissions_change() -> None:
    server = make_server()
    server.permit("ann", [(WRITE, "amq.default")])
    client = server.amqp("ann")
    client.consume("amq.rabbitmq.reply-to", "r", no_ack=True)
    client.take()
    server.permit("ann", [])
    assert client.take() == []


OWN_TOPIC = [
    pytest.param(grants_of({}, {}, ["pattern write d/%c"], []), id="an ACL line"),
    pytest.param(
        grants_of(
            {"/": {WRITE: "^amq.topic$"}},
            {"/": {"amq.topic": {WRITE: r"^d\.{client_id}$"}}},
            [],
            [],
        ),
        id="a topic permission",
    ),
]


@pytest.mark.parametrize("grants", OWN_TOPIC)
def test_clients_of_one_user_have_what_is_for_their_identifiers(grants: Grants) -> None:
    server = make_server()
    server.broker.permissions.set_user("ann", grants)
    watcher = server.mqtt("root", "watcher")
    watcher.subscribe("#")
    for client_id, other in (("one", "two"), ("two", "one")):
        client = server.mqtt("ann", client_id)
        client.feed(mqtt.publish(f"d/{client_id}", b"m", 1, 1, 5))
        assert client.take_one()[1][2:] != b"\x87"
        client.feed(mqtt.publish(f"d/{other}", b"m", 1, 2, 5))
        assert client.take_one()[1][2:] == b"\x87"
    assert len(watcher.take()) == 2


def test_a_fetch_that_waits_ends_with_the_permission() -> None:
    server = make_server()
    server.permit("ann", [(READ, "s")])
    client = server.native("ann")
    fields = {"stream": "s", "partition": 0, "offset": "first", "max_wait_ms": 60_000}
    assert client.send(frames.FETCH, 7, fields) == []
    server.permit("ann", [])
    ((kind, correlation, body),) = client.take()
    assert (kind, correlation) == (frames.ERROR, 7)
    assert msgpack.unpackb(body)[1] == "read access to stream 's' refused for user 'ann'"
    root = server.native("root")
    assert root.send(frames.PUBLISH, 5, native.publish(native.into(b"s", b"1")))
    assert client.take() == []


def test_a_reader_of_a_stream_ends_with_the_permission() -> None:
    server = make_server()
    server.permit("ann", [(READ, "s")])
    client = server.native("ann")
    where = {"stream": "s", "partition": 0, "offset": "first"}
    client.ask(frames.SUBSCRIBE, subscription=1, mode="log", credit=1 << 20, **where)
    server.permit("ann", [])
    assert [kind for kind, _, _ in client.take()] == [frames.CANCELLED]
    server.native("root").send(frames.PUBLISH, 5, native.publish(native.into(b"s", b"1")))
    assert client.take() == []


def test_a_live_subscription_that_may_stay_delivers_what_may_be_read_by_now() -> None:
    server = make_server("/", ScopedServer)
    assert isinstance(server, ScopedServer)
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    expires_ms = server.broker.now_ms + 60_000
    add = server.broker.authentication.api_keys.add
    server.shown = add("ann", ["read:*/*"], expires_ms)[1].encode()
    client = server.native("ann")
    client.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"*")
    # The first is for the subscription, whose pattern has no other meaning there.
    less = add("ann", ["read:*/amq.topic/%2A", "read:*/amq.topic/b"], expires_ms)[1]
    assert client.send(frames.AUTH, 6, {"password": less.encode()}) == [(frames.OK, 6, b"\x80")]
    root = server.mqtt("root", "sender")
    for topic in ("a", "b"):
        root.feed(mqtt.publish(topic, topic.encode(), 0, 0, 5))
    assert native.payloads(client.take()) == [b"b"]


def test_a_shared_message_goes_to_a_member_that_may_read_it() -> None:
    server = make_server()
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read a/+"], []))
    members = [server.mqtt("ann", "one"), server.mqtt("root", "two")]
    for client in members:
        client.feed(mqtt.subscribe("$share/g/#", 1, 1, 5))
        assert client.take_first()[1][-1] == 1
    sender = server.mqtt("root", "sender")
    for number in range(1, 5):
        sender.feed(mqtt.publish("secret", b"m", number % 2, number, 5))
    assert [len(client.take()) for client in members] == [0, 4]
    for number in range(1, 5):
        sender.feed(mqtt.publish("a/b", b"m", 1, number, 5))
    assert [len(client.take()) for client in members] == [2, 2]


def test_what_waits_for_a_client_is_sent_while_it_may_read_it() -> None:
    server = make_server()
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read #"], []))
    client = server.mqtt("ann", "c", clean=False, properties=mqtt.KEPT)
    client.subscribe("#", 1)
    client.lose()
    sender = server.mqtt("root", "sender")
    for number, topic in enumerate(("secret", "a/b"), 1):
        sender.feed(mqtt.publish(topic, topic.encode(), 1, number, 5))
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read a/#"], []))
    server.broker.logins.permissions_changed("ann")
    server.settle()
    client = server.mqtt("ann", "c", clean=False, properties=mqtt.KEPT)
    assert [body[-3:] for first, body in client.take() if first >> 4 == 3] == [b"a/b"]


@pytest.mark.parametrize("tag", ["monitoring", "management", "policymaker"])
def test_who_may_look_at_policies_may_not_set_them(tag: str) -> None:
    users = {"ann": UserConfig(password="p", permissions=EVERYTHING, tags=(tag,))}
    client = Server(config=Config(storage=StorageConfig(mode="memory"), users=users)).native("ann")
    assert client.ask(frames.LIST_POLICIES)["policies"] == []
    policy = {"name": "p", "pattern": "^q$", "apply_to": "queues", "definition": {"max-length": 1}}
    if tag == "policymaker":
        client.ask(frames.SET_POLICY, **policy)
        client.ask(frames.DELETE_POLICY, name="p")
    else:
        assert client.refused(frames.SET_POLICY, **policy) == 201
        assert client.refused(frames.DELETE_POLICY, name="p") == 201


def test_a_pattern_for_client_identifiers_that_stands_for_nothing_admits_nobody() -> None:
    from trivium.config import AuthConfig

    auth = AuthConfig(client_id_pattern="^{username}-{vhost}", anonymous="always")
    users = {"ann": UserConfig(password="p", acl=("topic read t",))}
    server = Server(config=Config(storage=StorageConfig(mode="memory"), users=users, auth=auth))
    client = mqtt.Client(server)
    client.feed(mqtt.connect("ann-/", 5, username="ann", password=b"p"))
    assert client.take_first()[1][1] == 0x85
    assert client.is_closed
    # Whoever is no user is tied to none.
    mqtt.Client(server).open("c", 5)


def _has_in_flight(server: BaseServer, qos: int) -> Client:
    """A kept session of ann's to which ``secret`` and ``a/b`` were sent and are on their way."""
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read #"], []))
    client = mqtt.Client(server).open(
        "c", 5, False, properties=mqtt.KEPT, username="ann", password=b"p"
    )
    client.feed(mqtt.subscribe("#", qos, 1, 5))
    server.sync()
    sender = mqtt.Client(server).open("sender", 5, username="root", password=b"p")
    for number, topic in enumerate(("secret", "a/b"), 1):
        sender.feed(mqtt.publish(topic, topic.encode(), qos, number, 5))
        if qos == 2:
            server.sync()
            sender.feed(mqtt.packet(0x62, number.to_bytes(2, "big")))
    server.sync()
    assert [body[-3:] for first, body in client.take() if first >> 4 == 3] == [b"ret", b"a/b"]
    return client


def _narrow(server: BaseServer) -> None:
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read a/#"], []))
    server.broker.logins.permissions_changed("ann")
    server.settle()


def _returns(server: BaseServer) -> mqtt.Client:
    client = mqtt.Client(server)
    client.feed(mqtt.connect("c", 5, False, properties=mqtt.KEPT, username="ann", password=b"p"))
    server.sync()
    return client


def _on_disk(host: Host) -> Server:
    users = {
        name: UserConfig(password="p", permissions=EVERYTHING if name == "root" else {})
        for name in ("root", "ann")
    }
    return Server(config=Config(users=users), host=host)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_under_way_is_sent_again_while_it_may_be_read(qos: int) -> None:
    server = _on_disk(Host())
    client = _has_in_flight(server, qos)
    client.lose()
    _narrow(server)
    client = _returns(server)
    connack, *found = client.take()
    assert connack[1][:2] == b"\x01\x00"
    # Its identifier is free, at QoS 2 once the client knows.
    again = (0x38 | qos << 1, mqtt.text("a/b") + b"\x00\x02\x00a/b")
    assert found == ([again] if qos == 1 else [(0x62, b"\x00\x01"), again])
    if qos == 2:
        client.feed(mqtt.packet(0x70, b"\x00\x01"))
        client.feed(mqtt.packet(0x50, b"\x00\x02"))
        server.sync()
        assert client.take() == [(0x62, b"\x00\x02")]
        client.feed(mqtt.packet(0x70, b"\x00\x02"))
    else:
        client.feed(mqtt.packet(0x40, b"\x00\x02"))
    client.lose()
    server.sync()
    assert len(_returns(server).take()) == 1


@pytest.mark.parametrize("is_told", [False, True])
def test_what_was_under_way_before_a_crash_is_sent_again_while_it_may_be_read(
    is_told: bool,
) -> None:
    host = Host()
    server = _on_disk(host)
    client = _has_in_flight(server, 2)
    if is_told:
        client.lose()
        _narrow(server)
        _returns(server)
    server.crash()
    server = _on_disk(host)
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read a/#"], []))
    client = _returns(server)
    again = (0x3C, mqtt.text("a/b") + b"\x00\x02\x00a/b")
    assert client.take()[1:] == [(0x62, b"\x00\x01"), again]
    client.feed(mqtt.packet(0x70, b"\x00\x01") + mqtt.packet(0x50, b"\x00\x02"))
    client.feed(mqtt.packet(0x70, b"\x00\x02"))
    server.sync()
    server.crash()
    server = _on_disk(host)
    server.broker.permissions.set_user("ann", grants_of({}, {}, ["topic read #"], []))
    assert len(_returns(server).take()) == 1

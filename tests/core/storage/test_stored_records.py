"""What logs and tables hold is, byte by byte, what docs/stored-records.md says.

A broker in which everything is used crashes and starts again; then its tables are read with SQLite
from the catalog, and its records and notes as bytes from the logs.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import broker_of, message
from tests.support.mqtt import Client, Server, publish, subscribe, text
from tests.support.native import entry, into
from tests.support.native import publish as publish_native
from tests.support.simulated import Host
from trivium.common.counters import Traffic
from trivium.common.quotas import USER
from trivium.messages.message import PROTOCOL_AMQP, PROTOCOL_NONE, Address, Message, decode_record
from trivium.observability.metrics import ProtocolMetrics
from trivium.queues.queue import Queue
from trivium.routing.exchanges import Binding
from trivium.security.identity import Identity
from trivium.security.permissions import grants_of
from trivium.streams.records import RecordBatch
from trivium.streams.stream import Stream
from trivium.vhost.policies import Policy
from trivium.vhost.settings import VirtualHostSettings
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.parts import Parts
from trivium_native.server.publishing import Publisher
from trivium_native.server.staged_batches import Stager

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "stored-records.md").read_text(encoding="utf-8")
INCARNATION = "0123456789abcdef"

Rows = list[tuple[str, bytes, bytes]]

_LINE = re.compile(r" *(?:(key|value) *)?((?:[0-9a-f]{2} )*[0-9a-f]{2})?(?: {2,}\S.*)?")


def user_property(name: str, value: str) -> bytes:
    return b"\x26" + text(name) + text(value)


def declare_everything(vhost: VirtualHost) -> None:
    broker = broker_of(vhost)
    broker.virtual_hosts.declare("other", VirtualHostSettings("d", ("t",), "quorum"))
    broker.users.add("ann", f"$7$101$c2FsdA==${'A' * 86}==", ["monitoring"])
    broker.users.set_virtual_host("ann", "other")
    broker.authentication.api_keys.add("ann", ["monitoring"], broker.now_ms + 1)
    broker.logins.limits.set("ann", {"max-queues": 5})
    broker.authentication.granted.set(
        "role", "r", grants_of({"/": {"read": "q"}}, {}, ["topic read a"], [])
    )
    exchange = vhost.declare_exchange("logs", "topic", durable=True)
    topic = vhost.exchange("amq.topic")
    vhost.set_policy(Policy("p", "^q", {"delivery-limit": 5}, "queues", 1))
    vhost.set_policy(Policy("o", "^z", {"max-length": 5}, "all", 1), is_of_operators=True)
    queue = vhost.declare_queue("q", durable=True, arguments={"x-max-priority": 1})
    vhost.bind(exchange, Binding(queue, b"a.#", {"n": 1}))
    vhost.bind(topic, Binding(queue, b"home.#"))
    scoped = Identity("ann", scopes=("read:*/*",), is_narrowed=True)
    declarers = broker.authentication.declarers
    vhost.bind(topic, Binding(queue, b"ann", guard=declarers.of(Identity("ann"), "/")))
    vhost.bind(topic, Binding(queue, b"key", guard=declarers.of(scoped, "/")))
    tagged = Identity("ann", frozenset({"policymaker"}))
    by_token = declarers.of_policy(tagged, "/")
    vhost.set_policy(Policy("token's", "^z", {"message-ttl": 5}, "queues", 1, by_token))
    vhost.declare_exchange(
        "alternating",
        "topic",
        durable=True,
        arguments={"alternate-exchange": "logs"},
        declarer=declarers.nobody,
    )
    vhost.declare_queue(
        "dying",
        durable=True,
        arguments={"x-dead-letter-exchange": "logs"},
        declarer=declarers.of(Identity("ann"), "/"),
    )
    windowed = vhost.declare_queue(
        "d", durable=True, arguments={"x-message-deduplication": True, "x-cache-ttl": 60_000}
    )
    vhost.bind(topic, Binding(windowed, b"d"))
    vhost.declare_queue(
        "back",
        durable=True,
        arguments={"x-retry-delay": 1000, "x-dead-letter-exchange": ""}
        | {"x-dead-letter-routing-key": "dead"},
    )
    vhost.declare_queue("dead", durable=True, user=broker.quotas.account(USER, "ann"))
    vhost.declare_queue("in memory", durable=True, arguments={"x-storage": "memory"})
    vhost.declare_queue("transient")
    vhost.declare_stream("s", 1, {"x-cleanup-policy": "compact"})
    vhost.producers.open(b"p")
    vhost.producers.advance(b"p", 0, 7)
    vhost.transactional.open(b"t")
    vhost.transactional.open(b"t")


def use_mqtt(server: Server) -> None:
    will = ("w", b"gone", 1, False)
    receiver = server.open_kept("c", 5, will=will, will_properties=b"\x18\x00\x00\x00\x3c")
    receiver.feed(subscribe("t/+", 2, 1, 5, b"\x0b\x05"), subscribe("$share/g/u", 1, 2, 5))
    sender = server.open_kept("s", 5)
    sender.feed(
        publish("u", b"one", 1, 10, 5),
        publish("t/1", b"two", 2, 9, 5),
        publish("r", b"kept", 1, 11, 5, retain=True),
        publish("d", b"", 1, 12, 5, properties=user_property("x-deduplication-header", "id")),
        publish("home/attic", b"later", 1, 13, 5, properties=user_property("x-delay", "9999999")),
    )
    publish_example(sender)
    server.sync()
    receiver.lose()


def publish_example(sender: Client) -> None:
    properties = b"\x02\x00\x00\x00\x3c" + b"\x03" + text("text/plain")
    sender.feed(publish("home/attic", b"21.5", 1, 14, 5, properties=properties))


def put(queue: Queue, *payloads: bytes) -> None:
    for payload in payloads:
        queue.put(message(payload), b"")


def compact(server: Server, stream: Stream) -> None:
    for key, payload in ((b"a", bytes(65536)), (b"newest", b"")):
        now = server.broker.now_ms
        stream.accept(Message(0, Address("amq.topic", key), b"", payload, 1, True, now))
        server.sync()
    for _ in range(2):
        server.advance(10)
        server.sync()


@pytest.fixture(scope="module")
def server() -> Server:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda size: INCARNATION)
        server = Server(host=Host())
        vhost = server.broker.vhosts["/"]
        declare_everything(vhost)
    use_mqtt(server)
    back = vhost.queues["back"]
    put(back, b"settled", b"returned", b"rejected")
    settled, returned, rejected = back.get(), back.get(), back.get()
    assert settled is not None
    assert returned is not None
    assert rejected is not None
    back.settle(settled)
    back.requeue(returned)
    back.reject(rejected)
    vhost.delays.add(delayed(), [b"cc"])
    server.sync()
    stream = vhost.streams["s"]
    compact(server, stream)
    vhost.groups.commit("g", stream, [(0, 1)])
    vhost.memberships.join_exclusively("g", "h")
    vhost.memberships.join_exclusively("forgotten", "h")
    vhost.memberships.leave("forgotten", "h", 1)
    Parts(broker_of(vhost), vhost, ProtocolMetrics()).stage(
        b"t", 2, "part", 0, publish_native(entry())
    )
    server.sync()
    return server.crash()


def delayed() -> Message:
    return Message(PROTOCOL_NONE, Address("", b"k"), b"", b"", 1, True, 0, deliver_at=1 << 60)


@pytest.fixture(scope="module")
def rows(server: Server) -> Rows:
    """Every row of every table; a table without rows is there once, without key and value."""
    server.host.checkpoint()
    connection = sqlite3.connect(":memory:")
    connection.deserialize(bytes(server.host.disk.content("data/catalog.sqlite")))
    found = connection.execute(
        "SELECT name, key, value FROM key_table LEFT JOIN key_value ON number = key_table"
    ).fetchall()
    connection.close()
    return found


def block(name: str) -> list[str]:
    """The lines of the page's only block of that name."""
    (found,) = re.findall(rf"```{name}\n(.*?)\n```", PAGE, re.DOTALL)
    return str(found).splitlines()


def example(name: str) -> bytes:
    """The bytes of a block."""
    found = bytearray()
    for line in block(name):
        match = _LINE.fullmatch(line)
        assert match is not None, line
        found += bytes.fromhex(match[2])
    return bytes(found)


def example_rows() -> Rows:
    """The rows of the page; a key or value goes on in lines that say neither."""
    found: list[tuple[str, dict[str, bytes]]] = []
    part = ""
    for line in block("rows"):
        match = _LINE.fullmatch(line)
        if match is None:
            found.append((line, {"key": b"", "value": b""}))
        else:
            part = match[1] or part
            found[-1][1][part] += bytes.fromhex(match[2] or "")
    return [(table, parts["key"], parts["value"]) for table, parts in found]


def on_page(table: str) -> bool:
    """Whether the page has an item in its list of tables for one of the virtual host ``/``."""
    name = table.removesuffix("/") + "V" if table.endswith("//") else table
    return f"\n- `{name}`\n" in PAGE


# Tables


def test_every_table_is_on_the_page_and_was_used(rows: Rows) -> None:
    tables = {name for name, _, _ in rows if not name.endswith("/other")}
    assert [name for name in sorted(tables) if not on_page(name)] == []
    assert {name for name, key, _ in rows if key is not None} == tables


def test_every_table_has_an_example_that_is_written_so(rows: Rows) -> None:
    examples = example_rows()
    assert [row for row in examples if row not in rows] == []
    assert {row[0] for row in examples} == {row[0] for row in rows if row[1] is not None}


def test_every_table_that_the_source_names_is_on_the_page() -> None:
    found: set[str] = set()
    for folder in ("core", "adapters"):
        for path in ROOT.joinpath(folder).rglob("*.py"):
            for argument in re.findall(r"storage\.table\((.*?)\)", path.read_text()):
                match = re.fullmatch(r"f?\"([a-z.-]+(?:/(?=\{))?)(?:\{[a-z.]+\})?\"", argument)
                assert match is not None, argument
                found.add(match[1])
    assert len(found) == 29
    assert [name for name in sorted(found) if not on_page(name.replace("/", "//"))] == []


def test_keys_and_values_that_the_examples_do_not_have(rows: Rows) -> None:
    assert (
        "bindings//",
        bytes.fromhex("96a9") + b"amq.topic" + b"\xa5queue\xa1q\xc4\x06home.#" + b"\xc2\x90",
        b"",
    ) in rows
    assert ("queues//", b"dead", b"\x94\xc2\x80\xa0\xa3ann") in rows
    assert ("queues//", b"amq.mqtt-session.c", b"\x93\xc2\x80\xa4mqtt") in rows
    assert ("mqtt.subscriptions//", b"\x00\x01c$share/g/u", b"\x01\x00\x00\x00\x00") in rows


def test_declarers_are_written_as_the_page_says(rows: Rows) -> None:
    written = {(table, key): value for table, key, value in rows}
    ann, nobody = b"\x91\xa3ann", b"\x90"
    scoped = b"\x93\xa3ann\x91\xa8read:*/*\xc3"
    tagged = b"\x94\xa3ann\xc0\xc2\x91\xabpolicymaker"
    for key, declarer in ((b"ann", ann), (b"key", scoped)):
        row_key = bytes.fromhex("96a9") + b"amq.topic\xa5queue\xa1q\xc4\x03" + key + b"\xc2\x90"
        assert written["bindings//", row_key] == declarer
    for place, declarer in (
        (("queues//", b"dying"), b"\xc0" + b"\xc4\x05" + ann),
        (("exchanges//", b"alternating"), b"\xc4\x01" + nobody),
        (("policies//", b"token's"), b"\xc4\x14" + tagged),
    ):
        assert written[place].endswith(declarer)


# Logs


def test_every_log_is_named_as_the_page_says(server: Server) -> None:
    stream = f"stream///s/{INCARNATION}/0"
    assert set(server.host.storage.log_names()) == {
        "queue/1://0/q",
        "queue/1://1/q",
        "queue/1://0/d",
        "queue/1://0/back",
        "queue/1://0/dying",
        "queue/1://0/dead",
        "queue/1://0/amq.delayed",
        "queue/1://0/amq.mqtt-session.c",
        stream,
        f"{stream}/compacted/1",
        "part/1://1:t/part",
    }
    for pattern in (
        "queue/N:V/P/Q",
        "queue/N:V/0/amq.delayed",
        "queue/N:V/0/amq.mqtt-session.C",
        "stream/V/S/I/P",
        "stream/V/S/I/P/compacted/G",
        "part/N:V/M:R/A",
    ):
        assert f"\n- `{pattern}`\n" in PAGE, pattern


def test_the_size_in_a_queue_logs_name_counts_characters() -> None:
    server = Server(host=Host())
    server.broker.virtual_hosts.declare("ö/").declare_queue("a/b", durable=True)
    assert server.host.storage.log_names() == ["queue/2:ö//0/a/b"]


def test_a_streams_logs_follow_one_another(server: Server) -> None:
    log = f"stream///s/{INCARNATION}/0"
    assert list(server.host.contents(f"{log}/compacted/1")) == [0]
    assert list(server.host.contents(log)) == [1]
    for name in (log, f"{log}/compacted/1"):
        ((record, note),) = server.host.contents(name).values()
        assert (record[:4], note) == (b"TRVB", b"")


def test_a_parts_log_holds_bodies_of_publish(server: Server) -> None:
    assert server.host.contents("part/1://1:t/part") == {0: (publish_native(entry()), b"")}


def test_what_is_staged_for_one_stream_is_kept_as_the_example() -> None:
    server = Server(host=Host())
    server.vhost.declare_stream("s")
    publisher = Publisher(
        broker_of(server.vhost), server.vhost, ProtocolMetrics(), Traffic(), None, 100, None
    )
    messages = into(b"s", b"a", 0) * 128
    record = Stager(publisher, 100).record(messages, 0, len(messages), 128)
    head = example("staged batch")
    assert record[: len(head)] == head
    index, count, size = struct.unpack_from("<III", record, len(head))
    batch = record[len(head) + 12 :]
    assert (index, count, size) == (0, 128, len(batch))
    view = RecordBatch(batch, verify=False)
    assert batch[44:48] == bytes(4)
    assert [view.message(row).payload for row in range(128)] == [b"a"] * 128
    assert (view.min_timestamp, view.max_timestamp) == (-1, -1)


# Messages


def test_a_message_is_stored_as_the_example(server: Server) -> None:
    assert example("message a").hex(" ") == (
        "05 01 00 00 00 50 5c 18 a3 01 00 00 60 3a 5d 18 a3 01 00 00 09 00 0a 00 00 00 12 00 00 00 "
        "61 6d 71 2e 74 6f 70 69 63 68 6f 6d 65 2e 61 74 74 69 63 "
        "02 00 00 00 3c 03 00 0a 74 65 78 74 2f 70 6c 61 69 6e 32 31 2e 35"
    )
    assert server.host.contents("queue/1://0/q") == {0: (example("message a"), b"")}


def test_a_message_that_has_everything_is_stored_as_the_example() -> None:
    full = Message(
        PROTOCOL_AMQP,
        Address("x", b"k"),
        b"\x00\x00",
        b"m",
        mode=2,
        persistent=True,
        timestamp=1,
        expires=2,
        retain=True,
        priority=3,
        deliver_at=4,
        annotations={"n": 1},
        insists=True,
    )
    assert example("message b").hex(" ") == (
        "7e 02 03 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 01 00 00 00 02 00 00 00 "
        "78 6b 04 00 00 00 00 00 00 00 04 00 00 00 81 a1 6e 01 00 00 6d"
    )
    assert full.record() == example("message b")
    read = decode_record(example("message b"))
    again = Message(
        read.protocol,
        read.address,
        read.header,
        read.payload,
        read.mode,
        read.persistent,
        read.timestamp,
        read.expires,
        read.retain,
        read.priority,
        deliver_at=read.deliver_at,
        annotations=read.annotations,
        insists=read.insists,
    )
    assert again.record() == example("message b")


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        (0x00, {}),
        (0x01, {"mode": 1}),
        (0x02, {"mode": 2}),
        (0x04, {"persistent": True}),
        (0x08, {"retain": True}),
        (0x10, {"annotations": {}}),
        (0x20, {"deliver_at": 1}),
        (0x40, {"insists": True}),
    ],
)
def test_each_flag_has_its_bit(flags: int, changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"mode": 0, "persistent": False} | changes
    made = Message(PROTOCOL_NONE, Address("", b""), b"", b"", timestamp=0, **fields)
    assert made.record()[0] == flags


def test_the_annotations_of_a_dead_letter(server: Server) -> None:
    ((record, note),) = server.host.contents("queue/1://0/dead").values()
    assert note == b""
    size = int.from_bytes(record[34:38], "little")
    # Persistent, at least once, annotations; no exchange, routing key "dead", no header.
    assert record[0] == 0x15
    assert record[20:34] == bytes.fromhex("0000 04000000 00000000") + b"dead"
    assert record[38 + size :] == b"rejected"
    assert record[38 : 38 + size] == (
        b"\x87"
        b"\xb4x-first-death-reason\xa8rejected"
        b"\xb3x-first-death-queue\xa4back"
        b"\xb6x-first-death-exchange\xa0"
        b"\xb3x-last-death-reason\xa8rejected"
        b"\xb2x-last-death-queue\xa4back"
        b"\xb5x-last-death-exchange\xa0"
        b"\xa7x-death\x91\x86"
        b"\xa5count\x01\xa6reason\xa8rejected\xa5queue\xa4back"
        # The timestamp extension, 1,800,000,000 seconds.
        b"\xa4time\xd6\xff\x6b\x49\xd2\x00"
        b"\xa8exchange\xa0\xacrouting-keys\x91\xa1k"
    )


# Notes


def test_notes_of_a_session(server: Server) -> None:
    notes = [note for _, note in server.host.contents("queue/1://0/amq.mqtt-session.c").values()]
    assert notes == [bytes.fromhex("09c44acdce4a9d6eb5"), bytes.fromhex("020b05")]
    assert notes == [example("annotation share"), example("annotation session")]


def test_notes_of_delayed_messages(server: Server) -> None:
    notes = [note for _, note in server.host.contents("queue/1://0/amq.delayed").values()]
    assert notes == [b"", bytes.fromhex("91c4026363")]
    assert notes[1] == example("annotation delayed")

"""The deletion of a virtual host: all of it goes, its clients are told, and crashes do no harm."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pytest
from pamqp.commands import Connection, Queue

import trivium_amqp
from tests.support import amqp, mqtt, native
from tests.support.amqp import assert_connection_closed
from tests.support.mqtt import KEPT
from tests.support.server import Server as BaseServer
from tests.support.simulated import Host, crashes
from trivium.config import (
    EVERYTHING,
    Config,
    ListenerConfig,
    PolicyConfig,
    StorageConfig,
)
from trivium.errors import AccessRefused, NotFound, PreconditionFailed
from trivium.messages.message import AT_LEAST_ONCE, PROTOCOL_NONE, Address, Message
from trivium.routing.exchanges import Binding
from trivium.runtime import vhost_deletion
from trivium.runtime.adapter import Adapter
from trivium.runtime.vhost_deletion import MAX_PER_TURN
from trivium.security.identity import Identity
from trivium.security.passwords import hash_password
from trivium.security.permissions import READ, grants_of
from trivium.vhost.policies import Policy
from trivium.vhost.settings import VirtualHostSettings
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions
from trivium_native.server.adapter import NativeAdapter
from trivium_native.wire import frames

PAGE = Path(__file__).parents[1] / "docs" / "stored-records.md"


class Server(BaseServer):
    """All protocols over one broker."""

    def make_adapters(self) -> list[Adapter]:
        return [MqttAdapter(MqttOptions()), trivium_amqp.adapter(None), NativeAdapter(None)]

    def administrator(self) -> native.Client:
        client = native.Client(self).greet()
        fields = {"username": "guest", "password": b"guest"}
        assert client.send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
        return client


def make_server(host: Host | None = None, **config: Any) -> Server:
    storage = StorageConfig(mode="memory" if host is None else "disk")
    return Server(config=Config(storage=storage, **config), host=host)


def message(payload: bytes = b"m", retain: bool = False, deliver_at: int = 0) -> Message:
    made = Message(
        PROTOCOL_NONE, Address("amq.topic", b"t"), b"", payload, AT_LEAST_ONCE, True, 1, 0, retain
    )
    made.deliver_at = deliver_at
    return made


def fill(server: Server, name: str = "farm", queues: int = 3) -> None:
    """Put something of every kind into a virtual host."""
    broker = server.broker
    vhost = broker.virtual_hosts.declare(name, VirtualHostSettings("d"))
    topic = vhost.exchange("amq.topic")
    vhost.declare_exchange("x", "fanout", durable=True)
    for number in range(queues):
        queue = vhost.declare_queue(f"q{number}", durable=True, arguments={"x-max-priority": 1})
        vhost.bind(topic, Binding(queue, b"t"))
    deduplicated = vhost.declare_queue(
        "d", durable=True, arguments={"x-message-deduplication": True}
    )
    vhost.bind(topic, Binding(deduplicated, b"t"))
    stream = vhost.declare_stream("s", 2)
    vhost.bind(topic, Binding(stream, b"t"))
    vhost.set_policy(Policy("p", "^q", {"delivery-limit": 5}))
    vhost.memberships.join_exclusively("g", "holder")
    vhost.producers.open(b"p")
    vhost.transactional.open(b"t")
    vhost.publish(message(retain=True), vhost.route(topic, b"t"))
    committed = [(0, stream.partitions[0].next_offset), (1, stream.partitions[1].next_offset)]
    vhost.groups.commit("g", stream, committed)
    later = message(deliver_at=broker.now_ms + 3_600_000)
    vhost.publish(later, vhost.route(topic, b"t"))
    if broker.users.find("ann") is None:
        broker.users.add("ann", hash_password(b"x"))
    broker.authentication.granted.set(
        "user", "ann", grants_of({name: EVERYTHING["*"], "/": {"read": "^q$"}}, {}, [], [])
    )
    server.sync()
    sessions: list[mqtt.Client] = []
    for client_id in ("kept", "other"):
        client = mqtt.Client(server).open(
            client_id,
            5,
            clean=False,
            properties=KEPT,
            username=f"{name}:guest",
            password=b"guest",
            will=("w", b"", 1, False),
        )
        client.feed(mqtt.subscribe("t", 2, 1, 5), mqtt.publish("t", b"2", 2, 9, 5))
        client.feed(mqtt.subscribe("$share/g/t", 1, 1, 5))
        server.sync()
        sessions.append(client)
    for client in sessions:
        client.lose()
    server.sync()


def left_over(server: Server, name: str) -> list[str]:
    """Tables and logs that still have something of a virtual host."""
    storage = server.host.storage
    kinds = re.findall(r"^- `([a-z.]+)/V`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(kinds) > 20
    found = [kind for kind in kinds if len(storage.table(f"{kind}/{name}"))]
    marks = (f":{name}/", f"stream/{name}/")
    return found + [log for log in storage.log_names() if any(mark in log for mark in marks)]


def run(server: Server, seconds: float = 2) -> None:
    """Let the turns come in which parts of a virtual host go."""
    for _ in range(int(seconds * 10)):
        server.advance(0.1)
        server.sync()


def delete(server: Server, name: str = "farm") -> list[str]:
    """Have it deleted; what is added once it is done."""
    done: list[str] = []
    server.broker.virtual_hosts.delete(name, lambda: done.append(name))
    server.sync()
    return done


def test_nothing_is_left_of_a_virtual_host() -> None:
    server = make_server(Host())
    fill(server)
    fill(server, "barn")
    before = left_over(server, "barn")
    # All but what is there for moments, or while nobody is connected only.
    missing = {"compaction", "doubts", "returns", "deduplication", "mqtt.incoming", "native.parts"}
    assert len(before) > 20 - len(missing)
    done = delete(server)
    assert "farm" not in server.broker.vhosts
    run(server)
    assert done == ["farm"]
    assert left_over(server, "farm") == []
    assert left_over(server, "barn") == before
    again = server.crash()
    assert set(again.broker.vhosts) == {"/", "barn"}
    assert left_over(again, "farm") == []
    access = again.broker.permissions.access(Identity("ann"), "farm")
    assert not access.may_enter
    assert again.broker.permissions.access(Identity("ann"), "/").may(READ, "q")


def test_one_of_the_same_name_is_empty() -> None:
    server = make_server(Host())
    fill(server)
    delete(server)
    with pytest.raises(PreconditionFailed, match="is being deleted"):
        server.broker.virtual_hosts.declare("farm")
    run(server)
    # Nor does anything of it count for anybody.
    assert not any(any(account.used) for account in server.broker.quotas.accounts())
    vhost = server.broker.virtual_hosts.declare("farm")
    assert vhost.settings == VirtualHostSettings()
    assert (vhost.queues, vhost.streams, len(vhost.retained)) == ({}, {}, 0)
    client = mqtt.Client(server).open("kept", 5, False, username="farm:guest", password=b"guest")
    assert client.connack[1][0] == 0
    # Nothing of the one before writes into it.
    server.advance(2 * 3600)
    server.sync()
    kinds = set(left_over(server, "farm"))
    assert kinds <= {"mqtt.sessions", "mqtt.clock"}


def test_clients_are_told_in_the_words_of_their_protocols() -> None:
    server = make_server()
    server.broker.virtual_hosts.declare("farm")
    stays = amqp.Client(server).handshake()
    by_amqp = amqp.Client(server).handshake(vhost="farm")
    by_mqtt = [
        mqtt.Client(server).open(f"c{version}", version, username="farm:guest", password=b"guest")
        for version in (4, 5)
    ]
    by_native = native.Client(server).greet()
    fields = {"username": "guest", "password": b"guest", "vhost": "farm"}
    by_native.send(frames.AUTH, 2, fields)
    delete(server)
    assert_connection_closed(by_amqp, 320, "CONNECTION_FORCED - vhost 'farm' is deleted")
    assert [client.take() for client in by_mqtt] == [[], [(0xE0, b"\x98")]]
    ((kind, _, body),) = by_native.take()
    assert (kind, msgpack.unpackb(body)) == (frames.CLOSE, [301, "vhost 'farm' is deleted"])
    assert all(client.is_closed for client in (*by_mqtt, by_native))
    assert stays.ask(Queue.Declare(queue="q")).name == "Queue.DeclareOk"


def test_nothing_goes_before_the_clients_are_gone() -> None:
    server = make_server()
    vhost = server.broker.virtual_hosts.declare("farm")
    client = amqp.Client(server).handshake(vhost="farm")
    client.declare("mine", exclusive=True)
    client.declare("q")
    done = delete(server)
    server.advance(1)
    assert "q" in vhost.queues
    client.send(Connection.CloseOk(), channel=0)
    client.lose()
    server.advance(1)
    assert (vhost.queues, done) == ({}, ["farm"])


def test_a_client_that_does_not_leave_is_cut_off() -> None:
    server = make_server()
    server.broker.virtual_hosts.declare("farm")
    client = amqp.Client(server).handshake(vhost="farm")
    done = delete(server)
    aborted: list[bool] = []
    for seconds in (9, 2):
        server.advance(seconds)
        aborted.append(client.transport.is_aborted)
    assert aborted == [False, True]
    client.lose()
    server.advance(1)
    assert done == ["farm"]


def test_a_will_is_not_published_where_all_goes() -> None:
    server = make_server()
    server.broker.virtual_hosts.declare("farm")
    client = mqtt.Client(server).open(
        "c", 5, will=("w", b"gone", 0, True), username="farm:guest", password=b"guest"
    )
    delete(server)
    client.lose()
    server.advance(1)
    assert len(server.broker.virtual_hosts.declare("farm").retained) == 0


def test_which_cannot_be_deleted() -> None:
    listener = ListenerConfig(protocol="mqtt", address="127.0.0.1:0", virtual_host="bound")
    policy = PolicyConfig(pattern="q", definition={"max-length": 1}, vhost="ruled")
    server = make_server(listeners=(listener,), policies={"p": policy})
    errors = {"/": PreconditionFailed, "none": NotFound, "bound": AccessRefused}
    for name, error in {**errors, "ruled": AccessRefused}.items():
        with pytest.raises(error):
            server.broker.virtual_hosts.delete(name, lambda: None)


def test_many_queues_go_a_part_in_each_turn() -> None:
    server = make_server()
    vhost = server.broker.virtual_hosts.declare("farm")
    for number in range(3 * MAX_PER_TURN):
        vhost.declare_queue(f"q{number}", durable=True)
    delete(server)
    left = [len(vhost.queues)]
    while left[-1]:
        server.advance(0.001)
        left.append(len(vhost.queues))
    assert max(before - after for before, after in pairwise(left)) <= (MAX_PER_TURN)


def test_an_administrator_deletes_one_and_is_answered_once_it_is_gone() -> None:
    server = make_server(Host())
    fill(server)
    ask = frames.MANAGE_PERMISSIONS
    nobody = native.Client(server).greet()
    nobody.send(frames.AUTH, 2, {})
    assert nobody.refused(ask, action="delete-vhost", name="farm") == 201
    client = server.administrator()
    assert client.send(ask, 5, {"action": "delete-vhost", "name": "farm"}) == []
    assert client.take() == []
    run(server)
    assert client.take() == [(frames.OK, 5, b"\x80")]
    assert [row["name"] for row in client.ask(ask, action="list-vhosts")["rows"]] == ["/"]
    assert client.refused(ask, action="delete-vhost", name="farm") == 301
    assert client.refused(ask, action="delete-vhost", name="/") == 302


def test_whoever_is_in_it_does_not_delete_it() -> None:
    server = make_server()
    server.broker.virtual_hosts.declare("farm")
    client = native.Client(server).greet()
    fields = {"username": "guest", "password": b"guest", "vhost": "farm"}
    client.send(frames.AUTH, 2, fields)
    assert client.refused(frames.MANAGE_PERMISSIONS, action="delete-vhost", name="farm") == 302


def test_one_that_the_configuration_names_by_now_is_made_again_once_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vhost_deletion, "MAX_PER_TURN", 4)
    server = make_server(Host())
    fill(server)
    assert delete(server) == []
    listener = ListenerConfig(protocol="mqtt", address="127.0.0.1:0", virtual_host="farm")
    policy = PolicyConfig(pattern="^q", definition={"max-length": 1}, vhost="farm")
    config = replace(server.config, listen={}, listeners=(listener,), policies={"p": policy})
    disk = server.host.disk.power_cut(None)
    again = Server(config=config, host=Host(disk), now_ms=server.broker.now_ms)
    assert "farm" not in again.broker.vhosts
    client = mqtt.Client(again)
    client.feed(mqtt.connect("c", 5, username="guest", password=b"guest"))
    assert client.take()[0][1][:2] == b"\x00\x87"
    seen: set[str] = set()
    start = again.host.disk.copy()
    again.host.disk.operations.clear()
    while "farm" not in again.broker.vhosts:
        again.advance(0.01)
        again.sync()
    again.sync()
    for _, cut in crashes(start, again.host.disk.operations, random.Random(1)):
        after = Server(config=config, host=Host(cut.copy(), seed=2), now_ms=again.broker.now_ms)
        seen.add("there" if "farm" in after.broker.vhosts else "on its way")
        run(after, 0.5)
        vhost = after.broker.vhosts["farm"]
        assert (vhost.settings, vhost.queues, vhost.streams) == (VirtualHostSettings(), {}, {})
        assert left_over(after, "farm") == ["policies"]
        assert vhost.declare_queue("q0").settings.max_length == 1
        mqtt.Client(after).open("c", 5, username="guest", password=b"guest")
    assert seen == {"there", "on its way"}


def test_a_crash_at_any_moment_leaves_it_whole_or_gone_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Many write batches.
    monkeypatch.setattr(vhost_deletion, "MAX_PER_TURN", 4)
    machine = make_server(Host())
    fill(machine, queues=2)
    expected = left_over(machine, "farm")
    start = machine.host.disk.copy()
    machine.host.disk.operations.clear()
    delete(machine)
    while len(machine.host.storage.table("vhosts")):
        machine.advance(0.001)
        machine.sync()
    seen: set[str] = set()
    for _, disk in crashes(start, machine.host.disk.operations, random.Random(1)):
        server = Server(
            config=machine.config, host=Host(disk.copy(), seed=2), now_ms=machine.broker.now_ms
        )
        server.sync()
        if "farm" in server.broker.vhosts:
            seen.add("whole")
            # After a crash messages may have been delivered before.
            assert set(left_over(server, "farm")) - {"doubts"} == set(expected)
            assert set(server.broker.vhosts["farm"].queues) > {"q0", "q1", "d"}
        else:
            rows = len(server.host.storage.table("vhosts"))
            seen.add("on its way" if rows else "gone")
            run(server, 0.5)
            assert left_over(server, "farm") == []
            assert not len(server.host.storage.table("vhosts"))
    assert seen == {"whole", "on its way", "gone"}

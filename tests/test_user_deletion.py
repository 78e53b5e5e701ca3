"""The deletion of a user: nothing that was kept for it goes to another one of its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jwt
import pytest
from pamqp.commands import Basic, Tx

from tests.support import amqp, mqtt, native, roads
from tests.support.authentication import MOSQUITTO_7
from tests.support.server import NOW_MS
from tests.support.server import Server as BaseServer
from tests.support.simulated import Host
from trivium.common.quotas import QUEUES, USER
from trivium.config import EVERYTHING, AuthConfig, Config, JwtConfig, UserConfig
from trivium.runtime import user_deletion
from trivium.runtime.adapter import Adapter
from trivium.runtime.user_deletion import delete_user
from trivium.security.permissions import grants_of
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions
from trivium_native.server.adapter import NativeAdapter
from trivium_native.wire import frames

SECRET = "a secret of more than thirty-two bytes"
FLOOD_ENTRY = native.entry(b"x", b"t", b"amq.topic")
#: what sessions of MQTT have in the storage
KINDS = ("sessions", "subscriptions", "incoming", "outgoing", "wills")
#: a will delay of some minutes
LATE = b"\x18\x00\x00\x01\x00"


class Server(BaseServer):
    """MQTT and the native protocol over one broker."""

    def make_adapters(self) -> list[Adapter]:
        return [MqttAdapter(MqttOptions()), NativeAdapter(None)]

    def administrator(self) -> native.Client:
        client = native.Client(self).greet()
        fields = {"username": "guest", "password": b"guest"}
        assert client.send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
        return client

    def order(self, action: str, **fields: Any) -> list[int]:
        """Have an administrator manage users; the kinds of frames that answer."""
        client = self.administrator()
        found = client.send(frames.MANAGE_USERS, 5, {"action": action, **fields})
        self.sync()
        return [kind for kind, _, _ in found + client.take()]

    def add(self, name: str) -> None:
        self.broker.users.add(name, "p")
        self.broker.permissions.set_user(name, grants_of(EVERYTHING, {}, [], []))

    def keep(self, name: str, client_id: str, **fields: Any) -> mqtt.Client:
        """A client with a session that is kept."""
        client = mqtt.Client(self)
        fields = {"password": b"p", **fields}
        client.feed(
            mqtt.connect(client_id, 5, False, properties=mqtt.KEPT, username=name, **fields)
        )
        self.sync()
        return client

    def left_over(self) -> list[str]:
        storage = self.host.storage
        found = [kind for kind in KINDS if len(storage.table(f"mqtt.{kind}//"))]
        return found + [name for name in self.broker.vhosts["/"].queues if "session" in name]


def make_server(host: Host, **config: Any) -> Server:
    users = {"bob": UserConfig(password="p", permissions=EVERYTHING)}
    return Server(config=Config(users=users, **config), host=host)


def publish(server: Server, number: int) -> None:
    """Something for ann, at QoS 2."""
    bob = server.keep("bob", "bob")
    bob.feed(mqtt.publish(f"private/{number}", b"for ann", 2, number, 5))
    server.sync()
    bob.feed(mqtt.packet(0x62, number.to_bytes(2, "big")))
    bob.feed(mqtt.packet(0xE0, b"\x00\x05\x11\x00\x00\x00\x00"))
    server.sync()


def fill(server: Server, *client_ids: str) -> None:
    """Ann has sessions, of which each has what a session can have, and goes."""
    server.add("ann")
    clients = []
    for client_id in client_ids:
        fields = {"will": ("will", b"w", 1, False), "will_properties": LATE}
        client = server.keep("ann", client_id, **fields)
        client.feed(mqtt.subscribe("private/#", 2, 1, 5), mqtt.publish("x", b"m", 2, 2, 5))
        server.sync()
        clients.append(client)
    publish(server, 1)
    for client in clients:
        assert [first for first, _ in client.take()] == [0x20, 0x90, 0x50, 0x34]
        client.lose()
    publish(server, 2)
    assert len(server.left_over()) == len(KINDS) + len(clients)


def test_another_user_of_the_name_gets_nothing_of_one_that_was_deleted() -> None:
    server = make_server(Host())
    fill(server, "c", "d")
    here = server.keep("ann", "e")
    here.take()
    assert server.order("delete", name="ann") == [frames.OK]
    assert here.take_bytes() == b"\xe0\x01\x87"
    assert server.left_over() == []
    watcher = server.keep("bob", "watcher")
    watcher.feed(mqtt.subscribe("will", 1, 1, 5))
    server.add("ann")
    for client_id in "cde":
        client = server.keep("ann", client_id)
        assert [body[:2] for _, body in client.take()] == [b"\x00\x00"]
    # Its wills do not come any more.
    server.advance(600)
    server.sync()
    assert [first for first, _ in watcher.take()] == [0x20, 0x90]


def test_a_deletion_is_done_in_parts_and_goes_on_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_deletion, "MAX_PER_TURN", 1)
    host = Host()
    server = make_server(host)
    fill(server, "c", "d", "e")
    # Its first part goes in this turn.
    assert server.order("delete", name="ann") == []
    again = {"name": "ann", "password": b"p"}
    assert server.order("add", **again) == [frames.ERROR]
    assert server.order("delete", name="ann") == [frames.ERROR]
    server = server.crash()
    assert len(server.broker.users.leaving) == 1
    assert any("session" in name for name in server.broker.vhosts["/"].queues)
    server.advance(1)
    server.sync()
    assert server.left_over() == []
    assert not server.broker.users.leaving
    server = server.crash()
    assert not server.broker.users.leaving
    fill(server, "c")


def test_queues_stay_and_do_not_count_for_the_next_user_of_the_name() -> None:
    server = make_server(Host())
    server.add("ann")
    client = native.Client(server).greet()
    client.send(frames.AUTH, 2, {"username": "ann", "password": b"p"})
    client.send(frames.DECLARE, 5, {"kind": "queue", "name": "q"})
    server.sync()

    def counted() -> tuple[int, int]:
        account = server.broker.quotas.account(USER, "ann")
        vhost = server.broker.vhosts["/"]
        assert vhost.queues["q"].name == "q"
        return account.used[QUEUES], vhost.account.used[QUEUES]

    assert counted() == (1, 1)
    assert server.order("delete", name="ann") == [frames.OK]
    assert counted() == (0, 1)
    server = server.crash()
    assert counted() == (0, 1)
    server.broker.vhosts["/"].delete_queue(server.broker.vhosts["/"].queues["q"])
    assert server.broker.vhosts["/"].account.used[QUEUES] == 0


def test_sessions_of_others_and_of_clients_that_may_stay_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET, encoding="utf-8")
    tokens = JwtConfig(key_file=str(tmp_path / "key"), scopes_claim="scope")
    server = make_server(Host(), jwt=tokens)
    server.add("ann")
    claims = {"sub": "ann", "exp": NOW_MS // 1000 + 600, "scope": ["read:*/*", "write:*/*"]}
    token = jwt.encode(claims, SECRET, "HS256").encode()
    here = server.keep("ann", "c", password=token)
    server.keep("bob", "d").lose()
    assert server.order("delete", name="ann") == [frames.OK]
    here.feed(mqtt.subscribe("t", 1, 1, 5))
    server.sync()
    assert [first for first, _ in here.take()] == [0x20, 0x90]
    assert server.keep("bob", "d").take_one()[1][:2] == b"\x01\x00"


def watch(server: Server) -> mqtt.Client:
    """Bob subscribes to wills."""
    watcher = server.keep("bob", "watcher")
    watcher.feed(mqtt.subscribe("will", 1, 1, 5))
    server.sync()
    watcher.take()
    return watcher


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_the_will_of_a_client_that_is_here_goes_with_its_user(version: int, is_kept: bool) -> None:
    server = make_server(Host())
    server.add("ann")
    watcher = watch(server)
    here = mqtt.Client(server)
    fields: dict[str, Any] = {"properties": mqtt.KEPT if is_kept and version == 5 else b""}
    fields.update(username="ann", password=b"p", will=("will", b"w", 1, True))
    here.feed(mqtt.connect("c", version, not is_kept, **fields))
    server.sync()
    assert server.order("delete", name="ann") == [frames.OK]
    assert here.is_closed
    server.advance(5)
    server.sync()
    assert watcher.take() == []
    assert len(server.host.storage.table("mqtt.wills//")) == 0
    assert len(server.broker.vhosts["/"].retained) == 0


def test_a_will_that_is_due_while_its_user_is_deleted_is_not_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_deletion, "MAX_PER_TURN", 1)
    server = make_server(Host())
    fill(server, "c", "d", "e")
    watch(server).lose()
    assert server.order("delete", name="ann") == []
    # Little of the deletion is done when the wills are due.
    server = server.crash(600)
    watcher = server.keep("bob", "watcher")
    server.advance(600)
    server.sync()
    assert [first for first, _ in watcher.take()] == [0x20]


def test_an_amqp_clients_deliveries_are_queued_again_and_its_transaction_undone() -> None:
    server = roads.Server(config=Config(users={"root": UserConfig(password="p")}), host=Host())
    for name in ("root", "ann"):
        if name == "ann":
            server.broker.users.add(name, "p")
        server.broker.permissions.set_user(name, grants_of(EVERYTHING, {}, [], []))
    root = server.amqp("root")
    root.declare("q", durable=True)
    for body in (b"held", b"acknowledged"):
        root.publish("q", body, delivery_mode=2)
    server.sync()
    holder, committer = server.amqp("ann"), server.amqp("ann")
    assert holder.get("q", no_ack=False) == b"held"
    committer.ask(Tx.Select())
    assert committer.get("q", no_ack=False) == b"acknowledged"
    committer.call(Basic.Ack(1))
    committer.publish("q", b"staged", delivery_mode=2)
    delete_user(server.broker, "ann", lambda: None)
    server.sync()
    server.advance(1)
    server.sync()
    assert [client.take()[-1].name for client in (holder, committer)] == ["Connection.Close"] * 2
    assert root.counts("q") == (2, 0)
    assert [root.get("q") for _ in range(3)] == [b"held", b"acknowledged", None]


# What waits to be taken in


FLOODS = {
    "mqtt 0": ("mqtt", [mqtt.publish("t", b"x", version=4) for _ in range(200)]),
    "mqtt 1": ("mqtt", [mqtt.publish("t", b"x", 1, number, 4) for number in range(1, 201)]),
    "amqp": ("amqp", [amqp.publish_frames("t", b"x", "amq.topic") for _ in range(200)]),
    "native": (
        "native",
        [native.frame(frames.PUBLISH, 0, native.publish(FLOOD_ENTRY)) for _ in range(200)],
    ),
}


def leave(server: roads.Server, way: str) -> None:
    """Ann may not stay any more."""
    if way == "deleted":
        delete_user(server.broker, "ann", lambda: None)
    elif way == "another password":
        server.broker.users.set_password("ann", "other")
    else:
        server.broker.permissions.set_user("ann", grants_of({}, {}, [], []))
        server.broker.logins.permissions_changed("ann")


def watched(server: roads.Server) -> mqtt.Client:
    """A client that counts what is published."""
    watcher = server.mqtt("root", "watcher", 4)
    watcher.feed(mqtt.subscribe("#", 0, 1, 4))
    watcher.take()
    return watcher


@pytest.mark.parametrize("way", ["deleted", "another password", "no permissions"])
@pytest.mark.parametrize("flood", FLOODS)
def test_what_a_rate_holds_back_is_not_published_once_its_user_is_gone(
    flood: str, way: str
) -> None:
    server = roads.Server(config=Config(users={"root": UserConfig(password="p")}), host=Host())
    server.broker.permissions.set_user("root", grants_of(EVERYTHING, {}, [], []))
    server.broker.users.add("ann", "p")
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    server.broker.logins.limits.set("ann", {"publish-messages-per-second": 5})
    watcher = watched(server)
    road, packets = FLOODS[flood]
    clients = [getattr(server, road)("ann")]
    if road == "mqtt":
        clients = [server.mqtt("ann", name, 4) for name in ("c", "d")]
    for client in clients:
        client.feed(b"".join(packets))
        client.take_bytes()
    server.advance(2)
    before = len(watcher.take())
    assert 10 <= before <= 40
    leave(server, way)
    server.sync()
    server.advance(60)
    server.sync()
    assert watcher.take() == []
    if way == "deleted":
        assert server.broker.quotas.limits(USER, "ann") == {}
        told = b"".join(client.take_bytes() for client in clients if road == "mqtt")
        assert told.count(b"\x40\x02") <= 2 * 5 * 2


@pytest.mark.parametrize("way", ["deleted", "another password", "no permissions"])
@pytest.mark.parametrize("flood", FLOODS)
def test_what_an_alarm_holds_back_is_not_published_once_its_user_is_gone(
    flood: str, way: str
) -> None:
    server = roads.Server(config=Config(users={"root": UserConfig(password="p")}), host=Host())
    server.broker.permissions.set_user("root", grants_of(EVERYTHING, {}, [], []))
    server.broker.users.add("ann", "p")
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    watcher = watched(server)
    road, packets = FLOODS[flood]
    client = getattr(server, road)("ann")
    client.connection.blocked("low on memory")
    client.feed(b"".join(packets))
    before = len(watcher.take())
    assert before <= 1
    leave(server, way)
    server.sync()
    if not client.connection.is_closed:
        client.connection.unblocked()
    server.advance(5)
    server.sync()
    assert watcher.take() == []


def test_the_limits_of_a_user_go_with_it_also_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_deletion, "MAX_PER_TURN", 1)
    server = make_server(Host())
    server.add("ann")
    server.broker.logins.limits.set("ann", {"max-queues": 5})
    delete_user(server.broker, "ann", lambda: None)
    assert server.broker.quotas.limits(USER, "ann") == {"max-queues": 5}
    server.sync()
    server = server.crash()
    server.advance(5)
    server.sync()
    assert server.broker.quotas.limits(USER, "ann") == {}
    assert len(server.host.storage.table("limits")) == 0


def with_file(host: Host, file: Path, *names: str) -> Server:
    """A broker whose password file has these names."""
    write(file, *names)
    return make_server(host, auth=AuthConfig(password_files=(str(file),)))


def write(file: Path, *names: str) -> None:
    file.write_text("".join(f"{name}:{MOSQUITTO_7}\n" for name in names))


def kept(server: Server, name: str, client_id: str) -> mqtt.Client:
    server.broker.permissions.set_user(name, grants_of(EVERYTHING, {}, [], []))
    return server.keep(name, client_id, password=b"right")


def test_the_sessions_of_a_user_that_a_password_file_has_no_longer_end(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    server = with_file(Host(), file, "ann", "cat")
    kept(server, "ann", "away").lose()
    here = kept(server, "ann", "here")
    here.take()
    kept(server, "cat", "other").lose()
    write(file, "cat")
    server.advance(2)
    server.sync()
    assert here.is_closed
    vhost = server.vhost
    adapter = server.broker.adapters["mqtt"]
    assert [each.client_id for each in adapter.describe_sessions(vhost)] == ["other"]
    assert len(server.host.storage.table("mqtt.sessions//")) == 1


def test_they_stay_where_the_broker_itself_has_a_user_of_the_name(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    server = with_file(Host(), file, "ann")
    server.add("ann")
    server.keep("ann", "away").lose()
    write(file)
    server.advance(2)
    adapter = server.broker.adapters["mqtt"]
    assert [each.client_id for each in adapter.describe_sessions(server.vhost)] == ["away"]


def with_tokens(tmp_path: Path) -> tuple[Server, bytes]:
    """A broker that knows by a token who ann is, and that token."""
    (tmp_path / "key").write_text(SECRET, encoding="utf-8")
    server = make_server(Host(), jwt=JwtConfig(key_file=str(tmp_path / "key")))
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    claims = {"sub": "ann", "exp": NOW_MS // 1000 + 600}
    return server, jwt.encode(claims, SECRET, "HS256").encode()


def test_a_new_user_gets_no_session_of_whom_others_know_by_its_name(tmp_path: Path) -> None:
    server, token = with_tokens(tmp_path)
    watch(server)
    fields: dict[str, Any] = {"will": ("will", b"w", 1, False), "will_properties": LATE}
    fields["password"] = token
    here, away = (server.keep("ann", client_id, **fields) for client_id in ("here", "away"))
    for client in (here, away):
        client.feed(mqtt.subscribe("private/#", 2, 1, 5))
    server.sync()
    away.lose()
    publish(server, 1)
    server.keep("bob", "other").lose()
    here.take()
    server.add("ann")
    server.sync()
    # Administrative action
    assert here.take_bytes() == b"\xe0\x01\x98"
    assert here.is_closed
    server = server.crash()
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    for client_id in ("here", "away"):
        assert server.keep("ann", client_id).take_one()[1][:2] == b"\x00\x00"
    assert server.keep("bob", "other").take_one()[1][:2] == b"\x01\x00"
    # Nor do their wills come.
    watcher = server.keep("bob", "watcher")
    server.advance(600)
    server.sync()
    assert [first for first, _ in watcher.take()] == [0x20]


def test_queues_of_whom_others_know_by_its_name_do_not_count_for_a_new_user(tmp_path: Path) -> None:
    server, token = with_tokens(tmp_path)
    client = native.Client(server).greet()
    client.send(frames.AUTH, 2, {"username": "ann", "password": token})
    client.send(frames.DECLARE, 5, {"kind": "queue", "name": "q"})
    server.sync()

    def counted() -> tuple[int, int]:
        account = server.broker.quotas.account(USER, "ann")
        return account.used[QUEUES], server.broker.vhosts["/"].account.used[QUEUES]

    assert counted() == (1, 1)
    server.add("ann")
    assert counted() == (0, 1)
    server.sync()
    server = server.crash()
    assert counted() == (0, 1)
    assert "q" in server.broker.vhosts["/"].queues


def test_a_client_without_a_session_that_is_kept_stays_when_a_user_of_its_name_is_made(
    tmp_path: Path,
) -> None:
    server, token = with_tokens(tmp_path)
    here = mqtt.Client(server)
    here.feed(mqtt.connect("c", 5, True, username="ann", password=token))
    server.sync()
    here.take()
    server.broker.users.add("ann", "p")
    here.feed(b"\xc0\x00")
    server.sync()
    assert here.take_bytes() == b"\xd0\x00"


def test_a_user_who_is_changed_keeps_its_sessions() -> None:
    server = make_server(Host())
    server.add("ann")
    server.keep("ann", "c").lose()
    server.broker.users.set_tags("ann", ["management"])
    server.broker.users.set_password("ann", "q")
    assert server.keep("ann", "c", password=b"q").take_one()[1][:2] == b"\x01\x00"

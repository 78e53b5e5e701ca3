"""MQTT in virtual hosts: how clients get there, and that nothing is shared between two of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.mqtt import KEPT, Client, Server, connect, publish, subscribe
from tests.support.simulated import Host
from trivium.config import (
    EVERYTHING,
    AuthConfig,
    Config,
    ListenerConfig,
    StorageConfig,
    UserConfig,
)
from trivium.errors import AccessRefused
from trivium_mqtt.options import MqttOptions

IN_FARM = {"farm": EVERYTHING["*"]}


def make_server(
    listener: str = "", host: Host | None = None, options: MqttOptions | None = None
) -> Server:
    """Users whose own virtual hosts are ``/`` and ``barn``; one who has nothing in ``barn``."""
    users = {
        "root": UserConfig(password="p", permissions=EVERYTHING),
        "bea": UserConfig(password="p", permissions=EVERYTHING, virtual_host="barn"),
        "fay": UserConfig(password="p", permissions=IN_FARM, virtual_host="barn"),
        "urn:root": UserConfig(password="p", permissions=EVERYTHING),
    }
    config = Config(
        listen={},
        storage=StorageConfig(mode="memory" if host is None else "disk"),
        users=users,
        auth=AuthConfig(anonymous="never"),
        listeners=(ListenerConfig(protocol="mqtt", address="127.0.0.1:0", virtual_host=listener),),
    )
    server = Server(config=config, host=host, options=options)
    for name in ("farm", "barn"):
        server.broker.virtual_hosts.declare(name)
    server.sync()
    return server


def home_of(client: Client) -> str:
    """The virtual host in which a client is."""
    return client.connection.access.vhost


def refused(server: Server, username: str, version: int, **fields: Any) -> int:
    client = server.connect()
    client.feed(connect("c", version, username=username, password=b"p", **fields))
    ((first, body),) = client.take()
    assert (first, client.is_closed) == (0x20, True)
    return body[1]


@pytest.mark.parametrize(
    ("listener", "username", "expected"),
    [
        ("", "root", "/"),
        ("", "bea", "barn"),
        ("", "farm:root", "farm"),
        # What the name says goes before the user's own.
        ("", "farm:bea", "farm"),
        ("", "/:bea", "/"),
        # The listener's is binding, and / means it.
        ("farm", "root", "farm"),
        ("farm", "bea", "farm"),
        ("farm", "farm:root", "farm"),
        ("farm", "/:root", "farm"),
        # A user who is called so is no virtual host.
        ("", "urn:root", "/"),
        ("", "farm:urn:root", None),
    ],
)
def test_where_a_client_goes(listener: str, username: str, expected: str | None) -> None:
    server = make_server(listener)
    if expected is None:
        # The last colon counts, as in RabbitMQ.
        assert refused(server, username, 4) == 4
    else:
        assert home_of(server.open(username=username, password=b"p")) == expected


def test_a_listeners_virtual_host_is_made_at_the_start() -> None:
    assert "field" in make_server("field").broker.vhosts


def test_that_of_a_user_of_the_configuration_is_made_at_the_start_and_stays() -> None:
    config = Config(users={"bea": UserConfig(password="p", virtual_host="barn")})
    server = Server(config=config)
    assert "barn" in server.broker.vhosts
    with pytest.raises(AccessRefused):
        server.broker.virtual_hosts.delete("barn", lambda: None)
    client = server.connect()
    client.feed(connect("c", 5, username="nowhere:bea", password=b"p"))
    assert client.take() == [(0x20, b"\x00\x86\x1a\x1f\x00\x17vhost nowhere not found")]


def test_a_user_whose_own_virtual_host_was_deleted_is_told_so() -> None:
    server = make_server()
    authentication = server.broker.authentication
    authentication.users.add("lost", "p")
    authentication.set_virtual_host("lost", "farm")
    server.broker.virtual_hosts.delete("farm", lambda: None)
    server.advance(1)
    assert refused(server, "lost", 4) == 5
    client = server.connect()
    client.feed(connect("c", 5, username="lost", password=b"p"))
    text = b"vhost farm not found: it is where user 'lost' goes"
    expected = b"\x00\x87" + bytes((len(text) + 3, 0x1F, 0, len(text))) + text
    assert client.take() == [(0x20, expected)]
    # It is not sent elsewhere, where its ACL lines would hold then.
    assert server.broker.users.virtual_host_of("lost") == "farm"
    client = server.connect()
    most = b"\x27" + (20).to_bytes(4, "big")
    client.feed(connect("c", 5, username="lost", password=b"p", properties=most))
    assert client.take() == [(0x20, b"\x00\x87\x00")]


@pytest.mark.parametrize(
    ("listener", "username", "v5", "v4"),
    [
        # None such: the user name is wrong.
        ("", "nowhere:root", 0x86, 4),
        # It may do nothing there.
        ("", "barn:fay", 0x87, 5),
        ("", "fay", 0x87, 5),
        ("barn", "fay", 0x87, 5),
        # The listener has another.
        ("barn", "farm:root", 0x87, 5),
    ],
)
def test_a_virtual_host_that_cannot_be_entered(
    listener: str, username: str, v5: int, v4: int
) -> None:
    server = make_server(listener)
    assert refused(server, username, 5) == v5
    assert refused(server, username, 4) == v4


def test_a_wrong_password_is_the_same_in_every_virtual_host() -> None:
    server = make_server()
    for username in ("farm:root", "nowhere:root", "farm:nobody"):
        client = server.connect()
        client.feed(connect("c", 5, username=username, password=b"wrong"))
        assert client.take() == [(0x20, b"\x00\x86\x00")]


def test_colons_in_user_names_may_mean_nothing() -> None:
    server = make_server(options=MqttOptions(vhost_in_username=False))
    assert refused(server, "farm:root", 5) == 0x86
    assert home_of(server.open(username="urn:root", password=b"p")) == "/"


def open_in(server: Server, vhost: str, client_id: str = "c", **fields: Any) -> Client:
    fields.setdefault("version", 5)
    if fields["version"] == 5 and not fields.get("clean", True):
        fields.setdefault("properties", KEPT)
    return server.open(client_id, username=f"{vhost}:root", password=b"p", **fields)


def test_one_client_identifier_is_a_session_in_each_virtual_host() -> None:
    server = make_server()
    first, second = open_in(server, "/"), open_in(server, "farm")
    assert not first.is_closed
    assert not second.is_closed
    for client in (first, second):
        client.subscribe("t", 1)
    first.feed(publish("t", b"m", 1, 1, 5))
    assert [packet[0] for packet in first.take()] == [0x32, 0x40]
    assert second.take() == []


def test_retained_messages_are_those_of_the_virtual_host() -> None:
    server = make_server()
    open_in(server, "farm", "sender").feed(publish("t", b"of farm", 0, 0, 5, retain=True))
    assert len(server.broker.vhosts["farm"].retained) == 1
    for vhost, expected in (("/", 0), ("farm", 1), ("barn", 0)):
        client = open_in(server, vhost)
        client.subscribe("#")
        assert len(client.take()) == expected


def test_a_share_is_of_one_virtual_host() -> None:
    server = make_server()
    members = [open_in(server, vhost, "c") for vhost in ("/", "farm")]
    for member in members:
        member.subscribe("$share/g/t")
    for _ in range(2):
        open_in(server, "farm", "sender").feed(publish("t", b"m", 0, 0, 5))
    assert [len(member.take()) for member in members] == [0, 2]


def test_a_will_is_published_where_its_client_was() -> None:
    server = make_server()
    watchers = [open_in(server, vhost, "watcher") for vhost in ("/", "farm")]
    for watcher in watchers:
        watcher.subscribe("w")
    open_in(server, "farm", will=("w", b"gone", 0, False)).lose()
    assert [len(watcher.take()) for watcher in watchers] == [0, 1]


def test_kept_sessions_of_both_come_back_after_a_crash() -> None:
    server = make_server(host=Host())
    for vhost in ("/", "farm"):
        client = open_in(server, vhost, clean=False)
        client.feed(subscribe(f"to/{vhost}", 1, version=5))
        server.sync()
        client.take_bytes()
        client.lose()
    sender = open_in(server, "farm", "sender")
    sender.feed(publish("to/farm", b"kept", 1, 1, 5), publish("to//", b"lost", 1, 2, 5))
    server.sync()
    again = server.crash()
    there = open_in(again, "farm", clean=False)
    assert there.connack[1][0] == 1
    assert [body[-4:] for _, body in there.take()] == [b"kept"]
    here = open_in(again, "/", clean=False)
    assert here.connack[1][0] == 1
    assert here.take() == []


def test_an_owner_and_the_permissions_are_those_of_the_virtual_host() -> None:
    server = make_server()
    client = server.open(username="farm:fay", password=b"p", version=5)
    client.subscribe("t")
    server.broker.permissions.set_user("fay", None)
    server.broker.logins.permissions_changed("fay")
    server.settle()
    assert client.is_closed
    assert client.take() == [(0xE0, b"\x87")]

"""Mount points: what clients behind one send and are sent, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.mqtt import (
    KEPT,
    Client,
    StrictTransport,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)
from tests.support.mqtt import Server as BaseServer
from tests.support.simulated import Host
from trivium.config import EVERYTHING, AuthConfig, Config, ListenerConfig, StorageConfig, UserConfig
from trivium.errors import ConfigError
from trivium.messages.message import PROTOCOL_NONE, Address, Message
from trivium.runtime.adapter import Listener, Peer
from trivium_mqtt.codec.properties import change_response_topic
from trivium_mqtt.connection import MqttConnection

RESPONSE = b"\x08"
MOUNTED = "in/a/"


class Server(BaseServer):
    """One listener without, and one for each mount point that is asked for."""

    def behind(
        self, mount_point: str, client_id: str = "c", version: int = 5, **fields: Any
    ) -> Client:
        """A client that has come by a listener with this mount point; "" is none."""
        listener = ListenerConfig(protocol="mqtt", address="127.0.0.1:0", mount_point=mount_point)
        client = Client(self)
        self.broker.remove_connection(client.connection)
        client.transport = StrictTransport()
        peer = Peer("127.0.0.1:1", True, Listener(listener))
        client.connection = self.adapter.connect(client.transport, peer)
        self.broker.add_connection(client.connection)
        return client.open(client_id, version, **fields)


@pytest.fixture
def server() -> Server:
    return Server()


def names(client: Client) -> list[str]:
    """The topics of the messages that a client has got."""
    return [
        body[2 : 2 + int.from_bytes(body[:2], "big")].decode()
        for first, body in client.take()
        if first & 0xF0 == 0x30
    ]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_gets_the_prefix_on_its_way_in_and_loses_it_out(
    server: Server, version: int, qos: int
) -> None:
    outside = server.behind("", "outside", version)
    outside.subscribe("#", qos)
    inside = server.behind(MOUNTED, "inside", version)
    inside.subscribe("t/+", qos)
    other = server.behind("in/b/", "other", version)
    other.subscribe("#", qos)
    sender = server.behind(MOUNTED, "sender", version)
    # Twice: the second one repeats the first.
    for packet_id in (1, 2):
        sender.feed(publish("t/x", b"m", qos, packet_id, version))
    assert names(outside) == ["in/a/t/x"] * 2
    assert names(inside) == ["t/x"] * 2
    assert names(other) == []
    outside.feed(publish("in/a/t/y", b"m", qos, 3, version), publish("t/z", b"", qos, 4, version))
    assert names(inside) == ["t/y"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_run_at_qos_0_is_not_handed_on_as_it_came(server: Server, version: int) -> None:
    watchers = [server.behind(mount, f"w{mount}", version) for mount in ("", MOUNTED, "in/")]
    for watcher in watchers:
        watcher.subscribe("#")
    run = publish("t", b"m", version=version)
    server.behind(MOUNTED, "sender", version).feed(run * 5)
    assert [names(watcher) for watcher in watchers] == [["in/a/t"] * 5, ["t"] * 5, ["a/t"] * 5]
    server.behind("", "plain", version).feed(publish("in/a/u", b"m", version=version) * 5)
    assert [names(watcher) for watcher in watchers] == [["in/a/u"] * 5, ["u"] * 5, ["a/u"] * 5]


def test_the_bytes_of_a_message_behind_a_mount_point(server: Server) -> None:
    inside = server.behind(MOUNTED)
    inside.subscribe("#", 1)
    properties = RESPONSE + text("r/1") + b"\x26" + text("k") + text("v")
    server.behind(MOUNTED, "sender").feed(publish("t", b"m", 1, 7, 5, properties=properties))
    server.behind("", "far").feed(
        publish("in/a/t", b"n", 0, 0, 5, properties=RESPONSE + text("elsewhere"))
    )
    expected = packet(0x32, text("t") + b"\x00\x01" + bytes((len(properties),)) + properties + b"m")
    # A response topic that the client cannot reach is not told.
    assert inside.take_bytes() == expected + packet(0x30, text("t") + b"\x00n")


def test_a_response_topic_is_a_whole_name_outside(server: Server) -> None:
    outside = server.behind("", "outside")
    outside.subscribe("in/a/t")
    sender = server.behind(MOUNTED, "sender")
    # The same properties again: what was decoded of them stands for both.
    for payload in (b"1", b"22"):
        sender.feed(publish("t", payload, 0, 0, 5, properties=RESPONSE + text("r")))
    block = RESPONSE + text("in/a/r")
    for _, body in outside.take():
        assert body[2 + 6 : 2 + 6 + 1 + len(block)] == bytes((len(block),)) + block


def test_unsubscribing_takes_the_same_filter(server: Server) -> None:
    inside = server.behind(MOUNTED, version=5)
    for topic_filter in ("t/#", "$share/g/u"):
        inside.subscribe(topic_filter)
        inside.feed(unsubscribe(topic_filter, 2, 5))
        assert inside.take() == [(0xB0, b"\x00\x02\x00\x00")]
        inside.feed(unsubscribe(topic_filter, 3, 5))
        assert inside.take() == [(0xB0, b"\x00\x03\x00\x11")]


def test_a_share_is_behind_the_mount_point(server: Server) -> None:
    members = [server.behind(MOUNTED, f"m{number}") for number in range(2)]
    for member in members:
        member.subscribe("$share/g/t")
    stranger = server.behind("in/b/", "stranger")
    stranger.subscribe("$share/g/t")
    for _ in range(4):
        server.behind("", "sender").feed(publish("in/a/t", b"m", 0, 0, 5))
    assert [names(member) for member in members] == [["t"] * 2] * 2
    assert names(stranger) == []


def test_retained_messages_are_those_below_the_mount_point(server: Server) -> None:
    sender = server.behind("", "sender")
    for topic in ("in/a/t", "in/b/t", "t"):
        sender.feed(publish(topic, b"m", 0, 0, 5, retain=True))
    inside = server.behind(MOUNTED)
    inside.subscribe("#", 1)
    assert names(inside) == ["t"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_will_is_published_below_the_mount_point(server: Server, version: int) -> None:
    outside = server.behind("", "outside", version)
    outside.subscribe("#")
    server.behind(MOUNTED, "gone", version, will=("w", b"gone", 0, False)).lose()
    assert names(outside) == ["in/a/w"]
    server.behind(MOUNTED, "gone", version, will=("$w", b"gone", 0, False)).lose()
    assert names(outside) == []


def test_names_with_a_dollar_do_not_go_through(server: Server) -> None:
    outside = server.behind("", "outside")
    outside.subscribe("#")
    outside.subscribe("in/a/$SYS/#")
    inside = server.behind(MOUNTED)
    inside.subscribe("#")
    inside.subscribe("$SYS/#")
    for topic in ("$SYS/x", "$x"):
        inside.feed(publish(topic, b"m", 1, 9, 5))
        assert inside.take() == [(0x40, b"\x00\x09\x87")]
    assert names(outside) == []
    outside.feed(publish("in/a/$SYS/x", b"m", 0, 0, 5))
    assert names(inside) == []


def test_a_topic_alias_stands_for_the_topic_behind_the_mount_point(server: Server) -> None:
    outside = server.behind("", "outside")
    outside.subscribe("#")
    sender = server.behind(MOUNTED, "sender")
    alias = b"\x23\x00\x01"
    sender.feed(publish("t", b"m", 0, 0, 5, properties=alias))
    sender.feed(publish("", b"m", 0, 0, 5, properties=alias))
    assert names(outside) == ["in/a/t"] * 2


def test_a_client_that_takes_aliases_gets_names(server: Server) -> None:
    inside = server.behind(MOUNTED, properties=b"\x22\x00\x05")
    inside.subscribe("#")
    for _ in range(2):
        server.behind("", "sender").feed(publish("in/a/t", b"m", 0, 0, 5))
    assert names(inside) == ["t"] * 2


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (publish("", b"m", version=4), None),
        (publish("a/+", b"m", version=4), None),
        (subscribe("", version=4), None),
        (subscribe("a#", version=4), None),
        (subscribe("/".join("a" * 127), version=4), 0x80),
    ],
)
def test_what_is_no_topic_is_none_behind_a_mount_point(
    server: Server, data: bytes, code: int | None
) -> None:
    client = server.behind(MOUNTED, version=4)
    client.feed(data)
    if code is None:
        assert client.is_closed
        assert client.take() == []
    else:
        assert client.take() == [(0x90, b"\x00\x01" + bytes((code,)))]


def test_a_topic_that_is_too_long_behind_the_mount_point_is_refused(server: Server) -> None:
    client = server.behind(MOUNTED)
    client.feed(publish("t" * 65_535, b"", 0, 0, 5))
    assert client.is_closed
    assert client.take()[-1][1][0] == 0x90


def test_a_large_message_goes_through(server: Server) -> None:
    inside = server.behind(MOUNTED)
    inside.subscribe("#", 1)
    payload = b"x" * (300 << 10)
    outside = server.behind("", "outside")
    outside.subscribe("#")
    server.behind(MOUNTED, "sender").feed(publish("t", payload, 1, 1, 5))
    ((_, body),) = inside.take()
    assert body == text("t") + b"\x00\x01\x00" + payload
    assert names(outside) == ["in/a/t"]


def test_permissions_are_those_of_the_whole_name() -> None:
    users = {
        "ann": UserConfig(
            password="p", acl=("topic write in/a/w", "topic read in/a/r/#", "topic w")
        ),
        "root": UserConfig(password="p", permissions=EVERYTHING),
    }
    config = Config(
        storage=StorageConfig(mode="memory"), users=users, auth=AuthConfig(anonymous="never")
    )
    server = Server(config=config)
    outside = server.behind("", "outside", username="root", password=b"p")
    outside.subscribe("#")
    client = server.behind(MOUNTED, username="ann", password=b"p")
    client.feed(subscribe("r/1", 0, 1, 5), subscribe("w", 0, 2, 5))
    assert [body[-1] for _, body in client.take()] == [0, 0x87]
    client.feed(publish("w", b"m", 1, 1, 5), publish("r/1", b"m", 1, 2, 5))
    assert [body[2:] for _, body in client.take()] == [b"", b"\x87"]
    assert names(outside) == ["in/a/w"]


def test_a_session_belongs_to_its_mount_point() -> None:
    server = Server(host=Host(), config=Config(storage=StorageConfig()))
    kept: dict[str, Any] = {"clean": False, "properties": KEPT}
    client = server.behind(MOUNTED, **kept)
    client.feed(subscribe("t", 1, 1, 5))
    server.sync()
    client.lose()
    server.behind("", "sender").feed(publish("in/a/t", b"m", 1, 1, 5))
    server.sync()
    server = server.crash()
    back = server.behind(MOUNTED, **kept)
    assert back.connack[1][0] == 1
    assert names(back) == ["t"]
    back.lose()
    # Another one would see other topics by the same names: it gets a new session.
    for mount_point in ("in/b/", ""):
        other = server.behind(mount_point, **kept)
        server.sync()
        assert other.connack[1][0] == 0
        assert names(other) == []
        other.lose()


def test_what_has_no_form_behind_the_mount_point_is_settled(server: Server) -> None:
    """Such a message cannot be routed there; if one is in the queue all the same, it is dropped."""
    inside = server.behind(MOUNTED)
    inside.subscribe("t", 1)
    connection = inside.connection
    assert isinstance(connection, MqttConnection)
    session = connection.session
    assert session is not None
    assert session.outgoing is not None
    stray = Message(PROTOCOL_NONE, Address("amq.topic", b"t"), b"", b"m", 1, True, 0, 0)
    session.outgoing.put(stray, b"")
    server.settle()
    assert inside.take() == []
    assert len(session.outgoing.queue) == 0


@pytest.mark.parametrize("mount_point", ["a", "a/+/", "#/", "$SYS/", "$a/", "a\0/"])
def test_what_is_no_mount_point(mount_point: str) -> None:
    with pytest.raises(ConfigError, match="mount_point"):
        ListenerConfig(protocol="mqtt", address="127.0.0.1:0", mount_point=mount_point)


def test_a_response_topic_is_found_among_all_kinds_of_properties() -> None:
    before = b"\x01\x01\x02\x00\x00\x00\x05\x03\x00\x01\x08\x0b\x80\x01\x26\x00\x01\x08\x00\x01\x08"
    after = b"\x09\x00\x02\x08\x00"
    raw = before + RESPONSE + text("r") + after
    assert change_response_topic(raw, lambda found: b"x/" + found) == (
        before + RESPONSE + text("x/r") + after
    )
    assert change_response_topic(raw, lambda _: None) == before + after
    assert change_response_topic(before, lambda found: found * 2) == before

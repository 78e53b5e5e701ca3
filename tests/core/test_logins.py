"""Connections end once what they came with does not hold any more, on every protocol."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from tests.support import amqp, mqtt, native
from tests.support.authentication import MOSQUITTO_7, permit
from trivium.config import AuthConfig, Config, LimitsConfig, Listen, StorageConfig
from trivium.runtime.authentication import GRACE_MS
from trivium.security import hash_queue
from trivium.security.passwords import hash_password
from trivium_native.wire import frames


class Road:
    """A broker with the user ann, and its clients by one protocol."""

    def __init__(self, protocol: str, limits: LimitsConfig | None = None) -> None:
        self.protocol = protocol
        config = Config(
            listen={protocol: Listen(0)},
            storage=StorageConfig(mode="memory"),
            limits=limits or LimitsConfig(),
            auth=AuthConfig(anonymous="never"),
        )
        module: Any = {"mqtt": mqtt, "amqp": amqp, "native": native}[protocol]
        self.server: Any = module.Server(config=config)
        self.users = self.server.broker.users
        self.keys = self.server.broker.authentication.api_keys
        self.users.add("ann", MOSQUITTO_7)
        permit(self.server.broker, "ann", "bob")

    def open(self, name: str = "ann", password: str = "right") -> Any:
        client = self.server.connect()
        if self.protocol == "mqtt":
            return client.open(name, 5, username=name, password=password.encode())
        if self.protocol == "amqp":
            return client.handshake(name.encode(), password.encode())
        fields = {"username": name, "password": password.encode()}
        assert client.greet().send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
        return client

    def end_turn(self) -> None:
        self.server.end_turn()

    def assert_ended(self, client: Any) -> None:
        data = client.take_bytes()
        if self.protocol == "mqtt":
            assert data in (b"\xe0\x01\x87", b"\xe0\x02\x87\x00")
        else:
            assert b"the credentials do not hold any more" in data
            if self.protocol == "amqp":
                assert b"CONNECTION_FORCED - " in data
            else:
                assert data[4] == frames.CLOSE

    def assert_stays(self, client: Any) -> None:
        assert client.take_bytes() == b""
        assert not client.is_closed


@pytest.fixture(params=["mqtt", "amqp", "native"])
def road(request: pytest.FixtureRequest) -> Road:
    return Road(request.param)


CHANGES: dict[str, Callable[[Road], None]] = {
    "deleted": lambda road: road.users.delete("ann"),
    "password": lambda road: road.users.set_password("ann", hash_password(b"new")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_user_that_is_deleted_or_has_another_password_is_disconnected(
    road: Road, change: str
) -> None:
    client, other = road.open(), road.open("guest", "guest")
    CHANGES[change](road)
    road.end_turn()
    road.assert_ended(client)
    road.assert_stays(other)


def test_other_tags_hold_at_once(road: Road) -> None:
    client = road.open()
    assert client.connection.identity.tags == set()
    road.users.set_tags("ann", ["administrator"])
    road.end_turn()
    assert client.connection.identity.tags == {"administrator"}
    road.assert_stays(client)


def test_a_connection_ends_when_its_key_is_taken_back(road: Road) -> None:
    road.users.add("bob", MOSQUITTO_7)
    (key, text), (_, other_text) = road.keys.add("ann"), road.keys.add("bob")
    client, other = road.open("ann", text), road.open("bob", other_text)
    road.keys.delete(key.id)
    road.end_turn()
    road.assert_ended(client)
    road.assert_stays(other)


def test_a_connection_ends_when_its_key_expires(road: Road) -> None:
    now = road.server.broker.now_ms
    _, text = road.keys.add("ann", expires_ms=now + 30_000)
    client, other = road.open("ann", text), road.open("guest", "guest")
    road.server.advance(28)
    road.assert_stays(client)
    road.server.advance(3)
    road.assert_ended(client)
    road.assert_stays(other)


def test_a_key_holds_before_its_time_and_not_at_it(road: Road) -> None:
    broker = road.server.broker
    ends = broker.now_ms + 30_000
    _, text = road.keys.add("ann", expires_ms=ends)
    client = road.open("ann", text)
    broker.now_ms = ends - 1
    broker.logins.tick()
    road.end_turn()
    road.assert_stays(client)
    broker.now_ms = ends
    broker.logins.tick()
    road.end_turn()
    road.assert_ended(client)


def test_only_what_expires_is_looked_at_and_nothing_of_who_has_left(road: Road) -> None:
    logins = road.server.broker.logins
    _, text = road.keys.add("ann", expires_ms=road.server.broker.now_ms + 30_000)
    client, other = road.open("ann", text), road.open("guest", "guest")
    assert logins.expiring == {client.connection}
    client.lose()
    assert logins.expiring == set()
    assert not other.is_closed


# Clients that say nothing


@pytest.mark.parametrize("protocol", ["mqtt", "amqp", "native"])
def test_the_oldest_silent_client_gives_way_to_one_too_many(protocol: str) -> None:
    road = Road(protocol, LimitsConfig(max_handshakes=3))
    known = road.open()
    silent = [road.server.connect() for _ in range(3)]
    road.server.advance(GRACE_MS / 1000)
    newest = road.server.connect()
    assert [client.transport.is_aborted for client in silent] == [True, False, False]
    assert not known.is_closed
    assert not newest.is_closed
    # Who is gone counts no more.
    silent[1].lose()
    road.server.connect()
    assert not silent[2].transport.is_aborted


@pytest.mark.parametrize("protocol", ["mqtt", "amqp", "native"])
def test_clients_that_come_all_at_once_are_not_taken_for_silent(protocol: str) -> None:
    road = Road(protocol, LimitsConfig(max_handshakes=2))
    clients = [road.server.connect() for _ in range(10)]
    assert not any(client.transport.is_aborted for client in clients)


def connect_sending(road: Road, size: int) -> Any:
    """A client that has sent so many bytes of what would let it in, and not all of them."""
    client = road.server.connect()
    client.take_bytes()
    begin = {
        "mqtt": b"\x10\xff\xff\x0e",
        "amqp": b"AMQP\x00\x00\x09\x01" + b"\x01\x00\x00\x00\x00\x0f\xff",
        "native": (4096).to_bytes(4, "little"),
    }[road.protocol]
    client.feed(begin)
    for _ in range(size - len(begin)):
        client.feed(b"\x01")
    return client


def closed(*clients: Any) -> list[bool]:
    return [client.transport.is_aborted for client in clients]


@pytest.mark.parametrize("protocol", ["mqtt", "amqp", "native"])
def test_of_those_who_are_not_in_whoever_sent_most_gives_way(protocol: str) -> None:
    road = Road(protocol, LimitsConfig(max_unauthenticated_bytes=1000))
    inside = road.open("guest", "guest")
    small, large = connect_sending(road, 300), connect_sending(road, 600)
    assert closed(inside, small, large) == [False, False, False]
    other = connect_sending(road, 200)
    assert closed(inside, small, large, other) == [False, False, True, False]
    large.lose()
    # What it had sent does not count any more, and that of who is in never did.
    again = connect_sending(road, 500)
    road.assert_stays(inside)
    assert closed(small, other, again) == [False, False, False]
    connect_sending(road, 1)
    again.feed(b"\x01" * 400)
    assert closed(small, other, again) == [False, False, True]


@pytest.mark.parametrize("protocol", ["mqtt", "amqp", "native"])
def test_what_came_before_counts_no_more_for_a_client_that_is_in_or_gone(protocol: str) -> None:
    road = Road(protocol, LimitsConfig(max_unauthenticated_bytes=1000))
    for _ in range(20):
        road.open("guest", "guest")
        connect_sending(road, 100).lose()
    waiting = connect_sending(road, 1000)
    assert closed(waiting) == [False]


def test_of_one_who_is_refused_nothing_is_kept() -> None:
    road = Road("mqtt")
    client = road.server.connect()
    # Passwords and names are bounded by themselves.
    will = ("w", b"x" * 50_000, 0, False)
    packet = mqtt.connect("c", 5, username="ann", password=b"wrong", will=will)
    tracemalloc.start()
    try:
        client.feed(packet)
        assert client.is_closed
        client.lose()
        assert tracemalloc.get_traced_memory()[0] < 25_000
    finally:
        tracemalloc.stop()


def show(road: Road, name: str, password: bytes = b"right") -> Any:
    """A client that has shown who it is."""
    client = road.server.connect()
    if road.protocol == "mqtt":
        client.feed(mqtt.connect("c", 5, username=name, password=password))
    elif road.protocol == "amqp":
        client.feed(amqp.PROTOCOL_HEADER)
        client.take()
        client.send(amqp.start_ok(user=name.encode(), password=password), channel=0)
    else:
        client.greet()
        client.feed(native.frame(frames.AUTH, 2, {"username": name, "password": password}))
    return client


@pytest.mark.parametrize("name", ["ann", "nobody"])
def test_who_cannot_be_looked_at_is_told_to_come_again(
    road: Road, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_queue, "MAX_PER_ADDRESS", 0)
    client = show(road, name)
    data = client.take_bytes()
    assert b"too many clients want to come in: try again later" in data
    if road.protocol == "mqtt":
        assert data[2:4] == b"\x00\x89"
        old = road.server.connect()
        old.feed(mqtt.connect("c", 4, username=name, password=b"right"))
        assert old.take_bytes() == b"\x20\x02\x00\x03"
    elif road.protocol == "amqp":
        assert b"RESOURCE_ERROR - " in data
        assert b"\x00\x0a\x00\x32\x01\xfa" in data
    else:
        assert (data[4], msgpack.unpackb(data[13:])[0]) == (frames.ERROR, 403)
    assert road.server.adapter.metrics.authentication_failures == 0
    # Passwords that need no hash, and those that were right before, are looked at.
    road.assert_stays(road.open("guest", "guest"))


def test_who_waits_when_the_broker_stops_is_told_so(road: Road) -> None:
    road.server.driver.is_pool_busy = True
    client = show(road, "ann")
    client.connection.shutdown()
    road.end_turn()
    data = client.take_bytes()
    expected = {"mqtt": b"\x20\x03\x00\x88\x00", "amqp": b"CONNECTION_FORCED - "}
    assert expected.get(road.protocol, b"the broker stops") in data


@pytest.mark.parametrize("protocol", ["mqtt", "amqp", "native"])
def test_who_waits_for_us_to_decide_need_not_hurry(protocol: str) -> None:
    road = Road(protocol, LimitsConfig(handshake_seconds=5))
    road.server.driver.is_pool_busy = True
    client = show(road, "ann")
    road.server.advance(6)
    assert closed(client) == [False]
    for each in road.server.driver.blocking:
        each()
    road.end_turn()
    assert client.connection.login is not None

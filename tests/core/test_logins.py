"""Connections end once what they came with does not hold any more, on every protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import amqp, mqtt, native
from tests.support.authentication import MOSQUITTO_7, permit
from trivium.config import Config, LimitsConfig, Listen, StorageConfig
from trivium.runtime.authentication import GRACE_MS
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

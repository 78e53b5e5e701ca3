"""CONNECT, CONNACK and what ends a connection, rule by rule."""

from __future__ import annotations

import struct

import pytest

from tests.support.mqtt import Client, Server, connect, packet, publish, subscribe, text
from trivium.config import EVERYTHING, AuthConfig, Config, LimitsConfig, Listen, UserConfig
from trivium.security.passwords import hash_password
from trivium_mqtt.options import MqttOptions


def refused(client: Client, *data: bytes) -> bytes:
    """What is written before the connection is closed."""
    client.feed(*data)
    assert client.is_closed
    return client.take_bytes()


def properties_of(client: Client) -> bytes:
    body = client.connack[1]
    assert body[2] == len(body) - 3
    return body[3:]


@pytest.mark.parametrize("version", [3, 4])
def test_connack_of_mqtt_3(version: int) -> None:
    client = Server().connect()
    client.feed(connect("c", version))
    assert client.take_bytes() == b"\x20\x02\x00\x00"


def test_connack_of_mqtt_5_states_the_limits() -> None:
    client = Server().open("c", 5)
    assert properties_of(client) == (b"\x21\x20\x00" + b"\x27\x01\x00\x00\x00" + b"\x22\x00\x40")


def test_mqtt_3_1_0_1_first_packet_must_be_connect() -> None:
    for data in (b"\xc0\x00", publish("a"), b"\x20\x02\x00\x00", subscribe("a"), b"\x00\x00"):
        assert refused(Server().connect(), data) == b""


def test_a_huge_first_packet_is_refused_before_it_is_read() -> None:
    client = Server().connect()
    assert refused(client, b"\x30") == b""
    client = Server().connect()
    assert refused(client, b"\x10\xff\xff\xff\x7f") == b""


def test_mqtt_3_1_0_2_second_connect_is_a_protocol_error() -> None:
    server = Server()
    assert refused(server.open("a", 4), connect("a", 4)) == b""
    assert refused(server.open("b", 5), connect("b", 5)) == b"\xe0\x01\x82"


def test_mqtt_3_1_2_1_unknown_protocol_name() -> None:
    body = text("HTTP") + b"\x04\x02\x00\x00" + text("c")
    assert refused(Server().connect(), packet(0x10, body)) == b""


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        ("MQTT", 3, b"\x20\x02\x00\x01"),
        ("MQIsdp", 4, b"\x20\x02\x00\x01"),
        ("MQTT", 0x84, b"\x20\x02\x00\x01"),
        ("MQTT", 6, b"\x20\x03\x00\x84\x00"),
    ],
)
def test_mqtt_3_1_2_2_unacceptable_protocol_level(name: str, level: int, answer: bytes) -> None:
    body = text(name) + bytes((level, 2, 0, 0)) + text("c")
    assert refused(Server().connect(), packet(0x10, body)) == answer


@pytest.mark.parametrize(
    "flags",
    [
        0x03,  # reserved (MQTT-3.1.2-3)
        0x0A,  # will QoS without will (MQTT-3.1.2-13)
        0x22,  # will retain without will (MQTT-3.1.2-15)
        0x1E,  # will QoS 3 (MQTT-3.1.2-14)
        0x42,  # password without user name (MQTT-3.1.2-22), allowed in MQTT 5
    ],
)
def test_mqtt_3_1_2_connect_flags(flags: int) -> None:
    rest = text("c") + text("w") + text("w") + text("p")
    data = packet(0x10, text("MQTT") + bytes((4, flags, 0, 0)) + rest)
    assert refused(Server().connect(), data) == b""
    if flags != 0x42:
        data = packet(0x10, text("MQTT") + bytes((5, flags, 0, 0)) + b"\x00" + rest)
        assert refused(Server().connect(), data) == b"\x20\x03\x00\x81\x00"


def test_mqtt_3_1_3_5_client_id_must_be_utf_8() -> None:
    for client_id in (b"\xff", b"a\x00", b"\xed\xa0\x80"):
        assert refused(Server().connect(), connect(client_id, 4)) == b""
        assert refused(Server().connect(), connect(client_id, 5)) == b"\x20\x03\x00\x81\x00"


def test_mqtt_3_1_3_7_empty_client_id_needs_a_clean_session() -> None:
    assert refused(Server().connect(), connect("", 4, clean=False)) == b"\x20\x02\x00\x02"
    assert refused(Server().connect(), connect("", 3)) == b"\x20\x02\x00\x02"
    client = Server().connect()
    client.feed(connect("", 4))
    assert client.take_bytes() == b"\x20\x02\x00\x00"


def test_mqtt_3_1_3_6_length_of_the_client_id() -> None:
    server = Server()
    server.open("x" * 1024, 4)
    assert refused(server.connect(), connect("x" * 1025, 4)) == b"\x20\x02\x00\x02"
    assert refused(server.connect(), connect("x" * 1025, 5)) == b"\x20\x03\x00\x85\x00"


def test_mqtt_3_2_2_16_assigned_client_id_is_told_and_can_be_used() -> None:
    server = Server()
    client = server.open("", 5, properties=b"\x11\x00\x00\x00\x0a")
    found = properties_of(client)
    at = found.index(b"\x12") + 3
    assigned = found[at : at + found[at - 1]]
    client.lose()
    again = server.open(assigned.decode(), 5, clean=False)
    assert again.connack[1][0] == 1


def test_connect_with_bytes_behind_its_fields() -> None:
    data = packet(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text("c") + b"x")
    assert refused(Server().connect(), data) == b""


def test_mqtt_5_duplicate_connect_property() -> None:
    data = connect("c", 5, properties=b"\x21\x00\x01\x21\x00\x01")
    assert refused(Server().connect(), data) == b"\x20\x03\x00\x82\x00"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (b"\x21\x00\x00", 0x82),  # receive maximum 0
        (b"\x27\x00\x00\x00\x00", 0x82),  # maximum packet size 0
        (b"\x19\x02", 0x82),  # request response information neither 0 nor 1
        (b"\x01\x01", 0x81),  # a property of other packets
        (b"\x7f\x01", 0x81),  # no property at all
        (b"\x21\x00", 0x81),  # cut off
        (b"\x15" + text("SCRAM"), 0x8C),  # authentication method
        (b"\x16" + text("data"), 0x82),  # authentication data without method
        (b"\x26" + text("a") + text(b"\xff"), 0x81),  # not UTF-8
    ],
)
def test_mqtt_5_connect_property_that_is_not_valid(properties: bytes, reason: int) -> None:
    data = connect("c", 5, properties=properties)
    assert refused(Server().connect(), data) == bytes((0x20, 3, 0, reason, 0))


def test_mqtt_5_properties_longer_than_the_packet_and_long_varints() -> None:
    head = text("MQTT") + b"\x05\x02\x00\x00"
    for size in (b"\x7f", b"\xff\xff\xff\xff\x01", b"\x80\x00", b"\xff"):
        assert refused(Server().connect(), packet(0x10, head + size + text("c"))) == (
            b"\x20\x03\x00\x81\x00"
        )


def test_a_connect_with_thousands_of_properties_is_accepted() -> None:
    client = Server().open("c", 5, properties=(b"\x26" + text("n") + text("v")) * 5000)
    assert client.connack[1][1] == 0


# Who may connect


def config(anonymous: str = "never", **users: str) -> Config:
    return Config(
        listen={"mqtt": Listen(0)},
        auth=AuthConfig(anonymous=anonymous),  # type: ignore[arg-type]
        users={
            name: UserConfig(password=password, permissions=EVERYTHING)
            for name, password in users.items()
        },
    )


def test_anonymous_is_refused_unless_configured() -> None:
    server = Server(config=config())
    assert refused(server.connect(), connect("c", 4)) == b"\x20\x02\x00\x05"
    assert refused(server.connect(), connect("c", 5)) == b"\x20\x03\x00\x87\x00"
    assert server.adapter.metrics.authentication_failures == 2


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("anonymous", ["always", "loopback"])
@pytest.mark.parametrize(
    ("username", "password"), [("p", None), ("p", b"x"), ("", None), ("", b"x"), (None, b"x")]
)
def test_credentials_of_nobody_are_anonymous_where_that_is_admitted(
    username: str | None, password: bytes | None, anonymous: str, version: int
) -> None:
    if username is None and version == 4:
        return
    server = Server(config=config(anonymous, ann="secret"))
    client = server.open("c", version, username=username, password=password)
    client.feed(b"\xc0\x00")
    assert client.take_bytes() == b"\xd0\x00"
    assert server.adapter.metrics.authentication_failures == 0


@pytest.mark.parametrize("anonymous", ["always", "loopback"])
def test_credentials_of_somebody_must_be_right_where_anonymous_clients_are_admitted(
    anonymous: str,
) -> None:
    server = Server(config=config(anonymous, ann="secret"))
    for password in (b"wrong", None):
        data = connect("c", 5, username="ann", password=password)
        assert refused(server.connect(), data) == b"\x20\x03\x00\x86\x00"
    data = connect("c", 4, username="guest", password=b"wrong")
    assert refused(server.connect(), data) == b"\x20\x02\x00\x04"
    data = connect("c", 4, username="guest", password=b"guest")
    assert refused(server.connect(is_loopback=False), data) == b"\x20\x02\x00\x04"


def test_an_empty_user_name_without_password_is_anonymous() -> None:
    server = Server(config=config())
    data = connect("c", 5, username="")
    assert refused(server.connect(), data) == b"\x20\x03\x00\x87\x00"
    data = connect("c", 4, username="", password=b"")
    assert refused(server.connect(), data) == b"\x20\x02\x00\x05"


def test_a_password_alone_is_no_user() -> None:
    server = Server(config=config(ann="x"))
    assert refused(server.connect(), connect("c", 5, password=b"x")) == b"\x20\x03\x00\x87\x00"


def test_wrong_credentials() -> None:
    server = Server(config=config(ann="secret"))
    data = connect("c", 4, username="ann", password=b"wrong")
    assert refused(server.connect(), data) == b"\x20\x02\x00\x04"
    data = connect("c", 5, username="ann")
    assert refused(server.connect(), data) == b"\x20\x03\x00\x86\x00"
    data = connect("c", 5, username="bob", password=b"secret")
    assert refused(server.connect(), data) == b"\x20\x03\x00\x86\x00"


def test_refused_credentials_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(config=config(ann="secret"))
    with caplog.at_level("INFO"):
        refused(server.connect(), connect("c", 5, username="ann\n", password=b"wrong"))
    assert "user 'ann\\n' is refused" in caplog.text
    assert "wrong" not in caplog.text


def test_right_credentials() -> None:
    server = Server(config=config(ann="secret"))
    server.open("c", 4, username="ann", password=b"secret")


def test_input_waits_for_a_password_check_in_another_thread() -> None:
    server = Server(config=config(ann=hash_password(b"secret")))
    server.driver.is_pool_busy = True
    client = server.connect()
    client.feed(connect("c", 4, username="ann", password=b"secret") + b"\xc0\x00")
    client.feed(b"\xc0", b"\x00")
    assert client.take_bytes() == b""
    assert client.transport.is_paused
    server.driver.blocking.pop()()
    server.settle()
    assert client.take_bytes() == b"\x20\x02\x00\x00" + b"\xd0\x00" * 2
    assert not client.transport.is_paused


@pytest.mark.parametrize("user", ["ann", "nobody", "guest"])
def test_a_refusal_waits_for_the_work_of_a_hash_whoever_is_refused(user: str) -> None:
    server = Server(config=config(ann=hash_password(b"secret")))
    server.driver.is_pool_busy = True
    client = server.connect()
    client.feed(connect("c", 4, username=user, password=b"wrong"))
    assert client.take_bytes() == b""
    (work,) = server.driver.blocking
    work()
    server.settle()
    assert client.take_bytes() == b"\x20\x02\x00\x04"


def test_a_late_refusal_and_a_connection_that_is_gone_by_then() -> None:
    server = Server(config=config(ann=hash_password(b"secret")))
    server.driver.is_pool_busy = True
    client = server.connect()
    client.feed(connect("c", 4, username="ann", password=b"wrong") + b"\xc0\x00")
    server.driver.blocking.pop()()
    server.settle()
    assert client.take_bytes() == b"\x20\x02\x00\x04"
    assert client.is_closed
    client = server.connect()
    client.feed(connect("c", 4, username="ann", password=b"secret"))
    client.lose()
    server.driver.blocking.pop()()
    server.settle()
    assert client.take_bytes() == b""


# Time


def test_the_handshake_has_a_time_limit() -> None:
    server = Server(config=Config(listen={"mqtt": Listen(0)}, limits=LimitsConfig()))
    client = server.connect()
    client.feed(b"\x10")
    server.advance(5)
    client.feed(b"\x20")
    assert not client.is_closed
    server.advance(7)
    # Nothing is left for it to read: its descriptor is free at once.
    assert client.transport.is_aborted


@pytest.mark.parametrize(("version", "answer"), [(4, b""), (5, b"\xe0\x01\x8d")])
def test_mqtt_3_1_2_22_keep_alive_is_one_and_a_half_times_as_long(
    version: int, answer: bytes
) -> None:
    server = Server()
    client = server.open("c", version, keep_alive=10)
    server.advance(1)
    server.advance(14)
    assert not client.is_closed
    client.feed(b"\xc0\x00")
    assert client.take_bytes() == b"\xd0\x00"
    server.advance(1)
    server.advance(14)
    assert not client.is_closed
    server.advance(3)
    assert client.take_bytes() == answer
    assert client.transport.calls == ["cut"]


@pytest.mark.parametrize("keep_alive", [1, 2, 10])
def test_keep_alive_is_counted_from_the_last_byte_and_not_from_the_look_behind_it(
    keep_alive: int,
) -> None:
    server = Server()
    client = server.open("c", 4, keep_alive=keep_alive)
    server.broker.now_ms += 999
    client.feed(b"\xc0\x00")
    server.broker.tick(0.0)
    server.broker.now_ms += keep_alive * 1500
    server.broker.tick(0.0)
    assert not client.is_closed
    server.broker.now_ms += 1
    server.broker.tick(0.0)
    assert client.is_closed


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_makes_no_difference_to_keep_alive(step: int) -> None:
    server = Server()
    client = server.open("c", 4, keep_alive=10)
    server.step_clock(step)
    server.advance(14)
    assert not client.is_closed
    server.step_clock(step)
    server.advance(2)
    assert client.is_closed


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_makes_no_difference_to_the_time_for_connect(step: int) -> None:
    server = Server()
    silent = server.connect()
    server.step_clock(step)
    server.advance(9)
    assert not silent.is_closed
    server.step_clock(step)
    server.advance(2)
    assert silent.is_closed


def test_keep_alive_zero_turns_it_off() -> None:
    server = Server()
    client = server.open("c", 4)
    server.advance(100_000)
    assert not client.is_closed


def test_mqtt_3_1_2_21_server_keep_alive_overrules_the_client() -> None:
    server = Server(options=MqttOptions(server_keep_alive=60))
    assert b"\x13\x00\x3c" in properties_of(server.open("a", 5, keep_alive=0))
    assert b"\x13" not in properties_of(server.open("b", 5, keep_alive=30))
    client = server.open("c", 5, keep_alive=1000)
    server.advance(1)
    server.advance(92)
    assert client.is_closed


# The end


def test_mqtt_3_14_1_1_disconnect_flags_are_reserved() -> None:
    server = Server()
    assert refused(server.open("a", 4), b"\xe1\x00") == b""
    assert refused(server.open("b", 5), b"\xe1\x00") == b"\xe0\x01\x81"


def test_mqtt_3_14_4_nothing_is_read_behind_disconnect() -> None:
    server = Server()
    client = server.open("c", 4)
    client.feed(b"\xe0\x00\xc0\x00")
    assert client.is_closed
    assert client.take_bytes() == b""


def test_shutdown_tells_mqtt_5_clients() -> None:
    server = Server()
    clients = [server.open("a", 4), server.open("b", 5)]
    for client in clients:
        client.connection.shutdown()
    server.settle()
    assert [client.take_bytes() for client in clients] == [b"", b"\xe0\x01\x8b"]
    assert all(client.is_closed for client in clients)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xc1\x00", 0x81),  # reserved flags (MQTT-2.1.3-1)
        (b"\x80\x05\x00\x01\x00\x00\x00", 0x81),
        (b"\x60\x02\x00\x01", 0x81),
        (b"\x00\x00", 0x81),  # reserved packet type
        (b"\x20\x02\x00\x00", 0x82),  # CONNACK, SUBACK, UNSUBACK, PINGRESP come from servers only
        (b"\x90\x04\x00\x01\x00\x00", 0x82),
        (b"\xb0\x04\x00\x01\x00\x00", 0x82),
        (b"\xd0\x00", 0x82),
        (b"\xf0\x00", 0x82),  # AUTH without a method
        (b"\xc0\x01x", 0x81),
        (b"\xc0\x80\x80\x80\x80", 0x81),  # remaining length of five bytes
        (b"\xc0\x80\x00", 0x81),  # and of more than needed
        (b"\x40\x02\x00\x00", 0x82),  # packet identifier 0 (MQTT-2.2.1-3)
        (b"\x40\x01\x00", 0x81),
        (b"\x40\x05\x00\x01\x00\x00x", 0x81),
        (b"\xe0\x01\x01", 0x82),
    ],
)
def test_bad_packets_end_the_connection_with_their_reason(data: bytes, reason: int) -> None:
    server = Server()
    assert refused(server.open("a", 5), data) == bytes((0xE0, 1, reason))
    if data[0] != 0x40 or len(data) != 7:
        assert refused(server.open("b", 4), data) == b""
    other = server.open("c", 4)
    other.feed(b"\xc0\x00")
    assert other.take_bytes() == b"\xd0\x00"


def test_mqtt_3_2_2_15_packet_above_the_maximum() -> None:
    server = Server(
        config=Config(listen={"mqtt": Listen(0)}, limits=LimitsConfig(max_message_bytes=100))
    )
    client = server.open("c", 5)
    assert b"\x27\x00\x00\x00\x64" in properties_of(client)
    client.feed(publish("a", bytes(100 - 2 - 3 - 1), version=5))
    assert not client.is_closed
    assert refused(client, publish("a", bytes(100), version=5)[:2]) == b"\xe0\x01\x95"
    assert refused(server.open("b", 4), publish("a", bytes(100))[:2]) == b""


# Takeover


@pytest.mark.parametrize(("version", "answer"), [(4, b""), (5, b"\xe0\x01\x8e")])
def test_mqtt_3_1_4_3_second_connection_takes_the_first_over(version: int, answer: bytes) -> None:
    server = Server()
    first = server.open("c", version)
    second = server.open("c", version)
    assert first.is_closed
    assert first.take_bytes() == answer
    first.lose()
    second.feed(b"\xc0\x00")
    assert second.take_bytes() == b"\xd0\x00"


def test_a_taken_over_connection_leaves_the_session_to_the_next() -> None:
    server = Server()
    first = server.open("c", 4, clean=False)
    first.subscribe("t", 1)
    second = server.open("c", 4, clean=False)
    assert second.connack == (0x20, b"\x01\x00")
    first.lose()
    server.open("p").feed(publish("t", b"x", 1))
    assert second.take_bytes() == b"\x32\x06\x00\x01t\x00\x01x"


def test_input_is_counted_and_connections_too() -> None:
    server = Server()
    client = server.open("c", 4)
    client.feed(b"\xc0\x00")
    client.leave()
    metrics = server.adapter.metrics
    assert metrics.bytes_received == len(connect("c", 4)) + 4
    assert metrics.bytes_sent == 4 + 2
    assert (metrics.connections_opened, metrics.connections_closed) == (1, 1)


def test_large_packets_in_small_pieces_arrive_whole() -> None:
    server = Server()
    receiver = server.open("r", 4)
    receiver.subscribe("t")
    sender = server.open("s", 4)
    payload = struct.pack(">I", 7) * 250_000
    data = publish("t", payload)
    sender.feed(*(data[at : at + 1000] for at in range(0, len(data), 1000)))
    assert receiver.take_bytes() == data


@pytest.mark.parametrize(("version", "answer"), [(4, b""), (5, b"\xe0\x01\x80")])
def test_a_fault_of_ours_is_told_as_one(version: int, answer: bytes) -> None:
    server = Server()
    client = server.open("c", version)
    client.connection.internal_error()
    server.settle()
    assert client.is_closed
    assert client.take_bytes() == answer


@pytest.mark.parametrize(("version", "answer"), [(4, "20020003"), (5, "2003008800")])
def test_a_fault_of_ours_while_credentials_are_checked_is_told_as_one(
    version: int, answer: str
) -> None:
    server = Server(config=config(me=hash_password(b"secret")))
    server.driver.is_pool_busy = True
    client = server.connect()
    client.feed(connect("c", version, username="me", password=b"secret"))
    client.connection.internal_error()
    server.settle()
    assert client.is_closed
    assert client.take_bytes() == bytes.fromhex(answer)


def test_a_fault_of_ours_before_connect_has_no_answer() -> None:
    server = Server()
    client = server.connect()
    client.connection.internal_error()
    server.settle()
    assert client.is_closed
    assert client.take_bytes() == b""

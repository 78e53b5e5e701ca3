"""CONNECT, CONNACK and what ends a connection, rule by rule."""

from __future__ import annotations

import struct

import pytest

from tests.support.mqtt import (
    Bench,
    Client,
    connect,
    packet,
    publish,
    subscribe,
    text,
)
from trivium.config import AuthConfig, Config, LimitsConfig, Listen, UserConfig
from trivium.security.passwords import hash_password
from trivium_mqtt.options import MqttOptions


def refused(client: Client, *data: bytes) -> bytes:
    """What is written before the connection is closed."""
    client.send(*data)
    assert client.is_closed
    return client.received()


def properties_of(client: Client) -> bytes:
    body = client.connack[1]
    assert body[2] == len(body) - 3
    return body[3:]


@pytest.mark.parametrize("version", [3, 4])
def test_connack_of_mqtt_3(version: int) -> None:
    client = Bench().client()
    client.send(connect("c", version))
    assert client.received() == b"\x20\x02\x00\x00"


def test_connack_of_mqtt_5_states_the_limits() -> None:
    client = Bench().connect("c", 5)
    assert properties_of(client) == (b"\x21\x20\x00" + b"\x27\x01\x00\x00\x00" + b"\x22\x00\x40")


def test_mqtt_3_1_0_1_first_packet_must_be_connect() -> None:
    for data in (b"\xc0\x00", publish("a"), b"\x20\x02\x00\x00", subscribe("a"), b"\x00\x00"):
        assert refused(Bench().client(), data) == b""


def test_a_huge_first_packet_is_refused_before_it_is_read() -> None:
    client = Bench().client()
    assert refused(client, b"\x30") == b""
    client = Bench().client()
    assert refused(client, b"\x10\xff\xff\xff\x7f") == b""


def test_mqtt_3_1_0_2_second_connect_is_a_protocol_error() -> None:
    bench = Bench()
    assert refused(bench.connect("a", 4), connect("a", 4)) == b""
    assert refused(bench.connect("b", 5), connect("b", 5)) == b"\xe0\x01\x82"


def test_mqtt_3_1_2_1_unknown_protocol_name() -> None:
    body = text("HTTP") + b"\x04\x02\x00\x00" + text("c")
    assert refused(Bench().client(), packet(0x10, body)) == b""


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
    assert refused(Bench().client(), packet(0x10, body)) == answer


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
    assert refused(Bench().client(), data) == b""
    if flags != 0x42:
        data = packet(0x10, text("MQTT") + bytes((5, flags, 0, 0)) + b"\x00" + rest)
        assert refused(Bench().client(), data) == b"\x20\x03\x00\x81\x00"


def test_mqtt_3_1_3_5_client_id_must_be_utf_8() -> None:
    for client_id in (b"\xff", b"a\x00", b"\xed\xa0\x80"):
        assert refused(Bench().client(), connect(client_id, 4)) == b""
        assert refused(Bench().client(), connect(client_id, 5)) == b"\x20\x03\x00\x81\x00"


def test_mqtt_3_1_3_7_empty_client_id_needs_a_clean_session() -> None:
    assert refused(Bench().client(), connect("", 4, clean=False)) == b"\x20\x02\x00\x02"
    assert refused(Bench().client(), connect("", 3)) == b"\x20\x02\x00\x02"
    client = Bench().client()
    client.send(connect("", 4))
    assert client.received() == b"\x20\x02\x00\x00"


def test_mqtt_3_1_3_6_length_of_the_client_id() -> None:
    bench = Bench()
    bench.connect("x" * 1024, 4)
    assert refused(bench.client(), connect("x" * 1025, 4)) == b"\x20\x02\x00\x02"
    assert refused(bench.client(), connect("x" * 1025, 5)) == b"\x20\x03\x00\x85\x00"


def test_mqtt_3_2_2_16_assigned_client_id_is_told_and_can_be_used() -> None:
    bench = Bench()
    client = bench.connect("", 5, properties=b"\x11\x00\x00\x00\x0a")
    found = properties_of(client)
    at = found.index(b"\x12") + 3
    assigned = found[at : at + found[at - 1]]
    client.lose()
    again = bench.connect(assigned.decode(), 5, clean=False)
    assert again.connack[1][0] == 1


def test_connect_with_bytes_behind_its_fields() -> None:
    data = packet(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text("c") + b"x")
    assert refused(Bench().client(), data) == b""


def test_mqtt_5_duplicate_connect_property() -> None:
    data = connect("c", 5, properties=b"\x21\x00\x01\x21\x00\x01")
    assert refused(Bench().client(), data) == b"\x20\x03\x00\x82\x00"


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
    assert refused(Bench().client(), data) == bytes((0x20, 3, 0, reason, 0))


def test_mqtt_5_properties_longer_than_the_packet_and_long_varints() -> None:
    head = text("MQTT") + b"\x05\x02\x00\x00"
    for size in (b"\x7f", b"\xff\xff\xff\xff\x01", b"\x80\x00", b"\xff"):
        assert refused(Bench().client(), packet(0x10, head + size + text("c"))) == (
            b"\x20\x03\x00\x81\x00"
        )


def test_a_connect_with_thousands_of_properties_is_accepted() -> None:
    client = Bench().connect("c", 5, properties=(b"\x26" + text("n") + text("v")) * 5000)
    assert client.connack[1][1] == 0


# Who may connect


def config(anonymous: str = "never", **users: str) -> Config:
    return Config(
        listen={"mqtt": Listen(0)},
        auth=AuthConfig(anonymous=anonymous),  # type: ignore[arg-type]
        users={name: UserConfig(password=password) for name, password in users.items()},
    )


def test_anonymous_is_refused_unless_configured() -> None:
    bench = Bench(config=config())
    assert refused(bench.client(), connect("c", 4)) == b"\x20\x02\x00\x05"
    assert refused(bench.client(), connect("c", 5)) == b"\x20\x03\x00\x87\x00"
    assert bench.adapter.metrics.authentication_failures == 2


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
    bench = Bench(config=config(anonymous, ann="secret"))
    client = bench.connect("c", version, username=username, password=password)
    client.send(b"\xc0\x00")
    assert client.received() == b"\xd0\x00"
    assert bench.adapter.metrics.authentication_failures == 0


@pytest.mark.parametrize("anonymous", ["always", "loopback"])
def test_credentials_of_somebody_must_be_right_where_anonymous_clients_are_admitted(
    anonymous: str,
) -> None:
    bench = Bench(config=config(anonymous, ann="secret"))
    for password in (b"wrong", None):
        data = connect("c", 5, username="ann", password=password)
        assert refused(bench.client(), data) == b"\x20\x03\x00\x86\x00"
    data = connect("c", 4, username="guest", password=b"wrong")
    assert refused(bench.client(), data) == b"\x20\x02\x00\x04"
    data = connect("c", 4, username="guest", password=b"guest")
    assert refused(bench.client(is_loopback=False), data) == b"\x20\x02\x00\x04"


def test_an_empty_user_name_without_password_is_anonymous() -> None:
    bench = Bench(config=config())
    data = connect("c", 5, username="")
    assert refused(bench.client(), data) == b"\x20\x03\x00\x87\x00"
    data = connect("c", 4, username="", password=b"")
    assert refused(bench.client(), data) == b"\x20\x02\x00\x05"


def test_a_password_alone_is_no_user() -> None:
    bench = Bench(config=config(ann="x"))
    assert refused(bench.client(), connect("c", 5, password=b"x")) == b"\x20\x03\x00\x87\x00"


def test_wrong_credentials() -> None:
    bench = Bench(config=config(ann="secret"))
    data = connect("c", 4, username="ann", password=b"wrong")
    assert refused(bench.client(), data) == b"\x20\x02\x00\x04"
    data = connect("c", 5, username="ann")
    assert refused(bench.client(), data) == b"\x20\x03\x00\x86\x00"
    data = connect("c", 5, username="bob", password=b"secret")
    assert refused(bench.client(), data) == b"\x20\x03\x00\x86\x00"


def test_refused_credentials_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(config=config(ann="secret"))
    with caplog.at_level("INFO"):
        refused(bench.client(), connect("c", 5, username="ann\n", password=b"wrong"))
    assert "user 'ann\\n' is refused" in caplog.text
    assert "wrong" not in caplog.text


def test_right_credentials() -> None:
    bench = Bench(config=config(ann="secret"))
    bench.connect("c", 4, username="ann", password=b"secret")


def test_input_waits_for_a_password_check_in_another_thread() -> None:
    bench = Bench(config=config(ann=hash_password(b"secret")))
    client = bench.client()
    client.send(connect("c", 4, username="ann", password=b"secret") + b"\xc0\x00")
    client.send(b"\xc0", b"\x00")
    assert client.received() == b""
    assert client.transport.is_paused
    work, done = bench.driver.blocking.pop()
    done(work())
    bench.settle()
    assert client.received() == b"\x20\x02\x00\x00" + b"\xd0\x00" * 2
    assert not client.transport.is_paused


@pytest.mark.parametrize("user", ["ann", "nobody", "guest"])
def test_a_refusal_waits_for_the_work_of_a_hash_whoever_is_refused(user: str) -> None:
    bench = Bench(config=config(ann=hash_password(b"secret")))
    client = bench.client()
    client.send(connect("c", 4, username=user, password=b"wrong"))
    assert client.received() == b""
    ((work, done),) = bench.driver.blocking
    done(work())
    bench.settle()
    assert client.received() == b"\x20\x02\x00\x04"


def test_a_late_refusal_and_a_connection_that_is_gone_by_then() -> None:
    bench = Bench(config=config(ann=hash_password(b"secret")))
    client = bench.client()
    client.send(connect("c", 4, username="ann", password=b"wrong") + b"\xc0\x00")
    work, done = bench.driver.blocking.pop()
    done(work())
    bench.settle()
    assert client.received() == b"\x20\x02\x00\x04"
    assert client.is_closed
    client = bench.client()
    client.send(connect("c", 4, username="ann", password=b"secret"))
    client.lose()
    work, done = bench.driver.blocking.pop()
    done(work())
    bench.settle()
    assert client.received() == b""


# Time


def test_the_handshake_has_a_time_limit() -> None:
    bench = Bench(config=Config(listen={"mqtt": Listen(0)}, limits=LimitsConfig()))
    client = bench.client()
    client.send(b"\x10")
    bench.advance(5)
    client.send(b"\x20")
    assert not client.is_closed
    bench.advance(7)
    assert client.is_closed


@pytest.mark.parametrize(("version", "answer"), [(4, b""), (5, b"\xe0\x01\x8d")])
def test_mqtt_3_1_2_22_keep_alive_is_one_and_a_half_times_as_long(
    version: int, answer: bytes
) -> None:
    bench = Bench()
    client = bench.connect("c", version, keep_alive=10)
    bench.advance(1)
    bench.advance(14)
    assert not client.is_closed
    client.send(b"\xc0\x00")
    assert client.received() == b"\xd0\x00"
    bench.advance(1)
    bench.advance(14)
    assert not client.is_closed
    bench.advance(3)
    assert client.received() == answer
    assert client.is_closed


@pytest.mark.parametrize("keep_alive", [1, 2, 10])
def test_keep_alive_is_counted_from_the_last_byte_and_not_from_the_look_behind_it(
    keep_alive: int,
) -> None:
    bench = Bench()
    client = bench.connect("c", 4, keep_alive=keep_alive)
    bench.broker.now_ms += 999
    client.send(b"\xc0\x00")
    bench.broker.tick(0.0)
    bench.broker.now_ms += keep_alive * 1500
    bench.broker.tick(0.0)
    assert not client.is_closed
    bench.broker.now_ms += 1
    bench.broker.tick(0.0)
    assert client.is_closed


def test_keep_alive_zero_turns_it_off() -> None:
    bench = Bench()
    client = bench.connect("c", 4)
    bench.advance(100_000)
    assert not client.is_closed


def test_mqtt_3_1_2_21_server_keep_alive_overrules_the_client() -> None:
    bench = Bench(options=MqttOptions(server_keep_alive=60))
    assert b"\x13\x00\x3c" in properties_of(bench.connect("a", 5, keep_alive=0))
    assert b"\x13" not in properties_of(bench.connect("b", 5, keep_alive=30))
    client = bench.connect("c", 5, keep_alive=1000)
    bench.advance(1)
    bench.advance(92)
    assert client.is_closed


# The end


def test_mqtt_3_14_1_1_disconnect_flags_are_reserved() -> None:
    bench = Bench()
    assert refused(bench.connect("a", 4), b"\xe1\x00") == b""
    assert refused(bench.connect("b", 5), b"\xe1\x00") == b"\xe0\x01\x81"


def test_mqtt_3_14_4_nothing_is_read_behind_disconnect() -> None:
    bench = Bench()
    client = bench.connect("c", 4)
    client.send(b"\xe0\x00\xc0\x00")
    assert client.is_closed
    assert client.received() == b""


def test_shutdown_tells_mqtt_5_clients() -> None:
    bench = Bench()
    clients = [bench.connect("a", 4), bench.connect("b", 5)]
    for client in clients:
        client.connection.shutdown()
    bench.settle()
    assert [client.received() for client in clients] == [b"", b"\xe0\x01\x8b"]
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
    bench = Bench()
    assert refused(bench.connect("a", 5), data) == bytes((0xE0, 1, reason))
    if data[0] != 0x40 or len(data) != 7:
        assert refused(bench.connect("b", 4), data) == b""
    other = bench.connect("c", 4)
    other.send(b"\xc0\x00")
    assert other.received() == b"\xd0\x00"


def test_mqtt_3_2_2_15_packet_above_the_maximum() -> None:
    bench = Bench(
        config=Config(listen={"mqtt": Listen(0)}, limits=LimitsConfig(max_message_bytes=100))
    )
    client = bench.connect("c", 5)
    assert b"\x27\x00\x00\x00\x64" in properties_of(client)
    client.send(publish("a", bytes(100 - 2 - 3 - 1), version=5))
    assert not client.is_closed
    assert refused(client, publish("a", bytes(100), version=5)[:2]) == b"\xe0\x01\x95"
    assert refused(bench.connect("b", 4), publish("a", bytes(100))[:2]) == b""


# Takeover


@pytest.mark.parametrize(("version", "answer"), [(4, b""), (5, b"\xe0\x01\x8e")])
def test_mqtt_3_1_4_3_second_connection_takes_the_first_over(version: int, answer: bytes) -> None:
    bench = Bench()
    first = bench.connect("c", version)
    second = bench.connect("c", version)
    assert first.is_closed
    assert first.received() == answer
    first.lose()
    second.send(b"\xc0\x00")
    assert second.received() == b"\xd0\x00"


def test_a_taken_over_connection_leaves_the_session_to_the_next() -> None:
    bench = Bench()
    first = bench.connect("c", 4, clean=False)
    first.subscribe("t", 1)
    second = bench.connect("c", 4, clean=False)
    assert second.connack == (0x20, b"\x01\x00")
    first.lose()
    bench.connect("p").send(publish("t", b"x", 1))
    assert second.received() == b"\x32\x06\x00\x01t\x00\x01x"


def test_input_is_counted_and_connections_too() -> None:
    bench = Bench()
    client = bench.connect("c", 4)
    client.send(b"\xc0\x00")
    client.leave()
    metrics = bench.adapter.metrics
    assert metrics.bytes_received == len(connect("c", 4)) + 4
    assert metrics.bytes_sent == 4 + 2
    assert (metrics.connections_opened, metrics.connections_closed) == (1, 1)


def test_large_packets_in_small_pieces_arrive_whole() -> None:
    bench = Bench()
    receiver = bench.connect("r", 4)
    receiver.subscribe("t")
    sender = bench.connect("s", 4)
    payload = struct.pack(">I", 7) * 250_000
    data = publish("t", payload)
    sender.send(*(data[at : at + 1000] for at in range(0, len(data), 1000)))
    assert receiver.received() == data


@pytest.mark.parametrize(("version", "answer"), [(4, b""), (5, b"\xe0\x01\x80")])
def test_a_fault_of_ours_is_told_as_one(version: int, answer: bytes) -> None:
    bench = Bench()
    client = bench.connect("c", version)
    client.connection.internal_error()
    bench.settle()
    assert client.is_closed
    assert client.received() == answer


@pytest.mark.parametrize(("version", "answer"), [(4, "20020003"), (5, "2003008800")])
def test_a_fault_of_ours_while_credentials_are_checked_is_told_as_one(
    version: int, answer: str
) -> None:
    bench = Bench(config=config(me=hash_password(b"secret")))
    client = bench.client()
    client.send(connect("c", version, username="me", password=b"secret"))
    client.connection.internal_error()
    bench.settle()
    assert client.is_closed
    assert client.received() == bytes.fromhex(answer)


def test_a_fault_of_ours_before_connect_has_no_answer() -> None:
    bench = Bench()
    client = bench.client()
    client.connection.internal_error()
    bench.settle()
    assert client.is_closed
    assert client.received() == b""

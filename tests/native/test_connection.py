"""Handshake, time-outs, heartbeats, and what closes a connection."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native import vectors
from tests.support.authentication import permit
from tests.support.native import Client, Server, entry, frame, payloads, publish
from tests.support.steps import calls
from trivium.config import EVERYTHING, AuthConfig, Config, LimitsConfig, Listen, UserConfig
from trivium.messages.message import Message
from trivium.routing.exchanges import Binding, Destination
from trivium.runtime.adapter import OUTPUT_HIGH_WATER
from trivium.security.passwords import hash_password
from trivium_native.server.connection import NativeConnection
from trivium_native.wire import frames

LISTEN = {"native": Listen(0)}


@pytest.fixture
def server() -> Server:
    return Server(config=Config(listen=LISTEN))


def error(received: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Correlation id and code of the one frame, an ERROR."""
    ((kind, correlation, body),) = received
    assert kind == frames.ERROR
    return correlation, msgpack.unpackb(body)[0]


def closes(client: Client, code: int, kind: int, body: bytes | dict[str, Any]) -> None:
    assert error(client.send(kind, 5, body))[1] == code
    assert client.is_closed


# Handshake


def test_hello_is_answered_with_version_and_limits(server: Server) -> None:
    client = server.connect()
    hello = {"protocol": "trivium", "version": 1, "heartbeat": 7, "client": "c"}
    ((kind, correlation, body),) = client.send(frames.HELLO, 9, hello)
    assert (kind, correlation) == (frames.HELLO, 9)
    fields = msgpack.unpackb(body)
    assert fields.pop("broker").startswith("trivium ")
    assert fields.pop("compression") == ["lz4", "zstd"]
    limit = server.broker.config.limits.max_message_bytes + (1 << 20)
    assert fields.pop("features") == ["filter"]
    assert fields == {"version": 1, "heartbeat": 7, "max_frame": limit}


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"protocol": "trivium", "version": 2}, 102),
        ({"protocol": "other", "version": 1}, 102),
        ({"protocol": "trivium"}, 100),
        ({"protocol": "trivium", "version": 1, "heartbeat": 3601}, 100),
        ({"protocol": "trivium", "version": 1, "surprise": 1}, 100),
        (b"\xc1", 100),
        (b"\x90", 100),
    ],
)
def test_a_wrong_hello_closes(server: Server, hello: bytes | dict[str, Any], code: int) -> None:
    closes(server.connect(), code, frames.HELLO, hello)


@pytest.mark.parametrize("kind", [frames.AUTH, frames.PUBLISH, frames.PING, 0xFF])
def test_nothing_comes_before_hello(server: Server, kind: int) -> None:
    closes(server.connect(), 103, kind, {})


@pytest.mark.parametrize("kind", [frames.HELLO, frames.PUBLISH, frames.FETCH])
def test_nothing_but_auth_comes_after_hello(server: Server, kind: int) -> None:
    closes(server.greet(), 103, kind, {})


@pytest.mark.parametrize("kind", [frames.HELLO, frames.OK, frames.DELIVER, 0xFF])
def test_an_open_connection_takes_no_such_frame(server: Server, kind: int) -> None:
    closes(server.open(), 103, kind, {})


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"no map"])
def test_an_unknown_type_is_named_whatever_its_body(server: Server, body: bytes) -> None:
    documented = set(vectors.frame_types().values())
    unknown = [kind for kind in range(256) if kind not in documented]
    assert len(unknown) > 200
    for kind in unknown:
        closes(server.open(), 103, kind, body)


def test_every_type_that_a_broker_sends_is_refused_from_a_client(server: Server) -> None:
    for kind in (0x01, 0x03, 0x04, 0x06, 0x08, 0x09, 0x11, 0x22, 0x23, 0x27, 0x31, 0x54):
        closes(server.open(), 103, kind, b"")


def test_a_ping_has_no_body(server: Server) -> None:
    closes(server.open(), 100, frames.PING, b"x")


@pytest.mark.parametrize(("length", "code"), [(0, 100), (8, 100), (0xFFFF_FFFF, 101)])
@pytest.mark.parametrize("more", [0, 1, 8])
def test_a_wrong_length_is_refused_before_the_rest_comes(
    server: Server, length: int, code: int, more: int
) -> None:
    for client in (server.connect(), server.open()):
        client.feed(struct.pack("<I", length) + bytes(more))
        ((kind, correlation, body),) = client.take()
        assert (kind, correlation, msgpack.unpackb(body)[0]) == (frames.ERROR, 0, code)
        assert client.is_closed


def test_hello_and_auth_may_come_at_once_byte_by_byte(server: Server) -> None:
    client = server.connect()
    hello = msgpack.packb({"protocol": "trivium", "version": 1})
    auth = msgpack.packb({"vhost": "/"})
    data = struct.pack("<IBQ", 9 + len(hello), 1, 1) + hello
    data += struct.pack("<IBQ", 9 + len(auth), 2, 2) + auth
    data += struct.pack("<IBQ", 9, frames.PING, 3)
    for byte in data:
        client.feed(bytes([byte]))
    assert [(kind, c) for kind, c, _ in client.take()] == [
        (frames.HELLO, 1),
        (frames.OK, 2),
        (frames.PONG, 3),
    ]


def test_anonymous_clients_are_admitted_on_loopback_only() -> None:
    client = Server(config=Config(listen=LISTEN)).greet()
    assert client.send(frames.AUTH, 2, {}) == [(frames.OK, 2, b"\x80")]
    strict = Server(config=Config(listen=LISTEN, auth=AuthConfig(anonymous="never")))
    closes(strict.greet(), 200, frames.AUTH, {})
    assert strict.adapter.metrics.authentication_failures == 1


@pytest.mark.parametrize(("user", "password"), [("guest", b"wrong"), ("nobody", b"guest")])
def test_wrong_credentials_close(
    server: Server, user: str, password: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        closes(server.greet(), 200, frames.AUTH, {"username": user, "password": password})
    assert f"user '{user}' is refused" in caplog.text


def test_an_unknown_vhost_closes(server: Server) -> None:
    closes(server.greet(), 301, frames.AUTH, {"vhost": "none"})


def test_while_a_password_is_checked_nothing_is_read(server: Server) -> None:
    users = {"u": UserConfig(password=hash_password(b"p"), permissions=EVERYTHING)}
    server = Server(config=Config(listen=LISTEN, users=users))
    server.driver.is_pool_busy = True
    client = server.greet()
    assert client.send(frames.AUTH, 2, {"username": "u", "password": b"p"}) == []
    assert client.transport.is_paused
    # What was on its way already waits.
    assert client.send(frames.PING, 3, b"") == []
    server.driver.blocking.pop()()
    server.settle()
    assert [(kind, c) for kind, c, _ in client.take()] == [(frames.OK, 2), (frames.PONG, 3)]
    assert not client.transport.is_paused


@pytest.mark.parametrize("user", ["u", "nobody", "guest"])
def test_a_refusal_waits_for_the_work_of_a_hash_whoever_is_refused(user: str) -> None:
    users = {"u": UserConfig(password=hash_password(b"p"), permissions=EVERYTHING)}
    server = Server(config=Config(listen=LISTEN, users=users))
    server.driver.is_pool_busy = True
    client = server.greet()
    assert client.send(frames.AUTH, 2, {"username": user, "password": b"wrong"}) == []
    (work,) = server.driver.blocking
    work()
    server.settle()
    assert error(client.take()) == (2, 200)


def test_a_client_that_left_meanwhile_is_not_let_in(server: Server) -> None:
    users = {"u": UserConfig(password=hash_password(b"p"), permissions=EVERYTHING)}
    server = Server(config=Config(listen=LISTEN, users=users))
    server.driver.is_pool_busy = True
    client = server.greet()
    client.send(frames.AUTH, 2, {"username": "u", "password": b"p"})
    client.lose()
    server.driver.blocking.pop()()
    server.settle()
    assert client.take() == []


# Renewal


def keyed(server: Server, seconds: int, user: str = "guest") -> bytes:
    """An API key of a user."""
    expires_ms = server.broker.now_ms + seconds * 1000
    return server.broker.authentication.api_keys.add(user, expires_ms=expires_ms)[1].encode()


def test_auth_again_renews_what_expires(server: Server) -> None:
    client = server.greet()
    assert client.send(frames.AUTH, 2, {"password": keyed(server, 30)})[0][0] == frames.OK
    assert client.ask(frames.AUTH, password=keyed(server, 90)) == {}
    server.advance(60)
    assert client.send(frames.PING, 3, b"") == [(frames.PONG, 3, b"")]
    server.advance(32)
    ((kind, _, body),) = client.take()
    assert (kind, msgpack.unpackb(body)[0]) == (frames.CLOSE, 200)
    assert client.is_closed


@pytest.mark.parametrize("secret", ["wrong", "", "other", "expired"])
def test_a_renewal_that_is_refused_ends_the_connection(server: Server, secret: str) -> None:
    server.broker.users.add("ann", hash_password(b"x"))
    client = server.greet()
    client.send(frames.AUTH, 2, {"password": keyed(server, 30)})
    shown = secret.encode()
    if secret == "other":
        shown = keyed(server, 90, "ann")
    elif secret == "expired":
        shown = keyed(server, 5)
        server.advance(10)
    assert error(client.send(frames.AUTH, 3, {"password": shown})) == (3, 200)
    assert client.is_closed
    assert server.adapter.metrics.authentication_failures == 1


def test_the_password_of_the_user_renews_and_lasts_while_it_is_that(server: Server) -> None:
    permit(server.broker, "ann")
    server.broker.users.add("ann", hash_password(b"x"))
    client = server.greet()
    client.send(frames.AUTH, 2, {"password": keyed(server, 30, "ann")})
    assert client.ask(frames.AUTH, password=b"x") == {}
    server.advance(60)
    assert client.send(frames.PING, 3, b"") == [(frames.PONG, 3, b"")]
    server.broker.users.set_password("ann", hash_password(b"y"))
    server.settle()
    ((kind, _, body),) = client.take()
    assert (kind, msgpack.unpackb(body)[0]) == (frames.CLOSE, 200)


def test_where_nothing_expires_a_renewal_changes_nothing(server: Server) -> None:
    client = server.open()
    assert client.ask(frames.AUTH, password=b"whatever") == {}
    assert client.refused(frames.AUTH, password=b"x", username="ann") == 300
    assert client.refused(frames.AUTH) == 300


def test_while_a_renewal_is_checked_nothing_is_read(server: Server) -> None:
    for _ in range(4):
        wrong = {"username": "guest", "password": b"wrong"}
        server.greet().send(frames.AUTH, 2, wrong)
    server.advance(9)
    client = server.greet()
    client.send(frames.AUTH, 2, {"password": keyed(server, 30)})
    for _ in range(2):
        server.greet().send(frames.AUTH, 2, {"username": "guest", "password": b"wrong"})
    # It stands in line behind the others of this user.
    assert client.send(frames.AUTH, 3, {"password": b"guest"}) == []
    assert client.send(frames.PING, 4, b"") == []
    server.advance(9)
    assert [found[:2] for found in client.take()] == [(frames.OK, 3), (frames.PONG, 4)]
    # One whose answer comes when it has gone.
    client = server.greet()
    client.send(frames.AUTH, 2, {"password": keyed(server, 30)})
    for _ in range(5):
        server.greet().send(frames.AUTH, 2, {"username": "guest", "password": b"wrong"})
    assert client.send(frames.AUTH, 3, {"password": b"guest"}) == []
    client.lose()
    server.advance(9)
    assert client.take() == []


# Limits


@pytest.mark.pure
@pytest.mark.parametrize("size", [1 << 16, 1 << 18, 1 << 20])
def test_a_frame_in_small_pieces_is_put_together_once(size: int) -> None:
    server = Server(config=Config(listen=LISTEN, limits=LimitsConfig(max_message_bytes=size)))
    client = server.open()
    client.ask(frames.DECLARE, kind="queue", name="q")
    data = frame(frames.PUBLISH, 3, publish(entry(bytes(size), b"q", b"")))
    pieces = [data[at : at + 1460] for at in range(0, len(data), 1460)]
    # One for its length, one for what that announces.
    assert calls(NativeConnection.take_frames, lambda: client.feed(*pieces)) <= 2
    assert len(server.vhost.queue("q")) == 1


def test_a_large_first_frame_is_refused_by_its_length(server: Server) -> None:
    client = server.connect()
    client.feed(struct.pack("<IBQ", 16 * 1024 + 1, frames.HELLO, 1))
    assert error(client.take())[1] == 101
    assert client.is_closed


def test_after_authentication_the_limit_follows_the_largest_message() -> None:
    limits = LimitsConfig(max_message_bytes=1000)
    server = Server(config=Config(listen=LISTEN, limits=limits))
    client = server.open()
    client.feed(struct.pack("<IBQ", 1000 + (1 << 20), frames.PUBLISH, 1))
    assert client.take() == []
    other = server.open()
    other.feed(struct.pack("<IBQ", 1001 + (1 << 20), frames.PUBLISH, 1))
    assert error(other.take())[1] == 101


def test_a_client_that_does_not_read_its_answers_is_not_read(server: Server) -> None:
    client = server.open()
    server.vhost.declare_stream("s", 1024)
    body = msgpack.packb({"streams": ["s"]})
    request = struct.pack("<IBQ", 9 + len(body), frames.METADATA, 1) + body
    client.connection.is_writable = False
    client.connection.feed(request * 1000)
    client.connection.feed(request)
    assert client.connection.output_size == 0
    states = [not client.transport.is_paused]
    client.connection.is_writable = True
    sizes: list[int] = []
    answers = 0
    while answers < 1001:
        client.connection.flushed()
        sizes.append(client.connection.output_size)
        server.settle()
        answers += len(client.take())
    assert max(sizes) < 2 * OUTPUT_HIGH_WATER
    states.append(not client.transport.is_paused)
    assert states == [False, True]
    assert client.send(frames.PING, 1, b"") == [(frames.PONG, 1, b"")]


# Life


def test_without_a_handshake_in_time_the_connection_closes() -> None:
    limits = LimitsConfig(handshake_seconds=5)
    server = Server(config=Config(listen=LISTEN, limits=limits))
    silent, slow, open_ = server.connect(), server.greet(), server.open()
    server.advance(4)
    # Bytes do not extend it.
    slow.feed(b"\x01")
    server.advance(1)
    # Its socket is not kept for an answer, as with the other protocols.
    assert [each.transport.is_aborted for each in (silent, slow, open_)] == [True, True, False]
    assert silent.take() == slow.take() == []


def test_two_silent_heartbeats_close(server: Server) -> None:
    quiet, lively, without = server.open(10), server.open(10), server.open()
    for _ in range(2):
        server.advance(9)
        assert lively.send(frames.PING, 1, b"") == [(frames.PONG, 1, b"")]
    server.advance(1)
    assert not quiet.is_closed
    # It is counted from the last byte, not from the look behind it.
    server.advance(1)
    assert error(quiet.take())[1] == 104
    assert quiet.transport.calls == ["cut"]
    assert not lively.is_closed
    assert not without.is_closed


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_makes_no_difference_to_heartbeats(
    server: Server, step: int
) -> None:
    client = server.open(10)
    server.step_clock(step)
    server.advance(19)
    assert not client.is_closed
    server.step_clock(step)
    server.advance(2)
    assert client.is_closed


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_makes_no_difference_to_the_time_for_a_handshake(
    server: Server, step: int
) -> None:
    silent = server.connect()
    server.step_clock(step)
    server.advance(9)
    assert not silent.is_closed
    server.step_clock(step)
    server.advance(2)
    assert silent.transport.is_aborted


def test_close_from_the_client_is_not_answered(server: Server) -> None:
    client = server.open()
    assert client.send(frames.CLOSE, 0, msgpack.packb([0, ""])) == []
    assert client.is_closed


def test_on_shutdown_clients_are_told(server: Server) -> None:
    client = server.open()
    client.connection.shutdown()
    server.settle()
    ((kind, _, body),) = client.take()
    assert (kind, msgpack.unpackb(body)[0]) == (frames.CLOSE, 402)
    assert client.is_closed


# Requests that are refused leave the connection open


def test_an_unknown_field_is_refused(server: Server) -> None:
    client = server.open()
    assert client.refused(frames.METADATA, strems=["s"]) == 300
    assert not client.is_closed


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "stream", "name": 1},
        {"kind": "stream", "name": "s" * 256},
        {"kind": "stream", "name": "s", "partitions": 0},
        {"kind": "stream", "name": "s", "partitions": True},
        {"kind": "queue", "name": "q", "durable": 1},
        {"kind": "queue", "name": "q", "arguments": []},
        {"kind": "queue", "name": "q", "arguments": {1: 2}},
        {"kind": "table", "name": "t"},
        {"kind": "exchange", "name": ""},
    ],
)
def test_fields_of_a_wrong_kind_are_refused(server: Server, fields: dict[str, Any]) -> None:
    client = server.open()
    assert client.refused(frames.DECLARE, **fields) == 300


def test_a_request_without_correlation_id_gets_no_reply(server: Server) -> None:
    client = server.open()
    assert client.send(frames.DECLARE, 0, {"kind": "stream", "name": "s"}) == []
    assert "s" in server.vhost.streams
    assert client.send(frames.METADATA, 0, {"streams": ["none"]}) == []


class Faulty(Destination):
    """A destination with a fault."""

    name = "faulty"

    def accept(self, message: Message) -> int:
        raise ZeroDivisionError


def test_a_fault_of_ours_is_for_the_driver_to_judge(server: Server) -> None:
    client = server.open()
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(Faulty(), b"#"))
    with pytest.raises(ZeroDivisionError):
        client.send(frames.PUBLISH, 1, publish(entry()))


def test_a_fault_of_ours_is_told_as_one(server: Server) -> None:
    client = server.open()
    client.connection.internal_error()
    server.settle()
    assert error(client.take()) == (0, 500)
    assert client.is_closed


# Damage

VECTORS = vectors.frames()


@settings(max_examples=200)
@given(st.data())
def test_mutated_frames_touch_nothing_else(data: st.DataObject) -> None:
    server = Server(config=Config(listen=LISTEN))
    watcher = server.open()
    watcher.ask(
        frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"safe"
    )
    client = server.open()
    client.send(frames.DECLARE, 1, {"kind": "stream", "name": "s"})
    client.send(frames.DECLARE, 1, {"kind": "queue", "name": "q"})
    for _ in range(data.draw(st.integers(1, 4))):
        raw = bytearray(VECTORS[data.draw(st.sampled_from(sorted(VECTORS)))])
        for _ in range(data.draw(st.integers(0, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        client.feed(bytes(raw))
    errors = [msgpack.unpackb(body)[0] for kind, _, body in client.take() if kind == frames.ERROR]
    assert 500 not in errors
    assert watcher.send(frames.PUBLISH, 1, publish(entry(b"alive", b"safe")))
    client.lose()
    watcher.send(frames.PUBLISH, 2, publish(entry(b"still", b"safe")))


@given(st.binary(max_size=200))
def test_noise_is_answered_by_the_protocols_own_error(noise: bytes) -> None:
    client = Client(Server(config=Config(listen=LISTEN)))
    client.feed(noise)
    for kind, _, body in client.take():
        assert kind == frames.ERROR
        assert 100 <= msgpack.unpackb(body)[0] <= 104
        assert client.is_closed


def test_the_watcher_in_these_tests_sees_messages(server: Server) -> None:
    client = server.open()
    client.ask(
        frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"safe"
    )
    received = client.send(frames.PUBLISH, 1, publish(entry(b"alive", b"safe")))
    assert payloads(received) == [b"alive"]


def test_what_was_published_before_close_is_confirmed(server: Server) -> None:
    client = server.open()
    body = publish(entry(b"x"))
    goodbye = frames.encode_frame(frames.CLOSE, 0, msgpack.packb([0, ""]))
    client.feed(frames.encode_frame(frames.PUBLISH, 7, body) + goodbye)
    server.settle()
    assert [(kind, correlation) for kind, correlation, _ in client.take()] == [(frames.CONFIRM, 7)]
    assert client.is_closed

"""Enhanced authentication (MQTT 5, 4.12): AUTH, SCRAM-SHA-256, tokens, re-authentication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.mqtt import (
    Client,
    Server,
    block,
    connect,
    packet,
    publish,
    split,
    subscribe,
    text,
)
from tests.support.scram import ITERATIONS, ScramClient
from tests.support.server import NOW_MS
from trivium.config import EVERYTHING, AuthConfig, Config, JwtConfig, LimitsConfig, UserConfig
from trivium.security.passwords import hash_password
from trivium.security.scram import make_keys

SCRAM = b"SCRAM-SHA-256"
TOKEN = b"OAUTH2-JWT"
SECRET = "a secret of more than thirty-two bytes"
KEYS = make_keys(b"pencil", ITERATIONS)
HASHED = hash_password(b"pencil")
REFUSED = b"\x20\x03\x00\x87\x00"


def shown(method: bytes, data: bytes = b"") -> bytes:
    """The properties of an authentication method and its data."""
    found = b"\x15" + text(method)
    return found + b"\x16" + text(data) if data else found


def auth(reason: int, method: bytes = SCRAM, data: bytes = b"") -> bytes:
    return packet(0xF0, bytes((reason,)) + block(shown(method, data)))


def begin(method: bytes, data: bytes = b"", client_id: str = "c", **fields: Any) -> bytes:
    return connect(client_id, 5, properties=shown(method, data), **fields)


def token(user: str = "ann", seconds: int = 60, **claims: Any) -> bytes:
    found = {"sub": user, "exp": NOW_MS // 1000 + seconds} | claims
    return jwt.encode(found, SECRET, "HS256").encode()


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return make_server(tmp_path)


def make_server(tmp_path: Path) -> Server:
    (tmp_path / "key").write_text(SECRET, encoding="utf-8")
    users = {
        name: UserConfig(password="pencil", scram=KEYS.text(), permissions=EVERYTHING)
        for name in ("ann", "bob")
    }
    config = Config(
        auth=AuthConfig(scram=True, scram_iterations=ITERATIONS, anonymous="always"),
        jwt=JwtConfig(key_file=str(tmp_path / "key"), leeway_seconds=0),
        users=users | {"none": UserConfig(password=HASHED, permissions=EVERYTHING)},
        limits=LimitsConfig(handshake_seconds=10),
    )
    return Server(config=config)


def properties_of(body: bytes, at: int) -> bytes:
    assert body[at] == len(body) - at - 1
    return body[at + 1 :]


def challenge(client: Client) -> bytes:
    """The data of the AUTH that asks for more, and that it is one."""
    first, body = client.take_one()
    assert (first, body[0]) == (0xF0, 0x18)
    start = shown(SCRAM, b"x")[:-3]
    found = properties_of(body, 1)
    assert found.startswith(start)
    assert int.from_bytes(found[len(start) : len(start) + 2]) == len(found) - len(start) - 2
    return found[len(start) + 2 :]


def log_in(server: Server, user: str = "ann", **fields: Any) -> Client:
    client = server.connect()
    client.version = 5
    scram = ScramClient(user, "pencil")
    client.feed(begin(SCRAM, scram.first, **fields))
    client.feed(auth(0x18, SCRAM, scram.final(challenge(client))))
    first, body = client.take_one()
    assert (first, body[:2]) == (0x20, b"\x00\x00")
    # MQTT-4.12.0-5: with the method, and the proof of the server
    assert properties_of(body, 2).startswith(shown(SCRAM, scram.signature))
    assert client.connection.identity.name == user
    return client


def token_client(server: Server, shows: bytes, client_id: str = "c") -> Client:
    client = server.connect()
    client.version = 5
    client.feed(begin(TOKEN, shows, client_id))
    first, body = client.take_one()
    assert (first, body[:2]) == (0x20, b"\x00\x00"), body
    assert properties_of(body, 2).startswith(shown(TOKEN) + b"\x21")
    return client


def expect_refused(client: Client, reason: int) -> None:
    assert client.take_bytes() == bytes((0x20, 3, 0, reason, 0))
    assert client.is_closed


def expect_disconnected(client: Client, reason: int) -> None:
    assert client.take_bytes() == bytes((0xE0, 1, reason))
    assert client.is_closed


# SCRAM at the beginning


def test_mqtt_4_12_scram_lets_a_client_in(server: Server) -> None:
    client = log_in(server)
    client.feed(b"\xc0\x00")
    assert client.take_bytes() == b"\xd0\x00"


def test_what_follows_the_last_step_is_carried_out(server: Server) -> None:
    client = server.connect()
    scram = ScramClient("ann", "pencil")
    client.feed(begin(SCRAM, scram.first))
    client.feed(auth(0x18, SCRAM, scram.final(challenge(client))) + b"\xc0\x00")
    assert [first for first, _ in client.take()] == [0x20, 0xD0]


@pytest.mark.parametrize(
    ("user", "password"),
    [("ann", "Pencil"), ("nobody", "pencil"), ("none", "pencil"), ("guest", "guest")],
)
def test_mqtt_4_12_0_4_a_wrong_proof_is_refused_after_the_same_steps(
    server: Server, user: str, password: str
) -> None:
    # guest may come in from this machine only.
    client = server.connect(is_loopback=False)
    scram = ScramClient(user, password)
    client.feed(begin(SCRAM, scram.first))
    client.feed(auth(0x18, SCRAM, scram.final(challenge(client))))
    expect_refused(client, 0x87)
    assert server.adapter.metrics.authentication_failures == 1


@pytest.mark.parametrize("data", [b"", b"n,,n=ann", b"p=tls-unique,,n=ann,r=abc"])
def test_a_first_message_that_is_none_is_refused(server: Server, data: bytes) -> None:
    client = server.connect()
    client.feed(begin(SCRAM, data))
    expect_refused(client, 0x87)


@pytest.mark.parametrize("method", [b"", b"SCRAM-SHA-1", b"PLAIN", b"scram-sha-256", b"x" * 1000])
def test_mqtt_4_12_0_1_an_unknown_method(server: Server, method: bytes) -> None:
    client = server.connect()
    client.feed(begin(method, b"n,,n=ann,r=abc"))
    expect_refused(client, 0x8C)


def test_scram_is_off_unless_it_is_configured() -> None:
    client = Server().connect()
    client.feed(begin(SCRAM, b"n,,n=ann,r=abc"))
    expect_refused(client, 0x8C)


def test_the_method_decides_whatever_password_stands_beside_it(server: Server) -> None:
    client = server.connect()
    scram = ScramClient("ann", "wrong")
    client.feed(begin(SCRAM, scram.first, username="ann", password=b"pencil"))
    client.feed(auth(0x18, SCRAM, scram.final(challenge(client))))
    expect_refused(client, 0x87)
    client = server.connect()
    client.feed(begin(SCRAM, scram.first, username="bob", password=b"pencil"))
    expect_refused(client, 0x87)


def test_a_proof_is_not_taken_twice(server: Server) -> None:
    one, other = server.connect(), server.connect()
    scram = ScramClient("ann", "pencil")
    for client in (one, other):
        client.feed(begin(SCRAM, scram.first))
    final = auth(0x18, SCRAM, scram.final(challenge(one)))
    one.feed(final)
    assert one.take_one()[0] == 0x20
    other.take_bytes()
    other.feed(final)
    expect_refused(other, 0x87)


@pytest.mark.parametrize(
    "data",
    [
        # MQTT-4.12.0-3: not the reason code 0x18
        auth(0x19, SCRAM, b"x"),
        auth(0x00, SCRAM, b"x"),
        auth(0x80, SCRAM, b"x"),
        # MQTT-4.12.0-5: another method
        auth(0x18, TOKEN, b"x"),
        # 3.15.2.2.2: no method
        packet(0xF0),
        packet(0xF0, b"\x18"),
        packet(0xF0, b"\x18\x00"),
        # MQTT-3.1.2-30: neither AUTH nor DISCONNECT
        b"\xc0\x00",
        publish("t", version=5),
        subscribe("t", version=5),
        connect("c", 5),
        packet(0x40, b"\x00\x01"),
    ],
)
def test_mqtt_3_1_2_30_what_may_not_come_before_connack(server: Server, data: bytes) -> None:
    client = server.connect()
    client.feed(begin(SCRAM, b"n,,n=ann,r=abc"))
    challenge(client)
    client.feed(data)
    reason = 0x81 if data == packet(0xF0, b"\x18") else 0x82
    expect_refused(client, reason)


@pytest.mark.parametrize(
    "data",
    [
        packet(0xF1, b"\x18" + block(shown(SCRAM))),
        packet(0xF0, b"\x18" + block(shown(SCRAM)) + b"\x00"),
        packet(0xF0, b"\x18" + block(shown(SCRAM) + b"\x01\x00")),
    ],
)
def test_mqtt_3_15_a_malformed_auth(server: Server, data: bytes) -> None:
    client = server.connect()
    client.feed(begin(SCRAM, b"n,,n=ann,r=abc"))
    challenge(client)
    client.feed(data)
    expect_refused(client, 0x81)


def test_a_client_may_give_up_its_authentication(server: Server) -> None:
    client = server.connect()
    client.feed(begin(SCRAM, b"n,,n=ann,r=abc"))
    challenge(client)
    client.feed(b"\xe0\x00")
    assert client.take_bytes() == b""
    assert client.is_closed


def test_the_handshake_has_its_time_limit_between_steps_too(server: Server) -> None:
    client = server.connect()
    client.feed(begin(SCRAM, b"n,,n=ann,r=abc"))
    server.advance(9)
    assert not client.is_closed
    server.advance(2)
    assert client.transport.is_aborted


def test_a_challenge_that_the_client_does_not_take_is_not_sent(server: Server) -> None:
    client = server.connect()
    properties = b"\x27" + (30).to_bytes(4, "big") + shown(SCRAM, b"n,,n=ann,r=abc")
    client.feed(connect("c", 5, properties=properties))
    assert client.take_bytes() == b""
    assert client.is_closed


def test_who_fails_again_and_again_waits(server: Server) -> None:
    for _ in range(3):
        client = server.connect()
        scram = ScramClient("ann", "wrong")
        client.feed(begin(SCRAM, scram.first))
        client.feed(auth(0x18, SCRAM, scram.final(challenge(client))))
        expect_refused(client, 0x87)
    client = server.connect()
    scram = ScramClient("ann", "pencil")
    client.feed(begin(SCRAM, scram.first))
    client.feed(auth(0x18, SCRAM, scram.final(challenge(client))) + b"\xc0\x00")
    assert client.take_bytes() == b""
    assert client.transport.is_paused
    server.advance(0.3)
    assert [first for first, _ in client.take()] == [0x20, 0xD0]


def test_a_kept_session_is_told_with_the_method(server: Server) -> None:
    kept = b"\x11" + (100).to_bytes(4, "big")
    scram = ScramClient("ann", "pencil")
    for present in (0, 1):
        client = server.connect()
        client.feed(connect("k", 5, clean=False, properties=kept + shown(SCRAM, scram.first)))
        client.feed(auth(0x18, SCRAM, scram.final(challenge(client))))
        server.sync()
        first, body = client.take_one()
        assert (first, body[:2]) == (0x20, bytes((present, 0)))
        assert properties_of(body, 2).startswith(shown(SCRAM, scram.signature))
        client.lose()


def test_mqtt_3_1_2_11_10_data_without_a_method(server: Server) -> None:
    client = server.connect()
    client.feed(connect("c", 5, properties=b"\x16" + text(b"x")))
    expect_refused(client, 0x82)


@pytest.mark.parametrize(("username", "vhost"), [("farm:ann", "farm"), ("ann", "/"), (None, "/")])
def test_a_virtual_host_may_stand_before_the_user(
    server: Server, username: str | None, vhost: str
) -> None:
    server.broker.virtual_hosts.declare("farm")
    client = log_in(server, username=username)
    assert client.connection.access.vhost == vhost


# Tokens


def test_a_token_lets_a_client_in_until_it_expires(server: Server) -> None:
    client = token_client(server, token(seconds=60))
    assert client.connection.identity.name == "ann"
    server.advance(59)
    assert not client.is_closed
    server.advance(2)
    expect_disconnected(client, 0x87)


@pytest.mark.parametrize("data", [b"", b"pencil", b"eyJ.x.y", token()[:-4], token(seconds=-1)])
def test_a_token_that_does_not_hold_is_refused(server: Server, data: bytes) -> None:
    for username in (None, "", "ann"):
        client = server.connect()
        client.feed(begin(TOKEN, data, username=username, password=b"pencil"))
        expect_refused(client, 0x87)


def test_a_method_for_tokens_is_there_only_with_tokens() -> None:
    client = Server().connect()
    client.feed(begin(TOKEN, token()))
    expect_refused(client, 0x8C)


def test_an_api_key_lets_a_client_in(server: Server) -> None:
    _, key = server.broker.authentication.api_keys.add("ann", None, NOW_MS + 60_000)
    client = server.connect()
    client.feed(begin(b"API-KEY", key.encode()))
    assert client.take_one()[1][1] == 0
    _, other = server.broker.authentication.api_keys.add("ann", None, NOW_MS + 600_000)
    client.feed(auth(0x19, b"API-KEY", other.encode()))
    assert client.take_bytes() == auth(0x00, b"API-KEY")
    server.advance(61)
    assert not client.is_closed


# Re-authentication


def test_mqtt_4_12_1_a_new_token_renews(server: Server) -> None:
    client = token_client(server, token(seconds=60))
    client.feed(auth(0x19, TOKEN, token(seconds=600)))
    assert client.take_bytes() == auth(0x00, TOKEN)
    server.advance(100)
    assert not client.is_closed
    server.advance(501)
    expect_disconnected(client, 0x87)


@pytest.mark.parametrize(
    "data", [token("bob", 600), token("ann", -1), b"", b"pencil", token()[:-4]]
)
def test_mqtt_4_12_1_2_what_does_not_renew_ends_the_connection(server: Server, data: bytes) -> None:
    watcher = server.open("w", 5, username="ann", password=b"pencil")
    watcher.subscribe("will")
    client = server.connect()
    client.version = 5
    client.feed(begin(TOKEN, token(), will=("will", b"x", 0, False)))
    client.take_one()
    client.feed(auth(0x19, TOKEN, data))
    expect_disconnected(client, 0x87)
    server.settle()
    assert watcher.take_one()[0] == 0x30


def test_mqtt_4_12_1_scram_again_while_messages_go_on(server: Server) -> None:
    client = log_in(server)
    client.subscribe("t")
    scram = ScramClient("ann", "pencil", nonce="another")
    client.feed(auth(0x19, SCRAM, scram.first))
    data = challenge(client)
    client.feed(publish("t", b"1", version=5) + b"\xc0\x00")
    assert [first for first, _ in client.take()] == [0x30, 0xD0]
    client.feed(auth(0x18, SCRAM, scram.final(data)))
    assert client.take_bytes() == auth(0x00, SCRAM, scram.signature)
    client.feed(publish("t", b"2", version=5))
    assert client.take_one()[1].endswith(b"2")
    # And once more.
    client.feed(auth(0x19, SCRAM, scram.first))
    challenge(client)


@pytest.mark.parametrize(("user", "password"), [("bob", "pencil"), ("ann", "x"), ("none", "x")])
def test_mqtt_4_12_1_2_a_wrong_proof_or_another_user_ends_the_connection(
    server: Server, user: str, password: str
) -> None:
    client = log_in(server)
    scram = ScramClient(user, password)
    client.feed(auth(0x19, SCRAM, scram.first))
    client.feed(auth(0x18, SCRAM, scram.final(challenge(client))))
    expect_disconnected(client, 0x87)


@pytest.mark.parametrize(
    "data",
    [
        # MQTT-4.12.1-1: another method than at first
        auth(0x19, TOKEN, token()),
        # nothing asked for it
        auth(0x18, SCRAM, b"x"),
        auth(0x00, SCRAM, b"x"),
        packet(0xF0),
        # within an exchange
        auth(0x19, SCRAM, b"n,,n=ann,r=abc") * 2,
    ],
)
def test_mqtt_4_12_1_what_may_not_come_once_connected(server: Server, data: bytes) -> None:
    client = log_in(server)
    client.feed(data)
    assert client.take()[-1] == (0xE0, b"\x82")
    assert client.is_closed


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_4_12_0_7_auth_without_a_method(server: Server, version: int) -> None:
    client = server.open("c", version, username="ann", password=b"pencil")
    client.feed(auth(0x19, SCRAM, b"n,,n=ann,r=abc"))
    assert client.take_bytes() == (b"\xe0\x01\x82" if version == 5 else b"")
    assert client.is_closed


def test_steps_of_one_client_are_bounded(server: Server) -> None:
    client = log_in(server)
    scram = ScramClient("ann", "pencil")
    client.feed(auth(0x19, SCRAM, scram.first))
    final = auth(0x18, SCRAM, scram.final(challenge(client)))
    client.feed(final * 3)
    assert [first for first, _ in split(client.take_bytes())] == [0xF0, 0xE0]
    assert client.is_closed


def test_a_decision_that_comes_when_the_client_is_gone(server: Server) -> None:
    for _ in range(4):
        client = server.connect()
        client.feed(begin(TOKEN, token(seconds=-1)))
        client.take_bytes()
    client = server.connect()
    client.feed(begin(TOKEN, token(seconds=-1)))
    assert client.take_bytes() == b""
    client.lose()
    server.advance(2)
    assert client.take_bytes() == b""


def test_input_is_taken_while_a_renewal_waits(server: Server) -> None:
    client = token_client(server, token(seconds=600))
    for _ in range(4):
        stranger = server.connect()
        stranger.feed(begin(TOKEN, token(seconds=-1)))
    # A right token does not wait.
    client.feed(auth(0x19, TOKEN, token(seconds=-1)) + b"\xc0\x00")
    assert client.take_bytes() == b"\xd0\x00"
    # One answer is due at a time.
    client.feed(auth(0x19, TOKEN, token(seconds=900)))
    expect_disconnected(client, 0x82)
    server.advance(10)
    assert client.take_bytes() == b""


CLIENT = ScramClient("ann", "pencil")
PACKETS = st.one_of(
    st.builds(
        auth,
        st.sampled_from((0x00, 0x18, 0x19, 0x80)),
        st.sampled_from((SCRAM, TOKEN, b"")),
        st.one_of(st.binary(max_size=40), st.sampled_from((CLIENT.first, token()))),
    ),
    st.sampled_from((b"\xc0\x00", b"\xe0\x00", publish("t", b"x", 1, version=5), b"\xf0\x00")),
    st.binary(max_size=20).map(lambda body: packet(0xF0, body)),
)
BEGINNINGS = st.sampled_from(
    (
        begin(SCRAM, CLIENT.first),
        begin(TOKEN, token()),
        begin(TOKEN, b"x"),
        connect("c", 5, username="ann", password=b"pencil"),
    )
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BEGINNINGS, st.lists(PACKETS, max_size=6))
def test_whatever_comes_means_the_same_however_it_is_cut(
    tmp_path: Path, first: bytes, packets: list[bytes]
) -> None:
    found = []
    for size in (1, 7, 1 << 20):
        server = make_server(tmp_path)
        client = server.connect()
        data = first + b"".join(packets)
        client.feed(*(data[at : at + size] for at in range(0, len(data), size)))
        # What is answered differs in nonces.
        answers = [(kind, body[:2]) for kind, body in split(client.take_bytes())]
        found.append((answers, client.is_closed))
        client.lose()
        server.open("alive", 5, username="bob", password=b"pencil")
    assert found[0] == found[1] == found[2]


def test_no_secret_is_logged(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        for data in (token(seconds=-1), token()[:-4]):
            client = server.connect()
            client.feed(begin(TOKEN, data))
            assert data.decode() not in caplog.text
    assert "is refused" in caplog.text

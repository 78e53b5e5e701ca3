"""Class connection: negotiation and closing (AMQP 0-9-1, 2.2.4; class 10)."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Literal

import pytest
from pamqp import frame
from pamqp.commands import Basic, Channel, Connection, Queue

from tests.support.amqp import (
    PROTOCOL_HEADER,
    Client,
    Server,
    assert_connection_closed,
    names,
    start_ok,
)
from trivium import __version__
from trivium.config import EVERYTHING, AuthConfig, Config, LimitsConfig, Listen, UserConfig
from trivium.management.global_parameters import GlobalParameters
from trivium.runtime.adapter import DISCARDED_BYTES, ClientCertificate
from trivium.security.passwords import hash_password
from trivium_amqp.handshake import FOR_ANSWERS
from trivium_amqp.options import AmqpOptions

CLOSE_OK = bytes.fromhex("01 0000 00000004 000a0033 ce")


@pytest.mark.parametrize(
    "greeting",
    [
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x01\x01\x09\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_4_2_2_wrong_protocol_header_is_answered_by_the_right_one_and_closed(
    server: Server, greeting: bytes
) -> None:
    client = server.connect()
    client.feed(greeting)
    assert client.take_bytes() == PROTOCOL_HEADER
    assert client.transport.is_closed


def test_protocol_header_may_come_in_pieces(server: Server) -> None:
    client = server.connect()
    for at in range(8):
        assert client.take_bytes() == b""
        client.feed(PROTOCOL_HEADER[at : at + 1])
    assert names(client.take()) == ["Connection.Start"]


def test_connection_start_properties(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    (start,) = client.take()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert set(start.mechanisms.split()) == {"PLAIN", "AMQPLAIN"}
    assert "en_US" in start.locales.split()
    properties = start.server_properties
    assert {"platform", "cluster_name", "information"} < set(properties)
    assert properties["capabilities"] == dict.fromkeys(
        [
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "consumer_priorities",
            "authentication_failure_close",
            "per_consumer_qos",
            "direct_reply_to",
        ],
        True,
    )


def test_connection_start_has_the_name_that_the_broker_was_given(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    assert client.take()[0].server_properties["cluster_name"] == "trivium"
    GlobalParameters(server.broker).set("cluster_name", "here")
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    assert client.take()[0].server_properties["cluster_name"] == "here"


def test_connection_start_names_the_dialect_and_whose_it_is(server: Server) -> None:
    """Clients choose by product and version what they send, kombu the meaning of basic.qos: the
    one that is implemented here it sends to RabbitMQ from 3.3 and before 4.0."""
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    (start,) = client.take()
    properties = start.server_properties
    assert properties["product"] == "RabbitMQ"
    version = re.fullmatch(r"(\d+)\.(\d+)\.\d+", properties["version"])
    assert version is not None
    assert (3, 3) <= (int(version[1]), int(version[2])) < (4, 0)
    assert properties["implementation"] == "Trivium"
    assert properties["implementation_version"] == __version__
    assert f"Trivium {__version__}" in properties["information"]


def test_connection_tune_offers_limits(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(), channel=0)
    tune = client.take()[-1]
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)


def test_amqplain_authenticates(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    client.send(Connection.StartOk({}, "AMQPLAIN", response.decode(), "en_US"), channel=0)
    assert names(client.take()) == ["Connection.Start", "Connection.Tune"]


def test_refused_login_is_403_for_clients_that_announced_authentication_failure_close(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    with caplog.at_level("INFO"):
        client.send(start_ok(password=b"wrong"), channel=0)
    assert "user 'guest' is refused" in caplog.text
    assert_connection_closed(
        client,
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
        " For details see the broker logfile.",
    )
    assert server.adapter.metrics.authentication_failures == 1


@pytest.mark.parametrize(
    "method",
    [
        start_ok(password=b"wrong", capabilities={}),
        Connection.StartOk({}, "EXTERNAL", "", "en_US"),
        Connection.StartOk({}, "PLAIN", "guest", "en_US"),
    ],
)
def test_refused_login_closes_the_socket_of_other_clients(
    server: Server, method: Connection.StartOk
) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.take()
    client.send(method, channel=0)
    assert client.take_bytes() == b""
    assert client.transport.is_closed


def test_guest_is_refused_from_another_machine(server: Server) -> None:
    client = server.connect(is_loopback=False)
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(capabilities={}), channel=0)
    assert client.transport.is_closed


def test_input_is_held_back_while_a_hashed_password_is_checked() -> None:
    server = Server(
        config=Config(
            users={"ada": UserConfig(password=hash_password(b"secret"), permissions=EVERYTHING)}
        )
    )
    server.driver.is_pool_busy = True
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(b"ada", b"secret"), channel=0)
    assert client.transport.calls == ["pause_reading"]
    assert names(client.take()) == ["Connection.Start"]
    # What was in the socket's buffer already.
    client.send(Connection.TuneOk(2047, 131_072, 0), Connection.Open("/"), channel=0)
    assert client.take() == []
    server.driver.blocking.pop()()
    server.settle()
    assert client.transport.calls == ["pause_reading", "resume_reading"]
    assert names(client.take()) == ["Connection.Tune", "Connection.OpenOk"]


@pytest.mark.parametrize("user", [b"ada", b"nobody", b"guest"])
def test_a_refusal_waits_for_the_work_of_a_hash_whoever_is_refused(user: bytes) -> None:
    server = Server(
        config=Config(
            users={"ada": UserConfig(password=hash_password(b"secret"), permissions=EVERYTHING)}
        )
    )
    server.driver.is_pool_busy = True
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(user, b"wrong"), channel=0)
    assert names(client.take()) == ["Connection.Start"]
    (work,) = server.driver.blocking
    work()
    server.settle()
    assert names(client.take()) == ["Connection.Close"]


def test_client_that_left_before_its_password_was_checked_gets_nothing() -> None:
    server = Server(
        config=Config(
            users={"ada": UserConfig(password=hash_password(b"secret"), permissions=EVERYTHING)}
        )
    )
    server.driver.is_pool_busy = True
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(b"ada", b"secret"), channel=0)
    client.take()
    client.lose()
    server.driver.blocking.pop()()
    server.settle()
    assert client.take() == []


@pytest.mark.parametrize(
    ("tune_ok", "text"),
    [
        (
            Connection.TuneOk(2048, 131_072, 0),
            "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)",
        ),
        (
            Connection.TuneOk(1, 131_073, 0),
            "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        (
            Connection.TuneOk(1, 4095, 0),
            "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)",
        ),
    ],
)
def test_tune_ok_beyond_the_offer_is_530(
    server: Server, tune_ok: Connection.TuneOk, text: str
) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(), channel=0)
    client.send(tune_ok, channel=0)
    assert_connection_closed(client, 530, f"NOT_ALLOWED - {text}")


def test_open_of_a_missing_vhost_is_530(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(), channel=0)
    client.send(Connection.TuneOk(1, 131_072, 0), channel=0)
    client.send(Connection.Open("nowhere"), channel=0)
    assert_connection_closed(client, 530, "NOT_ALLOWED - vhost nowhere not found")


def test_vhosts_are_apart(server: Server) -> None:
    server.broker.virtual_hosts.declare("other")
    server.open().declare("q")
    other = server.open(vhost="other")
    assert other.ask(Queue.Declare(queue="q", passive=True)).reply_text == (
        "NOT_FOUND - no queue 'q' in vhost 'other'"
    )


@pytest.mark.parametrize("method", [Connection.TuneOk(1, 4096, 0), Connection.Open("/")])
def test_methods_out_of_order_are_503(server: Server, method: Connection.Open) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(method, channel=0)
    closed = client.take()[-1]
    assert (closed.reply_code, closed.class_id) == (503, 10)


def test_channel_before_open_is_504(server: Server) -> None:
    client = server.connect()
    client.feed(PROTOCOL_HEADER)
    client.send(Channel.Open())
    assert client.take()[-1].reply_code == 504


def test_close_is_answered_and_closes_the_socket(client: Client) -> None:
    client.send(Connection.Close(200, "bye", 0, 0), channel=0)
    assert client.take_bytes() == CLOSE_OK
    assert client.transport.is_closed


def test_after_connection_close_only_close_ok_counts(client: Client) -> None:
    client.send(Queue.Declare(queue="before"))
    client.send(Connection.Blocked("no client may send this"), channel=0)
    assert client.take()[-1].reply_code == 504
    client.send(Queue.Declare(queue="after"))
    assert client.take() == []
    assert "after" not in client.server.vhost.queues
    assert not client.transport.is_closed
    client.feed(CLOSE_OK)
    assert client.transport.is_closed


def test_client_that_does_not_answer_connection_close_is_cut_off(client: Client) -> None:
    # It is older than it may take to answer.
    client.server.advance(5)
    client.send(Connection.OpenOk(), channel=0)
    client.server.advance(2.999)
    assert not client.transport.is_closed
    client.server.advance(0.001)
    assert client.transport.is_closed


def test_client_that_answers_connection_close_with_too_much_is_cut_off(client: Client) -> None:
    client.send(Connection.OpenOk(), channel=0)
    for _ in range(DISCARDED_BYTES >> 20):
        client.feed(bytes(1 << 20))
    assert not client.transport.is_aborted
    client.feed(b"\x00")
    assert client.transport.is_aborted


def test_client_whose_frame_was_half_read_can_answer_connection_close(server: Server) -> None:
    client = server.open()
    publish = frame.marshal(Basic.Publish(routing_key="q" * 200), 1)
    client.feed(publish[:50])
    client.connection.shutdown()
    server.settle()
    client.feed(publish[50:] + CLOSE_OK)
    assert client.transport.is_closed


def test_client_that_was_not_read_can_answer_connection_close(server: Server) -> None:
    client = server.open()
    client.connection.hold_input(FOR_ANSWERS)
    client.connection.shutdown()
    server.settle()
    assert client.transport.calls == ["pause_reading", "resume_reading"]
    client.feed(CLOSE_OK)
    assert client.transport.is_closed


def test_shutdown_is_320(client: Client) -> None:
    client.connection.shutdown()
    client.server.settle()
    assert_connection_closed(client, 320, "CONNECTION_FORCED - broker forced connection closure")


def test_a_fault_of_ours_is_541_and_the_rest_of_the_stream_is_ignored(client: Client) -> None:
    client.connection.internal_error()
    client.server.settle()
    assert_connection_closed(client, 541, "INTERNAL_ERROR - internal error")
    client.feed(b"\x00" * 100)
    assert client.take() == []
    client.feed(frame.marshal(Connection.CloseOk(), 0))
    assert client.transport.is_closed


def test_update_secret_is_accepted(client: Client) -> None:
    answer = client.ask(Connection.UpdateSecret("new", "rotation"), channel=0)
    assert answer.name == "Connection.UpdateSecretOk"


def expiring(server: Server, seconds: int, user: str = "guest") -> bytes:
    """A key of a user."""
    expires_ms = server.broker.now_ms + seconds * 1000
    _, text = server.broker.authentication.api_keys.add(user, expires_ms=expires_ms)
    return text.encode()


def test_update_secret_keeps_a_connection_whose_credential_expires(server: Server) -> None:
    client = server.open(user=b"guest", password=expiring(server, 30))
    new = expiring(server, 90).decode()
    answer = client.ask(Connection.UpdateSecret(new, "rotation"), channel=0)
    assert answer.name == "Connection.UpdateSecretOk"
    server.advance(60)
    assert client.take() == []
    server.advance(32)
    text = "CONNECTION_FORCED - the credentials do not hold any more"
    assert_connection_closed(client, 320, text)


@pytest.mark.parametrize("secret", ["wrong", "guest", "other"])
def test_update_secret_with_one_that_does_not_hold_ends_the_connection(
    server: Server, secret: str
) -> None:
    """A password lets in as well; another user's key does not."""
    server.broker.users.add("ann", hash_password(b"x"))
    client = server.open(user=b"guest", password=expiring(server, 30))
    if secret == "other":
        secret = expiring(server, 90, "ann").decode()
    client.send(Connection.UpdateSecret(secret, "rotation"), channel=0)
    if secret == "guest":
        assert names(client.take()) == ["Connection.UpdateSecretOk"]
    else:
        text = "NOT_ALLOWED - New secret was refused by one of the backends"
        assert_connection_closed(client, 530, text)


def start_with(client: Client, mechanism: str, response: str = "") -> None:
    client.feed(PROTOCOL_HEADER)
    start = start_ok()
    start.mechanism, start.response = mechanism, response
    client.send(start, channel=0)


def certified(server: Server, owner: str) -> Client:
    """A client whose certificate TLS has verified."""
    client = server.connect()
    client.connection.peer.certificate = ClientCertificate(owner, (), (), (), owner)
    return client


@pytest.mark.parametrize("response", ["", "ann"])
def test_external_lets_in_whom_the_certificate_names(server: Server, response: str) -> None:
    client = certified(server, "ann")
    start_with(client, "EXTERNAL", response)
    start, tune = client.take()
    assert start.mechanisms == "PLAIN AMQPLAIN EXTERNAL"
    assert tune.name == "Connection.Tune"
    assert client.connection.identity.name == "ann"


@pytest.mark.parametrize(
    ("owner", "response"), [("ann", "bob"), ("", ""), ("", "ann"), ("a\nb", ""), ("guest", "\xff")]
)
def test_external_refuses_everybody_else(server: Server, owner: str, response: str) -> None:
    client = certified(server, owner)
    start_with(client, "EXTERNAL", response)
    assert names(client.take()) == ["Connection.Start", "Connection.Close"]


def test_external_without_a_certificate_is_refused(server: Server) -> None:
    client = server.connect()
    start_with(client, "EXTERNAL")
    assert names(client.take()) == ["Connection.Start", "Connection.Close"]


def offering(anonymous: Literal["loopback", "never"]) -> Config:
    """A configuration that offers ANONYMOUS."""
    options = {"amqp": AmqpOptions(anonymous_mechanism=True)}
    auth = AuthConfig(anonymous=anonymous)
    return Config(listen={"amqp": Listen(0)}, auth=auth, protocols=options)


def test_anonymous_is_offered_and_taken_where_anonymous_clients_may_come() -> None:
    client = Server(config=offering("loopback")).connect()
    start_with(client, "ANONYMOUS", "whoever")
    start, tune = client.take()
    assert start.mechanisms == "PLAIN AMQPLAIN ANONYMOUS"
    assert tune.name == "Connection.Tune"
    assert client.connection.identity.is_anonymous
    client = Server(config=offering("never")).connect()
    start_with(client, "ANONYMOUS")
    start, close = client.take()
    assert start.mechanisms == "PLAIN AMQPLAIN"
    assert close.name == "Connection.Close"


def test_anonymous_is_refused_where_it_is_not_offered() -> None:
    client = Server().connect()
    start_with(client, "ANONYMOUS")
    start, close = client.take()
    assert start.mechanisms == "PLAIN AMQPLAIN"
    assert close.name == "Connection.Close"


def test_anonymous_does_not_make_use_of_a_certificate() -> None:
    client = certified(Server(config=offering("loopback")), "ann")
    start_with(client, "ANONYMOUS")
    assert client.connection.identity.is_anonymous


def test_handshake_has_a_time_limit() -> None:
    server = Server(config=Config(limits=LimitsConfig(handshake_seconds=5)))
    slow, quick = server.connect(), server.open()
    slow.feed(PROTOCOL_HEADER)
    server.advance(4.999)
    assert slow.transport.calls == []
    server.advance(0.001)
    assert slow.transport.calls == ["abort"]
    assert quick.transport.calls == []


HEARTBEAT = bytes.fromhex("08 0000 00000000 ce")


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 10, 60])
def test_4_2_7_a_heartbeat_is_sent_after_each_half_of_the_interval(
    server: Server, interval: int
) -> None:
    client = server.open(heartbeat=interval)
    for _ in range(6):
        server.advance(interval / 2 - 0.001)
        assert client.take_bytes() == b""
        client.feed(HEARTBEAT)
        server.advance(0.001)
        assert client.take_bytes() == HEARTBEAT


def test_4_2_7_what_is_sent_anyway_takes_the_place_of_a_heartbeat(server: Server) -> None:
    client = server.open(heartbeat=10)
    server.advance(4)
    client.call(Queue.Declare(queue="q"))
    server.advance(4.999)
    assert client.take_bytes() == b""
    server.advance(0.001)
    assert client.take_bytes() == HEARTBEAT


@pytest.mark.parametrize("interval", [1, 10])
def test_4_2_7_two_missed_heartbeats_end_the_connection(server: Server, interval: int) -> None:
    client = server.open(heartbeat=interval)
    server.advance(interval * 0.7)
    client.feed(HEARTBEAT)
    server.advance(2 * interval - 0.001)
    assert not client.transport.is_aborted
    server.advance(0.001)
    assert client.transport.is_aborted


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_makes_no_difference_to_heartbeats(
    server: Server, step: int
) -> None:
    client = server.open(heartbeat=10)
    server.step_clock(step)
    server.advance(4.999)
    assert client.take_bytes() == b""
    server.advance(0.001)
    assert client.take_bytes() == HEARTBEAT
    server.step_clock(step)
    server.advance(14.999)
    assert not client.transport.is_aborted
    server.advance(0.001)
    assert client.transport.is_aborted


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
    assert silent.is_closed


@pytest.mark.pure
def test_a_connection_that_is_gone_is_not_kept_until_its_next_heartbeat(server: Server) -> None:
    client = server.open(heartbeat=60)
    gone = weakref.ref(client.connection)
    client.lose()
    del client
    gc.collect()
    assert gone() is None


def test_heartbeat_zero_means_none(server: Server) -> None:
    client = server.open(heartbeat=0)
    server.advance(100_000)
    assert client.take_bytes() == b""
    assert not client.transport.is_aborted

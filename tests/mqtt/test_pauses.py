"""While publishers are paused: what waits, and what goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mqtt import (
    Client,
    Server,
    connect,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    subscribe,
)
from trivium_mqtt.reader import MAX_ASIDE

PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"
DISCONNECT = b"\xe0\x00"


def pair(version: int = 4, options: int = 0) -> tuple[Client, Client]:
    """A publisher and a subscriber of ``t``."""
    server = Server()
    receiver = server.open("receiver", version)
    receiver.subscribe("t", options)
    return server.open("sender", version), receiver


def is_paused(client: Client) -> bool:
    """Whether the client is not read."""
    return client.transport.is_paused


def resume(client: Client) -> None:
    client.connection.unblocked()
    client.server.settle()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_waits_unanswered_and_goes_on_by_itself(version: int, qos: int) -> None:
    sender, receiver = pair(version)
    sender.connection.blocked("low on disk")
    sender.feed(publish("t", b"x", qos, 7, version))
    assert sender.take_bytes() == receiver.take_bytes() == b""
    resume(sender)
    assert receiver.take_bytes() == publish("t", b"x", 0, version=version)
    answer = {0: b"", 1: puback(7), 2: pubrec(7)}[qos]
    assert sender.take_bytes() == answer


def test_order_is_kept_over_a_pause() -> None:
    sender, receiver = pair()
    sender.feed(publish("t", b"0"))
    sender.connection.blocked("low on memory")
    data = b"".join(publish("t", b"%d" % number) for number in range(1, 5))
    # The last one is cut: it comes to its end after the pause.
    sender.feed(data[:3], data[3:17], data[17:-2])
    resume(sender)
    sender.feed(data[-2:], publish("t", b"5"))
    assert [body[-1:] for _, body in receiver.take()] == [b"%d" % n for n in range(6)]


def test_pings_are_answered_behind_a_publish_that_waits() -> None:
    server = Server()
    client = server.open("c", 4, keep_alive=10)
    client.connection.blocked("low on disk")
    client.feed(publish("t", b"x", 1))
    for _ in range(10):
        server.advance(10)
        client.feed(PINGREQ)
        assert client.take_bytes() == PINGRESP
    assert not client.is_closed
    server.advance(20)
    assert client.is_closed, "keep alive counts while it can be heard"


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_publishes_and_receives_can_acknowledge(qos: int) -> None:
    server = Server()
    both = server.open("both", 4)
    both.subscribe("t", qos)
    other = server.open("other", 4)
    queue = server.broker.vhosts["/"].queues["amq.mqtt-session.both"]
    other.feed(publish("t", b"1", qos, 1))
    both.take_bytes()
    both.connection.blocked("low on memory")
    both.feed(publish("u", b"x", 1, 9))
    if qos == 1:
        both.feed(puback(1))
    else:
        both.feed(pubrec(1))
        assert both.take_bytes() == pubrel(1)
        both.feed(pubcomp(1))
    assert (len(queue), queue.unsettled) == (0, 0)
    other.feed(publish("t", b"2", qos, 2))
    assert both.take_one()[1].endswith(b"2")


def test_a_client_can_subscribe_behind_a_publish_that_waits() -> None:
    sender, _ = pair()
    sender.connection.blocked("low on disk")
    sender.feed(publish("t", b"x") + subscribe("u"))
    assert sender.take_one() == (0x90, b"\x00\x01\x00")


def test_pubrel_frees_its_identifier_after_what_came_before_it() -> None:
    # MQTT 3.1 clients send a message again on the same connection. Its repetition must not become
    # a second message because PUBREL overtook it.
    sender, receiver = pair()
    sender.feed(publish("t", b"x", 2, 7))
    assert receiver.take_one() == (0x30, b"\x00\x01tx")
    assert sender.take_bytes() == pubrec(7)
    sender.connection.blocked("low on disk")
    sender.feed(publish("t", b"x", 2, 7, dup=True) + pubrel(7))
    assert sender.take_bytes() == b""
    resume(sender)
    assert sender.take_bytes() == pubrec(7) + pubcomp(7)
    assert receiver.take_bytes() == b""


def test_pubrel_with_nothing_before_it_is_answered() -> None:
    sender, _ = pair()
    sender.feed(publish("t", b"x", 2, 7))
    sender.take_bytes()
    sender.connection.blocked("low on disk")
    sender.feed(pubrel(7))
    assert sender.take_bytes() == pubcomp(7)


def test_disconnect_comes_after_what_waits() -> None:
    sender, receiver = pair()
    sender.connection.blocked("low on disk")
    sender.feed(publish("t", b"x") + DISCONNECT)
    assert not sender.is_closed
    assert is_paused(sender)
    resume(sender)
    assert receiver.take_bytes() == publish("t", b"x")
    assert sender.is_closed


def test_disconnect_with_nothing_before_it_is_done() -> None:
    sender, _ = pair()
    sender.connection.blocked("low on disk")
    sender.feed(DISCONNECT)
    assert sender.is_closed


def test_too_much_that_waits_stops_reading() -> None:
    sender, receiver = pair()
    sender.connection.blocked("low on memory")
    packet = publish("t", b"x" * 1000)
    count = MAX_ASIDE // len(packet)
    sender.feed(packet * count)
    assert not is_paused(sender)
    sender.feed(packet)
    assert is_paused(sender)
    sender.feed(PINGREQ)
    assert sender.take_bytes() == b""
    resume(sender)
    assert receiver.take_bytes() == packet * (count + 1)
    assert sender.take_bytes() == PINGRESP
    assert not is_paused(sender)


def test_a_large_publish_is_not_collected() -> None:
    sender, receiver = pair()
    sender.connection.blocked("low on memory")
    packet = publish("t", b"x" * (MAX_ASIDE + 1))
    sender.feed(packet[:100])
    assert is_paused(sender)
    resume(sender)
    assert not is_paused(sender)
    sender.feed(packet[100:])
    assert receiver.take_bytes() == packet


def test_keep_alive_starts_anew_after_a_client_was_not_read() -> None:
    server = Server()
    client = server.open("c", 4, keep_alive=10)
    client.connection.blocked("low on memory")
    client.feed(publish("t", b"x" * (MAX_ASIDE + 1)))
    server.advance(100)
    resume(client)
    server.advance(14)
    assert not client.is_closed
    server.advance(5)
    assert client.is_closed


def test_a_client_that_is_held_for_two_reasons_goes_on_after_both() -> None:
    sender, receiver = pair()
    sender.connection.blocked("low on memory")
    sender.feed(publish("t", b"1"))
    sender.connection.is_writable = False
    sender.feed(PINGREQ * 600_000)
    assert is_paused(sender)
    sender.feed(publish("t", b"2"))
    resume(sender)
    assert receiver.take_bytes() == b""
    sender.connection.resume_writing()
    sender.server.settle()
    assert [body[-1:] for _, body in receiver.take()] == [b"1", b"2"]


def test_who_connects_during_a_pause_waits_with_its_first_publish() -> None:
    server = Server()
    receiver = server.open("receiver")
    receiver.subscribe("t")
    client = server.connect()
    client.connection.blocked("low on disk")
    client.feed(connect("late") + publish("t", b"x", 1))
    assert client.take_one() == (0x20, b"\x00\x00")
    assert receiver.take_bytes() == b""
    resume(client)
    assert receiver.take_bytes() == publish("t", b"x")


def test_what_waits_goes_with_its_connection() -> None:
    sender, receiver = pair()
    sender.connection.blocked("low on disk")
    sender.feed(publish("t", b"x", 1))
    again = sender.server.open("sender")
    assert sender.is_closed, "taken over"
    sender.lose()
    again.feed(publish("t", b"x", 1, dup=True))
    assert receiver.take_bytes() == publish("t", b"x")


@given(
    st.lists(st.sampled_from([0, 1]), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=30),
)
def test_pauses_at_any_moment_change_neither_what_arrives_nor_its_order(
    kinds: list[int], pauses: list[tuple[int, bool]]
) -> None:
    sender, receiver = pair()
    data = b"".join(
        publish("t", b"%d." % number, qos, number) for number, qos in enumerate(kinds, 1)
    )
    is_paused_now = False
    for size, is_pause in pauses:
        if is_pause != is_paused_now:
            is_paused_now = is_pause
            if is_pause:
                sender.connection.blocked("low on disk")
            else:
                resume(sender)
        sender.feed(data[:size])
        data = data[size:]
    if is_paused_now:
        resume(sender)
    sender.feed(data)
    count = len(kinds)
    assert [body[3:] for _, body in receiver.take()] == [b"%d." % n for n in range(1, count + 1)]
    assert sender.take_bytes() == b"".join(puback(n) for n, qos in enumerate(kinds, 1) if qos)

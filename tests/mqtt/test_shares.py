"""Shared subscriptions (4.8.2)."""

from __future__ import annotations

import pytest

from tests.support.mqtt import (
    Client,
    Server,
    connect,
    puback,
    publish,
    pubrec,
    subscribe,
    text,
    unsubscribe,
)
from tests.support.server import move_to
from tests.support.simulated import Host
from tests.support.steps import steps
from trivium_mqtt.shares import MAX_LOOKS

KEPT = b"\x11\x00\x00\x10\x00"
ONE_AT_A_TIME = b"\x21\x00\x01"


def members(server: Server, topic_filter: str, qos: int, version: int = 5) -> list[Client]:
    clients = [server.open(f"m{number}", version) for number in range(3)]
    for client in clients:
        client.subscribe(topic_filter, qos)
    return clients


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(version: int, qos: int) -> None:
    server = Server()
    clients = members(server, "$share/g/t/+", qos, version)
    other = server.open("other", version)
    other.subscribe("t/a", qos)
    sender = server.open("s", version)
    sender.feed(b"".join(publish("t/a", b"%d" % n, qos, n + 1, version) for n in range(9)))
    got = [[body[-1:] for _, body in client.take()] for client in clients]
    assert got == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]
    assert [body[-1:] for _, body in other.take()] == [b"%d" % n for n in range(9)]


def test_shares_of_other_names_and_filters_are_apart() -> None:
    server = Server()
    one, two, three = (server.open(name, 5) for name in "abc")
    one.subscribe("$share/g/t")
    two.subscribe("$share/h/t")
    three.subscribe("$share/g/+")
    server.open("s", 5).feed(publish("t", b"x", version=5))
    for client in (one, two, three):
        assert client.take_bytes() == publish("t", b"x", version=5)


@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share/g", "$share/g/", "$share//t", "$share/g+/t", "$share/#/t"]
)
def test_mqtt_4_8_2_1_shared_filters_that_are_not_valid(topic_filter: str) -> None:
    client = Server().open("c", 5)
    client.feed(subscribe(topic_filter, 0, 1, 5) + subscribe("$share/g/a#", 0, 2, 5))
    assert client.take_bytes() == b"\x90\x04\x00\x01\x00\x8f" + b"\x90\x04\x00\x02\x00\x8f"
    client = Server().open("c", 4)
    client.feed(subscribe(topic_filter))
    assert client.is_closed


def test_mqtt_3_8_3_4_no_local_on_a_shared_subscription() -> None:
    client = Server().open("c", 5)
    client.feed(subscribe("$share/g/t", 0x04, 1, 5))
    assert client.take_bytes() == b"\xe0\x01\x82"


def test_no_retained_messages() -> None:
    server = Server()
    server.open("s").feed(publish("t", b"x", retain=True))
    client = server.open("c", 5)
    client.subscribe("$share/g/t")
    assert client.take_bytes() == b""


def test_leaving() -> None:
    server = Server()
    clients = members(server, "$share/g/t", 1)
    clients[0].feed(unsubscribe("$share/g/t", 5, 5) + unsubscribe("$share/g/t", 6, 5))
    assert clients[0].take_bytes() == b"\xb0\x04\x00\x05\x00\x00" + b"\xb0\x04\x00\x06\x00\x11"
    clients[1].lose()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"x", 1, 1, 5) * 2)
    assert [len(client.take()) for client in clients] == [0, 0, 2]
    clients[2].lose()
    assert not server.broker.vhosts["/"].exchange("amq.topic").bindings()


def test_a_member_whose_window_is_full_is_left_out() -> None:
    server = Server()
    slow = server.open("slow", 5, properties=b"\x21\x00\x01")
    slow.subscribe("$share/g/t", 1)
    quick = server.open("quick", 5)
    quick.subscribe("$share/g/t", 1)
    sender = server.open("s", 5)
    sender.feed(b"".join(publish("t", b"%d" % n, 1, n + 1, 5) for n in range(6)))
    assert [body[-1:] for _, body in slow.take()] == [b"0"]
    assert [body[-1:] for _, body in quick.take()] == [b"1", b"2", b"3", b"4", b"5"]
    slow.feed(puback(1))
    sender.feed(publish("t", b"6", 1, 1, 5))
    assert [body[-1:] for _, body in slow.take()] == [b"6"]


def test_an_absent_member_keeps_messages_when_nobody_is_there() -> None:
    server = Server()
    kept = server.open("kept", 5, properties=KEPT)
    kept.subscribe("$share/g/t", 1)
    kept.lose()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"0", version=5) + publish("t", b"1", 1, 1, 5))
    assert server.adapter.metrics.messages_dropped == 1
    there = server.open("there", 5)
    there.subscribe("$share/g/t", 1)
    sender.feed(publish("t", b"2", 1, 1, 5) * 2)
    assert len(there.take()) == 2
    kept = server.open("kept", 5, clean=False, properties=KEPT)
    assert [body[-1:] for _, body in kept.take()] == [b"1"]


def test_subscribing_again_changes_the_options() -> None:
    server = Server()
    client = server.open("c", 5)
    client.subscribe("$share/g/t", 0)
    client.subscribe("$share/g/t", 1, properties=b"\x0b\x07")
    server.open("s", 5).feed(publish("t", b"x", 1, 1, 5))
    assert client.take() == [(0x32, text("t") + b"\x00\x01\x02\x0b\x07x")]


# The end of a member


def payloads(client: Client) -> list[bytes]:
    return [body[body.rindex(b"|") + 1 :] for first, body in client.take() if first >> 4 == 3]


def numbered(count: int, qos: int = 1, first: int = 0) -> bytes:
    return b"".join(publish("t", b"|%d" % n, qos, n + 1, 5) for n in range(first, first + count))


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_4_8_2_what_an_ended_session_has_not_got_goes_to_another_in_order(qos: int) -> None:
    server = Server()
    leaving = server.open("leaving", 5, properties=ONE_AT_A_TIME)
    leaving.subscribe("$share/g/t", qos)
    server.open("s", 5).feed(numbered(4, qos))
    assert payloads(leaving) == [b"0"]
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", qos, properties=b"\x0b\x07")
    leaving.lose()
    received = staying.take()
    first = 0 if qos == 1 else 1
    assert [body[-1:] for _, body in received] == [b"%d" % n for n in range(first, 4)]
    # It is the first time for this client, and with its own subscription identifier.
    assert all(first == 0x30 | qos << 1 for first, _ in received)
    assert all(b"\x02\x0b\x07" in body for _, body in received)


def test_mqtt_4_8_2_5_a_qos_2_message_that_was_sent_goes_to_nobody_else() -> None:
    server = Server()
    leaving = server.open("leaving", 5)
    leaving.subscribe("$share/g/t", 2)
    server.open("s", 5).feed(numbered(2, 2))
    assert payloads(leaving) == [b"0", b"1"]
    leaving.feed(pubrec(1))
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", 2)
    leaving.lose()
    assert staying.take_bytes() == b""
    assert server.adapter.metrics.messages_dropped == 1


def test_what_came_by_a_subscription_of_its_own_ends_with_the_session() -> None:
    server = Server()
    leaving = server.open("leaving", 5)
    leaving.subscribe("$share/g/t", 1)
    leaving.subscribe("#", 1)
    server.open("s", 5).feed(publish("t", b"|t", 1, 1, 5) + publish("u", b"|u", 1, 2, 5))
    assert payloads(leaving) == [b"t", b"t", b"u"]
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", 1)
    leaving.lose()
    assert payloads(staying) == [b"t"]


def test_acknowledged_messages_are_not_handed_on() -> None:
    server = Server()
    leaving = server.open("leaving", 5)
    leaving.subscribe("$share/g/t", 1)
    server.open("s", 5).feed(numbered(3))
    leaving.feed(puback(2))
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", 1)
    leaving.leave()
    assert payloads(staying) == [b"0", b"2"]


def test_a_message_is_handed_on_from_one_to_the_next_until_it_is_acknowledged() -> None:
    server = Server()
    one, two, three = (server.open(name, 5) for name in "abc")
    for client in (one, two, three):
        client.subscribe("$share/g/t", 1)
    server.open("s", 5).feed(numbered(1))
    assert payloads(one) == [b"0"]
    one.lose()
    two.lose()
    assert payloads(three) == [b"0"]
    three.lose()
    assert not server.broker.vhosts["/"].queues


@pytest.mark.parametrize("ending", ["clean start", "expiry", "takeover"])
def test_every_end_of_a_kept_session_hands_on(ending: str) -> None:
    server = Server(host=Host())
    kept = server.open("kept", 5, clean=False, properties=KEPT + ONE_AT_A_TIME)
    kept.feed(subscribe("$share/g/t", 1, 1, 5))
    server.sync()
    kept.take_bytes()
    server.open("s", 5).feed(numbered(3))
    server.sync()
    assert payloads(kept) == [b"0"]
    if ending != "takeover":
        kept.lose()
    other = server.open("other", 5)
    other.subscribe("$share/g/t", 1)
    if ending == "expiry":
        server.advance(0x1000 + 1)
    else:
        server.open("kept", 5, clean=True)
    server.sync()
    assert payloads(other) == [b"0", b"1", b"2"]
    assert "amq.mqtt-session.kept" not in server.broker.vhosts["/"].queues


@pytest.mark.parametrize("crash", [False, True])
def test_a_long_backlog_is_handed_on_in_parts_and_over_a_restart(crash: bool) -> None:
    count = 3000
    server = Server(host=Host())
    for name in ("leaving", "staying"):
        client = server.open(name, 5, clean=False, properties=KEPT)
        client.feed(subscribe("$share/g/t", 1, 1, 5))
        server.sync()
        client.lose()
        # Everything goes to the first; to the second what the first leaves.
        if name == "leaving":
            server.open("s", 5).feed(numbered(count))
            server.sync()
    vhost = server.broker.vhosts["/"]
    server.advance(0x1000 - 10)
    staying = server.open("staying", 5, clean=False, properties=KEPT)
    staying.lose()
    move_to(server.broker, server.broker.elapsed_ms + 20_000)
    server.end_turn()
    assert "amq.mqtt-session.leaving" in vhost.queues, "it is not done in one turn"
    if crash:
        server.host.commit()
        server = server.crash()
    for _ in range(10):
        server.advance(1)
        server.sync()
    assert "amq.mqtt-session.leaving" not in server.broker.vhosts["/"].queues
    staying = server.open("staying", 5, clean=False, properties=KEPT)
    assert payloads(staying) == [b"%d" % n for n in range(count)]


def test_a_session_that_was_in_many_shares_hands_on_as_well() -> None:
    server = Server()
    leaving = server.open("leaving", 5)
    leaving.subscribe("$share/g/t", 1)
    server.open("s", 5).feed(numbered(1))
    for number in range(300):
        leaving.feed(
            subscribe(f"$share/g/{number}", 1, 1, 5) + unsubscribe(f"$share/g/{number}", 1, 5)
        )
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", 1)
    leaving.lose()
    assert payloads(staying) == [b"0"]


def test_a_long_backlog_that_nobody_shares_goes_at_once() -> None:
    server = Server(host=Host())
    alone = server.open("alone", 5, clean=False, properties=KEPT)
    alone.feed(subscribe("$share/g/t", 1, 1, 5) + subscribe("$share/h/t", 1, 2, 5))
    other = server.open("other", 5)
    other.subscribe("$share/h/t", 1)
    server.sync()
    alone.feed(unsubscribe("$share/g/t", 3, 5))
    other.lose()
    alone.lose()
    server.open("s", 5).feed(numbered(3000))
    server.sync()
    client = server.connect()
    client.version = 5
    client.connection.feed(connect("alone", 5))
    assert "amq.mqtt-session.alone" not in server.broker.vhosts["/"].queues
    server.sync()
    assert client.take_one()[0] == 0x20


def test_a_client_waits_until_its_former_session_is_handed_on() -> None:
    server = Server(host=Host())
    leaving = server.open("leaving", 5, clean=False, properties=KEPT)
    leaving.feed(subscribe("$share/g/t", 1, 1, 5))
    server.sync()
    leaving.lose()
    server.open("s", 5).feed(numbered(3000))
    server.sync()
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", 1)
    again = server.connect()
    again.version = 5
    again.feed(connect("leaving", 5) + subscribe("u", 1, 1, 5) + numbered(1, first=3000))
    assert again.take_bytes() == b""
    other = server.connect()
    other.connection.feed(connect("leaving", 5))
    other.lose()
    for _ in range(10):
        server.advance(0.1)
        server.sync()
    packets = again.take()
    assert [first for first, _ in packets] == [0x20, 0x90, 0x40], packets
    assert packets[0][1][:2] == b"\x00\x00"
    assert payloads(staying) == [b"%d" % n for n in range(3001)]


def test_a_former_session_whose_last_messages_expire_while_they_are_read_back_ends() -> None:
    server = Server(host=Host())
    leaving = server.open("leaving", 5, clean=False, properties=KEPT)
    leaving.feed(subscribe("$share/g/t", 1, 1, 5))
    server.sync()
    leaving.lose()
    sender = server.open("s", 5)
    expiring = b"\x02\x00\x00\x00\x0a"
    for number in range(10):
        sender.feed(publish("t", bytes(50_000), 1, number + 1, 5, properties=expiring) * 10)
    server.sync()
    server.host.checkpoint()
    server = server.crash()
    queue = server.broker.vhosts["/"].queues["amq.mqtt-session.leaving"]
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", 1)
    again = server.connect()
    again.version = 5
    again.connection.feed(connect("leaving", 5))
    server.settle()
    assert len(queue) > 0, "the rest is on the disk"
    server.advance(11)
    server.sync()
    server.advance(1)
    server.sync()
    assert queue.is_deleted
    assert again.take_one()[0] == 0x20


def test_what_came_by_a_share_that_was_left_is_handed_on_after_a_restart_as_well() -> None:
    server = Server(host=Host())
    leaving = server.open("leaving", 5, clean=False, properties=KEPT + ONE_AT_A_TIME)
    leaving.feed(subscribe("$share/g/t", 1, 1, 5))
    server.sync()
    server.open("s", 5).feed(numbered(3))
    leaving.feed(unsubscribe("$share/g/t", 2, 5))
    leaving.feed(subscribe("$share/g/u", 1, 3, 5))
    server.sync()
    server = server.crash()
    other = server.open("other", 5)
    other.subscribe("$share/g/t", 1)
    server.open("leaving", 5)
    server.sync()
    assert payloads(other) == [b"0", b"1", b"2"]


def test_qos_2_messages_that_were_sent_before_a_restart_go_to_nobody_else() -> None:
    server = Server(host=Host())
    leaving = server.open("leaving", 5, clean=False, properties=KEPT + ONE_AT_A_TIME)
    leaving.feed(subscribe("$share/g/t", 2, 1, 5))
    server.sync()
    server.open("s", 5).feed(numbered(2, 2))
    server.sync()
    assert [first for first, _ in leaving.take()] == [0x90, 0x34]
    server = server.crash()
    other = server.open("other", 5)
    other.subscribe("$share/g/t", 2)
    server.open("leaving", 5)
    server.sync()
    assert payloads(other) == [b"1"]
    assert len(server.host.storage.table("mqtt.outgoing//")) == 0


def test_when_the_broker_stops_only_kept_sessions_take_over() -> None:
    server = Server(host=Host())
    kept = server.open("kept", 5, clean=False, properties=KEPT)
    kept.feed(subscribe("$share/g/t", 1, 1, 5))
    server.sync()
    clients = members(server, "$share/g/t", 1)
    kept.take_bytes()
    server.open("s", 5).feed(numbered(4))
    server.sync()
    server.broker.is_stopping = True
    server = server.restart()
    assert [client.take()[0][0] for client in clients] == [0x32] * 3
    kept = server.open("kept", 5, clean=False, properties=KEPT)
    assert sorted(payloads(kept)) == [b"0", b"1", b"2", b"3"]


def test_a_client_waits_also_for_the_session_of_another_that_waited_with_it() -> None:
    server = Server(host=Host())
    leaving = server.open("leaving", 5, clean=False, properties=KEPT)
    leaving.feed(subscribe("$share/g/t", 1, 1, 5))
    server.sync()
    leaving.lose()
    server.open("s", 5).feed(numbered(3000))
    server.sync()
    staying = server.open("staying", 5)
    staying.subscribe("$share/g/t", 1)
    ending, first, second = (server.connect() for _ in range(3))
    ending.connection.feed(connect("leaving", 5))
    ending.lose()
    first.connection.feed(
        connect("leaving", 5, clean=False, properties=KEPT)
        + subscribe("$share/g/t", 1, 1, 5)
        + numbered(5000, first=3000)
    )
    second.connection.feed(connect("leaving", 5) + subscribe("u", 1, 1, 5))
    first.version = second.version = 5
    for _ in range(20):
        server.advance(0.1)
        server.sync()
    assert [packet for packet, _ in first.take()][-1] == 0xE0
    assert first.is_closed
    assert not second.is_closed
    assert [packet for packet, _ in second.take()] == [0x20, 0x90]
    assert sorted(payloads(staying), key=int) == [b"%d" % n for n in range(8000)]


@pytest.mark.pure
@pytest.mark.parametrize("topic_filter", ["t", "+/#", "$share/g/t"])
def test_how_many_share_a_filter_makes_no_difference_to_one_that_comes_or_leaves(
    topic_filter: str,
) -> None:
    def comes_and_leaves(count: int) -> int:
        server = Server()
        for number in range(count):
            server.open(f"c{number}").subscribe(topic_filter)
        client = server.open("c")
        found = steps(lambda: client.subscribe(topic_filter))
        return found + steps(client.leave)

    assert comes_and_leaves(800) < 1.2 * comes_and_leaves(200)


@pytest.mark.pure
def test_how_many_share_a_filter_makes_no_difference_to_a_message_that_none_takes_now() -> None:
    def waits(count: int) -> int:
        server = Server()
        for number in range(count):
            client = server.open(f"c{number}", 5, properties=ONE_AT_A_TIME)
            client.subscribe("$share/g/t", 1)
        sender = server.open("s", 5)
        for _ in range(count):
            sender.feed(numbered(1))
        return steps(lambda: sender.feed(numbered(1)))

    assert waits(2 * MAX_LOOKS) < 1.2 * waits(MAX_LOOKS)


def test_of_very_many_members_each_is_looked_at_though_others_take_nothing() -> None:
    server = Server()
    count = 2 * MAX_LOOKS + 10
    clients = [server.open(f"c{number}", 5, properties=ONE_AT_A_TIME) for number in range(count)]
    for client in clients:
        client.subscribe("$share/g/t", 1)
    sender = server.open("s", 5)
    sender.feed(numbered(count))
    for client in clients:
        assert len(client.take()) == 1
    free = clients[-1]
    free.feed(puback(1))
    for _ in range(3):
        sender.feed(numbered(1))
    assert len(free.take()) == 1


def test_members_take_turns_whoever_has_left() -> None:
    server = Server()
    clients = members(server, "$share/g/t", 0)
    more = [server.open(f"x{number}", 5) for number in range(5)]
    for client in more:
        client.subscribe("$share/g/t")
    for client in (more[0], clients[0], more[3]):
        client.leave()
    staying = [*clients[1:], more[1], more[2], more[4]]
    sender = server.open("sender", 5)
    for _ in range(3 * len(staying)):
        sender.feed(publish("t", b"x", version=5))
    assert [len(client.take()) for client in staying] == [3] * len(staying)

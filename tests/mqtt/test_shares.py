"""Shared subscriptions (4.8.2)."""

from __future__ import annotations

import pytest

from tests.mqtt.harness import Bench, Client, puback, publish, subscribe, text, unsubscribe

KEPT = b"\x11\x00\x00\x10\x00"


def members(bench: Bench, topic_filter: str, qos: int, version: int = 5) -> list[Client]:
    clients = [bench.connect(f"m{number}", version) for number in range(3)]
    for client in clients:
        client.subscribe(topic_filter, qos)
    return clients


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(version: int, qos: int) -> None:
    bench = Bench()
    clients = members(bench, "$share/g/t/+", qos, version)
    other = bench.connect("other", version)
    other.subscribe("t/a", qos)
    sender = bench.connect("s", version)
    sender.send(b"".join(publish("t/a", b"%d" % n, qos, n + 1, version) for n in range(9)))
    got = [[body[-1:] for _, body in client.packets()] for client in clients]
    assert got == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]
    assert [body[-1:] for _, body in other.packets()] == [b"%d" % n for n in range(9)]


def test_shares_of_other_names_and_filters_are_apart() -> None:
    bench = Bench()
    one, two, three = (bench.connect(name, 5) for name in "abc")
    one.subscribe("$share/g/t")
    two.subscribe("$share/h/t")
    three.subscribe("$share/g/+")
    bench.connect("s", 5).send(publish("t", b"x", version=5))
    for client in (one, two, three):
        assert client.received() == publish("t", b"x", version=5)


@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share/g", "$share/g/", "$share//t", "$share/g+/t", "$share/#/t"]
)
def test_mqtt_4_8_2_1_shared_filters_that_are_not_valid(topic_filter: str) -> None:
    client = Bench().connect("c", 5)
    client.send(subscribe(topic_filter, 0, 1, 5) + subscribe("$share/g/a#", 0, 2, 5))
    assert client.received() == b"\x90\x04\x00\x01\x00\x8f" + b"\x90\x04\x00\x02\x00\x8f"
    client = Bench().connect("c", 4)
    client.send(subscribe(topic_filter))
    assert client.is_closed


def test_mqtt_3_8_3_4_no_local_on_a_shared_subscription() -> None:
    client = Bench().connect("c", 5)
    client.send(subscribe("$share/g/t", 0x04, 1, 5))
    assert client.received() == b"\xe0\x01\x82"


def test_no_retained_messages() -> None:
    bench = Bench()
    bench.connect("s").send(publish("t", b"x", retain=True))
    client = bench.connect("c", 5)
    client.subscribe("$share/g/t")
    assert client.received() == b""


def test_leaving() -> None:
    bench = Bench()
    clients = members(bench, "$share/g/t", 1)
    clients[0].send(unsubscribe("$share/g/t", 5, 5) + unsubscribe("$share/g/t", 6, 5))
    assert clients[0].received() == b"\xb0\x04\x00\x05\x00\x00" + b"\xb0\x04\x00\x06\x00\x11"
    clients[1].lose()
    sender = bench.connect("s", 5)
    sender.send(publish("t", b"x", 1, 1, 5) * 2)
    assert [len(client.packets()) for client in clients] == [0, 0, 2]
    clients[2].lose()
    assert not bench.broker.vhosts["/"].exchange("amq.topic").bindings()


def test_a_member_whose_window_is_full_is_left_out() -> None:
    bench = Bench()
    slow = bench.connect("slow", 5, properties=b"\x21\x00\x01")
    slow.subscribe("$share/g/t", 1)
    quick = bench.connect("quick", 5)
    quick.subscribe("$share/g/t", 1)
    sender = bench.connect("s", 5)
    sender.send(b"".join(publish("t", b"%d" % n, 1, n + 1, 5) for n in range(6)))
    assert [body[-1:] for _, body in slow.packets()] == [b"0"]
    assert [body[-1:] for _, body in quick.packets()] == [b"1", b"2", b"3", b"4", b"5"]
    slow.send(puback(1))
    sender.send(publish("t", b"6", 1, 1, 5))
    assert [body[-1:] for _, body in slow.packets()] == [b"6"]


def test_an_absent_member_keeps_messages_when_nobody_is_there() -> None:
    bench = Bench()
    kept = bench.connect("kept", 5, properties=KEPT)
    kept.subscribe("$share/g/t", 1)
    kept.lose()
    sender = bench.connect("s", 5)
    sender.send(publish("t", b"0", version=5) + publish("t", b"1", 1, 1, 5))
    assert bench.adapter.metrics.messages_dropped == 1
    there = bench.connect("there", 5)
    there.subscribe("$share/g/t", 1)
    sender.send(publish("t", b"2", 1, 1, 5) * 2)
    assert len(there.packets()) == 2
    kept = bench.connect("kept", 5, clean=False, properties=KEPT)
    assert [body[-1:] for _, body in kept.packets()] == [b"1"]


def test_subscribing_again_changes_the_options() -> None:
    bench = Bench()
    client = bench.connect("c", 5)
    client.subscribe("$share/g/t", 0)
    client.subscribe("$share/g/t", 1, properties=b"\x0b\x07")
    bench.connect("s", 5).send(publish("t", b"x", 1, 1, 5))
    assert client.packets() == [(0x32, text("t") + b"\x00\x01\x02\x0b\x07x")]

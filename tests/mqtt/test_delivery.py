"""The delivery modes as MQTT publishers and subscribers meet them, set at each level."""

from __future__ import annotations

import pytest

from tests.support.mqtt import Client, Server, puback, pubcomp, publish, pubrec, pubrel, text
from tests.support.simulated import Host
from trivium.config import Config, DeliveryConfig, Listen
from trivium.routing.exchanges import Binding
from trivium.vhost.policies import Policy

LEVELS = ["broker", "policy", "queue", "message"]


def x_delivery(mode: str) -> bytes:
    """The user property."""
    return b"\x26" + text("x-delivery") + text(mode)


class Setting:
    """A durable queue bound to topic ``t`` whose messages have a mode by one of the levels."""

    def __init__(self, level: str, mode: str) -> None:
        default = mode if level == "broker" else "as-published"
        self.server = Server(
            host=Host(),
            config=Config(
                listen={"mqtt": Listen(0)},
                delivery=DeliveryConfig(mode=default),  # type: ignore[arg-type]
            ),
        )
        vhost = self.server.broker.vhosts["/"]
        if level == "policy":
            vhost.set_policy(Policy("p", "q", {"delivery": mode}))
        arguments: dict[str, object] = {"x-delivery": mode} if level == "queue" else {}
        self.queue = vhost.declare_queue("q", durable=True, arguments=arguments)
        vhost.bind(vhost.exchange("amq.topic"), Binding(self.queue, b"t"))
        self.server.sync()
        self.sender = self.server.open("s", 5)
        self.properties = x_delivery(mode) if level == "message" else b""

    def publish(self, qos: int) -> bytes:
        """Publish at a QoS that says something else; the answer before anything is durable."""
        self.sender.feed(publish("t", b"m", qos, 7, 5, properties=self.properties))
        return self.sender.take_bytes()

    def after_crash(self) -> int:
        return len(self.server.crash().broker.vhosts["/"].queues["q"])


@pytest.mark.parametrize("level", LEVELS)
def test_at_most_once(level: str) -> None:
    setting = Setting(level, "at-most-once")
    assert setting.publish(1) == puback(7)
    assert setting.queue.get() is not None
    assert setting.queue.unsettled == 0
    setting.publish(1)
    setting.server.sync()
    assert setting.after_crash() == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("qos", [0, 2])
def test_at_least_once(level: str, qos: int) -> None:
    setting = Setting(level, "at-least-once")
    assert setting.publish(qos) == b""
    assert setting.queue.get() is not None
    assert setting.queue.unsettled == 1
    setting.server.sync()
    assert setting.sender.take_bytes() == (pubrec(7) if qos else b"")
    assert setting.after_crash() == 1


@pytest.mark.parametrize("level", LEVELS)
def test_exactly_once(level: str) -> None:
    setting = Setting(level, "exactly-once")
    assert setting.publish(1) == b""
    assert setting.queue.get() is None, "the publisher might have to send it again"
    setting.server.sync()
    assert setting.sender.take_bytes() == puback(7)
    assert setting.queue.get() is not None
    assert setting.after_crash() == 1


@pytest.mark.parametrize(("qos", "kept"), [(0, 0), (1, 1), (2, 1)])
def test_the_qos_holds_where_no_level_says_otherwise(qos: int, kept: int) -> None:
    setting = Setting("none", "")
    setting.publish(qos)
    setting.server.sync()
    assert setting.after_crash() == kept


# Toward subscribers


def subscriber(server: Server) -> Client:
    client = server.open("r", 5)
    client.subscribe("t", 2)
    return client


@pytest.mark.parametrize(
    ("published", "mode", "delivered"),
    [
        (1, "at-most-once", 0),
        (2, "at-most-once", 0),
        (0, "at-least-once", 1),
        (2, "at-least-once", 1),
        (0, "exactly-once", 2),
        (1, "exactly-once", 2),
    ],
)
def test_a_subscriber_gets_the_mode_as_qos(published: int, mode: str, delivered: int) -> None:
    server = Server()
    receiver = subscriber(server)
    sender = server.open("s", 5)
    sender.feed(publish("t", b"m", published, 7, 5, properties=x_delivery(mode)))
    assert receiver.take_bytes() == publish("t", b"m", delivered, 1, 5, properties=x_delivery(mode))


def test_qos_2_keeps_its_flow_when_the_mode_is_weaker() -> None:
    server = Server()
    receiver = subscriber(server)
    sender = server.open("s", 5)
    weak = publish("t", b"m", 2, 7, 5, properties=x_delivery("at-most-once"))
    sender.feed(weak, weak)
    assert sender.take_bytes() == pubrec(7) * 2
    assert len(receiver.take()) == 1, "a repetition is still a repetition"
    sender.feed(pubrel(7))
    assert sender.take_bytes() == pubcomp(7)


def test_of_two_properties_the_first_counts() -> None:
    server = Server()
    receiver = subscriber(server)
    both = x_delivery("at-most-once") + x_delivery("exactly-once")
    server.open("s", 5).feed(publish("t", b"m", 1, 7, 5, properties=both))
    assert receiver.take_one()[0] == 0x30


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_word_that_is_no_mode_ends_the_connection_with_0x83(qos: int) -> None:
    server = Server()
    receiver = subscriber(server)
    sender = server.open("s", 5)
    sender.feed(publish("t", b"m", qos, 7, 5, properties=x_delivery("twice")))
    assert sender.take_one() == (0xE0, b"\x83")
    assert sender.is_closed
    assert receiver.take_bytes() == b""


def test_a_will_may_insist() -> None:
    server = Server()
    receiver = subscriber(server)
    sender = server.open(
        "s", 5, will=("t", b"m", 0, False), will_properties=x_delivery("at-least-once")
    )
    sender.lose()
    assert receiver.take_one()[0] == 0x32

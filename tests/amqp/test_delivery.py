"""The delivery modes as an AMQP publisher and consumer meet them, set at each level."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Confirm, Queue

from tests.support.amqp import Client, Server, assert_channel_closed, bodies, names, publish_frames
from tests.support.simulated import Host
from trivium.config import Config, DeliveryConfig
from trivium.vhost.policies import Policy

LEVELS = ["broker", "policy", "queue", "message"]


class Setting:
    """A durable queue ``q`` whose messages have a mode by one of the levels, and by no other."""

    def __init__(self, level: str, mode: str) -> None:
        default: Any = mode if level == "broker" else "as-published"
        self.config = Config(delivery=DeliveryConfig(mode=default))
        self.server = Server(config=self.config, host=Host())
        if level == "policy":
            self.server.vhost.set_policy(Policy("p", "q", {"delivery": mode}))
        self.client = self.server.open()
        arguments = {"x-delivery": mode} if level == "queue" else {}
        self.client.declare("q", durable=True, arguments=arguments)
        self.client.call(Confirm.Select())
        # The property says the opposite, so that it cannot be the one that acts.
        self.properties: dict[str, Any] = {"delivery_mode": 2 if mode == "at-most-once" else 1}
        if level == "message":
            self.properties["headers"] = {"x-delivery": mode}

    def publish(self) -> list[str]:
        """Publish one message; what came back before anything was durable."""
        self.client.feed(publish_frames("q", b"m", **self.properties))
        return names(self.client.take())

    def after_crash(self) -> int:
        """How many messages another server finds."""
        server = self.server.crash()
        return server.open().counts("q")[0]


@pytest.mark.parametrize("level", LEVELS)
def test_at_most_once(level: str) -> None:
    setting = Setting(level, "at-most-once")
    assert setting.publish() == ["Basic.Ack"]
    consumer = setting.server.open()
    assert bodies(consumer.consume("q")) == [b"m"]
    assert setting.server.vhost.queue("q").unsettled == 0
    # An acknowledgement of what is settled already is no error.
    assert consumer.call(Basic.Ack(1)) == []
    setting.publish()
    setting.server.sync()
    assert setting.after_crash() == 0


@pytest.mark.parametrize("level", LEVELS)
def test_at_least_once(level: str) -> None:
    setting = Setting(level, "at-least-once")
    assert setting.publish() == []
    consumer = setting.server.open()
    assert bodies(consumer.consume("q")) == [b"m"]
    setting.server.sync()
    assert names(setting.client.take()) == ["Basic.Ack"]
    assert setting.after_crash() == 1
    consumer.lose()
    again = setting.server.open().consume("q")
    assert (again[0].redelivered, bodies(again)) == (True, [b"m"])


@pytest.mark.parametrize("level", LEVELS)
def test_exactly_once(level: str) -> None:
    setting = Setting(level, "exactly-once")
    consumer = setting.server.open()
    consumer.consume("q")
    assert setting.publish() == []
    assert consumer.take() == [], "the publisher might have to send it again"
    setting.server.sync()
    assert names(setting.client.take()) == ["Basic.Ack"]
    assert bodies(consumer.take()) == [b"m"]
    assert setting.after_crash() == 1


@pytest.mark.parametrize(("delivery_mode", "kept"), [(None, 0), (1, 0), (2, 1)])
def test_delivery_mode_holds_where_no_level_says_otherwise(
    delivery_mode: int | None, kept: int
) -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    client.publish("q", delivery_mode=delivery_mode)
    server.sync()
    assert server.crash().open().counts("q")[0] == kept


def test_the_header_reaches_the_consumer(client: Client) -> None:
    client.declare("q")
    client.publish("q", headers={"x-delivery": "exactly-once"})
    header = client.call(Basic.Get(queue="q"))[1]
    assert header.properties.headers == {"x-delivery": "exactly-once"}


@pytest.mark.parametrize("value", ["twice", 1, True, bytearray(b"twice")])
def test_a_word_that_is_no_mode_is_406(server: Server, value: object) -> None:
    client = server.open()
    client.publish("q", headers={"x-delivery": value})
    assert_channel_closed(
        client.take()[0],
        406,
        "PRECONDITION_FAILED - invalid header 'x-delivery': it is no delivery mode",
    )


def test_a_queue_argument_that_is_no_mode_is_406(client: Client) -> None:
    answer = client.ask(Queue.Declare(queue="q", arguments={"x-delivery": "twice"}))
    assert answer.reply_code == 406

"""Delayed messages: the header x-delay and the exchange type x-delayed-message."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Confirm, Exchange

from tests.support.amqp import Client, Server, assert_channel_closed, bodies, names, publish_frames
from tests.support.simulated import Host


def test_x_delay_delays_on_any_exchange(server: Server, client: Client) -> None:
    client.declare("q")
    client.consume("q", no_ack=True)
    client.publish("q", b"later", headers={"x-delay": 3_600_000})
    client.publish("q", b"now", headers={"x-delay": 0})
    assert bodies(client.take()) == [b"now"]
    server.advance(3600)
    received = client.take()
    assert bodies(received) == [b"later"]
    # That of RabbitMQ's plugin is negative too.
    assert received[1].properties.headers == {"x-delay": -3_600_000}


def test_a_delayed_message_that_is_passed_on_is_not_delayed_again(
    server: Server, client: Client
) -> None:
    client.declare("q")
    headers = {"a": 1, "x-delay": 3_600_000, "b": [True]}
    client.publish("q", b"m", headers=headers, content_type="t", expiration="9000")
    server.advance(3600)
    for _ in range(2):
        properties = client.call(Basic.Get(queue="q", no_ack=True))[1].properties
        assert properties.headers == headers | {"x-delay": -3_600_000}
        assert (properties.content_type, properties.expiration) == ("t", "9000")
        client.publish("q", b"m", headers=properties.headers, content_type="t", expiration="9000")


def test_a_returned_message_is_as_it_was_published(client: Client) -> None:
    client.publish("nobody", b"m", mandatory=True, headers={"x-delay": 3_600_000})
    assert client.take()[1].properties.headers == {"x-delay": 3_600_000}


def test_a_mandatory_message_that_is_retained_later_is_kept(server: Server, client: Client) -> None:
    headers = {"x-delay": 3_600_000, "x-retain": True}
    client.publish("t", b"m", "amq.topic", mandatory=True, headers=headers)
    assert client.take() == []
    server.advance(3600)
    kept = server.vhost.retained.get(b"t")
    assert kept is not None
    assert kept.payload == b"m"


def test_a_delayed_exchange_is_declared_bound_and_published_to(
    server: Server, client: Client
) -> None:
    client.exchange("x", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    client.declare("q")
    client.bind("q", "x", "a.#")
    client.publish("a.b", b"m", "x", headers={"x-delay": 3_600_000})
    assert client.counts("q")[0] == 0
    server.advance(3600)
    assert client.get("q") == b"m"


def test_further_routing_keys_are_delayed_too(server: Server, client: Client) -> None:
    for name in ("q", "cc", "bcc"):
        client.declare(name)
    headers = {"x-delay": 3_600_000, "CC": ["cc"], "BCC": ["bcc"]}
    client.publish("q", b"m", headers=headers)
    server.advance(3600)
    assert [client.get(name) for name in ("q", "cc", "bcc")] == [b"m"] * 3


@pytest.mark.parametrize(("count", "is_accepted"), [(317, True), (318, False)])
def test_so_many_routing_keys_that_they_do_not_fit_an_annotation_are_406(
    count: int, is_accepted: bool
) -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    headers = {"x-delay": 3_600_000, "CC": ["k" * 200] * count}
    client.feed(publish_frames("q", b"m", delivery_mode=2, headers=headers))
    answer = client.take()
    if is_accepted:
        assert answer == []
        server.sync()
        server.crash().advance(3600)
    else:
        text = "headers 'CC' and 'BCC' are too long for a delayed message"
        assert_channel_closed(answer[0], 406, f"PRECONDITION_FAILED - {text}")


def test_the_confirm_waits_for_the_disk_and_the_message_survives() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True)
    client.call(Confirm.Select())
    client.feed(publish_frames("q", b"m", delivery_mode=2, headers={"x-delay": 3_600_000}))
    assert client.take() == []
    server.sync()
    assert names(client.take()) == ["Basic.Ack"]
    server = server.crash()
    server.advance(3600)
    assert server.open().get("q") == b"m"


def test_mandatory_is_decided_when_it_is_published(server: Server, client: Client) -> None:
    client.publish("nobody", b"m", mandatory=True, headers={"x-delay": 3_600_000})
    assert client.take()[0].reply_code == 312
    assert len(server.vhost.delays) == 0
    client.declare("q")
    client.publish("q", b"m", mandatory=True, headers={"x-delay": 3_600_000})
    assert client.take() == []
    assert len(server.vhost.delays) == 1


@pytest.mark.parametrize("value", ["100", True, 1.5, 1 << 60])
def test_a_value_that_is_no_delay_is_406(client: Client, value: object) -> None:
    client.publish("q", headers={"x-delay": value})
    (answer,) = client.take()
    assert (answer.reply_code, answer.reply_text) == (
        406,
        "PRECONDITION_FAILED - invalid header 'x-delay': it is no number of milliseconds",
    )


def test_a_delayed_exchange_without_a_type_is_406(client: Client) -> None:
    answer = client.ask(Exchange.Declare(exchange="x", exchange_type="x-delayed-message"))
    assert answer.reply_code == 406

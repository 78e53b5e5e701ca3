"""pika with what RabbitMQ adds to AMQP 0-9-1: dead letters, limits, priorities, direct replies."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError
from pika.spec import BasicProperties

from interop.amqp import PERSISTENT, await_one, bodies, channel, connection, consume, get


def with_dead_letters(opened: BlockingChannel, name: str, **arguments: Any) -> str:
    """Declare a queue whose dead letters go to another one; the name of that one."""
    dead = opened.queue_declare(f"{name}.dead").method.queue
    opened.queue_bind(dead, "amq.direct", f"{name}.dead")
    opened.queue_declare(
        name,
        arguments={
            "x-dead-letter-exchange": "amq.direct",
            "x-dead-letter-routing-key": f"{name}.dead",
            **arguments,
        },
    )
    assert isinstance(dead, str)
    return dead


def test_rejected_message_becomes_a_dead_letter(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        dead = with_dead_letters(opened, name)
        sent = BasicProperties(headers={"own": 1}, content_type="a/b", expiration="60000")
        opened.basic_publish("", name, b"x", sent)
        message = get(opened, name, auto_ack=False)
        assert message is not None
        opened.basic_reject(message.tag, requeue=False)
        letter = await_one(opened, dead)
        assert (letter.exchange, letter.key) == ("amq.direct", f"{name}.dead")
        assert (letter.body, letter.properties.content_type) == (b"x", "a/b")
        assert letter.properties.expiration is None
        headers = letter.properties.headers
        assert headers["own"] == 1
        assert headers["x-first-death-queue"] == name
        assert headers["x-first-death-reason"] == "rejected"
        (death,) = headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == (name, "rejected", 1)
        assert (death["exchange"], death["routing-keys"]) == ("", [name])
        assert death["original-expiration"] == "60000"
        opened.queue_delete(name)
        opened.queue_delete(dead)


def test_expired_message_becomes_a_dead_letter(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        dead = with_dead_letters(opened, name, **{"x-message-ttl": 20})
        opened.basic_publish("", name, b"x")
        letter = await_one(opened, dead)
        assert letter.properties.headers["x-death"][0]["reason"] == "expired"
        opened.queue_delete(name)
        opened.queue_delete(dead)


def test_oldest_message_makes_room(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        dead = with_dead_letters(opened, name, **{"x-max-length": 3})
        for i in range(5):
            opened.basic_publish("", name, b"%d" % i)
        letters = [await_one(opened, dead) for _ in range(2)]
        assert [letter.body for letter in letters] == [b"0", b"1"]
        assert letters[0].properties.headers["x-death"][0]["reason"] == "maxlen"
        assert bodies(opened, name) == [b"2", b"3", b"4"]
        opened.queue_delete(name)
        opened.queue_delete(dead)


def test_full_queue_refuses_publishes(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        opened.basic_publish("", name, b"0")
        opened.basic_publish("", name, b"1")
        refused = 0
        for _ in range(10):
            # RabbitMQ takes a few more than its limit.
            try:
                opened.basic_publish("", name, b"2")
            except NackError:
                refused += 1
        assert refused
        assert bodies(opened, name)[:2] == [b"0", b"1"]
        opened.queue_delete(name)


def test_higher_priorities_come_first(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name, arguments={"x-max-priority": 5})
        for priority in (None, 3, 9, 1, 5, 3):
            opened.basic_publish("", name, b"%r" % priority, BasicProperties(priority=priority))
        assert bodies(opened, name) == [b"9", b"5", b"3", b"3", b"1", b"None"]
        opened.queue_delete(name)


def test_quorum_queue_counts_deliveries_up_to_its_limit(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        dead = opened.queue_declare(f"{name}.dead").method.queue
        opened.queue_bind(dead, "amq.direct", f"{name}.dead")
        opened.queue_declare(
            name,
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": 2,
                "x-dead-letter-exchange": "amq.direct",
                "x-dead-letter-routing-key": f"{name}.dead",
            },
        )
        opened.basic_publish("", name, b"x", PERSISTENT)
        counts = []
        for _ in range(3):
            (message,) = consume(opened, name, 1)
            counts.append((message.properties.headers or {}).get("x-delivery-count", 0))
            opened.basic_nack(message.tag, requeue=True)
        assert counts == [0, 1, 2]
        letter = await_one(opened, dead)
        assert letter.properties.headers["x-death"][0]["reason"] == "delivery_limit"
        opened.cancel()
        opened.queue_delete(name)
        opened.queue_delete(dead)


def test_single_active_consumer_fails_over(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened, connection(amqp_port) as other:
        opened.queue_declare(name, arguments={"x-single-active-consumer": True})
        got: list[tuple[str, bytes]] = []

        def receiver(who: str) -> Any:
            return lambda _c, _m, _p, body: got.append((who, body))

        first = opened.basic_consume(name, receiver("first"), auto_ack=True)
        second = other.channel()
        second.basic_consume(name, receiver("second"), auto_ack=True)
        for i in range(4):
            if i == 2:
                opened.basic_cancel(first)
            opened.basic_publish("", name, b"%d" % i)
            while len(got) <= i:
                opened.connection.process_data_events(0.01)
                other.process_data_events(0.01)
        assert got == [("first", b"0"), ("first", b"1"), ("second", b"2"), ("second", b"3")]
        opened.queue_delete(name)


def test_consumer_with_priority_gets_what_it_can_take(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened, connection(amqp_port) as other:
        opened.queue_declare(name)
        got: list[str] = []
        low = other.channel()
        low.basic_consume(name, lambda *_: got.append("low"), auto_ack=True)
        opened.basic_qos(prefetch_count=2)
        opened.basic_consume(name, lambda *_: got.append("high"), arguments={"x-priority": 10})
        for _ in range(5):
            opened.basic_publish("", name, b"x")
        while len(got) < 5:
            opened.connection.process_data_events(0.01)
            other.process_data_events(0.01)
        assert sorted(got) == ["high"] * 2 + ["low"] * 3, "two fill the prefetch"
        opened.queue_delete(name)


def test_direct_reply(amqp_port: int, name: str) -> None:
    with channel(amqp_port) as client, channel(amqp_port) as server:
        server.queue_declare(name)
        answers: list[tuple[bytes, str | None]] = []
        client.basic_consume(
            "amq.rabbitmq.reply-to",
            lambda _c, _m, properties, body: answers.append((body, properties.correlation_id)),
            auto_ack=True,
        )
        client.basic_publish(
            "", name, b"abc", BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")
        )
        request = await_one(server, name)
        assert request.properties.reply_to.startswith("amq.rabbitmq.reply-to.")
        correlation = BasicProperties(correlation_id=request.properties.correlation_id)
        server.basic_publish("", request.properties.reply_to, request.body[::-1], correlation)
        while not answers:
            client.connection.process_data_events(0.05)
        assert answers == [(b"cba", "1")]
        server.queue_delete(name)


def test_alternate_exchange_takes_what_is_unroutable(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(f"{name}.rest", "fanout")
        rest = opened.queue_declare("", exclusive=True).method.queue
        opened.queue_bind(rest, f"{name}.rest")
        opened.exchange_declare(name, "direct", arguments={"alternate-exchange": f"{name}.rest"})
        queue = opened.queue_declare("", exclusive=True).method.queue
        opened.queue_bind(queue, name, "known")
        opened.basic_publish(name, "known", b"1", mandatory=True)
        opened.basic_publish(name, "unknown", b"2", mandatory=True)
        assert (bodies(opened, queue), bodies(opened, rest)) == ([b"1"], [b"2"])
        opened.exchange_delete(name)
        opened.exchange_delete(f"{name}.rest")


def test_cc_and_bcc_route_to_further_keys(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        for suffix in ("to", "cc", "bcc"):
            opened.queue_declare(f"{name}.{suffix}")
        headers: dict[str, Any] = {"CC": [f"{name}.cc"], "BCC": [f"{name}.bcc"]}
        opened.basic_publish("", f"{name}.to", b"x", BasicProperties(headers=headers))
        for suffix in ("to", "cc", "bcc"):
            message = await_one(opened, f"{name}.{suffix}")
            assert message.properties.headers == {"CC": [f"{name}.cc"]}
            opened.queue_delete(f"{name}.{suffix}")


def test_unused_queue_expires(amqp_port: int, name: str) -> None:
    with connection(amqp_port) as opened:
        opened.channel().queue_declare(name, arguments={"x-expires": 100})
        opened.sleep(2.5)
        with pytest.raises(ChannelClosedByBroker) as error:
            opened.channel().queue_declare(name, passive=True)
        assert error.value.reply_code == 404


def test_transaction_publishes_and_acknowledges_as_one(amqp_port: int, name: str) -> None:
    with channel(amqp_port) as opened, channel(amqp_port) as other:
        opened.queue_declare(name)
        other.basic_publish("", name, b"first")
        taken = await_one_unacknowledged(opened, name)
        opened.tx_select()
        opened.basic_publish("", name, b"second")
        opened.basic_ack(taken)
        opened.tx_rollback()
        assert bodies(other, name) == []
        opened.basic_publish("", name, b"third")
        opened.basic_ack(taken)
        opened.tx_commit()
        assert bodies(other, name) == [b"third"]
        opened.queue_delete(name)


def await_one_unacknowledged(opened: BlockingChannel, name: str) -> int:
    """The delivery tag of the next message, once it is there."""
    while (message := get(opened, name, auto_ack=False)) is None:
        opened.connection.process_data_events(0.01)
    return message.tag


def test_delayed_exchange_routes_later(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.exchange_declare(name, "x-delayed-message", arguments={"x-delayed-type": "topic"})
        opened.queue_declare(name)
        opened.queue_bind(name, name, "a.#")
        for delay, body in ((400, b"later"), (0, b"now")):
            opened.basic_publish(name, "a.b", body, BasicProperties(headers={"x-delay": delay}))
        assert [await_one(opened, name).body for _ in range(2)] == [b"now", b"later"]
        opened.queue_delete(name)
        opened.exchange_delete(name)


def test_repetitions_are_confirmed_and_dropped(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        opened.queue_declare(name, arguments={"x-message-deduplication": True})
        for identity in ("1", "1", "2"):
            headers = {"x-deduplication-header": identity}
            opened.basic_publish("", name, identity.encode(), BasicProperties(headers=headers))
        assert bodies(opened, name) == [b"1", b"2"]
        opened.queue_delete(name)

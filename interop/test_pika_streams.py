"""pika with RabbitMQ's streams: non-destructive consumers that begin at an offset."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from interop.amqp import PATIENCE, PERSISTENT, channel

COUNT = 50


def fill(opened: BlockingChannel, name: str, **arguments: Any) -> None:
    """A new stream with numbers."""
    opened.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})
    for number in range(COUNT):
        opened.basic_publish("", name, b"%d" % number, PERSISTENT)


def read(opened: BlockingChannel, name: str, offset: Any, until: int) -> list[tuple[int, bytes]]:
    """Offsets and bodies from ``offset`` up to the record ``until``, acknowledged one by one."""
    found: list[tuple[int, bytes]] = []
    arguments = {} if offset is None else {"x-stream-offset": offset}
    opened.basic_qos(prefetch_count=7)
    for method, properties, body in opened.consume(
        name, arguments=arguments, inactivity_timeout=PATIENCE
    ):
        assert method is not None, found
        assert method.delivery_tag is not None
        opened.basic_ack(method.delivery_tag)
        # Where a number is asked for, RabbitMQ too begins exactly there; of a word, at a chunk.
        headers: Any = properties.headers if properties is not None else None
        found.append((headers["x-stream-offset"], body or b""))
        if found[-1][0] == until:
            opened.cancel()
            break
    return found


def test_a_stream_is_read_again_and_again_from_any_offset(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        fill(opened, name)
        everything = [(number, b"%d" % number) for number in range(COUNT)]
        assert read(opened, name, "first", COUNT - 1) == everything
        assert read(opened, name, 20, COUNT - 1) == everything[20:]
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        assert read(opened, name, hour_ago, COUNT - 1) == everything
        assert read(opened, name, "1h", COUNT - 1) == everything
        assert read(opened, name, "last", COUNT - 1)[-1] == everything[-1]
        opened.queue_delete(name)


def test_a_stream_takes_the_arguments_of_rabbitmq(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        fill(
            opened,
            name,
            **{
                "x-max-age": "7D",
                "x-max-length-bytes": 1 << 30,
                "x-stream-max-segment-size-bytes": 1 << 20,
            },
        )
        assert len(read(opened, name, "first", COUNT - 1)) == COUNT
        opened.queue_delete(name)


def test_a_stream_without_a_prefetch_count_is_not_consumed(amqp_port: int, name: str) -> None:
    with channel(amqp_port, confirms=True) as opened:
        fill(opened, name)
        with pytest.raises(ChannelClosedByBroker) as caught:
            opened.basic_consume(name, lambda *_: None)
        assert caught.value.reply_code == 406


def get(opened: BlockingChannel, name: str) -> None:
    opened.basic_get(name)


def consume_without_acknowledging(opened: BlockingChannel, name: str) -> None:
    opened.basic_consume(name, lambda *_: None, auto_ack=True)


@pytest.mark.parametrize("action", [get, consume_without_acknowledging])
def test_a_stream_is_not_consumed_like_a_queue(
    amqp_port: int, name: str, action: Callable[[BlockingChannel, str], None]
) -> None:
    with channel(amqp_port, confirms=True) as opened:
        fill(opened, name)
        opened.basic_qos(prefetch_count=1)
        with pytest.raises(ConnectionClosedByBroker) as caught:
            action(opened, name)
        assert caught.value.reply_code == 540
